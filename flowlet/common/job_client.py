"""``JobClient``: controls a job that was started without waiting for it.

Side:   pure.  It forwards to a ``RunningJob``, of the client package, and owns no thread, socket or lock.
Source: PyFlink ``pyflink.common.job_client``.
        Python functions cannot make accumulators, there as here: there are none.
"""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from flowlet.common.completable_future import CompletableFuture
from flowlet.common.job_execution_result import JobExecutionResult
from flowlet.common.job_id import JobID
from flowlet.common.job_status import JobStatus
from flowlet.common.not_yet import ExplainsMissing
from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.client.running_job import RunningJob

__all__ = ["JobClient"]


class ProgressMode(Enum):
    """Whether ``execute()`` shows the progress of its job on standard error."""

    AUTO = "auto"  # if standard error is a terminal
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A running job, the ids of the edges that the client reads, and whether these begin only when earlier stages have
    ended.
    """

    job: "RunningJob"
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

    def __init__(self, job: "RunningJob", on_end: Callable[["RunningJob"], None]) -> None:
        self._job = job
        self._on_end = on_end

    def __repr__(self) -> str:
        status = self._job.last_status
        return f"<JobClient {self._job.job_id} {'submitted' if status is None else status.name}>"

    def get_job_id(self) -> JobID:
        """Return the id of the job."""
        return JobID(self._job.job_id)

    def get_job_status(self) -> CompletableFuture[JobStatus]:
        """Return the state of the job at the time of the call."""
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
        taken, because the job will not go on.  Otherwise a job that starts from the savepoint goes on exactly there.
        Errors as in ``trigger_savepoint``.
        """
        return self._job.stop_with_savepoint(savepoint_directory, drain=advance_to_end_of_event_time)

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """Return an empty dict: functions in Python have no accumulators, but metrics
        (``RuntimeContext.get_metrics_group``).
        """
        return CompletableFuture.completed({})

    def metrics(self) -> dict[str, Any]:
        """Return the job's document: vertices, their subtasks, and the counters of each; readable even after the job's
        end.

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
        """Return the result of the finished job; ``result()`` raises ``JobExecutionError`` if the job failed or was
        cancelled.
        """
        return CompletableFuture(self._wait, lambda: self._job.status().is_globally_terminal_state())

    def _wait(self) -> JobExecutionResult:
        try:
            return self._job.wait()  # waits for the end of the job; ended by the job, a lost JobManager, or Ctrl-C
        finally:
            self._on_end(self._job)
