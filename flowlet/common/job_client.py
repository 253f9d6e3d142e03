"""``JobClient``: controls a job that was started without waiting for it.

Side:   pure.  It forwards to a ``JobControl`` of the client package, and owns no thread, socket or lock.
Source: PyFlink ``pyflink.common.job_client``.
        Python functions cannot make accumulators, there as here: there are none.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Protocol

from flowlet.common.completable_future import CompletableFuture
from flowlet.common.job_execution_result import JobExecutionResult
from flowlet.common.job_id import JobID
from flowlet.common.job_status import JobStatus
from flowlet.common.not_yet import ExplainsMissing
from netstack.late import dataclass

__all__ = ["JobClient"]


class ProgressMode(Enum):
    """When ``execute()`` shows the progress of its job on standard error."""

    AUTO = "auto"  # if it is a terminal
    ON = "on"
    OFF = "off"


class CollectedRecords(Iterator[Any], Protocol):
    """The records of an external edge, of the client package; one thread."""

    def chunks(self) -> Iterator[Any]:
        """The records that were not taken yet, as lists of records or as columns, until the end."""


class JobControl(Protocol):
    """A submitted job of the client package; any thread.  One implementer: the client lies on a floor above."""

    @property
    def job_id(self) -> str:
        """32 hex digits."""

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that runs the job."""

    @property
    def last_status(self) -> JobStatus | None:
        """The state that was last heard of, without a question to the JobManager; None: it was not asked yet."""

    def status(self) -> JobStatus:
        """The job's present state at the JobManager."""

    def cancel(self) -> None:
        """Request the end of the job, without waiting for it."""

    def cancel_after_interrupt(self) -> None:
        """Request the end of the job, and wait a moment for it; does nothing if this was done, or the cluster cannot be
        reached.
        """

    def trigger_savepoint(self, directory: str | None) -> CompletableFuture[str]:
        """Request a savepoint below a directory (None: the job's); its directory, once it is complete."""

    def stop_with_savepoint(self, directory: str | None, *, drain: bool) -> CompletableFuture[str]:
        """Request the end of the job with a savepoint; its directory, once the job has finished."""

    def finish_gate(self, name: str) -> None:
        """Request the end of a remote gate, once its open partitions have ended; does not wait for that."""

    def announce(self, progress: ProgressMode) -> None:
        """Say where to look at the job, before it is submitted, if ``progress`` wants it and the job runs in this
        program.
        """

    def wait(self, timeout: float | None = None, *, progress: ProgressMode = ProgressMode.OFF) -> JobExecutionResult:
        """Wait up to ``timeout`` seconds until the job has finished; ``progress``: whether standard error shows it
        meanwhile.

        Raises:
            JobExecutionError: it failed or was cancelled.
            TimeoutError: it has not ended in time.
        """

    def collect(self, edge_id: str) -> "CollectedRecords":
        """The values of an external edge, until its end."""

    def metrics(self) -> dict[str, Any]:
        """The job's document: vertices, subtasks and their counters."""

    def close(self) -> None:
        """Release the connection, and the embedded cluster if there is one; idempotent."""


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A running job, the ids of the edges that the client reads, and whether these begin only when earlier stages have
    ended.
    """

    job: JobControl
    external_edges: tuple[str, ...]
    runs_in_stages: bool = False


class JobClient(ExplainsMissing):
    """The result of ``execute_async``.

    Life cycle: an embedded cluster lives until the result was read, or the environment is closed.

    Args:
        job: the running job.
        on_end: called when the result was read; releases what the job holds.
    """

    __slots__ = ("_job", "_on_end")

    def __init__(self, job: JobControl, on_end: Callable[[JobControl], None]) -> None:
        self._job = job
        self._on_end = on_end

    def __repr__(self) -> str:
        status = self._job.last_status
        return f"<JobClient {self._job.job_id} {'submitted' if status is None else status.name}>"

    def get_job_id(self) -> JobID:
        """The id of the job."""
        return JobID(self._job.job_id)

    def get_job_status(self) -> CompletableFuture[JobStatus]:
        """The state of the job at the time of the call."""
        return CompletableFuture.completed(self._job.status())

    def cancel(self) -> CompletableFuture[None]:
        """Request the end of the job; the future is done when the request was accepted, not when the job has ended."""
        self._job.cancel()
        return CompletableFuture.completed(None)

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> CompletableFuture[str]:
        """Take a savepoint while the job goes on; the future's value is its directory, below ``savepoint_directory``.

        Left out, it is that of ``set_default_savepoint_directory`` or ``execution.checkpointing.savepoint-dir``.
        ``result()`` raises ``SavepointError`` if the savepoint was refused or has failed; the job goes on.
        """
        return self._job.trigger_savepoint(savepoint_directory)

    def stop_with_savepoint(
        self,
        advance_to_end_of_event_time: bool,  # noqa: FBT001  # PyFlink's signature
        savepoint_directory: str | None = None,
    ) -> CompletableFuture[str]:
        """Stop the sources, take a savepoint and end the job, which is then FINISHED; the future's value is the
        savepoint's directory.

        ``advance_to_end_of_event_time``: all timers of event time fire and the operators finish before the savepoint is
            taken, because the
        job will not go on.  Otherwise a job that starts from the savepoint goes on exactly there.  Errors as in
        ``trigger_savepoint``.
        """
        return self._job.stop_with_savepoint(savepoint_directory, drain=advance_to_end_of_event_time)

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """Empty: functions in Python have no accumulators, but metrics (``RuntimeContext.get_metrics_group``)."""
        return CompletableFuture.completed({})

    def metrics(self) -> dict[str, Any]:
        """The job's document: vertices, their subtasks, and the counters of each; readable even after the job's end.

        Not in PyFlink.
        """
        return self._job.metrics()

    def finish_gate(self, name: str) -> CompletableFuture[None]:
        """End a remote gate of the job: it accepts no new partitions, and open ones continue to their end.

        Not in PyFlink.

        The future is done when the request was accepted.

        Raises:
            RpcStatusError: the job has no such gate, or has ended.
        """
        self._job.finish_gate(name)
        return CompletableFuture.completed(None)

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """The result of the finished job; ``result()`` raises ``JobExecutionError`` if the job
        failed or was cancelled.
        """
        return CompletableFuture(self._wait, lambda: self._job.status().is_globally_terminal_state())

    def _wait(self) -> JobExecutionResult:
        try:
            return self._job.wait()  # waits for the end of the job; ended by the job, a lost JobManager, or Ctrl-C
        finally:
            self._on_end(self._job)
