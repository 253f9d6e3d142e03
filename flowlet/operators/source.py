"""Sources: where records come from.

Side:       task.  A ``Source`` is made in the user's program and pickled; its readers live in the tasks.
Invariants: a reader is made when its task opens and closed once.
Source:     Flink ``Source``, ``SourceReader``, ``SourceOperator``, without enumerator and split assignment at run time: each reader knows
            from its subtask number what is its share.
Absent:     timestamps and watermarks, waiting for data without blocking, unbounded sources that idle.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol

from flowlet.errors import FlowletError, UserFunctionError
from flowlet.operators.base import StreamOperator
from flowlet.records import Chunk

# 1,000-2,000 records per chunk are best for records that are Python objects (hot-path measurements).
MAX_CHUNK_RECORDS = 1_000


class SourceReader(Protocol):
    """Reads one subtask's share.

    A reader that knows how much there is may have an attribute ``progress``: the fraction read so far, 0 to 1, read by any thread.
    """

    def poll_chunk(self) -> Chunk | None:
        """The next records, an empty chunk if there are none just now, or None at the end."""

    def close(self) -> None:
        """Give back files and the like."""


class Source(ABC):
    """Something to read from."""

    is_bounded: bool = True

    @abstractmethod
    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """The reader of subtask ``subtask`` of ``parallelism``; together they read everything once."""


class SourceOperator(StreamOperator):
    """The head of a chain that has no input.

    The task calls ``emit_next`` until it returns False.
    """

    def __init__(self, source: Source, *, name: str = "Source") -> None:
        self.name = name
        self.source = source
        self._reader: SourceReader | None = None
        self._last_progress: float | None = None

    def open(self) -> None:
        """Make the reader."""
        try:
            self._reader = self.source.create_reader(self.ctx.subtask, self.ctx.parallelism)
        except FlowletError:
            raise
        except Exception as error:
            raise UserFunctionError(self.name, self.ctx.subtask, None) from error

    def emit_next(self) -> bool:
        """Emit one chunk; False when there is no more.

        Raises:
            FlowletError: the reader said so.
            UserFunctionError: the reader failed otherwise.
        """
        assert self._reader is not None, "opened"
        try:
            chunk = self._reader.poll_chunk()
        except FlowletError:
            raise
        except Exception as error:
            raise UserFunctionError(self.name, self.ctx.subtask, None) from error
        if chunk is None:
            return False
        if chunk.values:
            self.output.collect(chunk)
        return True

    @property
    def progress(self) -> float | None:
        """The fraction that was read, 0 to 1; None if the reader does not tell.  Any thread."""
        reader = self._reader
        return self._last_progress if reader is None else getattr(reader, "progress", None)

    def close(self) -> None:
        """Close the reader."""
        self._last_progress = self.progress
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


class CollectionSource(Source):
    """The records of a collection; subtask i gets the i-th of ``parallelism`` runs of about the same length.

    Args:
        values: copied; the records travel with the job.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = list(values)

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """A reader of one run."""
        start, end = (len(self.values) * number // parallelism for number in (subtask, subtask + 1))
        return _CollectionReader(self.values[start:end])


class _CollectionReader:
    def __init__(self, values: list[Any]) -> None:
        self._values = values
        self._next = 0

    def poll_chunk(self) -> Chunk | None:
        start = self._next
        if start >= len(self._values):
            return None
        self._next = start + MAX_CHUNK_RECORDS
        return Chunk(self._values[start : self._next])

    def close(self) -> None:
        self._values = []
