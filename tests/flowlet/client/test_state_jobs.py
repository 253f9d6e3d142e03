"""Programs with keyed state, run to their end in this process."""

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

pytestmark = pytest.mark.slow


def ran(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as results:
        return list(results)


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


def test_a_process_function_counts_by_key_and_tells_keys_of_different_types_apart() -> None:
    """1, 1.0 and True, None and tuples are keys of their own."""
    env = StreamExecutionEnvironment.get_execution_environment()
    keys = ["a", 1, 1.0, True, None, (1, "x"), (True, "x"), "a", 1, True, None, (True, "x")]

    results = ran(env.from_collection([(key, 0) for key in keys]).key_by(by_name).process(Count()))

    counts = [f"{key!r}: {count}" for key, count in results]
    first = ["'a': 1", "1: 1", "1.0: 1", "True: 1", "None: 1", "(1, 'x'): 1", "(True, 'x'): 1"]
    second = ["'a': 2", "1: 2", "True: 2", "None: 2", "(True, 'x'): 2"]
    assert sorted(counts) == sorted([*first, *second])


def test_every_kind_of_state_is_of_the_key_of_the_timer_that_fires() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()

    results = ran(env.from_collection([("a", 1), ("b", 10), ("a", 2), ("a", 3)]).key_by(by_name).process(Everything()))

    assert sorted(map(str, results)) == sorted(
        map(str, [("a", [1, 2, 3], {"1": 3, "0": 2}, 6, 2.0), ("a", []), ("b", [10], {"0": 10}, 10, 10.0), ("b", [])])
    )


class Running(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def map(self, value: Any) -> Any:
        self._sum.update((self._sum.value() or 0) + value[1])
        return value[0], self._sum.value()


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
def test_map_flat_map_and_filter_on_a_keyed_stream_have_state(is_chained: bool) -> None:
    """Whether the operator heads its chain or stands behind another one."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    if not is_chained:
        env.disable_operator_chaining()
    records = env.from_collection([("a", 1), ("b", 10), ("a", 2), ("a", 3)])

    sums = ran(records.map(lambda record: record).key_by(by_name).map(Running()))
    pairs = ran(records.key_by(by_name).flat_map(Pairs()))
    firsts = ran(records.key_by(by_name).filter(First()).map(lambda record: record))

    assert sums == [("a", 1), ("b", 10), ("a", 3), ("a", 6)]
    assert pairs == [("a", 1, 2), ("a", 1, 3), ("a", 2, 3)]
    assert firsts == [("a", 1), ("b", 10)]


class Both(KeyedCoProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._number = runtime_context.get_state(ValueStateDescriptor("number", Types.LONG()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        self._number.update((self._number.value() or 0) + value[1])
        yield value[0], self._number.value()

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        self._number.update((self._number.value() or 0) + value[1])
        yield value[0], self._number.value()


def test_both_inputs_of_a_co_process_function_see_one_state() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    first, second = env.from_collection([("a", 1), ("b", 2)]), env.from_collection([("a", 10), ("c", 5)])

    results = ran(first.connect(second).key_by(by_name, by_name).process(Both()))

    assert max(total for key, total in results if key == "a") == 11
    assert {key: total for key, total in results if key != "a"} == {"b": 2, "c": 5}


class BothInOneLine(CoMapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._number = runtime_context.get_state(ValueStateDescriptor("number", Types.LONG()))

    def map1(self, value: Any) -> Any:
        self._number.update((self._number.value() or 0) + value[1])
        return value[0], self._number.value()

    map2 = map1


class BothFlat(CoFlatMapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._number = runtime_context.get_state(ValueStateDescriptor("number", Types.LONG()))

    def flat_map1(self, value: Any) -> Iterator[Any]:
        self._number.update((self._number.value() or 0) + value[1])
        yield value[0], self._number.value()

    flat_map2 = flat_map1


@pytest.mark.parametrize("step", [lambda both: both.map(BothInOneLine()), lambda both: both.flat_map(BothFlat())])
def test_co_map_and_co_flat_map_on_keyed_streams_have_state(step: Callable[[ConnectedStreams], DataStream]) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    first, second = env.from_collection([("a", 1), ("b", 2)]), env.from_collection([("a", 10), ("c", 5)])

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


def failure_of(stream: Any) -> str:
    with pytest.raises(JobExecutionError) as caught:
        ran(stream)
    return str(caught.value)


def test_without_a_key_the_error_says_what_to_do() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    records = env.from_collection([("a", 1)])

    assert "keyed state needs a keyed stream: call key_by(...) before the operator" in failure_of(
        records.map(Running())
    )
    assert "the function must ask for its states in open()" in failure_of(records.key_by(by_name).map(Late()))
    assert "state 'n' was used without a current key" in failure_of(records.key_by(by_name).process(Early()))
