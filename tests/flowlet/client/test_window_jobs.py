"""Jobs with windows as a whole, from the program to the results."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from flowlet.common import Time, Types, WatermarkStrategy
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import (
    AllWindowFunction,
    OutputTag,
    ProcessWindowFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TimeWindow,
)
from flowlet.datastream.window import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    TumblingEventTimeWindows,
)

RECORDS = [("a", 1, 1), ("b", 3, 1), ("a", 4, 2), ("a", 12, 3), ("b", 27, 4), ("a", 5, 5)]


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


class Sums(ProcessWindowFunction[Any, Any, Any, TimeWindow]):
    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[Any]
    ) -> Iterator[Any]:
        yield key, context.window().start, sum(each[2] for each in elements)


class Numbers(AllWindowFunction[Any, Any, TimeWindow]):
    def apply(self, window: TimeWindow, inputs: Iterable[Any]) -> list[Any]:
        return [(window.start, len(list(inputs)))]


def stream(parallelism: int = 1, mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING) -> Any:
    environment = StreamExecutionEnvironment().set_parallelism(parallelism)
    environment.set_runtime_mode(mode)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
    typed = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])
    return environment.from_collection(RECORDS, type_info=typed).assign_timestamps_and_watermarks(strategy)


def results(windowed: Any) -> list[Any]:
    with windowed.execute_and_collect() as values:
        return sorted(values)


def by_key() -> Any:
    return stream().key_by(lambda record: record[0])


@pytest.mark.slow
@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_tumbling_windows_by_key_in_both_modes(mode: RuntimeExecutionMode) -> None:
    keyed = stream(mode=mode).key_by(lambda record: record[0])

    found = results(keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(10))).process(Sums()))

    assert found == [("a", 0, 8), ("a", 10, 3), ("b", 0, 1), ("b", 20, 4)]


@pytest.mark.slow
def test_a_windowed_stream_is_windowed_again() -> None:
    """Results have the timestamps of their windows."""
    first = (
        by_key()
        .window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        .reduce(lambda one, other: (one[0], one[1], one[2] + other[2]))
    )

    found = results(first.window_all(TumblingEventTimeWindows.of(Time.milliseconds(20))).apply(Numbers()))

    assert found == [(0, 3), (20, 1)]


@pytest.mark.slow
def test_sessions_and_late_records() -> None:
    late = OutputTag("late", Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()]))
    windowed = by_key().window(EventTimeSessionWindows.with_gap(Time.milliseconds(5))).side_output_late_data(late)

    assert results(windowed.reduce(lambda one, other: (one[0], one[1], one[2] + other[2]), Sums())) == [
        ("a", 1, 8),
        ("a", 12, 3),
        ("b", 3, 1),
        ("b", 27, 4),
    ]


@pytest.mark.slow
def test_the_newest_records_at_every_second_one() -> None:
    """Flink's sliding count window: a trigger and an evictor of a global window."""
    windowed = by_key().window(GlobalWindows.create()).trigger(CountTrigger.of(2)).evictor(CountEvictor.of(3))

    found = results(windowed.reduce(lambda one, other: (one[0], 0, one[2] + other[2])))

    assert found == [("a", 0, 3), ("a", 0, 10), ("b", 0, 5)]
