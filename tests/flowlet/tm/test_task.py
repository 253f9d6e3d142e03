"""One attempt on its thread: its reports, their order, and the effects of a cancellation."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from typing import NoReturn

import pytest
import pytest_asyncio
import structlog

from flowlet.chain.stream_operator import StreamOperator
from flowlet.common.job_settings import JobSettings
from flowlet.errors import TaskCancelled
from flowlet.graph.partitioner import Rebalance
from flowlet.mailbox.mailbox_processor import MailboxProcessor
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import InputChannelDescriptor, InputGateDescriptor, ResultPartitionDescriptor
from flowlet.operators.process_operator import MapOperator
from flowlet.operators.source_operator import SourceOperator
from flowlet.serde.deploy_blobs import dump_partitioner
from flowlet.sinks.function_sink import DiscardSink
from flowlet.task.source_stream_task import SourceStreamTask
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import TaskLifecycle
from flowlet.tm.task import CancellationConfig, Task
from flowlet.tm.task_executor import TaskExecutorConfig
from netstack.config import NetstackConfig
from netstack.environment import NetworkEnvironment
from netstack.errors import ProducerFailedError, ResourceBrokenError
from netstack.ids import ExecutionAttemptID, IntermediateResultPartitionID, ResultPartitionID
from netstack.loop.eventloop import EventLoopThread
from tests.flowlet.client.jobs import EndlessSource, hold, reached, released, source
from tests.flowlet.tm.recording_executor import ATTEMPT, RecordingExecutor, ended
from tests.waiting import PATIENCE_S, spin_until

INITIALIZING, RUNNING, FINISHED = ExecutionState.INITIALIZING, ExecutionState.RUNNING, ExecutionState.FINISHED
CANCELED, FAILED = ExecutionState.CANCELED, ExecutionState.FAILED
PRODUCER = bytes(39) + b"\x01"


@pytest_asyncio.fixture
async def tasks() -> AsyncIterator[RecordingExecutor]:
    reached.clear()
    released.clear()
    loop = EventLoopThread.adopt(asyncio.get_running_loop(), "test")
    network = NetworkEnvironment(NetstackConfig(network_memory_bytes=1024 * 1024), loop)
    yield RecordingExecutor(network, loop)
    await network.close()
    loop.close()


async def until_reached(name: str) -> None:
    await asyncio.to_thread(reached[name].wait, PATIENCE_S)
    assert reached[name].is_set()


async def test_a_bounded_task_reports_its_states_in_order_and_its_counters_at_the_end(tasks: RecordingExecutor) -> None:
    task = await tasks.run(source(range(10)), DiscardSink())

    assert tasks.states == [INITIALIZING, RUNNING, FINISHED]
    assert [change.attempt for change in tasks.changes] == [ATTEMPT] * 3
    assert [change.metrics is None for change in tasks.changes] == [True, True, False]
    assert task.metrics() == tasks.changes[-1].metrics


async def test_a_failing_user_function_is_reported_with_its_record(tasks: RecordingExecutor) -> None:
    await tasks.run(
        source("abc"), MapOperator(lambda value: 1 // 0 if value == "b" else value, name="divide"), DiscardSink()
    )

    assert tasks.states == [INITIALIZING, RUNNING, FAILED]
    failure = tasks.failure
    assert (failure.exception_type, failure.operator, failure.record_preview) == ("ZeroDivisionError", "divide", "'b'")
    assert (failure.task_name, failure.tm_id) == ("t", "tm-1")
    assert failure.timestamp_ms > 1_600_000_000_000
    assert "flowlet/operators" not in failure.traceback


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (SystemExit(3), "SystemExit"),
        (TaskCancelled("x"), "flowlet.errors.TaskCancelled"),
        (Leaving(), f"{__name__}.Leaving"),
    ],
    ids=["it leaves", "it says that it was cancelled", "its text leaves"],
)
async def test_whatever_a_user_function_raises_fails_the_task(
    tasks: RecordingExecutor, error: BaseException, name: str
) -> None:
    """``sys.exit`` must not end a thread silently, so that its attempt keeps its slot; only the runtime may cancel."""

    def raise_error(_value: object) -> None:
        raise error

    await tasks.run(source([1]), MapOperator(raise_error), DiscardSink())

    assert tasks.failure.exception_type == name


forked: list[int] = []


def fork_at_1(value: int) -> int:
    if value == 1:
        forked.append(os.fork())
    return value


async def test_a_cancelled_task_reports_that_and_nothing_else(tasks: RecordingExecutor) -> None:
    task = await tasks.running(SourceOperator(EndlessSource()), DiscardSink())

    task.cancel()
    await tasks.cancelled(task)

    assert tasks.states == [INITIALIZING, RUNNING, CANCELED]
    assert tasks.changes[-1].failure is None


async def test_cancelling_while_the_operators_are_loaded_never_runs_them(tasks: RecordingExecutor) -> None:
    """Imports take long; the task has no stream task yet that could be told."""

    class Slow:
        def __reduce__(self) -> tuple[object, ...]:
            return hold, ("load", 1)

    operator = source(range(3))
    operator.held = Slow()  # type: ignore[attr-defined]  # travels with the operator
    task = tasks.task(operator, DiscardSink())
    task.start()
    await until_reached("load")

    task.cancel()
    released["load"].set()
    await ended(task)

    assert tasks.states == [INITIALIZING, CANCELED]
    assert tasks.network.buffer_pool.num_available == tasks.network.buffer_pool.num_total


@pytest.mark.parametrize("is_loadable", [True, False], ids=["it comes", "it fails"])
async def test_partitions_are_announced_while_what_a_task_needs_is_fetched_and_loaded(
    tasks: RecordingExecutor, is_loadable: bool
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
    task = tasks.task(operator, partitions=[output])
    manager = tasks.network.partition_manager
    partition_id = ResultPartitionID(IntermediateResultPartitionID(bytes(20)), ExecutionAttemptID(ATTEMPT))
    task.start()
    await until_reached("load")

    before = manager.is_announced(partition_id)
    released["load"].set()
    if is_loadable:
        await tasks.until(lambda: RUNNING in tasks.states)
        assert not manager.is_announced(partition_id), "it is registered"
        task.cancel()
    await ended(task)

    assert before
    assert not manager.is_announced(partition_id)


def _hold_and_fail(name: str) -> None:
    hold(name, 1)
    raise ValueError("it cannot be loaded")


async def test_a_task_that_ended_is_not_cancelled(tasks: RecordingExecutor) -> None:
    task = await tasks.run(source([1]), DiscardSink())

    task.cancel()

    assert tasks.states[-1] is FINISHED


async def test_operators_that_cannot_be_loaded_fail_the_task(tasks: RecordingExecutor) -> None:
    await tasks.run(chain=b"no pickle")

    assert tasks.states == [FAILED]
    assert tasks.failure.exception_type == "flowlet.serde.deploy_blobs.DeploymentError"
    assert tasks.failure.message.startswith("the operators of task 't' could not be loaded")


async def test_a_watermark_that_is_held_back_is_warned_of_once(tasks: RecordingExecutor) -> None:
    task = tasks.task(source(range(10)), DiscardSink())

    with structlog.testing.capture_logs() as logs:
        for held_back_by in (["input 1, channel 3"], ["input 1, channel 3"], [], ["input 2"]):
            task._warn_of_stall(held_back_by)

    assert [line["held_back_by"] for line in logs] == [["input 1, channel 3"], ["input 2"]]


async def test_metrics_are_zero_before_there_is_anything_to_count(tasks: RecordingExecutor) -> None:
    task = tasks.task(source([1]), DiscardSink())

    assert task.metrics() == messages.TaskMetrics()


async def fail_the_producer_of(tasks: RecordingExecutor, cancellation: CancellationConfig) -> Task:
    """Return a consumer that runs, and whose producer has just failed."""
    partition = tasks.network.create_result_partition(
        "producer", ResultPartitionID(IntermediateResultPartitionID(bytes(20)), ExecutionAttemptID(PRODUCER)), 1
    )
    channel = InputChannelDescriptor(bytes(20), PRODUCER, 0, "tm-1", "127.0.0.1", 1)
    tasks.config = TaskExecutorConfig(cancellation=cancellation)
    task = await tasks.running(DiscardSink(), gates=[InputGateDescriptor("ef" * 16, [channel])])
    partition.fail(ProducerFailedError("the producer failed"))
    partition.close()
    return task


async def test_the_consequence_of_anothers_failure_is_not_reported_as_a_failure(tasks: RecordingExecutor) -> None:
    """The consumer hears of the end before the JobManager hears of the reason; the first report would be shown as the
    cause.
    """
    task = await fail_the_producer_of(tasks, CancellationConfig(consequence_grace_s=PATIENCE_S))

    await tasks.cancelled(task)

    assert tasks.states == [INITIALIZING, RUNNING, CANCELED]


async def test_a_consequence_without_a_cause_is_reported_after_all(tasks: RecordingExecutor) -> None:
    """The consequence is all that is known if no cancel arrives."""
    task = await fail_the_producer_of(tasks, CancellationConfig(consequence_grace_s=0.01))

    await ended(task)

    assert tasks.failure.exception_type == "netstack.errors.ProducerFailedError"


async def stuck_task(tasks: RecordingExecutor, operator: StreamOperator, limits: CancellationConfig) -> Task:
    """Return a task that stands in a function which waits for ``stuck``."""
    tasks.config = TaskExecutorConfig(cancellation=limits)
    task = tasks.task(source([1]), operator, DiscardSink())
    task.start()
    await until_reached("stuck")
    return task


async def test_a_task_that_ignores_its_cancellation_is_named_and_then_given_up(tasks: RecordingExecutor) -> None:
    """The warning shows where the user's code hangs."""

    def stuck_here(value: object) -> object:
        return hold("stuck", value)

    limits = CancellationConfig(warn_interval_s=0.01, fatal_timeout_s=0.03)
    task = await stuck_task(tasks, MapOperator(stuck_here), limits)

    with structlog.testing.capture_logs() as logs:
        task.cancel()
        await tasks.until(lambda: tasks.stuck_tasks)
    released["stuck"].set()
    await ended(task)

    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert len(warnings) >= 2
    assert "in stuck_here" in warnings[0]["stands_in"]
    assert warnings[0]["task"] == "t (1/1)"
    assert tasks.stuck_tasks == [task]
    assert tasks.states[-1] is CANCELED


