"""Tests of ``flowlet.checkpoint.jobmanager.checkpoint_history``: the document that people see, and the checkpoints that
are kept.
"""

from typing import Any

import pytest

from flowlet.checkpoint.jobmanager.checkpoint_history import CheckpointHistory, CompletedCheckpoints
from flowlet.checkpoint.jobmanager.former_checkpoint import FormerCheckpoint
from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology
from flowlet.common.job_settings import CheckpointSettings
from flowlet.messages.control_messages import CheckpointDurations
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import (
    EdgeMessage,
    JobGraphMessage,
    RestoredEdge,
    RestoredState,
    RestoredVertex,
    StateHandle,
    SubtaskEntry,
    VertexMessage,
)
from flowlet.storage.manifest import CheckpointManifest, SourceEntry
from tests.flowlet.checkpoint.jobmanager.coordinated import Coordinated, attempt, job_of, started, vertex_id
from tests.flowlet.jm.acknowledgements import acknowledged


def of_two_sources(**settings: object) -> Coordinated:
    return started(job_of({"s": 2, "t": 1}, ["st"]), **settings)


def test_before_the_first_one() -> None:
    topology = CheckpointTopology(job_of({"s": 1}, []))
    document: Any = CheckpointHistory(topology).document([], CompletedCheckpoints(None, topology))

    assert document["counts"] == {"restored": 0, "total": 0, "in_progress": 0, "completed": 0, "failed": 0}
    assert document["latest"] == {"completed": None, "savepoint": None, "failed": None, "restored": None}
    assert document["history"] == []


def test_what_each_subtask_needed() -> None:
    coordinated = of_two_sources()
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
    assert (source["status"], source["num_acknowledged_subtasks"]) == ("IN_PROGRESS", 1)
    assert sink["latest_ack_timestamp"] == -1
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
    coordinated = of_two_sources()
    coordinated.change("s", ExecutionState.FINISHED)
    coordinated.at(100)
    coordinated.now_ms = 140
    coordinated.acknowledge(1, "s1", "t0")
    coordinated.write(1)

    document = coordinated.document()

    latest = document["latest"]["completed"]
    assert document["history"] == [latest]
    assert (latest["status"], latest["end_to_end_duration"]) == ("COMPLETED", 40)
    assert (latest["state_size"], latest["latest_ack_timestamp"]) == (6, 140)
    assert latest["tasks"][vertex_id("s")]["status"] == "COMPLETED"
    assert latest["tasks"][vertex_id("s")]["subtasks"][0]["ack_timestamp"] == 100, "it had finished before the trigger"


def test_a_failed_one_says_which_task_held_it_up() -> None:
    """The sink is missing, too, but it only waits for the barrier of source 1."""
    coordinated = of_two_sources(tolerable_failures=9)
    coordinated.at(100)
    coordinated.acknowledge(1, "s0")
    coordinated.at(1100)

    document = coordinated.document()

    failed = document["latest"]["failed"]
    assert (failed["status"], failed["failure_reason"]) == ("FAILED", "CHECKPOINT_EXPIRED")
    assert failed["failure_timestamp"] == 1100
    assert failed["failure_message"] == "it was not complete in time (1000 ms), it waited for the tasks"
    assert failed["held_up_by"] == [{"id": vertex_id("s"), "name": "s", "subtask": 1}]
    assert failed["failed_task"] is None
    assert failed["tasks"][vertex_id("s")]["subtasks"][0]["aborted"]


def test_the_last_ten_are_kept_and_all_are_counted() -> None:
    coordinated = of_two_sources(tolerable_failures=-1)
    for number in range(1, 15):
        coordinated.at(number * 100)
        coordinated.acknowledge(number)
        coordinated.write(number) if number % 2 else coordinated.fail_to_write(number)
    coordinated.at(1500)

    document = coordinated.document()

    assert [each["id"] for each in document["history"]] == list(range(15, 5, -1))
    assert document["counts"] == {"restored": 0, "total": 15, "in_progress": 1, "completed": 7, "failed": 7}
    assert (document["latest"]["completed"]["id"], document["latest"]["failed"]["id"]) == (13, 14)


# ---------------------------------------------------------------- the checkpoints that are kept

TOPOLOGY = CheckpointTopology(
    JobGraphMessage("job", "name", [VertexMessage("v", "v", 2, 128, "default", ["v"], b"")], [])
)


def manifest(checkpoint_id: int) -> CheckpointManifest:
    entries = [SubtaskEntry("v", 0, StateHandle(checkpoint_id, b"sum")), SubtaskEntry("v", 1, None, is_finished=True)]
    return CheckpointManifest(
        "job", "name", checkpoint_id, 7, {"v": 2}, entries, [SourceEntry("v", bytes([checkpoint_id]))]
    )


def kept(num_retained: int, *checkpoint_ids: int) -> CompletedCheckpoints:
    store = CompletedCheckpoints(CheckpointSettings(num_retained=num_retained), TOPOLOGY)
    for each in checkpoint_ids:
        store.add(manifest(each))
    return store


