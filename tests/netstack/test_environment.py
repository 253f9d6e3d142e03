"""Two network environments and the real TCP connection between them."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from netstack.config import NetstackConfig, SecurityConfig
from netstack.environment import ChannelSpec, NetworkEnvironment
from netstack.errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    InsufficientNetworkBuffersError,
    LocalProtocolError,
    NetstackError,
    PartitionNotFoundError,
    ProducerFailedError,
    ResourceClosedError,
)
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.single_input_gate import SingleInputGate
from netstack.handlers.view_reader import ViewReaderStatistics
from netstack.ids import ConnectionID, ResultPartitionID, execution_attempt_id, intermediate_partition_id
from netstack.loop.eventloop import EventLoopThread
from netstack.partition.buffer_writing_result_partition import ResultPartitionType
from netstack.partition.result_partition import ResultPartition
from netstack.transport.server import NetworkServer
from netstack.wire.events import (
    CheckpointBarrier,
    CheckpointOptions,
    EndOfData,
    SavepointFormat,
    SnapshotType,
    StopMode,
)
from tests.waiting import PATIENCE_S

SEGMENT = 1024


@dataclass
class Node:
    """An environment with its own loop thread, listening on loopback."""

    loop: EventLoopThread
    environment: NetworkEnvironment
    address: ConnectionID

    def close(self) -> None:
        """Close the environment, then its loop."""
        self.loop.submit(self.environment.close()).result(PATIENCE_S)
        self.loop.close()


def start_node(name: str, *, use_uvloop: bool, config: NetstackConfig) -> Node:
    loop = EventLoopThread.start(name, use_uvloop=use_uvloop)
    environment = NetworkEnvironment(config, loop)
    address = loop.submit(environment.start("127.0.0.1", 0)).result(PATIENCE_S)
    return Node(loop, environment, address)


def small_config(**options: object) -> NetstackConfig:
    defaults: dict[str, object] = {
        "segment_size_bytes": SEGMENT,
        "network_memory_bytes": 256 * SEGMENT,
        "exclusive_buffers_per_channel": 4,
        "floating_buffers_per_gate": 0,
        "partition_request_timeout_s": 5.0,
        "security": SecurityConfig.hmac(bytes(range(32))),
    }
    return NetstackConfig(**{**defaults, **options})  # type: ignore[arg-type]  # integers where the field wants them


@contextmanager
def running(*, use_uvloop: bool = True, **options: object) -> Iterator[tuple[Node, Node]]:
    """Run a producer's node with these options, and a consumer's."""
    config = small_config(**options)
    producer, consumer = (start_node(name, use_uvloop=use_uvloop, config=config) for name in ("producer", "consumer"))
    yield producer, consumer
    consumer.close()
    producer.close()


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def nodes(request: pytest.FixtureRequest) -> Iterator[tuple[Node, Node]]:
    with running(use_uvloop=request.param) as both:
        yield both


@pytest.fixture
def node() -> Iterator[Node]:
    one = start_node("node", use_uvloop=True, config=small_config())
    yield one
    one.close()


def result_partition_id(number: int = 0) -> ResultPartitionID:
    return ResultPartitionID(
        intermediate_partition_id(b"d" * 16, number), execution_attempt_id(b"g" * 16, b"v" * 16, number, 0)
    )


def remote_gate(consumer: Node, producer: Node, *channels: tuple[ResultPartitionID, int]) -> SingleInputGate:
    specs = [ChannelSpec(each, subpartition, producer.address) for each, subpartition in channels]
    gate = consumer.environment.create_input_gate("consumer", specs)
    gate.request_partitions()
    return gate


def wait_for_next(gate: SingleInputGate) -> BufferOrEvent:
    while True:
        found = gate.poll_next()
        if found is not None:
            return found
        available = threading.Event()
        gate.available_future().add_done_callback(available.set)
        assert available.wait(PATIENCE_S), f"nothing arrived at {gate!r}"


def read_all(gate: SingleInputGate) -> list[bytes]:
    """Return every channel's bytes until the gate is finished; acknowledge the ends of data."""
    received: dict[int, bytearray] = {}
    while not gate.is_finished:
        found = wait_for_next(gate)
        if found.buffer is not None:
            received.setdefault(found.channel_index, bytearray()).extend(found.buffer.view)
            found.buffer.recycle()
        elif isinstance(found.event, EndOfData):
            gate.acknowledge_all_records_processed(found.channel_index)
    return [bytes(received.get(index, b"")) for index in range(len(received))]


