"""Promises of ``join(...)`` and ``co_group(...)``: jobs from end to end, and refusals when a program is built."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from flowlet.common import Types, WatermarkStrategy
from flowlet.common.time import Time
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import (
    CoGroupFunction,
    DataStream,
    FlatJoinFunction,
    JoinFunction,
    KeySelector,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.joins.window_join import CoGroups, Tag, WindowCoGroup, WindowJoin
from flowlet.datastream.window import CountEvictor, EventTimeTrigger, TumblingEventTimeWindows
from flowlet.errors import JobGraphError

ORDERS = [("ann", 1_000, "tea"), ("bob", 2_000, "milk"), ("ann", 4_000, "rice"), ("ann", 12_000, "salt")]
PAYMENTS = [("ann", 3_000, 5), ("bob", 11_000, 7), ("ann", 9_999, 9)]


class Moment(TimestampAssigner):
    """The second field."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


def timed(env: StreamExecutionEnvironment, records: list[Any]) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Moment())
    return env.from_collection(sorted(records, key=lambda record: record[1])).assign_timestamps_and_watermarks(strategy)


def name_of(record: Any) -> str:
    return str(record[0])


def orders_and_payments() -> tuple[DataStream, DataStream]:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    return timed(env, ORDERS), timed(env, PAYMENTS)


def joined() -> WindowJoin:
    orders, payments = orders_and_payments()
    by_name = orders.join(payments).where(name_of).equal_to(name_of, Types.STRING())
    return by_name.window(TumblingEventTimeWindows.of(Time.seconds(10)))


def co_grouped() -> WindowCoGroup:
    orders, payments = orders_and_payments()
    return (
        orders.co_group(payments).where(name_of).equal_to(name_of).window(TumblingEventTimeWindows.of(Time.seconds(10)))
    )


class Paid(JoinFunction):
    """Joins the third fields of both records; opened like any function."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.separator = ": "

    def join(self, first: Any, second: Any) -> Any:
        return f"{first[2]}{self.separator}{second[2]}"


class MuchPaid(FlatJoinFunction):
    """The same where it is much."""

    def join(self, first: Any, second: Any) -> Iterable[Any] | None:
        return [f"{first[2]}: {second[2]}"] if second[2] > 5 else None


class Unpaid(CoGroupFunction):
    """Orders without a payment."""

    def co_group(self, first: Iterable[Any], second: Iterable[Any]) -> Iterator[Any]:
        if not list(second):
            for order in first:
                yield order[2]


def results(stream: DataStream) -> list[Any]:
    return sorted(stream.execute_and_collect())


@pytest.mark.slow
def test_a_join_has_each_pair_of_a_key_and_window() -> None:
    assert results(joined().apply(Paid(), Types.STRING())) == ["rice: 5", "rice: 9", "tea: 5", "tea: 9"]


@pytest.mark.slow
def test_a_flat_join_may_leave_pairs_out() -> None:
    assert results(joined().apply(MuchPaid())) == ["rice: 9", "tea: 9"]


@pytest.mark.slow
def test_a_co_group_sees_what_has_no_partner() -> None:
    assert results(co_grouped().apply(Unpaid())) == ["milk", "salt"]


class Stamped(MapFunction):
    """Returns the record unchanged."""

    def map(self, value: Any) -> Any:
        return value


@pytest.mark.slow
def test_trigger_evictor_and_lateness_are_those_of_windows() -> None:
    """The evictor keeps the last two records of both streams together: an order and a payment of ann's."""
    windows = joined().trigger(EventTimeTrigger()).evictor(CountEvictor.of(2)).allowed_lateness(1_000)

    found = windows.apply(lambda order, payment: (order[0], payment[0]), Types.TUPLE([Types.STRING(), Types.STRING()]))

    assert found.get_name() == "Window Join"
    assert set(results(found.map(Stamped()))) <= {("ann", "ann")}


class Letters(KeySelector):
    """Needs to be opened."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def get_key(self, value: Any) -> Any:
        return value[0] if self.is_open else None


def test_a_key_selector_is_opened_and_closed() -> None:
    selector = Letters()
    tag = Tag(selector, is_second=True)

    tag.open(None)  # type: ignore[arg-type]  # the selector does not ask
    tagged = tag.map(("ann", 1))
    tag.close()

    assert tagged == ("ann", True, ("ann", 1))
    assert not selector.is_open


def test_a_co_group_that_returns_none_emits_nothing() -> None:
    assert list(CoGroups(lambda first, second: None).apply("k", None, [("k", False, 1)])) == []


def pairs_of(first: Any, second: Any) -> Iterator[Any]:
    yield first, second


def other_environment() -> DataStream:
    return StreamExecutionEnvironment.get_execution_environment().from_collection([1])


def with_key_types(first: Any, second: Any) -> Any:
    orders, payments = orders_and_payments()
    return orders.join(payments).where(name_of, first).equal_to(name_of, second)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "two environments": (
        lambda: orders_and_payments()[0].join(other_environment()),
        r"join\(\) needs streams of the same environment",
    ),
    "no stream": (
        lambda: orders_and_payments()[0].co_group([1]),  # type: ignore[arg-type]
        r"co_group\(\) needs streams",
    ),
    "two types of keys": (lambda: with_key_types(Types.LONG(), Types.STRING()), "need one type, got Long and String"),
    "a generator function": (lambda: joined().apply(pairs_of), "use a FlatJoinFunction"),
    "a class": (lambda: joined().apply(Paid), r"write Paid\(\)"),  # type: ignore[arg-type]
    "another function": (lambda: joined().apply(Stamped()), "needs a JoinFunction or FlatJoinFunction here"),  # type: ignore[arg-type]
    "one argument": (lambda: joined().apply(lambda record: record), "2 records"),  # type: ignore[arg-type,misc]
    "a join function for a co-group": (lambda: co_grouped().apply(Paid()), "needs a CoGroupFunction here"),  # type: ignore[arg-type]
    "no assigner": (lambda: with_key_types(None, None).window(5), "windows need an assigner"),
}


@pytest.mark.parametrize(("build", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named_where_they_are_made(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        build()


def test_a_key_selector_may_replace_its_method_while_it_is_opened() -> None:
    class Late(KeySelector):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.get_key = lambda value: value[0]  # type: ignore[method-assign]

        def get_key(self, value: Any) -> Any:
            pytest.fail("it is not open")

    tag = Tag(Late(), is_second=False)

    tag.open(None)  # type: ignore[arg-type]  # the selector does not ask

    assert tag.map(("ann", 1)) == ("ann", False, ("ann", 1))
