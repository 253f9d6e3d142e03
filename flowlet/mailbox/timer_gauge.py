"""Measures for how many milliseconds of each second something went on lately.

Side:       shared.  One thread marks, at most a few times per wait; any thread updates and reads.
Invariants: 0 <= value <= 1000; the accumulated time never falls.  ``value`` counts a measurement in progress up to the
            last ``update``, the accumulated time up to now.
Units:      nanoseconds of a monotonic clock inside; names tell the unit of what is read, else milliseconds.
Lock order: ``TimerGauge._lock`` is a leaf: listeners are called after it is released.
Source:     Flink ``TimerGauge`` (5 s between updates, a window of 60 s).
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

UPDATE_INTERVAL_S: Final = 5  # Flink View.UPDATE_INTERVAL_SECONDS
DEFAULT_WINDOW_S: Final = 60
_MS_PER_S: Final = 1_000
_NS_PER_MS: Final = 1_000_000


class StartStopListener(Protocol):
    """Is told when a measurement begins and ends, on the thread that marks."""

    def mark_start(self) -> None:
        """A measurement begins."""

    def mark_end(self) -> None:
        """A measurement ends."""


class TimerGauge:
    """A stopwatch whose value is the measured share of the last ``window_s`` seconds (rounded down to update intervals,
    at least one).

    Threading: ``mark_start`` and ``mark_end`` on one thread; ``update``, once per ``UPDATE_INTERVAL_S``, and the rest
               on any.
    """

    __slots__ = (
        "_accumulated_ns",
        "_clock_ns",
        "_counted_to_ns",
        "_interval_ns",
        "_listeners",
        "_lock",
        "_max_ms",
        "_max_ns",
        "_slots",
        "_start_ns",
        "_value",
    )

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns, *, window_s: int = DEFAULT_WINDOW_S) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        # Guarded by _lock; value, maximum and start are read without it: one update stale is fine.
        self._slots: deque[int] = deque(maxlen=max(1, window_s // UPDATE_INTERVAL_S))  # nanoseconds of each interval
        self._interval_ns = 0  # measured in the present interval
        self._accumulated_ns = 0
        self._max_ns = 0  # the longest measurement that touched the present interval
        self._start_ns: int | None = None  # start of the measurement in progress
        self._counted_to_ns = 0  # how far that measurement is counted
        self._value = 0
        self._max_ms = 0
        self._listeners: tuple[StartStopListener, ...] = ()

    def __repr__(self) -> str:
        return f"<TimerGauge {self._value} ms/s, {'measuring' if self.is_measuring else 'at rest'}>"

    @property
    def value(self) -> int:
        """Milliseconds per second, as of the last update."""
        return self._value

    @property
    def max_single_measurement_ms(self) -> int:
        """The longest measurement that touched the last whole interval, from its beginning."""
        return self._max_ms

    @property
    def is_measuring(self) -> bool:
        """Whether a measurement is in progress."""
        return self._start_ns is not None

    @property
    def accumulated_ms(self) -> int:
        """All measurements so far, up to now."""
        return self.accumulated_ns() // _NS_PER_MS

    def accumulated_ns(self, now_ns: int | None = None) -> int:
        """All measurements so far, up to ``now_ns``."""
        with self._lock:
            if self._start_ns is None:
                return self._accumulated_ns
            now_ns = self._clock_ns() if now_ns is None else now_ns
            return self._accumulated_ns + max(0, now_ns - self._counted_to_ns)

    @property
    def ended_ns(self) -> int:
        """All measurements that have ended; on the thread that marks, cheap."""
        return self._accumulated_ns

    def mark_start(self) -> None:
        """Start a measurement; does nothing while one is in progress."""
        with self._lock:
            if self._start_ns is not None:
                return
            self._start_ns = self._counted_to_ns = self._clock_ns()
            listeners = self._listeners
        for listener in listeners:
            listener.mark_start()

    def mark_end(self, now_ns: int | None = None) -> None:
        """End the measurement now, or as of ``now_ns``; does nothing if none is in progress."""
        if self._start_ns is None:
            return  # without the lock: only the calling thread changes it
        with self._lock:
            if self._start_ns is None:
                return
            self._count_locked(self._start_ns, now_ns)
            self._start_ns = None
            listeners = self._listeners
        for listener in listeners:
            listener.mark_end()

    def update(self) -> None:
        """End the present interval: compute the value of the window that ends now."""
        with self._lock:
            if self._start_ns is not None:
                self._count_locked(self._start_ns)
            self._slots.append(self._interval_ns)
            window_s = UPDATE_INTERVAL_S * len(self._slots)
            self._value = min(_MS_PER_S, sum(self._slots) // _NS_PER_MS // window_s)
            self._max_ms = self._max_ns // _NS_PER_MS
            self._interval_ns = self._max_ns = 0

    def add_listener(self, listener: StartStopListener) -> None:
        """Add a listener; it is told at once of a measurement in progress.  On the thread that marks."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
        if self.is_measuring:
            listener.mark_start()

    def remove_listener(self, listener: StartStopListener) -> None:
        """Remove a listener; it is told of the end of a measurement in progress.  On the thread that marks."""
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each is not listener)
        if self.is_measuring:
            listener.mark_end()

    def _count_locked(self, start_ns: int, now_ns: int | None = None) -> None:
        now_ns = self._clock_ns() if now_ns is None else now_ns
        elapsed_ns = max(0, now_ns - self._counted_to_ns)
        self._interval_ns += elapsed_ns
        self._accumulated_ns += elapsed_ns
        self._max_ns = max(self._max_ns, now_ns - start_ns)
        self._counted_to_ns = max(self._counted_to_ns, now_ns)
