"""Promises of the queues of async operators.

Source: Flink ``StreamElementQueueTest``, ``OrderedStreamElementQueueTest``, ``UnorderedStreamElementQueueTest``.
"""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.async_io import async_queue
from flowlet.async_io.async_queue import AsyncQueue, PendingRecord
from flowlet.records import Chunk, Watermark, WatermarkStatus
from tests.named_cases import case

BOTH_ORDERS = pytest.mark.parametrize("is_ordered", [True, False])


def queue_of(capacity: int, *, is_ordered: bool) -> AsyncQueue:
    queue = AsyncQueue(capacity, is_ordered=is_ordered)
    queue.check_invariants()
    return queue


def drain(queue: AsyncQueue) -> list[Any]:
    """Return all elements that may leave: values, and control elements as they are."""
    found: list[Any] = []
    while (element := queue.next_element()) is not None:
        queue.check_invariants()
        found += element.values if isinstance(element, Chunk) else [element]
    return found


@BOTH_ORDERS
def test_records_and_watermarks_take_a_place_each(is_ordered: bool) -> None:
    """testPut: a queue of two is full with a watermark and a record; later elements wait in the queue, in order."""
    queue = queue_of(2, is_ordered=is_ordered)

    queue.put_control(Watermark(0))
    started = queue.put_records(["a", "b"], [1, 2])
    queue.put_control(Watermark(2))

    assert [record.value for record in started] == ["a"]
    assert (len(queue), queue.num_waiting) == (4, 2)
    assert repr(queue).endswith("2/2, 2 waiting>")
    assert queue.elements() == [Watermark(0), Chunk(["a", "b"], [1, 2]), Watermark(2)]
    assert drain(queue) == [Watermark(0)]
    assert [record.value for record in queue.fill_places()] == ["b"]
    assert queue.put_records(["c"], [3]) == []
    assert (len(queue), queue.num_waiting) == (4, 2)


@BOTH_ORDERS
def test_a_record_overtakes_none_that_waits(is_ordered: bool) -> None:
    """A new record waits even if a place is free and was not given away yet."""
    queue = queue_of(1, is_ordered=is_ordered)
    (first,) = queue.put_records(["a", "b"], None)
    queue.complete(first, ["A"])
    assert drain(queue) == ["A"]

    started = queue.put_records(["c"], None)
    queue.put_control(Watermark(1))

    assert started == []
    assert [record.value for record in queue.fill_places()] == ["b"]
    assert queue.elements() == [Chunk(["b", "c"]), Watermark(1)]


@BOTH_ORDERS
def test_a_watermark_leaves_an_empty_queue_at_once(is_ordered: bool) -> None:
    """testWatermarkOnly: and several do so in their order."""
    queue = queue_of(2, is_ordered=is_ordered)

    queue.put_control(Watermark(2))
    queue.put_control(Watermark(5))

    assert drain(queue) == [Watermark(2), Watermark(5)]
    assert queue.next_element() is None


def test_ordered_results_wait_for_the_oldest_record() -> None:
    """testCompletionOrder: a result that is there early leaves the queue behind the results of older records."""
    queue = queue_of(4, is_ordered=True)
    first, second, third = queue.put_records([1, 2, 3], None)

    queue.complete(second, ["two"])
    before = drain(queue)
    queue.complete(first, ["one"])

    assert before == []
    assert drain(queue) == ["one", "two"]
    assert third.results is None
    assert repr(third) == "<PendingRecord running>"
    assert repr(first) == "<PendingRecord complete>"


def test_unordered_results_leave_as_they_come_within_a_segment() -> None:
    """testCompletionOrder: eight records, three watermarks."""
    queue = queue_of(8, is_ordered=False)
    first, second = queue.put_records([1, 2], [0, 1])
    queue.put_control(Watermark(2))
    third, fourth = queue.put_records([3, 4], [3, 4])
    queue.put_control(Watermark(5))

    queue.complete(third, ["three"])
    assert drain(queue) == []
    queue.complete(second, ["two"])
    assert drain(queue) == ["two"]
    queue.complete(first, ["one"])
    assert drain(queue) == ["one", Watermark(2), "three"]
    queue.complete(fourth, ["four"])
    assert drain(queue) == ["four", Watermark(5)]
    assert len(queue) == 0


@BOTH_ORDERS
def test_no_result_and_several_results(is_ordered: bool) -> None:
    """All results of a record get its timestamp; a record without results leaves no trace."""
    queue = queue_of(3, is_ordered=is_ordered)
    none, some, last = queue.put_records([1, 2, 3], [10, 20, 30])

    queue.complete(none, [])
    empty = queue.next_element()
    queue.complete(some, ["a", "b"])
    queue.complete(last, ["c"])

    assert empty is None
    assert queue.next_element() == Chunk(["a", "b", "c"], [20, 20, 30])
    assert len(queue) == 0


