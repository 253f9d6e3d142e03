"""How long records take from a source to an operator.

Side:       shared.  The task thread writes, metrics are read anywhere.
Invariants: a marker is reported once at each operator that it passes; sinks do not forward it; a histogram holds its
            last values only.
Units:      milliseconds, by the clocks of the two machines, which must agree: a negative latency is reported as it is.
Source:     Flink ``LatencyStats``, ``DescriptiveStatisticsHistogram``.
"""

import math
import threading
from collections import deque
from typing import Final

from flowlet.messages.control_messages import LatencyMetrics
from flowlet.records import LatencyMarker

# Flink's metrics.latency.history-size.
DEFAULT_HISTORY_SIZE: Final = 128


class Histogram:
    """The last values of a series.

    Threading: ``update`` on one thread, ``metrics`` anywhere.

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

    def metrics(self, name: str) -> LatencyMetrics:
        """The number of all values, and how those in the window are distributed; all 0 when there are none."""
        with self._lock:
            values = sorted(self._values)
        if not values:
            return LatencyMetrics(name, self.count, *(0.0,) * 10)
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1) if len(values) > 1 else 0.0
        quantiles = (_quantile(values, part) for part in (0.5, 0.75, 0.95, 0.98, 0.99, 0.999))
        return LatencyMetrics(name, self.count, values[0], values[-1], mean, math.sqrt(variance), *quantiles)


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

    def metrics(self) -> list[LatencyMetrics]:
        """Of each histogram; a name is that of the metric, below the scope of the job."""
        # A copy first, in one step: the task thread may add one meanwhile.
        by_source = list(self._histograms.items())
        return [each.metrics(f"source_id.{source.hex()}.{self._suffix}") for source, each in by_source]
