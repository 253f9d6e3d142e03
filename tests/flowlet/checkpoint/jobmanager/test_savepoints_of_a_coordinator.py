"""Tests of ``flowlet.checkpoint.jobmanager.checkpoint_coordinator``: savepoints, beside periodic
checkpoints and without any.
"""

from collections.abc import Sequence

import pytest

from flowlet.checkpoint.jobmanager.checkpoint_coordinator import CheckpointCoordinator
from flowlet.checkpoint.jobmanager.coordinator_events import (
    DiscardCheckpoint,
    Effect,
    FailJob,
    KeepCheckpoint,
    SavepointCompleted,
    SavepointFailed,
    WriteManifest,
)
from flowlet.checkpoint.jobmanager.pending_checkpoint import MAX_WAITING, SavepointRequest
from flowlet.messages.control_messages import (
    CheckpointAborted,
    CheckpointCompleted,
    TriggerCheckpoint,
)
from flowlet.messages.execution_state import ExecutionState
from netstack.wire.events import SnapshotType
from tests.flowlet.checkpoint.jobmanager.coordinated import STATE, Coordinated, attempt, attempts_of, told, triggered
from tests.flowlet.jm.acknowledgements import acknowledged

RUNNING, FINISHED, FAILED = ExecutionState.RUNNING, ExecutionState.FINISHED, ExecutionState.FAILED
WANTED = SavepointRequest("/savepoints/savepoint-1")
DRAIN = SavepointRequest("/savepoints/savepoint-2", SnapshotType.SAVEPOINT_TERMINATE)


def started(**settings: object) -> Coordinated:
    coordinated = Coordinated(**settings)  # type: ignore[arg-type]  # of CheckpointSettings
    coordinated.start()
    return coordinated


def reasons(effects: Sequence[Effect]) -> list[str]:
    return [effect.message for effect in effects if isinstance(effect, SavepointFailed)]


def test_it_is_taken_at_once_into_its_own_directory() -> None:
    """The barriers name its kind and its place; no task hears that it is complete, and the job does not restart
    from it.
    """
    coordinated = started()
    s = attempt("s")

    trigger = coordinated.handle(lambda it: it.savepoint_requested(WANTED))
    written = coordinated.acknowledge(1)
    end = coordinated.write(1)

    assert trigger == [TriggerCheckpoint(s, 1, 0, SnapshotType.SAVEPOINT, WANTED.location)]
    assert written == [WriteManifest(coordinated.manifests[1], WANTED.location)]
    assert coordinated.manifests[1].is_savepoint
    assert end == [SavepointCompleted(WANTED, 1)]


def test_a_job_without_periodic_checkpoints_takes_it() -> None:
    coordinated = started(interval_ms=None, directory="")

    idle = coordinated.at(1_000_000)
    coordinated.handle(lambda it: it.savepoint_requested(WANTED))
    end = coordinated.complete(1)

    assert idle == []
    assert end[-1] == SavepointCompleted(WANTED, 1)
    assert coordinated.coordinator.next_due_ms is None


def test_periodic_checkpoints_wait_for_it() -> None:
    coordinated = started()
    coordinated.handle(lambda it: it.savepoint_requested(WANTED))

    meanwhile = coordinated.at(350)
    end = coordinated.complete(1)

    assert triggered(meanwhile) == {}
    assert triggered(end) == {2: {attempt("s")}}


def test_it_waits_for_a_checkpoint_that_is_on_its_way() -> None:
    """The next periodic checkpoint waits for the savepoint, though it was due before."""
    coordinated = started()
    coordinated.at(100)

    waiting = coordinated.handle(lambda it: it.savepoint_requested(WANTED))
    still_waiting = coordinated.at(250)
    end = coordinated.complete(1)

    assert (waiting, triggered(still_waiting)) == ([], {})
    (order,) = [effect for effect in end if isinstance(effect, TriggerCheckpoint)]
    assert (order.checkpoint_id, order.location) == (2, WANTED.location)


def test_one_runs_after_the_other() -> None:
    other = SavepointRequest("/savepoints/other")
    coordinated = started()

    coordinated.handle(lambda it: it.savepoint_requested(WANTED))
    coordinated.handle(lambda it: it.savepoint_requested(other))
    end = coordinated.complete(1)

    assert coordinated.pending == [2]
    assert [effect.location for effect in end if isinstance(effect, TriggerCheckpoint)] == [other.location]


def test_too_many_that_wait_are_refused() -> None:
    coordinated = started()
    coordinated.at(100)
    for number in range(MAX_WAITING):
        coordinated.handle(CheckpointCoordinator.savepoint_requested, SavepointRequest(f"/{number}"))

    effects = coordinated.handle(lambda it: it.savepoint_requested(WANTED))

    assert effects == [SavepointFailed(WANTED, "16 savepoints wait already: wait for one of them")]