def finish(partition: ResultPartition) -> None:
    partition.notify_end_of_data(StopMode.DRAIN)
    processed = threading.Event()
    partition.all_data_processed.add_done_callback(processed.set)
    assert processed.wait(PATIENCE_S), "the consumer never acknowledged the end of data"
    partition.finish()
    partition.close()


def in_thread(target: Callable[..., object], *args: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=args)
    thread.start()
    return thread


def emit(partition: ResultPartition, num_records: int) -> None:
    """Emit whole segments of zeros to subpartition 0."""
    for _ in range(num_records):
        partition.emit_record(bytes(SEGMENT), 0)


def finish_after(thread: threading.Thread, partition: ResultPartition) -> None:
    thread.join(PATIENCE_S)
    finish(partition)


def test_records_cross_tcp_unchanged_and_in_order(nodes: tuple[Node, Node]) -> None:
    """More data than credits and pools hold arrives whole, then the end of data, then the end of the partition."""
    producer, consumer = nodes
    partition = producer.environment.create_result_partition("producer", result_partition_id(), 1)
    records = [bytes([number % 251]) * (number % 3000) for number in range(400)]
    gate = remote_gate(consumer, producer, (result_partition_id(), 0))

    def produce() -> None:
        for record in records:
            partition.emit_record(record, 0)
        finish(partition)

    thread = in_thread(produce)
    received = read_all(gate)
    thread.join(PATIENCE_S)
    gate.close()

    assert received == [b"".join(records)]


def test_an_event_may_be_larger_than_a_segment(nodes: tuple[Node, Node]) -> None:
    """The barrier of a savepoint with a long path, between data; the connection goes on."""
    producer, consumer = nodes
    partition = producer.environment.create_result_partition("producer", result_partition_id(), 1)
    gate = remote_gate(consumer, producer, (result_partition_id(), 0))
    options = CheckpointOptions(
        SnapshotType.SAVEPOINT, location=b"x" * 5 * SEGMENT, savepoint_format=SavepointFormat.CANONICAL
    )
    barrier = CheckpointBarrier(7, 8, options)

    partition.emit_record(b"before", 0)
    partition.broadcast_event(barrier)
    partition.emit_record(b"behind", 0)
    partition.flush_all()
    found = [wait_for_next(gate), wait_for_next(gate)]
    gate.resume_consumption(0)  # it stops behind a barrier
    found.append(wait_for_next(gate))

    assert [bytes(each.buffer.view) if each.buffer is not None else each.event for each in found] == [
        b"before",
        barrier,
        b"behind",
    ]
    for each in found:
        if each.buffer is not None:
            each.buffer.recycle()
    thread = in_thread(finish, partition)
    assert read_all(gate) == []
    thread.join(PATIENCE_S)
    gate.close()


def test_a_partition_that_never_comes_is_an_error_of_that_channel_only() -> None:
    """After the request timeout the channel gets PartitionNotFound; its neighbour on the connection reads on."""
    with running(partition_request_timeout_s=0.05) as (producer, consumer):
        partition = producer.environment.create_result_partition("producer", result_partition_id(0), 1)
        lost = remote_gate(consumer, producer, (result_partition_id(1), 0))
        good = remote_gate(consumer, producer, (result_partition_id(0), 0))

        with pytest.raises(PartitionNotFoundError, match=r"was not registered at its producer within 0.05 s"):
            wait_for_next(lost)
        partition.emit_record(b"still here", 0)
        thread = in_thread(finish, partition)
        assert read_all(good) == [b"still here"]

        thread.join(PATIENCE_S)
        for gate in (lost, good):
            gate.close()


def test_a_stalled_channel_does_not_hold_up_its_neighbour(nodes: tuple[Node, Node]) -> None:
    """One of two consumers on a connection never reads, and the other one gets everything."""
    producer, consumer = nodes
    stalled_partition = producer.environment.create_result_partition("stalled", result_partition_id(0), 1)
    partition = producer.environment.create_result_partition("running", result_partition_id(1), 1)
    stalled = remote_gate(consumer, producer, (result_partition_id(0), 0))
    running = remote_gate(consumer, producer, (result_partition_id(1), 0))
    blocked = in_thread(emit, stalled_partition, 100)

    def produce() -> None:
        emit(partition, 500)
        finish(partition)

    thread = in_thread(produce)
    received = read_all(running)
    thread.join(PATIENCE_S)

    assert len(received[0]) == 500 * SEGMENT
    assert blocked.is_alive()
    running.close()
    last = in_thread(finish_after, blocked, stalled_partition)
    assert len(read_all(stalled)[0]) == 100 * SEGMENT
    last.join(PATIENCE_S)
    stalled.close()


