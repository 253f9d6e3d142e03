"""``InMemoryCheckpointStore``."""

import pytest

from flowlet.checkpoint.barrier_orders import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.snapshots import CheckpointMetrics, SubtaskState
from flowlet.checkpoint.subtask_checkpoint_coordinator import CheckpointStatistics
from tests.flowlet.checkpoint.in_memory_store import InMemoryCheckpointStore, MeasuringResponder


def test_a_subtask_restores_what_it_acknowledged_first() -> None:
    store = InMemoryCheckpointStore()
    one, two = SubtaskState({"op": 1}), SubtaskState({"op": 2})
    store.responder_of("v", 0).acknowledge_checkpoint(7, CheckpointMetrics(), one)
    store.responder_of("v", 0).acknowledge_checkpoint(7, CheckpointMetrics(), two)
    store.responder_of("v", 1).acknowledge_checkpoint(7, CheckpointMetrics(), two)

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
        store.responder_of("v", 0).acknowledge_checkpoint(checkpoint_id, CheckpointMetrics(), SubtaskState())
        store.responder_of("w", 0).decline_checkpoint(
            checkpoint_id, CheckpointError(checkpoint_id, CheckpointFailureReason.TASK_CLOSING)
        )

    assert [store.num_acknowledged(each) for each in (1, 2, 3)] == [0, 1, 1]
    assert [len(store.declines(each)) for each in (1, 2, 3)] == [0, 1, 1]


def test_what_is_passed_on_is_counted() -> None:
    """The last acknowledged checkpoint's costs can be asked for; a decline changes only its own count."""
    store = InMemoryCheckpointStore()
    responder = MeasuringResponder(store.responder_of("v", 0))
    assert responder.statistics == CheckpointStatistics()
    metrics = CheckpointMetrics(sync_duration_ns=5, bytes_persisted_during_alignment=9)

    responder.acknowledge_checkpoint(1, CheckpointMetrics(), SubtaskState())
    responder.acknowledge_checkpoint(3, metrics, SubtaskState())
    responder.decline_checkpoint(4, CheckpointError(4, CheckpointFailureReason.TASK_NOT_READY))

    assert responder.statistics == CheckpointStatistics(2, 1, 3, metrics)
    assert (store.num_acknowledged(3), list(store.declines(4))) == (1, [("v", 0)])