@BOTH_ORDERS
def test_records_with_and_without_timestamps_share_no_chunk(is_ordered: bool) -> None:
    queue = queue_of(3, is_ordered=is_ordered)
    records = [*queue.put_records(["a"], None), *queue.put_records(["b"], [7]), *queue.put_records(["c"], None)]

    inside = queue.elements()
    for record in records:
        queue.complete(record, [record.value.upper()])

    assert inside == [Chunk(["a"]), Chunk(["b"], [7]), Chunk(["c"])]
    assert [queue.next_element() for _ in range(4)] == [Chunk(["A"]), Chunk(["B"], [7]), Chunk(["C"]), None]


@BOTH_ORDERS
def test_many_results_leave_in_several_chunks(is_ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk ends with the record that fills it."""
    monkeypatch.setattr(async_queue, "MAX_CHUNK_RECORDS", 3)
    queue = queue_of(4, is_ordered=is_ordered)
    records = queue.put_records([1, 2, 3, 4], None)

    for record in records:
        queue.complete(record, [record.value] * 2)

    assert [queue.next_element() for _ in range(3)] == [Chunk([1, 1, 2, 2]), Chunk([3, 3, 4, 4]), None]


@BOTH_ORDERS
def test_a_snapshot_holds_what_came_in_and_did_not_leave(is_ordered: bool) -> None:
    """A snapshot holds complete and incomplete elements, in the order of arrival; the queue goes on."""
    queue = queue_of(6, is_ordered=is_ordered)
    first, second, third = queue.put_records(["a", "b", "c"], [1, 2, 3])
    queue.put_control(Watermark(3))
    (fourth,) = queue.put_records(["d"], None)
    queue.complete(third, ["C"])
    queue.complete(fourth, ["D"])

    inside = queue.elements()

    assert inside == [Chunk(["a", "b", "c"], [1, 2, 3]), Watermark(3), Chunk(["d"])]
    queue.complete(first, ["A"])
    queue.complete(second, ["B"])
    assert sorted(drain(queue)[:3]) == ["A", "B", "C"]
    assert queue.elements() == []


def test_a_record_is_completed_once() -> None:
    queue = queue_of(1, is_ordered=True)
    (record,) = queue.put_records(["a"], None)
    queue.complete(record, [])

    with pytest.raises(AssertionError, match="once"):
        queue.complete(record, [])


def test_a_queue_has_places() -> None:
    with pytest.raises(AssertionError, match="a queue of 0 places"):
        AsyncQueue(0, is_ordered=True)


# What happens, the place of the call that is completed, whether records have a timestamp, whether all that is complete
# leaves afterwards.
QueueSteps = list[tuple[str, int, bool, bool]]


STEP: Final = st.tuples(
    st.sampled_from(["record", "control", "complete", "complete"]), st.integers(0, 5), st.booleans(), st.booleans()
)


# The number is drawn first: a list without it has six steps on average, and a queue is full after more.
@given(st.integers(1, 40).flatmap(lambda number: st.lists(STEP, min_size=number, max_size=number)))
def test_whatever_the_order_of_completion(steps: QueueSteps) -> None:
    """Every record leaves once, none crosses a control element, an ordered queue changes nothing, even if full."""
    for is_ordered in (False, True):
        with case(is_ordered):
            check_queue(steps, is_ordered=is_ordered)


def check_queue(steps: QueueSteps, *, is_ordered: bool) -> None:
    queue = queue_of(6, is_ordered=is_ordered)
    sent: list[Any] = []
    received: list[Any] = []
    running: list[PendingRecord] = []
    for step, (what, place, is_timed, drains) in enumerate(steps):
        match what:
            case "control":
                control = Watermark(step) if is_timed else WatermarkStatus(is_idle=step % 2 == 0)
                queue.put_control(control)
                sent.append(control)
            case "complete" if running:
                record = running.pop(place % len(running))
                queue.complete(record, [record.value])
            case _:
                running += queue.put_records([step], [step] if is_timed else None)
                sent.append(step)
        queue.check_invariants()
        assert len(running) <= queue.capacity
        if drains:
            received += drain(queue)
            running += queue.fill_places()
            queue.check_invariants()
    while len(queue):
        while running:
            record = running.pop()
            queue.complete(record, [record.value])
        received += drain(queue)
        running = queue.fill_places()

    assert len(queue) == 0
    assert in_segments(received) == in_segments(sent)
    assert not is_ordered or received == sent


def in_segments(elements: list[Any]) -> list[Any]:
    """Records sorted between the control elements."""
    found: list[Any] = []
    segment: list[int] = []
    for element in elements:
        if isinstance(element, int):
            segment.append(element)
        else:
            found += [*sorted(segment), element]
            segment = []
    return [*found, *sorted(segment)]
