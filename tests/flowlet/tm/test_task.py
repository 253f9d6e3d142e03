"""One attempt on its thread: its reports, their order, and the effects of a cancellation."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import structlog

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.common.job_settings import JobSettings
from flowlet.errors import TaskCancelled
from flowlet.graph.partitioner import Rebalance
from flowlet.messages.control_messages import (
    EmitMark,
    FromTask,
    InputChannelDescriptor,
    InputGateDescriptor,
    MarkCompleted,
    MarkPassed,
    ResultPartitionDescriptor,
    SourceOrder,
    TaskDeploymentDescriptor,
    TaskMetrics,
    TaskStateChanged,
    TaskStuck,
)
from flowlet.messages.execution_state import ExecutionState
from flowlet.operators.process_operator import MapOperator
from flowlet.operators.source_operator import SourceOperator
from flowlet.serde.deploy_blobs import dump_chain, dump_partitioner
from flowlet.sinks.function_sink import DiscardSink
from flowlet.task.source_stream_task import SourceStreamTask
from flowlet.tm.task import CancellationConfig, Task
from flowlet.tm.task_checkpointing import CheckpointServices, SnapshotPool
from netstack.config import NetstackConfig
from netstack.environment import NetworkEnvironment
from netstack.errors import ProducerFailedError
from netstack.ids import ExecutionAttemptID, IntermediateResultPartitionID, ResultPartitionID
from netstack.loop.eventloop import EventLoopThread
from tests.flowlet.client.jobs import EndlessSource, hold, reached, released, source
from tests.flowlet.tm.recording_executor import RecordingExecutor
from tests.waiting import PATIENCE_S, spin_until

INITIALIZING, RUNNING, FINISHED = ExecutionState.INITIALIZING, ExecutionState.RUNNING, ExecutionState.FINISHED
CANCELED, FAILED = ExecutionState.CANCELED, ExecutionState.FAILED
ATTEMPT, PRODUCER = bytes(39) + b"\x01", bytes(39) + b"\x02"


class Harness:
    """A network, a loop, and a list of the tasks' reports."""

    def __init__(self, network: NetworkEnvironment, loop: EventLoopThread) -> None:
        self.network = network
        self.changes: list[TaskStateChanged] = []
        self.stuck: list[Task] = []
        self.reports: list[TaskStuck] = []
        self.is_reported = asyncio.Event()
        self.is_stuck = asyncio.Event()
        self.is_running = asyncio.Event()
        checkpoints = CheckpointServices(SnapshotPool(""))
        self.executor = RecordingExecutor(network, loop, checkpoints, self._changed, self._reported, self._stuck)

    def _changed(self, task: Task, change: TaskStateChanged) -> None:
        self.changes.append(change)
        if change.state is RUNNING:
            self.is_running.set()

    def _reported(self, report: FromTask) -> None:
        assert isinstance(report, TaskStuck)
        self.reports.append(report)
        self.is_reported.set()

    def _stuck(self, task: Task, _report: TaskStuck) -> None:
        self.stuck.append(task)
        self.is_stuck.set()

    @property
    def states(self) -> list[ExecutionState]:
        return [change.state for change in self.changes]

    def task(self, *operators: StreamOperator, cancellation: CancellationConfig | None = None, **fields: Any) -> Task:
        blob = dump_chain([ChainedOperator(operator, index - 1) for index, operator in enumerate(operators)], "v")
        descriptor = TaskDeploymentDescriptor(
            "ab" * 16, "job", "cd" * 16, "t", 0, 1, 128, ATTEMPT, fields.pop("chain", blob), [], []
        )
        if cancellation is not None:
            self.executor.config = replace(self.executor.config, cancellation=cancellation)
        return Task(msgspec.structs.replace(descriptor, **fields), self.executor)


@pytest_asyncio.fixture
async def harness() -> AsyncIterator[Harness]:
    reached.clear()
    released.clear()
    loop = EventLoopThread.adopt(asyncio.get_running_loop(), "test")
    network = NetworkEnvironment(NetstackConfig(network_memory_bytes=1024 * 1024), loop)
    yield Harness(network, loop)
    await network.close()
    loop.close()


async def ended(task: Task) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await task.ended.wait()
    task.join(PATIENCE_S)


async def running(harness: Harness) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await harness.is_running.wait()


async def until_reached(name: str) -> None:
    await asyncio.to_thread(reached[name].wait, PATIENCE_S)
    assert reached[name].is_set()


async def test_a_bounded_task_reports_its_states_in_order_and_its_counters_at_the_end(harness: Harness) -> None:
    task = harness.task(source(range(10)), DiscardSink())

    task.start()
    await ended(task)

    assert harness.states == [INITIALIZING, RUNNING, FINISHED]
    assert [change.attempt for change in harness.changes] == [ATTEMPT] * 3
    assert [change.metrics is None for change in harness.changes] == [True, True, False]
    assert task.metrics() == harness.changes[-1].metrics


