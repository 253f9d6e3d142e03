"""``SplitReaderBase``: the common part of all readers of splits.  ``ReaderWait``: whether there is something to read.

The base owns the splits that were given and not begun, the question for more, the wake-up, the end of the input, and
positions: in snapshots, after a restart, and dealt out among another number of readers.  A system says only how it
reads on, which splits it has begun (``begun``), and what its position looks like (``parts_of``, ``position_of``).

A record: ``poll_chunk`` of the system takes a split (``take_split``), which asks for more if there is none, and reads
a chunk of it; ``keep_stocked`` asks again before the split ends.  A snapshot: begun and waiting splits become one
position.  A rescale: ``parts_of`` takes the former positions apart; each part, a split with the place in it, goes to
one reader, and ``position_of`` makes that reader's position, with which it begins as after any restart.

Side:       task.
Invariants: at most one question is open; none is asked once there are no more splits; a reader that got no split waits
            on a future that is done with the next answer.  A wait has one timer at most.
Units:      bytes.
Source:     Flink ``SourceReaderBase`` (``addSplits``, ``notifyNoMoreSplits``),
            ``SourceReaderContext.sendSplitRequest``; Flink's file reader asks when it has nothing left, this one a
            little earlier.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Any, ClassVar, Final, Generic, TypeVar

from flowlet.operators.source_reader import OpenSplits, Source, SourceReaderBase
from flowlet.records import Chunk
from flowlet.splits.split_kinds import PlainSplitSet, PlannedSplits, SourceSplit
from flowlet.state.state_snapshots import StateShare
from flowlet.timers.keyed_timer_service import ProcessingTimeService
from netstack.availability import AvailabilityFuture, AvailabilityHelper
from netstack.loop.eventloop import Cancellable

# A reader with so much left asks for more: several milliseconds of work, and an answer takes about one.  Not measured.
EARLY_BYTES: Final = 512 << 10

SplitT = TypeVar("SplitT", bound=SourceSplit)
PlaceT = TypeVar("PlaceT")  # where a split goes on
PositionT = TypeVar("PositionT")  # in checkpoints
ReaderT = TypeVar("ReaderT", bound="SplitReaderBase[Any, Any, Any]")


class ReaderWait(AvailabilityHelper):
    """Whether it is worth to poll a reader again; a wait begins with
    ``reset_unavailable``, and ends by ``end`` or with its timer.  Threading: task thread.
    """

    def __init__(self, *, is_waiting: bool = False) -> None:
        super().__init__(is_available=not is_waiting)
        self._timer: Cancellable | None = None

    def begin_for(self, clock: ProcessingTimeService, pause_ms: int) -> None:
        """Begin a wait of so many milliseconds, or until a timer fires that is set already."""
        self.reset_unavailable()
        if self._timer is None:
            self._timer = clock.register_timer(clock.current_time_ms() + pause_ms, self._fired)

    def end(self) -> None:
        """End the wait: there may be something to read."""
        pending = self.unavailable_to_reset_available()
        if pending is not None:
            pending.complete()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _fired(self, _: int) -> None:
        self._timer = None
        self.end()


class _Supply(Enum):
    """Whether more splits can be had."""

    IDLE = auto()  # no question is open
    ASKED = auto()
    OVER = auto()


class SplitReaderBase(SourceReaderBase, Generic[SplitT, PlaceT, PositionT]):
    """The splits of one reader.

    Threading: task thread; ``expected_bytes`` any.

    Args:
        num_readers: of the source.
        early_bytes: ask for more when so little is left; with 0, splits that can wait are left to other readers.

    ``opens_given``: whether splits are open as soon as they are given, and not only once they are begun.
    """

    current_split: str = ""
    opens_given: ClassVar[bool] = False

    def __init__(self, num_readers: int, early_bytes: int = EARLY_BYTES) -> None:
        self._num_readers = num_readers
        self._early_bytes = early_bytes
        self._request: Callable[[], None] | None = None  # from start on
        self._supply = _Supply.IDLE
        # Not begun here; each with its place, if a former reader had begun it.
        self._splits: deque[tuple[SplitT, PlaceT | None]] = deque()
        self._stock_bytes = 0
        self._open_splits = OpenSplits()
        self.wait = ReaderWait(is_waiting=True)
        self.expected_bytes = 0.0  # Written by the task thread; read anywhere, one answer stale is fine.
        self._assigned_bytes = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.current_split!r}, {len(self._splits)} splits to begin>"

    # -- what a system says

    @abstractmethod
    def begun(self) -> Iterable[tuple[SplitT, PlaceT | None]]:
        """The splits that were begun and are not read to their end, each with the place where it goes on.

        The place is None if the split itself says it.
        """

    @staticmethod
    @abstractmethod
    def parts_of(position: PositionT) -> Iterable[tuple[SplitT, PlaceT | None]]:
        """Splits with the places in them, which a position names in this order."""

    @staticmethod
    @abstractmethod
    def position_of(parts: Sequence[tuple[SplitT, PlaceT | None]]) -> PositionT:
        """The position that names these splits and places."""

    # -- splits

    @property
    def open_splits(self) -> OpenSplits | None:
        """The splits that may still give records, as the system says."""
        return self._open_splits

    @property
    def is_over(self) -> bool:
        """Whether all splits were begun, and no more will come."""
        return self._supply is _Supply.OVER and not self._splits

    def available_future(self) -> AvailabilityFuture:
        """A future that is done while there is no wait."""
        return self.wait.future

    def start(self, request_splits: Callable[[], None]) -> None:
        """Ask for the first splits, or for more if a checkpoint left few."""
        self._request = request_splits
        self.keep_stocked(0)

    def keep_stocked(self, rest_bytes: int) -> None:
        """Ask for more if it is time: ``rest_bytes`` of the present split are left."""
        if self._supply is _Supply.IDLE and rest_bytes + self._stock_bytes <= self._early_bytes:
            assert self._request is not None, "started"
            self._supply = _Supply.ASKED
            self._request()

    def take_split(self) -> tuple[SplitT, PlaceT | None] | None:
        """The next split to begin, and the place where it goes on; None if there is no split just now."""
        if not self._splits and self._supply is not _Supply.OVER:
            self.wait.reset_unavailable()  # before the question: the answer may come at once
            self.keep_stocked(0)
        if not self._splits:
            return None
        taken = self._splits.popleft()
        self._stock_bytes -= taken[0].size_bytes
        return taken

    def nothing(self) -> Chunk | None:
        """The element of a reader that got no split: None at the end, else an empty chunk."""
        return None if self.is_over else Chunk([])

    def add_splits(self, splits: Sequence[SplitT], waiting_bytes: int) -> None:
        """Read these splits, too."""
        self._stock((split, None) for split in splits)
        self.expected_bytes = self._assigned_bytes + waiting_bytes / self._num_readers
        self._supply = _Supply.IDLE
        self.wait.end()

    def no_more_splits(self) -> None:
        """End after the splits received so far."""
        self._supply = _Supply.OVER
        self.expected_bytes = self._assigned_bytes
        self.wait.end()

    def _stock(self, parts: Iterable[tuple[SplitT, PlaceT | None]]) -> None:
        for part in parts:
            self._splits.append(part)
            self._stock_bytes += part[0].size_bytes
            self._assigned_bytes += part[0].size_bytes
            if self.opens_given:
                self._open_splits.add((part[0].split_id,))

    # -- positions

    def snapshot_position(self) -> PositionT:
        """The position that names the unread parts of the splits received so far."""
        return self.position_of([*self.begun(), *self._splits])

    def restore_position(self, position: PositionT) -> None:
        """Go on at a position; called before ``start``."""
        assert self._request is None, "not started"
        self._stock(self.parts_of(position))
        self.expected_bytes = self._assigned_bytes

    @classmethod
    def redistributed(cls, positions: Sequence[PositionT], share: StateShare) -> PositionT:
        """A position with this reader's share of the splits that the former readers had."""
        return cls.position_of(share.dealt([part for position in positions for part in cls.parts_of(position)]))

    def close(self) -> None:
        """Cancel the timer."""
        self.wait.close()


class AssignedSource(Source, Generic[ReaderT]):
    """A source whose splits are handed out.

    Args:
        reader_type: of its readers.
        split_set: the description from which the JobManager finds the splits.
        is_bounded: whether the input ends by itself.
        arguments: of the readers, besides their number.
    """

    def __init__(
        self,
        reader_type: type[ReaderT],
        split_set: PlainSplitSet,
        *,
        is_bounded: bool = True,
        **arguments: Any,
    ) -> None:
        self.split_set = split_set
        self.is_bounded = is_bounded
        self._reader_type = reader_type
        self._arguments = arguments

    def __getstate__(self) -> dict[str, Any]:
        # To its tasks the splits do not travel: the JobManager deals them out.
        return {**self.__dict__, "split_set": PlannedSplits(())}

    def create_reader(self, subtask: int, parallelism: int) -> ReaderT:
        """A reader of the splits that it is assigned."""
        return self._reader_type(num_readers=parallelism, **self._arguments)

    def redistribute_positions(self, positions: Sequence[Any], share: StateShare) -> Any:
        """A share of the splits that the former readers had left."""
        return self._reader_type.redistributed([each for each in positions if each is not None], share)
