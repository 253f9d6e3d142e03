"""Sizes, gaps, delays and intervals are a ``Time``, a ``Duration`` or a ``timedelta`` everywhere; other values get one
sentence.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest

from flowlet.common import Duration, Time, WatermarkStrategy
from flowlet.common.restart_strategy import RestartStrategies
from flowlet.datastream import AsyncDataStream, CheckpointConfig, StreamExecutionEnvironment
from flowlet.datastream.functions import AsyncFunction
from flowlet.datastream.state import StateTtlConfig
from flowlet.datastream.window import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from flowlet.errors import FlowletError, JobGraphError

Use = Callable[[Any], Any]
FIVE_SECONDS: Final = [Time.seconds(5), Duration.of_seconds(5), timedelta(seconds=5)]


class Echo(AsyncFunction):
    """Gives each record back."""

    async def async_invoke(self, value: Any) -> list[Any]:
        return [value]


def stream() -> Any:
    return StreamExecutionEnvironment().from_collection([1])


def windowed() -> Any:
    return stream().key_by(abs).window(TumblingEventTimeWindows.of(Time.seconds(9)))


def joined(lower: Any, upper: Any) -> object:
    left = stream().key_by(abs)
    return left.interval_join(left).between(lower, upper)


# Where PyFlink takes a ``Time`` or a ``Duration``.
LENGTHS: dict[str, Use] = {
    "TumblingEventTimeWindows.of": TumblingEventTimeWindows.of,
    "TumblingEventTimeWindows.of, offset": lambda length: TumblingEventTimeWindows.of(Time.seconds(9), length),
    "TumblingProcessingTimeWindows.of": TumblingProcessingTimeWindows.of,
    "TumblingProcessingTimeWindows.of, offset": lambda length: TumblingProcessingTimeWindows.of(
        Time.seconds(9), length
    ),
    "SlidingEventTimeWindows.of": lambda length: SlidingEventTimeWindows.of(length, Time.seconds(1)),
    "SlidingEventTimeWindows.of, slide": lambda length: SlidingEventTimeWindows.of(Time.seconds(9), length),
    "SlidingEventTimeWindows.of, offset": lambda length: SlidingEventTimeWindows.of(
        Time.seconds(9), Time.seconds(9), length
    ),
    "SlidingProcessingTimeWindows.of": lambda length: SlidingProcessingTimeWindows.of(length, Time.seconds(1)),
    "SlidingProcessingTimeWindows.of, slide": lambda length: SlidingProcessingTimeWindows.of(Time.seconds(9), length),
    "EventTimeSessionWindows.with_gap": EventTimeSessionWindows.with_gap,
    "ProcessingTimeSessionWindows.with_gap": ProcessingTimeSessionWindows.with_gap,
    "ContinuousEventTimeTrigger.of": ContinuousEventTimeTrigger.of,
    "ContinuousProcessingTimeTrigger.of": ContinuousProcessingTimeTrigger.of,
    "TimeEvictor.of": TimeEvictor.of,
    "StateTtlConfig.new_builder": lambda length: StateTtlConfig.new_builder(length).build(),
    "StateTtlConfig.set_ttl": lambda length: StateTtlConfig.new_builder(Time.seconds(1)).set_ttl(length).build(),
    "for_bounded_out_of_orderness": WatermarkStrategy.for_bounded_out_of_orderness,
    "with_idleness": lambda length: WatermarkStrategy.no_watermarks().with_idleness(length),
    "with_watermark_alignment": lambda length: WatermarkStrategy.no_watermarks().with_watermark_alignment("a", length),
    "with_watermark_alignment, interval": lambda length: WatermarkStrategy.no_watermarks().with_watermark_alignment(
        "a", Time.seconds(1), length
    ),
    "with_max_future_skew": lambda length: WatermarkStrategy.no_watermarks().with_max_future_skew(length),
    "interval join, lower": lambda length: joined(length, Time.seconds(9)),
    "interval join, upper": lambda length: joined(Time.seconds(0), length),
    "async timeout": lambda length: AsyncDataStream.ordered_wait(stream(), Echo(), length),
    "set_aligned_checkpoint_timeout": lambda length: CheckpointConfig().set_aligned_checkpoint_timeout(length),
}
# Where PyFlink takes a number of milliseconds.
MILLISECONDS: dict[str, Use] = {
    "allowed_lateness": lambda length: windowed().allowed_lateness(length),
    "TumblingEventTimeWindows": lambda length: TumblingEventTimeWindows(length, 0),
    "SlidingEventTimeWindows": lambda length: SlidingEventTimeWindows(length, 1000, 0),
    "EventTimeSessionWindows": EventTimeSessionWindows,
    "ProcessingTimeSessionWindows": ProcessingTimeSessionWindows,
    "ContinuousEventTimeTrigger": ContinuousEventTimeTrigger,
    "TimeEvictor": TimeEvictor,
}


@pytest.mark.parametrize("use", (LENGTHS | MILLISECONDS).values(), ids=[*LENGTHS, *MILLISECONDS])
def test_every_kind_of_length_is_taken_and_means_the_same(use: Use) -> None:
    first, *others = (use(length) for length in FIVE_SECONDS)

    if not repr(first).startswith("<"):  # without the address of the object
        assert {repr(each) for each in others} == {repr(first)}


@pytest.mark.parametrize("use", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("length", [5, 5.0, "5 s", None, True], ids=repr)
def test_a_bare_number_and_a_text_get_one_sentence(use: Use, length: Any, request: pytest.FixtureRequest) -> None:
    if length is None and ("offset" in request.node.callspec.id or "alignment, interval" in request.node.callspec.id):
        return  # it has a default

    with pytest.raises(FlowletError, match=r"needs a Duration such as Duration\.of_seconds\(5\), got ") as raised:
        use(length)

    assert str(raised.value).endswith(f"got {length!r}")


@pytest.mark.parametrize("use", MILLISECONDS.values(), ids=MILLISECONDS)
def test_milliseconds_are_taken_where_pyflink_takes_them_and_texts_get_the_sentence(use: Use) -> None:
    use(5000)
    with pytest.raises(JobGraphError, match=r"needs a Duration such as Duration\.of_seconds\(5\), got '5 s'"):
        use("5 s")


def test_restart_strategies_take_every_kind_of_length() -> None:
    delays = [RestartStrategies.fixed_delay_restart(3, length) for length in (*FIVE_SECONDS, 5000)]  # type: ignore[arg-type]  # PyFlink's

    assert {each.get_delay_between_attempts_interval() for each in delays} == {timedelta(seconds=5)}


class GapOf(SessionWindowTimeGapExtractor):
    """Takes the gap from the record."""

    def extract(self, element: Any) -> Any:
        return element


def test_a_gap_of_a_record_may_be_a_length_of_time() -> None:
    sessions: Any = EventTimeSessionWindows.with_dynamic_gap(GapOf())

    windows = [list(sessions.assign_windows(gap, 1000, None)) for gap in (*FIVE_SECONDS, 5000)]

    assert [(window.start, window.end) for [window] in windows] == [(1000, 6000)] * 4
    with pytest.raises(
        JobGraphError, match=r"GapOf\.extract\(\) gives needs a Duration such as Duration\.of_seconds\(5\), got '5 s'"
    ):
        sessions.assign_windows("5 s", 1000, None)


@pytest.mark.parametrize("make", [Time.seconds, Time.days, Duration.of_millis, Duration.of_seconds, Duration.of_days])
@pytest.mark.parametrize("number", ["5", None, True])
def test_a_length_is_a_number_of_its_unit(make: Callable[[Any], Any], number: Any) -> None:
    with pytest.raises(JobGraphError, match=rf"a length of time is a number of \w+, got {number!r}"):
        make(number)


def test_a_length_is_a_whole_number_of_its_smallest_unit() -> None:
    with pytest.raises(JobGraphError, match=r"a Time is a whole number of milliseconds, got 0\.5"):
        Time.milliseconds(0.5)  # type: ignore[arg-type]  # the mistake
    with pytest.raises(JobGraphError, match="a Duration is a whole number of nanoseconds, got '5'"):
        Duration.of_nanos("5")  # type: ignore[arg-type]  # the mistake


def test_half_a_second_is_a_length() -> None:
    assert Time.seconds(0.5) == Time.milliseconds(500)  # type: ignore[arg-type]  # works in Python, whatever the annotation says
    assert Duration.of_seconds(0.5) == Duration.of_millis(500)  # type: ignore[arg-type]


@pytest.mark.parametrize("trigger", [ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger])
def test_a_trigger_needs_an_interval_above_zero(trigger: Any) -> None:
    with pytest.raises(JobGraphError, match="needs 1 ms or more, got 0"):
        trigger.of(Time.seconds(0))
