"""Tests of ``flowlet.checkpoint.jobmanager.pending_checkpoint``."""

from flowlet.checkpoint.jobmanager.pending_checkpoint import CoordinatorFailureReason, is_counted
from flowlet.checkpoint.task.barrier_orders import CheckpointFailureReason

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
