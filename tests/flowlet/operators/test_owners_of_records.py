"""Functions change records in place, and neither kept results nor other keys, pairs or consumers see that.

The programs are those of users; each result is shown before the chained function behind it spoils the object.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from flowlet.common import Configuration, Row, Time, WatermarkStrategy
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import (
    AggregateFunction,
    DataStream,
    FlatJoinFunction,
    KeyedProcessFunction,
    ProcessJoinFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.state import AggregatingStateDescriptor
from flowlet.datastream.window import CountEvictor, CountTrigger, SlidingEventTimeWindows, TumblingEventTimeWindows

pytestmark = pytest.mark.slow
NUM_RECORDS = 9
NUM_KEYS = 2


@dataclass
class Flat:
    key: int
    parts: int


@dataclass
class Nested:
    key: int
    parts: list[int]


class Named(NamedTuple):
    key: int
    parts: list[int]


def attribute_added(one: Any, other: Any) -> Any:
    """A new object of the class."""
    return type(one)(one.key, one.parts + other.parts)


# How a record is made of its number, its key, how two become one, and how a function spoils it in place.
Kind = tuple[Callable[[int], Any], Callable[[Any], int], Callable[[Any, Any], Any], Callable[[Any], object]]
KINDS: dict[str, Kind] = {
    "dict": (
        lambda number: {"key": number % NUM_KEYS, "parts": number},
        lambda record: record["key"],
        lambda one, other: {**one, "parts": one["parts"] + other["parts"]},
        lambda record: record.update(parts=1000),
    ),
    "list": (
        lambda number: [number % NUM_KEYS, number],
        lambda record: record[0],
        lambda one, other: [one[0], one[1] + other[1]],
        lambda record: record.__setitem__(1, 1000),
    ),
    "Row": (
        lambda number: Row(number % NUM_KEYS, number),
        lambda record: record[0],
        lambda one, other: Row(one[0], one[1] + other[1]),
        lambda record: record.__setitem__(1, 1000),
    ),
    "flat object": (
        lambda number: Flat(number % NUM_KEYS, number),
        lambda record: record.key,
        attribute_added,
        lambda record: setattr(record, "parts", 1000),
    ),
    "object with a list": (
        lambda number: Nested(number % NUM_KEYS, [number]),
        lambda record: record.key,
        attribute_added,
        lambda record: record.parts.clear(),
    ),
    "tuple with a list": (
        lambda number: (number % NUM_KEYS, [number]),
        lambda record: record[0],
        lambda one, other: (one[0], one[1] + other[1]),
        lambda record: record[1].clear(),
    ),
    "named tuple with a list": (
        lambda number: Named(number % NUM_KEYS, [number]),
        lambda record: record.key,
        attribute_added,
        lambda record: record.parts.clear(),
    ),
    "tuple": (
        lambda number: (number % NUM_KEYS, number),
        lambda record: record[0],
        lambda one, other: (one[0], one[1] + other[1]),
        lambda record: None,
    ),
}


def spoiling(spoil: Callable[[Any], object]) -> Callable[[Any], str]:
    def show(record: Any) -> str:
        shown = repr(record)
        spoil(record)
        return shown

    return show


def running(records: Iterable[Any], key_of: Callable[[Any], Any], combine: Callable[[Any, Any], Any]) -> list[str]:
    """What a keyed reduction emits, by a loop."""
    kept: dict[Any, Any] = {}
    shown = []
    for record in records:
        key = key_of(record)
        kept[key] = combine(kept[key], record) if key in kept else record
        shown.append(repr(kept[key]))
    return sorted(shown)


def collected(stream: DataStream) -> list[str]:
    results = stream.execute_and_collect()
    return sorted(map(str, results))


def environment(backend: str = "hashmap") -> StreamExecutionEnvironment:
    options = Configuration.from_dict({"state.backend.type": backend})
    return StreamExecutionEnvironment(options).set_parallelism(1)


@pytest.mark.parametrize("is_in_one_task", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_chained_function_may_change_the_result_of_a_reduce(kind: str, *, is_in_one_task: bool) -> None:
    """The kept result stays as it was, whether the reduction runs behind its ``key_by`` in the loop of the chain or in its own."""
    make, key_of, combine, spoil = KINDS[kind]
    records = environment().from_collection([make(number) for number in range(NUM_RECORDS)])
    if not is_in_one_task:
        records = records.map(lambda record: record).disable_chaining()

    results = records.key_by(key_of).reduce(combine).map(spoiling(spoil))

    assert collected(results) == running(map(make, range(NUM_RECORDS)), key_of, combine)


def test_results_become_changeable_on_the_way() -> None:
    """Keys whose first records are flat tuples come before one whose records hold lists."""
    records = [(0, 0), (1, 1), (0, 5), (2, [2]), (2, [3]), (2, [4]), (0, 7)]
    spoil = spoiling(lambda record: record[1].clear() if isinstance(record[1], list) else None)

    def added(one: Any, other: Any) -> Any:
        return one[0], one[1] + other[1]

    results = environment().from_collection(records).key_by(lambda record: record[0]).reduce(added).map(spoil)

    assert collected(results) == running(records, lambda record: record[0], added)


def test_each_of_two_chained_functions_may_change_a_result() -> None:
    make, key_of, combine, spoil = KINDS["dict"]
    reduced = environment().from_collection([make(number) for number in range(NUM_RECORDS)]).key_by(key_of).reduce(combine)

    one, other = (reduced.map(spoiling(spoil)) for _ in range(2))

    assert collected(one.union(other)) == sorted(2 * running(map(make, range(NUM_RECORDS)), key_of, combine))


AGGREGATIONS: dict[str, Callable[[Any], DataStream]] = {
    "sum": lambda keyed: keyed.sum(1),
    "min": lambda keyed: keyed.min(1),
    "max_by": lambda keyed: keyed.max_by(1),
}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kind", ["list", "Row"])
def test_a_chained_function_may_change_the_result_of_an_aggregation(aggregation: str, kind: str) -> None:
    """Results are equal to those for tuples, which nothing can change."""
    make, key_of, _, spoil = KINDS[kind]

    def results_for(records: list[Any], spoil: Callable[[Any], object]) -> list[str]:
        keyed = environment().from_collection(records).key_by(key_of)
        return collected(AGGREGATIONS[aggregation](keyed).map(lambda record: (tuple(record), spoil(record))[0]))

    found = results_for([make(number) for number in range(NUM_RECORDS)], spoil)

    assert found == results_for([KINDS["tuple"][0](number) for number in range(NUM_RECORDS)], lambda _: None)


class SharesItsAccumulator(AggregateFunction):
    """Returns the list of its module each time, or a new one."""

    def __init__(self, *, is_shared: bool) -> None:
        self._is_shared = is_shared
        self._own: list[Any] = []

    def create_accumulator(self) -> list[Any]:
        return self._own if self._is_shared else []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> Any:
        return tuple(accumulator)

    def merge(self, acc_a: list[Any], acc_b: list[Any]) -> list[Any]:
        acc_a += acc_b
        return acc_a


class Aggregates(KeyedProcessFunction):
    """Adds each record to an aggregating state, and emits the result."""

    def __init__(self, function: AggregateFunction) -> None:
        self._function = function

    def open(self, runtime_context: RuntimeContext) -> None:
        self.state = runtime_context.get_aggregating_state(AggregatingStateDescriptor("state", self._function))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.state.add(value)
        yield self.state.get()


class At(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        at: int = value[1]
        return at


AGGREGATING: dict[str, Callable[[Any, AggregateFunction], DataStream]] = {
    "state": lambda keyed, function: keyed.process(Aggregates(function)),
    "aligned windows": lambda keyed, function: keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(4))).aggregate(function),
    "sliding windows": lambda keyed, function: keyed.window(
        SlidingEventTimeWindows.of(Time.milliseconds(4), Time.milliseconds(2))
    ).aggregate(function),
    "windows with a trigger": lambda keyed, function: (
        keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(4))).trigger(CountTrigger(1)).aggregate(function)
    ),
    "windows with an evictor": lambda keyed, function: (
        keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(4))).evictor(CountEvictor.of(3)).aggregate(function)
    ),
}


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("where", AGGREGATING)
def test_an_accumulator_that_is_the_same_object_each_time_is_copied_for_each_key(where: str, backend: str) -> None:
    """As if ``create_accumulator`` made a new one."""

    def results_for(*, is_shared: bool) -> list[str]:
        records = environment(backend).from_collection([(number % NUM_KEYS, number) for number in range(NUM_RECORDS)])
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(At())
        keyed = records.assign_timestamps_and_watermarks(strategy).key_by(lambda record: record[0])
        return collected(AGGREGATING[where](keyed, SharesItsAccumulator(is_shared=is_shared)))

    assert results_for(is_shared=True) == results_for(is_shared=False)


def spoiled_pair(one: Any, two: Any) -> str:
    """What a function saw of two records, which it changes afterwards."""
    shown = repr((one, two))
    for each in (one, two):
        each["parts"] = 1000
        each["more"].append(1000)
    return shown


class SpoilsInFlat(FlatJoinFunction):
    def join(self, first: Any, second: Any) -> Any:
        yield spoiled_pair(first, second)


class SpoilsByTime(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Any:
        yield spoiled_pair(left, right)


class ByNumber(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        at: int = value["at"]
        return at


def two_streams(records: list[Any]) -> tuple[DataStream, DataStream]:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(ByNumber())
    env = environment()
    one, two = (env.from_collection(copy.deepcopy(records)).assign_timestamps_and_watermarks(strategy) for _ in range(2))
    return one, two


def key_of(record: Any) -> int:
    key: int = record["at"] % NUM_KEYS
    return key


NESTED = [{"at": at, "parts": at, "more": [at]} for at in range(NUM_RECORDS)]


def pairs_of(is_pair: Callable[[int, int], bool]) -> list[str]:
    return sorted(repr((one, two)) for one in NESTED for two in NESTED if key_of(one) == key_of(two) and is_pair(one["at"], two["at"]))


@pytest.mark.parametrize("function", [spoiled_pair, SpoilsInFlat()], ids=["one result", "any number"])
def test_a_join_function_of_a_window_may_change_both_records(function: Any) -> None:
    """The other pairs of the window have their own."""
    one, two = two_streams(NESTED)

    joined = one.join(two).where(key_of).equal_to(key_of).window(TumblingEventTimeWindows.of(Time.milliseconds(6))).apply(function)

    assert collected(joined) == pairs_of(lambda at, other: at // 6 == other // 6)


@pytest.mark.parametrize("reach", [3, 20])
def test_a_function_of_an_interval_join_may_change_both_records(reach: int) -> None:
    """Neither pairs with the same records nor the records that are kept for later pairs see that."""
    one, two = two_streams(NESTED)

    joined = one.key_by(key_of).interval_join(two.key_by(key_of)).between(Time.milliseconds(-reach), Time.milliseconds(reach))

    assert collected(joined.process(SpoilsByTime())) == pairs_of(lambda at, other: abs(at - other) <= reach)
