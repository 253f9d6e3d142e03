"""Source: Flink ``SourceStreamTaskTest``: a source function on a thread of its own."""

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.connectors.blocking_source import MAX_PENDING_RECORDS, BlockingSourceReader, SourceFunctionPosition
from flowlet.datastream.user_functions.source_function import SourceContext, SourceFunction
from flowlet.errors import FlowletError, TaskCancelled
from flowlet.records import ACTIVE, IDLE, Chunk, Watermark, WatermarkStatus
from tests.waiting import PATIENCE_S, spin_until


class Emitting(SourceFunction):
    """A source function that runs the script of the test."""

    def __init__(self, script: Callable[[SourceContext], None], on_cancel: Callable[[], None] = lambda: None) -> None:
        self.script = script
        self.on_cancel = on_cancel

    def run(self, ctx: SourceContext) -> None:
        self.script(ctx)

    def cancel(self) -> None:
        self.on_cancel()


def poll(reader: BlockingSourceReader) -> Chunk | Watermark | WatermarkStatus | None:
    """Return the next element; wait as a task does."""
    while True:
        element = reader.poll_chunk()
        if not isinstance(element, Chunk) or element.values:
            return element
        there = threading.Event()
        reader.available_future().add_done_callback(there.set)
        assert there.wait(PATIENCE_S)


def read_all(script: Callable[[SourceContext], None]) -> list[Any]:
    reader = BlockingSourceReader(Emitting(script), "source")
    elements: list[Any] = []
    while (element := poll(reader)) is not None:
        elements.append(element)
    reader.close()
    return elements


def flattened(elements: list[Any]) -> list[Any]:
    """Return records with their timestamps one by one: their chunks depend on the speed of the threads."""
    flat: list[Any] = []
    for element in elements:
        if isinstance(element, Chunk):
            stamps: list[int | None] = (
                [*element.timestamps] if element.timestamps is not None else [None] * len(element)
            )
            flat += zip(element.values, stamps, strict=True)
        else:
            flat.append(element)
    return flat


def test_records_watermarks_and_idleness_keep_their_order() -> None:
    def script(ctx: SourceContext) -> None:
        ctx.collect("a")
        ctx.collect_with_timestamp("b", 5)
        ctx.emit_watermark(5)
        ctx.mark_as_temporarily_idle()
        ctx.mark_as_temporarily_idle()
        ctx.collect("c")

    assert flattened(read_all(script)) == [("a", None), ("b", 5), Watermark(5), IDLE, ACTIVE, ("c", None)]


def test_many_records_are_bounded_and_complete() -> None:
    """The function waits for room; chunks stay within their limit."""
    number = 5 * MAX_PENDING_RECORDS
    largest = [0]

    def script(ctx: SourceContext) -> None:
        for value in range(number):
            ctx.collect(value)

    elements = read_all(script)
    largest[0] = max(len(element) for element in elements)

    assert [value for value, _ in flattened(elements)] == list(range(number))
    assert largest[0] <= MAX_PENDING_RECORDS // 2


def test_a_failure_comes_after_what_was_emitted_before_it() -> None:
    def script(ctx: SourceContext) -> None:
        ctx.collect(1)
        raise OSError("the queue is gone")

    reader = BlockingSourceReader(Emitting(script), "source")

    assert poll(reader) == Chunk([1])
    with pytest.raises(OSError, match="the queue is gone"):
        poll(reader)
    reader.close()


def test_cancelling_reaches_a_function_that_waits_for_room() -> None:
    ended: list[type[BaseException]] = []

    def script(ctx: SourceContext) -> None:
        try:
            while True:
                ctx.collect(0)
        except BaseException as error:
            ended.append(type(error))
            raise

    reader = BlockingSourceReader(Emitting(script), "source")
    reader.poll_chunk()
    spin_until(lambda: reader._num_pending == MAX_PENDING_RECORDS)

    reader.close()
    reader.close()

    assert ended == [TaskCancelled]


def test_a_reader_that_was_never_polled_has_no_thread() -> None:
    before = threading.active_count()

    BlockingSourceReader(Emitting(lambda ctx: None), "source").close()

    assert threading.active_count() == before


