"""A global committer waits for all subtasks, and commits once."""

from collections.abc import Iterator

import pytest

from flowlet.sinks.commit_runner import Committed, GlobalCommitOperator
from flowlet.testing.harness_environment import SubtaskPlace
from flowlet.testing.input_harnesses import OneInputOperatorHarness
from flowlet.testing.operator_harness import OperatorSnapshot
from tests.flowlet.sinks.ledger_sink import LEDGERS, Batch, GlobalLedgerSink, Ledger


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    LEDGERS["x"] = Ledger()
    yield LEDGERS["x"]
    LEDGERS.clear()


def opened(snapshot: OperatorSnapshot | None = None) -> OneInputOperatorHarness:
    place = SubtaskPlace(restored_checkpoint_id=None if snapshot is None else 1)
    harness = OneInputOperatorHarness(GlobalCommitOperator(GlobalLedgerSink("x")), place=place)
    harness.initialize_state(snapshot)
    harness.open()
    return harness


def committed(
    ledger: Ledger, checkpoint_id: int, subtask: int, *, parallelism: int = 2, is_empty: bool = False
) -> Committed:
    number = (subtask, 0, checkpoint_id)
    if is_empty:
        return Committed(checkpoint_id, subtask, parallelism, ())
    ledger.committed[number] = []
    return Committed(checkpoint_id, subtask, parallelism, (Batch(number, ()),))


def test_it_commits_when_all_subtasks_have_committed_their_part(ledger: Ledger) -> None:
    with opened() as harness:
        harness.process_element(committed(ledger, 1, 0))
        assert ledger.published == []

        harness.process_element(committed(ledger, 1, 1))

        assert ledger.published == [((0, 0, 1), (1, 0, 1))]


def test_a_subtask_that_wrote_nothing_counts_too(ledger: Ledger) -> None:
    with opened() as harness:
        harness.process_element(committed(ledger, 1, 0))
        harness.process_element(committed(ledger, 1, 1, is_empty=True))

        assert ledger.published == [((0, 0, 1),)]


def test_a_quick_subtask_waits_for_a_slow_one(ledger: Ledger) -> None:
    with opened() as harness:
        for checkpoint_id in (1, 2):
            harness.process_element(committed(ledger, checkpoint_id, 0))
        harness.process_element(committed(ledger, 1, 1))
        assert ledger.published == [((0, 0, 1), (1, 0, 1))]

        harness.process_element(committed(ledger, 2, 1))

        assert ledger.published[1:] == [((0, 0, 2), (1, 0, 2))]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_after_a_restart_it_waits_for_all_subtasks_again(ledger: Ledger, parallelism: int) -> None:
    """The number of subtasks may have changed."""
    first = opened()
    first.process_element(committed(ledger, 1, 0))
    complete = first.snapshot(2)
    first.close()

    with opened(complete) as second:
        for subtask in range(parallelism):
            assert ledger.published == []
            second.process_element(committed(ledger, 2, subtask, parallelism=parallelism))

    assert ledger.published == [((0, 0, 1), *((subtask, 0, 2) for subtask in range(parallelism)))]
