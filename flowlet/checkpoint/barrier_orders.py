"""What barrier handlers are told, and what they order.

Side:   pure.
Units:  timestamps and delays in milliseconds.
Source: the calls in and out of Flink's ``CheckpointBarrierHandler`` and ``BarrierHandlerState.Controller``.
"""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from flowlet.checkpoint.checkpoint_error import CheckpointFailureReason
from netstack.wire.events import CheckpointBarrier

Channel: TypeAlias = tuple[int, int]
"""Index of the gate, index of the channel in it; netstack's ``InputChannelInfo`` is one."""

# ---------------------------------------------------------------- facts


@dataclass(frozen=True, slots=True)
class BarrierReceived:
    """A barrier was polled; ``is_injected``: by the JobManager's order instead, so the channel is not blocked."""

    channel: Channel
    barrier: CheckpointBarrier
    is_injected: bool = False


@dataclass(frozen=True, slots=True)
class BarrierAnnounced:
    """A barrier stands in the channel's queue, behind data, under ``sequence_number``."""

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
    """The channel reached its end of partition."""

    channel: Channel


@dataclass(frozen=True, slots=True)
class AlignmentTimedOut:
    """The timer of this checkpoint fired."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CheckpointRefused:
    """An input or the task could not carry out an order for this checkpoint."""

    checkpoint_id: int
    reason: CheckpointFailureReason
    details: str = ""


BarrierEvent: TypeAlias = (
    BarrierReceived | BarrierAnnounced | CancellationReceived | ChannelFinished | AlignmentTimedOut | CheckpointRefused
)

# ---------------------------------------------------------------- orders


@dataclass(frozen=True, slots=True)
class ResumeChannels:
    """Let the producers behind these channels go on."""

    channels: tuple[Channel, ...]


@dataclass(frozen=True, slots=True)
class PrioritizeBarrier:
    """Let the announced barrier overtake the data before it."""

    checkpoint_id: int
    channel: Channel
    sequence_number: int


@dataclass(frozen=True, slots=True)
class InitInputs:
    """Open the channel state of the checkpoint, if it wants one."""

    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class StartInputs:
    """Every input keeps, from now on, what comes before its barrier."""

    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class StopInputs:
    """No input keeps anything more for the checkpoint."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """Take the snapshot now."""

    barrier: CheckpointBarrier


@dataclass(frozen=True, slots=True)
class AbortCheckpoint:
    """Decline the checkpoint and tell the tasks behind this one."""

    checkpoint_id: int
    reason: CheckpointFailureReason
    details: str = ""


@dataclass(frozen=True, slots=True)
class CompleteInputs:
    """The barrier of every open channel is here: the inputs' part of the channel state is complete."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class BeginAlignment:
    """The first barrier came; its checkpoint was triggered at ``timestamp_ms``."""

    checkpoint_id: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class EndAlignment:
    """The last barrier came."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class ResetAlignment:
    """There is nothing to be measured any more."""


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Report ``AlignmentTimedOut`` after ``delay_ms``; replaces a timer that runs."""

    checkpoint_id: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """The timer is not wanted any more."""


BarrierOrder: TypeAlias = (
    ResumeChannels
    | PrioritizeBarrier
    | InitInputs
    | StartInputs
    | StopInputs
    | TriggerCheckpoint
    | AbortCheckpoint
    | CompleteInputs
    | BeginAlignment
    | EndAlignment
    | ResetAlignment
    | StartTimer
    | CancelTimer
)


class BarrierMachine(Protocol):
    """A pure barrier handler."""

    @property
    def latest_checkpoint_id(self) -> int:
        """The newest checkpoint it knows of, -1 before the first."""

    @property
    def is_checkpoint_pending(self) -> bool:
        """Whether barriers are still missing."""

    @property
    def num_open_channels(self) -> int:
        """How many channels have not ended."""

    def handle(self, event: BarrierEvent, now_ms: int) -> list[BarrierOrder]:
        """Apply one fact at the wall clock's ``now_ms``; returns what must be done now, in this order."""
