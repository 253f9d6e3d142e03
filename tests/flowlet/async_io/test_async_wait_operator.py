"""Promises of the async operator.

Source: Flink ``AsyncWaitOperatorTest``.
"""

from functools import partial
from typing import Any

import cloudpickle
import pytest

from flowlet.async_io import async_wait_operator
from flowlet.async_io.async_wait_operator import AsyncWaitOperator, AsyncWaitStatistics
from flowlet.errors import JobGraphError, TaskCancelled, UserFunctionError
from flowlet.mailbox.task_mailbox import MAX_PRIORITY, Mail, MailOptions
from flowlet.records import ACTIVE, IDLE, Chunk, CompletionMark, LatencyMarker, Watermark
from tests.flowlet.async_io.async_harness import AsyncHarness, Doubler, ScriptedMailbox

BOTH_ORDERS = pytest.mark.parametrize("is_ordered", [True, False])


def cancel(harness: AsyncHarness) -> None:
    """The task is cancelled with its next mail."""

    def fail() -> None:
        raise TaskCancelled("now")

    harness.mailbox.put_threadsafe(Mail(fail, MAX_PRIORITY, "cancel", options=MailOptions.URGENT))


@BOTH_ORDERS
def test_results_and_watermarks_in_event_time(is_ordered: bool) -> None:
    """A queue of two, so that the watermark waits for room too."""
    harness = AsyncHarness(capacity=2, is_ordered=is_ordered)
    harness.when_parked(lambda: harness.calls.end(2, [4]), lambda: harness.calls.end(1, [2]))

    harness.process(1, 2, timestamps=[1, 2])
    harness.operator.process_watermark(Watermark(2))
    harness.process(3, timestamps=[3])
    harness.when_parked(lambda: harness.calls.end(3, [6]))
    harness.operator.end_input(1)

    assert harness.elements == ([2, 4] if is_ordered else [4, 2]) + [Watermark(2), 6]
    assert harness.recorded.timestamps == ([1, 2] if is_ordered else [2, 1]) + [3]


@BOTH_ORDERS
def test_more_records_than_places(is_ordered: bool) -> None:
    """testProcessingTimeOrdered, testProcessingTimeUnordered: eight records, six places."""
    harness = AsyncHarness(capacity=6, is_ordered=is_ordered)
    harness.when_parked(*(partial(harness.calls.end, value, [value * 2]) for value in (2, 1, 4, 3, 8, 7, 6, 5)))

    harness.process(1, 2, 3, 4, 5, 6, 7, 8)
    harness.operator.finish()

    assert harness.elements == ([2, 4, 6, 8, 10, 12, 14, 16] if is_ordered else [4, 2, 8, 6, 16, 14, 12, 10])
    assert harness.calls.started == [1, 2, 3, 4, 5, 6, 7, 8]


@BOTH_ORDERS
def test_a_full_queue_holds_nothing_up(is_ordered: bool) -> None:
    """Records beyond the capacity wait unstarted in the queue; each place that becomes free starts the next one."""
    harness = AsyncHarness(capacity=2, is_ordered=is_ordered)

    harness.process(1, 2, 3, timestamps=[10, 20, 30])
    harness.operator.process_watermark(Watermark(30))
    harness.operator.process_record(4, 40)
    started_at_once = list(harness.calls.started)
    harness.end(1, ["one"])

    assert started_at_once == [1, 2]
    assert harness.calls.started == [1, 2, 3]
    assert harness.operator.statistics() == AsyncWaitStatistics(num_in_queue=4, num_retries=0, num_timeouts=0)
    assert harness.operator.snapshot_state(1) == [Chunk([2, 3], [20, 30]), Watermark(30), Chunk([4], [40])]
    harness.end(2, [])
    harness.end(3, ["three"])
    harness.end(4, ["four"])
    assert harness.elements == ["one", "three", Watermark(30), "four"]
    assert harness.recorded.timestamps == [10, 30, 40]


def test_there_is_room_again_when_no_record_waits_for_a_place() -> None:
    """Input is not read on before; a call without results makes room, too, and so does a watermark that leaves."""
    harness = AsyncHarness(capacity=2)
    before = harness.operator.available_future()
    harness.process(1, 2, 3, 4)
    harness.operator.process_watermark(Watermark(1))
    room = harness.operator.available_future()
    seen = [before.is_done, room.is_done]

    for value in (1, 2, 3):
        harness.end(value, [])
        seen.append(room.is_done)

    assert seen == [True, False, False, False, True]
    assert harness.operator.available_future().is_done
    assert harness.elements == []
    harness.end(4, [])
    assert harness.elements == [Watermark(1)]


