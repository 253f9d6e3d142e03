"""``CheckpointError`` and the reasons for it.

Side:   pure.
Source: Flink ``CheckpointException``, ``CheckpointFailureReason`` (the reasons of a task).
Absent: the reasons of the coordinator, which does not exist yet.
"""

from enum import Enum, unique

from flowlet.errors import FlowletError


@unique
class CheckpointFailureReason(Enum):
    """Why a task declines a checkpoint; the values are for messages."""

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
    """One checkpoint failed; the task itself may go on.

    ``details``: values that help to find the cause; may be empty.
    """

    def __init__(self, checkpoint_id: int, reason: CheckpointFailureReason, details: str = "") -> None:
        super().__init__(f"checkpoint {checkpoint_id}: {reason.value}{': ' if details else ''}{details}")
        self.checkpoint_id = checkpoint_id
        self.reason = reason
        self.details = details
