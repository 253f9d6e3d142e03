"""Threads that send past the loop while the loop sends, too, on one connection, under constant thread switches."""

import random
import threading
from collections.abc import Iterator

import pytest

from tests.flowlet.task.watchdog import watchdog
from tests.netstack.test_environment import Node, finish, read_all, remote_gate, result_partition_id, running
from tests.stress import num_rounds

pytestmark = pytest.mark.slow

NUM_RECORDS = num_rounds(6_000)
NUM_PRODUCERS = 3
MAX_RECORD_BYTES = 3_000  # some fill several buffers, which are the loop's


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def nodes(request: pytest.FixtureRequest, tiny_switch_interval: None) -> Iterator[tuple[Node, Node]]:
    with running(use_uvloop=request.param) as both:
        yield both


def records(seed: int) -> list[bytes]:
    """Return records, most of them small, each with other bytes."""
    rng = random.Random(seed)
    sizes = [
        rng.choice((1, 5, 40, 40, 40, rng.randrange(1, MAX_RECORD_BYTES))) for _ in range(NUM_RECORDS // NUM_PRODUCERS)
    ]
    return [rng.randbytes(size) for size in sizes]


def test_every_byte_of_every_producer_arrives_in_order(nodes: tuple[Node, Node]) -> None:
    """All bytes arrive in order, whether a record is flushed by its producer, by the loop, or by a full buffer."""
    producer, consumer = nodes
    partitions = [
        producer.environment.create_result_partition("producer", result_partition_id(n), 1)
        for n in range(NUM_PRODUCERS)
    ]
    contents = [records(seed) for seed in range(NUM_PRODUCERS)]

    def produce(number: int) -> None:
        partition, rng = partitions[number], random.Random(number)
        for record in contents[number]:
            partition.emit_record(record, 0)
            who = rng.randrange(4)
            if who <= 1:
                partition.flush(0)
            elif who == 2:
                producer.loop.execute_threadsafe(partition.flush, 0)
        finish(partition)
        partition.close()

    with watchdog():
        gate = remote_gate(consumer, producer, *((result_partition_id(n), 0) for n in range(NUM_PRODUCERS)))
        threads = [threading.Thread(target=produce, args=(number,)) for number in range(NUM_PRODUCERS)]
        for thread in threads:
            thread.start()
        received = read_all(gate)
        for thread in threads:
            thread.join()
        gate.close()

    assert received == [b"".join(each) for each in contents]
