"""``TaskCheckpoints``: triggers and notifications as mails, the final checkpoint.

Source: Flink ``StreamTaskTest`` (triggers, declines, notifications), ``StreamTaskFinalCheckpointsTest``,
        ``SourceStreamTaskStoppingTest``,
``StreamTaskCancellationBarrierTest``.
"""

from collections.abc import Callable
from typing import Any, cast

import pytest

from flowlet.checkpoint.task.barrier_orders import ChannelFinished, CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.task.checkpoint_barrier_handler import CheckpointBarrierHandler
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import SingleCheckpointBarrierHandler
from flowlet.checkpoint.task.task_checkpoints import TaskCheckpoints
from flowlet.mailbox.mailbox_processor import MailboxExecutor
from flowlet.mailbox.task_mailbox import MAX_PRIORITY
from netstack.wire.events import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfPartition,
    SavepointFormat,
    SnapshotType,
    StopMode,
)
from tests.flowlet.checkpoint.task.barriers import unaligned
from tests.flowlet.checkpoint.task.doubles import (
    Clock,
    Mailbox,
    ManualTimers,
    RecordingChain,
    RecordingOutputs,
    RecordingResponder,
    ScriptedGate,
)
from tests.flowlet.checkpoint.task.in_memory_store import MeasuringResponder

REASON = CheckpointFailureReason
STOP = CheckpointOptions(SnapshotType.SAVEPOINT_TERMINATE, SavepointFormat.NATIVE)


class Fixture:
    """A task with ``num_channels`` channels on each of two gates, or a source."""

    def __init__(self, num_channels: int = 0) -> None:
        self.log: list[tuple[object, ...]] = []
        self.chain = RecordingChain(self.log)
        self.responder = RecordingResponder()
        measuring = MeasuringResponder(self.responder)
        self.writer = InMemoryChannelStateWriter()
        self.clock = Clock()
        self.mailbox = Mailbox()
        self.is_running = True
        self.pool: list[Callable[[], None]] = []
        timers = ManualTimers()
        outputs = RecordingOutputs(self.log)
        self.checkpoints = TaskCheckpoints(
            "task",
            cast(Any, self.chain),
            outputs,
            self.writer,
            measuring,
            self.pool.append,
            timers.call_later,
            self.mailbox.executor,
            MailboxExecutor(self.mailbox.mailbox, MAX_PRIORITY),
            lambda: self.is_running,
            wall_ms=self.clock.wall_ms,
        )
        self.gates = [ScriptedGate(num_channels) for _ in range(2)] if num_channels else []
        if num_channels:
            self.handler = CheckpointBarrierHandler(
                SingleCheckpointBarrierHandler(2 * num_channels),
                cast(Any, self.gates),
                self.checkpoints,
                timers.call_later,
            )
            self.checkpoints.attach(cast(Any, self.gates), self.handler)

    def end(self, gate: int, channel: int) -> None:
        self.gates[gate].add(channel, EndOfPartition())
        self.gates[gate].poll_next()
        self.handler.handle(ChannelFinished((gate, channel)))

    def trigger(self, checkpoint_id: int, options: CheckpointOptions | None = None) -> object:
        barrier = CheckpointBarrier(checkpoint_id, 990, CheckpointOptions() if options is None else options)
        future = self.checkpoints.trigger_checkpoint_async(barrier)
        self.mailbox.run()
        return future.result(0)

    def run_pool(self) -> None:
        while self.pool:
            self.pool.pop(0)()

    @property
    def reasons(self) -> list[tuple[int, CheckpointFailureReason]]:
        return [(error.checkpoint_id, error.reason) for error in self.responder.declined]


def test_a_source_takes_its_checkpoint_in_the_mailbox() -> None:
    """Alignment takes no time; the delay since the trigger is reported."""
    fixture = Fixture()
    future = fixture.checkpoints.trigger_checkpoint_async(CheckpointBarrier(1, 990, unaligned(1).options))
    assert fixture.log == [], "nothing happens on the caller's thread"

    fixture.mailbox.run()
    fixture.run_pool()

    assert future.result(0) is True
    ((_, metrics, _),) = fixture.responder.acknowledged
    assert metrics.start_delay_ms == 10
    assert metrics.alignment_ms == 0