def test_what_is_inside_now_has_left_although_more_comes() -> None:
    """A task that ends waits for no timers that go on emitting for ever."""
    harness = AsyncHarness(capacity=1)
    nothing_inside = harness.operator.drained_future()
    harness.process(1, 2)
    drained = harness.operator.drained_future()
    harness.process(3)

    harness.end(1, ["one"])
    harness.process(4)
    seen = [nothing_inside.is_done, drained.is_done]
    harness.end(2, ["two"])

    assert [*seen, drained.is_done] == [True, False, True]


def test_a_timeout_counts_from_the_start_of_the_call() -> None:
    """A record that waits for a place is not late, as in Flink, where it waits outside."""

    class Late(Doubler):
        def timeout(self, value: Any) -> list[Any]:
            return [f"{value} is late"]

    harness = AsyncHarness(Late(), capacity=1, timeout_ms=10)
    harness.process(1, 2)

    harness.advance(9)
    before = list(harness.elements)
    harness.advance(1)
    harness.advance(9)
    between = list(harness.elements)
    harness.advance(1)

    assert (before, between) == ([], ["1 is late"])
    assert harness.elements == ["1 is late", "2 is late"]


def test_nothing_starts_once_the_task_has_stopped() -> None:
    """Records that wait when the task stops belong to the savepoint that stops the job."""
    harness = AsyncHarness(capacity=1)
    harness.process(1, 2)

    harness.operator.stop_emitting()
    harness.end(1, ["one"])

    assert harness.calls.started == [1]
    assert harness.operator.snapshot_state(1) == [Chunk([1, 2])]


def test_very_many_records_wait_outside_and_yield_the_mailbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mails of this operator run then; those of operators before it do not."""
    monkeypatch.setattr(async_wait_operator, "MAX_WAITING", 1)
    harness = AsyncHarness(capacity=2)
    ran: list[str] = []
    harness.process(1, 2, 3)
    harness.mailbox.put_threadsafe(Mail(lambda: ran.append("of the operator before"), 0, "a mail"))
    harness.mailbox.put_threadsafe(Mail(lambda: ran.append("of this operator"), 1, "a mail"))
    harness.when_parked(lambda: harness.calls.end(1, ["one"]))

    harness.process(4)

    assert ran == ["of this operator"]
    assert harness.calls.started == [1, 2, 3]
    assert harness.elements == ["one"]


def test_a_task_is_cancelled_while_very_many_records_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_wait_operator, "MAX_WAITING", 1)
    harness = AsyncHarness(capacity=1)
    harness.process(1, 2)
    harness.when_parked(lambda: cancel(harness))

    with pytest.raises(TaskCancelled):
        harness.process(3)

    harness.close()
    assert harness.calls.events == ["cancel all", "close"]


def test_calls_of_a_chunk_begin_together() -> None:
    """One wake-up of the loop for as many records as there is room, also when several places become free together."""
    batches: list[int] = []
    harness = AsyncHarness(capacity=3)
    harness.calls.on_start = lambda calls: batches.append(len(calls))

    harness.process(1, 2, 3, 4, 5, 6)
    harness.calls.end(1, [])
    harness.calls.end(2, [])
    harness.run_mails()

    assert batches == [3, 2]


def test_results_that_come_together_leave_in_one_chunk() -> None:
    harness = AsyncHarness()
    harness.process(1, 2, 3)

    for value in (3, 1, 2):
        harness.calls.end(value, [value, -value])
    num_mails = harness.mailbox.num_mails
    harness.run_mails()

    assert num_mails == 1
    assert harness.recorded.elements == [Chunk([1, -1, 2, -2, 3, -3])]


@BOTH_ORDERS
def test_a_status_keeps_its_place_among_records_and_watermarks(is_ordered: bool) -> None:
    """An empty queue holds none of them up."""
    harness = AsyncHarness(is_ordered=is_ordered)
    harness.operator.process_watermark(Watermark(1))
    harness.operator.process_watermark_status(IDLE)
    assert harness.elements == [Watermark(1), IDLE]

    harness.process(1)
    harness.operator.process_watermark(Watermark(5))
    harness.operator.process_watermark_status(IDLE)
    harness.operator.process_watermark_status(ACTIVE)
    assert harness.elements == [Watermark(1), IDLE]
    harness.end(1, ["one"])

    assert harness.elements == [Watermark(1), IDLE, "one", Watermark(5), IDLE, ACTIVE]


def test_a_latency_marker_does_not_wait() -> None:
    """A latency marker overtakes records that wait for their calls: it measures the way, not the calls."""
    harness = AsyncHarness()
    marker = LatencyMarker(1, bytes(16), 0)
    harness.process(1)

    harness.operator.process_latency_marker(marker)

    assert harness.elements == [marker]


# -- chains


class Into:
    """The output of one harness is the input of another."""

    def __init__(self, harness: AsyncHarness) -> None:
        self.collect = harness.operator.process_chunk
        self.emit_control = harness.operator.process_control

    def collect_side(self, tag_id: str, chunk: Chunk) -> None:
        raise AssertionError("async operators have no side outputs")


def chained(capacity: int) -> tuple[AsyncHarness, AsyncHarness]:
    """Return two operators that share a mailbox; the second one has one place."""
    mailbox = ScriptedMailbox()
    second = AsyncHarness(capacity=1, mailbox=mailbox, priority=2)
    return AsyncHarness(capacity=capacity, mailbox=mailbox, priority=1, output=Into(second)), second


def test_a_full_operator_behind_this_one_runs_its_own_mails_only() -> None:
    """testOperatorChainWithProcessingTime, FLINK-5638: two async operators in a chain, both full, come to their end."""
    first, second = chained(capacity=2)

    def end_both() -> None:
        first.calls.end(2, [20])
        first.calls.end(1, [10])

    first.when_parked(
        end_both,
        lambda: second.calls.end(10, ["ten"]),
        lambda: first.calls.end(3, [30]),
        lambda: second.calls.end(20, ["twenty"]),
        lambda: second.calls.end(30, ["thirty"]),
    )

    first.process(1, 2, 3)
    first.operator.finish()
    second.operator.finish()

    assert second.elements == ["ten", "twenty", "thirty"]


def test_a_chain_is_closed_while_both_operators_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLINK-5638: an operator that waits for room downstream is interrupted; nothing is emitted while closing."""
    monkeypatch.setattr(async_wait_operator, "MAX_WAITING", 1)
    first, second = chained(capacity=1)
    first.when_parked(
        lambda: first.calls.end(1, [10]),
        lambda: first.calls.end(2, [20]),
        lambda: first.calls.end(3, [30]),
        lambda: cancel(first),
    )
    first.process(1, 2, 3, 4)

    with pytest.raises(TaskCancelled):
        first.process(5)
    first.close()
    second.close()

    assert second.elements == []
    assert first.calls.events == second.calls.events == ["cancel all", "close"]


