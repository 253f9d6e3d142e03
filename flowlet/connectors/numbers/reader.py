"""Sources of numbered records: a sequence of numbers, or a function's result for each, at a rate if need be.

Hot path, per chunk of 1,000 numbers: two ranges; nothing per number but the user's function.

Side:       task.
Invariants: a number is given once, by one reader, and the numbers of a reader rise.  The position is the numbers that
            are left, so it can be dealt out to any number of readers.  A reader that may not give a record yet never
            blocks: its future is done when a timer fires or an answer comes, and checkpoints go on meanwhile.  Over any
            time, a reader with a rate gives at most its share of the rate for that time, plus its share for one second,
            which it saves up while the tasks behind it are slow.
Units:      of rates, nanoseconds of a monotonic clock, and records per second.
Rules:      a reader asks for more in the last quarter of its last split, and in its last ``EARLY_NUMBERS``: numbers
            that it does not need yet may go to another one.  A reader has one watermark, as in Flink: its splits follow
            each other in ascending order.
Source:     Flink ``NumberSequenceSource``, ``IteratorSourceReader``, ``DataGeneratorSource``,
            ``RateLimitedSourceReader``; ``GuavaRateLimiter``, ``GatedRateLimiter``, without a thread that waits.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from flowlet.connectors.split_reader import AssignedSource, SplitReaderBase
from flowlet.datastream.connectors.datagen import RateLimiterStrategy, RateUnit
from flowlet.errors import StateRestoreError
from flowlet.operators.source_reader import MAX_CHUNK_RECORDS
from flowlet.records import Chunk
from flowlet.splits.split_kinds import NumberRange, NumberSplit, Runs, share_of_runs
from flowlet.state.state_snapshots import StateShare
from netstack.late import dataclass

_NS_PER_SECOND: Final = 1_000_000_000
# Records of a rate come in small groups: a wakeup costs far more than a record.
_MIN_PAUSE_NS: Final = 10_000_000


class RecordRateLimit:
    """The limit of one of several readers: its share of so many records per second, or until the next checkpoint.

    The limit per second is a bucket that fills with time; the first record may be given at once.  Threading: task
    thread.
    """

    def __init__(self, strategy: RateLimiterStrategy, num_readers: int) -> None:
        self._is_per_second = strategy.unit is RateUnit.SECOND
        records = strategy.records
        self._records = records / num_readers if self._is_per_second else max(int(records) // num_readers, 1)
        self._left = 1.0 if self._is_per_second else self._records
        self._since_ns: int | None = None  # the time of ``_left``; None: before the first call

    def __repr__(self) -> str:
        return f"<RecordRateLimit {self._left:g} left>"

    def allowed(self, now_ns: int) -> int:
        """How many records may be given now; a limit per second saves up to one second's records between calls."""
        if self._is_per_second:
            if self._since_ns is None:
                self._since_ns = now_ns
            if now_ns > self._since_ns:  # the clock may stand still while the task is held back
                grown = self._left + (now_ns - self._since_ns) * self._records / _NS_PER_SECOND
                self._left = min(grown, max(self._records, 1.0))
                self._since_ns = now_ns
        return int(self._left)

    def take(self, num_records: int) -> None:
        """Count records that were given, at most as many as were allowed."""
        self._left -= num_records

    def pause_ns(self) -> int | None:
        """How long to wait until one record is allowed, at least 10 ms; None: until ``checkpoint_completed``."""
        if not self._is_per_second:
            return None
        return max(int((1.0 - self._left) * _NS_PER_SECOND / self._records), _MIN_PAUSE_NS)

    def checkpoint_completed(self) -> None:
        """Allow all records of a limit per checkpoint again."""
        if not self._is_per_second:
            self._left = self._records


MakeRecord = Callable[[int], Any]
_NS_PER_MS: Final = 1_000_000
# Some milliseconds of work for the cheapest function; an answer takes one, or several while other threads compute.
EARLY_NUMBERS: Final = 64_000


@dataclass(frozen=True, slots=True)
class NumberPosition:
    """The numbers that a reader has left, in ascending order."""

    runs: Runs


