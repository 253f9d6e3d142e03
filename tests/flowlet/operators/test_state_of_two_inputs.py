"""``KeyedCoProcessFunction`` with every kind of state and timers of both kinds, used from both inputs; and ``CoMap``,
``CoFlatMap``.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlet.datastream import (
    AggregateFunction,
    CoFlatMapFunction,
    CoMapFunction,
    KeyedCoProcessFunction,
    RuntimeContext,
)
from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from flowlet.operators.co_functions import CoFlatMapOperator, CoMapOperator
from flowlet.operators.process_operator import CoProcessOperator
from tests.flowlet.joins.subtasks import Subtasks


def key_of(record: Any) -> Any:
    return record[0]


class Widest(AggregateFunction):
    """The lowest and the highest."""

    def create_accumulator(self) -> tuple[int, int]:
        return 10**9, -1

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return min(accumulator[0], value), max(accumulator[1], value)

    def get_result(self, accumulator: tuple[int, int]) -> int:
        return accumulator[1] - accumulator[0]

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return min(acc_a[0], acc_b[0]), max(acc_a[1], acc_b[1])


class Everything(KeyedCoProcessFunction):
    """The first input writes all states, the second one reads them; a timer tells and forgets them."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last"))
        self.all = runtime_context.get_list_state(ListStateDescriptor("all"))
        self.by_number = runtime_context.get_map_state(MapStateDescriptor("by number"))
        self.total = runtime_context.get_reducing_state(ReducingStateDescriptor("total", lambda one, two: one + two))
        self.width = runtime_context.get_aggregating_state(AggregatingStateDescriptor("width", Widest()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        key, number = value
        self.last.update(number)
        self.all.add(number)
        self.by_number.put(number, key)
        self.total.add(number)
        self.width.add(number)
        ctx.timer_service().register_event_time_timer(number)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        yield self._seen(ctx)
        ctx.timer_service().delete_event_time_timer(value[1])
        ctx.timer_service().register_event_time_timer(value[1] + 1)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield timestamp, self._seen(ctx)
        for state in (self.last, self.all, self.by_number, self.total, self.width):
            state.clear()

    def _seen(self, ctx: Any) -> Any:
        found = self.last.value(), list(self.all), sorted(self.by_number.items()), self.total.get(), self.width.get()
        return ctx.get_current_key(), *found


@pytest.mark.parametrize("backend", ["heap", pytest.param("rocksdb", marks=pytest.mark.slow)])
def test_both_inputs_and_timers_share_all_kinds_of_state_over_a_rescaling(backend: str, tmp_path: Path) -> None:
    """A timer that the other input deleted does not fire; state is the key's."""
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")
    operator = Subtasks(
        lambda: CoProcessOperator(Everything(), (key_of, key_of)), key_of, None if backend == "heap" else tmp_path
    )

    operator.process(1, [("a", 5), ("b", 6), ("a", 9)], [0, 0, 0])
    operator.rescale(3)
    operator.process(2, [("a", 5), ("c", 1)], [0, 0])
    found = operator.take()[0]
    operator.rescale(2)
    operator.process(2, [("b", 6)], [0])
    found += operator.take()[0]
    operator.advance(8)
    (timers,) = operator.take()
    operator.close()

    a, b = ("a", 9, [5, 9], [(5, "a"), (9, "a")], 14, 4), ("b", 6, [6], [(6, "b")], 6, 0)
    c: Any = ("c", None, [], [], None, None)
    assert sorted((each.value for each in found), key=key_of) == [a, b, c]
    assert sorted((each.value for each in timers), key=key_of) == [(2, c), (6, a), (7, b)]


class CountMap(CoMapFunction):
    """Counts the records of both inputs together."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def _next(self, value: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        return value[0], self.count.value()

    def map1(self, value: Any) -> Any:
        return self._next(value)

    def map2(self, value: Any) -> Any:
        return self._next(value)


class CountFlatMap(CoFlatMapFunction):
    """The same."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.counts = CountMap()
        self.counts.open(runtime_context)

    def flat_map1(self, value: Any) -> Any:
        return [self.counts.map1(value)]

    def flat_map2(self, value: Any) -> Any:
        yield self.counts.map2(value)


CO_MAP = lambda: CoMapOperator(CountMap(), (key_of, key_of))  # noqa: E731 - a table of cases reads better
CO_FLAT_MAP = lambda: CoFlatMapOperator(CountFlatMap(), (key_of, key_of))  # noqa: E731


@pytest.mark.parametrize("make", [CO_MAP, CO_FLAT_MAP], ids=["co-map", "co-flat-map"])
def test_co_map_and_co_flat_map_keep_state_of_both_inputs(make: Callable[[], Any]) -> None:
    operator = Subtasks(make, key_of)

    operator.process(1, [("a", 1), ("b", 1)], [0, 0])
    operator.rescale(2)
    operator.process(2, [("a", 1), ("c", 1)], [0, 0])
    operator.process(1, [("a", 1)], [0])
    (found,) = operator.take()
    operator.close()

    assert sorted(each.value for each in found) == [("a", 2), ("a", 3), ("c", 1)]
