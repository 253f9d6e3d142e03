"""``CheckpointBarrierTracker``: the state machine of at-least-once barriers; it counts them and blocks nothing.

Side:       pure.
Invariants: a checkpoint is triggered when each channel that was open at its first barrier has brought its barrier or
            ended, unless it was aborted or a newer one was triggered; each id is triggered or aborted at most once; at
            most 50 checkpoints are tracked.
Source:     Flink ``CheckpointBarrierTracker``; a single open channel needs no special case here.  As in Flink,
            checkpoints older than a triggered one are dropped without an abort: the coordinator subsumes them.
"""

from dataclasses import field
from typing import Final, assert_never

from flowlet.checkpoint.task import barrier_orders as barriers
from flowlet.checkpoint.task.barrier_orders import Channel, CheckpointFailureReason
from netstack.late import dataclass
from netstack.wire.events import CheckpointBarrier

MAX_TRACKED: Final = 50  # Flink's; older ones are dropped


@dataclass(slots=True)
class _Count:
    """The barriers of one checkpoint so far; ``barrier`` is None if only a cancellation was seen."""

    checkpoint_id: int
    barrier: CheckpointBarrier | None
    num_expected: int
    channels: set[Channel] = field(default_factory=set)
    is_aborted: bool = False

    @property
    def is_complete(self) -> bool:
        return len(self.channels) >= self.num_expected


class CheckpointBarrierTracker:
    """The barriers of one task, several checkpoints at a time.  Threading: one thread.

    Args:
        num_channels: of all gates, all open.
        checkpoints_after_finish: whether a channel that ends counts as if its barrier had arrived; otherwise it aborts
            the checkpoints.
    """

    def __init__(self, num_channels: int, *, checkpoints_after_finish: bool = True) -> None:
        self._checkpoints_after_finish = checkpoints_after_finish
        self._num_open = num_channels
        self._newest = -1
        self._counts: list[_Count] = []  # by ascending id

    def __repr__(self) -> str:
        ids = [each.checkpoint_id for each in self._counts]
        return f"<CheckpointBarrierTracker: {ids} pending, newest {self._newest}>"

    def lets_overtake(self, checkpoint_id: int) -> bool:  # of the protocol
        """Always False: barriers are only counted."""
        return False

    def handle(self, event: barriers.BarrierEvent, now_ms: int) -> list[barriers.BarrierOrder]:
        """Apply one event; return the orders to carry out, in order."""
        match event:
            case barriers.BarrierReceived(channel=channel, barrier=barrier):
                return self._on_barrier(channel, barrier)
            case barriers.CancellationReceived(channel, checkpoint_id):
                return self._on_cancellation(channel, checkpoint_id)
            case barriers.ChannelFinished(channel=channel):
                return self._on_finished(channel)
            case barriers.CheckpointRefused(checkpoint_id, reason, details):
                is_newest = checkpoint_id == self._newest
                return [barriers.AbortCheckpoint(checkpoint_id, reason, details)] if is_newest else []
            case barriers.BarrierAnnounced() | barriers.AlignmentTimedOut():
                return []  # without alignment there is no timeout
            case _:
                assert_never(event)

    def _on_barrier(self, channel: Channel, barrier: CheckpointBarrier) -> list[barriers.BarrierOrder]:
        checkpoint_id = barrier.checkpoint_id
        orders: list[barriers.BarrierOrder] = []
        count = next((each for each in self._counts if each.checkpoint_id == checkpoint_id), None)
        if count is None:
            if checkpoint_id <= self._newest:
                return []  # triggered, aborted or subsumed before
            orders.append(barriers.BeginAlignment(checkpoint_id, barrier.timestamp_ms))
            count = self._track(checkpoint_id, barrier)
        if barrier.options.is_unaligned and not count.is_aborted:
            # A producer is configured differently: the data that the barrier overtook would be missing in the snapshot.
            count.is_aborted = True
            reason, details = CheckpointFailureReason.UNSUPPORTED_SNAPSHOT, f"unaligned barrier on channel {channel}"
            orders.append(barriers.AbortCheckpoint(checkpoint_id, reason, details))
        count.channels.add(channel)
        return orders + self._complete()

    def _on_cancellation(self, channel: Channel, checkpoint_id: int) -> list[barriers.BarrierOrder]:
        reason = CheckpointFailureReason.CANCELLATION_BARRIER
        orders: list[barriers.BarrierOrder] = []
        while self._counts and self._counts[0].checkpoint_id < checkpoint_id:
            orders += self._abort(self._counts.pop(0), reason)
        count = self._counts[0] if self._counts and self._counts[0].checkpoint_id == checkpoint_id else None
        if count is None:
            if checkpoint_id <= self._newest:
                return orders  # another channel cancelled it before, or the checkpoint is over
            count = self._track(checkpoint_id, None)
        orders += self._abort(count, reason)
        count.channels.add(channel)  # still counted, so that it is dropped when every channel has reported
        return orders + self._complete()

    def _on_finished(self, channel: Channel) -> list[barriers.BarrierOrder]:
        self._num_open -= 1
        if self._checkpoints_after_finish:
            for count in self._counts:
                count.channels.add(channel)
            return self._complete()
        orders: list[barriers.BarrierOrder] = []
        for count in self._counts:
            orders += self._abort(count, CheckpointFailureReason.INPUT_END_OF_STREAM)
        self._counts.clear()
        return orders

    def _track(self, checkpoint_id: int, barrier: CheckpointBarrier | None) -> _Count:
        count = _Count(checkpoint_id, barrier, self._num_open)
        # Before it is complete: a barrier of it that comes behind a newer one must not begin it again.
        self._newest = checkpoint_id
        self._counts.append(count)
        # A channel that stands still would let barriers of the others pile up.
        if len(self._counts) > MAX_TRACKED:
            self._counts.pop(0)
        return count

    def _complete(self) -> list[barriers.BarrierOrder]:
        """Trigger the newest checkpoint that is complete; drop it and all older ones."""
        # A channel brings its barriers in order: what is older than a complete one can have no barrier to come.
        num_over = max((index + 1 for index, count in enumerate(self._counts) if count.is_complete), default=0)
        over = self._counts[:num_over]
        del self._counts[:num_over]
        for count in reversed(over):
            # A cancelled one is counted to its end, so that it is dropped, but never taken.
            if count.is_complete and not count.is_aborted and count.barrier is not None:
                trigger = barriers.TriggerCheckpointOnBarrier(count.barrier)
                return [trigger, barriers.CompleteInputs(count.checkpoint_id)]
        return []

    @staticmethod
    def _abort(count: _Count, reason: CheckpointFailureReason) -> list[barriers.BarrierOrder]:
        if count.is_aborted:
            return []
        count.is_aborted = True
        return [barriers.AbortCheckpoint(count.checkpoint_id, reason)]

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent; for tests."""
        ids = [count.checkpoint_id for count in self._counts]
        assert ids == sorted(set(ids)), f"the ids {ids} are not ascending"
        assert not ids or ids[-1] <= self._newest, f"{ids[-1]} is tracked, but {self._newest} is the newest"
        assert len(ids) <= MAX_TRACKED, f"{len(ids)} checkpoints are tracked"
        assert not any(count.is_complete for count in self._counts), "a complete checkpoint is still tracked"
