"""A submitted job, as the user's program sees it.

Side:   shared.  Every method on any thread of the user's.
Units:  seconds, but ``JobExecutionResult`` in milliseconds.
"""

import concurrent.futures
import contextlib
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowlet.client.program.interrupts import DeferredSignals
from flowlet.client.progress import announce, is_wanted, shown
from flowlet.client.remote import ClusterClient, JobDocument, JobEndedError, JobManagerApi
from flowlet.client.result_buffer import guarantee_of
from flowlet.common.completable_future import CompletableFuture
from flowlet.common.job_client import ProgressMode
from flowlet.common.job_execution_result import JobExecutionResult
from flowlet.common.job_id import JobID
from flowlet.common.job_settings import JobSettings
from flowlet.common.job_status import JobStatus
from flowlet.errors import ClosedOutputError, FlowletError, JobExecutionError, RemoteTraceback, SavepointError
from flowlet.messages.control_messages import TASK_MANAGER_LOST, FailureInfo
from flowlet.messages.execution_state import ExecutionState
from flowlet.rpc.converters import converter_to
from flowlet.rpc.requests import RpcConnectError

if TYPE_CHECKING:
    from flowlet.client.collect import CollectedValues

# After Ctrl-C: how long the cancelled job may take before the user's program goes on.
_INTERRUPT_GRACE_S: Final = 2.0
# After an error while collecting: how long the job's own failure, which explains it, may take to arrive.
_EXPLANATION_GRACE_S: Final = 10.0
_SETTLE_TIMEOUT_S: Final = 5.0  # it takes milliseconds
_to_failure: Final = converter_to(FailureInfo)
_CLOSED_OUTPUT: Final = f"{ClosedOutputError.__module__}.{ClosedOutputError.__qualname__}"
_NO_SLOTS: Final = "NoResourceAvailable"  # the TaskManagers of an embedded cluster may be why