def test_an_unaligned_trigger_is_urgent() -> None:
    """An aligned one keeps its place among the mails."""
    fixture = Fixture()
    order: list[str] = []
    for options in (CheckpointOptions(), unaligned(2).options):
        fixture.mailbox.executor.execute(lambda: order.append("mail"), "a mail before")
        fixture.checkpoints.trigger_checkpoint_async(CheckpointBarrier(1 + options.is_unaligned, 0, options))
        fixture.mailbox.executor.try_yield()
        order.append("snapshot" if ("snapshot", 1 + options.is_unaligned) in fixture.log else "nothing")
        fixture.mailbox.run()

    assert order == ["mail", "nothing", "snapshot", "mail"]


def test_the_order_injects_a_barrier_into_every_unfinished_channel() -> None:
    """triggerUnfinishedChannelsCheckpoint: of two gates with two channels, one channel has ended; it is neither waited
    for nor counted.
    """
    fixture = Fixture(num_channels=2)
    fixture.end(1, 0)

    assert fixture.trigger(1) is True

    assert ("snapshot", 1) in fixture.log


def test_injected_barriers_block_nothing() -> None:
    fixture = Fixture(num_channels=2)

    assert fixture.trigger(1) is True

    assert ("snapshot", 1) in fixture.log
    assert [gate.calls for gate in fixture.gates] == [[], []], "nothing was blocked"


def test_with_all_gates_finished_the_snapshot_is_taken_in_the_mailbox() -> None:
    fixture = Fixture(num_channels=1)
    for gate in range(2):
        fixture.end(gate, 0)

    assert fixture.trigger(1) is True

    assert ("snapshot", 1) in fixture.log


def test_a_task_that_does_not_run_declines() -> None:
    """testDeclineWhenNotRunning: and the tasks behind are told."""
    fixture = Fixture()
    fixture.is_running = False

    assert fixture.trigger(1, unaligned(1).options) is False

    assert fixture.reasons == [(1, REASON.TASK_NOT_READY)]
    assert ("broadcast", CancelCheckpointMarker(1), False) in fixture.log
    assert fixture.writer.open_checkpoints == []


def test_a_trigger_for_a_mailbox_that_is_closed_is_declined() -> None:
    fixture = Fixture()
    fixture.mailbox.mailbox.quiesce()

    assert fixture.trigger(1) is False

    assert fixture.reasons == [(1, REASON.TASK_CLOSING)]


def test_a_trigger_that_is_dropped_is_cancelled() -> None:
    """A caller does not wait for ever if the mailbox is closed before it runs the trigger."""
    fixture = Fixture()
    future = fixture.checkpoints.trigger_checkpoint_async(CheckpointBarrier(1, 0))

    for mail in fixture.mailbox.mailbox.close():
        mail.try_cancel()

    assert future.cancelled()


def test_a_failing_snapshot_fails_the_future_and_the_task() -> None:
    fixture = Fixture()
    fixture.chain.sync_error = RuntimeError("no disk")
    future = fixture.checkpoints.trigger_checkpoint_async(CheckpointBarrier(1, 0))

    with pytest.raises(RuntimeError, match="no disk"):
        fixture.mailbox.run()

    assert isinstance(future.exception(0), RuntimeError)


def test_a_repeated_trigger_is_no_failure() -> None:
    """The JobManager may send an order twice."""
    fixture = Fixture()
    fixture.trigger(1, unaligned(1).options)

    assert fixture.trigger(1, unaligned(1).options) is True

    assert fixture.log.count(("snapshot", 1)) == 1


def test_a_trigger_after_its_abort_is_cancelled_behind_us() -> None:
    fixture = Fixture()
    fixture.checkpoints.notify_checkpoint_aborted_async(1)
    fixture.mailbox.run()

    fixture.trigger(1, unaligned(1).options)

    assert ("broadcast", CancelCheckpointMarker(1), False) in fixture.log
    assert ("snapshot", 1) not in fixture.log


# ---------------------------------------------------------------- notifications


