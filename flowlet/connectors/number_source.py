"""Sources of numbered records: a sequence of numbers, and what a function makes of each, at a rate if need be.

Side:       task.
Invariants: a number is given once, by one reader; what is left is the position, so it can be dealt out to any number of readers.  A reader
            that may not give anything yet never blocks: its future is done when a timer fires, and checkpoints go on meanwhile.
Source:     Flink ``NumberSequenceSource``, ``DataGeneratorSource``, ``RateLimitedSourceReader``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from flowlet.chain.state_share import StateShare
from flowlet.connectors.rate_limits import RateLimit
from flowlet.errors import FlowletError
from flowlet.operators.source_operator import MAX_CHUNK_RECORDS, Source
from flowlet.records import Chunk
from flowlet.splits.number_runs import NumbersLeft, Runs, share_of_runs
from flowlet.timers.time_api import ProcessingTimeService, RelativeClock, TimerHandle
from netstack.availability import AvailabilityFuture, AvailabilityHelper

MakeRecord = Callable[[int], Any]
_NS_PER_MS: Final = 1_000_000


class NumberSource(Source):
    """The numbers ``start`` <= n < ``end``, each as a record, or as what a function makes of it.

    Args:
        start: the first number.
        end: behind the last.
        function: gets a number and gives its record; None: the number itself.
        limit: makes the limit of one reader from the parallelism; None: as fast as possible.
    """

    def __init__(
        self,
        start: int,
        end: int,
        *,
        function: MakeRecord | None = None,
        limit: Callable[[int], RateLimit] | None = None,
        is_bounded: bool = True,
    ) -> None:
        self.start = start
        self.end = end
        self._function = function
        self._limit = limit

    def create_reader(self, subtask: int, parallelism: int) -> "NumberReader":
        """A reader of about one ``parallelism``-th of the numbers."""
        runs = share_of_runs([(self.start, self.end)], subtask, parallelism)
        if self._limit is None:
            return NumberReader(runs, self._function)
        return LimitedNumberReader(runs, self._function, self._limit(parallelism))

    def redistribute_positions(self, positions: Sequence[Runs | None], share: StateShare) -> Runs:
        """A part of the numbers that are left, about as many as the other readers get."""
        return share_of_runs([run for runs in positions for run in runs or ()], share.subtask, share.parallelism)


class NumberReader:
    """Gives the records of its numbers as fast as they are taken.  Threading: task thread."""

    def __init__(self, runs: Runs, function: MakeRecord | None) -> None:
        self._left = NumbersLeft(runs)
        self._function = function
        self.never_waits = function is None  # a function may wait for something

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._left!r}>"

    def poll_chunk(self) -> Chunk | None:
        """Up to 1,000 records; None at the end."""
        return self._next_chunk(MAX_CHUNK_RECORDS)

    def snapshot_position(self) -> Runs:
        """The numbers that are left."""
        return self._left.runs

    def restore_position(self, position: Runs) -> None:
        """Go on with these."""
        self._left = NumbersLeft(position)

    def close(self) -> None:
        """Nothing is open."""

    def _next_chunk(self, max_records: int) -> Chunk | None:
        numbers = self._left.take(max_records)
        if numbers is None:
            return None
        return Chunk(list(numbers) if self._function is None else list(map(self._function, numbers)))


class LimitedNumberReader(NumberReader):
    """Gives the records of its numbers at a rate; see ``TimedReader``, ``PositionListener``."""

    def __init__(self, runs: Runs, function: MakeRecord | None, limit: RateLimit) -> None:
        super().__init__(runs, function)
        self.never_waits = False
        self._limit = limit
        self._clock: ProcessingTimeService | None = None  # from use_clock on
        self._now_ns: Callable[[], int] | None = None
        self._timer: TimerHandle | None = None
        self._available = AvailabilityHelper(is_available=True)

    def use_clock(self, clock: ProcessingTimeService) -> None:
        """Take the clock and the timers of the task."""
        self._clock = clock
        self._now_ns = clock.relative_time_ns if isinstance(clock, RelativeClock) else lambda: clock.current_time_ms() * _NS_PER_MS

    def poll_chunk(self) -> Chunk | None:
        """As many records as the rate allows, 1,000 at most; an empty chunk if it allows none yet, None at the end."""
        if self._now_ns is None:
            raise FlowletError("a source with a rate needs the clock of a task")
        if not self._left.runs:
            return None
        now_ns = self._now_ns()
        num_allowed = self._limit.allowed(now_ns)
        if num_allowed < 1:
            self._wait(self._limit.pause_ns(now_ns))
            return Chunk([])
        chunk = self._next_chunk(min(num_allowed, MAX_CHUNK_RECORDS))
        if chunk is not None:
            self._limit.take(len(chunk))
        return chunk

    def available_future(self) -> AvailabilityFuture:
        """Done when the rate allows another record."""
        return self._available.future

    def position_taken(self, checkpoint_id: int) -> None:
        """Nothing depends on it."""

    def position_kept(self, checkpoint_id: int) -> None:
        """A rate per checkpoint allows more now."""
        self._limit.checkpoint_completed()
        self._wake()

    def position_lost(self, checkpoint_id: int) -> None:
        """Nothing: a later one that is complete has more."""

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, pause_ns: int | None) -> None:
        self._available.reset_unavailable()
        if pause_ns is not None and self._timer is None:
            assert self._clock is not None, "checked by poll_chunk"
            # A timer for t fires behind t, so this rounds up already.
            due_ms = self._clock.current_time_ms() + pause_ns // _NS_PER_MS
            self._timer = self._clock.register_timer(due_ms, self._fired)

    def _fired(self, _: int) -> None:
        self._timer = None
        self._wake()

    def _wake(self) -> None:
        pending = self._available.unavailable_to_reset_available()
        if pending is not None:
            pending.complete()
