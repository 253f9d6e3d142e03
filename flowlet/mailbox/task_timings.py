"""Measures how long one task was idle, back-pressured and busy.

Measures for how many milliseconds of each second something went on lately.

Lock order: ``TimerGauge._lock`` is a leaf.

Side:       task.
Invariants: 0 <= value <= 1000; the accumulated time never falls.  ``value`` counts a measurement in progress up to the
            last ``update``, the accumulated time up to now.  idle + soft back pressure + hard back pressure + busy =
            time since the start; sums never fall.
Units:      nanoseconds of a monotonic clock inside; names tell the unit of what is read, else milliseconds.
            nanoseconds of a monotonic clock; rates in milliseconds per second.
Source:     Flink ``TimerGauge`` (5 s between updates, a window of 60 s).  Flink ``TaskIOMetricGroup``
            (idleTimeMsPerSecond, softBackPressuredTimeMsPerSecond, hardBackPressuredTimeMsPerSecond,
            busyTimeMsPerSecond, maxSoftBackPressureTimeMs, maxHardBackPressureTimeMs, isBackPressured), ``TimerGauge``.
            Soft: the task waits for buffers in its mailbox, where it runs mails. Hard: it waits inside a write, where
            it cannot.
Absent:     the time spent on changelogs.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

from netstack.late import dataclass

UPDATE_INTERVAL_S: Final = 5  # Flink View.UPDATE_INTERVAL_SECONDS
DEFAULT_WINDOW_S: Final = 60
_MS_PER_S: Final = 1_000
_NS_PER_MS: Final = 1_000_000


class TimerGauge:
    """A stopwatch whose value is the measured share of the last ``window_s`` seconds (rounded down to update intervals,
    at least one).

    Threading: ``mark_start`` and ``mark_end`` on one thread; ``update``, once per ``UPDATE_INTERVAL_S``, and the rest
               on any.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns, *, window_s: int = DEFAULT_WINDOW_S) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        # Guarded by _lock; value, maximum and start are read without it: one update stale is fine.
        self._slots: deque[int] = deque(maxlen=max(1, window_s // UPDATE_INTERVAL_S))  # nanoseconds of each interval
        self._interval_ns = 0  # measured in the present interval
        self.ended_ns = 0  # all measurements that have ended; read on the thread that marks, too
        self._max_ns = 0  # the longest measurement that touched the present interval
        self._start_ns: int | None = None  # start of the measurement in progress
        self._counted_to_ns = 0  # how far that measurement is counted
        self.value = 0
        """Milliseconds per second, as of the last update."""
        self.max_single_measurement_ms = 0
        """The longest measurement that touched the last whole interval, from its beginning."""

    def __repr__(self) -> str:
        return f"<TimerGauge {self.value} ms/s, {'measuring' if self.is_measuring else 'at rest'}>"

    @property
    def is_measuring(self) -> bool:
        """Whether a measurement is in progress."""
        return self._start_ns is not None

    def accumulated_ns(self, now_ns: int | None = None) -> int:
        """All measurements so far, up to ``now_ns``."""
        with self._lock:
            if self._start_ns is None:
                return self.ended_ns
            now_ns = self._clock_ns() if now_ns is None else now_ns
            return self.ended_ns + max(0, now_ns - self._counted_to_ns)

    def mark_start(self) -> None:
        """Start a measurement; does nothing while one is in progress."""
        with self._lock:
            if self._start_ns is None:
                self._start_ns = self._counted_to_ns = self._clock_ns()

    def mark_end(self, now_ns: int | None = None) -> None:
        """End the measurement now, or as of ``now_ns``; does nothing if none is in progress."""
        if self._start_ns is None:
            return  # without the lock: only the calling thread changes it
        with self._lock:
            if self._start_ns is None:
                return
            self._count_locked(self._start_ns, now_ns)
            self._start_ns = None

    def update(self) -> None:
        """End the present interval: compute the value of the window that ends now."""
        with self._lock:
            if self._start_ns is not None:
                self._count_locked(self._start_ns)
            self._slots.append(self._interval_ns)
            window_s = UPDATE_INTERVAL_S * len(self._slots)
            self.value = min(_MS_PER_S, sum(self._slots) // _NS_PER_MS // window_s)
            self.max_single_measurement_ms = self._max_ns // _NS_PER_MS
            self._interval_ns = self._max_ns = 0

    def _count_locked(self, start_ns: int, now_ns: int | None = None) -> None:
        now_ns = self._clock_ns() if now_ns is None else now_ns
        elapsed_ns = max(0, now_ns - self._counted_to_ns)
        self._interval_ns += elapsed_ns
        self.ended_ns += elapsed_ns
        self._max_ns = max(self._max_ns, now_ns - start_ns)
        self._counted_to_ns = max(self._counted_to_ns, now_ns)


_UPDATE_INTERVAL_NS = UPDATE_INTERVAL_S * 1_000_000_000
# More intervals than any window holds: earlier ones no longer count.
_MAX_UPDATES = 12


class WaitKind(Enum):
    """Why a task is parked: it lacks input, or buffers for its output, or its own work goes on elsewhere, such as
    asynchronous calls.
    """

    IDLE = auto()
    BACK_PRESSURED = auto()
    BUSY = auto()  # as if it worked: it is this task that holds others up


@dataclass(frozen=True, slots=True)
class TimingsSnapshot:
    """Sums since the task started; ``running_ns`` includes all others."""

    running_ns: int
    idle_ns: int
    soft_back_pressured_ns: int
    hard_back_pressured_ns: int = 0

    @property
    def back_pressured_ns(self) -> int:
        """Soft and hard back pressure together."""
        return self.soft_back_pressured_ns + self.hard_back_pressured_ns

    @property
    def busy_ns(self) -> int:
        """The time that the task neither waited nor was back-pressured."""
        return max(0, self.running_ns - self.idle_ns - self.back_pressured_ns)


# After a call of so long, which may have kept the interpreter's lock, the task waits for the loop to do what is due:
# several heartbeats fit into the time after which a TaskManager counts as lost (50 s), and an alarm per buffer timeout
# is no reason to wait.  Not measured.
LONG_NS: Final = 1_000_000_000


class TaskTimings:
    """The stopwatches of one task; ``now_ns`` is their clock.

    Threading: the task thread marks; any thread calls ``snapshot`` and ``rates``.  ``hard_back_pressure`` is marked by
               the thread that
    waits for a buffer on the task's behalf (``ResultPartition.observe_blocking``).
    """

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
        """The task starts to run."""
        now_ns = self._start_ns = self.now_ns()
        with self._lock:
            self._updated_ns = now_ns

    def mark_end(self) -> None:
        """The task has ended: the sums no longer change."""
        self.end_wait()
        self.hard_back_pressure.mark_end()
        if self._end_ns is None:
            self._end_ns = self.now_ns()

    def start_wait(self, kind: WaitKind) -> None:
        """The task is about to park; ends a wait in progress."""
        if kind is WaitKind.IDLE:
            self._soft_back_pressure.mark_end()
            self._idle.mark_start()
        elif kind is WaitKind.BACK_PRESSURED:
            self._idle.mark_end()
            self._soft_back_pressure.mark_start()
        else:
            self.end_wait()

    def end_wait(self, now_ns: int | None = None) -> None:
        """The task works again, or has since ``now_ns``; does nothing if it did not wait."""
        self._idle.mark_end(now_ns)
        self._soft_back_pressure.mark_end(now_ns)

    def working_ns(self) -> int:
        """The clock without the time in which the task waited for buffers inside writes; task thread."""
        now_ns = self.now_ns()
        return now_ns - self.hard_back_pressure.accumulated_ns(now_ns)

    def cpu_ns(self) -> int:
        """The CPU time of the calling thread; with a clock of a test its ``working_ns``."""
        return time.thread_time_ns() if self.now_ns is time.monotonic_ns else self.working_ns()

    def snapshot(self) -> TimingsSnapshot:
        """The sums up to now, including a wait in progress; zeros before the start."""
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

    def rates(self) -> dict[str, Any]:
        """The rates of the last minute, as fields of ``TaskMetrics``: milliseconds per second; the maxima are the
        longest waits of the last 5 seconds, in milliseconds.  Busy is the rest of the second; 0 while the task does not
        run.

        Closes the 5 s intervals that have ended since the last call, so call it more often than that.
        """
        now_ns = self.now_ns()
        with self._lock:
            num_due = max(0, now_ns - self._updated_ns) // _UPDATE_INTERVAL_NS
            self._updated_ns += num_due * _UPDATE_INTERVAL_NS
        for _ in range(min(num_due, _MAX_UPDATES)):
            for gauge in (self._idle, self._soft_back_pressure, self.hard_back_pressure):
                gauge.update()
        idle, soft, hard = self._idle.value, self._soft_back_pressure.value, self.hard_back_pressure.value
        is_running = self._start_ns is not None and self._end_ns is None
        return {
            "idle_ms_per_second": idle,
            "busy_ms_per_second": max(0, _MS_PER_S - idle - soft - hard) if is_running else 0,
            "soft_back_pressured_ms_per_second": soft,
            "hard_back_pressured_ms_per_second": hard,
            "max_soft_back_pressure_ms": self._soft_back_pressure.max_single_measurement_ms,
            "max_hard_back_pressure_ms": self.hard_back_pressure.max_single_measurement_ms,
            "is_back_pressured": self._soft_back_pressure.is_measuring or self.hard_back_pressure.is_measuring,
        }
