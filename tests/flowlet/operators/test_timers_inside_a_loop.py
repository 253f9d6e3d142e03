"""A watermark between two records of one chunk fires timers of an operator behind, whose results go through the outputs
of that loop.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.common.watermark_generator import WatermarkGenerator
from flowlet.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from flowlet.datastream import KeyedProcessFunction
from flowlet.operators.event_time_stream import TimestampsAndWatermarksOperator
from flowlet.operators.process_operator import ProcessOperator
from flowlet.records import Chunk
from tests.flowlet.operators.chains import ChainHarness


class Punctuated(WatermarkGenerator):
    def on_event(self, event: Any, event_timestamp: int, output: Any) -> None:
        output.emit_watermark(event[1])

    def on_periodic_emit(self, output: Any) -> None:
        pass


class Second(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


def key_of(value: Any) -> Any:
    return value[0]


def results(
    function: KeyedProcessFunction, *, has_timestamps: bool = True
) -> tuple[list[Any], Callable[[list[Any]], None]]:
    strategy = WatermarkStrategy.for_generator(Punctuated)
    if has_timestamps:
        strategy = strategy.with_timestamp_assigner(Second())
    behind = ChainedOperator(ProcessOperator(function, key_of), 0, None, key_of)
    harness = ChainHarness(TimestampsAndWatermarksOperator(strategy), behind)
    return harness.output.elements, lambda values: harness.process(*values)


def values_of(elements: list[Any]) -> list[Any]:
    return [value for element in elements if isinstance(element, Chunk) for value in element.values]


class Asks(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(value[1])
        yield "element", ctx.get_current_key(), ctx.timestamp()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield "timer", ctx.get_current_key(), timestamp


def test_the_context_still_answers_after_a_timer() -> None:
    """``_on_timer`` leaves the context in which the loop goes on."""
    elements, process = results(Asks())

    process([("a", 1), ("b", 2), ("c", 3)])

    assert values_of(elements) == [
        (what, key, number) for number, key in enumerate("abc", 1) for what in ("element", "timer")
    ]


class Emits(KeyedProcessFunction):
    timers: Any = None

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        if self.timers is None:
            self.timers = ctx.timer_service()
        if value[1] >= 40:
            self.timers.register_event_time_timer(value[1])
        yield value[0], value[1]

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield {"timer": timestamp}


def test_no_record_is_lost_when_the_shape_is_chosen_inside_a_loop() -> None:
    """``choose_shape`` of the inner run makes new lists of fields; the outer loop goes on appending to the old ones."""
    elements, process = results(Emits())

    process([("k", number) for number in range(40)])
    process([("k", number) for number in range(40, 140)])

    expected: list[Any] = [("k", number) for number in range(40)]
    for number in range(40, 140):
        expected += [("k", number), {"timer": number}]
    assert values_of(elements) == expected


@pytest.mark.parametrize("number", [5, 100])
def test_records_without_timestamps_and_timers_with_them_share_no_chunk(number: int) -> None:
    """The inner run leaves the chunking output with ``_has_timestamps``, and the outer loop adds none."""
    elements, process = results(Emits(), has_timestamps=False)

    process([("k", 40 + each) for each in range(number)])

    stamps = [
        (len(each.values), None if each.timestamps is None else len(each.timestamps))
        for each in elements
        if isinstance(each, Chunk)
    ]
    assert all(expected in (None, length) for length, expected in stamps)
