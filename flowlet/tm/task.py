"""``Task``: one attempt of one subtask; runs a ``StreamTask`` on a thread and reports its state to the JobManager.

Side:       shared.  All methods are called on the loop thread; the work is done on the task's own thread.
Invariants: exactly one terminal state is reported, last.  A cancelled attempt ends CANCELED, or FINISHED if it was
            faster, whatever error the cancellation caused.  The loop never waits for a task.
Source:     Flink ``Task``, ``Task.TaskCancelerWatchDog``.  Python threads cannot be interrupted, so the watchdog can
            only warn and end the process.
"""

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from flowlet.chain.loop_code import operator_in
from flowlet.chain.operator_chain import errors_of
from flowlet.common.job_settings import DEFAULT_CANCELLATION_INTERVAL_MS, DEFAULT_CANCELLATION_TIMEOUT_MS, JobSettings
from flowlet.errors import FlowletError
from flowlet.logs import bind_task
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.serde.deploy_blobs import PROGRAM_CLASSES
from flowlet.shipping.job_file_cache import JobPaths
from flowlet.shipping.program_modules import MAIN_OBJECTS, files_of_task
from flowlet.task.source_stream_task import SourceStreamTask
from flowlet.task.stream_task import StreamTask
from flowlet.tm.failure import failure_info, format_thread_stack, log_failure
from flowlet.tm.process.process_model import apply_task_scheduling
from flowlet.tm.task_checkpointing import TaskCheckpointing
from flowlet.tm.task_deployment import create_task_from_descriptor, owner_name, results_of
from netstack.errors import PartitionNotFoundError, ProducerFailedError, ResourceClosedError, TransportError
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.background_call import call_in_background
from netstack.loop.forks import end_stranded_child, serving_thread

if TYPE_CHECKING:
    from flowlet.tm.task_executor import TaskExecutor

_log = LogLines(__name__)

# A consumer often learns of its producer's end before the JobManager learns the producer's failure.  So such a failure
# is held back for a
# moment: if the job is cancelled meanwhile, this task ends CANCELED, and the real cause is reported.
_CONSEQUENCES = (ProducerFailedError, PartitionNotFoundError, TransportError)


@dataclass(frozen=True, slots=True)
class CancellationConfig:
    """Timeouts of cancellation; a job's own settings come before the first two."""

    # Between reports of a cancelled task that does not end.
    warn_interval_s: float = DEFAULT_CANCELLATION_INTERVAL_MS / 1000
    fatal_timeout_s: float = DEFAULT_CANCELLATION_TIMEOUT_MS / 1000  # after it the process ends; 0: never
    first_report_s: float = 1.0  # a function that takes longer than this to return is worth a report; not measured
    # How long a consequence is held back; not measured: cause and consequence come within milliseconds.
    consequence_grace_s: float = 1.0

    def for_job(self, settings: JobSettings) -> "CancellationConfig":
        """Return the timeouts with the job's own settings; a TaskManager that must never end itself does not, whatever
        the job wants.
        """
        interval_ms, timeout_ms = settings.cancellation_interval_ms, settings.cancellation_timeout_ms
        return replace(
            self,
            warn_interval_s=self.warn_interval_s if interval_ms is None else interval_ms / 1000,
            fatal_timeout_s=self.fatal_timeout_s
            if timeout_ms is None or not self.fatal_timeout_s
            else timeout_ms / 1000,
        )


_MAX_CHANNELS_LOGGED = 20


