"""Promises of watermark gauges.

Source: Flink ``WatermarkGauge``, ``MinWatermarkGauge``; the metric ``currentInputWatermark`` before any watermark.
"""

from flowlet.records import MIN_TIMESTAMP
from flowlet.task.watermark_gauge import MinWatermarkGauge, WatermarkGauge


def test_a_gauge_shows_the_last_watermark() -> None:
    gauge = WatermarkGauge()

    assert gauge.value == MIN_TIMESTAMP
    gauge.set(7)
    assert gauge.value == 7
    assert repr(gauge) == "<WatermarkGauge at 7>"


def test_the_gauge_of_several_inputs_shows_the_smallest() -> None:
    first, second = WatermarkGauge(), WatermarkGauge()
    both = MinWatermarkGauge(first, second)

    first.set(7)
    assert both.value == MIN_TIMESTAMP
    second.set(5)
    assert both.value == 5
