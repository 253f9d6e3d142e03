"""``Task``: one attempt of one subtask; runs a ``StreamTask`` on a thread and reports its state to the JobManager.

Side:       shared.  All methods are called on the loop thread; the work is done on the task's own thread.
Invariants: exactly one terminal state is reported, last.  A cancelled attempt ends CANCELED, or FINISHED if it was faster, whatever error
            the cancellation caused.  The loop never waits for a task.
Source:     Flink ``Task``, ``Task.TaskCancelerWatchDog``.  Python threads cannot be interrupted, so the watchdog can only warn and end the
            process.
"""

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from flowlet.errors import UserFunctionError
from flowlet.graph.execution_state import ExecutionState
from flowlet.logs import bind_task
from flowlet.rpc.control_messages import FailureInfo, GateCounts, TaskDeploymentDescriptor, TaskMetrics, TaskStateChanged
from flowlet.splits.enumerator import SourceSplit
from flowlet.task.create_stream_task import StreamTask
from flowlet.task.source_stream_task import SourceStreamTask
from flowlet.tm.failure import failure_info, format_thread_stack
from flowlet.tm.latency.busy_tasks import BusyTasks
from flowlet.tm.process_model import TaskScheduling, apply_task_scheduling
from flowlet.tm.task_deployment import create_task_from_descriptor, owner_name
from netstack.environment import NetworkEnvironment
from netstack.errors import PartitionNotFoundError, ProducerFailedError, ResourceClosedError, TransportError
from netstack.eventloop import EventLoopThread

_log = structlog.get_logger(__name__)

# A consumer often learns of its producer's end before the JobManager learns the producer's failure.  So such a failure is held back for a
# moment: if the job is cancelled meanwhile, this task ends CANCELED, and the real cause is reported.
_CONSEQUENCES = (ProducerFailedError, PartitionNotFoundError, TransportError)


@dataclass(frozen=True, slots=True)
class CancellationConfig:
    """Timeouts of cancellation."""

    warn_interval_s: float = 30.0  # between warnings of a cancelled task that does not end; Flink's task.cancellation.interval
    fatal_timeout_s: float = 180.0  # after it the process ends; Flink's task.cancellation.timeout
    consequence_grace_s: float = 1.0  # how long a consequence is held back; not measured: cause and consequence come within milliseconds


