"""Peers whose loop stands still while their kernel acknowledges every byte: waiting tasks get an error, on all kinds of
connections.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from netstack.environment import ChannelSpec
from netstack.errors import ConnectionLostError
from netstack.flow.offer_book import GateShape, Stage
from netstack.loop.eventloop import wall_clock_ms
from netstack.offering_network import GateAccess, OfferedPartition, OfferingNetwork
from netstack.wire.offer_messages import GateIdentity, SubpartitionOffer, gate_token
from tests.netstack.test_environment import Node, result_partition_id, small_config, start_node, wait_for_next
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow  # each waits for a timeout of 0.3 s

FAST = small_config(heartbeat_interval_s=0.1, heartbeat_timeout_s=0.3)
TYPE = b"T" * 16


@contextmanager
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """Start a listening node, and a dialling one that is less patient."""
    patient = replace(FAST, heartbeat_timeout_s=600.0)
    listening, dialling = (
        start_node(name, use_uvloop=True, config=config) for name, config in (("listens", patient), ("dials", FAST))
    )
    try:
        yield listening, dialling
    finally:
        dialling.close()
        listening.close()


@contextmanager
def frozen(node: Node) -> Iterator[None]:
    """Hold the loop of a node; its kernel goes on acknowledging, like a link that swallows everything."""
    may_go_on = threading.Event()

    def stand_still() -> None:
        may_go_on.wait(PATIENCE_S)

    node.loop.execute_threadsafe(stand_still)
    try:
        yield
    finally:
        may_go_on.set()


def test_a_consumer_is_told_that_its_producer_stands_still() -> None:
    """The error names the address, how long it was silent, and the option."""
    with two_nodes() as (producer, consumer):
        partition = producer.environment.create_result_partition("producer", result_partition_id(), 1)
        gate = consumer.environment.create_input_gate(
            "consumer", [ChannelSpec(result_partition_id(), 0, producer.address)]
        )
        gate.request_partitions()
        partition.emit_record(b"first", 0)
        partition.flush_all()
        found = wait_for_next(gate)
        assert found.buffer is not None
        found.buffer.recycle()

        with (
            frozen(producer),
            pytest.raises(
                ConnectionLostError, match=rf"{producer.address} sent nothing for 0\.\d s.*heartbeat_timeout_s is 0\.3"
            ),
        ):
            wait_for_next(gate)

        gate.close()
        partition.release()
        partition.close()


def test_a_producer_that_dialled_is_told_that_the_gate_stands_still() -> None:
    """A producer that waits only for the gate's acknowledgement gets the error, too."""
    with two_nodes() as (listening, dialling):
        identity = GateIdentity(b"j" * 16, "clicks", wall_clock_ms() + 3_600_000)
        gate = listening.environment.create_offered_gate(
            "task", identity.job_id, 0, GateShape("clicks", "Long", TYPE, 1)
        )
        gate.request_partitions()
        partition = dialling.environment.create_result_partition("producer", result_partition_id(), 1)
        offered = OfferedPartition(partition, 1)
        offering = OfferingNetwork(dialling.environment, dialling.loop)
        access = GateAccess(identity, gate_token(bytes(range(32)), identity))
        offer = SubpartitionOffer(b"o" * 16, result_partition_id(), 0, 1, 0, "job", 0, 0, 0, TYPE)
        dialling.loop.submit(offering.offer(access, [(listening.address, offer)], offered, PATIENCE_S)).result(
            PATIENCE_S
        )
        assert offered.wait_for(Stage.REQUESTED, PATIENCE_S)

        with frozen(listening), pytest.raises(ConnectionLostError, match=r"heartbeat_timeout_s is 0\.3"):
            offered.wait_for(Stage.PROCESSED, PATIENCE_S)

        dialling.loop.submit(offering.close()).result(PATIENCE_S)
        partition.close()
        gate.close()
