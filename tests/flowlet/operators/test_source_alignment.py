"""Promises of ``SourceAlignment``.

Source: Flink ``SourceOperatorAlignmentTest``, ``SourceOperatorSplitWatermarkAlignmentTest``, ``WatermarkSamplerTest``.
"""

import pytest

from flowlet.operators.event_time_stream import WatermarkEmitter
from flowlet.operators.source_event_time import NUM_SAMPLES, SourceAlignment
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP
from tests.flowlet.operators.harness import RecordingOutput


class Aligned(SourceAlignment):
    """The alignment of a source whose watermarks a test emits."""

    def __init__(self, num_samples: int = NUM_SAMPLES) -> None:
        self.emitter = WatermarkEmitter(RecordingOutput())
        super().__init__(self.emitter, num_samples)


def sampled(alignment: Aligned, watermark: int) -> int:
    alignment.emitter.emit_watermark(watermark)
    return alignment.sample()


def test_a_source_waits_while_it_is_ahead_of_what_is_allowed() -> None:
    alignment = Aligned(num_samples=1)
    assert not alignment.must_wait

    assert sampled(alignment, 42) == 42
    alignment.allow(41)
    assert alignment.must_wait
    alignment.allow(42)
    assert not alignment.must_wait


def test_a_source_that_runs_past_the_limit_waits_from_the_next_sample_on() -> None:
    alignment = Aligned(num_samples=1)
    alignment.allow(50)

    alignment.emitter.emit_watermark(60)
    assert not alignment.must_wait
    alignment.sample()
    assert alignment.must_wait


def test_the_oldest_sample_counts() -> None:
    alignment = Aligned(num_samples=3)
    alignment.allow(50)

    for watermark in (60, 61):
        sampled(alignment, watermark)
        assert not alignment.must_wait
    sampled(alignment, 62)

    assert alignment.must_wait


def test_a_source_without_a_watermark_holds_the_others_back() -> None:
    """Such a source may still have early records."""
    assert Aligned().sample() == MIN_TIMESTAMP


def test_an_idle_or_finished_source_holds_nobody_back() -> None:
    """A watermark makes a source active."""
    alignment = Aligned()
    sampled(alignment, 42)

    alignment.emitter.mark_idle()
    assert alignment.sample() == MAX_TIMESTAMP
    alignment.emitter.mark_active()
    assert alignment.sample() == 42
    alignment.emitter.mark_idle()
    assert sampled(alignment, 43) == 43
    alignment.is_finished = True
    assert alignment.sample() == MAX_TIMESTAMP


def test_the_drift_says_how_far_a_source_is_ahead() -> None:
    """It always fits into a report: the difference between no watermark and no limit takes 65 bits."""
    alignment = Aligned()
    assert alignment.drift_ms == MIN_TIMESTAMP
    alignment.emitter.emit_watermark(42)
    alignment.emitter.emit_watermark(41)

    alignment.allow(40)

    assert alignment.drift_ms == 2


def allowed(max_allowed: int) -> Aligned:
    alignment = Aligned()
    alignment.allow(max_allowed)
    return alignment


def test_splits_that_are_ahead_are_paused_and_resumed() -> None:
    alignment = allowed(100)

    assert alignment.split_orders({"a": 100, "b": 0}) == (set(), set())
    ahead = alignment.split_orders({"a": 101, "b": 0})
    assert ahead == ({"a"}, set())
    assert alignment.split_orders({"a": 150, "b": 0}) == (set(), set())
    alignment.allow(150)
    behind = alignment.split_orders({"a": 150, "b": 0})
    assert behind == (set(), {"a"})
    assert alignment.split_orders({"a": 150, "b": 0}) == (set(), set())


def test_a_single_split_is_the_source_itself() -> None:
    """The source waits as a whole, and its split is not paused too."""
    assert allowed(100).split_orders({"a": 500}) == (set(), set())


def test_when_only_one_split_is_left_it_is_resumed() -> None:
    alignment = allowed(100)
    assert alignment.split_orders({"a": 500, "b": 10})[0] == {"a"}

    assert alignment.split_orders({"a": 500})[1] == {"a"}


def test_a_finished_split_is_forgotten() -> None:
    alignment = allowed(100)
    assert alignment.split_orders({"a": 500, "b": 500, "c": 500})[0] == {"a", "b", "c"}
    alignment.allow(500)

    assert alignment.split_orders({"b": 500, "c": 500})[1] == {"b", "c"}


def test_an_alignment_has_a_sample() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Aligned(num_samples=0)


def test_an_alignment_prints_whether_it_waits() -> None:
    alignment = Aligned(num_samples=1)
    assert repr(alignment).startswith("<SourceAlignment runs")
    sampled(alignment, 5)
    alignment.allow(4)
    assert repr(alignment) == "<SourceAlignment waits at 5 of 4, 0 splits paused>"
