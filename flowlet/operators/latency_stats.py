"""How long records take from a source to an operator.

Side:       shared.  The task thread writes, metrics are read anywhere.
Invariants: a marker is reported once at each operator that it passes; sinks do not forward it; a histogram holds its
            last values only.
Units:      milliseconds, by the clocks of the two machines, which must agree: a negative latency is reported as it is.
Source:     Flink ``LatencyStats``, ``DescriptiveStatisticsHistogram``, ``StreamSource.LatencyMarkerEmitter``.
"""

import math
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from flowlet.records import LatencyMarker
from flowlet.timers.time_api import ProcessingTimeService, TimerHandle
from netstack.late import dataclass

# Flink's metrics.latency.history-size.
DEFAULT_HISTORY_SIZE: Final = 128


@dataclass(frozen=True, slots=True)
class HistogramStatistics:
    """What a histogram's values look like; all 0 when there are none."""

    count: int  # of the values looked at
    min: float
    max: float
    mean: float
    stddev: float
    p50: float
    p75: float
    p95: float
    p98: float
    p99: float
    p999: float


class Histogram:
    """The last values of a series.

    Threading: ``update`` on one thread, ``statistics`` anywhere.

    Args:
        window: how many values are kept.
    """

    __slots__ = ("_lock", "_values", "count")

    def __init__(self, window: int = DEFAULT_HISTORY_SIZE) -> None:
        if window < 1:
            raise ValueError(f"a histogram needs room for a value, got {window}")
        self._lock = threading.Lock()
        self._values: deque[int] = deque(maxlen=window)  # Guarded by _lock.
        self.count = 0  # All updates; written by one thread, read anywhere.

    def __repr__(self) -> str:
        return f"<Histogram of the last {len(self._values)} of {self.count} values>"

    def update(self, value: int) -> None:
        """Add a value."""
        with self._lock:
            self._values.append(value)
            self.count += 1

    def statistics(self) -> HistogramStatistics:
        """Of the values in the window."""
        with self._lock:
            values = sorted(self._values)
        if not values:
            return HistogramStatistics(0, *(0.0,) * 10)
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1) if len(values) > 1 else 0.0
        quantiles = (_quantile(values, part) for part in (0.5, 0.75, 0.95, 0.98, 0.99, 0.999))
        return HistogramStatistics(len(values), values[0], values[-1], mean, math.sqrt(variance), *quantiles)


def _quantile(ordered: list[int], part: float) -> float:
    """Between the two values around position ``part * (n + 1)``, as the library does that Flink uses."""
    position = part * (len(ordered) + 1)
    if position < 1:
        return ordered[0]
    if position >= len(ordered):
        return ordered[-1]
    below = math.floor(position)
    return ordered[below - 1] + (position - below) * (ordered[below] - ordered[below - 1])


class LatencyStats:
    """The histograms of one operator's subtask, one for each source.

    Threading: ``report`` on the task thread; the rest anywhere.

    Args:
        operator_id: of the operator that reports.
        subtask: of the operator that reports.
    """

    def __init__(self, operator_id: bytes, subtask: int) -> None:
        self._suffix = f"operator_id.{operator_id.hex()}.operator_subtask_index.{subtask}.latency"
        self._histograms: dict[bytes, Histogram] = {}  # Written by the task thread.

    def __repr__(self) -> str:
        return f"<LatencyStats {self._suffix}, {len(self._histograms)} histograms>"

    def report(self, marker: LatencyMarker, now_ms: int) -> None:
        """A marker arrived."""
        if marker.operator_id not in self._histograms:
            self._histograms[marker.operator_id] = Histogram()
        self._histograms[marker.operator_id].update(now_ms - marker.marked_time_ms)

    def histograms(self) -> dict[str, Histogram]:
        """By the name of the metric, below the scope of the job."""
        # A copy first, in one step: the task thread may add one meanwhile.
        return {f"source_id.{source.hex()}.{self._suffix}": each for source, each in list(self._histograms.items())}


class LatencyMarkerEmitter:
    """Has a source send markers, the first one at once.

    Threading: task thread.

    Args:
        clock: of the source.
        emit: the source's output.
        interval_ms: > 0; Flink's metrics.latency.interval, off by default.
        operator_id: of the source.
        subtask: of the source.
    """

    def __init__(
        self,
        clock: ProcessingTimeService,
        emit: Callable[[LatencyMarker], None],
        *,
        interval_ms: int,
        operator_id: bytes,
        subtask: int,
    ) -> None:
        self._clock = clock
        self._emit = emit
        self._operator_id = operator_id
        self._subtask = subtask
        self._timer: TimerHandle = clock.schedule_with_fixed_delay(
            self._send, initial_delay_ms=0, period_ms=interval_ms
        )

    def __repr__(self) -> str:
        return f"<LatencyMarkerEmitter of subtask {self._subtask}>"

    def _send(self, timestamp_ms: int) -> None:
        self._emit(LatencyMarker(self._clock.current_time_ms(), self._operator_id, self._subtask))

    def close(self) -> None:
        """Send no more."""
        self._timer.cancel()
