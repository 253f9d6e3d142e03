"""``SingleCheckpointBarrierHandler``: the state machine of exactly-once barriers, aligned or unaligned.

Side:       pure.
Invariants: ``_aligned`` has the channels whose barrier of the pending checkpoint has arrived, or which have ended since
            its first barrier.  The snapshot is triggered once: when the last channel joins them (unaligned: the first).
            A blocked channel is resumed exactly once.  After an order for a checkpoint, no older one is triggered or
            aborted.
Units:      milliseconds of the wall clock, as the barriers' timestamps.
Source:     Flink ``SingleCheckpointBarrierHandler`` and its states (``WaitingForFirstBarrier``, ``CollectingBarriers``,
            the four ``Alternating...``).  Waiting and collecting differ only in whether a barrier has arrived, so one
            phase stands for both.  Unlike Flink, a checkpoint that is pending when a newer one is cancelled is
            declined, not only forgotten.
"""

from enum import Enum, auto
from typing import assert_never

from flowlet.checkpoint.task import barrier_orders as barriers
from flowlet.checkpoint.task.barrier_orders import Channel, CheckpointFailureReason
from netstack.wire.events import CheckpointBarrier


class BarrierMode(Enum):
    """How a task treats barriers."""

    ALIGNED = auto()
    UNALIGNED = auto()
    ALTERNATING = auto()
    """Aligned at first; unaligned when alignment takes too long, or when an unaligned barrier arrives."""


class _Phase(Enum):
    ALIGNING = auto()  # channels are blocked behind their barriers
    OVERTAKING = auto()  # barriers may overtake data, but none has arrived
    RECORDING = auto()  # the snapshot was taken; the inputs record data in front of the other barriers


