"""Short names for barriers, and a task that carries out a machine's orders and keeps the accounts."""

from collections.abc import Iterable

from flowlet.checkpoint.task.barrier_orders import (
    AbortCheckpoint,
    AlignmentTimedOut,
    BarrierAnnounced,
    BarrierEvent,
    BarrierOrder,
    BarrierReceived,
    CancellationReceived,
    Channel,
    ChannelFinished,
    CheckpointFailureReason,
    CompleteInputs,
    PrioritizeBarrier,
    ResumeChannels,
    StartInputs,
    StartTimer,
    StopInputs,
    TriggerCheckpointOnBarrier,
)
from flowlet.checkpoint.task.checkpoint_barrier_tracker import CheckpointBarrierTracker
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import BarrierMode, SingleCheckpointBarrierHandler
from netstack.wire.events import NO_ALIGNED_TIMEOUT, Alignment, CheckpointBarrier, CheckpointOptions

TIMEOUT_MS = 10


def aligned(checkpoint_id: int, timestamp_ms: int = 0, *, timeout_ms: int = NO_ALIGNED_TIMEOUT) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint_id, timestamp_ms, CheckpointOptions(aligned_timeout_ms=timeout_ms))


def timeoutable(checkpoint_id: int, timestamp_ms: int = 0) -> CheckpointBarrier:
    return aligned(checkpoint_id, timestamp_ms, timeout_ms=TIMEOUT_MS)


def unaligned(checkpoint_id: int, timestamp_ms: int = 0) -> CheckpointBarrier:
    return CheckpointBarrier(checkpoint_id, timestamp_ms, CheckpointOptions(alignment=Alignment.UNALIGNED))


class Gate:
    """Gate 0 of a task with one machine; channels are named by their index.

    Checks that nothing is resumed that was not blocked, that ids rise, and the machine's own invariants after every
    step.
    """

    def __init__(
        self, num_channels: int, mode: BarrierMode | None = BarrierMode.ALIGNED, *, after_finish: bool = True
    ) -> None:
        self.machine: SingleCheckpointBarrierHandler | CheckpointBarrierTracker
        if mode is None:
            self.machine = CheckpointBarrierTracker(num_channels, checkpoints_after_finish=after_finish)
        else:
            self.machine = SingleCheckpointBarrierHandler(num_channels, mode, checkpoints_after_finish=after_finish)
        self.now_ms = 0
        self.blocked: set[int] = set()
        self.triggered: list[int] = []
        self.were_unaligned: list[bool] = []
        self.aborted: list[tuple[int, CheckpointFailureReason]] = []
        self.prioritized: list[tuple[int, int]] = []
        self.recording: int | None = None
        self.timer: StartTimer | None = None

    def barrier(self, channel: int, barrier: CheckpointBarrier, *, is_injected: bool = False) -> list[BarrierOrder]:
        assert channel not in self.blocked, "a blocked channel is never read"
        if (
            barrier.options.needs_alignment
            and not is_injected
            and not isinstance(self.machine, CheckpointBarrierTracker)
        ):
            self.blocked.add(channel)
        return self.handle(BarrierReceived((0, channel), barrier, is_injected))

    def announce(self, channel: int, barrier: CheckpointBarrier, number: int) -> list[BarrierOrder]:
        return self.handle(BarrierAnnounced((0, channel), barrier, number))

    def cancel(self, channel: int, checkpoint_id: int) -> list[BarrierOrder]:
        return self.handle(CancellationReceived((0, channel), checkpoint_id))

    def end(self, channel: int) -> list[BarrierOrder]:
        return self.handle(ChannelFinished((0, channel)))

    def fire_timer(self) -> list[BarrierOrder]:
        assert self.timer is not None
        checkpoint_id = self.timer.checkpoint_id
        self.timer = None
        return self.handle(AlignmentTimedOut(checkpoint_id))

    def handle(self, event: BarrierEvent) -> list[BarrierOrder]:
        orders = self.machine.handle(event, self.now_ms)
        for order in orders:
            self._carry_out(order)
        self.machine.check_invariants()
        return orders

    def _carry_out(self, order: BarrierOrder) -> None:
        match order:
            case ResumeChannels(channels=channels):
                indexes = _indexes(channels)
                assert indexes <= self.blocked, f"{indexes - self.blocked} are resumed, but not blocked"
                self.blocked -= indexes
            case TriggerCheckpointOnBarrier(barrier):
                assert not self.triggered or barrier.checkpoint_id > self.triggered[-1], "ids must rise"
                self.triggered.append(barrier.checkpoint_id)
                self.were_unaligned.append(barrier.options.is_unaligned)
            case AbortCheckpoint(checkpoint_id=checkpoint_id, reason=reason):
                self.aborted.append((checkpoint_id, reason))
                self.timer = None
            case PrioritizeBarrier(channel=(_, channel), sequence_number=number):
                self.prioritized.append((channel, number))
            case StartInputs(barrier):
                assert self.recording is None, "started twice"
                self.recording = barrier.checkpoint_id
            case StopInputs():
                self.recording = None
            case StartTimer():
                self.timer = order
            case CompleteInputs():
                self.timer = None
            case _:
                return

    @property
    def aborted_ids(self) -> list[int]:
        return [checkpoint_id for checkpoint_id, _ in self.aborted]


def _indexes(channels: Iterable[Channel]) -> set[int]:
    return {channel for _, channel in channels}