async def test_where_a_cancelled_task_stands_is_reported_with_the_operator_and_the_users_calls_alone(
    tasks: RecordingExecutor,
) -> None:
    """The first report comes soon, whatever the interval is."""

    def stuck_here(value: object) -> object:
        return hold("stuck", value)

    limits = CancellationConfig(warn_interval_s=PATIENCE_S, fatal_timeout_s=0, first_report_s=0.01)
    task = await stuck_task(tasks, MapOperator(stuck_here, name="my map"), limits)

    task.cancel()
    await tasks.until(lambda: tasks.reports)
    released["stuck"].set()
    await ended(task)

    (report,) = tasks.reports
    assert (report.attempt, report.operator) == (ATTEMPT, "my map")
    assert report.waited_ms >= 10
    assert report.stack.startswith('  File "')
    assert "in stuck_here" in report.stack.splitlines()[0]
    assert "flowlet/task/" not in report.stack
    assert tasks.stuck_tasks == [], "0 is no timeout"


async def test_an_error_of_the_cancellation_is_logged_and_the_task_is_watched(
    tasks: RecordingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order came in a session, which must not end for it."""

    def fail(_: object) -> NoReturn:
        raise ResourceBrokenError("no eventfd")

    monkeypatch.setattr(StreamTask, "cancel", fail)
    limits = CancellationConfig(warn_interval_s=PATIENCE_S, fatal_timeout_s=0, first_report_s=0.01)
    task = await stuck_task(tasks, MapOperator(lambda value: hold("stuck", value)), limits)

    with structlog.testing.capture_logs() as logs:
        task.handle(messages.CancelTask(ATTEMPT))
    await tasks.until(lambda: tasks.reports)
    released["stuck"].set()
    await ended(task)

    assert [line["error"] for line in logs if line["log_level"] == "error"] == ["ResourceBrokenError('no eventfd')"]


def test_a_jobs_own_cancellation_settings_come_before_the_task_managers() -> None:
    limits = CancellationConfig(warn_interval_s=30, fatal_timeout_s=180)

    assert limits.for_job(JobSettings()) == limits
    own = limits.for_job(JobSettings(cancellation_interval_ms=500, cancellation_timeout_ms=0))
    assert (own.warn_interval_s, own.fatal_timeout_s) == (0.5, 0)
    never = CancellationConfig(fatal_timeout_s=0).for_job(JobSettings(cancellation_timeout_ms=1_000))
    assert never.fatal_timeout_s == 0, "its process is not its own to end"


async def test_a_thread_that_a_trace_function_ended_is_a_failed_task(tasks: RecordingExecutor) -> None:
    """``threading.settrace`` of a user's is called before any line of the task; its error would leave the job waiting
    for ever.
    """

    def raise_error(*_: object) -> None:
        raise RuntimeError("a trace function")

    task = tasks.task(source([1]), DiscardSink())
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

    assert tasks.states == [FAILED]
    assert "its thread ended without a report" in tasks.failure.message


def task_between(tasks: RecordingExecutor) -> Task:
    """Return a task between a gate and a partition, not started."""
    output = ResultPartitionDescriptor("ef" * 16, bytes(20), 1, 0, dump_partitioner(Rebalance(), "e"), 100)
    channel = InputChannelDescriptor(bytes(20), PRODUCER, 0, "tm-1", "127.0.0.1", 1)
    return tasks.task(MapOperator(str), partitions=[output], gates=[InputGateDescriptor("ef" * 16, [channel])])


@pytest.mark.parametrize("dies_before", ["it runs", "it is invoked"])
async def test_a_thread_that_dies_leaves_no_memory_gate_or_partition(
    tasks: RecordingExecutor, monkeypatch: pytest.MonkeyPatch, dies_before: str
) -> None:
    """Its task is closed in its place, once it is found dead."""

    def die(*_: object) -> NoReturn:
        raise SystemExit(0)

    task = task_between(tasks)
    with monkeypatch.context() as dying:
        if dies_before == "it is invoked":
            dying.setattr(StreamTask, "invoke", die)
        else:
            dying.setattr(MailboxProcessor, "run_mailbox_loop", die)
            dying.setattr(TaskLifecycle, "end", die)  # the first step of the clean-up
        dying.setattr(Task, "_end", lambda *_: None)
        task.start()
        await asyncio.to_thread(task.join, PATIENCE_S)
    pool = tasks.network.buffer_pool
    assert pool.num_reserved

    task.check_thread()
    await ended(task)
    manager = tasks.network.partition_manager
    await asyncio.to_thread(
        spin_until, lambda: not manager.num_awaited, "the end of the gate, which awaits a partition"
    )
    await asyncio.to_thread(spin_until, lambda: not pool.num_reserved, "the end of the pools")

    assert tasks.states[-1] is FAILED
    assert len(manager) == 0


async def test_a_task_that_fails_before_it_is_invoked_leaves_no_memory(
    tasks: RecordingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(StreamTask, "invoke", fail)
    task = task_between(tasks)
    task.start()
    await ended(task)

    assert tasks.failure.exception_type == "MemoryError"
    assert tasks.network.buffer_pool.num_reserved == 0
    assert len(tasks.network.partition_manager) == 0


async def test_a_forked_child_whose_function_returns_ends_before_it_sends_or_reports_anything(
    tasks: RecordingExecutor,
) -> None:
    forked.clear()
    await tasks.run(source([1, 2]), MapOperator(fork_at_1), DiscardSink())

    assert tasks.states == [INITIALIZING, RUNNING, FINISHED]
    assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == 1  # noqa: ASYNC222 - it ends, or the test fails by its timeout


async def test_lines_of_the_users_functions_carry_the_tasks_names(tasks: RecordingExecutor) -> None:
    def log(value: object) -> object:
        sys.modules["structlog"].get_logger("user").warning("seen", value=value)
        return value

    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        await tasks.run(source([7]), MapOperator(log), DiscardSink())

    seen = [line for line in logs if line["event"] == "seen"]
    assert [(line["job"], line["task"], line["subtask"], line["value"]) for line in seen] == [("job", "t", 0, 7)]


async def test_a_mark_that_comes_before_the_operators_are_loaded_is_not_lost(tasks: RecordingExecutor) -> None:
    """An early mark is reported, as others are, once it has passed the chain; a task that is no source, or has ended,
    takes none.
    """
    task = tasks.task(SourceOperator(EndlessSource()), DiscardSink())
    task.handle(messages.EmitMark(ATTEMPT, 1))
    task.start()
    await tasks.until(lambda: tasks.reports == [messages.MarkPassed(ATTEMPT, 1)])
    task.handle(messages.EmitMark(ATTEMPT, 2))
    task.handle(messages.MarkCompleted(ATTEMPT, 1))
    await tasks.until(lambda: tasks.reports[1:] == [messages.MarkPassed(ATTEMPT, 2)])

    await tasks.cancelled(task)
    task.handle(messages.EmitMark(ATTEMPT, 3))

    assert len(tasks.reports) == 2


async def test_a_mark_does_not_overtake_one_that_came_before_the_operators_were_loaded(
    tasks: RecordingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes when the operators are loaded and the first one is about to be handed on."""
    loop_thread, has_come, carry_out = threading.current_thread(), threading.Event(), SourceStreamTask.carry_out

    def carry_out_late(task: SourceStreamTask, order: messages.SourceOrder) -> None:
        if threading.current_thread() is not loop_thread:
            assert has_come.wait(PATIENCE_S)
        carry_out(task, order)

    monkeypatch.setattr(SourceStreamTask, "carry_out", carry_out_late)
    task = tasks.task(SourceOperator(EndlessSource()), DiscardSink())

    task.handle(messages.EmitMark(ATTEMPT, 1))
    task.start()
    spin_until(lambda: "StreamTask" in task.describe_stuck(), "the operators")
    task.handle(messages.EmitMark(ATTEMPT, 2))
    has_come.set()

    await tasks.until(lambda: len(tasks.reports) == 2)
    assert tasks.reports == [messages.MarkPassed(ATTEMPT, 1), messages.MarkPassed(ATTEMPT, 2)]
    await tasks.cancelled(task)