class SingleCheckpointBarrierHandler:
    """The barriers of one task, one checkpoint at a time.  Threading: one thread.

    Args:
        num_channels: of all gates, all open.
        mode: of the whole task.
        checkpoints_after_finish: whether a channel that ends counts as if its barrier had arrived; otherwise it aborts
            the checkpoint.
    """

    def __init__(
        self, num_channels: int, mode: BarrierMode = BarrierMode.ALTERNATING, *, checkpoints_after_finish: bool = True
    ) -> None:
        self._mode = mode
        self._checkpoints_after_finish = checkpoints_after_finish
        self._num_open = num_channels
        self._current = -1
        self._last_done = -1  # the newest completed or cancelled checkpoint
        self._barrier: CheckpointBarrier | None = None  # of the pending checkpoint
        self._num_expected = 0
        self._aligned: set[Channel] = set()
        self._blocked: dict[Channel, None] = {}  # used as an ordered set
        self._announced: dict[Channel, int] = {}  # sequence numbers of announced barriers that are still queued
        self._phase = self._first_phase()

    def __repr__(self) -> str:
        pending = f"checkpoint {self._current} {'pending' if self.is_checkpoint_pending else 'done'}"
        barriers = f"{len(self._aligned)} of {self._num_expected} barriers"
        return f"<SingleCheckpointBarrierHandler {self._mode.name} {self._phase.name}: {pending}, {barriers}>"

    @property
    def is_checkpoint_pending(self) -> bool:
        """Whether barriers are missing."""
        return self._current != self._last_done

    def lets_overtake(self, checkpoint_id: int) -> bool:
        """Whether barriers of the pending checkpoint ``checkpoint_id`` may overtake data, which it then keeps: its
        alignment has timed out.
        """
        return checkpoint_id == self._current and self._phase is not _Phase.ALIGNING

    def handle(self, event: barriers.BarrierEvent, now_ms: int) -> list[barriers.BarrierOrder]:
        """Apply one event; return the orders to carry out, in order."""
        match event:
            case barriers.BarrierReceived():
                return self._on_barrier(event, now_ms)
            case barriers.BarrierAnnounced():
                return self._on_announcement(event, now_ms)
            case barriers.CancellationReceived(checkpoint_id=checkpoint_id):
                return self._on_cancellation(checkpoint_id)
            case barriers.ChannelFinished(channel=channel):
                return self._on_finished(channel, now_ms)
            case barriers.AlignmentTimedOut(checkpoint_id=checkpoint_id):
                if checkpoint_id == self._current and self._barrier is not None:
                    return self._time_out(self._barrier)
                return []
            case barriers.CheckpointRefused(checkpoint_id, reason, details):
                return self._abort(checkpoint_id, reason, details) if checkpoint_id == self._current else []
            case _:
                assert_never(event)

    # ---------------------------------------------------------------- events

    def _on_barrier(self, event: barriers.BarrierReceived, now_ms: int) -> list[barriers.BarrierOrder]:
        barrier = event.barrier
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id < self._current or (checkpoint_id == self._current and not self.is_checkpoint_pending):
            # Too late.  Its producer has stopped after it, unless the barrier overtook or was injected: let the
            # producer go on.
            is_blocking = barrier.options.needs_alignment and not event.is_injected
            return [barriers.ResumeChannels((event.channel,))] if is_blocking else []
        orders = self._start_checkpoint(barrier, now_ms)
        orders += self._count(event.channel, barrier)
        orders += self._advance(event, now_ms)
        return orders + self._end_if_all_received()

    def _on_announcement(self, event: barriers.BarrierAnnounced, now_ms: int) -> list[barriers.BarrierOrder]:
        orders = self._start_checkpoint(event.barrier, now_ms)
        checkpoint_id = event.barrier.checkpoint_id
        # Its barrier was polled before: there is nothing left to prioritize.
        if checkpoint_id < self._current or not self.is_checkpoint_pending or event.channel in self._aligned:
            return orders
        if self._phase is _Phase.ALIGNING:
            self._announced[event.channel] = event.sequence_number
            return orders
        return [*orders, barriers.PrioritizeBarrier(checkpoint_id, event.channel, event.sequence_number)]

    def _on_finished(self, channel: Channel, now_ms: int) -> list[barriers.BarrierOrder]:
        # A channel that has ended brings no barrier: no later checkpoint may wait for it.
        self._num_open -= 1
        self._blocked.pop(channel, None)
        self._announced.pop(channel, None)
        barrier = self._barrier
        if barrier is None:
            return []
        if not self._checkpoints_after_finish:
            return self._abort(self._current, CheckpointFailureReason.INPUT_END_OF_STREAM)
        orders = self._count(channel, barrier)
        # It may be the last one that was waited for.
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

    def _on_cancellation(self, checkpoint_id: int) -> list[barriers.BarrierOrder]:
        if checkpoint_id == self._current and self._aligned:
            return self._abort(checkpoint_id, CheckpointFailureReason.CANCELLATION_BARRIER)
        if checkpoint_id <= self._current:
            return []
        orders = self._abort_older(f"checkpoint {checkpoint_id} was cancelled")
        return orders + self._abort(checkpoint_id, CheckpointFailureReason.CANCELLATION_BARRIER)

    def _abort_older(self, details: str) -> list[barriers.BarrierOrder]:
        if not self.is_checkpoint_pending:
            return []
        return self._abort(self._current, CheckpointFailureReason.SUBSUMED, details)

    def _start_checkpoint(self, barrier: CheckpointBarrier, now_ms: int) -> list[barriers.BarrierOrder]:
        """Make the barrier's checkpoint the pending one, if it is new."""
        if barrier.checkpoint_id <= self._current:
            return []
        # This ends what the older checkpoint began: inputs record data for it, and it blocks channels.
        orders = self._abort_older(f"the barrier of checkpoint {barrier.checkpoint_id}")
        self._current = barrier.checkpoint_id
        self._barrier = barrier
        # Channels that have ended bring no barrier; one that ends later counts by itself.
        self._num_expected = self._num_open
        self._aligned.clear()
        if self._mode is BarrierMode.ALTERNATING and barrier.options.is_timeoutable:
            # Never longer than the timeout: the clock of the JobManager, which made the barrier, may be ahead, or this
            # one was put back.
            delay_ms = max(0, barrier.options.aligned_timeout_ms - max(0, now_ms - barrier.timestamp_ms))
            orders.append(barriers.StartTimer(self._current, delay_ms))
        return orders

    def _count(self, channel: Channel, barrier: CheckpointBarrier) -> list[barriers.BarrierOrder]:
        """Count a channel; the first one begins the alignment."""
        is_first = not self._aligned
        self._aligned.add(channel)
        return [barriers.BeginAlignment(self._current, barrier.timestamp_ms)] if is_first else []

    # ---------------------------------------------------------------- phases

    @property
    def _is_complete(self) -> bool:
        return len(self._aligned) == self._num_expected

    def _advance(self, event: barriers.BarrierReceived, now_ms: int) -> list[barriers.BarrierOrder]:
        """Find the orders for a barrier of the pending checkpoint."""
        barrier, channel = event.barrier, event.channel
        self._announced.pop(channel, None)
        if not event.is_injected and not barrier.options.is_unaligned:
            self._blocked[channel] = None  # even if we prioritized it: its producer has stopped after it
        if self._phase is _Phase.RECORDING:
            return self._finish(stop=True) if self._is_complete else []
        if self._phase is _Phase.OVERTAKING:
            return self._take_unaligned(barrier)
        if barrier.options.is_unaligned:
            if self._mode is BarrierMode.ALIGNED:
                # A producer is configured differently: the data that the barrier overtook would be missing in the
                # snapshot.
                details = f"unaligned barrier on channel {channel}"
                return self._abort(self._current, CheckpointFailureReason.UNSUPPORTED_SNAPSHOT, details)
            return [*self._prioritize_announced(), *self._take_unaligned(barrier)]
        if self._is_complete:
            return self._take_aligned(barrier)
        return self._time_out(barrier) if self._is_overdue(barrier, now_ms) else []

    def _time_out(self, barrier: CheckpointBarrier) -> list[barriers.BarrierOrder]:
        """Let the barriers of this checkpoint overtake: its alignment takes too long."""
        if self._phase is not _Phase.ALIGNING or not barrier.options.is_timeoutable:
            return []
        self._phase = _Phase.OVERTAKING
        orders = self._prioritize_announced()
        return orders + self._take_unaligned(barrier) if self._aligned else orders

    def _prioritize_announced(self) -> list[barriers.BarrierOrder]:
        announced, self._announced = self._announced, {}
        return [barriers.PrioritizeBarrier(self._current, channel, number) for channel, number in announced.items()]

    def _take_aligned(self, barrier: CheckpointBarrier) -> list[barriers.BarrierOrder]:
        # Queued output may still become part of an alternating checkpoint.
        init = [barriers.InitInputs(barrier)] if self._mode is BarrierMode.ALTERNATING else []
        return [*init, barriers.TriggerCheckpointOnBarrier(barrier), *self._finish(stop=False)]

    def _take_unaligned(self, barrier: CheckpointBarrier) -> list[barriers.BarrierOrder]:
        unaligned = barrier.as_unaligned()
        orders: list[barriers.BarrierOrder] = [
            # In this order: what the inputs record needs an open channel state, and what is queued now belongs before
            # the snapshot.
            barriers.InitInputs(unaligned),
            barriers.StartInputs(unaligned),
            barriers.TriggerCheckpointOnBarrier(unaligned, self._is_complete),
        ]
        self._phase = _Phase.RECORDING
        return orders + self._finish(stop=True) if self._is_complete else orders

    def _finish(self, *, stop: bool) -> list[barriers.BarrierOrder]:
        """Stop recording if ``stop``, resume the blocked channels, and return to the first phase."""
        orders: list[barriers.BarrierOrder] = [barriers.StopInputs(self._current)] if stop else []
        # Their producers send nothing until then.
        if self._blocked:
            orders.append(barriers.ResumeChannels(tuple(self._blocked)))
        self._blocked.clear()
        self._announced.clear()
        self._phase = self._first_phase()
        return orders

    def _end_if_all_received(self) -> list[barriers.BarrierOrder]:
        if self._barrier is None or not self._is_complete:
            return []
        self._barrier = None
        self._aligned.clear()
        self._last_done = self._current
        return [barriers.CompleteInputs(self._current)]

    def _abort(
        self, checkpoint_id: int, reason: CheckpointFailureReason, details: str = ""
    ) -> list[barriers.BarrierOrder]:
        """Abort ``checkpoint_id``: the current one, or a newer one if none is pending."""
        # Else the inputs go on keeping data that no snapshot will have.
        was_recording = self._phase is not _Phase.ALIGNING
        self._current = self._last_done = checkpoint_id
        self._barrier = None
        self._aligned.clear()
        self._num_expected = 0
        return [*self._finish(stop=was_recording), barriers.AbortCheckpoint(checkpoint_id, reason, details)]

    def _first_phase(self) -> _Phase:
        return _Phase.OVERTAKING if self._mode is BarrierMode.UNALIGNED else _Phase.ALIGNING

    @staticmethod
    def _is_overdue(barrier: CheckpointBarrier, now_ms: int) -> bool:
        return barrier.options.is_timeoutable and barrier.options.aligned_timeout_ms < now_ms - barrier.timestamp_ms

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent; for tests."""
        assert (self._barrier is not None) == self.is_checkpoint_pending, "exactly a pending checkpoint has a barrier"
        assert self._last_done <= self._current, f"{self._last_done} is done, but the newest is {self._current}"
        assert not self._aligned or self._barrier is not None, "channels are counted without a pending checkpoint"
        assert len(self._aligned) <= max(self._num_expected, 0), "more channels are counted than were open"
        assert not self._blocked or self.is_checkpoint_pending, "channels are blocked without a pending checkpoint"
        assert not self._announced or self._phase is _Phase.ALIGNING, "announced barriers were not prioritized"
