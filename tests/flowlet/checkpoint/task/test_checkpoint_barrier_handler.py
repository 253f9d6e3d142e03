"""``CheckpointBarrierHandler``: orders are carried out, alignment is measured.

Source: Flink ``AlignedCheckpointsTest.testMetrics``, ``AlternatingCheckpointsTest`` (metrics, timers, close),
        ``UnalignedCheckpointsTest``.
"""

from typing import Any, cast

import pytest

from flowlet.checkpoint.task.barrier_orders import (
    BarrierAnnounced,
    BarrierReceived,
    CancellationReceived,
    Channel,
    CheckpointError,
    CheckpointFailureReason,
)
from flowlet.checkpoint.task.checkpoint_barrier_handler import CheckpointBarrierHandler
from flowlet.checkpoint.task.checkpoint_barrier_tracker import CheckpointBarrierTracker
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import BarrierMode, SingleCheckpointBarrierHandler
from flowlet.checkpoint.task.snapshots import AlignmentMetrics
from netstack.errors import CheckpointSubsumedError, LocalProtocolError
from netstack.wire.events import CheckpointBarrier
from tests.flowlet.checkpoint.task.barriers import aligned, timeoutable, unaligned
from tests.flowlet.checkpoint.task.doubles import Clock, RecordingInput, RecordingListener
from tests.netstack.gate.manual_timers import ManualTimers

NS = 1_000_000


class Fixture:
    """Two gates, of two channels and of one."""

    def __init__(
        self,
        mode: BarrierMode = BarrierMode.ALTERNATING,
        num_channels: int = 3,
        machine: CheckpointBarrierTracker | None = None,
    ) -> None:
        self.clock = Clock()
        self.listener = RecordingListener()
        self.timers = ManualTimers()
        self.inputs = [RecordingInput(), RecordingInput()]
        self.handler = CheckpointBarrierHandler(
            machine or SingleCheckpointBarrierHandler(num_channels, mode),
            cast(Any, self.inputs),
            cast(Any, self.listener),
            self.timers.call_later,
            clock_ns=self.clock.now_ns,
            wall_ms=self.clock.wall_ms,
        )

    def barriers(self, barrier: CheckpointBarrier, *channels: Channel) -> None:
        for channel in channels:
            self.handler.handle(BarrierReceived(channel, barrier))


def test_orders_go_to_the_gate_of_the_channel() -> None:
    fixture = Fixture(BarrierMode.ALIGNED)

    fixture.barriers(aligned(1), (1, 0), (0, 1), (0, 0))

    assert fixture.listener.calls == [("trigger", 1), ("complete", 1)]
    assert fixture.inputs[0].calls == [("resume", 1), ("resume", 0)]
    assert fixture.inputs[1].calls == [("resume", 0)]


def test_an_unaligned_checkpoint_starts_and_stops_every_gate() -> None:
    """Alignment goes on after the snapshot, in the metrics that it has."""
    fixture = Fixture()
    fixture.clock.ms = 1_010
    fixture.barriers(unaligned(1, 1_000), (0, 0))
    metrics = fixture.listener.alignments[1]
    assert metrics.start_delay_ms == 10
    fixture.handler.add_processed_bytes(100)
    fixture.clock.ms += 7

    fixture.barriers(unaligned(1, 1_000), (0, 1), (1, 0))

    assert fixture.listener.calls == [("init", 1), ("unaligned", 1), ("complete", 1)]
    assert [each.calls for each in fixture.inputs] == [[("start", 1), ("stop", 1)]] * 2
    assert (metrics.duration_ns, metrics.bytes_processed) == (7 * NS, 100)


def test_an_aligned_snapshot_knows_how_long_alignment_took() -> None:
    """Bytes before and after alignment do not count."""
    fixture = Fixture(BarrierMode.ALIGNED)
    fixture.handler.add_processed_bytes(1_000)
    fixture.clock.ms = 1_005
    fixture.barriers(aligned(1, 1_000), (0, 0))
    assert fixture.handler.is_aligning
    fixture.clock.ms = 1_025
    fixture.handler.add_processed_bytes(300)
    assert fixture.handler.alignment_duration_ns == 20 * NS

    fixture.barriers(aligned(1, 1_000), (0, 1), (1, 0))
    fixture.handler.add_processed_bytes(5_000)

    metrics = fixture.listener.alignments[1]
    assert (metrics.start_delay_ms, metrics.duration_ns, metrics.bytes_processed) == (5, 20 * NS, 300)
    assert fixture.handler.alignment_duration_ns == 20 * NS
    assert fixture.handler.start_delay_ms == 5
    assert not fixture.handler.is_aligning


def test_an_unaligned_snapshot_on_the_last_barrier_is_no_part_of_the_alignment() -> None:
    """The time that a snapshot takes when the last barrier has come is not alignment, as with one channel."""
    fixture = Fixture(num_channels=1)
    taken = fixture.listener.trigger_checkpoint_on_barrier

    def take(barrier: CheckpointBarrier, alignment: AlignmentMetrics) -> None:
        fixture.clock.ms += 800
        taken(barrier, alignment)

    cast(Any, fixture.listener).trigger_checkpoint_on_barrier = take
    fixture.barriers(unaligned(1), (1, 0))

    assert fixture.listener.calls == [("init", 1), ("unaligned", 1), ("complete", 1)]
    assert fixture.handler.alignment_duration_ns == 0


