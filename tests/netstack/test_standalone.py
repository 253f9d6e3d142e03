"""The API for programs that use the network stack alone, over real sockets on loopback."""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import netstack
from netstack import (
    ChannelSpec,
    ConfigError,
    ConnectionID,
    EndOfData,
    EndOfPartition,
    Event,
    ExecutionAttemptID,
    IntermediateResultPartitionID,
    NetstackConfig,
    NetstackError,
    ProducerFailedError,
    ProducerState,
    ResourceClosedError,
    ResultPartition,
    ResultPartitionID,
    ResultPartitionType,
    SecurityConfig,
    SingleInputGate,
    StandaloneNetwork,
    StopMode,
    wait_consumed,
)
from tests.waiting import PATIENCE_S

PARTITION = ResultPartitionID(IntermediateResultPartitionID(bytes(range(20))), ExecutionAttemptID(bytes(range(40))))


def config(floating_buffers: int = 0) -> NetstackConfig:
    return NetstackConfig(
        floating_buffers_per_gate=floating_buffers,
        segment_size_bytes=1024,
        network_memory_bytes=64 * 1024,
        security=SecurityConfig.hmac(bytes(32)),
    )


@pytest.fixture
def producer() -> Iterator[StandaloneNetwork]:
    with StandaloneNetwork(config(), "producer") as network:
        yield network


@pytest.fixture
def consumer() -> Iterator[StandaloneNetwork]:
    with StandaloneNetwork(config(), "consumer") as network:
        yield network


@pytest.fixture
def partition(producer: StandaloneNetwork) -> ResultPartition:
    return producer.create_partition(PARTITION)


@pytest.fixture
def gate(partition: ResultPartition, producer: StandaloneNetwork, consumer: StandaloneNetwork) -> SingleInputGate:
    """A gate that reads it."""
    return consumer.open_gate([channel(producer.serve())])


def channel(address: ConnectionID, subpartition: int = 0, initial_credit: int = 2) -> ChannelSpec:
    return ChannelSpec(PARTITION, subpartition, address, initial_credit)


def read_one(gate: SingleInputGate) -> bytes | Event | None:
    found = gate.get_next(PATIENCE_S)
    if found is None:
        assert gate.is_finished
        return None
    if found.buffer is None:
        assert found.event is not None
        return found.event
    data = bytes(found.buffer.view)
    found.buffer.recycle()
    return data


def test_buffers_and_events_are_read_one_by_one_in_order(partition: ResultPartition, gate: SingleInputGate) -> None:
    partition.emit_record(b"a" * 1024, 0)
    partition.emit_record(b"b" * 10, 0)
    partition.notify_end_of_data(StopMode.DRAIN)
    partition.finish()
    partition.close()

    assert [read_one(gate) for _ in range(5)] == [
        b"a" * 1024,
        b"b" * 10,
        EndOfData(StopMode.DRAIN),
        EndOfPartition(),
        None,
    ]
    gate.close()
    assert wait_consumed(partition, PATIENCE_S)


def test_a_gate_may_ask_before_the_partition_exists(producer: StandaloneNetwork, consumer: StandaloneNetwork) -> None:
    gate = consumer.open_gate([channel(producer.serve())])

    partition = producer.create_partition(PARTITION)
    partition.finish()
    partition.close()

    assert [read_one(gate), read_one(gate)] == [EndOfPartition(), None]


def test_a_reader_that_recycles_nothing_gets_no_more_than_its_initial_credit(
    producer: StandaloneNetwork, consumer: StandaloneNetwork
) -> None:
    partition = producer.create_partition(PARTITION, num_subpartitions=2)
    address = producer.serve()
    slow = consumer.open_gate([channel(address, 0, initial_credit=3)])
    quick = consumer.open_gate([channel(address, 1)])
    for _ in range(4):
        partition.emit_record(b"x" * 1024, 0)
    partition.flush(0)
    held = [slow.get_next(PATIENCE_S) for _ in range(3)]

    # A later buffer on this connection proves that the fourth buffer is not under way.
    partition.emit_record(b"y" * 1024, 1)
    partition.flush(1)
    assert read_one(quick) == b"y" * 1024
    assert slow.poll_next() is None

    for found in held:
        assert found is not None
        assert found.buffer is not None
        found.buffer.recycle()
    assert read_one(slow) == b"x" * 1024


