"""Why a checkpoint came to nothing.

Side:   pure.
Source: Flink ``CheckpointException``, ``CheckpointFailureReason`` (the reasons that a task can find).
Absent: the reasons of the coordinator, which come with it.
"""

from enum import Enum, unique

from flowlet.errors import FlowletError


@unique
class CheckpointFailureReason(Enum):
    """What a task says when it declines; the values are for people."""

    TASK_NOT_READY = "the task is not running"
    TASK_CLOSING = "the task is about to close"
    CANCELLATION_BARRIER = "a task before this one cancelled it"
    SUBSUMED = "a barrier of a newer checkpoint arrived"
    INPUT_END_OF_STREAM = "an input ended"
    ABORTED_BY_NOTIFICATION = "the coordinator aborted it"
    UNSUPPORTED_SNAPSHOT = "the task cannot take a snapshot of this kind"
    SYNCHRONOUS_PART_FAILED = "the synchronous part of the snapshot failed"
    ASYNCHRONOUS_PART_FAILED = "the asynchronous part of the snapshot failed"
    CHANNEL_STATE_FAILED = "the data in flight could not be kept"


class CheckpointError(FlowletError):
    """One checkpoint failed; the task itself need not.

    Args:
        checkpoint_id: which one.
        reason: the class of reasons.
        details: values that help; may be empty.
    """

    def __init__(self, checkpoint_id: int, reason: CheckpointFailureReason, details: str = "") -> None:
        super().__init__(f"checkpoint {checkpoint_id}: {reason.value}{': ' if details else ''}{details}")
        self.checkpoint_id = checkpoint_id
        self.reason = reason
        self.details = details