class Task:
    """One attempt.

    Threading: all methods on the loop thread, except ``metrics`` on any.
    Life cycle: ``start`` once; it ends by itself or after ``cancel``; ``ended`` is set once the terminal state was
        reported.

    Args:
        descriptor: what to run.
        executor: has what all tasks of one TaskManager have in common, and hears of states, on the loop thread.
    """

    def __init__(self, descriptor: messages.TaskDeploymentDescriptor, executor: "TaskExecutor") -> None:
        self.descriptor = descriptor
        self.attempt = descriptor.attempt  # its id, 40 bytes
        self.name = owner_name(descriptor)
        self.state = ExecutionState.CREATED  # Loop thread only.
        self.ended = asyncio.Event()  # Loop thread only.
        self._executor = executor
        self._limits = executor.config.cancellation.for_job(descriptor.settings)
        self._checkpointing = TaskCheckpointing(descriptor, self.name, executor.checkpoints, self._send)
        self._thread = threading.Thread(target=self._run, name=f"task {self.name}", daemon=True)
        self._lock = threading.Lock()
        self._cancelled = threading.Event()  # Set by the loop thread under _lock.
        self._stream_task: StreamTask | None = None  # Written by the task thread, under _lock.
        self._final_metrics: messages.TaskMetrics | None = None  # Written by the task thread, under _lock.
        # Came before the stream task was made; then None.  Loop thread only.
        self._early: list[messages.ToTask] | None = []
        self._is_stalled = False  # Written by threads that ask for metrics; a race costs one warning too many.
        self._cancelled_at = 0.0  # Loop thread only.
        self._watchdog: asyncio.TimerHandle | None = None  # Loop thread only.

    def __repr__(self) -> str:
        return f"<Task {self.name} {self.state.name}{', cancelled' if self._cancelled.is_set() else ''}>"

    def start(self) -> None:
        """Start the thread; where the system allows none, this attempt fails, and the TaskManager goes on with its
        other tasks.
        """
        self.state = ExecutionState.DEPLOYING
        # Its files may take minutes to come, and to be installed; its consumers wait.
        # Before the thread begins: a consumer that asks early must not be timed out.
        self._executor.network.partition_manager.announce(results_of(self.descriptor))
        try:
            self._thread.start()
        except (RuntimeError, MemoryError) as error:
            failure = FlowletError(
                f"its thread cannot be started ({error}); {threading.active_count()} threads run here: raise the limit "
                "of processes (ulimit -u, or the container's), or offer fewer slots"
            )
            self._fail_without_thread(failure)

    def cancel(self) -> None:
        """Ask the task to end; in every state, idempotent."""
        if self._cancelled.is_set() or self.state.is_terminal:
            return
        with self._lock:  # either this sees the stream task, or the thread that makes it sees the cancellation
            self._cancelled.set()
            stream_task = self._stream_task
        # Before the task hears of it: what its end does to its checkpoints is no failure to report.
        self._checkpointing.close()
        if stream_task is not None:
            # Logged, not raised: the session that brought the order goes on, and the watchdog below sees whether the
            # task ends nevertheless.
            for error in errors_of([stream_task.cancel]):
                _log.error("a task was not cancelled well", task=self.name, error=f"{error!r}")
        loop = self._executor.loop.loop
        self._cancelled_at = loop.time()
        self._watchdog = loop.call_later(self._next_look_s(0.0), self._check_cancellation)

    def check_thread(self) -> None:
        """Fail the attempt if its thread has died without a report: a trace function of the user's can end it in our
        code.
        """
        if self.state is not ExecutionState.CREATED and not self.state.is_terminal and not self._thread.is_alive():
            self._executor.loop.execute_threadsafe(self._died)  # behind the reports that it has sent

    def metrics(self) -> messages.TaskMetrics:
        """Return the current metrics; the final ones once the task has ended."""
        with self._lock:
            stream_task, final = self._stream_task, self._final_metrics
        if final is not None:
            return final
        if stream_task is None:
            return messages.TaskMetrics()
        metrics = stream_task.metrics()
        self._warn_of_stall(metrics.watermark_held_back_by)
        return metrics

    def handle(self, message: messages.ToTask) -> None:
        """Carry out an order of the JobManager; return at once.  An order that does not fit the task is ignored.  Loop
        thread.
        """
        # By exact type: an order of an unknown kind is a bug, and must not be passed over.
        self.HANDLERS[type(message)](self, message)

    def _cancel_ordered(self, _: messages.CancelTask) -> None:
        _log.info("cancelling", job=self.descriptor.job_name, task=self.name)
        self.cancel()

    def _finish_gate(self, message: messages.FinishGate) -> None:
        """Let the task's remote gate accept no more producers, and end after the open partitions."""
        stream_task = self._running_or_later(message)
        if stream_task is not None and (gate := stream_task.environment.offered_gate) is not None:
            gate.seal()

    def _order_source(self, message: messages.SourceOrder) -> None:
        stream_task = self._running_or_later(message) if isinstance(message, messages.EmitMark) else self._running()
        if isinstance(stream_task, SourceStreamTask):
            stream_task.carry_out(message)

    def _handle_checkpoint(self, order: messages.CheckpointOrder) -> None:
        self._checkpointing.handle(order, self._running())

    def _running_or_later(self, message: messages.ToTask) -> StreamTask | None:
        """Return the stream task; before it is made, keep the message for it and return None."""
        if self._early is None:
            return self._running()
        self._early.append(message)
        return None

    def _handle_early(self) -> None:
        early = self._early or []
        self._early = None
        for message in early:
            self.handle(message)

    def _running(self) -> StreamTask | None:
        with self._lock:
            return self._stream_task

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
        """Write the task's name and state, and the stack of its thread, for a log."""
        return f"{self.name}, {self._running()!r}\n{self._where()[1]}"

    # ---------------------------------------------------------------- loop thread

    def _where(self) -> tuple[str | None, str]:
        """Return the operator whose function the thread is in, and its stack."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return (None, "(its thread has ended)") if frame is None else (operator_in(frame), format_thread_stack(frame))

    def _check_cancellation(self) -> None:
        loop, limits = self._executor.loop.loop, self._limits
        waited_s = loop.time() - self._cancelled_at
        operator, stack = self._where()
        report = messages.TaskStuck(self.attempt, round(waited_s * 1000), operator, stack)
        job = self.descriptor.job_name
        _log.warning(
            "a cancelled task does not end",
            job=job,
            task=self.name,
            seconds=round(waited_s),
            operator=operator,
            stands_in=stack,
        )
        self._executor.send(report)
        if 0 < limits.fatal_timeout_s <= waited_s:
            self._watchdog = None
            self._executor.stuck(self, report)
            return
        self._watchdog = loop.call_later(self._next_look_s(waited_s), self._check_cancellation)

    def _next_look_s(self, waited_s: float) -> float:
        limits = self._limits
        pause_s = limits.warn_interval_s if waited_s else min(limits.first_report_s, limits.warn_interval_s)
        left_s = limits.fatal_timeout_s - waited_s
        return min(pause_s, left_s) if limits.fatal_timeout_s else pause_s

    def _died(self) -> None:
        # Its last report may have been queued in front of this call.
        if not self.state.is_terminal:
            error = FlowletError(
                "its thread ended without a report; does a trace function (sys.settrace, threading.settrace) raise?"
            )
            self._fail_without_thread(error)

    def _fail_without_thread(self, error: FlowletError) -> None:
        failure = failure_info(error, self.descriptor, self._executor.tm_id, time.time_ns() // 1_000_000)
        log_failure(error, failure)
        # Taken away: orders that still come find no task, as after an ordinary end.
        with self._lock:
            stream_task, self._stream_task = self._stream_task, None
        self._checkpointing.close()
        if stream_task is not None:
            # On another thread: functions of the user are closed, which may take long.
            call_in_background(stream_task.abandon, lambda _: None, self._not_released, f"release of {self.name}")
        self._changed(messages.TaskStateChanged(self.attempt, ExecutionState.FAILED, failure, self._final_metrics))

    def _not_released(self, error: Exception) -> None:
        _log.warning("a task whose thread has died was not closed well", task=self.name, error=f"{error!r}")

    def _changed(self, change: messages.TaskStateChanged) -> None:
        self.state = change.state
        self._executor.report(self, change)
        # Behind the report: who waits for ``ended`` may take the slot for free, and the JobManager must know first.
        if change.state.is_terminal:
            self._executor.network.partition_manager.withdraw(results_of(self.descriptor))
            if self._watchdog is not None:
                self._watchdog.cancel()
                self._watchdog = None
            self.ended.set()

    # ---------------------------------------------------------------- task thread

    @serving_thread()
    def _run(self) -> None:
        try:
            bind_task(self.descriptor.job_name, self.descriptor.task_name, self.descriptor.subtask)
            apply_task_scheduling(self._executor.config.task_scheduling)
            busy_tasks = self._executor.busy_tasks
            with contextlib.nullcontext() if busy_tasks is None else busy_tasks.watched():
                self._execute()
        except BaseException as error:  # noqa: BLE001 - the top of the thread: every error ends the task and is reported
            self._end(error)
        else:
            self._end(None)

    def _execute(self) -> None:
        MAIN_OBJECTS.use(self.descriptor.code.main_objects)
        executor = self._executor
        files = files_of_task(self.descriptor, executor.files, executor.fetch_part, self._cancelled.is_set)
        with PROGRAM_CLASSES.lent(), files as paths:
            self._run_stream_task(paths)

    def _run_stream_task(self, paths: JobPaths) -> None:
        cached = {name: str(path) for name, path in paths.cached.items()}
        stream_task = create_task_from_descriptor(
            self.descriptor, self._executor, self._checkpointing.open, self._send, cached
        )
        stream_task.on_running = lambda: self._post(ExecutionState.RUNNING)
        with self._lock:
            self._stream_task = stream_task
            is_cancelled = self._cancelled.is_set()
        with contextlib.suppress(ResourceClosedError):  # the process is ending
            # On the loop thread, so that no later message overtakes them.
            self._executor.loop.execute_threadsafe(self._handle_early)
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
            failure = failure_info(error, self.descriptor, self._executor.tm_id, time.time_ns() // 1_000_000)
            log_failure(error, failure)
        if error is not None and self._stream_task is not None:
            # An error in front of ``invoke`` leaves gates and partitions open; behind it nothing is left to do.
            for late in errors_of([self._stream_task.abandon]):
                error.add_note(f"while cleaning up after it: {type(late).__name__}: {late}")
        # Before the state is posted: a checkpoint that this task reports afterwards would be that of an attempt that
        # has ended.
        self._checkpointing.close()
        with self._lock:
            self._stream_task, self._final_metrics = None, final_metrics
        self._post(state, failure)

    def _send(self, message: messages.FromTask) -> None:
        """Send a message to the JobManager; any thread."""
        with contextlib.suppress(ResourceClosedError):  # the process is ending
            self._executor.loop.execute_threadsafe(self._executor.send, message)

    def _was_cancelled(self, error: BaseException) -> bool:
        # On the task's thread, which has nothing else to do: the loop must not wait for the order to cancel.
        if isinstance(error, _CONSEQUENCES):
            return self._cancelled.wait(self._limits.consequence_grace_s)
        return self._cancelled.is_set()

    def _post(self, state: ExecutionState, failure: messages.FailureInfo | None = None) -> None:
        end_stranded_child()
        change = messages.TaskStateChanged(self.attempt, state, failure, self._final_metrics)
        try:
            self._executor.loop.execute_threadsafe(self._changed, change)
        except ResourceClosedError:
            _log.debug("state not reported, the process is ending", state=state.name)

    HANDLERS: ClassVar[Mapping[type[messages.ToTask], Callable[["Task", Any], None]]] = {
        messages.CancelTask: _cancel_ordered,
        messages.FinishGate: _finish_gate,
        messages.AllowSourceWatermark: _order_source,
        messages.AddSplits: _order_source,
        messages.NoMoreSplits: _order_source,
        messages.EmitMark: _order_source,
        messages.MarkCompleted: _order_source,
        messages.TriggerCheckpoint: _handle_checkpoint,
        messages.CheckpointCompleted: _handle_checkpoint,
        messages.CheckpointAborted: _handle_checkpoint,
    }
