"""Programs of the DataStream API, run to their end in this process: unions, connected streams, side outputs, process
functions.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from flowlet.common import Configuration, WatermarkStrategy
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
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


@pytest.fixture(autouse=True)
def two_subtasks(environment: StreamExecutionEnvironment) -> None:
    environment.set_parallelism(2)


def collected(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as results:
        return sorted(results)


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


class Stamp(TimestampAssigner):
    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value


class WithWatermark(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[Any]:
        yield value, ctx.timestamp()


def test_timers_of_a_keyed_process_function_fire_at_the_end_of_event_time(
    environment: StreamExecutionEnvironment,
) -> None:
    counts = environment.from_collection(["a", "b", "a"]).key_by(lambda word: word).process(LastOfKey())

    assert collected(counts) == [("a", 2, 1_000, True), ("b", 1, 1_000, True)]


def test_a_source_function_emits_with_timestamps(environment: StreamExecutionEnvironment) -> None:
    assert collected(environment.add_source(Emitter()).process(WithWatermark())) == [(0, 0), (1, 10), (2, 20)]


def test_timestamps_are_assigned_by_a_strategy(environment: StreamExecutionEnvironment) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Stamp())

    stamped = environment.from_collection([5, 7]).assign_timestamps_and_watermarks(strategy).process(WithWatermark())

    assert collected(stamped) == [(5, 5), (7, 7)]


def test_a_union_has_the_records_of_all_streams(environment: StreamExecutionEnvironment) -> None:
    first, second = environment.from_collection([1, 2]), environment.from_collection([3])

    assert collected(first.union(second, first).map(lambda value: value * 10)) == [10, 10, 20, 20, 30]


def test_connected_streams_meet_in_one_operator(environment: StreamExecutionEnvironment) -> None:
    first, second = environment.from_collection([1, 2]), environment.from_collection([7])

    assert collected(first.connect(second).map(Label())) == [("first", 1), ("first", 2), ("second", 7)]


def test_flat_map_and_process_of_two_streams(environment: StreamExecutionEnvironment) -> None:
    first, second = environment.from_collection([1, 2]), environment.from_collection([7])
    doubled = first.connect(second).flat_map(Twice())

    assert collected(doubled.connect(second).process(Pair())) == [(1, 1), (1, 1), (1, 2), (1, 2), (2, 7)]


def test_a_side_output_is_a_stream_of_its_own(environment: StreamExecutionEnvironment) -> None:
    small = environment.from_collection([1, 2, 3, 4]).process(Small())

    both = small.map(lambda value: ("small", value)).union(
        small.get_side_output(Small.BIG).map(lambda value: ("big", value))
    )

    assert collected(both) == [("big", 3), ("big", 4), ("small", 1), ("small", 2)]


def test_a_side_output_can_be_collected_itself(environment: StreamExecutionEnvironment) -> None:
    small = environment.from_collection([1, 2, 3, 4]).process(Small())

    assert collected(small.get_side_output(Small.BIG)) == [3, 4]


def test_a_union_can_be_collected_itself(environment: StreamExecutionEnvironment) -> None:
    assert collected(environment.from_collection([1]).union(environment.from_collection([2]))) == [1, 2]


def test_split_and_select_deliver_each_record_once(environment: StreamExecutionEnvironment) -> None:
    split = environment.from_collection([1, 2, 3, 4]).split(
        lambda value: ["even"] if value % 2 == 0 else ["odd", "strange"]
    )

    assert collected(split.select("odd", "strange").union(split.select("even").map(lambda value: -value))) == [
        -4,
        -2,
        1,
        3,
    ]


def test_a_union_is_keyed_as_one_stream(environment: StreamExecutionEnvironment) -> None:
    first, second = environment.from_collection([("a", 1), ("b", 2)]), environment.from_collection([("a", 5)])

    sums = collected(first.union(second).key_by(lambda pair: pair[0]).sum(1))

    assert max(value for key, value in sums if key == "a") == 6


class Number(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Any:
        return value


def test_a_process_function_that_returns_no_list_is_told_what_to_return(
    environment: StreamExecutionEnvironment,
) -> None:
    with pytest.raises(
        JobExecutionError, match=r"a process function yields its results .* got 7 of type int"
    ) as failure:
        collected(environment.from_collection([7]).process(Number()))

    assert "Traceback" not in str(failure.value)


def test_the_smallest_and_largest_records_of_each_key(environment: StreamExecutionEnvironment) -> None:
    environment.set_runtime_mode(RuntimeExecutionMode.BATCH)
    records = [("a", 3), ("b", 7), ("a", 1), ("a", 2), ("b", 8)]

    assert collected(environment.from_collection(records).key_by(lambda record: record[0]).min_by(1)) == [
        ("a", 1),
        ("b", 7),
    ]
    assert collected(environment.from_collection(records).key_by(lambda record: record[0]).max(1)) == [
        ("a", 3),
        ("b", 8),
    ]


def test_a_record_above_the_jobs_limit_is_refused_where_it_was_made(environment: StreamExecutionEnvironment) -> None:
    """The receiver's connection stays, and the error says what the user can do."""
    environment.configure(Configuration().set_integer("flowlet.max-record-bytes", 1_000))
    numbers = environment.from_collection([1, 2]).rebalance().map(lambda number: b"x" * (2_000 * (number - 1)))

    with pytest.raises(JobExecutionError) as caught:
        collected(numbers)

    text = str(caught.value)
    assert "a result of operator 'Map' cannot be sent: a record takes 20" in text
    assert "the limit is 1000: split it up, or raise the job's option 'flowlet.max-record-bytes'" in text