# -- the end


@BOTH_ORDERS
def test_nothing_that_came_in_is_lost_at_the_end(is_ordered: bool) -> None:
    """testEndInput: the last watermark leaves after the last result."""
    harness = AsyncHarness(is_ordered=is_ordered)
    harness.process(1, 2)
    harness.operator.process_watermark(Watermark(9))
    harness.when_parked(lambda: harness.calls.end(2, ["two"]), lambda: harness.calls.end(1, ["one"]))

    harness.operator.end_input(1)
    harness.operator.finish()

    assert harness.elements == (["one", "two"] if is_ordered else ["two", "one"]) + [Watermark(9)]


def test_results_after_the_end_are_nobodys() -> None:
    """A mail that is left does nothing, and a closed mailbox refuses without an error."""
    harness = AsyncHarness()
    harness.process(1, 2, 3)
    harness.calls.end(1, ["one"])
    running = list(harness.calls.running)

    harness.close()
    harness.run_mails()
    harness.calls.running = running
    harness.mailbox.close()
    harness.calls.take_outcomes()
    harness.calls.end(2, ["two"])

    assert harness.elements == []
    assert harness.operator.statistics() == AsyncWaitStatistics(2 + 1, 0, 0)


def test_close_takes_any_number_of_calls_in_any_state() -> None:
    never_opened = AsyncHarness(is_open=False)
    never_opened.close()
    harness = AsyncHarness()

    harness.close()
    harness.close()

    assert harness.calls.events == ["cancel all", "close"]


# -- failures


@BOTH_ORDERS
@pytest.mark.parametrize("kind", [ConnectionError, SystemExit])
def test_an_exception_of_the_function_names_the_record(is_ordered: bool, kind: type[BaseException]) -> None:
    """The error also says in which class it happened."""
    harness, error = AsyncHarness(is_ordered=is_ordered), kind("no database")
    harness.process("a", "b")

    with pytest.raises(
        UserFunctionError, match=r"operator 'look up' \(subtask 2\) failed while processing the record 'b'"
    ) as caught:
        harness.end("b", error)

    assert caught.value.__cause__ is error
    (note,) = error.__notes__
    assert note.startswith("Error happens inside the class '<class ")
    assert note.endswith("during handling input ''b''")


