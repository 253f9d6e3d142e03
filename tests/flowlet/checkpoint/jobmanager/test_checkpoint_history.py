"""Tests of ``flowlet.checkpoint.jobmanager.checkpoint_history``: the document that people see."""

from typing import Any

from flowlet.checkpoint.jobmanager.checkpoint_history import CheckpointHistory, CompletedCheckpoints
from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology
from flowlet.messages.control_messages import (
    CheckpointDurations,
    StateHandle,
)
from flowlet.messages.execution_state import ExecutionState
from tests.flowlet.checkpoint.jobmanager.coordinated import Coordinated, attempt, job_of, vertex_id
from tests.flowlet.jm.acknowledgements import acknowledged


def started(**settings: object) -> Coordinated:
    coordinated = Coordinated(job_of({"s": 2, "t": 1}, ["st"]), **settings)
    coordinated.start()
    return coordinated


def test_before_the_first_one() -> None:
    topology = CheckpointTopology(job_of({"s": 1}, []))
    document: Any = CheckpointHistory(topology).document([], CompletedCheckpoints(None, topology))

    assert document["counts"] == {"restored": 0, "total": 0, "in_progress": 0, "completed": 0, "failed": 0}
    assert document["latest"] == {"completed": None, "savepoint": None, "failed": None, "restored": None}
    assert document["history"] == []


def test_what_each_subtask_needed() -> None:
    coordinated = started()
    coordinated.at(100)
    durations = CheckpointDurations(
        start_delay_ms=1,
        alignment_ms=2,
        sync_ms=3,
        async_ms=4,
        bytes_processed_during_alignment=5,
        bytes_persisted_during_alignment=6,
    )
    coordinated.now_ms = 130
    coordinated.report(acknowledged(attempt("s", 1), 1, StateHandle(70, b"sum"), durations=durations))

    (checkpoint,) = coordinated.document()["history"]

    assert (checkpoint["id"], checkpoint["status"], checkpoint["trigger_timestamp"]) == (1, "IN_PROGRESS", 100)
    assert (checkpoint["num_subtasks"], checkpoint["num_acknowledged_subtasks"]) == (3, 1)
    source, sink = checkpoint["tasks"][vertex_id("s")], checkpoint["tasks"][vertex_id("t")]
    assert (source["status"], source["num_acknowledged_subtasks"], sink["latest_ack_timestamp"]) == (
        "IN_PROGRESS",
        1,
        -1,
    )
    assert source["subtasks"] == [
        {"index": 0, "status": "pending_or_failed"},
        {
            "index": 1,
            "status": "completed",
            "ack_timestamp": 130,
            "end_to_end_duration": 30,
            "checkpointed_size": 70,
            "state_size": 70,
            "checkpoint": {"sync": 3, "async": 4},
            "alignment": {"buffered": 0, "processed": 5, "persisted": 6, "duration": 2},
            "start_delay": 1,
            "unaligned_checkpoint": False,
            "aborted": False,
        },
    ]


def test_a_complete_one() -> None:
    coordinated = started()
    coordinated.change("s", ExecutionState.FINISHED)
    coordinated.at(100)
    coordinated.now_ms = 140
    coordinated.acknowledge(1, "s1", "t0")
    coordinated.write(1)

    document = coordinated.document()

    latest = document["latest"]["completed"]
    assert document["history"] == [latest]
    assert (latest["status"], latest["end_to_end_duration"], latest["state_size"], latest["latest_ack_timestamp"]) == (
        "COMPLETED",
        40,
        6,
        140,
    )
    assert latest["tasks"][vertex_id("s")]["status"] == "COMPLETED"
    assert latest["tasks"][vertex_id("s")]["subtasks"][0]["ack_timestamp"] == 100, "it had finished before the trigger"


def test_a_failed_one_says_which_task_held_it_up() -> None:
    """The sink is missing, too, but it only waits for the barrier of source 1."""
    coordinated = started(tolerable_failures=9)
    coordinated.at(100)
    coordinated.acknowledge(1, "s0")
    coordinated.at(1100)

    document = coordinated.document()

    failed = document["latest"]["failed"]
    assert (failed["status"], failed["failure_reason"], failed["failure_timestamp"]) == (
        "FAILED",
        "CHECKPOINT_EXPIRED",
        1100,
    )
    assert failed["failure_message"] == "it was not complete in time (1000 ms), it waited for the tasks"
    assert failed["held_up_by"] == [{"id": vertex_id("s"), "name": "s", "subtask": 1}]
    assert failed["failed_task"] is None
    assert failed["tasks"][vertex_id("s")]["subtasks"][0]["aborted"]


def test_the_last_ten_are_kept_and_all_are_counted() -> None:
    coordinated = started(tolerable_failures=-1)
    for number in range(1, 15):
        coordinated.at(number * 100)
        coordinated.acknowledge(number)
        coordinated.write(number) if number % 2 else coordinated.fail_to_write(number)
    coordinated.at(1500)

    document = coordinated.document()

    assert [each["id"] for each in document["history"]] == list(range(15, 5, -1))
    assert document["counts"] == {"restored": 0, "total": 15, "in_progress": 1, "completed": 7, "failed": 7}
    assert (document["latest"]["completed"]["id"], document["latest"]["failed"]["id"]) == (13, 14)
