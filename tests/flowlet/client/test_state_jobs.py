"""Programs with keyed state, run to their end in this process."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowlet.common import Types
from flowlet.datastream import (
    AggregateFunction,
    CoFlatMapFunction,
    CoMapFunction,
    ConnectedStreams,
    DataStream,
    FilterFunction,
    FlatMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from flowlet.errors import JobExecutionError
from tests.flowlet.client.jobs import ran

pytestmark = pytest.mark.slow


def by_name(record: Any) -> Any:
    return record[0]


class Count(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield ctx.get_current_key(), count


class Everything(KeyedProcessFunction):
    """Uses all kinds of state; the timer emits them."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._list = runtime_context.get_list_state(ListStateDescriptor("list"))
        self._map = runtime_context.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.LONG()))
        self._sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG()))
        self._mean = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("mean", Mean(), Types.PICKLED_BYTE_ARRAY())
        )

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        number = value[1]
        self._list.add(number)
        self._map[f"{number % 2}"] = number
        self._sum.add(number)
        self._mean.add(number)
        ctx.timer_service().register_event_time_timer(1)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), list(self._list), dict(self._map.items()), self._sum.get(), self._mean.get()
        self._list.clear()
        yield ctx.get_current_key(), list(self._list.get())


class Mean(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


def test_a_process_function_counts_by_key_and_tells_keys_of_different_types_apart(
    environment: StreamExecutionEnvironment,
) -> None:
    """1, 1.0 and True, None and tuples are keys of their own."""
    environment.set_parallelism(2)
    keys = ["a", 1, 1.0, True, None, (1, "x"), (True, "x"), "a", 1, True, None, (True, "x")]

    results = ran(environment.from_collection([(key, 0) for key in keys]).key_by(by_name).process(Count()))

    counts = [f"{key!r}: {count}" for key, count in results]
    first = ["'a': 1", "1: 1", "1.0: 1", "True: 1", "None: 1", "(1, 'x'): 1", "(True, 'x'): 1"]
    second = ["'a': 2", "1: 2", "True: 2", "None: 2", "(True, 'x'): 2"]
    assert sorted(counts) == sorted([*first, *second])


def test_every_kind_of_state_is_of_the_key_of_the_timer_that_fires(environment: StreamExecutionEnvironment) -> None:
    environment.set_parallelism(2)

    results = ran(
        environment.from_collection([("a", 1), ("b", 10), ("a", 2), ("a", 3)]).key_by(by_name).process(Everything())
    )

    assert sorted(map(str, results)) == sorted(
        map(str, [("a", [1, 2, 3], {"1": 3, "0": 2}, 6, 2.0), ("a", []), ("b", [10], {"0": 10}, 10, 10.0), ("b", [])])
    )


class Totals:
    """Adds up the numbers of each key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def total(self, value: Any) -> Any:
        self._sum.update((self._sum.value() or 0) + value[1])
        return value[0], self._sum.value()


class Running(Totals, MapFunction):
    map = Totals.total


class Pairs(FlatMapFunction):
    """Emits what was seen before while it goes on: results are taken while the key is still current."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))

    def flat_map(self, value: Any) -> Iterator[Any]:
        for other in self._seen:
            yield value[0], other, value[1]
        self._seen.add(value[1])


class First(FilterFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._is_known = runtime_context.get_state(ValueStateDescriptor("known", Types.BOOLEAN()))

    def filter(self, value: Any) -> bool:
        is_known = self._is_known.value()
        self._is_known.update(True)
        return not is_known


@pytest.mark.parametrize("is_chained", [True, False])
def test_map_flat_map_and_filter_on_a_keyed_stream_have_state(
    environment: StreamExecutionEnvironment, is_chained: bool
) -> None:
    """Whether the operator heads its chain or stands behind another one."""
    if not is_chained:
        environment.disable_operator_chaining()
    records = environment.from_collection([("a", 1), ("b", 10), ("a", 2), ("a", 3)])

    sums = ran(records.map(lambda record: record).key_by(by_name).map(Running()))
    pairs = ran(records.key_by(by_name).flat_map(Pairs()))
    firsts = ran(records.key_by(by_name).filter(First()).map(lambda record: record))

    assert sums == [("a", 1), ("b", 10), ("a", 3), ("a", 6)]
    assert pairs == [("a", 1, 2), ("a", 1, 3), ("a", 2, 3)]
    assert firsts == [("a", 1), ("b", 10)]


class OfProcess(Totals, KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        yield self.total(value)

    process_element2 = process_element1


class OfMap(Totals, CoMapFunction):
    map1 = map2 = Totals.total


class OfFlatMap(Totals, CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Iterator[Any]:
        yield self.total(value)

    flat_map2 = flat_map1


STEPS: dict[str, Callable[[ConnectedStreams], DataStream]] = {
    "process": lambda both: both.process(OfProcess()),
    "map": lambda both: both.map(OfMap()),
    "flat map": lambda both: both.flat_map(OfFlatMap()),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_both_inputs_of_a_function_see_one_state(
    environment: StreamExecutionEnvironment, step: Callable[[ConnectedStreams], DataStream]
) -> None:
    environment.set_parallelism(2)
    first, second = (environment.from_collection(each) for each in ([("a", 1), ("b", 2)], [("a", 10), ("c", 5)]))

    results = ran(step(first.connect(second).key_by(by_name, by_name)))

    assert max(total for key, total in results if key == "a") == 11
    assert {key: total for key, total in results if key != "a"} == {"b": 2, "c": 5}


class Late(MapFunction):
    """Asks for its state too late."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._context = runtime_context

    def map(self, value: Any) -> Any:
        return self._context.get_state(ValueStateDescriptor("n")).value()


class Early(KeyedProcessFunction):
    """Uses its state before there is a key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(ValueStateDescriptor("n")).value()

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        return None


STATELESS: dict[str, tuple[Callable[[DataStream], DataStream], str]] = {
    "without a key": (
        lambda records: records.map(Running()),
        "keyed state needs a keyed stream: call key_by(...) before the operator",
    ),
    "asked for too late": (
        lambda records: records.key_by(by_name).map(Late()),
        "the function must ask for its states in open()",
    ),
    "used too early": (
        lambda records: records.key_by(by_name).process(Early()),
        "state 'n' was used without a current key",
    ),
}


@pytest.mark.parametrize(("step", "reason"), STATELESS.values(), ids=STATELESS)
def test_where_there_is_no_state_the_error_says_what_to_do(
    environment: StreamExecutionEnvironment, step: Callable[[DataStream], DataStream], reason: str
) -> None:
    with pytest.raises(JobExecutionError, match=re.escape(reason)):
        ran(step(environment.from_collection([("a", 1)])))
