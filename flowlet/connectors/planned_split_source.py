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

from flowlet.connectors.split_reader import AssignedSplitReader, ReaderWait
from flowlet.datastream.connectors.base import NO_RECORD, SplitSource
from flowlet.errors import FlowletError
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.operators.source_event_time import OpenSplits
from flowlet.operators.source_operator import MAX_CHUNK_RECORDS, Source
from flowlet.records import Chunk
from flowlet.serde.deploy_blobs import load_object
from flowlet.splits.known_splits import PlannedSplitEnumerator
from flowlet.splits.split_kinds import PlannedSplit, PlannedSplits
from flowlet.state.state_snapshots import StateShare
from flowlet.timers.time_api import ProcessingTimeService
from netstack.availability import AvailabilityFuture
from netstack.late import dataclass

RETRY_MS: Final = 10  # not measured; a split without records costs one step of its iterator as often

Position = tuple[tuple[str, bytes, int], ...]
"""The splits that are not read to their end: name, content, and how many records were read."""


class PlannedSplitSource(Source):
    """The splits of ``source``, as the program planned them; a task needs only the source, so the splits do not travel
    to it.
    """

    def __init__(self, source: SplitSource, planned: PlannedSplits) -> None:
        self.is_bounded = source.is_bounded
        self._source = source
        self._planned = planned

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planned": PlannedSplits((), self._planned.is_on_demand)}

    def create_enumerator(self) -> PlannedSplitEnumerator:
        """What hands out the splits in the JobManager."""
        return PlannedSplitEnumerator(self._planned)

    def create_reader(self, subtask: int, parallelism: int) -> "PlannedSplitReader":
        """A reader of the splits that it is assigned."""
        return PlannedSplitReader(self._source, parallelism)

    def redistribute_positions(self, positions: Sequence[Position | None], share: StateShare) -> Position:
        """Some of the splits that the former readers had."""
        splits = [split for position in positions if position is not None for split in position]
        return tuple(splits[share.subtask :: share.parallelism])


@dataclass(slots=True)
class _OpenSplit:
    """A split that is being read."""

    split: PlannedSplit
    records: Iterator[Any]
    num_read: int
    is_paused: bool = False


class PlannedSplitReader(AssignedSplitReader[PlannedSplit]):
    """A ``SplitReceiver``, ``PausableSplitReader``, ``TimedReader`` and ``InterruptibleReader``; task thread.

    Args:
        source: the user's.
        num_readers: of the source.
    """

    def __init__(self, source: SplitSource, num_readers: int) -> None:
        super().__init__(num_readers)
        self._source = source
        self._max_open = source.max_open_splits
        self._num_read: dict[str, int] = {}  # of splits that were begun before a restart and were not begun since
        self._turns: deque[_OpenSplit] = deque()  # the splits that are being read, the next one first
        self.open_splits = OpenSplits()  # these, and the assigned ones that are not begun
        self._wait = ReaderWait()
        self._clock: ProcessingTimeService | None = None
        self._interrupts = Interrupts()
        self.current_split = ""

    def __repr__(self) -> str:
        kind = type(self._source).__name__
        return f"<PlannedSplitReader of {kind}, {len(self._turns)} open, {len(self._splits)} to begin>"

    # -- splits

    def use_clock(self, clock: ProcessingTimeService) -> None:
        """Take the clock of the task."""
        self._clock = clock

    def use_interrupts(self, interrupts: Interrupts) -> None:
        """Take those of the task; an iterator of the user may be slow."""
        self._interrupts = interrupts

    def add_splits(self, splits: Sequence[PlannedSplit], waiting_bytes: int) -> None:
        """Read these, too."""
        super().add_splits(splits, waiting_bytes)
        self.open_splits.add(split.name for split in splits)
        self._wait.end()

    def no_more_splits(self) -> None:
        """There are no more."""
        super().no_more_splits()
        self._wait.end()

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Skip some splits, and read others again."""
        for each in self._turns:
            each.is_paused = (each.is_paused or each.split.name in pause) and each.split.name not in resume
        self._wait.end()

    def _open_splits(self) -> None:
        while self._max_open is None or len(self._turns) < self._max_open:
            split = self.take_split()
            if split is None:
                break
            num_read = self._num_read.pop(split.name, 0)
            content = load_object(split.content, f"split {split.name!r} of a {type(self._source).__name__}")
            records = iter(self._source.read_split(content, num_read))
            self._turns.append(_OpenSplit(split, records, num_read))

    # -- records

    def poll_chunk(self) -> Chunk | None:
        """Up to 1,000 records of the split whose turn it is, fewer if a mail comes.

        An empty chunk if no split has any, None at the end of all splits.
        """
        self._open_splits()
        num_open = len(self._turns)
        for _ in range(num_open):
            current = self._turns[0]
            self._turns.rotate(-1)
            if current.is_paused:
                continue
            records, has_ended = _taken(current.records, self._interrupts)
            if has_ended:
                self._turns.pop()  # the current one, which was put there
                self.open_splits.remove((current.split.name,))
            current.num_read += len(records)
            if records:
                self.current_split = current.split.name
                return Chunk(records)
        if not self._turns and self.is_over:
            return None
        if len(self._turns) == num_open:
            if any(not each.is_paused for each in self._turns):
                if self._clock is None:
                    raise FlowletError("a source in splits needs the clock of a task")
                self._wait.begin_for(self._clock, RETRY_MS)
            else:
                self._wait.begin()
        return Chunk([])  # at once, if a split has ended: the next poll asks for another one

    def available_future(self) -> AvailabilityFuture:
        """Done when it is worth to poll again."""
        return self._wait.future

    # -- checkpoints

    def snapshot_position(self) -> Position:
        """The splits that are not read to their end."""
        begun = [(each.split.name, each.split.content, each.num_read) for each in self._turns]
        waiting = [(split.name, split.content, self._num_read.get(split.name, 0)) for split in self._splits]
        return (*begun, *waiting)

    def restore_position(self, position: Position) -> None:
        """Go on with these."""
        self._num_read = {name: num_read for name, _, num_read in position}
        self.restore_splits([PlannedSplit(name, content) for name, content, _ in position])
        self.open_splits.add(self._num_read)

    def close(self) -> None:
        """Close the iterators of open splits, and cancel the timer."""
        self._wait.close()
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
