"""The events and orders of barrier machines.

``CheckpointError`` and the reasons for it.

Side:   pure.
Source: Flink ``CheckpointException``, ``CheckpointFailureReason`` (the reasons of a task); the calls in and out of
        Flink's ``CheckpointBarrierHandler`` and ``BarrierHandlerState.Controller``.
Absent: the reasons of the coordinator (``CoordinatorFailureReason``).
Units:  timestamps and delays in milliseconds.
"""

from enum import Enum, unique
from typing import TypeAlias

from flowlet.errors import FlowletError
from netstack.late import dataclass
from netstack.wire.events import CheckpointBarrier


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


Channel: TypeAlias = tuple[int, int]
"""Index of the gate, index of the channel in it; netstack's ``InputChannelInfo`` is such a tuple."""


@dataclass(frozen=True, slots=True)
class _OfCheckpoint:
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class _OfFailed:
    checkpoint_id: int
    reason: CheckpointFailureReason
    details: str = ""


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class BarrierReceived:
    """A barrier was polled; ``is_injected``: it is an order of the JobManager instead, so the channel's producer did
    not stop.
    """

    channel: Channel
    barrier: CheckpointBarrier
    is_injected: bool = False


@dataclass(frozen=True, slots=True)
class BarrierAnnounced:
    """A barrier is queued in the channel behind data, under ``sequence_number``."""

    channel: Channel
    barrier: CheckpointBarrier
    sequence_number: int


@dataclass(frozen=True, slots=True)
class CancellationReceived:
    """The channel will not bring the barrier of this checkpoint."""

    channel: Channel
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class ChannelFinished:
    """The channel has reached its end of partition."""

    channel: Channel


# With its id: a timer that fires late must not touch the next checkpoint.
class AlignmentTimedOut(_OfCheckpoint):
    """The alignment timer of this checkpoint fired."""


class CheckpointRefused(_OfFailed):
    """An input or the task could not carry out an order for this checkpoint."""


BarrierEvent: TypeAlias = (
    BarrierReceived | BarrierAnnounced | CancellationReceived | ChannelFinished | AlignmentTimedOut | CheckpointRefused
)

# ---------------------------------------------------------------- orders


@dataclass(frozen=True, slots=True)
class ResumeChannels:
    """Let the producers of these channels send again."""

    channels: tuple[Channel, ...]


@dataclass(frozen=True, slots=True)
class PrioritizeBarrier:
    """Let an announced barrier overtake the data before it."""

    checkpoint_id: int
    channel: Channel
    sequence_number: int


@dataclass(frozen=True, slots=True)
class _OfBarrier:
    barrier: CheckpointBarrier


class InitInputs(_OfBarrier):
    """Open the channel state of the checkpoint, if it needs one."""


class StartInputs(_OfBarrier):
    """Let every input record the data in front of its barrier."""


class StopInputs(_OfCheckpoint):
    """Let no input record data for the checkpoint any more."""


@dataclass(frozen=True, slots=True)
class TriggerCheckpointOnBarrier(_OfBarrier):
    """Take the snapshot now.  ``is_last``: all barriers have arrived, which ends the alignment."""

    is_last: bool = True


# One order for all of it: a machine cannot forget a part.
class AbortCheckpoint(_OfFailed):
    """Cancel the timer, stop measuring the alignment, decline the checkpoint and tell the downstream tasks."""


class CompleteInputs(_OfCheckpoint):
    """The barriers of all open channels have arrived: cancel the timer, and end the alignment; the inputs' part of the
    channel state is complete.
    """


@dataclass(frozen=True, slots=True)
class BeginAlignment:
    """The first barrier arrived; its checkpoint was triggered at ``timestamp_ms``."""

    checkpoint_id: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Report ``AlignmentTimedOut`` after ``delay_ms``; replaces a running timer."""

    checkpoint_id: int
    delay_ms: int


InputOrder: TypeAlias = ResumeChannels | PrioritizeBarrier | InitInputs | StartInputs | StopInputs
TaskOrder: TypeAlias = TriggerCheckpointOnBarrier | AbortCheckpoint | CompleteInputs | BeginAlignment | StartTimer
BarrierOrder: TypeAlias = InputOrder | TaskOrder
