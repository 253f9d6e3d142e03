"""Windows, assigners, triggers and evictors as users call them.  Source: PyFlink ``test_window.py``."""

from io import BytesIO
from typing import Any

import pytest

import flowlet.datastream.window as api
from flowlet.common import Time, Types
from flowlet.common.serializer import TypeSerializer
from flowlet.datastream import AggregateFunction, OutputTag, StreamExecutionEnvironment, WindowFunction
from flowlet.datastream.data_stream import AllWindowedStream, WindowedStream
from flowlet.datastream.window import (
    CountEvictor,
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    CountWindow,
    CountWindowSerializer,
    DeltaEvictor,
    EventTimeSessionWindows,
    GlobalWindow,
    GlobalWindows,
    GlobalWindowSerializer,
    NeverTrigger,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    TimestampedValue,
    TimeWindow,
    TimeWindowSerializer,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from flowlet.errors import FlowletError, JobGraphError

SECOND = Time.seconds(1)


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Length(WindowFunction[Any, Any, Any, Any]):
    def apply(self, key: Any, window: Any, inputs: Any) -> list[int]:
        return [len(list(inputs))]


def numbers() -> Any:
    return StreamExecutionEnvironment().from_collection([1, 2, 3], type_info=Types.LONG())


def test_the_module_has_pyflinks_names() -> None:
    names = (
        "Window TimeWindow CountWindow GlobalWindow WindowAssigner TumblingProcessingTimeWindows "
        "TumblingEventTimeWindows "
        "SlidingProcessingTimeWindows SlidingEventTimeWindows ProcessingTimeSessionWindows EventTimeSessionWindows "
        "DynamicProcessingTimeSessionWindows DynamicEventTimeSessionWindows GlobalWindows MergingWindowAssigner "
        "CountTumblingWindowAssigner CountSlidingWindowAssigner TriggerResult Trigger EventTimeTrigger "
        "ProcessingTimeTrigger "
        "ContinuousEventTimeTrigger ContinuousProcessingTimeTrigger NeverTrigger PurgingTrigger CountTrigger "
        "TimeWindowSerializer "
        "CountWindowSerializer GlobalWindowSerializer SessionWindowTimeGapExtractor"
    )

    assert set(names.split()) <= set(vars(api)["__all__"])


@pytest.mark.parametrize(("timestamp", "start"), [(0, 0), (9, 0), (10, 10), (-1, -10)])
def test_windows_begin_at_the_multiples_of_their_size(timestamp: int, start: int) -> None:
    assert TimeWindow.get_window_start_with_offset(timestamp, 0, 10) == start


def test_a_time_window_knows_its_bounds() -> None:
    window = TimeWindow(0, 10)

    assert window.max_timestamp() == 9
    assert window.intersects(TimeWindow(10, 20))
    assert not window.intersects(TimeWindow(11, 20))
    assert window.cover(TimeWindow(15, 20)) == TimeWindow(0, 20)
    assert sorted([TimeWindow(5, 6), TimeWindow(0, 9), window]) == [TimeWindow(0, 9), window, TimeWindow(5, 6)]
    assert repr(window) == "TimeWindow(start=0, end=10)"
    with pytest.raises(TypeError, match="compared with another TimeWindow"):
        _ = window < 3


@pytest.mark.parametrize(
    ("serializer", "window", "size"),
    [
        (TimeWindowSerializer(), TimeWindow(-3, 7), 16),
        (CountWindowSerializer(), CountWindow(7), 8),
        (GlobalWindowSerializer(), GlobalWindow.get(), 1),
    ],
)
def test_serializers_read_what_they_wrote(serializer: TypeSerializer[Any], window: Any, size: int) -> None:
    stream = BytesIO()

    serializer.serialize(window, stream)

    assert len(stream.getvalue()) == size
    stream.seek(0)
    assert serializer.deserialize(stream) == window


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: TumblingEventTimeWindows.of(SECOND, SECOND), "an offset below it"),
        (lambda: TumblingProcessingTimeWindows.of(Time.seconds(0)), "a size above 0"),
        (lambda: SlidingEventTimeWindows.of(SECOND, Time.seconds(0)), "a slide above 0"),
        (lambda: EventTimeSessionWindows.with_gap(Time.seconds(0)), "a gap above 0"),
        (lambda: CountTumblingWindowAssigner.of(0), "a number of records above 0"),
        (lambda: CountSlidingWindowAssigner.of(2, -1), "a slide above 0"),
        (lambda: CountEvictor.of(-1), "0 or more"),
        (lambda: DeltaEvictor.of(1, 3), "a callable of two records"),
    ],
)
def test_numbers_that_make_no_windows_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(JobGraphError, match=reason):
        make()


