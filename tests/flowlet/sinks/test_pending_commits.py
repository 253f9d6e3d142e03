"""The times at which commits are due, and their outcomes."""

from typing import Any

from flowlet.datastream.connectors.base import Outcome
from flowlet.sinks.commit_runner import MAX_RETRIES, PendingCommits


def committables(requests: Any, outcome: Outcome = Outcome.COMMITTED) -> list[Any]:
    return [each.get_committable() for each in requests if each.outcome is outcome]


def pending(*checkpoints: tuple[int, str]) -> PendingCommits:
    commits = PendingCommits(subtask=3)
    for checkpoint_id, names in checkpoints:
        commits.prepare(names)
        commits.assign(checkpoint_id)
    return commits


def test_what_a_checkpoint_holds_is_due_when_it_is_complete() -> None:
    commits = pending((1, "ab"), (2, "c"))
    commits.prepare("d")

    commits.complete(1)

    assert committables(commits.begin()) == ["a", "b"]


def test_a_complete_checkpoint_confirms_those_before_it() -> None:
    """Earlier checkpoints may never be reported: they were aborted, or their report was lost."""
    commits = pending((1, "a"), (2, "b"), (3, "c"))

    commits.complete(2)

    assert committables(commits.begin()) == ["a", "b"]


def test_a_committed_one_is_not_due_again() -> None:
    commits = pending((1, "a"), (2, "b"))
    commits.complete(1)
    commits.begin()

    attempted = commits.settle()
    commits.complete(2)

    assert committables(attempted) == ["a"]
    assert committables(commits.begin()) == ["b"]


def test_one_that_is_tried_later_stays_due_and_counts_its_retries() -> None:
    commits = pending((1, "ab"))
    commits.complete(1)
    first, second = commits.begin()

    first.update_and_retry_later("A")
    second.signal_already_committed()
    attempted = commits.settle()

    assert committables(attempted) == ["b"]
    assert commits.failed is None
    (again,) = commits.begin()
    assert (again.get_committable(), again.get_number_of_retries()) == ("A", 1)


def test_one_that_cannot_be_committed_is_dropped() -> None:
    commits = pending((1, "a"))
    commits.complete(1)
    commits.begin()[0].signal_failed_with_known_reason(ValueError("too large"))

    attempted = commits.settle()

    assert committables(attempted, Outcome.LOST) == ["a"]
    assert not commits.has_due


def test_an_unknown_failure_stays_due() -> None:
    commits = pending((1, "ab"))
    commits.complete(1)
    commits.begin()[1].signal_failed_with_unknown_reason(ValueError("?"))

    commits.settle()

    assert commits.failed is not None
    assert commits.failed.get_committable() == "b"
    assert commits.has_due


def test_retries_are_bounded() -> None:
    commits = pending((1, "a"))
    commits.complete(1)

    num_attempts = 0
    unknown = None
    while unknown is None:
        num_attempts += 1
        commits.begin()[0].retry_later()
        commits.settle()
        unknown = commits.failed

    assert num_attempts == MAX_RETRIES + 1


def test_restored_ones_are_due_at_once_in_their_order() -> None:
    before = pending((4, "a"), (5, "bc"))

    after = PendingCommits(subtask=0)
    after.restore(before.elements())

    assert committables(after.begin()) == ["a", "b", "c"]
    assert [each.subtask for each in after.begin()] == [3, 3, 3]


def test_state_holds_what_is_due_and_what_waits() -> None:
    commits = pending((1, "a"), (2, "b"))
    commits.complete(1)

    assert commits.elements() == [(1, 3, "a"), (2, 3, "b")]


def test_without_checkpoints_everything_is_due_at_the_end() -> None:
    commits = pending((1, "a"))
    commits.prepare("b")

    commits.complete_all()

    assert committables(commits.begin()) == ["a", "b"]
