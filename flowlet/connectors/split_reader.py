"""What readers of splits share: ``AssignedSplitReader`` has the splits that were given and not begun, and asks for
more; ``ReaderWait`` while there is nothing to read.

Side:       task.
Invariants: at most one question is open; nothing is asked once there are no more; a reader that got no split waits on a
            future that is done with the next answer.  A wait has one timer at most.
Units:      bytes.
Source:     Flink ``SourceReaderBase`` (``addSplits``, ``notifyNoMoreSplits``),
            ``SourceReaderContext.sendSplitRequest``; Flink's file reader asks when it has nothing left, this one a
            little earlier.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from flowlet.splits.enumerator import SourceSplit
from flowlet.timers.time_api import ProcessingTimeService, TimerHandle
from netstack.availability import AvailabilityFuture, AvailabilityHelper

# What a reader still has when it asks for more: several milliseconds of work, an answer takes about one.  Not measured.
EARLY_BYTES: Final = 512 << 10

SplitT = TypeVar("SplitT", bound=SourceSplit)


class ReaderWait:
    """Whether it is worth to poll a reader again; a wait ends by ``end`` or with its timer.  Threading: task thread."""

    def __init__(self, *, is_waiting: bool = False) -> None:
        self._available = AvailabilityHelper(is_available=not is_waiting)
        self._timer: TimerHandle | None = None

    @property
    def future(self) -> AvailabilityFuture:
        """Done while there is no wait."""
        return self._available.future

    def begin(self) -> None:
        """There is nothing just now."""
        self._available.reset_unavailable()

    def begin_for(self, clock: ProcessingTimeService, pause_ms: int) -> None:
        """There is nothing until so many milliseconds have passed, or until a timer fires that is set already."""
        self.begin()
        if self._timer is None:
            self._timer = clock.register_timer(clock.current_time_ms() + pause_ms, self._fired)

    def end(self) -> None:
        """There may be something again."""
        pending = self._available.unavailable_to_reset_available()
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
    """Whether more can be had."""

    IDLE = auto()  # nothing was asked
    ASKED = auto()
    OVER = auto()


class AssignedSplitReader(Generic[SplitT]):
    """Base class of a ``SplitReceiver``: the splits that were given to it and not begun.

    Threading: task thread; ``expected_bytes`` any.

    Args:
        num_readers: of the source.
        early_bytes: how little is left when it asks for more; 0 leaves to other readers whatever can wait.
    """

    def __init__(self, num_readers: int, early_bytes: int = EARLY_BYTES) -> None:
        self._num_readers = num_readers
        self._early_bytes = early_bytes
        self._request: Callable[[], None] | None = None  # from start on
        self._supply = _Supply.IDLE
        self._splits: deque[SplitT] = deque()
        self._stock_bytes = 0
        self._next_split = ReaderWait(is_waiting=True)
        self.expected_bytes = 0.0  # Written by the task thread; read anywhere, one answer stale is fine.
        self._assigned_bytes = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {len(self._splits)} splits to begin, {self._supply.name}>"

    @property
    def is_over(self) -> bool:
        """Whether everything was begun and there are no more."""
        return self._supply is _Supply.OVER and not self._splits

    def available_future(self) -> AvailabilityFuture:
        """Done once ``take_split`` gives a split, or everything is over."""
        return self._next_split.future

    def restore_splits(self, splits: Sequence[SplitT]) -> None:
        """The reader had these before a restart; before ``start``."""
        assert self._request is None, "not started"
        self._splits.extend(splits)
        self._stock_bytes = sum(split.size_bytes for split in self._splits)
        self.expected_bytes = self._assigned_bytes = self._stock_bytes

    def start(self, request_splits: Callable[[], None]) -> None:
        """Ask for the first ones, or for more if there is little."""
        self._request = request_splits
        self.keep_stocked(0)

    def keep_stocked(self, rest_bytes: int) -> None:
        """Ask for more if it is time: ``rest_bytes`` of the present split are left."""
        if self._supply is _Supply.IDLE and rest_bytes + self._stock_bytes <= self._early_bytes:
            assert self._request is not None, "started"
            self._supply = _Supply.ASKED
            self._request()

    def take_split(self) -> SplitT | None:
        """The next split to begin; None if there is none just now."""
        if not self._splits and self._supply is not _Supply.OVER:
            self._next_split.begin()  # before the question: the answer may come at once
            self.keep_stocked(0)
        if not self._splits:
            return None
        split = self._splits.popleft()
        self._stock_bytes -= split.size_bytes
        return split

    def add_splits(self, splits: Sequence[SplitT], waiting_bytes: int) -> None:
        """Read these splits, too."""
        size_bytes = sum(split.size_bytes for split in splits)
        self._splits.extend(splits)
        self._stock_bytes += size_bytes
        self._assigned_bytes += size_bytes
        self.expected_bytes = self._assigned_bytes + waiting_bytes / self._num_readers
        self._supply = _Supply.IDLE
        self._next_split.end()

    def no_more_splits(self) -> None:
        """End after the splits received so far."""
        self._supply = _Supply.OVER
        self.expected_bytes = self._assigned_bytes
        self._next_split.end()