def test_trigger_results_are_pairs() -> None:
    results = [(each.is_fire(), each.is_purge()) for each in TriggerResult]
    assert results == [(False, False), (True, True), (True, False), (False, True)]


def test_an_evictor_with_a_value_without_timestamp() -> None:
    value = TimestampedValue("x")

    assert (value.get_value(), value.has_timestamp(), value.get_timestamp()) == ("x", False, -(2**63))


def test_windowed_streams_are_those_of_pyflink() -> None:
    """Names, descriptions and the declared types of results are PyFlink's."""
    keyed = numbers().key_by(abs)
    windows = keyed.window(TumblingEventTimeWindows.of(SECOND))

    reduced = windows.reduce(lambda one, other: one + other)
    averaged = keyed.count_window(2, 1).aggregate(Mean(), Length(), output_type=Types.INT())

    assert isinstance(windows, WindowedStream)
    assert reduced.get_name() == "TumblingEventTimeWindows"
    assert reduced.get_type() == Types.LONG()
    step = averaged._transformation
    assert step.description == "Window(CountSlidingWindowAssigner(2, 1), CountTrigger, Mean, Length)"
    assert averaged.get_type() == Types.INT()
    assert isinstance(numbers().window_all(GlobalWindows.create()), AllWindowedStream)
    assert numbers().count_window_all(3).reduce(max).get_name() == "CountTumblingWindowAssigner"


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: numbers().key_by(abs).window(SECOND), "need an assigner such as"),
        (
            lambda: numbers().key_by(abs).window(ProcessingTimeSessionWindows.with_gap(SECOND)).trigger(NeverTrigger()),
            "cannot: see can_merge",
        ),
        (lambda: numbers().key_by(abs).count_window(2).trigger(3), "needs a Trigger"),
        (lambda: numbers().key_by(abs).count_window(2).evictor(3), "needs an Evictor"),
        (lambda: numbers().key_by(abs).count_window(2).allowed_lateness(-1), "needs 0 ms or more, got -1"),
        (lambda: numbers().key_by(abs).count_window(2).side_output_late_data("late"), "needs an OutputTag"),
        (lambda: numbers().key_by(abs).count_window(2).apply(Mean()), "needs a WindowFunction"),
        (lambda: numbers().key_by(abs).count_window(2).process(Length()), "needs a ProcessWindowFunction"),
        (lambda: numbers().key_by(abs).count_window(2).aggregate(max), "needs a AggregateFunction"),
        (lambda: numbers().window_all(GlobalWindows.create()).apply(Length()), "needs a AllWindowFunction"),
        (lambda: numbers().key_by(abs).count_window(2.5), "whole numbers of records"),
        (lambda: numbers().window(GlobalWindows.create()), "needs a keyed stream"),
    ],
)
def test_what_makes_no_windowed_stream_is_refused(build: Any, reason: str) -> None:
    with pytest.raises(FlowletError, match=reason):
        build()


def test_late_records_have_a_stream() -> None:
    late = OutputTag("late", Types.LONG())
    stream = numbers().key_by(abs).window(TumblingEventTimeWindows.of(SECOND)).side_output_late_data(late).reduce(max)

    assert stream.get_side_output(late).get_type() == Types.LONG()
