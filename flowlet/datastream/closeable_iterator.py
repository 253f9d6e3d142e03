"""``CloseableIterator``: the records of a running job.

Side:   pure.  It reads from the client package and owns no thread.
Source: PyFlink ``CloseableIterator`` (``pyflink.datastream.data_stream``).
"""

from collections.abc import Callable
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

from flowlet.common.job_client import CollectedRecords, JobClient, JobControl, SubmittedJob
from flowlet.errors import FlowletError, without_our_frames

__all__ = ["CloseableIterator"]


class CloseableIterator:
    """Iterates over the records of a stream; use it in a ``with`` statement.  One thread.

    Life cycle: if it cannot be made, because the job failed before its tasks ran, the job is still the caller's to
    release.  After the last record it waits for the job and closes itself; closed before that, it cancels the job.

    Args:
        submitted: the job, with the one edge to read.
        on_end: releases what the job holds; called once.
        arrow_schema: gives the ``pyarrow.Schema`` of the records, or raises JobGraphError: they have none.

    Raises: ``next()`` raises ``JobExecutionError`` if the job failed.
    """

    __slots__ = ("_arrow_schema", "_edge_id", "_is_closed", "_job", "_on_end", "_values")

    def __init__(
        self, submitted: SubmittedJob, on_end: Callable[[JobControl], None], arrow_schema: Callable[[], Any]
    ) -> None:
        (self._edge_id,) = submitted.external_edges
        self._job = submitted.job
        self._on_end = on_end
        self._is_closed = False
        self._arrow_schema = arrow_schema
        self._values: CollectedRecords | None = None
        # Else the last stage may begin much later: ``next`` waits for it, and the job can be watched.
        if not submitted.runs_in_stages:
            self._values = submitted.job.collect(self._edge_id)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        try:
            if self._values is None:
                self._values = self._job.collect(self._edge_id)
            return next(self._values)
        except StopIteration:
            self._finish()
            raise
        except FlowletError as error:
            self.close()
            raise without_our_frames(error) from error.__cause__
        except BaseException:
            self.close()
            raise

    def next(self) -> Any:
        """The next record.

        Raises:
            StopIteration: there are no more records.
            JobExecutionError: the job failed.
        """
        return next(self)

    def to_arrow(self, schema: Any = None) -> Any:
        """All records that were not taken yet as a ``pyarrow.Table``; waits for the end of the job.  Not in PyFlink.

        Columns stay columns on their way; single records are put into columns here.  Without ``schema`` the table has
        the schema of the stream of columns, or that of the declared type.

        Raises:
            JobGraphError: the declared type has no schema of Arrow, and none was given; the iterator can still be read.
            TypeError: a record is not of the schema.
            JobExecutionError: the job failed.
        """
        import pyarrow as pa  # here, as most programs need no Arrow

        from flowlet.columns.arrow_batches import batch_of_records

        known = self._arrow_schema() if schema is None else schema
        if self._is_closed:
            raise FlowletError(
                "to_arrow() comes too late: the records were read to their end, or the iterator was closed"
            )
        try:
            if self._values is None:
                self._values = self._job.collect(self._edge_id)
            batches = [batch_of_records(chunk, known) for chunk in self._values.chunks()]
            table = pa.Table.from_batches(batches, known)
        except FlowletError as error:
            self.close()
            raise without_our_frames(error) from error.__cause__
        except BaseException:
            self.close()
            raise
        self._finish()
        return table

    def to_pandas(self, schema: Any = None) -> Any:
        """``to_arrow`` as a ``pandas.DataFrame``.  Not in PyFlink.

        Raises:
            FlowletError: pandas is not installed; the iterator can still be read.
            JobGraphError, TypeError, JobExecutionError: as ``to_arrow``.
        """
        if find_spec("pandas") is None:
            raise FlowletError("to_pandas() needs pandas: install it (pip install pandas), or use to_arrow()")
        return self.to_arrow(schema).to_pandas()

    @property
    def job_client(self) -> JobClient:
        """The client of the job, which the iterator still owns.  Not in PyFlink."""
        return JobClient(self._job, lambda _: None)

    def close(self) -> None:
        """Cancel the job if it still runs, and release what it holds; idempotent.

        In a forked child it does nothing.
        """
        if self._is_closed or self._job.is_inherited:
            return
        self._is_closed = True
        try:
            if not self._job.status().is_globally_terminal_state():
                self._job.cancel()
        except KeyboardInterrupt:
            self._job.cancel_after_interrupt()
            raise
        finally:
            self._on_end(self._job)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _finish(self) -> None:
        """After the last record: wait for the job, whose failure concerns the reader, too."""
        self._is_closed = True
        try:
            self._job.wait()  # waits for the end of the job; ended by the job, a lost JobManager, or Ctrl-C
        finally:
            self._on_end(self._job)
