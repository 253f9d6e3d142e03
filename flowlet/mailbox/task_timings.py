"""Where the time of one task went: idle, backpressured, busy.

Side:       shared.  The task thread marks, any thread reads.
Invariants: idle + soft backpressure + the rest = time since the start; hard backpressure is part of that rest, and busy is what is left of
            it; sums never fall.
Units:      nanoseconds of a monotonic clock; rates in milliseconds per second.
Source:     Flink ``TaskIOMetricGroup`` (idleTimeMsPerSecond, softBackPressuredTimeMsPerSecond, hardBackPressuredTimeMsPerSecond,
            busyTimeMsPerSecond, maxSoftBackPressureTimeMs, maxHardBackPressureTimeMs, isBackPressured), ``TimerGauge``.
            Soft: the task waits in its mailbox for room, where mails reach it.  Hard: it waits inside a write, where nothing does.
Absent:     the time spent on changelogs.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from flowlet.mailbox.timer_gauge import UPDATE_INTERVAL_S, TimerGauge

_UPDATE_INTERVAL_NS = UPDATE_INTERVAL_S * 1_000_000_000
_MS_PER_S = 1_000
# More intervals than any window has: after so many without a look, nothing of before counts.
_MAX_UPDATES = 12


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
    hard_back_pressured_ns: int = 0

    @property
    def back_pressured_ns(self) -> int:
        """Soft and hard."""
        return self.soft_back_pressured_ns + self.hard_back_pressured_ns

    @property
    def busy_ns(self) -> int:
        """The rest."""
        return max(0, self.running_ns - self.idle_ns - self.back_pressured_ns)


@dataclass(frozen=True, slots=True)
class TaskRates:
    """Milliseconds of each second of the last minute; the maxima in milliseconds, of single waits in the last 5 seconds.

    Busy is what the others leave, or 0 while the task does not run.
    """

    idle_ms_per_second: int
    busy_ms_per_second: int
    soft_back_pressured_ms_per_second: int
    hard_back_pressured_ms_per_second: int
    max_soft_back_pressure_ms: int
    max_hard_back_pressure_ms: int
    is_back_pressured: bool  # at this moment

    @property
    def back_pressured_ms_per_second(self) -> int:
        """Soft and hard."""
        return min(_MS_PER_S, self.soft_back_pressured_ms_per_second + self.hard_back_pressured_ms_per_second)


class TaskTimings:
    """Stopwatches of one task.

    Threading: the task thread marks; ``snapshot`` and ``rates`` from any thread.  ``hard_back_pressure`` is marked by whoever waits for a
    buffer on the task's behalf (``ResultPartition.observe_blocking``).

    Attributes:
        now_ns: the clock.
    """

    __slots__ = ("_end_ns", "_idle", "_lock", "_soft_back_pressure", "_start_ns", "_updated_ns", "hard_back_pressure", "now_ns")

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.now_ns = clock_ns
        self._start_ns: int | None = None  # Written by the task thread, once.
        self._end_ns: int | None = None  # Written by the task thread, once.
        self._idle = TimerGauge(clock_ns)
        self._soft_back_pressure = TimerGauge(clock_ns)
        self.hard_back_pressure = TimerGauge(clock_ns)
        self._lock = threading.Lock()
        self._updated_ns = clock_ns()  # Guarded by _lock.

    def mark_start(self) -> None:
        """From now on the task runs."""
        now_ns = self._start_ns = self.now_ns()
        with self._lock:
            self._updated_ns = now_ns

    def mark_end(self) -> None:
        """The task has ended: the sums stay as they are."""
        self.end_wait()
        self.hard_back_pressure.mark_end()
        if self._end_ns is None:
            self._end_ns = self.now_ns()

    def start_wait(self, kind: WaitKind) -> None:
        """The task is about to park; a wait already going on ends here."""
        if kind is WaitKind.IDLE:
            self._soft_back_pressure.mark_end()
            self._idle.mark_start()
        else:
            self._idle.mark_end()
            self._soft_back_pressure.mark_start()

    def end_wait(self, now_ns: int | None = None) -> None:
        """The task works again, or did so at ``now_ns`` of the clock; does nothing when it was not waiting."""
        self._idle.mark_end(now_ns)
        self._soft_back_pressure.mark_end(now_ns)

    def snapshot(self) -> TimingsSnapshot:
        """The sums up to now, a wait in progress included; zeros before the start."""
        start_ns = self._start_ns
        if start_ns is None:
            return TimingsSnapshot(0, 0, 0)
        now_ns = self.now_ns() if self._end_ns is None else self._end_ns
        return TimingsSnapshot(
            now_ns - start_ns,
            self._idle.accumulated_ns(now_ns),
            self._soft_back_pressure.accumulated_ns(now_ns),
            self.hard_back_pressure.accumulated_ns(now_ns),
        )

    def rates(self) -> TaskRates:
        """How the last minute was spent; intervals that ended since the last look are closed now, so look more often than every 5 s."""
        for _ in range(self._take_due_updates()):
            for gauge in (self._idle, self._soft_back_pressure, self.hard_back_pressure):
                gauge.update()
        idle, soft, hard = self._idle.value, self._soft_back_pressure.value, self.hard_back_pressure.value
        is_running = self._start_ns is not None and self._end_ns is None
        return TaskRates(
            idle_ms_per_second=idle,
            busy_ms_per_second=max(0, _MS_PER_S - idle - soft - hard) if is_running else 0,
            soft_back_pressured_ms_per_second=soft,
            hard_back_pressured_ms_per_second=hard,
            max_soft_back_pressure_ms=self._soft_back_pressure.max_single_measurement_ms,
            max_hard_back_pressure_ms=self.hard_back_pressure.max_single_measurement_ms,
            is_back_pressured=self._soft_back_pressure.is_measuring or self.hard_back_pressure.is_measuring,
        )

    def _take_due_updates(self) -> int:
        now_ns = self.now_ns()
        with self._lock:
            num_due = max(0, now_ns - self._updated_ns) // _UPDATE_INTERVAL_NS
            self._updated_ns += num_due * _UPDATE_INTERVAL_NS
        return min(num_due, _MAX_UPDATES)
