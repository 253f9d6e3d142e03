"""``add_sink``: functions that get every record, and those that commit with a checkpoint."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from flowlet.datastream.functions import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    RuntimeContext,
    SinkContext,
    SinkFunction,
)
from flowlet.datastream.sinks.two_phase_commit_sink_function import TwoPhaseCommitSinkFunction
from flowlet.errors import StateRestoreError, UserFunctionError
from flowlet.sinks.function_sink import FunctionSink
from flowlet.testing.harness_environment import SubtaskPlace
from flowlet.testing.input_harnesses import OneInputOperatorHarness
from flowlet.testing.operator_harness import OperatorSnapshot
from tests.flowlet.sinks.dealt_out import dealt_out


class Collecting(SinkFunction):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def open(self, runtime_context: RuntimeContext) -> None:
        self.calls.append("open")

    def invoke(self, value: Any, context: SinkContext) -> None:
        if value == 0:
            raise ValueError("zero")
        self.calls.append((value, context.timestamp(), context.current_watermark(), context.current_processing_time()))

    def finish(self) -> None:
        self.calls.append("finish")

    def close(self) -> None:
        self.calls.append("close")


def harness_of(function: Any, place: SubtaskPlace | None = None) -> OneInputOperatorHarness:
    return OneInputOperatorHarness(FunctionSink(function), is_shipped=False, place=place, now_ms=100)


def test_a_sink_function_gets_every_record_with_its_context() -> None:
    sink = Collecting()
    harness = harness_of(sink)
    harness.open()

    harness.process_watermark(3)
    harness.process_element(1, timestamp=4)
    harness.process_element(2)
    harness.end_input()
    harness.finish()
    harness.close()

    assert sink.calls == ["open", (1, 4, 3, 100), (2, None, 3, 100), "finish", "close"]
    assert harness.values == []


def test_an_error_names_the_record() -> None:
    with harness_of(Collecting()) as harness, pytest.raises(UserFunctionError) as caught:
        harness.process_chunk([4, 0, 5])

    assert caught.value.record_preview == "0"


def test_a_callable_gets_every_record() -> None:
    found: list[int] = []
    with harness_of(found.append) as harness:
        harness.process_chunk([1, 2])

    assert found == [1, 2]


# -- two-phase commits

FILES: dict[str, list[Any]] = {}  # what counts, by transaction
DRAFTS: dict[str, list[Any]] = {}
FAULTS: list[str] = []
NUMBERS = count()


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    FILES.clear()
    DRAFTS.clear()
    FAULTS.clear()


class Drafts(TwoPhaseCommitSinkFunction):
    """A transaction is the name of a draft; to commit it makes it a file."""

    def begin_transaction(self) -> str:
        name = f"{next(NUMBERS)}"
        DRAFTS[name] = []
        return name

    def invoke_in_transaction(self, transaction: str, value: Any, context: SinkContext) -> None:
        DRAFTS[transaction].append(value)

    def pre_commit(self, transaction: str) -> None:
        DRAFTS[transaction].append("end")

    def commit(self, transaction: str) -> None:
        if FAULTS:
            raise ValueError(FAULTS.pop())
        if transaction in DRAFTS:
            FILES[transaction] = DRAFTS.pop(transaction)

    def abort(self, transaction: str) -> None:
        DRAFTS.pop(transaction, None)


def drafts(
    snapshot: OperatorSnapshot | None = None, *, place: SubtaskPlace | None = None, after_finish: bool = False
) -> Any:
    operator = FunctionSink(Drafts())
    if after_finish:
        operator.restored_after_finish()
    harness = OneInputOperatorHarness(operator, place=place)
    harness.initialize_state(snapshot)
    harness.open()
    return harness


def records() -> list[Any]:
    return [each for file in FILES.values() for each in file if each != "end"]


def test_a_transaction_is_committed_when_its_checkpoint_is_complete() -> None:
    with drafts() as harness:
        harness.process_chunk("ab")
        harness.snapshot(1)
        harness.process_chunk("c")
        assert records() == []

        harness.notify_checkpoint_complete(1)

        assert list(FILES.values()) == [["a", "b", "end"]]


def test_a_job_that_fails_aborts_its_open_transaction() -> None:
    with drafts() as harness:
        harness.process_chunk("a")

    assert (FILES, DRAFTS) == ({}, {})


@pytest.mark.parametrize("is_notified", [False, True])
def test_a_kill_before_or_after_the_commit_costs_nothing_and_repeats_nothing(is_notified: bool) -> None:
    first = drafts()
    first.process_chunk("ab")
    complete = first.snapshot(1)
    if is_notified:
        first.notify_checkpoint_complete(1)
    first.process_chunk("c")  # read again after the restart

    second = drafts(complete)  # the first one was killed: it never aborts anything
    second.process_chunk("c")
    second.snapshot(2)
    second.notify_checkpoint_complete(2)
    second.close()

    assert records() == ["a", "b", "c"]
    assert DRAFTS == {}
    first.close()


def test_a_commit_that_fails_is_repeated() -> None:
    first = drafts()
    first.process_chunk("a")
    complete = first.snapshot(1)
    FAULTS.append("no answer")
    with pytest.raises(UserFunctionError):
        first.notify_checkpoint_complete(1)
    first.close()

    drafts(complete).close()

    assert records() == ["a"]


def test_transactions_of_aborted_checkpoints_are_committed_in_order() -> None:
    with drafts() as harness:
        for number, value in enumerate("abc"):
            harness.process_chunk(value)
            harness.snapshot(number)

        harness.notify_checkpoint_complete(1)

        assert records() == ["a", "b"]


def test_without_checkpoints_the_end_commits() -> None:
    harness = drafts(place=SubtaskPlace(has_checkpoints=False))
    harness.process_chunk("ab")
    assert records() == []

    harness.end_input()
    harness.finish()
    harness.close()

    assert records() == ["a", "b"]


def test_a_subtask_that_had_finished_commits_what_its_final_checkpoint_holds() -> None:
    first = drafts()
    first.process_chunk("a")
    first.end_input()
    first.operator.finish()
    complete = first.snapshot(1)
    first.close()

    second = drafts(complete, after_finish=True)

    assert records() == ["a"]
    with pytest.raises(StateRestoreError, match="had finished"):
        second.process_chunk("b")
    second.close()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_another_parallelism_commits_every_transaction_once(before: int, after: int) -> None:
    snapshots = []
    for subtask in range(before):
        harness = drafts(place=SubtaskPlace(subtask, before))
        harness.process_chunk([subtask])
        snapshots.append(harness.snapshot(1))
        harness.close()

    for subtask, each in enumerate(dealt_out(snapshots, after, FunctionSink(Drafts()))):
        drafts(each, place=SubtaskPlace(subtask, after, restored_checkpoint_id=1)).close()

    assert sorted(records()) == list(range(before))
    assert DRAFTS == {}


class Listening(SinkFunction, CheckpointedFunction, CheckpointListener):
    """A function with checkpoints of its own."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def invoke(self, value: Any, context: SinkContext) -> None:
        self.calls.append(f"invoke {value}")

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.calls.append("initialize")

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.calls.append(f"snapshot {context.get_checkpoint_id()}")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.calls.append(f"complete {checkpoint_id}")


def test_a_sink_function_takes_part_in_checkpoints() -> None:
    function = Listening()
    with harness_of(function) as harness:
        harness.process_chunk("a")
        harness.snapshot(1)
        harness.notify_checkpoint_complete(1)

    assert function.calls == ["initialize", "invoke a", "snapshot 1", "complete 1"]
