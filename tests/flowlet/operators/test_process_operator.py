"""Source: Flink ``ProcessOperatorTest``, ``KeyedProcessOperatorTest``, ``CoProcessOperatorTest``,
``KeyedCoProcessOperatorTest``.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from flowlet.chain.chunking_output import MAX_WAITING
from flowlet.columns import Columns, ListColumn, Shape
from flowlet.datastream import (
    CoProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    TimeDomain,
)
from flowlet.errors import FlowletError, JobGraphError, UserFunctionError
from flowlet.operators.process_operator import CoProcessOperator, MapOperator, ProcessOperator
from flowlet.records import Chunk, Watermark
from tests.flowlet.operators.chains import ChainHarness
from tests.flowlet.operators.harness import Harness

ODD = OutputTag("odd")


class SplitByParity(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[Any]:
        if value % 2:
            yield ODD, (value, ctx.timestamp())
        else:
            yield value, ctx.timestamp()


class Query(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> list[Any]:
        return [(value, ctx.timer_service().current_processing_time(), ctx.timer_service().current_watermark())]


class Alarm(KeyedProcessFunction):
    """Sets a timer of each kind 10 ms after each record."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        timestamp = ctx.timestamp()
        if timestamp is None:
            ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 10)
        else:
            ctx.timer_service().register_event_time_timer(timestamp + 10)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, ctx.timestamp(), ctx.time_domain()
        yield ODD, timestamp


def test_results_go_to_the_main_and_the_side_output_with_their_timestamps() -> None:
    harness = Harness(ProcessOperator(SplitByParity()))

    harness.process(1, 2, 3, 4, timestamps=[10, 20, 30, 40])

    assert harness.output.values == [(2, 20), (4, 40)]
    assert harness.output.timestamps == [20, 40]
    assert harness.output.sides == {"odd": [(1, 10), (3, 30)]}


def test_a_function_without_keys_knows_the_time() -> None:
    harness = Harness(ProcessOperator(Query()))

    harness.clock.set_time(5)
    harness.operator.process_watermark(Watermark(17))
    harness.process("a")

    assert harness.output.values == [("a", 5, 17)]


def test_timers_need_keys() -> None:
    class Timers(ProcessFunction):
        def process_element(self, value: Any, ctx: ProcessFunction.Context) -> None:
            ctx.timer_service().register_event_time_timer(1)

    harness = Harness(ProcessOperator(Timers()))

    with pytest.raises(UserFunctionError) as caught:
        harness.process("a")

    assert isinstance(caught.value.__cause__, FlowletError)
    assert "keyed stream" in str(caught.value.__cause__)


def test_event_time_timers_fire_before_the_watermark_goes_on() -> None:
    harness = Harness(ProcessOperator(Alarm(), lambda record: record[0]))
    harness.process(("a", 1), ("b", 1), ("a", 1), timestamps=[1, 2, 1])

    harness.operator.process_watermark(Watermark(11))

    assert harness.output.values == [("a", 11, 11, TimeDomain.EVENT_TIME)]
    assert harness.output.timestamps == [11]
    assert harness.output.elements[-1] == Watermark(11)
    assert harness.output.sides == {"odd": [11]}


def test_processing_time_timers_emit_without_timestamp() -> None:
    harness = Harness(ProcessOperator(Alarm(), lambda record: record[0]))
    harness.process(("a", 1))

    harness.clock.set_time(10)

    assert harness.output.values == [("a", 10, 10, TimeDomain.PROCESSING_TIME)]
    assert harness.output.timestamps == [None]


def test_the_key_is_the_users_own() -> None:
    """The key is not the stand-in that tells 1 from True."""
    harness = Harness(ProcessOperator(KeyAndValue(), lambda record: record))

    harness.process(1, True, (1.5, "x"), None, [1])

    keys = [(type(key), key) for key, _ in harness.output.values]
    assert keys == [(int, 1), (bool, True), (tuple, (1.5, "x")), (type(None), None), (list, [1])]