@pytest.mark.parametrize(("result", "text"), [(None, "cannot be none"), (7, "should be of list type")])
def test_a_result_that_is_no_list_is_refused_in_pyflinks_words(result: object, text: str) -> None:
    harness = AsyncHarness()
    harness.process("a")

    with pytest.raises(UserFunctionError, match="the record 'a'") as caught:
        harness.end("a", result)

    assert str(caught.value.__cause__).startswith(
        f"The result of AsyncFunction {text}, please check the methods 'async_invoke'"
    )


@pytest.mark.parametrize(
    ("result", "records"),
    [(("b", "c"), ["b", "c"]), (iter(["b"]), ["b"]), ({"b": 1}, ["b"]), ((), [])],
    ids=["tuple", "iterator", "dictionary", "nothing"],
)
def test_any_iterable_is_a_result(result: object, records: list[str]) -> None:
    """An async function may return any iterable of records, as in PyFlink."""
    harness = AsyncHarness()
    harness.process("a")
    harness.end("a", result)

    assert harness.elements == records


@pytest.mark.parametrize("function", [lambda value: [value], Doubler, 3])
def test_a_function_that_is_not_asynchronous_is_refused(function: Any) -> None:
    with pytest.raises(
        JobGraphError, match="expected a coroutine function of one record or an object with 'async def async_invoke'"
    ):
        AsyncWaitOperator(function, timeout_ms=0, capacity=1, is_ordered=True)


# -- snapshots


@BOTH_ORDERS
def test_a_snapshot_begins_anew_where_it_is_restored(is_ordered: bool) -> None:
    """testStateSnapshotAndRestore: complete results that could not leave are asked for again."""
    before = AsyncHarness(is_ordered=is_ordered)
    before.process("a", "b", timestamps=[1, 2])
    before.operator.process_watermark(Watermark(2))
    before.process("c", timestamps=[3])
    before.end("c", ["lost"])
    state = cloudpickle.loads(cloudpickle.dumps(before.operator.snapshot_state(1)))

    after = AsyncHarness(is_ordered=is_ordered, state=state)
    for value in ("a", "b", "c"):
        after.end(value, [value.upper()])

    assert before.elements == []
    assert after.calls.started == ["a", "b", "c"]
    assert after.elements == ["A", "B", Watermark(2), "C"]
    assert after.recorded.timestamps == [1, 2, 3]
    assert after.operator.snapshot_state(2) is None


@BOTH_ORDERS
def test_results_that_come_after_the_task_has_stopped_stay_in_the_savepoint(is_ordered: bool) -> None:
    """The consumers accept no more, so the records are asked for again."""
    harness = AsyncHarness(is_ordered=is_ordered)
    harness.process("a", "b")
    harness.end("a", ["A"])

    harness.operator.stop_emitting()
    harness.end("b", ["B"])

    assert harness.elements == ["A"]
    assert harness.operator.snapshot_state(1) == [Chunk(["b"])]


def test_a_snapshot_that_is_larger_than_the_queue_is_restored() -> None:
    """The capacity was lowered: opening waits for nothing, and calls start in order as places become free."""
    harness = AsyncHarness(capacity=2, state=[Chunk(["a", "b", "c"]), Watermark(1)], is_open=False)

    harness.operator.open()
    started = list(harness.calls.started)
    has_room = harness.operator.available_future().is_done
    for value in ("a", "b", "c"):
        harness.end(value, [value.upper()])

    assert (started, has_room) == (["a", "b"], False)
    assert harness.calls.started == ["a", "b", "c"]
    assert harness.elements == ["A", "B", "C", Watermark(1)]


# -- opening


class BrokenAtOpen(Doubler):
    """Takes something in ``open`` and fails then."""

    def __init__(self) -> None:
        self.is_closed = False

    def open(self, context: Any) -> None:
        raise ConnectionError("no database")

    def close(self) -> None:
        self.is_closed = True


def test_what_a_failing_open_took_is_given_back() -> None:
    """The function is closed, and the loop given back."""
    function = BrokenAtOpen()
    harness = AsyncHarness(function, is_open=False)

    with pytest.raises(UserFunctionError, match="operator 'look up'"):
        harness.operator.open()
    harness.operator.close()

    assert function.is_closed
    assert harness.calls.events == ["close"]


@BOTH_ORDERS
def test_a_completion_mark_follows_the_results_of_the_records_before_it(is_ordered: bool) -> None:
    """A mark takes a place, as a watermark does; no snapshot has it."""
    harness = AsyncHarness(capacity=3, is_ordered=is_ordered)
    harness.process(1)
    harness.operator.process_mark(CompletionMark(1))
    harness.process(2)
    harness.end(2, [4])
    assert harness.operator.snapshot_state(1) == [Chunk([1, 2])]
    harness.when_parked(partial(harness.calls.end, 1, [2]))

    harness.operator.end_input(1)

    assert harness.elements == [2, CompletionMark(1), 4]
