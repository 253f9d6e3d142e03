"""``JobClient``: controls a job that was started without waiting for it.

Side:   pure.  It forwards to a ``RunningJob`` of the client package, and owns no thread, socket or lock.
Source: PyFlink ``pyflink.common.job_client``.
Absent: savepoints, accumulators.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from flowlet.common.completable_future import CompletableFuture
from flowlet.common.job_execution_result import JobExecutionResult
from flowlet.common.job_id import JobID
from flowlet.common.job_status import JobStatus
from flowlet.common.not_yet import missing_attribute

__all__ = ["JobClient"]


class RunningJob(Protocol):
    """A submitted job of the client package; any thread."""

    @property
    def job_id(self) -> str:
        """32 hex digits."""

    def status(self) -> JobStatus:
        """The job's present state at the JobManager."""

    def cancel(self) -> None:
        """Request the end of the job, without waiting for it."""

    def finish_gate(self, name: str) -> None:
        """Request the end of a remote gate, once its open partitions have ended; does not wait for that."""

    def wait(self, timeout: float | None = None) -> JobExecutionResult:
        """Wait up to ``timeout`` seconds until the job has finished.

        Raises:
            JobExecutionError: it failed or was cancelled.
            TimeoutError: it has not ended in time.
        """

    def collect(self, edge_id: str) -> Iterator[Any]:
        """The values of an external edge, until its end."""

    def metrics(self) -> dict[str, Any]:
        """The job's document: vertices, subtasks and their counters."""

    def close(self) -> None:
        """Release the connection, and the embedded cluster if there is one; idempotent."""


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A running job, and the ids of the edges that the client reads."""

    job: RunningJob
    external_edges: tuple[str, ...]


class JobClient:
    """The result of ``execute_async``.

    Life cycle: an embedded cluster lives until the result was read, or the environment is closed.

    Args:
        job: the running job.
        on_end: called when the result was read; releases what the job holds.
    """

    __slots__ = ("_job", "_on_end")

    def __init__(self, job: RunningJob, on_end: Callable[[RunningJob], None]) -> None:
        self._job = job
        self._on_end = on_end

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

    def metrics(self) -> dict[str, Any]:
        """The job's document: vertices, their subtasks, and the counters of each; readable even after the job's end.  Not in PyFlink."""
        return self._job.metrics()

    def finish_gate(self, name: str) -> CompletableFuture[None]:
        """End a remote gate of the job: it accepts no new partitions, and open ones continue to their end.  Not in PyFlink.

        The future is done when the request was accepted.

        Raises:
            RpcStatusError: the job has no such gate, or has ended.
        """
        self._job.finish_gate(name)
        return CompletableFuture.completed(None)

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        """The result of the finished job; ``result()`` raises ``JobExecutionError`` if the job failed or was cancelled."""
        return CompletableFuture(self._wait, lambda: self._job.status().is_globally_terminal_state())

    def _wait(self) -> JobExecutionResult:
        try:
            return self._job.wait()  # waits for the end of the job; ended by the job, a lost JobManager, or Ctrl-C
        finally:
            self._on_end(self._job)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_attribute(self, name)
