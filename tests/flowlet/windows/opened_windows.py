"""Window operators in a harness, for tests."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from flowlet.common import Time
from flowlet.datastream import OutputTag, ProcessWindowFunction
from flowlet.datastream.window import EventTimeSessionWindows, EventTimeTrigger, TumblingEventTimeWindows
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.testing import OneInputOperatorHarness

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


class Opened(Protocol):
    """The fixture that opens window operators; a type alone."""

    def __call__(self, spec: WindowSpec, before: OneInputOperatorHarness | None = None) -> OneInputOperatorHarness: ...


def sessions(gap: int = 5, **spec: Any) -> WindowSpec:
    return WindowSpec(EventTimeSessionWindows.with_gap(Time.milliseconds(gap)), EventTimeTrigger(), **spec)


def entries_of(harness: OneInputOperatorHarness, name: str) -> list[Any]:
    """Return the keys that have an entry of a state."""
    return harness.environment.keyed_state.keys_of(name)
