"""Tests of ``flowlet.checkpoint.jobmanager.former_checkpoint``."""

from flowlet.checkpoint.jobmanager.checkpoint_history import CompletedCheckpoints
from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology
from flowlet.messages.control_messages import (
    EdgeMessage,
    JobGraphMessage,
    RestoredEdge,
    RestoredState,
    RestoredVertex,
    StateHandle,
    SubtaskEntry,
    VertexMessage,
)
from flowlet.storage.manifest import (
    CheckpointManifest,
)


def vertex(vertex_id: str, parallelism: int) -> VertexMessage:
    return VertexMessage(vertex_id, vertex_id, parallelism, 128, "default", [vertex_id], b"")


def edge(name: str, source: str, target: str | None, *, is_pointwise: bool = False) -> EdgeMessage:
    return EdgeMessage(name, source, 0, target, is_pointwise, "HASH", b"blob", 100)


# Two sources, each with an output for the client or for another task in front of the one to the join.
JOB = JobGraphMessage(
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


def store(*entries: SubtaskEntry) -> CompletedCheckpoints:
    kept = CompletedCheckpoints(None, CheckpointTopology(JOB))
    kept.add(CheckpointManifest("job", "name", 4, 7, {"a": 1, "b": 2, "join": 2}, list(entries)))
    return kept


def test_outputs_and_gates_are_counted_as_the_tasks_count_them() -> None:
    places = [(each.source, each.output, each.target, each.gate) for each in CheckpointTopology(JOB).edges]

    assert places == [("b", 0, "a", 0), ("b", 1, "join", 0), ("a", 1, "join", 1)]


def test_a_consumer_gets_what_its_producers_kept() -> None:
    """A consumer also gets its own part, even one without state."""
    of_b1 = SubtaskEntry("b", 1, StateHandle(9, b"state"), channels=channels("b1"))
    of_join = SubtaskEntry("join", 0, channels=channels("join0"))
    kept = store(SubtaskEntry("a", 0), SubtaskEntry("b", 0), of_b1, of_join, SubtaskEntry("join", 1)).restored
    assert kept is not None
    producer = SubtaskEntry("b", 1, channels=channels("b1"))

    of_b = RestoredEdge("b-join", 0, 1, [producer], 2, 2, 2, new_gate=0)
    of_a = RestoredEdge("a-join", 1, 1, [], 1, 2, 1, new_gate=1)
    assert kept.restored_state("join", 0) == RestoredState(4, [RestoredVertex(2, [], [of_join])], edges=[of_b, of_a])
    assert kept.restored_state("join", 1) == RestoredState(4, [RestoredVertex(2, [], [])], edges=[of_b, of_a])
    pointwise = RestoredEdge("b-a", 0, 0, [producer], 2, 1, 2, is_pointwise=True, new_gate=0)
    assert kept.restored_state("a", 0) == RestoredState(4, [RestoredVertex(1, [], [])], edges=[pointwise])
    assert kept.restored_state("b", 1) == RestoredState(4, [RestoredVertex(2, [], [of_b1])])


def test_without_data_in_flight_there_is_nothing_to_hand_over() -> None:
    kept = store(SubtaskEntry("a", 0, StateHandle(9, b"state")), SubtaskEntry("join", 0)).restored

    assert kept is not None
    assert kept.restored_state("join", 0).edges == []