class RunningJob:
    """A handle of one job.

    Life cycle: ``close`` it.  That ends an embedded cluster, and the job with it if it still runs; a job on a remote
    cluster goes on, but an attached one (``ClientHeartbeat``) for its timeout only.

    A job that restarts runs, for its client: ``status`` says so, ``wait`` waits on, and the values of ``collect`` go
    on.  Only a failure after which the job does not restart is an error.

    Args:
        client: of the cluster; closed with the job.
        job_id: 32 hex digits.
        name: for people.
        settings: the job's; they decide what its readers get over a restart.
    """

    def __init__(self, client: ClusterClient, job_id: str, name: str, settings: JobSettings | None = None) -> None:
        self.client = client
        self.job_id = job_id
        self.name = name
        settings = settings or JobSettings()
        self.guarantee = guarantee_of(settings)  # of values that are collected
        self.is_announced = False  # whether people were told where to look
        self.takes_checkpoints = settings.takes_checkpoints
        self._lock = threading.Lock()
        self._collecting: list[CollectedValues] = []  # Guarded by _lock.
        self._is_cancel_sent = False  # after an interrupt; a flag of the thread that was interrupted
        self._savepoints: list[concurrent.futures.Future[str]] = []  # Guarded by _lock.
        self._last_document: JobDocument | None = None  # The terminal one, once seen; written whole, read anywhere.
        # Written whole, read anywhere; a later answer of another thread may be the older one.
        self.last_status: JobStatus | None = None
        """The state that the JobManager had for it when it was last asked; None: it was not asked yet."""

    def __repr__(self) -> str:
        return f"<RunningJob {self.name!r} {self.job_id} at {self.client!r}>"

    def status(self) -> JobStatus:
        """Return the state that the JobManager has for the job now."""
        return JobStatus[self.metrics()["state"]]

    def metrics(self) -> JobDocument:
        """Return the job's document: its vertices, their subtasks, and the counters of each.

        Once the job has been seen to have ended it is the last one, and stays available after ``close``.
        """
        if self._last_document is not None:
            return self._last_document
        return self._remember(self.client.call(lambda api: api.job(self.job_id)))

    def checkpoints(self) -> JobDocument:
        """Return the document of ``GET /jobs/:jobid/checkpoints``."""
        return self.client.call(lambda api: api.checkpoints(self.job_id))

    def cancel(self) -> None:
        """Ask for the end of the job; returns without waiting for it.  A job that has ended stays as it is."""
        if self._last_document is None:
            self.client.call(lambda api: api.cancel(self.job_id))

    def trigger_savepoint(self, directory: str | None) -> CompletableFuture[str]:
        """Ask for a savepoint below a directory (None: the job's); returns its directory, once it is complete.

        A refusal is the SavepointError of the future.
        """
        return self._savepoint(lambda api: api.trigger_savepoint(self.job_id, directory))

    def stop_with_savepoint(self, directory: str | None, *, drain: bool) -> CompletableFuture[str]:
        """Ask for the end of the job with a savepoint; the future ends when the job has finished, too."""
        return self._savepoint(lambda api: api.stop_with_savepoint(self.job_id, directory, drain=drain))

    def _savepoint(self, begin: Callable[[JobManagerApi], Coroutine[Any, Any, str]]) -> CompletableFuture[str]:
        try:
            request_id = self.client.call(begin)
        except SavepointError as error:
            refused: concurrent.futures.Future[str] = concurrent.futures.Future()
            refused.set_exception(error)
            return CompletableFuture(refused.result, refused.done)
        # From now on: an iterator that was read to its end closes the connection, and who asks then shall get an
        # answer.
        future = self.client.begin(lambda api: api.wait_for_savepoint(self.job_id, request_id))
        with self._lock:
            self._savepoints.append(future)
        return CompletableFuture(lambda: self._wait_for_savepoint(request_id, future), future.done)

    def _wait_for_savepoint(self, request_id: str, future: "concurrent.futures.Future[str]") -> str:
        if not future.done():
            return self.client.call(lambda api: api.wait_for_savepoint(self.job_id, request_id))
        if future.cancelled():
            raise SavepointError(
                "the connection to the cluster was closed before the savepoint had ended: look into its directory"
            )
        return future.result()  # no wait: it is done

    def _settle_savepoints(self) -> None:
        """Wait for the answers about savepoints: the job has ended, and so have they."""
        with self._lock:
            pending = [each for each in self._savepoints if not each.done()]
        if pending and self._last_document is not None:
            concurrent.futures.wait(pending, _SETTLE_TIMEOUT_S)

    def finish_gate(self, name: str) -> None:
        """Let a remote gate of the job end with the partitions that are open; returns without waiting for that."""
        self.client.call(lambda api: api.finish_gate(self.job_id, name))

    def wait(self, timeout: float | None = None, *, progress: ProgressMode = ProgressMode.OFF) -> JobExecutionResult:
        """Wait until the job has finished.

        Ctrl-C cancels it.  ``progress``: whether standard error shows it meanwhile.

        Raises:
            JobExecutionError: it failed or was cancelled; the text shows task, record and error, the cause the user's
                traceback.
            RpcConnectError: the JobManager is gone.
            TimeoutError: it has not ended within ``timeout``.
        """
        try:
            with shown(self) if is_wanted(progress) else contextlib.nullcontext():
                document = self._wait_terminal(timeout)
        except KeyboardInterrupt:
            self.cancel_after_interrupt()
            raise
        except RpcConnectError as error:
            raise RpcConnectError(
                f"{error}; job {self.name!r} may be lost with its JobManager: look there for it once one answers, or "
                "run it again"
            ) from None
        except FlowletError as error:  # the error below it tells no more
            raise error from None
        if document is None:
            raise TimeoutError(f"job {self.name!r} has not ended within {timeout:g} s")
        if document["state"] != JobStatus.FINISHED.name:
            raise self._failure_of(document)
        self.check_output()
        self.release_readers(has_job_finished=True)  # it was read to its end
        return JobExecutionResult(JobID(self.job_id), max(0, int(document["duration"])))

    def collect(self, edge_id: str) -> "CollectedValues":
        """Return the values on an external edge in the order of their arrival, until its end; an edge can be read once.

        Blocks until the tasks are deployed.  Only what is read is sent: a reader that pauses makes the job pause.
        Closing the iterator before its end cancels the job.

        A job with exactly-once checkpoints hands values out once a checkpoint behind them is complete, and each of them
        once whatever fails; with at-least-once checkpoints at once, and after a restart some come again.  Without
        checkpoints a restart is an error once a value was handed out.

        Raises:
            JobExecutionError: the job failed before or, from the iterator, while it was read.
        """
        try:
            run = self.client.call(lambda api: api.wait_channels(self.job_id, edge_id))
        except JobEndedError as error:
            failure = self.explain(error)
            raise failure from failure.__cause__
        except KeyboardInterrupt:
            self.cancel_after_interrupt()
            raise
        with DeferredSignals():
            from flowlet.client.collect import CollectedValues  # here, as most jobs have sinks

            values = CollectedValues(edge_id, run, self)
            with self._lock:
                self._collecting.append(values)
        return values

    def explain(self, error: Exception) -> JobExecutionError:
        """Find the failure of the job behind an error of the client's; its cause is the error that the user should see
        first.
        """
        try:
            document = self._wait_terminal(_EXPLANATION_GRACE_S)
        except FlowletError as second:
            failure = JobExecutionError(f"job {self.name!r}: {error}; and then: {second}")
        else:
            if document is not None and document["state"] != JobStatus.FINISHED.name:
                return self._failure_of(document)
            failure = JobExecutionError(
                f"job {self.name!r}: its results could not be read: {error}{self._last_restart()}"
            )
        failure.__cause__ = error  # the job does not explain it, so the client's own frames matter
        return failure

    def _last_restart(self) -> str:
        """Name the task that made the job restart last, for an error; empty: none did, or the
        JobManager does not tell.
        """
        with contextlib.suppress(FlowletError):
            document = self.metrics()
            causes = [f"{each['task']}: {each['cause']}" for each in document.get("restarts", []) if each["task"]]
            if causes:
                return f"; the job has restarted {document['numRestarts']} times, last because of {causes[0]}"
        return ""

    def cancel_quietly(self) -> None:
        """Cancel the job, but a cluster that cannot be reached is no error."""
        with contextlib.suppress(FlowletError):  # the cluster is gone, and the job with it or beyond our reach
            self.cancel()

    def cancel_after_interrupt(self) -> None:
        """Cancel the job and wait for its end, a moment at most; after a second Ctrl-C the user does not want to wait.

        Called again it does nothing, unless that Ctrl-C came before the request was sent.
        """
        with contextlib.suppress(FlowletError, KeyboardInterrupt):
            if self._is_cancel_sent:
                return
            if self._last_document is None:
                self.client.call(lambda api: api.cancel(self.job_id, _INTERRUPT_GRACE_S))
            self._is_cancel_sent = True
            document = self._wait_terminal(_INTERRUPT_GRACE_S)
            if document is not None and sys.stderr is not None and (lines := still_running(document)):
                sys.stderr.write("\n".join([f"job {self.name!r} is {document['state']}", *lines, ""]))

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that runs the job: it has nothing to give back, nor to
        cancel.
        """
        return self.client.is_inherited

    def close(self) -> None:
        """Give back the connection, and the embedded cluster if there is one; a second call, and one in a forked child,
        does nothing.
        """
        if self.is_inherited:
            return
        with DeferredSignals():
            self.release_readers()
            self._settle_savepoints()
            self.client.close()

    def release_readers(self, *, has_job_finished: bool = False) -> None:
        """Give back the resources of reading; a reader that still reads gets an error, unless all its values have
        arrived.
        """
        with self._lock:
            collecting, self._collecting = self._collecting, []
        for values in collecting:
            values.release(has_job_finished=has_job_finished)

    def announce(self, progress: ProgressMode) -> None:
        """Tell where to look at the job before it is submitted, if it runs in this program: its functions may print at
        once.
        """
        if is_wanted(progress) and not self.client.outlives_program:
            announce(self)
            self.is_announced = True

    def _wait_terminal(self, timeout_s: float | None) -> JobDocument | None:
        if self._last_document is None:
            document = self.client.call(lambda api: api.wait_terminal(self.job_id, timeout_s))
            if document is None:
                return None
            self.client.after_job()
            return self._remember(document)
        return self._last_document

    def check_output(self) -> None:
        """Show everything that the tasks have printed so far.  Raises JobExecutionError: it could not be written."""
        self.client.after_job()
        failure = self.client.output_failure()
        if failure is not None:
            raise type(failure)(f"job {self.name!r} failed: {failure}")

    def _failure_of(self, document: JobDocument) -> JobExecutionError:
        output_failure = self.client.output_failure()
        if output_failure is not None:  # then the client has cancelled the job
            return type(output_failure)(f"job {self.name!r} failed: {output_failure}")
        failure = document.get("failure")
        is_lost = failure is not None and failure["exception_type"] in (TASK_MANAGER_LOST, _NO_SLOTS)
        return failure_of(document, self.client.process_ends() if is_lost else ())

    def _remember(self, document: JobDocument) -> JobDocument:
        status = JobStatus[document["state"]]
        if status.is_globally_terminal_state():
            self._last_document = document
        if self._last_document is None or status.is_globally_terminal_state():
            self.last_status = status
        return document


def failure_of(document: JobDocument, more: Sequence[str] = ()) -> JobExecutionError:
    """Make the error of a job that did not finish, with ``more`` lines at its end.

    Its cause is the traceback of the failure, which Python therefore shows first.
    """
    failure = _failure_in(document)
    lines = _end_lines(document, failure, None if failure is None else _reason(failure))
    retained = document.get("retained-checkpoint")
    if retained is not None:
        lines.append(
            f"its newest checkpoint stays at {retained}; a job with execution.state-recovery.path: {retained} starts "
            "from it"
        )
    lines += _restart_lines(document)
    if failure is not None and failure.exception_type == _CLOSED_OUTPUT:
        return ClosedOutputError("\n".join([*lines, *more]))  # no frame matters
    error = JobExecutionError("\n".join([*lines, *more]))
    error.__cause__ = RemoteTraceback(failure.traceback.rstrip()) if failure is not None and failure.traceback else None
    return error


def describe_end(document: JobDocument) -> str:
    """Explain to people why a job did not finish: task, operator, subtask, TaskManager, record, and the traceback as
    text.
    """
    failure = _failure_in(document)
    reason = None if failure is None else failure.traceback.rstrip() or _reason(failure)
    return "\n".join(_end_lines(document, failure, reason) + _restart_lines(document))


def _failure_in(document: JobDocument) -> FailureInfo | None:
    is_cancelled = document["state"] == JobStatus.CANCELED.name
    return None if is_cancelled or document.get("failure") is None else _to_failure(document["failure"])


def _end_lines(document: JobDocument, failure: FailureInfo | None, reason: str | None) -> list[str]:
    name = document["name"]
    if failure is None or reason is None:
        is_cancelled = document["state"] in (JobStatus.CANCELED.name, JobStatus.CANCELLING.name)
        why = f": {document['cancel-reason']}" if document.get("cancel-reason") else ""
        end = f"was cancelled{why}" if is_cancelled else f"ended as {document['state']}"
        return [f"job {name!r} {end}", *still_running(document)]
    if not failure.task_name:
        return [f"job {name!r} failed: {failure.message}", *still_running(document)]
    lines = [f"job {name!r} failed: {_where(document, failure)}"]
    if failure.record_preview is not None:
        lines.append(f"while processing the record {failure.record_preview}")
    return [*lines, reason, *still_running(document)]


def _restart_lines(document: JobDocument) -> list[str]:
    """Explain why a failed job did not start again, if it might have."""
    why, number = document.get("why-no-restart"), document.get("numRestarts", 0)
    if why is None:
        return []
    times = "1 time" if number == 1 else f"{number} times"
    count = f"restarted {times}, not again" if number else "not restarted"
    return [f"({count}: {why})"]


def _reason(failure: FailureInfo) -> str:
    return f"{failure.exception_type}: {failure.message}" if failure.message else failure.exception_type


def still_running(document: JobDocument) -> list[str]:
    """Write lines that name the tasks of an ending job that have not ended, and where they stand: a blocked function
    cannot be interrupted.
    """
    left = [
        (
            f"{vertex['name']!r} subtask {subtask['subtask'] + 1}/{vertex['parallelism']} on {subtask['tm_id']}",
            subtask["stuck"],
        )
        for vertex in document["vertices"]
        for subtask in vertex["subtasks"]
        if not ExecutionState(subtask["state"]).is_terminal
    ]
    lines = [f"(these tasks have not ended yet: {', '.join(name for name, _ in left)})"] if left else []
    for name, stuck in left:
        if stuck is not None:
            operator = "" if stuck["operator"] is None else f", operator {stuck['operator']!r}"
            lines += [
                f"{name}{operator}, was cancelled {stuck['waited-ms'] / 1000:.0f} s before, and stood in",
                stuck["stack"],
            ]
    return lines


def _where(document: JobDocument, failure: FailureInfo) -> str:
    operator = "" if failure.operator is None else f", operator {failure.operator!r}"
    parallelism = next(
        (f"/{vertex['parallelism']}" for vertex in document["vertices"] if vertex["name"] == failure.task_name), ""
    )
    at = f" on {failure.tm_id}" if failure.tm_id else ""
    if failure.subtask < 0:
        return f"task {failure.task_name!r}{operator}{at}"
    return f"task {failure.task_name!r}{operator}, subtask {failure.subtask + 1}{parallelism}{at}"
