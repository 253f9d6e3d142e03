"""A text where the ``OutputTag`` of a side output was meant: the record goes to the main output,
and a warning says so.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from flowlet.datastream import (
    CoProcessFunction,
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
)
from tests.flowlet.client.jobs import ran

LATE = OutputTag("late")
WARNING = "a tuple went to the main output whose first field is the id of a side output, as a text"


class Yields(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        yield value


class OfTwo(CoProcessFunction):
    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        yield value

    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        yield value


class OnTimer(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(5)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key()


class OfWindow(ProcessWindowFunction):
    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Any) -> list[Any]:
        return list(elements)


KINDS: dict[str, Callable[[DataStream], DataStream]] = {
    "process": lambda records: records.process(Yields()),
    "two inputs": lambda records: records.connect(records).process(OfTwo()),
    "a timer": lambda records: records.key_by(lambda record: record).process(OnTimer()),
    "a window": lambda records: records.key_by(lambda record: 1).count_window(1).process(OfWindow()),
}


def warnings_of(
    environment: StreamExecutionEnvironment, kind: str, records: list[Any], *tags: OutputTag
) -> tuple[list[Any], list[Any]]:
    """Return the warnings, and the records at the main output."""
    stream = KINDS[kind](environment.from_collection(records))
    sides = [stream.get_side_output(tag).map(lambda value: ("side", value)) for tag in tags]
    with capture_logs() as logs:
        found = ran(stream.union(*sides))
    return [line for line in logs if line["event"].startswith(WARNING)], found


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_is_the_id_of_a_side_output_is_warned_of_once(
    kind: str, environment: StreamExecutionEnvironment
) -> None:
    """The record still goes to the main output, as PyFlink sends it."""
    records = [("fine", 1), ("late", 2), ("late", 3)]

    warnings, found = warnings_of(environment, kind, records, LATE)

    assert set(found) == set(records)
    assert [(line["side_output"], line["record"], line["log_level"]) for line in warnings] == [
        ("late", "('late', 2)", "warning")
    ]
    assert warnings[0]["operator"]


@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_tuples_are_not_warned_of(kind: str, environment: StreamExecutionEnvironment) -> None:
    """Tuples with other texts, lengths or types are ordinary, and so are those with the text of no side output that is
    read, and records of a tag itself.
    """
    records = [("early", 1), ("late",), ("late", 1, 2), (b"late", 1), (1, "late"), (None, 1)]

    warnings, found = warnings_of(environment, kind, records, LATE)

    assert (warnings, len(set(found))) == ([], len(records))
    warnings, found = warnings_of(environment, kind, [("late", 1)])
    assert (warnings, set(found)) == ([], {("late", 1)})


def test_a_tag_is_emitted_beside_texts_without_a_warning(environment: StreamExecutionEnvironment) -> None:
    class Tags(ProcessFunction):
        def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
            yield LATE, value
            yield "on time", value

    stream = environment.from_collection([1]).process(Tags())
    with capture_logs() as logs:
        found = ran(stream.union(stream.get_side_output(LATE)))

    assert sorted(found, key=str) == [("on time", 1), 1]
    assert [line for line in logs if line["event"].startswith(WARNING)] == []
