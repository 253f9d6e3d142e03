"""Rows are committed once and in order, whatever the marker, a lost connection and other subtasks do."""

from collections.abc import Sequence
from typing import Any

import pytest

from flowlet.connectors.write_ahead_writer import CommittableRows, WriteAheadCommitter, encoded_part
from flowlet.datastream.connectors.base import CommitRequest, Outcome
from flowlet.datastream.connectors.write_ahead_sink import CommitLaterError, WriteAheadTarget
from flowlet.errors import FlowletError

DAY_MS = 86_400_000
COMMITTED, RETRY = Outcome.COMMITTED, Outcome.RETRY


class Memory(WriteAheadTarget):
    """Commits into lists; ``faults`` are raised by the next commits, before or after they happen."""

    def __init__(self) -> None:
        self.markers: dict[str, int] = {}
        self.rows: list[Any] = []
        self.faults: list[str] = []
        self.asked: list[str] = []
        self.forgotten: list[int] = []
        self.is_closed = False

    def committed(self, writer: str) -> int:
        self.asked.append(writer)
        return self.markers.get(writer, -1)

    def commit(self, writer: str, number: int, rows: Sequence[Any]) -> None:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            raise CommitLaterError("the connection was lost")
        if self.markers.get(writer, -1) == number - 1:
            self.markers[writer] = number
            self.rows += rows
        if fault == "after":
            raise CommitLaterError("the connection was lost")

    def forget_before(self, time_ms: int) -> None:
        self.forgotten.append(time_ms)
        raise CommitLaterError("locked")

    def close(self) -> None:
        self.is_closed = True


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000 * DAY_MS

    def __call__(self) -> int:
        return self.now_ms


def committer(target: Memory, clock: Clock | None = None) -> WriteAheadCommitter:
    return WriteAheadCommitter(target, marker_retention_ms=30 * DAY_MS, max_retries=2, now_ms=clock or Clock())


def request(number: int, writer: str = "w", prepared_ms: int = 1_000 * DAY_MS) -> CommitRequest[CommittableRows]:
    return CommitRequest(CommittableRows(writer, number, prepared_ms, 1, encoded_part([f"{writer}{number}"])))


def outcomes(requests: Sequence[CommitRequest[Any]]) -> list[Outcome]:
    return [each.outcome for each in requests]


def test_rows_are_committed_in_order_and_their_writer_is_looked_up_once() -> None:
    target = Memory()
    requests = [request(0), request(1), request(2)]

    committer(target).commit(requests)

    assert target.rows == ["w0", "w1", "w2"]
    assert set(outcomes(requests)) == {COMMITTED}
    assert target.asked == ["w"]


def test_what_has_a_marker_is_skipped() -> None:
    target = Memory()
    committer(target).commit([request(0), request(1)])
    again = [request(0), request(1), request(2)]

    committer(target).commit(again)

    assert target.rows == ["w0", "w1", "w2"]
    assert set(outcomes(again)) == {COMMITTED}


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_connection_that_is_cut_during_a_commit_commits_once(fault: str) -> None:
    """The outcome is unknown: the target is asked before the next attempt, and later commits wait."""
    target, requests = Memory(), [request(0), request(1), request(0, "other")]
    target.faults = [fault]
    commits = committer(target)

    commits.commit(requests)
    assert outcomes(requests) == [RETRY, RETRY, COMMITTED]
    for each in requests[:2]:
        each.outcome = COMMITTED
    commits.commit(requests[:2])

    assert set(outcomes(requests)) == {COMMITTED}
    assert sorted(target.rows) == ["other0", "w0", "w1"]


def test_a_target_that_stays_away_fails_the_job() -> None:
    target, one = Memory(), request(0)
    target.faults = ["before"] * 3
    commits = committer(target)

    for _ in range(3):
        commits.commit([one])
        one.num_retries += 1

    assert one.outcome is Outcome.UNKNOWN
    assert isinstance(one.error, CommitLaterError)


def test_two_subtasks_that_share_a_writer_commit_in_its_order() -> None:
    """The parallelism has changed; no later transaction may set a marker before the earlier one is in the target."""
    target, later, earlier = Memory(), request(1), request(0)
    first, second = committer(target), committer(target)

    first.commit([later])
    assert later.outcome is RETRY
    second.commit([earlier])
    later.outcome = COMMITTED
    first.commit([later])

    assert target.rows == ["w0", "w1"]
    assert outcomes([earlier, later]) == [COMMITTED, COMMITTED]


def test_a_predecessor_that_never_comes_fails_the_job() -> None:
    lonely = request(5)
    commits = committer(Memory())
    for _ in range(10):
        commits.commit([lonely])
        lonely.num_retries += 1

    with pytest.raises(
        FlowletError, match=r"transaction 5 of writer w \(1 rows\) follows number 4, but the marker in the target is -1"
    ):
        commits.commit([lonely])


def test_rows_older_than_all_markers_are_refused() -> None:
    """The marker of such rows may have been there and be removed."""
    target, old = Memory(), request(0, prepared_ms=969 * DAY_MS)

    with pytest.raises(FlowletError, match="prepared 31 days ago, and the target keeps markers for 30 days"):
        committer(target).commit([old])

    assert target.rows == []


def test_markers_are_forgotten_a_day_after_nothing_needs_them_and_no_more_than_once_an_hour() -> None:
    target, clock = Memory(), Clock()
    commits = committer(target, clock)

    commits.commit([])
    commits.commit([])
    clock.now_ms += 3_600_000
    commits.commit([])

    assert target.forgotten == [969 * DAY_MS, 969 * DAY_MS + 3_600_000]


def test_the_target_is_closed_with_its_committer() -> None:
    target = Memory()

    committer(target).close()

    assert target.is_closed