def test_local_channels_open_no_socket(nodes: tuple[Node, Node]) -> None:
    """A consumer reads a partition of its own process without TCP, through an ordinary gate."""
    producer, _ = nodes
    partition = producer.environment.create_result_partition("producer", result_partition_id(), 1)
    gate = producer.environment.create_input_gate("consumer", [ChannelSpec(result_partition_id(), 0, None)])
    gate.request_partitions()

    partition.emit_record(b"local", 0)
    thread = in_thread(finish, partition)
    received = read_all(gate)
    thread.join(PATIENCE_S)
    gate.close()

    assert received == [b"local"]


def test_too_little_memory_is_said_at_creation() -> None:
    """The error names the owner, the numbers and the option; nothing is kept."""
    node = start_node("small", use_uvloop=True, config=small_config(network_memory_bytes=8 * SEGMENT))

    with pytest.raises(InsufficientNetworkBuffersError, match=r"network_memory|network-memory"):
        node.environment.create_result_partition("greedy", result_partition_id(), 100)
    with pytest.raises(InsufficientNetworkBuffersError):
        node.environment.create_input_gate(
            "greedy", [ChannelSpec(result_partition_id(), index, node.address) for index in range(3)]
        )

    assert node.environment.buffer_pool.num_available == node.environment.buffer_pool.num_total
    node.close()


def test_a_public_address_is_refused() -> None:
    """No authentication, no public port."""
    loop = EventLoopThread.start("refused")
    environment = NetworkEnvironment(small_config(), loop)

    with pytest.raises(ConfigError, match="refusing to listen"):
        loop.submit(environment.start("0.0.0.0", 0)).result(PATIENCE_S)

    loop.submit(environment.close()).result(PATIENCE_S)
    loop.close()


def test_a_partition_that_cannot_be_made_keeps_no_memory(node: Node) -> None:
    """A wrong number or an id that is taken: an error, and every required buffer can be promised again."""
    first = node.environment.create_result_partition("first", result_partition_id(), 1)

    for _ in range(3):
        with pytest.raises(ValueError, match="0 subpartitions"):
            node.environment.create_result_partition("none", result_partition_id(1), 0)
        with pytest.raises(NetstackError, match="already registered"):
            node.environment.create_result_partition("second", result_partition_id(), 200)

    first.close()
    assert node.environment.buffer_pool.num_available == node.environment.buffer_pool.num_total
    assert "none" not in repr(node.environment.buffer_pool.__dict__)


def test_a_closed_environment_starts_nothing(node: Node) -> None:
    """No server, partition or gate after the close; the second close does nothing."""
    environment, loop = node.environment, node.loop
    loop.submit(environment.close()).result(PATIENCE_S)

    with pytest.raises(ResourceClosedError):
        loop.submit(environment.start("127.0.0.1", 0)).result(PATIENCE_S)
    with pytest.raises(ResourceClosedError):
        environment.create_result_partition("late", result_partition_id(), 1)
    with pytest.raises(ResourceClosedError):
        environment.create_input_gate("late", [])


def test_an_environment_is_started_once(node: Node) -> None:
    """A second server would be forgotten, and stay open."""
    with pytest.raises(LocalProtocolError, match="started"):
        node.loop.submit(node.environment.start("127.0.0.1", 0)).result(PATIENCE_S)


def test_a_close_during_the_start_leaves_no_server() -> None:
    """The start fails with an error, and no socket listens afterwards (checked at the end of every test)."""
    loop = EventLoopThread.start("node")
    environment = NetworkEnvironment(small_config(), loop)

    async def start_and_close() -> None:
        # Takes its first step where the close waits.
        starting = asyncio.ensure_future(environment.start("127.0.0.1", 0))
        await environment.close()
        with pytest.raises(ResourceClosedError):
            await starting

    loop.submit(start_and_close()).result(PATIENCE_S)
    loop.close()


