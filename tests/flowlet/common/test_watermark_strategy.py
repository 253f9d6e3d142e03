"""Promises of ``WatermarkStrategy``."""

from flowlet.common import WatermarkStrategy


def test_only_monotonous_timestamps_read_timestamps() -> None:
    assert not WatermarkStrategy.no_watermarks().reads_timestamps
    assert WatermarkStrategy.for_monotonous_timestamps().reads_timestamps


def test_strategies_print_as_they_are_written() -> None:
    assert repr(WatermarkStrategy.no_watermarks()) == "WatermarkStrategy.no_watermarks()"
    assert repr(WatermarkStrategy.for_monotonous_timestamps()) == "WatermarkStrategy.for_monotonous_timestamps()"


def test_what_needs_generated_watermarks_is_absent() -> None:
    for name in ("for_bounded_out_of_orderness", "with_timestamp_assigner", "with_idleness", "with_watermark_alignment"):
        assert not hasattr(WatermarkStrategy, name)
