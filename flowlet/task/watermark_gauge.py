"""The last watermark that passed a place.

Side:   shared.
Units:  milliseconds since the epoch.
Source: Flink ``WatermarkGauge``; the metrics ``currentInputWatermark``, ``currentInput1Watermark``, ``currentOutputWatermark``.
"""

from flowlet.records import MIN_TIMESTAMP


class WatermarkGauge:
    """A number that the task thread sets and anybody reads.

    Threading: ``set`` on the task thread, the value anywhere, one watermark stale.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = MIN_TIMESTAMP  # Written by the task thread.

    def __repr__(self) -> str:
        return f"<WatermarkGauge at {self.value}>"

    def set(self, timestamp: int) -> None:
        """A watermark passed."""
        self.value = timestamp


class MinWatermarkGauge:
    """The smallest of several gauges: the input watermark of an operator with several inputs."""

    __slots__ = ("_gauges",)

    def __init__(self, *gauges: WatermarkGauge) -> None:
        assert gauges, "a minimum of nothing"
        self._gauges = gauges

    @property
    def value(self) -> int:
        """The smallest value; any thread."""
        return min(gauge.value for gauge in self._gauges)