def test_watermarks_and_statuses_are_bounded_too() -> None:
    """A function that emits nothing else waits for the task as well."""
    has_returned = threading.Event()

    def script(ctx: SourceContext) -> None:
        for number in range(MAX_PENDING_RECORDS + 10):
            ctx.emit_watermark(number)
        has_returned.set()

    reader = BlockingSourceReader(Emitting(script), "source")
    first = poll(reader)
    spin_until(lambda: has_returned.is_set() or f" {MAX_PENDING_RECORDS} elements pending" in repr(reader))
    assert not has_returned.is_set()

    elements: list[Any] = [first]
    while (element := poll(reader)) is not None:
        elements.append(element)
    reader.close()

    assert elements == [Watermark(number) for number in range(MAX_PENDING_RECORDS + 10)]


def test_a_cancel_that_fails_leaves_no_thread_behind() -> None:
    def script(ctx: SourceContext) -> None:
        while not ctx.is_cancelled:
            ctx.collect(1)

    def fail() -> None:
        raise ValueError("cannot cancel")

    reader = BlockingSourceReader(Emitting(script, fail), "source of the cancel that fails")
    poll(reader)

    with pytest.raises(ValueError, match="cannot cancel"):
        reader.close()

    assert "source of the cancel that fails" not in {thread.name for thread in threading.enumerate()}


class Replayed(SourceFunction):
    """Emits the numbers below ``end``; marks those that are divisible by ``step``, if there is one."""

    def __init__(self, end: int, step: int = 0) -> None:
        self.end = end
        self.step = step
        self.place = {"next": 0}

    def run(self, ctx: SourceContext) -> None:
        for number in range(self.place["next"], self.end):
            if self.step and number % self.step == 0:
                self.place["next"] = number
                ctx.mark_position(self.place)  # one object each time: it is marked as it is now
            ctx.collect_with_timestamp(number, 10 * number)
            ctx.emit_watermark(10 * number)

    def restore_position(self, position: dict[str, int]) -> None:
        self.place = position


def polled(reader: BlockingSourceReader, at_least: int) -> list[tuple[int, int | None]]:
    """Records with timestamps, until there are so many or no more."""
    found: list[tuple[int, int | None]] = []
    while len(found) < at_least and (element := poll(reader)) is not None:
        found += [pair for pair in flattened([element]) if isinstance(pair, tuple)]
    return found


@settings(max_examples=30)  # each starts threads
@given(end=st.integers(0, 30), step=st.integers(0, 5), stops=st.lists(st.integers(1, 12), max_size=3))
def test_a_function_that_is_replayed_goes_on_behind_the_checkpoint(end: int, step: int, stops: list[int]) -> None:
    """The function's last mark may be anywhere, or missing, and there may be several restarts."""
    reader, found = BlockingSourceReader(Replayed(end, step), "source"), []
    for num_records in stops:
        found += polled(reader, num_records)
        position = pickle.loads(pickle.dumps(reader.snapshot_position()))
        reader.close()
        reader = BlockingSourceReader(Replayed(end, step), "source")
        reader.restore_position(position)
    found += polled(reader, end + 1)
    reader.close()

    assert found == [(number, 10 * number) for number in range(end)]


def test_a_position_is_that_of_what_was_polled_not_of_what_was_emitted() -> None:
    reader = BlockingSourceReader(Replayed(3, 1), "source")
    assert reader.snapshot_position() == SourceFunctionPosition(None, 0)

    assert flattened([poll(reader)]) == [(0, 0)]

    assert reader.snapshot_position() == SourceFunctionPosition({"next": 0}, 1)
    reader.close()


def test_a_function_may_change_the_position_that_it_was_given() -> None:
    function = Replayed(3)
    reader = BlockingSourceReader(function, "source")
    reader.restore_position(SourceFunctionPosition({"next": 1}, 0))

    function.place["next"] = 2

    assert reader.snapshot_position() == SourceFunctionPosition({"next": 1}, 0)
    reader.close()


def test_a_function_that_gives_less_than_before_the_restart_fails() -> None:
    reader = BlockingSourceReader(Replayed(3), "source")
    reader.restore_position(SourceFunctionPosition(None, 5))

    with pytest.raises(FlowletError, match="source: after the restart its function gave 2 records less than before"):
        polled(reader, 1)
    reader.close()


def test_a_function_that_is_not_replayed_has_no_position_and_marks_none() -> None:
    reader = BlockingSourceReader(Emitting(lambda ctx: ctx.mark_position(1)), "source")

    assert reader.snapshot_position() is None
    with pytest.raises(FlowletError, match=r"mark_position\(\) needs a function that overrides restore_position\(\)"):
        poll(reader)
    reader.close()