def test_closing_the_gate_cancels_and_the_producer_runs_on(partition: ResultPartition, gate: SingleInputGate) -> None:
    partition.emit_record(b"x" * 1024, 0)
    partition.flush_all()
    assert read_one(gate) == b"x" * 1024

    gate.close()

    for _ in range(1000):  # far more than all the memory; without a consumer it is dropped
        partition.emit_record(b"x" * 1024, 0)
    partition.finish()
    partition.close()
    assert wait_consumed(partition, PATIENCE_S)


def test_a_partition_that_is_closed_unfinished_is_an_error_at_its_reader(
    partition: ResultPartition, gate: SingleInputGate
) -> None:
    partition.emit_record(b"half a file", 0)
    partition.flush_all()
    assert read_one(gate) == b"half a file"

    partition.close()

    with pytest.raises(ProducerFailedError, match="closed before it was finished"):
        gate.get_next(PATIENCE_S)


def test_a_waiting_reader_wakes_up_when_its_gate_is_closed(partition: ResultPartition, gate: SingleInputGate) -> None:
    closer = threading.Thread(target=gate.close)

    closer.start()
    with pytest.raises(ResourceClosedError):
        gate.get_next(PATIENCE_S)

    closer.join()


class Consumers:
    """Records the events that a producer hears of its consumers."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, str]] = []
        self.changed = threading.Condition()

    def on_acknowledged(self, subpartition: int) -> None:
        self._hear(subpartition, "acknowledged")

    def on_consumer_left(self, subpartition: int, *, has_read_all: bool) -> None:
        self._hear(subpartition, "read all" if has_read_all else "left early")

    def _hear(self, subpartition: int, what: str) -> None:
        with self.changed:
            self.heard.append((subpartition, what))
            self.changed.notify_all()

    def wait_for(self, number: int) -> list[tuple[int, str]]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.heard) >= number, PATIENCE_S), self.heard
            return list(self.heard)


@pytest.mark.parametrize(
    "kind", [ResultPartitionType.PIPELINED_BOUNDED, ResultPartitionType.BLOCKING], ids=["pipelined", "blocking"]
)
def test_a_producer_learns_who_has_acknowledged_and_who_left(
    producer: StandaloneNetwork, consumer: StandaloneNetwork, tmp_path: Path, kind: ResultPartitionType
) -> None:
    partition = producer.create_partition(PARTITION, 2, kind, tmp_path)
    consumers = Consumers()
    partition.add_consumer_listener(consumers)
    for index in (0, 1):
        partition.emit_record(b"x" * 1024, index)
        partition.emit_record(b"y" * 1024, index)
    partition.notify_end_of_data(StopMode.DRAIN)
    if kind is ResultPartitionType.BLOCKING:
        partition.finish()
    address = producer.serve()
    reader, leaver = (
        consumer.open_gate([channel(address, 0)]),
        consumer.open_gate([channel(address, 1, initial_credit=1)]),
    )

    held = leaver.get_next(PATIENCE_S)  # not recycled before the close: it would be credit for the rest
    assert held is not None
    assert held.buffer is not None
    leaver.close()
    held.buffer.recycle()
    assert consumers.wait_for(1) == [(1, "left early")]
    assert [read_one(reader) for _ in range(3)] == [b"x" * 1024, b"y" * 1024, EndOfData(StopMode.DRAIN)]
    if kind is ResultPartitionType.PIPELINED_BOUNDED:
        reader.acknowledge_all_records_processed(0)
        assert consumers.wait_for(2)[1] == (0, "acknowledged")
        partition.finish()
    assert read_one(reader) == EndOfPartition()
    assert read_one(reader) is None
    reader.close()
    assert consumers.wait_for(3 if kind is ResultPartitionType.PIPELINED_BOUNDED else 2)[-1] == (0, "read all")
    partition.close()
    partition.release()


def test_a_buffer_is_ended_early(partition: ResultPartition, gate: SingleInputGate) -> None:
    """``finish_buffer`` ends a buffer, while a flush only hands out its bytes and goes on filling it."""
    partition.emit_record(b"a", 0)
    assert partition.subpartitions[0].num_queued_buffers == 1
    partition.finish_buffer(0)
    partition.emit_record(b"b", 0)
    assert read_one(gate) == b"a"
    partition.finish()
    assert [read_one(gate), read_one(gate), read_one(gate)] == [b"b", EndOfPartition(), None]


def test_a_timeout_is_no_end(partition: ResultPartition, gate: SingleInputGate) -> None:
    with pytest.raises(TimeoutError, match="nothing came within 0 s"):
        gate.get_next(0)
    with pytest.raises(TimeoutError):
        gate.get_many(4, 0)
    partition.finish()
    assert [read_one(gate), gate.get_next(PATIENCE_S), gate.get_many(4, PATIENCE_S)] == [EndOfPartition(), None, []]


def test_a_state_checker_decides_about_a_partition_that_is_not_found() -> None:
    """A producer that failed is not waited for."""
    asked: list[ResultPartitionID] = []

    class Checker:
        def check(self, partition_id: ResultPartitionID, on_result: Callable[[ProducerState], None]) -> None:
            asked.append(partition_id)
            on_result(ProducerState.FAILED)

    quick = dataclasses.replace(config(), partition_request_timeout_s=0.01, max_request_backoff_ms=10)
    with StandaloneNetwork(quick) as consumer, StandaloneNetwork(quick) as other:
        gate = consumer.open_gate([channel(other.serve())], Checker())
        with pytest.raises(NetstackError):
            gate.get_next(PATIENCE_S)
        gate.close()
    assert asked == [PARTITION]


def test_waiting_for_a_consumer_ends_with_its_time(partition: ResultPartition) -> None:
    assert not wait_consumed(partition, 0.0)
    partition.close()
    assert wait_consumed(partition, 0.0)


def test_a_gate_without_credit_of_its_own_lives_on_floating_buffers(producer: StandaloneNetwork) -> None:
    partition = producer.create_partition(PARTITION)
    consumer = StandaloneNetwork(config(floating_buffers=4), "consumer")
    gate = consumer.open_gate([channel(producer.serve(), initial_credit=0)])

    for number in range(30):  # more than there are floating buffers
        partition.emit_record(bytes([number]) * 1024, 0)
        partition.flush_all()
        assert read_one(gate) == bytes([number]) * 1024
    partition.finish()
    partition.close()

    assert [read_one(gate), read_one(gate)] == [EndOfPartition(), None]
    consumer.close()


def test_a_gate_that_could_never_get_a_buffer_is_refused(
    producer: StandaloneNetwork, consumer: StandaloneNetwork
) -> None:
    with pytest.raises(ConfigError, match="initial_credit is 0 and floating_buffers_per_gate too"):
        consumer.open_gate([channel(producer.serve(), initial_credit=0)])

    pool = consumer.environment.buffer_pool
    assert pool.num_available == pool.num_total


def test_close_twice_ends_the_loop_once(producer: StandaloneNetwork) -> None:
    producer.serve()

    producer.close()
    producer.close()

    assert producer.environment.is_closed
    with pytest.raises(ResourceClosedError):
        producer.create_partition(PARTITION)


WHAT_A_PROGRAM_NEEDS = {
    "a network, and what it is made with": "StandaloneNetwork NetstackConfig SecurityConfig SecurityMode TlsConfig",
    "ids and addresses that both sides know": (
        "ConnectionID ExecutionAttemptID IntermediateResultPartitionID ResultPartitionID execution_attempt_id "
        "intermediate_partition_id"
    ),
    "to produce": "ConsumerListener ResultPartition ResultPartitionType ResultSubpartition wait_consumed",
    "to consume": "BufferOrEvent ChannelSpec EndOfDataStatus NetworkBuffer PartitionStateChecker ProducerState "
    "SingleInputGate",
    "events": "EndOfData EndOfPartition Event StopMode",
    "errors": (
        "BufferOwnershipError ConfigError ConnectError ConnectionLostError InsufficientNetworkBuffersError "
        "LocalProtocolError NetstackError PartitionNotFoundError ProducerFailedError RemoteProtocolError "
        "ResourceClosedError "
        "TransportError"
    ),
    "what a network consists of, for a program that builds its "
    "own": "EventLoopThread NetworkEnvironment ResultPartitionManager",
}


def test_what_is_exported_is_what_a_program_needs() -> None:
    """An exported name cannot be changed without breaking programs."""
    needed = [name for names in WHAT_A_PROGRAM_NEEDS.values() for name in names.split()]

    assert sorted(needed) == sorted(vars(netstack)["__all__"])
    assert all(hasattr(netstack, name) for name in needed)


def test_a_network_that_cannot_be_made_leaves_no_thread_behind() -> None:
    """A network that cannot be made leaves no thread, for there is no object to close."""
    before = threading.enumerate()

    with pytest.raises((OSError, OverflowError, MemoryError)):
        StandaloneNetwork(dataclasses.replace(config(), network_memory_bytes=1 << 60), "too large")

    assert threading.enumerate() == before
