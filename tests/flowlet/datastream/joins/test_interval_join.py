"""Promises of ``interval_join(...)``: the operators that it builds, its refusals, and a job from end to end."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from flowlet.common import Types, WatermarkStrategy
from flowlet.common.time import Duration, Time
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import (
    DataStream,
    KeyedStream,
    OutputTag,
    ProcessFunction,
    ProcessJoinFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from flowlet.datastream.keyed_stream import IntervalJoin, IntervalJoined
from flowlet.errors import JobGraphError
from tests.flowlet.datastream.captured_graphs import new_environment

ORDERS = [("ann", 1_000), ("bob", 2_000), ("ann", 7_000)]
PAYMENTS = [("ann", 3_000), ("bob", 500), ("ann", 9_000), ("eve", 9_500)]


class Times(ProcessJoinFunction):
    """Yields the name and both timestamps."""

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterator[Any]:
        yield left[0], ctx.get_left_timestamp(), ctx.get_right_timestamp()


class Passing(ProcessFunction):
    """Takes the key away."""

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield value


class Moment(TimestampAssigner):
    """The second field."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


def keyed(env: StreamExecutionEnvironment, records: list[tuple[str, int]]) -> KeyedStream:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(60)).with_timestamp_assigner(Moment())
    return env.from_collection(records).assign_timestamps_and_watermarks(strategy).key_by(lambda record: record[0])


def orders_and_payments(mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING) -> tuple[KeyedStream, KeyedStream]:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.set_runtime_mode(mode)
    return keyed(env, ORDERS), keyed(env, PAYMENTS)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_a_job_joins_what_lies_close_together(mode: RuntimeExecutionMode) -> None:
    """Payments are joined up to two seconds after their order; both bounds count."""
    orders, payments = orders_and_payments(mode)

    found = (
        orders.interval_join(payments).between(Time.seconds(0), Time.seconds(2)).process(Times()).execute_and_collect()
    )

    assert sorted(found) == [("ann", 1_000, 3_000), ("ann", 7_000, 9_000)]


def built(change: Callable[[IntervalJoin], IntervalJoined]) -> dict[str, Any]:
    """Return the arguments of the join in the graph of a program, which is not run."""
    env, graph = new_environment()
    change(keyed(env, ORDERS).interval_join(keyed(env, PAYMENTS))).process(Times()).print()
    factories = [node.transformation.factory for node in graph().nodes.values()]
    (found,) = [factory for factory in factories if factory.target.endswith(":IntervalJoinOperator")]
    return dict(found.arguments)


def near(join: IntervalJoin) -> IntervalJoined:
    return join.between(Time.seconds(-1), Time.seconds(2))


def test_exclusive_bounds_are_a_millisecond_narrower() -> None:
    assert built(near)["bounds"] == (-1_000, 2_000)
    assert built(lambda join: near(join).lower_bound_exclusive())["bounds"] == (-999, 2_000)
    assert built(lambda join: near(join).lower_bound_exclusive().upper_bound_exclusive())["bounds"] == (-999, 1_999)


def test_late_records_go_to_the_tags_that_were_given() -> None:
    tag = OutputTag("late")

    assert built(near)["late_tags"] == (None, None)
    assert built(lambda join: near(join).side_output_left_late_data(tag))["late_tags"] == ("late", None)
    assert built(lambda join: near(join).side_output_right_late_data(tag))["late_tags"] == (None, "late")


def test_the_result_has_the_declared_type_and_can_be_named() -> None:
    orders, payments = orders_and_payments()

    stream: DataStream = (
        orders.interval_join(payments)
        .between(Time.seconds(0), Time.seconds(0))
        .process(Times(), Types.STRING())
        .name("paid")
    )

    assert (stream.get_type(), stream.get_name()) == (Types.STRING(), "paid")


@pytest.mark.parametrize("length", [Time.milliseconds(5), Duration.of_millis(5), timedelta(milliseconds=5)])
def test_a_bound_is_a_length_of_time_of_any_kind(length: Any) -> None:
    assert built(lambda join: join.in_event_time().between(length, length))["bounds"] == (5, 5)


def join_of_two_environments() -> IntervalJoin:
    return orders_and_payments()[0].interval_join(orders_and_payments()[1])


def join_of_a_stream_without_keys() -> IntervalJoin:
    orders, payments = orders_and_payments()
    return orders.interval_join(payments.process(Passing()))  # type: ignore[arg-type]  # a user's mistake


def joined() -> IntervalJoined:
    orders, payments = orders_and_payments()
    return orders.interval_join(payments).between(Time.milliseconds(0), Time.milliseconds(1))


def between(lower: Any, upper: Any) -> IntervalJoined:
    orders, payments = orders_and_payments()
    return orders.interval_join(payments).between(lower, upper)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "two environments": (join_of_two_environments, "needs streams of the same environment"),
    "no keys": (join_of_a_stream_without_keys, r"second stream that is keyed; call key_by"),
    "bounds in the wrong order": (
        lambda: between(Time.milliseconds(1), Time.milliseconds(0)),
        "not above the upper one, got 1 ms and 0 ms",
    ),
    "no length of time": (lambda: between("1 s", 0), r"needs a Duration such as Duration.of_seconds\(5\), got '1 s'"),
    "nothing in between": (
        lambda: between(Time.milliseconds(3), Time.milliseconds(3)).lower_bound_exclusive().process(Times()),
        "leave nothing between them",
    ),
    "no tag": (lambda: joined().side_output_left_late_data("late"), ("needs an OutputTag, got 'late'")),  # type: ignore[arg-type]
    "a class": (lambda: joined().process(Times), "write Times()"),  # type: ignore[arg-type]
    "no function": (lambda: joined().process(len), "needs a ProcessJoinFunction"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("build", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named_where_they_are_made(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(JobGraphError, match=message.replace("()", r"\(\)")):
        build()


def test_processing_time_is_refused_as_in_flink() -> None:
    orders, payments = orders_and_payments()

    with pytest.raises(JobGraphError, match="event time only"):
        orders.interval_join(payments).in_processing_time()
