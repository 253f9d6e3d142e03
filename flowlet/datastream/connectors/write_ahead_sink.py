"""``WriteAheadSink``: exactly once for targets that can put rows and a marker into one transaction.

Rows wait in the checkpoint.  When the checkpoint is complete, a transaction writes them together with a marker that
says so.  After a restart the marker tells whether that transaction happened: rows are never lost, and never written
twice.

Side:   pure.  The writer and the committer run on the thread of their task; they are loaded by name.
Source: Flink ``GenericWriteAheadSink`` and ``CheckpointCommitter`` of its Cassandra connector, whose markers lie beside
        the rows and not in their transaction, so that rows may come twice there.
Rules:  docs/databases.md, "How exactly once works", explains markers and how long they are kept.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from flowlet.datastream.connectors.base import Committer, Sink, SinkWriter, SupportsCommitter, WriterInitContext
from flowlet.errors import FlowletError

__all__ = ["CommitLaterError", "WriteAheadSink", "WriteAheadTarget"]

_PARTS_MODULE: Final = "flowlet.connectors.write_ahead_writer"


class CommitLaterError(FlowletError):
    """A target failed for a reason that will pass; whether the transaction happened may be unknown."""


class WriteAheadTarget(ABC):
    """The place to which rows are written, such as a database.

    Made by ``WriteAheadSink.create_target`` for each attempt of a subtask, on the thread that makes all calls.

    A *writer* is the random id of one attempt of a subtask.  It numbers its transactions 0, 1, 2, ...; the marker of a
    writer is the number of its last one.
    """

    @abstractmethod
    def committed(self, writer: str) -> int:
        """The marker of a writer; -1 if there is none.

        Raises:
            CommitLaterError: it will be asked again after a pause.
            Exception: the job fails and restarts.
        """

    @abstractmethod
    def commit(self, writer: str, number: int, rows: Sequence[Any]) -> None:
        """Write the rows and set the marker of the writer from ``number - 1`` to ``number``, in one transaction.

        If the marker is at ``number`` already, change nothing: a process that was believed dead committed these rows.

        Raises:
            CommitLaterError: ``committed`` is asked again after a pause, and then this is, if the marker is not there.
            Exception: the job fails and restarts.
        """

    def forget_before(self, time_ms: int) -> None:  # noqa: B027  # markers stay for ever unless overridden
        """Remove the markers that were set before a time, in ms since 1970; called at the start and about once an hour.

        Raises:
            CommitLaterError: it is tried again an hour later.
            Exception: the job fails and restarts.
        """

    def close(self) -> None:  # noqa: B027  # nothing to do unless overridden
        """Release what the target holds; also called after a failure."""


class WriteAheadSink(Sink, SupportsCommitter):
    """Base class of sinks whose rows wait in the checkpoint until it is complete.

    Attributes:
        max_commit_bytes: a transaction has about so many bytes of pickled rows, and is read into memory as a whole.
        marker_retention_ms: how long the target keeps a marker at least.  Rows that are older and have no marker fail
            the job, because it is not known any more whether they were written.
        max_retries: how often a transaction is tried again, after pauses of a second, before the job fails and
            restarts; at most 10.
    """

    max_commit_bytes: int = 16 << 20  # not measured
    marker_retention_ms: int = 30 * 86_400_000  # 30 days
    max_retries: int = 10

    @abstractmethod
    def create_target(self, context: WriterInitContext) -> WriteAheadTarget:
        """The target of one attempt of a subtask."""

    def rows_of(self, values: Sequence[Any]) -> Sequence[Any]:
        """The rows that are kept of records until they are written, and then given to ``WriteAheadTarget.commit``; as a
        rule the records themselves.
        """
        return values

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        """The writer of one subtask, which keeps rows for the checkpoint."""
        writer: SinkWriter[Any] = importlib.import_module(_PARTS_MODULE).WriteAheadWriter(
            self.rows_of, self.max_commit_bytes
        )
        return writer

    def create_committer(self, context: WriterInitContext) -> Committer[Any]:
        """The committer of one subtask, which owns its target."""
        committer: Committer[Any] = importlib.import_module(_PARTS_MODULE).WriteAheadCommitter(
            self.create_target(context), marker_retention_ms=self.marker_retention_ms, max_retries=self.max_retries
        )
        return committer
