"""Programs of the DataStream API, run to their end in this process: unions, connected streams, side outputs, process
functions.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowlet.common import Configuration, WatermarkStrategy
from flowlet.datastream import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
    TimeDomain,
)
from flowlet.errors import JobExecutionError
from tests.flowlet.client.jobs import TimeIs, ran


@pytest.fixture(autouse=True)
def two_subtasks(environment: StreamExecutionEnvironment) -> None:
    environment.set_parallelism(2)


class Label(CoMapFunction):
    def map1(self, value: int) -> tuple[str, int]:
        return "first", value

    def map2(self, value: int) -> tuple[str, int]:
        return "second", value


class Twice(CoFlatMapFunction):
    def flat_map1(self, value: int) -> list[int]:
        return [value, value]

    def flat_map2(self, value: int) -> None:
        return None


class Small(ProcessFunction):
    BIG = OutputTag("big")

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[Any]:
        if value < 3:
            yield value
        else:
            yield self.BIG, value


class Pair(CoProcessFunction):
    def process_element1(self, value: int, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        yield 1, value

    def process_element2(self, value: int, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        yield 2, value


class LastOfKey(KeyedProcessFunction):
    """Tells at the end of event time how often each key was seen."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen: Counter[str] = Counter()

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> None:
        self.seen[value] += 1
        ctx.timer_service().register_event_time_timer(1_000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield (
            ctx.get_current_key(),
            self.seen[ctx.get_current_key()],
            timestamp,
            ctx.time_domain() is TimeDomain.EVENT_TIME,
        )


class Emitter(SourceFunction):
    def run(self, ctx: SourceContext) -> None:
        for value in range(3):
            ctx.collect_with_timestamp(value, 10 * value)


class WithTimestamp(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[Any]:
        yield value, ctx.timestamp()


def with_assigned_timestamps(env: StreamExecutionEnvironment) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(TimeIs(int))
    return env.from_collection([5, 7]).assign_timestamps_and_watermarks(strategy).process(WithTimestamp())


def two_streams(env: StreamExecutionEnvironment) -> tuple[DataStream, DataStream]:
    return env.from_collection([1, 2]), env.from_collection([7])


def united_with_one_twice(env: StreamExecutionEnvironment) -> DataStream:
    first, second = two_streams(env)
    return first.union(second, first).map(lambda value: value * 10)


def flat_mapped_and_processed(env: StreamExecutionEnvironment) -> DataStream:
    first, second = two_streams(env)
    return first.connect(second).flat_map(Twice()).connect(second).process(Pair())


def beside_its_side_output(env: StreamExecutionEnvironment) -> DataStream:
    small = env.from_collection([1, 2, 3, 4]).process(Small())
    big = small.get_side_output(Small.BIG).map(lambda value: ("big", value))
    return small.map(lambda value: ("small", value)).union(big)


def split_and_selected(env: StreamExecutionEnvironment) -> DataStream:
    split = env.from_collection([1, 2, 3, 4]).split(lambda value: ["odd", "strange"] if value % 2 else ["even"])
    return split.select("odd", "strange").union(split.select("even").map(lambda value: -value))


def timers(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection(["a", "b", "a"]).key_by(lambda word: word).process(LastOfKey())


JOBS: dict[str, tuple[Callable[[StreamExecutionEnvironment], DataStream], list[Any]]] = {
    "timers fire at the end of event time": (timers, [("a", 2, 1_000, True), ("b", 1, 1_000, True)]),
    "a source function emits with timestamps": (
        lambda env: env.add_source(Emitter()).process(WithTimestamp()),
        [(0, 0), (1, 10), (2, 20)],
    ),
    "a strategy assigns timestamps": (with_assigned_timestamps, [(5, 5), (7, 7)]),
    "a union has the records of all streams": (united_with_one_twice, [10, 10, 20, 20, 70]),
    "a union collected itself": (lambda env: two_streams(env)[0].union(two_streams(env)[1]), [1, 2, 7]),
    "connected streams meet in one operator": (
        lambda env: two_streams(env)[0].connect(two_streams(env)[1]).map(Label()),
        [("first", 1), ("first", 2), ("second", 7)],
    ),
    "flat map and process of two streams": (flat_mapped_and_processed, [(1, 1), (1, 1), (1, 2), (1, 2), (2, 7)]),
    "a side output is a stream of its own": (
        beside_its_side_output,
        [("big", 3), ("big", 4), ("small", 1), ("small", 2)],
    ),
    "a side output collected itself": (
        lambda env: env.from_collection([1, 2, 3, 4]).process(Small()).get_side_output(Small.BIG),
        [3, 4],
    ),
    "split and select deliver each record once": (split_and_selected, [-4, -2, 1, 3]),
}


@pytest.mark.parametrize(("build", "expected"), JOBS.values(), ids=JOBS)
def test_a_program_gives_its_records(
    environment: StreamExecutionEnvironment,
    build: Callable[[StreamExecutionEnvironment], DataStream],
    expected: list[Any],
) -> None:
    assert sorted(ran(build(environment))) == expected


def test_a_union_is_keyed_as_one_stream(environment: StreamExecutionEnvironment) -> None:
    first, second = environment.from_collection([("a", 1), ("b", 2)]), environment.from_collection([("a", 5)])

    sums = ran(first.union(second).key_by(lambda pair: pair[0]).sum(1))

    assert max(value for key, value in sums if key == "a") == 6


class Number(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Any:
        return value


def test_a_process_function_that_returns_no_list_is_told_what_to_return(
    environment: StreamExecutionEnvironment,
) -> None:
    reason = r"a process function yields its results .* got 7 of type int"
    with pytest.raises(JobExecutionError, match=reason) as failure:
        ran(environment.from_collection([7]).process(Number()))

    assert "Traceback" not in str(failure.value)


def test_the_smallest_and_largest_records_of_each_key(environment: StreamExecutionEnvironment) -> None:
    environment.set_runtime_mode(RuntimeExecutionMode.BATCH)
    records = environment.from_collection([("a", 3), ("b", 7), ("a", 1), ("a", 2), ("b", 8)])

    assert sorted(ran(records.key_by(lambda record: record[0]).min_by(1))) == [("a", 1), ("b", 7)]
    assert sorted(ran(records.key_by(lambda record: record[0]).max(1))) == [("a", 3), ("b", 8)]


def test_a_record_above_the_jobs_limit_is_refused_where_it_was_made(environment: StreamExecutionEnvironment) -> None:
    """The receiver's connection stays, and the error says what the user can do."""
    environment.configure(Configuration().set_integer("flowlet.max-record-bytes", 1_000))
    numbers = environment.from_collection([1, 2]).rebalance().map(lambda number: b"x" * (2_000 * (number - 1)))

    with pytest.raises(JobExecutionError) as caught:
        ran(numbers)

    text = str(caught.value)
    assert "a result of operator 'Map' cannot be sent: a record takes 20" in text
    assert "the limit is 1000: split it up, or raise the job's option 'flowlet.max-record-bytes'" in text
