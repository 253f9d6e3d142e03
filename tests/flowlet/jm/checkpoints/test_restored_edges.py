"""Tests of ``flowlet.jm.checkpoints.former_checkpoint``."""

from flowlet.jm.checkpoints.checkpoint_history import CompletedCheckpoints
from flowlet.jm.checkpoints.former_checkpoint import InFlightEdge, in_flight_edges
from flowlet.messages.control_messages import (
    EdgeMessage,
    JobGraphMessage,
    RestoredEdge,
    RestoredPart,
    RestoredState,
    StateHandle,
    VertexMessage,
)
from flowlet.storage.manifest import CheckpointManifest, SubtaskEntry


def vertex(vertex_id: str, parallelism: int) -> VertexMessage:
    return VertexMessage(vertex_id, vertex_id, parallelism, 128, "default", [vertex_id], b"")


def edge(name: str, source: str, target: str | None, *, is_pointwise: bool = False) -> EdgeMessage:
    return EdgeMessage(name, source, 0, target, is_pointwise, "HASH", b"blob", 100)


# Two sources, each with an output for the client or for another task in front of the one to the join.
JOB = JobGraphMessage(
    "job",
    "name",
    [vertex("a", 1), vertex("b", 2), vertex("join", 3)],
    [
        edge("a-out", "a", None),
        edge("b-a", "b", "a", is_pointwise=True),
        edge("b-join", "b", "join"),
        edge("a-join", "a", "join"),
    ],
)
B_JOIN = InFlightEdge("b-join", "b", 1, "join", 0, is_pointwise=False, num_producers=2)
A_JOIN = InFlightEdge("a-join", "a", 1, "join", 1, is_pointwise=False, num_producers=1)


def channels(name: str) -> StateHandle:
    return StateHandle(1, name.encode())


def store(*entries: SubtaskEntry) -> CompletedCheckpoints:
    kept = CompletedCheckpoints(1, in_flight_edges(JOB))
    kept.add(CheckpointManifest("job", "name", 4, 7, {"a": 1, "b": 2, "join": 2}, list(entries)))
    return kept


def test_outputs_and_gates_are_counted_as_the_tasks_count_them() -> None:
    assert in_flight_edges(JOB) == [
        InFlightEdge("b-a", "b", 0, "a", 0, is_pointwise=True, num_producers=2),
        B_JOIN,
        A_JOIN,
    ]


def test_a_consumer_gets_what_its_producers_kept() -> None:
    """And its own part, even if that is without state."""
    kept = store(
        SubtaskEntry("b", 0),
        SubtaskEntry("b", 1, StateHandle(9, b"state"), channels=channels("b1")),
        SubtaskEntry("join", 0, channels=channels("join0")),
        SubtaskEntry("join", 1),
    )

    of_b = RestoredEdge("b-join", 0, 1, [RestoredPart(1, channels=channels("b1"))], 2, 2, 2)
    of_a = RestoredEdge("a-join", 1, 1, [], 1, 2, 1)
    assert kept.restored_state("join", 0) == RestoredState(
        4, [RestoredPart(0, channels=channels("join0"))], edges=[of_b, of_a]
    )
    assert kept.restored_state("join", 2) == RestoredState(4, edges=[of_b, of_a])
    pointwise = RestoredEdge("b-a", 0, 0, [RestoredPart(1, channels=channels("b1"))], 2, 1, 2, is_pointwise=True)
    assert kept.restored_state("a", 0) == RestoredState(4, edges=[pointwise])
    assert kept.restored_state("b", 1) == RestoredState(4, [RestoredPart(1, StateHandle(9, b"state"), channels("b1"))])


def test_without_data_in_flight_there_is_nothing_to_hand_over() -> None:
    kept = store(SubtaskEntry("a", 0, StateHandle(9, b"state")), SubtaskEntry("join", 0))

    assert kept.restored_state("join", 0) == RestoredState(4)
