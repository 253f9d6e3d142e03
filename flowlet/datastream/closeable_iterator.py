"""``CloseableIterator``: the records of a running job, as they come.

Side:   pure.  It reads what the client package gives it and owns no thread.
Source: PyFlink ``CloseableIterator`` (``pyflink.datastream.data_stream``).
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from flowlet.common.job_client import JobClient, RunningJob, SubmittedJob

__all__ = ["CloseableIterator"]


class CloseableIterator:
    """Iterates over the records of a stream; use it in a ``with`` statement.

    Threading: one thread.
    Life cycle: at the end of the records it waits for the job and closes itself; closed before, it cancels the job.

    Args:
        submitted: the job, with the one edge to read.
        on_end: gives back what the job holds; called once.

    Raises: ``next()`` raises ``JobExecutionError`` when the job failed.
    """

    __slots__ = ("_is_closed", "_job", "_on_end", "_values")

    def __init__(self, submitted: SubmittedJob, on_end: Callable[[RunningJob], None]) -> None:
        (edge_id,) = submitted.external_edges
        self._job = submitted.job
        self._on_end = on_end
        self._is_closed = False
        try:
            self._values = submitted.job.collect(edge_id)
        except BaseException:  # such as a job that failed before its tasks ran: nobody gets this iterator to close it
            on_end(submitted.job)
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        try:
            return next(self._values)
        except StopIteration:
            self._finish()
            raise
        except BaseException:
            self.close()
            raise

    def next(self) -> Any:
        """The next record.

        Raises:
            StopIteration: there is none.
            JobExecutionError: the job failed.
        """
        return next(self)

    @property
    def job_client(self) -> JobClient:
        """The job that makes the records, to watch it or to cancel it.  Not in PyFlink.  The iterator still owns the job."""
        return JobClient(self._job, lambda _: None)

    def close(self) -> None:
        """Cancel the job if it still runs, and give back what it holds; more than once does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if not self._job.status().is_globally_terminal_state():
                self._job.cancel()
        finally:
            self._on_end(self._job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _finish(self) -> None:
        """All records were read: a failure of the job after them is the reader's, too."""
        self._is_closed = True
        try:
            self._job.wait()
        finally:
            self._on_end(self._job)
