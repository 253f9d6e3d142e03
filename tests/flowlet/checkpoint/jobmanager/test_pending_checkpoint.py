"""Tests of ``flowlet.checkpoint.jobmanager.pending_checkpoint``: who is triggered, and which failures count."""

import pytest

from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology, CoordinatorFailureReason, is_counted
from flowlet.checkpoint.task.barrier_orders import CheckpointFailureReason
from flowlet.messages.execution_state import Subtask
from flowlet.messages.job_messages import JobGraphMessage
from tests.flowlet.checkpoint.jobmanager.coordinated import attempts_of, job_of, vertex_id


def frontier(job: JobGraphMessage, *finished: str) -> str:
    """Return the frontier of the subtasks that are not ``finished``."""
    gone = {Subtask(vertex_id(name[0]), int(name[1:])) for name in finished}
    topology = CheckpointTopology(job)
    return " ".join(
        f"{topology.names[each.vertex_id]}{each.subtask}"
        for each in topology.frontier(set(attempts_of(job).values()) - gone)
    )


@pytest.mark.parametrize(
    ("job", "frontiers"),
    [
        pytest.param(
            job_of({"a": 2, "b": 1, "m": 2, "t": 1}, ["am", "bm", "mt", "t-"]),
            {"": "a0 a1 b0"},
            id="while all run they are the sources",
        ),
        pytest.param(
            job_of({"a": 2, "t": 2}, ["at"]),
            {"a0": "a1", "a0 a1": "t0 t1", "a0 a1 t0": "t1"},
            id="a consumer of a whole vertex follows when all subtasks of it have finished",
        ),
        pytest.param(
            job_of({"a": 3, "t": 3}, [], pointwise=["at"]),
            {"a1": "a0 a2 t1", "a1 a2 t2": "a0 t1"},
            id="a consumer of one subtask follows when that has finished",
        ),
        pytest.param(
            job_of({"a": 4, "t": 2}, [], pointwise=["at"]),
            {"a0": "a1 a2 a3", "a0 a1": "a2 a3 t0"},
            id="subtask 0 of two reads 0 and 1 of four",
        ),
        pytest.param(
            job_of({"a": 2, "t": 4}, [], pointwise=["at"]), {"a1": "a0 t2 t3"}, id="subtasks 2 and 3 of four read 1"
        ),
        pytest.param(
            job_of({"a": 1, "b": 1, "t": 2}, ["at"], pointwise=["bt"]),
            {"a0": "b0", "b0": "a0", "a0 b0": "t0 t1"},
            id="a consumer of two vertices waits for both",
        ),
        pytest.param(
            job_of({"a": 1, "m": 1, "t": 1}, ["am", "mt"]),
            {"a0": "m0", "a0 m0": "t0", "a0 m0 t0": ""},
            id="a chain of finished vertices leaves the next one",
        ),
    ],
)
def test_those_are_triggered_whose_producers_have_all_finished(job: JobGraphMessage, frontiers: dict[str, str]) -> None:
    """A table from the finished subtasks to the frontier."""
    assert {finished: frontier(job, *finished.split()) for finished in frontiers} == frontiers


def test_it_is_described_for_people() -> None:
    topology = CheckpointTopology(job_of({"a": 2, "t": 1}, ["at"]))

    assert topology.describe(Subtask(vertex_id("a"), 1)) == "a (subtask 1)"
    assert repr(topology) == f"<CheckpointTopology of {topology.job_id}, 3 subtasks>"


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
