"""Short names for barriers, and a task that carries out a machine's orders and keeps the accounts."""

from collections.abc import Callable, Iterable

from flowlet.checkpoint.task.barrier_orders import (
    AbortCheckpoint,
    AlignmentTimedOut,
    BarrierAnnounced,
    BarrierEvent,
    BarrierOrder,
    BarrierReceived,
    BeginAlignment,
    CancellationReceived,
    Channel,
    ChannelFinished,
    CheckpointFailureReason,
    CheckpointRefused,
    CompleteInputs,
    InitInputs,
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
Make = Callable[[int], CheckpointBarrier]


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

    def play(self, steps: str, make: Make = aligned) -> None:
        """Take steps: ``1@0`` is the barrier of checkpoint 1 on channel 0, ``inject:1@0`` the same from the JobManager,
        ``unaligned:1@0`` one that overtakes, ``announce:1@0`` its announcement, ``cancel:1@0`` a cancellation,
        ``end@0`` the end of a channel, ``refuse:1`` a refusal of the inputs, ``fire`` the timer, ``clock:7`` the time.
        """
        for step in steps.split():
            self._take(step, make)

    def tell(self, *stories: str, make: Make = aligned) -> None:
        """Each story is some steps and, behind an arrow, all that the machine orders then."""
        for story in stories:
            steps, _, expected = story.partition("->")
            orders = [order for step in steps.split() for order in self._take(step, make)]
            assert "; ".join(map(_in_words, orders)) == expected.strip(), story

    def _take(self, step: str, make: Make) -> list[BarrierOrder]:
        what, _, number = step.partition("@")
        kind, _, checkpoint_id = what.rpartition(":")
        match kind, checkpoint_id:
            case "", "fire":
                return self.fire_timer()
            case "", "end":
                return self.end(int(number))
            case "clock", now_ms:
                self.now_ms = int(now_ms)
                return []
            case "refuse", _:
                return self.handle(CheckpointRefused(int(checkpoint_id), CheckpointFailureReason.SUBSUMED))
            case "cancel", _:
                return self.cancel(int(number), int(checkpoint_id))
            case "announce", _:
                return self.announce(int(number), make(int(checkpoint_id)), 10 * int(checkpoint_id) + int(number))
            case _:
                barrier = (unaligned if kind == "unaligned" else make)(int(checkpoint_id))
                return self.barrier(int(number), barrier, is_injected=kind == "inject")

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


def _in_words(order: BarrierOrder) -> str:
    match order:
        case BeginAlignment(checkpoint_id):
            return f"begin {checkpoint_id}"
        case InitInputs(barrier):
            return f"init {barrier.checkpoint_id}"
        case StartInputs(barrier):
            return f"start {barrier.checkpoint_id}"
        case TriggerCheckpointOnBarrier(barrier):
            return f"trigger {barrier.checkpoint_id}" + " unaligned" * barrier.options.is_unaligned
        case StopInputs(checkpoint_id):
            return f"stop {checkpoint_id}"
        case CompleteInputs(checkpoint_id):
            return f"complete {checkpoint_id}"
        case ResumeChannels(channels):
            return "resume " + " ".join(str(channel) for _, channel in channels)
        case PrioritizeBarrier(_, (_, channel), sequence_number):
            return f"prioritize {channel}#{sequence_number}"
        case StartTimer(_, delay_ms):
            return f"timer {delay_ms}"
        case AbortCheckpoint(checkpoint_id, reason):
            return f"abort {checkpoint_id} {reason.name}"
        case _:
            raise AssertionError(order)


def _indexes(channels: Iterable[Channel]) -> set[int]:
    return {channel for _, channel in channels}
