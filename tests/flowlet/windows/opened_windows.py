"""Window operators in a harness, for tests."""

from collections.abc import Iterable, Iterator
from typing import Any

from flowlet.common import Time
from flowlet.datastream import OutputTag, ProcessWindowFunction
from flowlet.datastream.window import EventTimeTrigger, TumblingEventTimeWindows
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.testing import OneInputOperatorHarness
from flowlet.windows.window_operator import WindowOperator

SIDE = OutputTag("side")


def first(record: Any) -> Any:
    return record[0]


def summed(one: Any, other: Any) -> Any:
    return one[0], one[1] + other[1]


class Listing(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: ProcessWindowFunction.Context[Any], elements: Iterable[Any]) -> Iterator[Any]:
        yield key, context.window(), [record[1] for record in elements], context.current_watermark()
        yield SIDE, key


def tumbling(size: int = 10, **spec: Any) -> WindowSpec:
    return WindowSpec(
        TumblingEventTimeWindows.of(Time.milliseconds(size)), spec.pop("trigger", EventTimeTrigger()), **spec
    )


def opened(spec: WindowSpec) -> OneInputOperatorHarness:
    harness = OneInputOperatorHarness(WindowOperator(spec, first))
    harness.open()
    return harness


def entries_of(harness: OneInputOperatorHarness, name: str) -> list[Any]:
    """Return the keys that have an entry of a state."""
    return harness.environment.keyed_state.keys_of(name)