def test_every_part_is_closed_even_if_one_fails(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's error is raised after connections, partitions and memory are gone."""
    partition = node.environment.create_result_partition("producer", result_partition_id(), 1)

    close = NetworkServer.close

    async def fail(server: NetworkServer) -> None:
        await close(server)
        raise OSError("cannot close")

    with monkeypatch.context() as patch:
        patch.setattr(NetworkServer, "close", fail)
        with pytest.raises(OSError, match="cannot close"):
            node.loop.submit(node.environment.close()).result(PATIENCE_S)

    assert partition.is_released
    with pytest.raises(NetstackError):
        node.environment.buffer_pool.create_buffer_pool(owner="late", num_required=1, max_buffers=1)
    partition.close()


# ---------------------------------------------------------------- kinds of partitions and channels


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("exclusive", [0, 1, 4])
def test_data_crosses_the_network_with_any_buffers_and_compression(exclusive: int, compression: str | None) -> None:
    """Without exclusive buffers the backlog is announced, and floating ones are found."""
    with running(exclusive_buffers_per_channel=exclusive, floating_buffers_per_gate=3, compression=compression) as (
        producer,
        consumer,
    ):
        partition = producer.environment.create_result_partition("producer", result_partition_id(), 1)
        gate = remote_gate(consumer, producer, (result_partition_id(), 0))

        thread = in_thread(finish_after, in_thread(emit, partition, 50), partition)
        received = read_all(gate)
        thread.join(PATIENCE_S)
        gate.close()

        assert received == [bytes(50 * SEGMENT)]


def test_a_blocking_partition_is_read_when_it_is_finished_by_several_readers(tmp_path: Path) -> None:
    """Over the network, one after the other; its files go with it."""
    with running() as (producer, consumer):
        partition = producer.environment.create_result_partition(
            "producer", result_partition_id(), 1, ResultPartitionType.BLOCKING, tmp_path
        )
        emit(partition, 20)
        partition.notify_end_of_data(StopMode.DRAIN)
        partition.finish()
        partition.close()

        for _ in range(2):
            gate = remote_gate(consumer, producer, (result_partition_id(), 0))
            assert len(read_all(gate)[0]) == 20 * SEGMENT
            gate.close()
        partition.release()

    assert list(tmp_path.iterdir()) == [], "the file stays for readers that have not left, and no longer"


def test_a_dump_shows_both_ends_of_a_channel(nodes: tuple[Node, Node]) -> None:
    """Credit, backlog and what waits, at the producer's and at the consumer's side."""
    producer, consumer = nodes
    partition = producer.environment.create_result_partition("producer", result_partition_id(), 1)
    gate = remote_gate(consumer, producer, (result_partition_id(), 0))
    emit(partition, 4)
    partition.flush(0)
    held = [wait_for_next(gate).buffer for _ in range(4)]

    (there,) = on_loop(producer, producer.environment.reader_statistics)
    (here,) = gate.channel_statistics()

    assert (there.num_buffers_sent, there.num_credits_available, there.backlog, there.is_blocked) == (4, 0, 0, False)
    assert (here.num_buffers_in, here.num_credits_available, here.num_credits_granted) == (4, 0, 4)
    assert (here.num_required, here.is_waiting) == (4, False)
    assert here.last_activity_ns > 0
    for buffer in held:
        assert buffer is not None
        buffer.recycle()
    gate.close()
    partition.close()


def on_loop(node: Node, function: Callable[[], list[ViewReaderStatistics]]) -> list[ViewReaderStatistics]:
    """Return the result of ``function``, called on the node's loop thread."""
    found: list[list[ViewReaderStatistics]] = []
    done = threading.Event()

    def run() -> None:
        found.append(function())
        done.set()

    node.loop.execute_threadsafe(run)
    assert done.wait(PATIENCE_S)
    return found[0]


@pytest.mark.parametrize("busy_poll_us", [0, 1000])
def test_a_loop_that_reads_looks_for_more_if_it_is_told_to(busy_poll_us: int) -> None:
    """The producer's does not: nothing that it waits for is urgent."""
    with running(busy_poll_us=busy_poll_us) as (producer, consumer):
        partition = producer.environment.create_result_partition("producer", result_partition_id(), 1)
        gate = remote_gate(consumer, producer, (partition.partition_id, 0))
        end = in_thread(finish_after, in_thread(emit, partition, 3), partition)

        assert read_all(gate) == [bytes(3 * SEGMENT)]

        pollers = consumer.environment.busy_poller, producer.environment.busy_poller
        if busy_poll_us:
            assert [poller is not None and poller.num_looks > 0 for poller in pollers] == [True, False]
        else:
            assert pollers == (None, None), "it costs nothing"
        end.join(PATIENCE_S)
        gate.close()


def test_errors_of_the_stack_are_one_family() -> None:
    """A caller may catch everything with one name."""
    for error in (ConfigError, ConnectError, ConnectionLostError, PartitionNotFoundError, ProducerFailedError):
        assert issubclass(error, NetstackError)