class NumberReader(SplitReaderBase[NumberSplit, None, NumberPosition]):
    """Gives the records of its numbers as fast as they are taken, or as a limit allows; task thread."""

    open_splits = None  # the splits of a reader follow each other in ascending order: it has one watermark

    def __init__(self, num_readers: int, function: MakeRecord | None, limit: RateLimiterStrategy | None = None) -> None:
        super().__init__(num_readers, early_bytes=0)
        self._next = self._end = 0  # the numbers that are left of the present split
        self._asks_from = 0  # from here on it is time to ask for more
        self._function = function
        self._limit: RecordRateLimit | None = None
        if limit is not None and limit.unit is not RateUnit.NONE:
            self._limit = RecordRateLimit(limit, num_readers)
        self.never_waits = function is None and self._limit is None  # a function may wait for something

    def __repr__(self) -> str:
        return f"<NumberReader {self._next} to {self._end}, {len(self._splits)} splits to begin>"

    def poll_chunk(self) -> Chunk | None:
        """Up to 1,000 records, fewer if a mail comes or the limit says so; an empty chunk if there are none yet, None
        at the end.
        """
        if self._next >= self._end and (taken := self.take_split()) is not None:
            split = taken[0]
            self._next = split.start
            self._end = split.end
            self._asks_from = split.end - min(EARLY_NUMBERS, split.size_bytes // 4)
        if self._next >= self._end:
            return self.nothing()
        max_records = MAX_CHUNK_RECORDS if self._limit is None else self._num_allowed(self._limit)
        return self._next_chunk(max_records) if max_records > 0 else Chunk([])

    def _num_allowed(self, limit: RecordRateLimit) -> int:
        """How many records a chunk may have now; if none, begin to wait for the limit."""
        clock = self.ctx.processing_time_service
        now_ns = clock.relative_time_ns()
        num_allowed = limit.allowed(now_ns)
        if num_allowed < 1:
            pause_ns = limit.pause_ns()
            if pause_ns is None:
                self.wait.reset_unavailable()
            else:
                # A timer for t fires behind t, so this rounds up already.
                self.wait.begin_for(clock, pause_ns // _NS_PER_MS)
        return min(num_allowed, MAX_CHUNK_RECORDS)

    def position_kept(self, checkpoint_id: int) -> None:
        """Allow more records of a rate per checkpoint, and end the wait."""
        if self._limit is not None:
            self._limit.checkpoint_completed()
            self.wait.end()

    def begun(self) -> list[tuple[NumberSplit, None]]:
        """The numbers that are left of the present split."""
        return [(NumberSplit(self._next, self._end), None)] if self._next < self._end else []

    @staticmethod
    def parts_of(position: NumberPosition) -> list[tuple[NumberSplit, None]]:
        """The runs of a position, as splits.  Raises StateRestoreError: the checkpoint is of an older flowlet."""
        return [(NumberSplit(start, end), None) for start, end in _runs_of(position)]

    @staticmethod
    def position_of(parts: Sequence[tuple[NumberSplit, None]]) -> NumberPosition:
        """The position with the runs of these splits."""
        return NumberPosition(tuple((split.start, split.end) for split, _ in parts))

    @classmethod
    def redistributed(cls, positions: Sequence[NumberPosition], share: StateShare) -> NumberPosition:
        """A share of the numbers that the former readers had left; all readers get about equally many.

        Raises:
            StateRestoreError: the checkpoint is of an older flowlet.
        """
        runs = [run for position in positions for run in _runs_of(position)]
        return NumberPosition(share_of_runs(sorted(runs), share.subtask, share.parallelism))

    def _next_chunk(self, max_records: int) -> Chunk:
        numbers = range(self._next, min(self._next + max_records, self._end))
        records = list(numbers) if self._function is None else self._made_of(numbers, self._function)
        self._next += len(records)
        if self._limit is not None:
            self._limit.take(len(records))
        if self._next >= self._asks_from:
            self.keep_stocked(0)
        return Chunk(records)

    def _made_of(self, numbers: range, function: MakeRecord) -> list[Any]:
        records = []
        interrupts = self.ctx.interrupts
        for number in numbers:
            records.append(function(number))
            if interrupts:
                break
        return records


def numbered_records(
    start: int, end: int, *, function: MakeRecord | None = None, limit: RateLimiterStrategy | None = None
) -> AssignedSource[NumberReader]:
    """A source of the numbers ``start`` <= n < ``end``, or of a function's result for each.

    Args:
        start: the first number.
        end: the number behind the last.
        function: gets a number and gives its record; None: the number itself.
        limit: of all readers together; None: as fast as possible.
    """
    return AssignedSource(NumberReader, NumberRange(start, end), function=function, limit=limit)


def _runs_of(position: NumberPosition) -> Runs:
    if not isinstance(position, NumberPosition):
        raise StateRestoreError(
            "the checkpoint has the numbers of a source as an older flowlet kept them, which gave each subtask its "
            "share at the start; go on with that one"
        )
    return position.runs