class KeyAndValue(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> list[Any]:
        return [(ctx.get_current_key(), value)]


def never(_: Any) -> Any:
    raise AssertionError("asked")


def test_a_key_that_the_sender_saw_is_not_asked_for_again() -> None:
    """The key is a field of the chunk's columns, or comes in a list of its own, if it is no field."""
    fields = (ListColumn([1, 2]), ListColumn(["a", "b"]))
    in_columns = Chunk.of_columns(Columns(2, fields, Shape.TUPLE, key_position=1))
    beside = Chunk([[1], [2]], [5, 6])
    beside.keys = ["a", "b"]
    harness = Harness(ProcessOperator(KeyAndValue(), never))

    harness.operator.process_chunk(in_columns)
    harness.operator.process_chunk(beside)

    assert harness.output.values == [("a", (1, "a")), ("b", (2, "b")), ("a", [1]), ("b", [2])]
    assert harness.output.timestamps == [None, None, 5, 6]


def test_a_keyed_function_inside_a_chain_has_its_keys() -> None:
    """The keys are not known from the stream, so the selector is asked, once per record."""
    asked: list[int] = []

    def parity(value: int) -> int:
        asked.append(value)
        return value % 2

    harness = ChainHarness(MapOperator(lambda value: value), ProcessOperator(KeyAndValue(), parity))

    harness.process(1, 2, 3)

    assert harness.output.values == [(1, 1), (0, 2), (1, 3)]
    assert asked == [1, 2, 3]


def test_a_context_is_not_for_later() -> None:
    class Keeping(ProcessFunction):
        def process_element(self, value: Any, ctx: ProcessFunction.Context) -> None:
            self.ctx = ctx

    function = Keeping()
    harness = Harness(ProcessOperator(function), pickled=False)
    harness.process("a")

    with pytest.raises(FlowletError, match="only be used while its record is processed"):
        function.ctx.timestamp()


@pytest.mark.parametrize(("bad", "preview"), [(3, "3"), ("x", "'x'")])
def test_a_failure_names_the_record(bad: object, preview: str) -> None:
    class Failing(ProcessFunction):
        def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
            if value == bad:
                raise ValueError("no")
            yield value

    harness = Harness(ProcessOperator(Failing()))

    with pytest.raises(UserFunctionError, match=f"record {preview}") as caught:
        harness.process(1, 2, bad, 4)

    assert isinstance(caught.value.__cause__, ValueError)


def test_a_failing_timer_names_its_key() -> None:
    class Failing(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            ctx.timer_service().register_event_time_timer(5)

        def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
            raise ValueError("no")

    harness = Harness(ProcessOperator(Failing(), lambda record: record))
    harness.process("k")

    with pytest.raises(UserFunctionError) as caught:
        harness.operator.process_watermark(Watermark(5))

    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__notes__ == ["raised by on_timer() at 5 for the key 'k'"]


def test_a_generator_of_many_results_is_emitted_in_parts() -> None:
    class Many(ProcessFunction):
        def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[int]:
            yield from range(value)

    harness = Harness(ProcessOperator(Many()))

    harness.process(2 * MAX_WAITING + 1)

    assert [len(chunk) for chunk in harness.output.chunks] == [MAX_WAITING, MAX_WAITING, 1]


class Both(CoProcessFunction):
    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> list[Any]:
        return [(1, value, ctx.timestamp())]

    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        yield ODD, value


class Join(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(value[1])

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        ctx.timer_service().delete_event_time_timer(value[0])

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp


def test_two_inputs_have_a_method_each() -> None:
    harness = Harness(CoProcessOperator(Both()))

    harness.process_input(1, "a", timestamps=[3])
    harness.process_input(2, "b")

    assert harness.output.values == [(1, "a", 3)]
    assert harness.output.sides == {"odd": ["b"]}


def test_timers_of_two_inputs_share_their_keys() -> None:
    """The second input's key selector finds the key under which the first one registered."""
    harness = Harness(CoProcessOperator(Join(), (lambda record: record[0], lambda record: record[1])))
    harness.process_input(1, ("a", 5), ("b", 5))
    harness.process_input(2, (5, "a"))

    for harness_input in harness.operator.inputs():
        harness_input.process_control(Watermark(9))

    assert harness.output.values == [("b", 5)]


def test_a_function_of_two_streams_needs_both_methods() -> None:
    class Half:
        def process_element1(self, value: Any, ctx: Any) -> None:
            pass

    with pytest.raises(JobGraphError, match=r"process_element1\(\) and process_element2\(\)"):
        CoProcessOperator(Half())
