"""Tests of ``flowlet.checkpoint.jobmanager.pending_checkpoint``."""

from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology
from flowlet.messages.control_messages import JobGraphMessage
from flowlet.messages.execution_state import Subtask
from tests.flowlet.checkpoint.jobmanager.coordinated import attempts_of, job_of, vertex_id


def frontier(job: JobGraphMessage, *finished: str) -> str:
    """Return the frontier of the subtasks that are not ``finished``."""
    gone = {Subtask(vertex_id(name[0]), int(name[1:])) for name in finished}
    topology = CheckpointTopology(job)
    return " ".join(
        f"{topology.names[each.vertex_id]}{each.subtask}"
        for each in topology.frontier(set(attempts_of(job).values()) - gone)
    )


def test_while_all_run_they_are_the_sources() -> None:
    job = job_of({"a": 2, "b": 1, "m": 2, "t": 1}, ["am", "bm", "mt", "t-"])

    assert frontier(job) == "a0 a1 b0"


def test_a_consumer_of_a_whole_vertex_follows_when_all_subtasks_of_it_have_finished() -> None:
    job = job_of({"a": 2, "t": 2}, ["at"])

    assert [frontier(job, "a0"), frontier(job, "a0", "a1"), frontier(job, "a0", "a1", "t0")] == ["a1", "t0 t1", "t1"]


def test_a_consumer_of_one_subtask_follows_when_that_has_finished() -> None:
    job = job_of({"a": 3, "t": 3}, [], pointwise=["at"])

    assert [frontier(job, "a1"), frontier(job, "a1", "a2", "t2")] == ["a0 a2 t1", "a0 t1"]


def test_pointwise_edges_between_different_widths() -> None:
    """Subtask 0 of two reads 0 and 1 of four, and so on."""
    narrowing, widening = job_of({"a": 4, "t": 2}, [], pointwise=["at"]), job_of({"a": 2, "t": 4}, [], pointwise=["at"])

    assert [frontier(narrowing, "a0"), frontier(narrowing, "a0", "a1")] == ["a1 a2 a3", "a2 a3 t0"]
    assert frontier(widening, "a1") == "a0 t2 t3"


def test_a_consumer_of_two_vertices_waits_for_both() -> None:
    job = job_of({"a": 1, "b": 1, "t": 2}, ["at"], pointwise=["bt"])

    assert [frontier(job, "a0"), frontier(job, "b0"), frontier(job, "a0", "b0")] == ["b0", "a0", "t0 t1"]


def test_a_chain_of_finished_vertices_leaves_the_next_one() -> None:
    job = job_of({"a": 1, "m": 1, "t": 1}, ["am", "mt"])

    assert [frontier(job, "a0"), frontier(job, "a0", "m0"), frontier(job, "a0", "m0", "t0")] == ["m0", "t0", ""]


def test_it_is_described_for_people() -> None:
    topology = CheckpointTopology(job_of({"a": 2, "t": 1}, ["at"]))

    assert topology.describe(Subtask(vertex_id("a"), 1)) == "a (subtask 1)"
    assert repr(topology) == f"<CheckpointTopology of {topology.job_id}, 3 subtasks>"
