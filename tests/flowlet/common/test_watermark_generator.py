"""Promises of the watermark generators.

Source: Flink ``BoundedOutOfOrdernessWatermarksTest``, ``AscendingTimestampsWatermarksTest``,
        ``WatermarksWithIdlenessTest``.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.watermark_generator import (
    BoundedOutOfOrdernessWatermarks,
    NoWatermarks,
    WatermarkGenerator,
    WatermarksWithIdleness,
)
from flowlet.errors import JobGraphError
from flowlet.records import MIN_TIMESTAMP


class Recorder:
    """Keeps the watermarks and statuses of a generator."""

    def __init__(self) -> None:
        self.said: list[int | str] = []

    def emit_watermark(self, timestamp: int) -> None:
        self.said.append(timestamp)

    def mark_idle(self) -> None:
        self.said.append("idle")

    def mark_active(self) -> None:
        self.said.append("active")


def periodic(generator: WatermarkGenerator) -> list[int | str]:
    recorder = Recorder()
    generator.on_periodic_emit(recorder)
    return recorder.said


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class PerEvent(WatermarkGenerator):
    """Emits with each event."""

    def on_event(self, event: object, event_timestamp: int, output: object) -> None:
        pass

    def on_periodic_emit(self, output: object) -> None:
        pass


def test_the_watermark_before_any_record_is_the_smallest_there_is() -> None:
    """The watermark has not wrapped around."""
    assert periodic(BoundedOutOfOrdernessWatermarks(10)) == [MIN_TIMESTAMP]
    assert periodic(BoundedOutOfOrdernessWatermarks(0)) == [MIN_TIMESTAMP]


def test_the_watermark_lies_the_bound_and_one_millisecond_behind_the_largest_timestamp() -> None:
    generator = BoundedOutOfOrdernessWatermarks(10)

    generator.on_largest_timestamp(1337)
    assert periodic(generator) == [1326]
    generator.on_largest_timestamp(1340)
    generator.on_largest_timestamp(1338)
    assert periodic(generator) == [1329]
    assert periodic(generator) == [1329]


def test_a_record_can_be_shown_by_itself() -> None:
    """``on_event`` is a chunk of one."""
    generator, recorder = BoundedOutOfOrdernessWatermarks(0), Recorder()

    generator.on_event("a", 5, recorder)

    assert recorder.said == []
    assert periodic(generator) == [4]


@given(timestamps=st.lists(st.integers(-(10**6), 10**6), min_size=1), bound=st.integers(0, 1000))
def test_no_record_within_the_bound_is_late(timestamps: list[int], bound: int) -> None:
    """The watermark never reaches the largest timestamp less the bound."""
    generator = BoundedOutOfOrdernessWatermarks(bound)
    for timestamp in timestamps:
        generator.on_largest_timestamp(timestamp)

    assert periodic(generator) == [max(timestamps) - bound - 1]


def test_no_watermarks_are_no_watermarks() -> None:
    generator = NoWatermarks()
    generator.on_largest_timestamp(7)

    assert periodic(generator) == []
    assert not generator.needs_events


def test_a_generator_that_needs_every_event_is_not_given_chunks() -> None:
    assert PerEvent().needs_events
    assert WatermarksWithIdleness(PerEvent(), 1, Clock()).needs_events
    with pytest.raises(TypeError, match="PerEvent needs every event"):
        PerEvent().on_largest_timestamp(1)


@pytest.mark.parametrize("timeout_ns", [0, -1])
def test_an_idle_timeout_is_positive(timeout_ns: int) -> None:
    with pytest.raises(JobGraphError, match="more than 0"):
        WatermarksWithIdleness(NoWatermarks(), timeout_ns, Clock())


def with_idleness(timeout_ns: int) -> tuple[WatermarksWithIdleness, Clock]:
    clock = Clock()
    return WatermarksWithIdleness(BoundedOutOfOrdernessWatermarks(0), timeout_ns, clock), clock


def test_a_stream_is_idle_once_the_timeout_has_passed_since_a_look_that_found_nothing() -> None:
    """It is active at first, and exactly the timeout is not enough."""
    generator, clock = with_idleness(100)

    assert periodic(generator) == [MIN_TIMESTAMP]
    clock.now_ns = 100
    assert periodic(generator) == [MIN_TIMESTAMP]
    clock.now_ns = 101
    assert periodic(generator) == ["idle"]
    assert periodic(generator) == ["idle"]


def test_time_passes_only_from_the_first_look_without_a_record() -> None:
    """The last record may be long ago."""
    generator, clock = with_idleness(100)
    generator.on_largest_timestamp(5)

    clock.now_ns = 1_000
    assert periodic(generator) == [4]
    clock.now_ns = 2_000
    assert periodic(generator) == [4]
    clock.now_ns = 2_101
    assert periodic(generator) == ["idle"]


@pytest.mark.parametrize("by_event", [True, False])
def test_a_record_makes_the_stream_active_again(by_event: bool) -> None:
    generator, clock = with_idleness(100)
    periodic(generator)
    clock.now_ns = 101
    assert periodic(generator) == ["idle"]

    if by_event:
        generator.on_event("a", 8, Recorder())
    else:
        generator.on_largest_timestamp(8)
    assert periodic(generator) == [7]
    clock.now_ns = 300
    assert periodic(generator) == [7]
    clock.now_ns = 401
    assert periodic(generator) == ["idle"]


def test_while_the_clock_stands_still_a_stream_does_not_become_idle() -> None:
    """The clock stands still under backpressure (FLINK-35886)."""
    generator, clock = with_idleness(100)
    periodic(generator)
    clock.now_ns = 100

    assert [periodic(generator) for _ in range(5)] == [[MIN_TIMESTAMP]] * 5
