"""Where the time of one task went: idle, backpressured, busy.

Side:       task writes, any thread reads.
Invariants: idle + soft backpressure + busy = time since the start, hard backpressure is part of neither idle nor soft; sums never fall.
Units:      nanoseconds of a monotonic clock.
Source:     Flink ``TimerGauge``, ``TaskIOMetricGroup`` (accumulatedIdleTime, accumulatedBackPressuredTime, accumulatedBusyTime).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto


class WaitKind(Enum):
    """Why a task is parked: it lacks input, or room for its output."""

    IDLE = auto()
    BACK_PRESSURED = auto()


@dataclass(frozen=True, slots=True)
class TimingsSnapshot:
    """Sums since the task started running; ``running_ns`` includes all the others."""

    running_ns: int
    idle_ns: int
    soft_back_pressured_ns: int


@dataclass(frozen=True, slots=True)
class _Sums:
    idle_ns: int = 0
    soft_back_pressured_ns: int = 0
    wait: WaitKind | None = None
    since_ns: int = 0

    def upto(self, now_ns: int) -> "_Sums":
        elapsed_ns = max(0, now_ns - self.since_ns)
        match self.wait:
            case None:
                return self
            case WaitKind.IDLE:
                return _Sums(self.idle_ns + elapsed_ns, self.soft_back_pressured_ns)
            case WaitKind.BACK_PRESSURED:
                return _Sums(self.idle_ns, self.soft_back_pressured_ns + elapsed_ns)


class TaskTimings:
    """Stopwatch of one task.

    Threading: the task thread marks; ``snapshot`` from any thread.  The sums are one frozen object, replaced by a single attribute
    store, so a reader sees either the old or the new ones.
    """

    __slots__ = ("_clock_ns", "_end_ns", "_start_ns", "_sums")

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._start_ns: int | None = None  # Written by the task thread, once.
        self._end_ns: int | None = None  # Written by the task thread, once.
        self._sums = _Sums()  # Written by the task thread; replaced, never changed.

    def now_ns(self) -> int:
        """The clock."""
        return self._clock_ns()

    def mark_start(self) -> None:
        """From now on the task runs."""
        self._start_ns = self._clock_ns()

    def mark_end(self) -> None:
        """The task has ended: the sums stay as they are."""
        self.end_wait()
        if self._end_ns is None:
            self._end_ns = self._clock_ns()

    def start_wait(self, kind: WaitKind) -> None:
        """The task is about to park; a wait already going on ends here."""
        now_ns = self._clock_ns()
        sums = self._sums.upto(now_ns)
        self._sums = _Sums(sums.idle_ns, sums.soft_back_pressured_ns, kind, now_ns)

    def end_wait(self) -> None:
        """The task works again; does nothing when it was not waiting."""
        if self._sums.wait is not None:
            self._sums = self._sums.upto(self._clock_ns())

    def snapshot(self) -> TimingsSnapshot:
        """The sums up to now, a wait in progress included; zeros before the start."""
        start_ns, sums = self._start_ns, self._sums
        if start_ns is None:
            return TimingsSnapshot(0, 0, 0)
        now_ns = self._clock_ns() if self._end_ns is None else self._end_ns
        sums = sums.upto(now_ns)
        return TimingsSnapshot(now_ns - start_ns, sums.idle_ns, sums.soft_back_pressured_ns)
