"""Tests of ``flowlet.checkpoint.jobmanager.pending_checkpoint``."""

import pytest

from flowlet.checkpoint.jobmanager.pending_checkpoint import CoordinatorFailureReason, FailureCounter, is_counted
from flowlet.checkpoint.task.barrier_orders import CheckpointFailureReason

COUNTED = {
    "SYNCHRONOUS_PART_FAILED",
    "ASYNCHRONOUS_PART_FAILED",
    "CHANNEL_STATE_FAILED",
    "UNSUPPORTED_SNAPSHOT",
    "CHECKPOINT_EXPIRED",
    "TRIGGER_CHECKPOINT_FAILURE",
    "FINALIZE_CHECKPOINT_FAILURE",
}


def test_what_shows_that_state_cannot_be_kept_counts() -> None:
    names = [each.name for kind in (CheckpointFailureReason, CoordinatorFailureReason) for each in kind]

    assert len(names) == len(set(names)), "no name has two meanings"
    assert {name for name in names if is_counted(name)} == COUNTED
    assert is_counted("A_REASON_OF_A_LATER_VERSION")


@pytest.mark.parametrize(
    ("tolerable", "answers"), [(0, [True, True]), (1, [False, True, False, True]), (-1, [False] * 5)]
)
def test_so_many_are_tolerated_one_after_the_other(tolerable: int, answers: list[bool]) -> None:
    counter = FailureCounter(tolerable)

    assert [counter.failed(number, "CHECKPOINT_EXPIRED") for number in range(len(answers))] == answers


def test_a_complete_one_begins_the_count_anew() -> None:
    counter = FailureCounter(1)

    counter.failed(1, "CHECKPOINT_EXPIRED")
    counter.completed(2)

    assert (counter.failed(3, "CHECKPOINT_EXPIRED"), counter.failed(4, "CHECKPOINT_EXPIRED")) == (False, True)


def test_an_older_one_than_the_complete_one_does_not_count() -> None:
    counter = FailureCounter(0)

    counter.completed(2)

    assert not counter.failed(1, "CHECKPOINT_EXPIRED")


def test_one_checkpoint_counts_once() -> None:
    counter = FailureCounter(1)

    assert [counter.failed(7, "CHECKPOINT_EXPIRED") for _ in range(3)] == [False] * 3
    assert repr(counter) == "<FailureCounter 1 of 1 failed>"


def test_uncounted_reasons_change_nothing() -> None:
    counter = FailureCounter(0)

    assert not any(counter.failed(number, "TASK_FAILURE") for number in range(5))