def test_the_newest_ones_are_kept() -> None:
    store = kept(2)

    dropped = [store.add(manifest(number)) for number in (1, 2, 3, 5)]

    assert (dropped, store.ids, store.newest) == ([[], [], [1], [2]], [3, 5], manifest(5))
    assert repr(store) == "<CompletedCheckpoints [3, 5]>"


def test_the_newest_one_is_restored() -> None:
    restored = kept(2, 1, 2).restored

    assert restored is not None
    (part, _) = manifest(2).subtasks
    assert restored.restored_state("v", 0) == RestoredState(2, [RestoredVertex(2, [], [part])])
    assert restored.restored_state("v", 1) == RestoredState(2, [RestoredVertex(2, [], [])], is_finished=True)
    assert (restored.sources.get("v"), restored.sources.get("other")) == (b"\x02", None)


def test_without_the_newest_the_one_before_is_restored() -> None:
    store = kept(2, 1, 2)

    dropped = store.drop_newest()

    assert (dropped, store.ids, store.newest) == (manifest(2), [1], manifest(1))
    restored = store.restored
    assert restored is not None
    assert (restored.checkpoint_id, restored.sources.get("v")) == (1, b"\x01")
    assert restored.restored_state("v", 0).vertices[0].parts == [manifest(1).subtasks[0]]
    assert store.add(manifest(3)) == []


def test_clear_gives_all_away_and_tasks_begin_anew() -> None:
    store = kept(3, 4, 6)

    assert (store.clear(), store.clear()) == ([4, 6], [])
    assert (store.newest, store.restored) == (None, None)


@pytest.mark.parametrize("number", [3, 4])
def test_ids_rise(number: int) -> None:
    store = kept(1, 4)

    with pytest.raises(AssertionError):
        store.add(manifest(number))


# ---------------------------------------------------------------- records in flight of the newest one


def vertex(vertex_id: str, parallelism: int) -> VertexMessage:
    return VertexMessage(vertex_id, vertex_id, parallelism, 128, "default", [vertex_id], b"")


def edge(name: str, source: str, target: str | None, *, is_pointwise: bool = False) -> EdgeMessage:
    return EdgeMessage(name, source, 0, target, is_pointwise, "HASH", b"blob", 100)


# Two sources, each with an output for the client or for another task in front of the one to the join.
JOIN = JobGraphMessage(
    "job",
    "name",
    [vertex("a", 1), vertex("b", 2), vertex("join", 2)],
    [
        edge("a-out", "a", None),
        edge("b-a", "b", "a", is_pointwise=True),
        edge("b-join", "b", "join"),
        edge("a-join", "a", "join"),
    ],
)


def channels(name: str) -> StateHandle:
    return StateHandle(1, name.encode())


def of_the_join(*entries: SubtaskEntry) -> FormerCheckpoint:
    """Return what is restored from checkpoint 4 of the job with a join."""
    store = CompletedCheckpoints(None, CheckpointTopology(JOIN))
    store.add(CheckpointManifest("job", "name", 4, 7, {"a": 1, "b": 2, "join": 2}, list(entries)))
    assert store.restored is not None
    return store.restored


def test_outputs_and_gates_are_counted_as_the_tasks_count_them() -> None:
    places = [(each.source, each.output, each.target, each.gate) for each in CheckpointTopology(JOIN).edges]

    assert places == [("b", 0, "a", 0), ("b", 1, "join", 0), ("a", 1, "join", 1)]


def test_a_consumer_gets_what_its_producers_kept() -> None:
    """A consumer also gets its own part, even one without state."""
    of_b1 = SubtaskEntry("b", 1, StateHandle(9, b"state"), channels=channels("b1"))
    of_join = SubtaskEntry("join", 0, channels=channels("join0"))
    restored = of_the_join(SubtaskEntry("a", 0), SubtaskEntry("b", 0), of_b1, of_join, SubtaskEntry("join", 1))
    producer = SubtaskEntry("b", 1, channels=channels("b1"))

    of_b = RestoredEdge("b-join", 0, 1, [producer], 2, 2, 2, new_gate=0)
    of_a = RestoredEdge("a-join", 1, 1, [], 1, 2, 1, new_gate=1)
    assert restored.restored_state("join", 0) == RestoredState(
        4, [RestoredVertex(2, [], [of_join])], edges=[of_b, of_a]
    )
    assert restored.restored_state("join", 1) == RestoredState(4, [RestoredVertex(2, [], [])], edges=[of_b, of_a])
    pointwise = RestoredEdge("b-a", 0, 0, [producer], 2, 1, 2, is_pointwise=True, new_gate=0)
    assert restored.restored_state("a", 0) == RestoredState(4, [RestoredVertex(1, [], [])], edges=[pointwise])
    assert restored.restored_state("b", 1) == RestoredState(4, [RestoredVertex(2, [], [of_b1])])


def test_without_data_in_flight_there_is_nothing_to_hand_over() -> None:
    restored = of_the_join(SubtaskEntry("a", 0, StateHandle(9, b"state")), SubtaskEntry("join", 0))

    assert restored.restored_state("join", 0).edges == []
