"""Promises of latency markers' statistics.

Source: Flink ``LatencyStatsTest``, ``DescriptiveStatisticsHistogramTest``, ``SourceOperatorLatencyMetricsTest``.
"""

import pytest

from flowlet.chain.stream_operator import OperatorContext
from flowlet.messages.control_messages import LatencyMetrics
from flowlet.operators.source_operator import CollectionSource, SourceOperator
from flowlet.records import LatencyMarker
from flowlet.task.operator_services import Histogram, LatencyStats
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService
from tests.flowlet.operators.harness import RecordingOutput, set_up

OPERATOR = bytes(15) + b"\x01"
SOURCES = (bytes(15) + b"\x0a", bytes(15) + b"\x0b")


def test_one_histogram_per_source() -> None:
    stats = LatencyStats(OPERATOR, 64)

    for source, subtask in ((0, 0), (0, 0), (0, 1), (1, 2), (1, 3)):
        stats.report(LatencyMarker(10, SOURCES[source], subtask), 17)

    suffix = f"operator_id.{OPERATOR.hex()}.operator_subtask_index.64.latency"
    assert {each.name: each.count for each in stats.metrics()} == {
        f"source_id.{SOURCES[0].hex()}.{suffix}": 3,
        f"source_id.{SOURCES[1].hex()}.{suffix}": 2,
    }


def test_a_latency_is_the_time_since_the_mark() -> None:
    """A latency may be negative if clocks disagree."""
    stats = LatencyStats(OPERATOR, 0)

    stats.report(LatencyMarker(100, SOURCES[0], 0), 107)
    stats.report(LatencyMarker(100, SOURCES[0], 0), 97)

    (found,) = stats.metrics()
    assert (found.min, found.max, found.mean) == (-3, 7, 2)


def test_a_histogram_knows_its_distribution() -> None:
    histogram = Histogram(10)
    for value in range(10, 0, -1):
        histogram.update(value)

    found = histogram.metrics("latency")

    assert (found.count, found.min, found.max, found.mean) == (10, 1, 10, 5.5)
    assert found.stddev == pytest.approx(3.0276503540974917)
    assert found.p50 == 5.5
    assert found.p75 == 8.25
    assert found.p95 == found.p999 == 10


def test_no_value_is_all_zeros_and_one_value_is_every_quantile() -> None:
    histogram = Histogram()
    assert histogram.metrics("latency") == LatencyMetrics("latency", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

    histogram.update(4)

    assert histogram.metrics("latency") == LatencyMetrics("latency", 1, 4, 4, 4, 0, 4, 4, 4, 4, 4, 4)


def test_a_histogram_forgets_what_left_its_window() -> None:
    histogram = Histogram(3)
    for value in (100, 1, 2, 3):
        histogram.update(value)

    found = histogram.metrics("latency")
    assert (found.count, found.max) == (4, 3)
    histogram.update(7)
    assert histogram.metrics("latency").min == 2


def test_a_histogram_has_room() -> None:
    with pytest.raises(ValueError, match="needs room"):
        Histogram(0)


def test_a_source_marks_at_once_and_then_periodically() -> None:
    """The marks end with the source; a mark is the time at which it was sent."""
    clock = TestProcessingTimeService(1000)
    output = RecordingOutput()
    operator = SourceOperator(CollectionSource([]))
    operator.latency_tracking_interval_ms = 50
    set_up(operator, OperatorContext("task", 3, 4, 128, "Source", operator_id=OPERATOR, clock=clock), output)
    operator.open()
    assert output.elements == []

    clock.advance(0)
    assert output.elements == [LatencyMarker(1000, OPERATOR, 3)]
    clock.advance(49)
    clock.advance(2)
    assert output.elements[1:] == [LatencyMarker(1051, OPERATOR, 3)]
    operator.close()
    clock.advance(1000)

    assert len(output.elements) == 2