def test_notifications_have_the_highest_priority() -> None:
    """An operator that yields runs them; its own mails are of a lower one."""
    fixture = Fixture()
    fixture.mailbox.executor.execute(lambda: fixture.log.append(("mail", 0)), "main")
    fixture.checkpoints.notify_checkpoint_complete_async(1)
    fixture.checkpoints.notify_checkpoint_aborted_async(9)
    operator = MailboxExecutor(fixture.mailbox.mailbox, 3)

    while operator.try_yield():
        pass

    assert fixture.log == [("complete", 1), ("abort output", 9), ("aborted", 9)]


def test_a_task_that_does_not_run_takes_no_notice() -> None:
    """testNotifyCheckpoint...BeforeStart."""
    fixture = Fixture()
    fixture.is_running = False
    fixture.checkpoints.notify_checkpoint_complete_async(1)
    fixture.checkpoints.notify_checkpoint_aborted_async(2)
    fixture.mailbox.run()
    fixture.mailbox.mailbox.quiesce()

    fixture.checkpoints.notify_checkpoint_complete_async(3)

    assert fixture.log == []


# ---------------------------------------------------------------- the end


def test_the_final_checkpoint_is_one_that_was_taken_after_the_end_of_data() -> None:
    """TestWaitingForFinalCheckpoint."""
    fixture = Fixture()
    fixture.trigger(1)
    fixture.checkpoints.end_of_data_received(StopMode.DRAIN)
    fixture.trigger(2)
    fixture.trigger(3)
    fixture.run_pool()

    for checkpoint_id, is_done in ((1, False), (3, True)):
        fixture.checkpoints.notify_checkpoint_complete_async(checkpoint_id)
        fixture.mailbox.run()
        assert fixture.checkpoints.final_checkpoint.is_done == is_done
    assert [state.is_finished for _, _, state in fixture.responder.acknowledged] == [False, True, True]


def test_a_stop_with_savepoint_waits_for_its_own_id() -> None:
    """testWaitingForFinalCheckpointWithSavepoint: a later checkpoint is not it."""
    fixture = Fixture()
    fixture.trigger(4, STOP)
    assert "stops with savepoint 4" in repr(fixture.checkpoints)
    fixture.checkpoints.end_of_data_received(StopMode.DRAIN)
    fixture.trigger(5)

    fixture.checkpoints.notify_checkpoint_complete_async(4)
    fixture.mailbox.run()

    assert fixture.checkpoints.final_checkpoint.is_done


def test_a_checkpoint_before_the_savepoint_does_not_end_the_task() -> None:
    fixture = Fixture()
    fixture.trigger(3)
    fixture.trigger(4, STOP)

    fixture.checkpoints.notify_checkpoint_complete_async(3)
    fixture.mailbox.run()

    assert not fixture.checkpoints.final_checkpoint.is_done


def test_a_stop_whose_savepoint_is_aborted_fails_the_task() -> None:
    """TestSavepointTerminateAborted."""
    fixture = Fixture()
    fixture.trigger(4, STOP)
    fixture.checkpoints.notify_checkpoint_aborted_async(3)
    fixture.mailbox.run()
    fixture.checkpoints.notify_checkpoint_aborted_async(4)

    with pytest.raises(CheckpointError, match="cannot stop with this savepoint"):
        fixture.mailbox.run()


def test_a_source_whose_savepoint_was_aborted_before_its_trigger_goes_on() -> None:
    """The notification is of a higher priority than the trigger; a source that stopped then would wait for ever."""
    fixture, stopped = Fixture(), list[StopMode]()
    fixture.checkpoints.attach_source(stopped.append)
    future = fixture.checkpoints.trigger_checkpoint_async(CheckpointBarrier(4, 990, STOP))
    fixture.checkpoints.notify_checkpoint_aborted_async(4)

    assert MailboxExecutor(fixture.mailbox.mailbox, MAX_PRIORITY).try_yield()
    fixture.mailbox.run()

    assert (future.result(0), stopped) == (False, [])
    assert "stops" not in repr(fixture.checkpoints)
    assert ("broadcast", CancelCheckpointMarker(4), False) in fixture.log
    assert ("snapshot", 4) not in fixture.log


def test_the_close_cancels_what_is_under_way() -> None:
    fixture = Fixture(num_channels=1)
    fixture.trigger(1)

    fixture.checkpoints.close()
    fixture.run_pool()

    assert fixture.responder.acknowledged == []
