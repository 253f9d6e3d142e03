"""Why checkpoints fail, and how many may fail one after the other.

Side:   pure.
Source: Flink ``CheckpointFailureReason``, ``CheckpointFailureManager``.
Rules:  a failure counts if it shows that the job cannot keep its state.  It does not count if tasks start, end or fail,
        if a newer checkpoint took its place, if a client pauses, or if a task only passes on what another one decided.
        Unknown reasons count.  Other than in Flink a source counts whose state cannot be kept: otherwise the job would
        run without checkpoints, and nobody would know.
"""

from enum import Enum, unique
from typing import Final

from flowlet.checkpoint.barrier_orders import CheckpointFailureReason


@unique
class CoordinatorFailureReason(Enum):
    """Why the coordinator ends a checkpoint; the values are for messages.

    No name is also the name of a task's reason.
    """

    CHECKPOINT_EXPIRED = "it was not complete in time"
    READER_BEHIND = "it was not complete in time, because the client has not read the results so far"
    CHECKPOINT_SUBSUMED = "a newer one was complete first"
    CHECKPOINT_COORDINATOR_SUSPEND = "the run of its tasks ended"
    TASK_FAILURE = "a task failed or was cancelled"
    TASK_FINISHED = "a task finished before it took part"
    TRIGGER_CHECKPOINT_FAILURE = "the state of a source could not be kept"
    FINALIZE_CHECKPOINT_FAILURE = "its manifest could not be written"


# A task that gave way to a decision of another task; the cause is at that other task, whose report may arrive later.
SYMPTOM: Final = CheckpointFailureReason.CANCELLATION_BARRIER.name

_UNCOUNTED: Final = frozenset(
    reason.name
    for reason in (
        CheckpointFailureReason.TASK_NOT_READY,
        CheckpointFailureReason.TASK_CLOSING,
        CheckpointFailureReason.CANCELLATION_BARRIER,
        CheckpointFailureReason.SUBSUMED,
        CheckpointFailureReason.INPUT_END_OF_STREAM,
        CheckpointFailureReason.ABORTED_BY_NOTIFICATION,
        CoordinatorFailureReason.READER_BEHIND,
        CoordinatorFailureReason.CHECKPOINT_SUBSUMED,
        CoordinatorFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
        CoordinatorFailureReason.TASK_FAILURE,
        CoordinatorFailureReason.TASK_FINISHED,
    )
)


def is_counted(reason: str) -> bool:
    """Whether a failure for this reason, which is the name of one, counts."""
    return reason not in _UNCOUNTED


class FailureCounter:
    """Counts the checkpoints that failed since the newest complete one.

    Args:
        tolerable: so many may fail; -1: any number.
    """

    def __init__(self, tolerable: int) -> None:
        self._tolerable = tolerable
        self._counted: set[int] = set()  # at most ``tolerable`` ids
        self._last_completed = -1

    def __repr__(self) -> str:
        return f"<FailureCounter {len(self._counted)} of {self._tolerable} failed>"

    def failed(self, checkpoint_id: int, reason: str) -> bool:
        """Count a failure; True, and the count begins anew, if these are too many.  One checkpoint counts once."""
        if self._tolerable == -1 or checkpoint_id < self._last_completed or not is_counted(reason):
            return False
        self._counted.add(checkpoint_id)
        if len(self._counted) <= self._tolerable:
            return False
        self._counted.clear()
        return True

    def completed(self, checkpoint_id: int) -> None:
        """A checkpoint is complete: the count begins anew."""
        self._last_completed = checkpoint_id
        self._counted.clear()
