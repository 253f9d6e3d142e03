"""Jobs with windows as a whole, from the program to the results."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import pytest

from flowlet.common import Time, TypeInformation, Types, WatermarkStrategy
from flowlet.datastream import (
    AllWindowFunction,
    DataStream,
    OutputTag,
    ProcessJoinFunction,
    ProcessWindowFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    TimeWindow,
)
from flowlet.datastream.connectors import NO_RECORD, DiscardingSink, SplitSource
from flowlet.datastream.window import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    TumblingEventTimeWindows,
)
from tests.flowlet.client.jobs import TimeIs, operators_of, ran, released
from tests.waiting import spin_until

pytestmark = pytest.mark.slow

RECORDS = [("a", 1, 1), ("b", 3, 1), ("a", 4, 2), ("a", 12, 3), ("b", 27, 4), ("a", 5, 5)]


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
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(TimeIs(itemgetter(1)))
    typed = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])
    return environment.from_collection(RECORDS, type_info=typed).assign_timestamps_and_watermarks(strategy)


def results(windowed: Any) -> list[Any]:
    return sorted(ran(windowed))


def by_key() -> Any:
    return stream().key_by(lambda record: record[0])


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_tumbling_windows_by_key_in_both_modes(mode: RuntimeExecutionMode) -> None:
    keyed = stream(mode=mode).key_by(lambda record: record[0])

    found = results(keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(10))).process(Sums()))

    assert found == [("a", 0, 8), ("a", 10, 3), ("b", 0, 1), ("b", 20, 4)]


def test_a_windowed_stream_is_windowed_again() -> None:
    """Results have the timestamps of their windows."""
    narrow = by_key().window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    first = narrow.reduce(lambda one, other: (one[0], one[1], one[2] + other[2]))

    found = results(first.window_all(TumblingEventTimeWindows.of(Time.milliseconds(20))).apply(Numbers()))

    assert found == [(0, 3), (20, 1)]


def test_sessions_and_late_records() -> None:
    late = OutputTag("late", Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()]))
    windowed = by_key().window(EventTimeSessionWindows.with_gap(Time.milliseconds(5))).side_output_late_data(late)

    assert results(windowed.reduce(lambda one, other: (one[0], one[1], one[2] + other[2]), Sums())) == [
        ("a", 1, 8),
        ("a", 12, 3),
        ("b", 3, 1),
        ("b", 27, 4),
    ]


def test_the_newest_records_at_every_second_one() -> None:
    """Flink's sliding count window: a trigger and an evictor of a global window."""
    windowed = by_key().window(GlobalWindows.create()).trigger(CountTrigger.of(2)).evictor(CountEvictor.of(3))

    found = results(windowed.reduce(lambda one, other: (one[0], 0, one[2] + other[2])))

    assert found == [("a", 0, 3), ("a", 0, 10), ("b", 0, 5)]


# -------------------------------------------------------------------- late records that are dropped are counted


LATE = ("a", 2_000)


class LateAtLast(SplitSource):
    """Two records, and a third that comes when the test says so: after the watermark of the second."""

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        return {"only": None}

    def read_split(self, split: Any, num_read: int) -> Iterator[Any]:
        yield from [("a", 1_000), ("a", 9_000)]
        while not released["the late record"].is_set():
            yield NO_RECORD
        yield LATE


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterable[Any]:
        yield left, right


def in_windows(source: Callable[[], DataStream]) -> DataStream:
    return source().key_by(lambda pair: pair[0]).window(TumblingEventTimeWindows.of(Time.seconds(1))).reduce(max)


def joined_by_windows(source: Callable[[], DataStream]) -> DataStream:
    left, right = source(), source()
    keyed = left.join(right).where(lambda pair: pair[0]).equal_to(lambda pair: pair[0])
    return keyed.window(TumblingEventTimeWindows.of(Time.seconds(1))).apply(lambda one, other: (one, other))


def joined_by_an_interval(source: Callable[[], DataStream]) -> DataStream:
    left, right = (source().key_by(lambda pair: pair[0]) for _ in range(2))
    return left.interval_join(right).between(Time.seconds(-1), Time.seconds(1)).process(Pairs())


@pytest.mark.parametrize(("build", "dropped"), [(in_windows, 1), (joined_by_windows, 2), (joined_by_an_interval, 2)])
def test_late_records_that_go_nowhere_are_counted(
    environment: StreamExecutionEnvironment, build: Callable[..., DataStream], dropped: int
) -> None:
    """Late records of both inputs of a join are counted, too; ``JobClient.metrics`` has the counts under the names of
    docs/metrics.md.
    """
    environment.get_config().set_auto_watermark_interval(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(TimeIs(itemgetter(1)))
    pair: TypeInformation = Types.TUPLE([Types.STRING(), Types.LONG()])
    build(lambda: environment.from_source(LateAtLast(), strategy, "pairs", pair)).sink_to(DiscardingSink())

    client = environment.execute_async("late")
    spin_until(lambda: any(sum(each["current_input_watermarks"]) > 8_000 for each in takers(client.metrics())))
    released["the late record"].set()
    client.get_job_execution_result().result()

    dropping = Counter[str]()
    for operator in takers(client.metrics()):
        dropping.update({name: count for name, count in operator.items() if name.endswith("_dropped") and count})
    assert dropping == {"num_late_records_dropped": dropped}


def takers(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the operators that have windows or join."""
    words = "window", "join", "reduce", "sum"
    return [each for name, each in operators_of(document).items() if any(word in name.lower() for word in words)]
