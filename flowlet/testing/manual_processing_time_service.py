"""``TestProcessingTimeService``: a clock with timers that moves only when a test moves it; also with callbacks that run
as mails, as in a task.

Side:       any.
Invariants: a callback that is a mail runs in a mail of its operator, never in the call that registers it or moves the
            clock, and never after ``cancel``.
Units:      milliseconds.
Source:     Flink ``TestProcessingTimeService``, also behind ``ProcessingTimeServiceImpl``.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from flowlet.mailbox.mailbox_processor import MailboxExecutor
from netstack.availability import AVAILABLE, AvailabilityFuture
from netstack.late import dataclass

_NS_PER_MS = 1_000_000


@dataclass(slots=True, eq=False)
class ManualTimer:
    """A timer of a ``TestProcessingTimeService``; ``period_ms`` is None if it fires once."""

    callback: Callable[[int], object]
    timestamp_ms: int
    period_ms: int | None = None
    is_done: bool = False

    def cancel(self) -> None:
        """Prevent further calls."""
        self.is_done = True


class TestProcessingTimeService:
    """Stands in for ``SystemProcessingTimeService``: fires timers on the thread that moves the clock, in the order of
    their time.

    A timer for t fires when the clock has reached t.  A timer for the past fires at the next move of the clock, even
    ``advance(0)``, so that a callback never runs inside the call that registers it.

    Example::

        clock = TestProcessingTimeService()
        clock.register_timer(10, fired.append)
        clock.set_time(9)
        assert fired == []
        clock.advance(1)
        assert fired == [10]
    """

    __test__ = False  # otherwise pytest collects it, because of its name

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._heap: list[tuple[int, int, ManualTimer]] = []
        self._order = count()
        self._is_quiesced = False
        self._is_shut_down = False
        self.paused_ns = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._now_ms} ms, {self.num_timers} timers>"

    @property
    def num_timers(self) -> int:
        """How many timers may still fire."""
        return len(self.active_timers())

    def active_timers(self) -> list[int]:
        """The due times of the timers that may still fire, in order."""
        return sorted(timer.timestamp_ms for _, _, timer in self._heap if not timer.is_done)

    def current_time_ms(self) -> int:
        """The time of the manual clock."""
        return self._now_ms

    def relative_time_ns(self) -> int:
        """The time, less the backpressured time that the test sets in ``paused_ns``."""
        return self._now_ms * _NS_PER_MS - self.paused_ns

    def set_time(self, now_ms: int) -> None:
        """Move the clock, forwards or back; fire due timers, also those that callbacks register meanwhile."""
        self._now_ms = now_ms
        while self._heap and self._heap[0][0] <= self._now_ms and not self._is_quiesced:
            _, _, timer = heappop(self._heap)
            if not timer.is_done:
                self._fire(timer)

    def _fire(self, timer: ManualTimer) -> None:
        timer.is_done = timer.period_ms is None
        timer.callback(timer.timestamp_ms)
        if timer.period_ms is not None and not timer.is_done:
            timer.timestamp_ms += timer.period_ms
            self._push(timer)

    def advance(self, duration_ms: int) -> None:
        """Move the clock forwards; 0 fires timers that are due already."""
        self.set_time(self._now_ms + duration_ms)

    def register_timer(self, timestamp_ms: int, callback: Callable[[int], object]) -> ManualTimer:
        """Call ``callback(timestamp_ms)`` once the clock has reached ``timestamp_ms``."""
        return self._push(ManualTimer(callback, timestamp_ms))

    def schedule_at_fixed_rate(
        self, callback: Callable[[int], object], *, initial_delay_ms: int, period_ms: int
    ) -> ManualTimer:
        """Call ``callback(t)`` repeatedly."""
        return self._push(ManualTimer(callback, self._now_ms + initial_delay_ms, period_ms))

    def schedule_with_fixed_delay(
        self, callback: Callable[[int], object], *, initial_delay_ms: int, period_ms: int
    ) -> ManualTimer:
        """Call ``callback(t)`` repeatedly, as ``schedule_at_fixed_rate`` does: here a callback takes no time."""
        return self.schedule_at_fixed_rate(callback, initial_delay_ms=initial_delay_ms, period_ms=period_ms)

    def _push(self, timer: ManualTimer) -> ManualTimer:
        if self._is_shut_down:
            raise RuntimeError(f"no timer can be registered: {self!r} is shut down")
        if self._is_quiesced:
            timer.cancel()
        else:
            heappush(self._heap, (timer.timestamp_ms, next(self._order), timer))
        return timer

    def quiesce(self) -> AvailabilityFuture:
        """Fire no further timers."""
        self._is_quiesced = True
        self._heap.clear()
        return AVAILABLE

    def shut_down(self) -> None:
        """Fire no further timers, and let registrations of timers raise RuntimeError."""
        self.quiesce()
        self._is_shut_down = True


class MailedProcessingTimeService(TestProcessingTimeService):
    """The clock of an operator in a harness; ``executor`` puts the mails of timers, with the operator's priority."""

    def __init__(self, now_ms: int, executor: MailboxExecutor) -> None:
        super().__init__(now_ms)
        self._executor = executor

    def _fire(self, timer: ManualTimer) -> None:
        self._executor.execute(lambda: self._run(timer), "timer for %s", timer.timestamp_ms)

    def _run(self, timer: ManualTimer) -> None:
        """Run the mail of a timer, which may have been cancelled since."""
        if timer.is_done:
            return
        timer.is_done = timer.period_ms is None
        timer.callback(timer.timestamp_ms)
        if timer.period_ms is not None and not timer.is_done:
            # From the end of the call, as the real service: after a long jump of the clock there is one late call, not
            # one per period.
            timer.timestamp_ms = self.current_time_ms() + timer.period_ms
            self._push(timer)
