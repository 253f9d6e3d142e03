"""``InMemoryCheckpointStore``."""

import pytest

from flowlet.checkpoint.barrier_orders import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.snapshots import (
    OperatorState,
    SubtaskState,
)
from flowlet.messages.control_messages import CheckpointDurations
from tests.flowlet.checkpoint.in_memory_store import InMemoryCheckpointStore


def test_a_subtask_restores_what_it_acknowledged_first() -> None:
    store = InMemoryCheckpointStore()
    one, two = SubtaskState({"op": OperatorState(1)}), SubtaskState({"op": OperatorState(2)})
    store.responder_of("v", 0).acknowledge_checkpoint(7, CheckpointDurations(), one)
    store.responder_of("v", 0).acknowledge_checkpoint(7, CheckpointDurations(), two)
    store.responder_of("v", 1).acknowledge_checkpoint(7, CheckpointDurations(), two)

    assert store.state_of(7, "v", 0) is one
    assert store.state_of(7, "v", 1) is two
    assert store.num_acknowledged(7) == 2
    with pytest.raises(KeyError, match="checkpoint 8 holds nothing of subtask 0"):
        store.state_of(8, "v", 0)


def test_declines_are_kept_by_subtask() -> None:
    store = InMemoryCheckpointStore()
    error = CheckpointError(7, CheckpointFailureReason.TASK_NOT_READY)

    store.responder_of("v", 3).decline_checkpoint(7, error)

    assert store.declines(7) == {("v", 3): error}
    store.discard(7)
    assert store.declines(7) == {}


def test_only_so_many_checkpoints_are_kept() -> None:
    """The oldest go first."""
    store = InMemoryCheckpointStore(max_retained=2)
    for checkpoint_id in (1, 2, 3):
        store.responder_of("v", 0).acknowledge_checkpoint(checkpoint_id, CheckpointDurations(), SubtaskState())
        store.responder_of("w", 0).decline_checkpoint(
            checkpoint_id, CheckpointError(checkpoint_id, CheckpointFailureReason.TASK_CLOSING)
        )

    assert [store.num_acknowledged(each) for each in (1, 2, 3)] == [0, 1, 1]
    assert [len(store.declines(each)) for each in (1, 2, 3)] == [0, 1, 1]
