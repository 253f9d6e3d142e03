"""Exactly-once: when to block a channel, when to let barriers overtake, when to take the snapshot.

Side:       pure.
Invariants: ``_aligned`` holds the channels that count for the pending checkpoint; its snapshot is ordered once, when the last channel that
            was open at its first barrier has come (unaligned: at the first); a blocked channel is resumed exactly once; once there was an
            order for a checkpoint, no older id is triggered or aborted.
Units:      milliseconds of the wall clock, which the barriers' timestamps are of.
Source:     Flink ``SingleCheckpointBarrierHandler`` and its states (``WaitingForFirstBarrier``, ``CollectingBarriers``, the four
            ``Alternating...``).  Waiting and collecting differ only in whether a channel has counted yet, so one phase stands for both.
            Unlike Flink, a checkpoint that is pending when a newer one is cancelled is declined as well, not only forgotten.
"""

from enum import Enum, auto
from typing import assert_never

from flowlet.checkpoint.barrier_orders import (
    AbortCheckpoint,
    AlignmentTimedOut,
    BarrierAnnounced,
    BarrierEvent,
    BarrierOrder,
    BarrierReceived,
    BeginAlignment,
    CancellationReceived,
    CancelTimer,
    Channel,
    ChannelFinished,
    CheckpointRefused,
    CompleteInputs,
    EndAlignment,
    InitInputs,
    PrioritizeBarrier,
    ResetAlignment,
    ResumeChannels,
    StartInputs,
    StartTimer,
    StopInputs,
    TriggerCheckpoint,
)
from flowlet.checkpoint.checkpoint_error import CheckpointFailureReason
from netstack.wire.events import CheckpointBarrier


class BarrierMode(Enum):
    """How barriers are treated; of the whole task."""

    ALIGNED = auto()
    UNALIGNED = auto()
    ALTERNATING = auto()
    """Aligned at first, unaligned when that takes too long, or when a barrier that overtook arrives."""


class _Phase(Enum):
    ALIGNING = auto()  # channels are blocked behind their barriers
    OVERTAKING = auto()  # barriers overtake, but the first one is not here
    RECORDING = auto()  # the snapshot was taken, and the inputs keep what comes before their barriers


