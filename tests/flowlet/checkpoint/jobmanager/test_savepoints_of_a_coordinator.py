"""Tests of ``flowlet.checkpoint.jobmanager.checkpoint_coordinator``: savepoints, beside periodic
checkpoints and without any.
"""

from collections.abc import Sequence

import pytest

from flowlet.checkpoint.jobmanager.coordinator_events import Effect, SavepointFailed
from flowlet.checkpoint.jobmanager.pending_checkpoint import MAX_WAITING, SavepointRequest
from flowlet.messages.control_messages import TriggerCheckpoint
from netstack.wire.events import SnapshotType
from tests.flowlet.checkpoint.jobmanager.coordinated import Coordinated, attempt, started, under_way

WANTED = SavepointRequest("/a")
DRAIN = SavepointRequest("/drained", SnapshotType.SAVEPOINT_TERMINATE)


def reasons(effects: Sequence[Effect]) -> list[str]:
    return [effect.message for effect in effects if isinstance(effect, SavepointFailed)]


def test_it_is_taken_at_once_into_its_own_directory() -> None:
    """The barriers name its kind and place; no task hears of its end, and the job does not restart from it."""
    coordinated = started().play(
        "savepoint /a -> trigger 1 /a s",
        "ack 1 -> write 1 /a",
        "write 1 -> savepoint 1 /a",
    )

    assert coordinated.effects[0] == TriggerCheckpoint(attempt("s"), 1, 0, SnapshotType.SAVEPOINT, "/a")
    assert coordinated.manifests[1].is_savepoint


def test_a_job_without_periodic_checkpoints_takes_it() -> None:
    coordinated = started(interval_ms=None, directory="")

    coordinated.play("at 1000000 ->", "savepoint /a -> trigger 1 /a s", "complete 1 -> savepoint 1 /a")

    assert coordinated.coordinator.next_due_ms is None


def test_periodic_checkpoints_wait_for_it() -> None:
    started().play("savepoint /a -> trigger 1 /a s", "at 350 ->", "complete 1 -> savepoint 1 /a; trigger 2 s")


def test_it_waits_for_a_checkpoint_that_is_on_its_way() -> None:
    """The next periodic checkpoint waits for the savepoint, though it was due before."""
    under_way().play("savepoint /a ->", "at 250 ->", "complete 1 -> trigger 2 /a s")


def test_one_runs_after_the_other() -> None:
    started().play(
        "savepoint /a -> trigger 1 /a s",
        "savepoint /b ->",
        "complete 1 -> savepoint 1 /a; trigger 2 /b s",
    )


def test_too_many_that_wait_are_refused() -> None:
    coordinated = under_way()
    for number in range(MAX_WAITING):
        coordinated.want(SavepointRequest(f"/{number}"))

    effects = coordinated.want(WANTED)

    assert effects == [SavepointFailed(WANTED, "16 savepoints wait already: wait for one of them")]


def test_its_failure_does_not_count() -> None:
    """A failed savepoint does not fail the job; its files are discarded, those that are reported late included."""
    coordinated = started(tolerable_failures=0).play(
        "savepoint /a -> trigger 1 /a s",
        "decline 1 t -> failed 1 ASYNCHRONOUS_PART_FAILED; aborted 1 s t; discard 1 /a; no savepoint /a",
        "ack 1 s -> discard 1 /a",
        "at 100 -> trigger 2 s",
    )

    assert reasons(coordinated.effects) == ["t (subtask 0): no space left"]


def test_a_manifest_that_cannot_be_written_fails_it() -> None:
    coordinated = started().play(
        "savepoint /a -> trigger 1 /a s",
        "ack 1 -> write 1 /a",
        "cannot-write 1 -> failed 1 FINALIZE_CHECKPOINT_FAILURE; aborted 1 s t; discard 1 /a; no savepoint /a",
    )

    assert reasons(coordinated.effects) == ["its manifest could not be written: the disk is full"]


def test_a_manifest_that_is_written_too_late_is_removed() -> None:
    coordinated = started().play(
        "savepoint /a -> trigger 1 /a s",
        "ack 1 -> write 1 /a",
        "stop -> failed 1 CHECKPOINT_COORDINATOR_SUSPEND; no savepoint /a",
        "write 1 -> discard 1 /a",
    )

    assert reasons(coordinated.effects) == ["the run of its tasks ended"]


def test_it_expires_as_a_checkpoint_does() -> None:
    coordinated = started(interval_ms=None, directory="").play(
        "savepoint /a -> trigger 1 /a s",
        "at 1000 -> failed 1 CHECKPOINT_EXPIRED; aborted 1 s t; discard 1 /a; no savepoint /a",
    )

    assert reasons(coordinated.effects) == ["it was not complete in time (1000 ms), it waited for the tasks"]


@pytest.mark.parametrize(
    "steps",
    [[], ["deploy ->", "s RUNNING ->"], ["start ->", "t FAILED ->"], ["start ->", "stop ->"]],
    ids=["before the first run", "a task starts", "a task has failed", "the run is over"],
)
def test_it_is_refused_unless_all_tasks_run(steps: list[str]) -> None:
    coordinated = Coordinated().play(*steps, "savepoint /a -> no savepoint /a")

    assert "only while all of its tasks run" in reasons(coordinated.effects)[0]


def test_one_that_waits_fails_with_the_run() -> None:
    coordinated = under_way().play(
        "savepoint /a ->",
        "t FAILED -> no savepoint /a; failed 1 TASK_FAILURE; aborted 1 s; discard 1",
    )

    assert "only while all of its tasks run" in reasons(coordinated.effects)[0]


def test_one_that_stops_the_job_is_told_to_all_and_nothing_follows() -> None:
    """The tasks wait for it; their states are those of the end."""
    coordinated = started().play(
        "drain /a -> trigger 1 /a s",
        "ack 1 -> write 1 /a",
        "write 1 -> completed 1 s t; savepoint 1 /a",
        "at 1000000 ->",
    )

    order = coordinated.effects[0]
    assert isinstance(order, TriggerCheckpoint)
    assert order.snapshot_type == SnapshotType.SAVEPOINT_TERMINATE


def test_a_task_that_finished_before_it_took_part_fails_it() -> None:
    coordinated = started().play(
        "drain /a -> trigger 1 /a s",
        "s FINISHED -> failed 1 TASK_FINISHED; aborted 1 t; discard 1 /a; no savepoint /a",
    )

    assert reasons(coordinated.effects) == ["s (subtask 0): a task finished before it took part"]


def test_people_see_it_in_the_history() -> None:
    coordinated = started()
    coordinated.want(DRAIN)
    pending = coordinated.document()
    coordinated.complete(1)

    document = coordinated.document()

    assert [each["status"] for each in pending["history"]] == ["IN_PROGRESS"]
    latest = document["latest"]
    assert isinstance(latest, dict)
    assert latest["completed"] is None
    found = latest["savepoint"]
    assert (found["is_savepoint"], found["checkpoint_type"]) == (True, "SYNC_SAVEPOINT")
    assert found["external_path"] == DRAIN.location
