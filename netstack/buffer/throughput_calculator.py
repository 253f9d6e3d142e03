"""How much a gate reads per second while there is something to read.

Side:   pure.  One gate's numbers, on its task thread.
Units:  throughput in bytes per second, times in milliseconds.
Source: Flink ``ThroughputCalculator`` (FLIP-183).
"""

from typing import Final

MS_PER_S: Final = 1000


class ThroughputCalculator:
    """Bytes per second of the time in which there was something to do.

    Threading: one thread.  The caller passes the time, which it has at hand anyway.
    """

    __slots__ = ("_measured_ms", "_num_bytes", "_since_ms", "_throughput")

    def __init__(self) -> None:
        self._num_bytes = 0
        self._measured_ms = 0
        self._since_ms: int | None = None  # None while the measurement is paused
        self._throughput = 0

    def add_bytes(self, num_bytes: int, now_ms: int) -> None:
        """Count what came in; resumes a paused measurement."""
        if self._since_ms is None:
            self._since_ms = now_ms
        self._num_bytes += num_bytes

    def pause(self, now_ms: int) -> None:
        """From now on there is nothing to do, so the time does not count; the second call does nothing."""
        if self._since_ms is not None:
            self._measured_ms += now_ms - self._since_ms
        self._since_ms = None

    def resume(self, now_ms: int) -> None:
        """From now on the time counts; the second call does nothing."""
        if self._since_ms is None:
            self._since_ms = now_ms

    def calculate(self, now_ms: int) -> int:
        """The throughput since the last call; what that said if no time was measured."""
        if self._since_ms is not None:
            self._measured_ms += now_ms - self._since_ms
            self._since_ms = now_ms
        if self._measured_ms > 0:
            self._throughput = int(self._num_bytes / self._measured_ms * MS_PER_S)
        self._num_bytes = self._measured_ms = 0
        return self._throughput