_MAX_CHANNELS_LOGGED = 20


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What all tasks of one TaskManager have in common."""

    tm_id: str
    network: NetworkEnvironment
    loop: EventLoopThread
    report: "Callable[[Task, TaskStateChanged], None]"  # called on the loop thread
    on_stuck: "Callable[[Task], None]"  # loop thread: a cancelled task did not end in time
    cancellation: CancellationConfig = CancellationConfig()
    scheduling: TaskScheduling = TaskScheduling.NORMAL
    runs_light_tasks: bool = False  # on the loop thread
    busy_tasks: BusyTasks | None = None  # watches task threads, and may lower their priority
    report_watermark: Callable[[bytes, int], None] | None = None  # of an aligned source: attempt, watermark; loop thread
    report_gate: Callable[[bytes, GateCounts], None] | None = None  # of a remote gate: attempt, counts; loop thread
    request_splits: Callable[[bytes], None] | None = None  # for the source of an attempt; loop thread


class Task:
    """One attempt.

    Threading: all methods on the loop thread, except ``metrics`` on any.
    Life cycle: ``start`` once; it ends by itself or after ``cancel``; ``ended`` is set once the terminal state was reported.
    """

    def __init__(self, descriptor: TaskDeploymentDescriptor, context: TaskContext) -> None:
        self.descriptor = descriptor
        self.name = owner_name(descriptor)
        self.state = ExecutionState.CREATED  # Loop thread only.
        self.ended = asyncio.Event()  # Loop thread only.
        self._context = context
        self._thread = threading.Thread(target=self._run, name=f"task {self.name}", daemon=True)
        self._lock = threading.Lock()
        self._cancelled = threading.Event()  # Set by the loop thread under _lock.
        self._stream_task: StreamTask | None = None  # Written by the task thread, under _lock.
        self._final_metrics: TaskMetrics | None = None  # Written by the task thread, under _lock.
        self._is_gate_finishing = False  # Set by the loop thread under _lock.
        self._is_stalled = False  # Written by threads that ask for metrics; a race costs one warning too many.
        self._cancelled_at = 0.0  # Loop thread only.
        self._watchdog: asyncio.TimerHandle | None = None  # Loop thread only.

    def __repr__(self) -> str:
        return f"<Task {self.name} {self.state.name}{', cancelled' if self._cancelled.is_set() else ''}>"

    @property
    def attempt(self) -> bytes:
        """The id of the attempt, 40 bytes."""
        return self.descriptor.attempt

    def start(self) -> None:
        """Start the thread."""
        self.state = ExecutionState.DEPLOYING
        self._thread.start()

    def cancel(self) -> None:
        """Ask the task to end; in every state, idempotent."""
        if self._cancelled.is_set() or self.state.is_terminal:
            return
        with self._lock:
            self._cancelled.set()
            stream_task = self._stream_task
        if stream_task is not None:
            stream_task.cancel()
        loop = self._context.loop.loop
        self._cancelled_at = loop.time()
        self._watchdog = loop.call_later(self._context.cancellation.warn_interval_s, self._check_cancellation)

    def metrics(self) -> TaskMetrics:
        """The current metrics; the final ones once the task has ended."""
        with self._lock:
            stream_task, final = self._stream_task, self._final_metrics
        if final is not None:
            return final
        if stream_task is None:
            return TaskMetrics()
        metrics = stream_task.metrics()
        self._warn_of_stall(metrics.watermark_held_back_by)
        return metrics

    def allow_watermark(self, max_allowed: int) -> None:
        """Set the allowed watermark (ms) of an aligned source; ignored by other tasks."""
        with self._lock:
            stream_task = self._stream_task
        if isinstance(stream_task, SourceStreamTask):
            stream_task.allow_watermark(max_allowed)

    def add_splits(self, splits: Sequence[SourceSplit], waiting_bytes: int) -> None:
        """Give splits to a source that asked; ignored by other tasks."""
        with self._lock:
            stream_task = self._stream_task
        if isinstance(stream_task, SourceStreamTask):
            stream_task.add_splits(splits, waiting_bytes)

    def no_more_splits(self) -> None:
        """Tell a source that no splits are left; ignored by other tasks."""
        with self._lock:
            stream_task = self._stream_task
        if isinstance(stream_task, SourceStreamTask):
            stream_task.no_more_splits()

    def finish_gate(self) -> None:
        """Let the task's remote gate accept no more producers, and end after the open partitions; ignored by other tasks."""
        with self._lock:
            self._is_gate_finishing = True
            stream_task = self._stream_task
        if stream_task is not None:
            _seal_gate(stream_task)

    def _warn_of_stall(self, held_back_by: list[str]) -> None:
        if held_back_by and not self._is_stalled:
            _log.warning(
                "the watermark has not moved for a minute; with_idleness() lets it pass inputs without records",
                job=self.descriptor.job_name,
                task=self.name,
                held_back_by=held_back_by[:_MAX_CHANNELS_LOGGED],
                num_channels=len(held_back_by),
            )
        self._is_stalled = bool(held_back_by)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, which has nothing left to do once ``ended`` is set."""
        self._thread.join(timeout_s)

    def describe_stuck(self) -> str:
        """The task's name and state, and the stack of its thread, for a log."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = "(its thread has ended)" if frame is None else format_thread_stack(frame)
        with self._lock:
            stream_task = self._stream_task
        return f"{self.name}, {stream_task!r}\n{stack}"

    # ---------------------------------------------------------------- loop thread

    def _check_cancellation(self) -> None:
        loop, limits = self._context.loop.loop, self._context.cancellation
        waited_s = loop.time() - self._cancelled_at
        _log.warning("a cancelled task does not end", job=self.descriptor.job_name, seconds=round(waited_s), task=self.describe_stuck())
        if waited_s >= limits.fatal_timeout_s:
            self._watchdog = None
            self._context.on_stuck(self)
            return
        self._watchdog = loop.call_later(limits.warn_interval_s, self._check_cancellation)

    def _changed(self, change: TaskStateChanged) -> None:
        self.state = change.state
        self._context.report(self, change)
        if change.state.is_terminal:
            if self._watchdog is not None:
                self._watchdog.cancel()
                self._watchdog = None
            self.ended.set()

    # ---------------------------------------------------------------- task thread

    def _run(self) -> None:
        bind_task(self.descriptor.job_name, self.descriptor.task_name, self.descriptor.subtask)
        try:
            apply_task_scheduling(self._context.scheduling)
            busy_tasks = self._context.busy_tasks
            with contextlib.nullcontext() if busy_tasks is None else busy_tasks.watched():
                self._execute()
        except BaseException as error:  # noqa: BLE001 - the top of the thread: every error ends the task and is reported
            self._end(error)
        else:
            self._end(None)

    def _execute(self) -> None:
        context = self._context
        stream_task = create_task_from_descriptor(
            self.descriptor,
            context.network,
            context.loop,
            context.tm_id,
            report_watermark=self._report_watermark,
            report_gate=self._report_gate,
            request_splits=self._request_splits,
            runs_light_tasks=context.runs_light_tasks,
        )
        stream_task.on_running = lambda: self._post(ExecutionState.RUNNING)
        with self._lock:
            self._stream_task = stream_task
            is_cancelled, is_gate_finishing = self._cancelled.is_set(), self._is_gate_finishing
        if is_gate_finishing:
            _seal_gate(stream_task)
        if is_cancelled:
            stream_task.cancel()  # invoke() then only cleans up
        self._post(ExecutionState.INITIALIZING)
        stream_task.invoke()

    def _end(self, error: BaseException | None) -> None:
        final_metrics = None if self._stream_task is None else self._stream_task.metrics()
        failure = None
        if error is None:
            state = ExecutionState.FINISHED
        elif self._was_cancelled(error):
            state = ExecutionState.CANCELED
        else:
            state = ExecutionState.FAILED
            failure = failure_info(error, self.descriptor, self._context.tm_id, time.time_ns() // 1_000_000)
            _log_failure(error, failure)
        with self._lock:
            self._stream_task, self._final_metrics = None, final_metrics
        self._post(state, failure)

    def _report_watermark(self, timestamp: int) -> None:
        report = self._context.report_watermark
        if report is not None:
            self._context.loop.execute_threadsafe(report, self.attempt, timestamp)

    def _report_gate(self, counts: GateCounts) -> None:
        report = self._context.report_gate
        if report is not None:
            with contextlib.suppress(ResourceClosedError):  # the process is ending
                self._context.loop.execute_threadsafe(report, self.attempt, counts)

    def _request_splits(self) -> None:
        request = self._context.request_splits
        if request is not None:
            with contextlib.suppress(ResourceClosedError):  # the process is ending
                self._context.loop.execute_threadsafe(request, self.attempt)

    def _was_cancelled(self, error: BaseException) -> bool:
        if isinstance(error, _CONSEQUENCES):
            return self._cancelled.wait(self._context.cancellation.consequence_grace_s)
        return self._cancelled.is_set()

    def _post(self, state: ExecutionState, failure: FailureInfo | None = None) -> None:
        change = TaskStateChanged(self.attempt, state, failure, self._final_metrics)
        try:
            self._context.loop.execute_threadsafe(self._changed, change)
        except ResourceClosedError:
            _log.debug("state not reported, the process is ending", state=state.name)


def _seal_gate(stream_task: StreamTask) -> None:
    gate = stream_task.environment.offered_gate
    if gate is not None:
        gate.seal()


def _log_failure(error: BaseException, failure: FailureInfo) -> None:
    """Log a failure; a user's error only as info, because the client shows the same text."""
    log = _log.info if isinstance(error, UserFunctionError) else _log.warning
    log(
        "the task failed",
        error=f"{failure.exception_type}: {failure.message}",
        operator=failure.operator,
        record=failure.record_preview,
        traceback=failure.traceback,
    )