class BarrierAligner:
    """The barriers of one task, one checkpoint at a time.

    Args:
        num_channels: of all gates, none of them ended.
        mode: see there.
        checkpoints_after_finish: whether a channel that ended counts as one whose barrier came; else its end aborts what is pending.
    """

    def __init__(self, num_channels: int, mode: BarrierMode = BarrierMode.ALTERNATING, *, checkpoints_after_finish: bool = True) -> None:
        self._mode = mode
        self._checkpoints_after_finish = checkpoints_after_finish
        self._num_open = num_channels
        self._current = -1
        self._last_done = -1  # the newest checkpoint that was completed or cancelled
        self._barrier: CheckpointBarrier | None = None  # of the pending checkpoint
        self._num_expected = 0
        self._aligned: set[Channel] = set()
        self._blocked: dict[Channel, None] = {}  # an ordered set
        self._announced: dict[Channel, int] = {}  # barriers that wait in their channels, by sequence number
        self._phase = self._first_phase()

    def __repr__(self) -> str:
        pending = f"checkpoint {self._current} {'pending' if self.is_checkpoint_pending else 'done'}"
        return f"<BarrierAligner {self._mode.name} {self._phase.name}: {pending}, {len(self._aligned)} of {self._num_expected} barriers>"

    @property
    def latest_checkpoint_id(self) -> int:
        """The newest checkpoint whose barrier, announcement or cancellation came; -1 before the first."""
        return self._current

    @property
    def is_checkpoint_pending(self) -> bool:
        """Whether barriers are still missing."""
        return self._current != self._last_done

    @property
    def num_open_channels(self) -> int:
        """How many channels have not ended."""
        return self._num_open

    @property
    def is_recording(self) -> bool:
        """Whether the inputs keep data for a snapshot that was taken."""
        return self._phase is _Phase.RECORDING

    def handle(self, event: BarrierEvent, now_ms: int) -> list[BarrierOrder]:
        """Apply one fact; returns what must be done now, in this order."""
        match event:
            case BarrierReceived():
                return self._on_barrier(event, now_ms)
            case BarrierAnnounced():
                return self._on_announcement(event, now_ms)
            case CancellationReceived(checkpoint_id=checkpoint_id):
                return self._on_cancellation(checkpoint_id)
            case ChannelFinished(channel=channel):
                return self._on_finished(channel, now_ms)
            case AlignmentTimedOut(checkpoint_id=checkpoint_id):
                if checkpoint_id == self._current and self._barrier is not None:
                    return self._time_out(self._barrier)
                return []
            case CheckpointRefused(checkpoint_id, reason, details):
                return self._abort(checkpoint_id, reason, details) if checkpoint_id == self._current else []
            case _:
                assert_never(event)

    # ---------------------------------------------------------------- facts

    def _on_barrier(self, event: BarrierReceived, now_ms: int) -> list[BarrierOrder]:
        barrier = event.barrier
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id < self._current or (checkpoint_id == self._current and not self.is_checkpoint_pending):
            # Nobody waits for it; its producer has stopped behind it, unless it overtook or never was in the channel.
            is_blocking = barrier.options.needs_alignment and not event.is_injected
            return [ResumeChannels((event.channel,))] if is_blocking else []
        orders = self._start_checkpoint(barrier, now_ms)
        orders += self._count(event.channel, barrier)
        orders += self._advance(event, now_ms)
        return orders + self._end_if_all_received()

    def _on_announcement(self, event: BarrierAnnounced, now_ms: int) -> list[BarrierOrder]:
        orders = self._start_checkpoint(event.barrier, now_ms)
        checkpoint_id = event.barrier.checkpoint_id
        if checkpoint_id < self._current or not self.is_checkpoint_pending or event.channel in self._aligned:
            return orders
        if self._phase is _Phase.ALIGNING:
            self._announced[event.channel] = event.sequence_number
            return orders
        return [*orders, PrioritizeBarrier(checkpoint_id, event.channel, event.sequence_number)]

    def _on_finished(self, channel: Channel, now_ms: int) -> list[BarrierOrder]:
        self._num_open -= 1
        self._blocked.pop(channel, None)
        self._announced.pop(channel, None)
        barrier = self._barrier
        if barrier is None:
            return []
        if not self._checkpoints_after_finish:
            return self._abort(self._current, CheckpointFailureReason.INPUT_END_OF_STREAM)
        orders = self._count(channel, barrier)
        if self._phase is _Phase.RECORDING:
            if self._is_complete:
                orders += self._finish(stop=True)
        elif self._phase is _Phase.ALIGNING:
            if self._is_complete:
                orders += self._take_aligned(barrier)
            elif self._is_overdue(barrier, now_ms):
                orders += self._time_out(barrier)
        elif self._is_complete:
            orders += self._take_unaligned(barrier)
        return orders + self._end_if_all_received()

    def _on_cancellation(self, checkpoint_id: int) -> list[BarrierOrder]:
        if checkpoint_id == self._current and self._aligned:
            return self._abort(checkpoint_id, CheckpointFailureReason.CANCELLATION_BARRIER)
        if checkpoint_id <= self._current:
            return []
        orders = self._abort_older(f"checkpoint {checkpoint_id} was cancelled")
        return orders + self._abort(checkpoint_id, CheckpointFailureReason.CANCELLATION_BARRIER)

    def _abort_older(self, details: str) -> list[BarrierOrder]:
        return self._abort(self._current, CheckpointFailureReason.SUBSUMED, details) if self.is_checkpoint_pending else []

    def _start_checkpoint(self, barrier: CheckpointBarrier, now_ms: int) -> list[BarrierOrder]:
        """If it is the first that is heard of a checkpoint, it becomes the pending one."""
        if barrier.checkpoint_id <= self._current:
            return []
        orders = self._abort_older(f"the barrier of checkpoint {barrier.checkpoint_id}")
        self._current = barrier.checkpoint_id
        self._barrier = barrier
        self._num_expected = self._num_open
        self._aligned.clear()
        if self._mode is BarrierMode.ALTERNATING and barrier.options.is_timeoutable:
            delay_ms = max(0, barrier.options.aligned_timeout_ms - (now_ms - barrier.timestamp_ms))
            orders.append(StartTimer(self._current, delay_ms))
        return orders

    def _count(self, channel: Channel, barrier: CheckpointBarrier) -> list[BarrierOrder]:
        """``channel`` counts from now on; says when alignment begins and ends.  The end comes before a snapshot that reports it."""
        num_before = len(self._aligned)
        self._aligned.add(channel)
        orders: list[BarrierOrder] = []
        if len(self._aligned) == num_before:
            return orders
        if num_before == 0:
            orders.append(BeginAlignment(self._current, barrier.timestamp_ms))
        if self._is_complete:
            orders.append(EndAlignment(self._current))
        return orders

    # ---------------------------------------------------------------- phases

    @property
    def _is_complete(self) -> bool:
        return len(self._aligned) == self._num_expected

    def _advance(self, event: BarrierReceived, now_ms: int) -> list[BarrierOrder]:
        """What the barrier of the pending checkpoint leads to."""
        barrier, channel = event.barrier, event.channel
        self._announced.pop(channel, None)
        if not event.is_injected and not barrier.options.is_unaligned:
            self._blocked[channel] = None  # also if it overtook by our order: its producer has stopped behind it
        if self._phase is _Phase.RECORDING:
            return self._finish(stop=True) if self._is_complete else []
        if self._phase is _Phase.OVERTAKING:
            return self._take_unaligned(barrier)
        if barrier.options.is_unaligned:
            if self._mode is BarrierMode.ALIGNED:
                # Only a producer that is configured differently sends one; the data it overtook is lost for this checkpoint.
                return self._abort(self._current, CheckpointFailureReason.UNSUPPORTED_SNAPSHOT, f"unaligned barrier on channel {channel}")
            return [*self._prioritize_announced(), *self._take_unaligned(barrier)]
        if self._is_complete:
            return self._take_aligned(barrier)
        return self._time_out(barrier) if self._is_overdue(barrier, now_ms) else []

    def _time_out(self, barrier: CheckpointBarrier) -> list[BarrierOrder]:
        """Alignment takes too long: from now on the barriers of this checkpoint overtake."""
        if self._phase is not _Phase.ALIGNING or not barrier.options.is_timeoutable:
            return []
        self._phase = _Phase.OVERTAKING
        orders = self._prioritize_announced()
        return orders + self._take_unaligned(barrier) if self._aligned else orders

    def _prioritize_announced(self) -> list[BarrierOrder]:
        announced, self._announced = self._announced, {}
        return [PrioritizeBarrier(self._current, channel, number) for channel, number in announced.items()]

    def _take_aligned(self, barrier: CheckpointBarrier) -> list[BarrierOrder]:
        orders: list[BarrierOrder] = []
        if self._mode is BarrierMode.ALTERNATING:  # buffers of the output may come to belong to it
            orders.append(InitInputs(barrier))
        return [*orders, TriggerCheckpoint(barrier), *self._finish(stop=False)]

    def _take_unaligned(self, barrier: CheckpointBarrier) -> list[BarrierOrder]:
        unaligned = barrier.as_unaligned()
        orders: list[BarrierOrder] = [InitInputs(unaligned), StartInputs(unaligned), TriggerCheckpoint(unaligned)]
        self._phase = _Phase.RECORDING
        return orders + self._finish(stop=True) if self._is_complete else orders

    def _finish(self, *, stop: bool) -> list[BarrierOrder]:
        """All is over for the pending checkpoint, as far as the channels are concerned."""
        orders: list[BarrierOrder] = [StopInputs(self._current)] if stop else []
        if self._blocked:
            orders.append(ResumeChannels(tuple(self._blocked)))
        self._blocked.clear()
        self._announced.clear()
        self._phase = self._first_phase()
        return orders

    def _end_if_all_received(self) -> list[BarrierOrder]:
        if self._barrier is None or not self._is_complete:
            return []
        self._barrier = None
        self._aligned.clear()
        self._last_done = self._current
        return [CancelTimer(), CompleteInputs(self._current)]

    def _abort(self, checkpoint_id: int, reason: CheckpointFailureReason, details: str = "") -> list[BarrierOrder]:
        """Give up ``checkpoint_id``, which is the current one, or newer and nothing is pending."""
        was_recording = self._phase is not _Phase.ALIGNING
        self._current = self._last_done = checkpoint_id
        self._barrier = None
        self._aligned.clear()
        self._num_expected = 0
        orders: list[BarrierOrder] = [CancelTimer(), *self._finish(stop=was_recording), ResetAlignment()]
        return [*orders, AbortCheckpoint(checkpoint_id, reason, details)]

    def _first_phase(self) -> _Phase:
        return _Phase.OVERTAKING if self._mode is BarrierMode.UNALIGNED else _Phase.ALIGNING

    @staticmethod
    def _is_overdue(barrier: CheckpointBarrier, now_ms: int) -> bool:
        return barrier.options.is_timeoutable and barrier.options.aligned_timeout_ms < now_ms - barrier.timestamp_ms

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        assert (self._barrier is not None) == self.is_checkpoint_pending, "a pending checkpoint without its barrier, or the reverse"
        assert self._last_done <= self._current, f"{self._last_done} was done before it was heard of"
        assert not self._aligned or self._barrier is not None, "channels count for nothing"
        assert len(self._aligned) <= max(self._num_expected, 0), "more channels count than were open"
        assert not self._blocked or self.is_checkpoint_pending, "blocked for nothing"
        assert not self._announced or self._phase is _Phase.ALIGNING, "announced barriers that nobody lets overtake"
