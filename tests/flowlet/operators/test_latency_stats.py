"""Promises of latency markers' statistics.

Source: Flink ``LatencyStatsTest``, ``DescriptiveStatisticsHistogramTest``, ``SourceOperatorLatencyMetricsTest``.
"""

import pytest

from flowlet.operators.latency_stats import (
    Histogram,
    HistogramStatistics,
    LatencyMarkerEmitter,
    LatencyStats,
)
from flowlet.records import LatencyMarker
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService

OPERATOR = bytes(15) + b"\x01"
SOURCES = (bytes(15) + b"\x0a", bytes(15) + b"\x0b")


def test_one_histogram_per_source() -> None:
    stats = LatencyStats(OPERATOR, 64)

    for source, subtask in ((0, 0), (0, 0), (0, 1), (1, 2), (1, 3)):
        stats.report(LatencyMarker(10, SOURCES[source], subtask), 17)

    suffix = f"operator_id.{OPERATOR.hex()}.operator_subtask_index.64.latency"
    assert {name: histogram.count for name, histogram in stats.histograms().items()} == {
        f"source_id.{SOURCES[0].hex()}.{suffix}": 3,
        f"source_id.{SOURCES[1].hex()}.{suffix}": 2,
    }


def test_a_latency_is_the_time_since_the_mark() -> None:
    """Also a negative one, of clocks that disagree."""
    stats = LatencyStats(OPERATOR, 0)

    stats.report(LatencyMarker(100, SOURCES[0], 0), 107)
    stats.report(LatencyMarker(100, SOURCES[0], 0), 97)

    (histogram,) = stats.histograms().values()
    found = histogram.statistics()
    assert (found.min, found.max, found.mean) == (-3, 7, 2)


def test_an_empty_histogram_is_all_zeros() -> None:
    assert Histogram().statistics() == HistogramStatistics(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def test_a_histogram_knows_its_distribution() -> None:
    histogram = Histogram(10)
    for value in range(10, 0, -1):
        histogram.update(value)

    found = histogram.statistics()

    assert (found.count, found.min, found.max, found.mean) == (10, 1, 10, 5.5)
    assert found.stddev == pytest.approx(3.0276503540974917)
    assert found.p50 == 5.5
    assert found.p75 == 8.25
    assert found.p95 == found.p999 == 10


def test_one_value_is_every_quantile() -> None:
    histogram = Histogram()
    histogram.update(4)

    assert histogram.statistics() == HistogramStatistics(1, 4, 4, 4, 0, 4, 4, 4, 4, 4, 4)


def test_a_histogram_forgets_what_left_its_window() -> None:
    histogram = Histogram(3)
    for value in (100, 1, 2, 3):
        histogram.update(value)

    assert histogram.statistics().max == 3
    assert histogram.count == 4
    histogram.update(7)
    assert histogram.statistics().min == 2


def test_a_histogram_has_room() -> None:
    with pytest.raises(ValueError, match="needs room"):
        Histogram(0)


def test_a_source_marks_at_once_and_then_periodically() -> None:
    """Until it is closed; the mark is the time at which it was sent."""
    clock = TestProcessingTimeService(1000)
    sent: list[LatencyMarker] = []
    emitter = LatencyMarkerEmitter(clock, sent.append, interval_ms=50, operator_id=OPERATOR, subtask=3)
    assert sent == []

    clock.advance(0)
    assert sent == [LatencyMarker(1000, OPERATOR, 3)]
    clock.advance(49)
    clock.advance(2)
    assert sent[1:] == [LatencyMarker(1051, OPERATOR, 3)]
    emitter.close()
    clock.advance(1000)

    assert len(sent) == 2