def test_the_metrics_are_those_of_the_checkpoint() -> None:
    """In at-least-once mode the older of two checkpoints does not report the newer one's alignment."""
    fixture = Fixture(machine=CheckpointBarrierTracker(2))

    for checkpoint_id, channel in ((1, 0), (2, 0), (1, 1), (2, 1)):
        fixture.barriers(aligned(checkpoint_id, 990), (0, channel))

    assert [fixture.listener.alignments[each].start_delay_ms for each in (1, 2)] == [0, 10]


def test_an_aborted_alignment_counts_for_nothing() -> None:
    fixture = Fixture(BarrierMode.ALIGNED)
    fixture.barriers(aligned(1), (0, 0))
    fixture.handler.add_processed_bytes(300)
    fixture.clock.ms += 5

    fixture.handler.handle(CancellationReceived((0, 1), 1))

    assert fixture.handler.alignment_duration_ns == 0
    assert not fixture.handler.is_aligning
    assert [(error.checkpoint_id, error.reason) for error in fixture.listener.errors] == [
        (1, CheckpointFailureReason.CANCELLATION_BARRIER)
    ]


def test_a_timestamp_of_the_future_is_no_negative_delay() -> None:
    fixture = Fixture(BarrierMode.ALIGNED)

    fixture.barriers(aligned(1, 5_000), (0, 0))

    assert fixture.handler.start_delay_ms == 0


def test_the_timer_makes_announced_barriers_overtake() -> None:
    fixture = Fixture()
    fixture.clock.ms = 4
    fixture.handler.handle(BarrierAnnounced((0, 1), timeoutable(1), 9))
    assert fixture.timers.delays_ms == [6]

    fixture.timers.ring()

    assert fixture.inputs[0].calls == [("prioritize", 1, 9)]


@pytest.mark.parametrize("end", ["complete", "cancel", "close"])
def test_no_timer_is_left_behind(end: str) -> None:
    fixture = Fixture()
    fixture.clock.ms = 0
    fixture.barriers(timeoutable(1), (0, 0))
    assert fixture.timers.num_due == 1

    match end:
        case "complete":
            fixture.barriers(timeoutable(1), (0, 1), (1, 0))
        case "cancel":
            fixture.handler.handle(CancellationReceived((0, 1), 1))
        case _:
            fixture.handler.close()

    assert fixture.timers.num_due == 0


def test_after_the_close_nothing_is_handled() -> None:
    fixture = Fixture()
    fixture.handler.close()

    fixture.barriers(unaligned(1), (0, 0))

    assert fixture.listener.calls == []
    assert "checkpoint -1" in repr(fixture.handler)


def test_a_newer_barrier_in_a_channel_declines_the_checkpoint() -> None:
    """FLINK-20331: no snapshot is taken, the gates stop, and the task goes on."""
    fixture = Fixture()
    fixture.inputs[1].error = CheckpointSubsumedError("newer")

    fixture.barriers(unaligned(1), (0, 0))

    assert fixture.listener.calls == [("init", 1), ("abort", 1)]
    assert fixture.inputs[0].calls == [("start", 1), ("stop", 1)]
    assert str(fixture.listener.errors[0]) == "checkpoint 1: a barrier of a newer checkpoint arrived: newer"
    assert "pending" not in repr(fixture.handler)


def test_a_checkpoint_that_is_refused_with_its_last_barrier_is_not_completed() -> None:
    """The only channel's barrier and an input that refuses come at once."""
    fixture = Fixture(num_channels=1)
    fixture.inputs[0].error = CheckpointSubsumedError("newer")

    fixture.barriers(unaligned(1), (0, 0))

    assert fixture.listener.calls == [("init", 1), ("abort", 1)]


def test_an_announced_barrier_that_is_not_the_last_one_declines_the_checkpoint() -> None:
    fixture = Fixture()
    fixture.handler.handle(BarrierAnnounced((0, 1), timeoutable(1), 9))
    fixture.inputs[0].error = LocalProtocolError("9 is not the last barrier")

    fixture.timers.ring()

    assert fixture.listener.calls == [("abort", 1)]


def test_channel_state_that_cannot_be_opened_declines_the_checkpoint() -> None:
    fixture = Fixture()
    fixture.listener.init_error = CheckpointError(1, CheckpointFailureReason.CHANNEL_STATE_FAILED, "full")

    fixture.barriers(unaligned(1), (0, 0))

    assert fixture.listener.calls == [("init", 1), ("abort", 1)]
    assert fixture.listener.errors[0].reason is CheckpointFailureReason.CHANNEL_STATE_FAILED


def test_other_errors_are_the_tasks() -> None:
    """A task survives only refusals of a checkpoint."""
    fixture = Fixture()
    fixture.inputs[0].error = RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fixture.barriers(unaligned(1), (0, 0))