def test_its_failure_does_not_count() -> None:
    """A failed savepoint does not fail the job; its files are discarded, those that are reported late included."""
    coordinated = started(tolerable_failures=0)
    coordinated.handle(lambda it: it.savepoint_requested(WANTED))

    effects = coordinated.decline(1, "t", "ASYNCHRONOUS_PART_FAILED")
    late = coordinated.report(acknowledged(attempt("s"), 1, STATE))

    assert reasons(effects) == ["t (subtask 0): no space left"]
    assert not [effect for effect in effects if isinstance(effect, FailJob)]
    assert told(effects, CheckpointAborted) == [(1, attempt("s")), (1, attempt("t"))]
    assert DiscardCheckpoint(1, WANTED.location) in effects
    assert late == [DiscardCheckpoint(1, WANTED.location)]
    assert triggered(coordinated.at(100)) == {2: {attempt("s")}}


def test_a_manifest_that_cannot_be_written_fails_it() -> None:
    coordinated = started()
    coordinated.handle(lambda it: it.savepoint_requested(WANTED))
    coordinated.acknowledge(1)

    effects = coordinated.fail_to_write(1)

    assert reasons(effects) == ["its manifest could not be written: the disk is full"]
    assert DiscardCheckpoint(1, WANTED.location) in effects


def test_a_manifest_that_is_written_too_late_is_removed() -> None:
    coordinated = started()
    coordinated.handle(lambda it: it.savepoint_requested(WANTED))
    coordinated.acknowledge(1)

    ended = coordinated.stop()
    late = coordinated.write(1)

    assert reasons(ended) == ["the run of its tasks ended"]
    assert late == [DiscardCheckpoint(1, WANTED.location)]


def test_it_expires_as_a_checkpoint_does() -> None:
    coordinated = started(interval_ms=None, directory="")
    coordinated.handle(lambda it: it.savepoint_requested(WANTED))

    effects = coordinated.at(1000)

    assert reasons(effects) == ["it was not complete in time (1000 ms), it waited for the tasks"]


@pytest.mark.parametrize("what", ["before the first run", "a task starts", "a task has failed", "the run is over"])
def test_it_is_refused_unless_all_tasks_run(what: str) -> None:
    coordinated = Coordinated()
    match what:
        case "a task starts":
            coordinated.run = 0
            coordinated.handle(lambda it: it.run_started(attempts_of(coordinated.job)))
            coordinated.handle(lambda it: it.attempt_changed(attempt("s"), RUNNING))
        case "a task has failed":
            coordinated.start()
            coordinated.change("t", FAILED)
        case "the run is over":
            coordinated.start()
            coordinated.stop()
        case _:
            pass

    effects = coordinated.handle(lambda it: it.savepoint_requested(WANTED))

    assert len(reasons(effects)) == 1
    assert "only while all of its tasks run" in reasons(effects)[0]


def test_one_that_waits_fails_with_the_run() -> None:
    coordinated = started()
    coordinated.at(100)
    coordinated.handle(lambda it: it.savepoint_requested(WANTED))

    effects = coordinated.change("t", FAILED)

    assert len(reasons(effects)) == 1
    assert "only while all of its tasks run" in reasons(effects)[0]


def test_one_that_stops_the_job_is_told_to_all_and_nothing_follows() -> None:
    """The tasks wait for it; their states are those of the end."""
    coordinated = started()

    trigger = coordinated.handle(lambda it: it.savepoint_requested(DRAIN))
    end = coordinated.complete(1)
    later = coordinated.at(1_000_000)

    assert [effect.snapshot_type for effect in trigger if isinstance(effect, TriggerCheckpoint)] == [
        SnapshotType.SAVEPOINT_TERMINATE
    ]
    assert told(end, CheckpointCompleted) == [(1, attempt("s")), (1, attempt("t"))]
    assert isinstance(end[-1], SavepointCompleted)
    assert not [effect for effect in end if isinstance(effect, KeepCheckpoint)]
    assert later == []


def test_a_task_that_finished_before_it_took_part_fails_it() -> None:
    coordinated = started()
    coordinated.handle(lambda it: it.savepoint_requested(DRAIN))

    effects = coordinated.change("s", FINISHED)

    assert reasons(effects) == ["s (subtask 0): a task finished before it took part"]


def test_people_see_it_in_the_history() -> None:
    coordinated = started()
    coordinated.handle(lambda it: it.savepoint_requested(DRAIN))
    pending = coordinated.document()
    coordinated.complete(1)

    document = coordinated.document()

    assert [each["status"] for each in pending["history"]] == ["IN_PROGRESS"]
    latest = document["latest"]
    assert isinstance(latest, dict)
    assert latest["completed"] is None
    found = latest["savepoint"]
    assert (found["is_savepoint"], found["checkpoint_type"], found["external_path"]) == (
        True,
        "SYNC_SAVEPOINT",
        DRAIN.location,
    )
