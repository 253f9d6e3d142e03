"""Promises of ``WatermarkStrategy``.

Source: Flink ``WatermarkStrategyTest``, PyFlink ``test_watermark_strategy``.
"""

import pickle
from typing import Any

import pytest

from flowlet.common import Duration, WatermarkStrategy
from flowlet.common.watermark_generator import NoWatermarks, WatermarksWithIdleness
from flowlet.common.watermark_strategy import TimestampAssigner, WatermarkAlignment
from flowlet.errors import JobGraphError

SECOND = Duration.of_seconds(1)


class First(TimestampAssigner):
    """Records are tuples that begin with their time."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[0])


def never_asked() -> int:
    raise AssertionError("the clock was read")


def test_whether_a_strategy_reads_timestamps() -> None:
    assert not WatermarkStrategy.no_watermarks().reads_timestamps
    assert WatermarkStrategy.for_monotonous_timestamps().reads_timestamps
    assert WatermarkStrategy.for_bounded_out_of_orderness(SECOND).reads_timestamps


def test_strategies_print_as_they_are_written() -> None:
    assert repr(WatermarkStrategy.no_watermarks()) == "WatermarkStrategy.no_watermarks()"
    assert repr(WatermarkStrategy.for_monotonous_timestamps()) == "WatermarkStrategy.for_monotonous_timestamps()"
    full = (
        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_nanos(7))
        .with_timestamp_assigner(First())
        .with_idleness(Duration.of_nanos(8))
        .with_watermark_alignment("g", SECOND)
        .with_max_future_skew(Duration.of_nanos(9))
    )
    assert repr(full) == (
        "WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_nanos(7)).with_timestamp_assigner(First)"
        ".with_idleness(Duration.of_nanos(8)).with_watermark_alignment('g', 1000 "
        "ms).with_max_future_skew(Duration.of_nanos(9))"
    )


def test_each_strategy_makes_its_generator() -> None:
    """Bounds are whole milliseconds."""

    def made(strategy: WatermarkStrategy) -> str:
        return repr(strategy.create_generator(never_asked))

    assert isinstance(WatermarkStrategy.no_watermarks().create_generator(never_asked), NoWatermarks)
    for nanos, milliseconds in ((10**9, 1000), (1_999_999, 1)):
        bounded = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_nanos(nanos))
        assert made(bounded).startswith(f"<BoundedOutOfOrdernessWatermarks by {milliseconds} ms")
    assert made(WatermarkStrategy.for_monotonous_timestamps()).startswith("<BoundedOutOfOrdernessWatermarks by 0 ms")


def test_every_subtask_has_a_generator_of_its_own() -> None:
    strategy = WatermarkStrategy.for_generator(NoWatermarks)

    assert strategy.create_generator(never_asked) is not strategy.create_generator(never_asked)


def test_idleness_wraps_the_generator() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness(SECOND)

    assert isinstance(strategy.create_generator(lambda: 0), WatermarksWithIdleness)


def test_a_refined_strategy_is_a_new_one() -> None:
    """The first one stays as it was, and refinements add up in any order."""
    plain = WatermarkStrategy.for_monotonous_timestamps()
    assigner = First()

    refined = plain.with_idleness(SECOND).with_timestamp_assigner(assigner).with_watermark_alignment("g", SECOND)

    assert not plain.is_refined
    assert refined.is_refined
    assert plain.timestamp_assigner is None
    assert plain.idle_timeout is None
    assert refined.timestamp_assigner is assigner
    assert refined.idle_timeout == SECOND
    assert refined.alignment == WatermarkAlignment("g", 1000, 1000)


def test_alignment_may_be_updated_at_another_interval() -> None:
    strategy = WatermarkStrategy.no_watermarks().with_watermark_alignment(
        "g", Duration.of_millis(0), Duration.of_millis(50)
    )

    assert strategy.alignment == WatermarkAlignment("g", 0, 50)


@pytest.mark.parametrize(
    "strategy",
    [
        WatermarkStrategy.no_watermarks(),
        WatermarkStrategy.for_bounded_out_of_orderness(SECOND).with_idleness(SECOND).with_timestamp_assigner(First()),
        WatermarkStrategy.for_generator(NoWatermarks).with_watermark_alignment("g", SECOND),
    ],
)
def test_a_strategy_can_be_sent_to_a_task(strategy: WatermarkStrategy) -> None:
    """A strategy travels by the plainest pickler, with all that belongs to it."""
    copy = pickle.loads(pickle.dumps(strategy))

    assert repr(copy) == repr(strategy)
    assert type(copy.create_generator(lambda: 0)) is type(strategy.create_generator(lambda: 0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(-1)), "at least 0 ns"),
        (lambda: WatermarkStrategy.for_bounded_out_of_orderness(5), "needs a Duration"),  # type: ignore[arg-type]
        (lambda: WatermarkStrategy.no_watermarks().with_idleness(Duration.of_millis(0)), "at least 1 ns"),
        (lambda: WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda value, old: 1), "extract_timestamp"),  # type: ignore[arg-type]
        (lambda: WatermarkStrategy.no_watermarks().with_timestamp_assigner(First), "extract_timestamp"),  # type: ignore[arg-type]
        (lambda: WatermarkStrategy.for_generator(3), "needs a callable"),  # type: ignore[arg-type]
        (lambda: WatermarkStrategy.for_generator(int).create_generator(never_asked), "which is no WatermarkGenerator"),  # type: ignore[arg-type]
        (lambda: WatermarkStrategy.no_watermarks().with_watermark_alignment("", SECOND), "name of a group"),
        (
            lambda: WatermarkStrategy.no_watermarks().with_watermark_alignment("g", Duration.of_millis(-1)),
            "at least 0 ns",
        ),
        (
            lambda: WatermarkStrategy.no_watermarks().with_watermark_alignment("g", SECOND, Duration.of_nanos(5)),
            "at least 1000000 ns",
        ),
        (lambda: WatermarkStrategy.no_watermarks().with_max_future_skew(Duration.of_millis(-1)), "at least 0 ns"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_said(make: Any, message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        make()
