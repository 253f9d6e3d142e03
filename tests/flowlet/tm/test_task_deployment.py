"""The way from a descriptor to a task: everything or nothing; and timers that any thread may set."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.common.job_settings import JobSettings
from flowlet.errors import StateRestoreError
from flowlet.graph.partitioner import Rebalance
from flowlet.messages.control_messages import TaskDeploymentDescriptor
from flowlet.messages.job_messages import InputChannelDescriptor, InputGateDescriptor, ResultPartitionDescriptor
from flowlet.serde.deploy_blobs import DeploymentError, dump_chain, dump_partitioner
from flowlet.sinks.function_sink import DiscardSink
from flowlet.task.stream_task import StreamTask
from flowlet.tm.task_deployment import OpenCheckpointing, channel_spec, create_task_from_descriptor, owner_name
from netstack.config import NetstackConfig
from netstack.environment import NetworkEnvironment
from netstack.errors import InsufficientNetworkBuffersError
from netstack.ids import ConnectionID
from netstack.loop.eventloop import EventLoopThread, LoopTimer
from tests.flowlet.client.jobs import source
from tests.flowlet.tm.recording_executor import RecordingExecutor
from tests.waiting import PATIENCE_S

NUM_SEGMENTS = 64
CHANNEL = InputChannelDescriptor(bytes(20), bytes(40), 3, "tm-2", "127.0.0.1", 4711)


@pytest_asyncio.fixture
async def loop() -> AsyncIterator[EventLoopThread]:
    adopted = EventLoopThread.adopt(asyncio.get_running_loop(), "test")
    yield adopted
    adopted.close()


@pytest_asyncio.fixture
async def network(loop: EventLoopThread) -> AsyncIterator[NetworkEnvironment]:
    environment = NetworkEnvironment(NetstackConfig(network_memory_bytes=NUM_SEGMENTS * 32 * 1024), loop)
    yield environment
    await environment.close()


def descriptor(
    partitions: list[ResultPartitionDescriptor] | None = None, gates: list[InputGateDescriptor] | None = None
) -> TaskDeploymentDescriptor:
    chain = dump_chain([ChainedOperator(source([1]), -1), ChainedOperator(DiscardSink(), 0)], "v")
    return TaskDeploymentDescriptor(
        "ab" * 16, "job", "cd" * 16, "t", 1, 4, 128, bytes(40), chain, gates or [], partitions or []
    )


def partition(number: int, num_subpartitions: int, partitioner: bytes | None = None) -> ResultPartitionDescriptor:
    blob = dump_partitioner(Rebalance(), "e") if partitioner is None else partitioner
    return ResultPartitionDescriptor("ef" * 16, bytes(19) + bytes([number]), num_subpartitions, 0, blob, 100)


def gate_of(*channels: InputChannelDescriptor) -> InputGateDescriptor:
    return InputGateDescriptor("ef" * 16, list(channels))


def create(
    described: TaskDeploymentDescriptor,
    network: NetworkEnvironment,
    loop: EventLoopThread,
    open_checkpointing: OpenCheckpointing = lambda _operators: None,
) -> StreamTask:
    return create_task_from_descriptor(described, RecordingExecutor(network, loop), open_checkpointing)


def test_subtasks_are_counted_from_one_for_people() -> None:
    assert owner_name(descriptor()) == "t (2/4)"


def test_a_channel_needs_a_connection_unless_its_producer_is_on_the_same_task_manager() -> None:
    """A client is on none."""
    spec = channel_spec(CHANNEL, "tm-1")

    assert spec.connection == channel_spec(CHANNEL, None).connection == ConnectionID("127.0.0.1", 4711)
    assert (spec.partition_id.partition, spec.partition_id.producer, spec.subpartition) == (bytes(20), bytes(40), 3)
    assert channel_spec(CHANNEL, "tm-2").connection is None


async def test_the_task_gets_all_that_the_descriptor_says(network: NetworkEnvironment, loop: EventLoopThread) -> None:
    task = create(descriptor([partition(1, 2), partition(2, 1)], [gate_of(CHANNEL)]), network, loop)
    environment = task.environment
    task.cancel()

    assert (environment.job_name, environment.task_name) == ("job", "t")
    assert (environment.subtask, environment.parallelism) == (1, 4)
    assert [output.source_operator for output in environment.outputs] == [0, 0]
    assert [output.partitioner for output in environment.outputs] == [Rebalance(), Rebalance()]
    assert [output.buffer_timeout_ms for output in environment.outputs] == [100, 100]
    assert len(environment.gates) == 1
    assert network.buffer_pool.num_available == NUM_SEGMENTS


@pytest.mark.parametrize(("settings", "limit"), [(JobSettings(), 64 << 20), (JobSettings(max_record_bytes=1000), 1000)])
async def test_the_jobs_largest_record_is_that_of_its_task(
    network: NetworkEnvironment, loop: EventLoopThread, settings: JobSettings, limit: int
) -> None:
    task = create(msgspec.structs.replace(descriptor(), settings=settings), network, loop)
    task.cancel()

    assert task.environment.limits.max_element_bytes == limit


async def test_a_restore_that_fails_leaves_nothing_behind(network: NetworkEnvironment, loop: EventLoopThread) -> None:
    """The partitions are there while it reads, so that their consumers find them."""

    def fail(operators: Mapping[str, StreamOperator]) -> None:
        assert len(network.partition_manager) == 1
        assert sorted(each.name for each in operators.values()) == ["Discard", "Source"]
        raise StateRestoreError("gone")

    with pytest.raises(StateRestoreError, match="gone"):
        create(descriptor([partition(1, 2)]), network, loop, fail)

    assert len(network.partition_manager) == 0
    assert network.buffer_pool.num_available == NUM_SEGMENTS


async def test_partitions_are_made_before_gates(
    network: NetworkEnvironment, loop: EventLoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate may ask for partitions of its own process: all of them are there first."""
    made: list[str] = []
    create_partition, create_gate = network.create_result_partition, network.create_input_gate

    def note(name: str, create: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            made.append(name)
            return create(*args)

        return noting

    monkeypatch.setattr(network, "create_result_partition", note("partition", create_partition))
    monkeypatch.setattr(network, "create_input_gate", note("gate", create_gate))
    create(descriptor([partition(1, 2), partition(2, 1)], [gate_of(CHANNEL)] * 2), network, loop).cancel()

    assert made == ["partition", "partition", "gate", "gate"]


@pytest.mark.parametrize(
    ("described", "error", "message"),
    [
        pytest.param(
            descriptor([partition(1, 2), partition(2, NUM_SEGMENTS)]),
            InsufficientNetworkBuffersError,
            r"t \(2/4\)",
            id="the second partition is too big",
        ),
        pytest.param(
            descriptor([partition(1, 1)], [gate_of(CHANNEL), gate_of(*[CHANNEL] * NUM_SEGMENTS)]),
            InsufficientNetworkBuffersError,
            r"t \(2/4\)",
            id="the second gate is too big",
        ),
        pytest.param(
            descriptor([partition(1, 1), partition(2, 1, b"no pickle")]),
            DeploymentError,
            "the partitioner of an output of task 't'",
            id="the second partitioner cannot be loaded",
        ),
    ],
)
async def test_a_task_that_cannot_be_made_leaves_nothing_behind(
    network: NetworkEnvironment,
    loop: EventLoopThread,
    described: TaskDeploymentDescriptor,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        create(described, network, loop)

    assert len(network.partition_manager) == 0
    assert network.buffer_pool.num_available == NUM_SEGMENTS


async def test_a_timer_of_another_thread_fires_on_the_loop(loop: EventLoopThread) -> None:
    fired, threads = asyncio.Event(), []

    def fire() -> None:
        threads.append(threading.current_thread())
        fired.set()

    thread = threading.Thread(target=lambda: LoopTimer(loop, 0.001, fire))
    thread.start()
    async with asyncio.timeout(PATIENCE_S):
        await fired.wait()
    thread.join()

    assert threads == [threading.current_thread()]


async def test_a_cancelled_timer_does_not_fire(loop: EventLoopThread) -> None:
    """Cancelled before it was armed, and cancelled before its time: a later timer proves that their time has come."""
    fired: list[int] = []
    later = asyncio.Event()

    never_armed = LoopTimer(loop, 0.001, lambda: fired.append(1))
    never_armed.cancel()
    armed = LoopTimer(loop, 0.02, lambda: fired.append(2))
    await calls_are_made(loop)
    armed.cancel()
    armed.cancel()
    LoopTimer(loop, 0.03, later.set)
    async with asyncio.timeout(PATIENCE_S):
        await later.wait()

    assert fired == []


async def calls_are_made(loop: EventLoopThread) -> None:
    """Wait until the loop has made the calls that it was given so far."""
    are_made = asyncio.Event()
    loop.execute_threadsafe(are_made.set)
    async with asyncio.timeout(PATIENCE_S):
        await are_made.wait()


@pytest.mark.parametrize("end", ["fired", "cancelled", "never armed"])
async def test_a_timer_that_has_ended_lets_go_of_its_callback(loop: EventLoopThread, end: str) -> None:
    """Callbacks usually hold their timer, and the collector of cycles runs rarely."""
    has_ended = asyncio.Event()

    class Holder:
        def __init__(self) -> None:
            self.timer = LoopTimer(loop, 60 if end == "cancelled" else 0.001, self.fire)

        def fire(self) -> None:
            assert end == "fired"
            has_ended.set()

    gc.disable()
    try:
        holder = Holder()
        if end == "cancelled":
            await calls_are_made(loop)  # armed
        if end != "fired":
            holder.timer.cancel()
            loop.execute_threadsafe(has_ended.set)
        reference = weakref.ref(holder)
        del holder
        async with asyncio.timeout(PATIENCE_S):
            await has_ended.wait()
        await calls_are_made(loop)  # the callback has returned
        assert reference() is None
    finally:
        gc.enable()


async def test_cancelling_after_the_loop_was_closed_is_no_error() -> None:
    loop = EventLoopThread.adopt(asyncio.get_running_loop(), "test")
    timer = LoopTimer(loop, 60, lambda: None)
    loop.close()

    timer.cancel()
