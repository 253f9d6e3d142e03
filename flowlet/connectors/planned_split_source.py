"""Reads the splits of a user's ``SplitSource`` side by side.

Hot path: per chunk one turn of a deque; per record one step of the user's iterator, one comparison and one look for a
    mail.

Side:       task.
Invariants: a split is read by one reader, in order, and its position is the number of its records that were polled.
            Splits take turns, so none starves another.  A reader without records waits; it asks splits that had none
            again after ``RETRY_MS``.
Source:     Flink ``SourceReaderBase``, ``IteratorSourceReader``, ``SourceReader.pauseOrResumeSplits``.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from flowlet.connectors.split_reader import SplitReaderBase
from flowlet.datastream.connectors.base import NO_RECORD, SplitSource
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.operators.source_reader import MAX_CHUNK_RECORDS
from flowlet.records import Chunk
from flowlet.serde.deploy_blobs import load_object
from flowlet.splits.split_kinds import PlannedSplit
from netstack.late import dataclass

RETRY_MS: Final = 10  # not measured; a split without records costs one step of its iterator as often

Position = tuple[tuple[str, bytes, int], ...]
"""The splits that are not read to their end: name, content, and how many records were read."""


@dataclass(slots=True)
class _OpenSplit:
    """A split that is being read."""

    split: PlannedSplit
    records: Iterator[Any]
    num_read: int
    is_paused: bool = False


class PlannedSplitReader(SplitReaderBase[PlannedSplit, int, Position]):
    """Reads its splits in turns; the place in a split is the number of its records that were read.  Task thread.

    Args:
        source: the user's.
        num_readers: of the source.
    """

    pauses_splits = True
    opens_given = True  # the watermark waits for splits that are not begun, too

    def __init__(self, source: SplitSource, num_readers: int) -> None:
        super().__init__(num_readers)
        self._source = source
        self._max_open = source.max_open_splits
        self._turns: deque[_OpenSplit] = deque()  # the splits that are being read, the next one first

    def __repr__(self) -> str:
        kind = type(self._source).__name__
        return f"<PlannedSplitReader of {kind}, {len(self._turns)} open, {len(self._splits)} to begin>"

    # -- splits

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Skip some splits, and read others again."""
        for each in self._turns:
            each.is_paused = (each.is_paused or each.split.name in pause) and each.split.name not in resume
        self.wait.end()

    def _begin_splits(self) -> None:
        while self._max_open is None or len(self._turns) < self._max_open:
            taken = self.take_split()
            if taken is None:
                break
            split = taken[0]
            num_read = taken[1] or 0
            content = load_object(split.content, f"split {split.name!r} of a {type(self._source).__name__}")
            records = iter(self._source.read_split(content, num_read))
            self._turns.append(_OpenSplit(split, records, num_read))

    # -- records

    def poll_chunk(self) -> Chunk | None:
        """Up to 1,000 records of the split whose turn it is, fewer if a mail comes.

        An empty chunk if no split has a record now, None at the end of all splits.
        """
        self._begin_splits()
        num_open = len(self._turns)
        for _ in range(num_open):
            current = self._turns[0]
            self._turns.rotate(-1)
            if current.is_paused:
                continue
            records, has_ended = _taken(current.records, self.ctx.interrupts)
            if has_ended:
                self._turns.pop()  # the current one, which was put there
                self._open_splits.remove((current.split.name,))
            current.num_read += len(records)
            if records:
                self.current_split = current.split.name
                return Chunk(records)
        if not self._turns and self.is_over:
            return None
        if len(self._turns) < num_open:
            self.wait.end()  # a split has ended: the next poll asks for another one
        elif all(each.is_paused for each in self._turns):
            self.wait.reset_unavailable()
        else:
            self.wait.begin_for(self.ctx.processing_time_service, RETRY_MS)
        return Chunk([])

    # -- checkpoints

    def begun(self) -> list[tuple[PlannedSplit, int]]:
        """The splits that are being read."""
        return [(each.split, each.num_read) for each in self._turns]

    @staticmethod
    def parts_of(position: Position) -> list[tuple[PlannedSplit, int]]:
        """The splits, and how many records of them were read."""
        return [(PlannedSplit(name, content), num_read) for name, content, num_read in position]

    @staticmethod
    def position_of(parts: Sequence[tuple[PlannedSplit, int | None]]) -> Position:
        """The splits, and how many records of them were read."""
        return tuple((split.name, split.content, num_read or 0) for split, num_read in parts)

    def close(self) -> None:
        """Close the iterators of open splits, and cancel the timer."""
        super().close()
        turns = self._turns
        self._turns = deque()
        for each in turns:
            close = getattr(each.records, "close", None)
            if callable(close):
                close()


def _taken(records: Iterator[Any], interrupts: Interrupts) -> tuple[list[Any], bool]:
    """The next records, up to the first in front of which a mail has come, and whether there are no more."""
    found: list[Any] = []
    for record in islice(records, MAX_CHUNK_RECORDS):
        if record is NO_RECORD:
            return found, False
        found.append(record)
        if interrupts:
            return found, False
    return found, len(found) < MAX_CHUNK_RECORDS