async def test_a_failing_user_function_is_reported_with_its_record(harness: Harness) -> None:
    task = harness.task(
        source("abc"), MapOperator(lambda value: 1 // 0 if value == "b" else value, name="divide"), DiscardSink()
    )

    task.start()
    await ended(task)

    assert harness.states == [INITIALIZING, RUNNING, FAILED]
    failure = harness.changes[-1].failure
    assert failure is not None
    assert (failure.exception_type, failure.operator, failure.record_preview) == ("ZeroDivisionError", "divide", "'b'")
    assert (failure.task_name, failure.tm_id) == ("t", "tm-1")
    assert failure.timestamp_ms > 1_600_000_000_000
    assert "flowlet/operators" not in failure.traceback


@pytest.mark.parametrize(
    ("error", "name"), [(SystemExit(3), "SystemExit"), (TaskCancelled("x"), "flowlet.errors.TaskCancelled")]
)
async def test_whatever_a_user_function_raises_fails_the_task(
    harness: Harness, error: BaseException, name: str
) -> None:
    """``sys.exit`` must not end a thread silently, and only the runtime may cancel."""

    def raise_error(_value: object) -> None:
        raise error

    task = harness.task(source([1]), MapOperator(raise_error), DiscardSink())

    task.start()
    await ended(task)

    assert harness.states[-1] is FAILED
    failure = harness.changes[-1].failure
    assert failure is not None
    assert failure.exception_type == name


forked: list[int] = []


def fork_at_1(value: int) -> int:
    if value == 1:
        forked.append(os.fork())
    return value


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


async def test_an_exception_whose_text_ends_the_thread_fails_the_task(harness: Harness) -> None:
    """An attempt with such an error once did not end, and kept its slot."""

    def leave(_value: object) -> None:
        raise Leaving

    task = harness.task(source([1]), MapOperator(leave), DiscardSink())

    task.start()
    await ended(task)

    assert harness.states[-1] is FAILED
    failure = harness.changes[-1].failure
    assert failure is not None
    assert failure.message == "<its text cannot be shown: str() raised SystemExit>"


async def test_a_cancelled_task_reports_that_and_nothing_else(harness: Harness) -> None:
    task = harness.task(SourceOperator(EndlessSource()), DiscardSink())
    task.start()
    await running(harness)

    task.cancel()
    task.cancel()
    await ended(task)

    assert harness.states == [INITIALIZING, RUNNING, CANCELED]
    assert harness.changes[-1].failure is None


async def test_cancelling_while_the_operators_are_loaded_never_runs_them(harness: Harness) -> None:
    """Imports take long; the task has no stream task yet that could be told."""

    class Slow:
        def __reduce__(self) -> tuple[object, ...]:
            return hold, ("load", 1)

    operator = source(range(3))
    operator.held = Slow()  # type: ignore[attr-defined]  # travels with the operator
    task = harness.task(operator, DiscardSink())
    task.start()
    await until_reached("load")

    task.cancel()
    released["load"].set()
    await ended(task)

    assert harness.states == [INITIALIZING, CANCELED]
    assert harness.network.buffer_pool.num_available == harness.network.buffer_pool.num_total


@pytest.mark.parametrize("is_loadable", [True, False], ids=["it comes", "it fails"])
async def test_partitions_are_announced_while_what_a_task_needs_is_fetched_and_loaded(
    harness: Harness, is_loadable: bool
) -> None:
    """Packages may be installed for a task, which takes minutes; a consumer that asks for its results meanwhile waits
    that long.
    """

    class Slow:
        def __reduce__(self) -> tuple[object, ...]:
            return (hold, ("load", 1)) if is_loadable else (_hold_and_fail, ("load",))

    operator = source(range(3))
    operator.held = Slow()  # type: ignore[attr-defined]  # travels with the operator
    output = ResultPartitionDescriptor("ef" * 16, bytes(20), 1, 0, dump_partitioner(Rebalance(), "e"), 100)
    task = harness.task(operator, partitions=[output])
    manager = harness.network.partition_manager
    partition_id = ResultPartitionID(IntermediateResultPartitionID(bytes(20)), ExecutionAttemptID(ATTEMPT))
    task.start()
    await until_reached("load")

    before = manager.is_announced(partition_id)
    released["load"].set()
    if is_loadable:
        await running(harness)
        assert not manager.is_announced(partition_id), "it is registered"
        task.cancel()
    await ended(task)

    assert before
    assert not manager.is_announced(partition_id)


def _hold_and_fail(name: str) -> None:
    hold(name, 1)
    raise ValueError("it cannot be loaded")


async def test_a_task_that_ended_is_not_cancelled(harness: Harness) -> None:
    task = harness.task(source([1]), DiscardSink())
    task.start()
    await ended(task)

    task.cancel()

    assert harness.states[-1] is FINISHED


async def test_operators_that_cannot_be_loaded_fail_the_task(harness: Harness) -> None:
    task = harness.task(chain=b"no pickle")

    task.start()
    await ended(task)

    assert harness.states == [FAILED]
    failure = harness.changes[0].failure
    assert failure is not None
    assert failure.exception_type == "flowlet.serde.deploy_blobs.DeploymentError"
    assert failure.message.startswith("the operators of task 't' could not be loaded")


async def test_a_watermark_that_is_held_back_is_warned_of_once(harness: Harness) -> None:
    task = harness.task(source(range(10)), DiscardSink())

    with structlog.testing.capture_logs() as logs:
        for held_back_by in (["input 1, channel 3"], ["input 1, channel 3"], [], ["input 2"]):
            task._warn_of_stall(held_back_by)

    assert [line["held_back_by"] for line in logs] == [["input 1, channel 3"], ["input 2"]]


async def test_metrics_are_zero_before_there_is_anything_to_count(harness: Harness) -> None:
    task = harness.task(source([1]), DiscardSink())

    assert task.metrics() == TaskMetrics()


async def fail_the_producer_of(harness: Harness, cancellation: CancellationConfig) -> Task:
    """Return a consumer that runs, and whose producer has just failed."""
    partition = harness.network.create_result_partition(
        "producer", ResultPartitionID(IntermediateResultPartitionID(bytes(20)), ExecutionAttemptID(PRODUCER)), 1
    )
    channel = InputChannelDescriptor(bytes(20), PRODUCER, 0, "tm-1", "127.0.0.1", 1)
    task = harness.task(DiscardSink(), gates=[InputGateDescriptor("ef" * 16, [channel])], cancellation=cancellation)
    task.start()
    await running(harness)
    partition.fail(ProducerFailedError("the producer failed"))
    partition.close()
    return task


async def test_the_consequence_of_anothers_failure_is_not_reported_as_a_failure(harness: Harness) -> None:
    """The consumer hears of the end before the JobManager hears of the reason; the first report would be shown as the
    cause.
    """
    task = await fail_the_producer_of(harness, CancellationConfig(consequence_grace_s=PATIENCE_S))

    task.cancel()
    await ended(task)

    assert harness.states == [INITIALIZING, RUNNING, CANCELED]


async def test_a_consequence_without_a_cause_is_reported_after_all(harness: Harness) -> None:
    """The consequence is all that is known if no cancel arrives."""
    task = await fail_the_producer_of(harness, CancellationConfig(consequence_grace_s=0.01))

    await ended(task)

    assert harness.states[-1] is FAILED
    failure = harness.changes[-1].failure
    assert failure is not None
    assert failure.exception_type == "netstack.errors.ProducerFailedError"


async def test_a_task_that_ignores_its_cancellation_is_named_and_then_given_up(harness: Harness) -> None:
    """The warning shows where the user's code hangs."""

    def stuck_here(value: object) -> object:
        return hold("stuck", value)

    task = harness.task(
        source([1]),
        MapOperator(stuck_here),
        DiscardSink(),
        cancellation=CancellationConfig(warn_interval_s=0.01, fatal_timeout_s=0.03),
    )
    task.start()
    await until_reached("stuck")

    with structlog.testing.capture_logs() as logs:
        task.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await harness.is_stuck.wait()
    released["stuck"].set()
    await ended(task)

    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert len(warnings) >= 2
    assert "in stuck_here" in warnings[0]["stands_in"]
    assert warnings[0]["task"] == "t (1/1)"
    assert harness.stuck == [task]
    assert harness.states[-1] is CANCELED


async def test_where_a_cancelled_task_stands_is_reported_with_the_operator_and_the_users_calls_alone(
    harness: Harness,
) -> None:
    """The first report comes soon, whatever the interval is."""

    def stuck_here(value: object) -> object:
        return hold("stands", value)

    limits = CancellationConfig(warn_interval_s=PATIENCE_S, fatal_timeout_s=0, first_report_s=0.01)
    task = harness.task(source([1]), MapOperator(stuck_here, name="my map"), DiscardSink(), cancellation=limits)
    task.start()
    await until_reached("stands")

    task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await harness.is_reported.wait()
    released["stands"].set()
    await ended(task)

    (report,) = harness.reports
    assert (report.attempt, report.operator) == (ATTEMPT, "my map")
    assert report.waited_ms >= 10
    assert report.stack.startswith('  File "')
    assert "in stuck_here" in report.stack.splitlines()[0]
    assert "flowlet/task/" not in report.stack
    assert harness.stuck == [], "0 is no timeout"


def test_a_jobs_own_cancellation_settings_come_before_the_task_managers() -> None:
    limits = CancellationConfig(warn_interval_s=30, fatal_timeout_s=180)

    assert limits.for_job(JobSettings()) == limits
    own = limits.for_job(JobSettings(cancellation_interval_ms=500, cancellation_timeout_ms=0))
    assert (own.warn_interval_s, own.fatal_timeout_s) == (0.5, 0)
    never = CancellationConfig(fatal_timeout_s=0).for_job(JobSettings(cancellation_timeout_ms=1_000))
    assert never.fatal_timeout_s == 0, "its process is not its own to end"


async def test_a_thread_that_a_trace_function_ended_is_a_failed_task(harness: Harness) -> None:
    """``threading.settrace`` of a user's is called before any line of the task; its error would leave the job waiting
    for ever.
    """

    def raise_error(*_: object) -> None:
        raise RuntimeError("a trace function")

    task = harness.task(source([1]), DiscardSink())
    hook, threading.excepthook = threading.excepthook, lambda _: None
    threading.settrace(raise_error)
    try:
        task.start()
        task.join(PATIENCE_S)
    finally:
        threading.settrace(None)
        threading.excepthook = hook

    task.check_thread()
    await ended(task)

    assert harness.states == [FAILED]
    failure = harness.changes[-1].failure
    assert failure is not None
    assert "its thread ended without a report" in failure.message


async def test_a_forked_child_whose_function_returns_ends_before_it_sends_or_reports_anything(harness: Harness) -> None:
    forked.clear()
    task = harness.task(source([1, 2]), MapOperator(fork_at_1), DiscardSink())

    task.start()
    await ended(task)

    assert harness.states == [INITIALIZING, RUNNING, FINISHED]
    assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == 1  # noqa: ASYNC222 - it ends, or the test fails by its timeout


async def test_lines_of_the_users_functions_carry_the_tasks_names(harness: Harness) -> None:
    def log(value: object) -> object:
        sys.modules["structlog"].get_logger("user").warning("seen", value=value)
        return value

    task = harness.task(source([7]), MapOperator(log), DiscardSink())

    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        task.start()
        await ended(task)

    seen = [line for line in logs if line["event"] == "seen"]
    assert [(line["job"], line["task"], line["subtask"], line["value"]) for line in seen] == [("job", "t", 0, 7)]


async def test_a_mark_that_comes_before_the_operators_are_loaded_is_not_lost(harness: Harness) -> None:
    """An early mark is reported, as others are, once it has passed the chain; a task that is no source, or has ended,
    takes none.
    """
    marks: asyncio.Queue[FromTask] = asyncio.Queue()
    harness.executor.on_message = marks.put_nowait
    task = harness.task(SourceOperator(EndlessSource()), DiscardSink())
    task.handle(EmitMark(ATTEMPT, 1))
    task.start()
    async with asyncio.timeout(PATIENCE_S):
        assert await marks.get() == MarkPassed(ATTEMPT, 1)
        task.handle(EmitMark(ATTEMPT, 2))
        task.handle(MarkCompleted(ATTEMPT, 1))
        assert await marks.get() == MarkPassed(ATTEMPT, 2)

    task.cancel()
    await ended(task)
    task.handle(EmitMark(ATTEMPT, 3))

    assert marks.empty()


async def test_a_mark_does_not_overtake_one_that_came_before_the_operators_were_loaded(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes when the operators are loaded and the first one is about to be handed on."""
    loop_thread, has_come, carry_out = threading.current_thread(), threading.Event(), SourceStreamTask.carry_out

    def carry_out_late(task: SourceStreamTask, order: SourceOrder) -> None:
        if threading.current_thread() is not loop_thread:
            assert has_come.wait(PATIENCE_S)
        carry_out(task, order)

    monkeypatch.setattr(SourceStreamTask, "carry_out", carry_out_late)
    marks: asyncio.Queue[FromTask] = asyncio.Queue()
    harness.executor.on_message = marks.put_nowait
    task = harness.task(SourceOperator(EndlessSource()), DiscardSink())

    task.handle(EmitMark(ATTEMPT, 1))
    task.start()
    spin_until(lambda: "StreamTask" in task.describe_stuck(), "the operators")
    task.handle(EmitMark(ATTEMPT, 2))
    has_come.set()

    async with asyncio.timeout(PATIENCE_S):
        assert [await marks.get(), await marks.get()] == [MarkPassed(ATTEMPT, 1), MarkPassed(ATTEMPT, 2)]
    task.cancel()
    await ended(task)
