"""``TaskCheckpoints``: one checkpoint of a subtask, triggers and notifications as mails, the final checkpoint.

Source: Flink ``SubtaskCheckpointCoordinatorTest``, ``AsyncCheckpointRunnable``, ``StreamTaskTest`` (triggers, declines,
        notifications), ``StreamTaskFinalCheckpointsTest``, ``SourceStreamTaskStoppingTest``,
        ``StreamTaskCancellationBarrierTest``.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from flowlet.checkpoint.task.barrier_orders import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.task.snapshots import OperatorState
from flowlet.mailbox.mailbox_processor import MailboxExecutor
from flowlet.mailbox.task_mailbox import MAX_PRIORITY
from flowlet.messages.control_messages import CheckpointDurations
from flowlet.task.checkpoint_wiring import MailedCall
from netstack.wire.events import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointOptions,
    SavepointFormat,
    SnapshotType,
    StopMode,
)
from tests.flowlet.checkpoint.task.barriers import aligned, timeoutable, unaligned
from tests.flowlet.checkpoint.task.doubles import CheckpointedTask, Mailbox
from tests.netstack.gate.manual_timers import ManualTimers

REASON = CheckpointFailureReason
UNALIGNED = unaligned(1).options
ALIGNED_1 = "aligned 1 -> prepare 1; barrier 1; snapshot 1"
UNALIGNED_1 = "unaligned 1 -> prepare 1; overtaking barrier 1; snapshot 1"
STOP = CheckpointOptions(SnapshotType.SAVEPOINT_TERMINATE, SavepointFormat.NATIVE)


def cancelled(checkpoint_id: int) -> tuple[object, ...]:
    """Return the call with which the tasks behind hear that a checkpoint is cancelled."""
    return ("broadcast", CancelCheckpointMarker(checkpoint_id), False)


def test_the_barrier_goes_out_before_the_snapshot_is_taken() -> None:
    """The barrier follows the operators' last chance to emit; the acknowledgement follows the asynchronous part."""
    task = CheckpointedTask().play("aligned 1 -> prepare 1; barrier 1; snapshot 1")
    assert "[1] under way" in repr(task.checkpoints)
    task.clock.ms += 4

    task.play("pool -> acknowledge 1")

    ((_, metrics, state),) = task.responder.acknowledged
    assert state.operators == {"op": OperatorState("state")}
    assert metrics == CheckpointDurations(1, 2, 0, 4, 3)
    assert "[] under way" in repr(task.checkpoints)


def test_an_unaligned_checkpoint_waits_for_the_inputs() -> None:
    """The leftovers of the deserializers belong to it."""
    task = CheckpointedTask()
    task.leftover = b"half"

    task.play("unaligned 1 -> prepare 1; overtaking barrier 1; snapshot 1", "pool ->", "inputs 1 -> acknowledge 1")

    ((_, metrics, state),) = task.responder.acknowledged
    assert state.channels.inputs == {(0, 0): (b"half",)}
    assert metrics.bytes_persisted_during_alignment == 4
    assert metrics.is_unaligned


def test_the_inputs_may_be_complete_before_the_pool_has_a_thread() -> None:
    CheckpointedTask().play(UNALIGNED_1, "inputs 1 ->", "pool -> acknowledge 1")


def test_a_barrier_that_may_time_out_is_watched_in_our_own_queues() -> None:
    """It times out 10 ms after it was triggered, of which 4 are over; its outputs have nothing in flight then."""
    task = CheckpointedTask()
    task.clock.ms = 1_004

    task.take(timeoutable(1, 1_000))
    assert task.timers.delays_ms == [6]

    task.play("timer -> timeout 1", "pool -> acknowledge 1")


@pytest.mark.parametrize(
    "end",
    [
        "aligned 2 -> prepare 2; barrier 2; snapshot 2",
        "complete 1 -> complete 1",
        "abort 1 -> abort output 1; aborted 1; discard op",
        "give-up 1 -> abort output 1; cancellation 1; decline 1 CANCELLATION_BARRIER; discard op",
        "close -> discard op",
    ],
    ids=["the next one", "complete", "aborted", "the inputs give it up", "the task is closed"],
)
def test_the_timer_of_the_outputs_ends_with_its_checkpoint(end: str) -> None:
    task = CheckpointedTask().play("timeoutable 1 -> prepare 1; barrier 1; snapshot 1", end)

    assert task.timers.num_due == 0


# ---------------------------------------------------------------- aborts


def test_an_abort_before_the_barrier() -> None:
    """The tasks behind must not wait."""
    task = CheckpointedTask().play("abort 1 -> abort output 1; aborted 1", "unaligned 1 -> cancellation 1")

    assert task.writer.open_checkpoints == []
    task.play("aligned 2 -> prepare 2; barrier 2; snapshot 2", "pool -> acknowledge 2")


@pytest.mark.parametrize("pool", [[], ["pool ->"]], ids=["before the pool has a thread", "while inputs are waited for"])
def test_an_abort_during_the_asynchronous_part(pool: list[str]) -> None:
    """It is discarded, and neither acknowledged nor declined."""
    task = CheckpointedTask().play(
        UNALIGNED_1, *pool, "abort 1 -> abort output 1; aborted 1; discard op", "pool ->", "inputs 1 ->"
    )

    assert "[] under way" in repr(task.checkpoints)
    assert task.writer.open_checkpoints == []


def test_an_abort_while_the_pool_works_discards_when_it_is_done() -> None:
    """Files that a writer still writes are not removed; an abort discards them when the writer is done."""
    task = CheckpointedTask()
    discarded_meanwhile: list[int] = []

    def abort() -> OperatorState:
        task.checkpoints.notify_checkpoint_aborted(1)
        discarded_meanwhile.append(len(task.chain.discarded))
        return OperatorState("state")

    task.chain.on_finish = abort
    task.take(aligned(1))
    task.run_pool()

    assert discarded_meanwhile == [0]
    assert task.chain.discarded == ["op"]
    assert task.responder.acknowledged == []


def test_an_abort_after_the_acknowledgement() -> None:
    """The operators are told, and nothing more happens."""
    CheckpointedTask().play(
        ALIGNED_1,
        "pool -> acknowledge 1",
        "abort 1 -> abort output 1; aborted 1",
        "aligned 2 -> prepare 2; barrier 2; snapshot 2",
        "pool -> acknowledge 2",
    )


def test_aborted_ids_are_not_remembered_for_ever() -> None:
    """As many are remembered as run concurrently; older ones count as aborted."""
    task = CheckpointedTask(max_concurrent=2)
    for checkpoint_id in range(1, 11):
        task.checkpoints.notify_checkpoint_aborted(checkpoint_id)
    assert len(task.checkpoints._aborted) == 2

    task.play("aligned 3 -> cancellation 3", "aligned 9 -> cancellation 9", "aligned 10 -> cancellation 10")
    task.play("aligned 11 -> prepare 11; barrier 11; snapshot 11")


def test_an_older_checkpoint_is_not_taken() -> None:
    """Nothing is sent for it."""
    task = CheckpointedTask().play("aligned 5 -> prepare 5; barrier 5; snapshot 5", "unaligned 4 ->", "aligned 5 ->")

    assert task.writer.open_checkpoints == []


def test_the_inputs_give_a_checkpoint_up() -> None:
    """The checkpoint is declined, and the tasks behind are told; its late barrier finds it done."""
    task = CheckpointedTask().play(
        UNALIGNED_1,
        "give-up 1 -> abort output 1; cancellation 1; decline 1 CANCELLATION_BARRIER; discard op",
        "give-up 2 -> abort output 2; cancellation 2; decline 2 CANCELLATION_BARRIER",
        "aligned 2 ->",
        "pool ->",
    )

    assert "last 2" in repr(task.checkpoints)


# ---------------------------------------------------------------- failures


def test_a_failing_synchronous_part_is_the_tasks_failure() -> None:
    task = CheckpointedTask()
    task.chain.sync_error = RuntimeError("no disk")

    with pytest.raises(RuntimeError, match="no disk"):
        task.take(unaligned(1))

    assert task.writer.open_checkpoints == []
    assert task.pool == []


@pytest.mark.parametrize("error", [RuntimeError("no disk"), SystemExit("no disk")], ids=["error", "exit"])
def test_a_failing_asynchronous_part_is_declined(error: BaseException) -> None:
    """testAsyncCheckpointFailure...: the task goes on, whatever a user's code raises on the pool."""
    task = CheckpointedTask()
    task.chain.async_error = error

    task.play(ALIGNED_1, "pool -> decline 1 ASYNCHRONOUS_PART_FAILED; discard op")

    assert f"{type(error).__name__}: no disk" in str(task.responder.declined[0])


def test_a_task_that_ends_declines_nothing() -> None:
    """No answer is wanted."""
    task = CheckpointedTask().play(ALIGNED_1)
    task.chain.async_error = RuntimeError("no disk")
    task.is_running = False

    task.run_pool()

    assert task.responder.declined == []


def test_lost_channel_state_is_declined() -> None:
    """A newer checkpoint opened its own before this one was complete."""
    CheckpointedTask().play(
        UNALIGNED_1,
        "pool ->",
        "unaligned 2 -> prepare 2; overtaking barrier 2; snapshot 2; decline 1 SUBSUMED; discard op",
    )


class State:
    """The state that an operator keeps."""


@contextmanager
def without_collector() -> Iterator[None]:
    """Switch the collector off, so that only reference counting frees objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("end", ["aligned", "inputs last", "pool last", "aborted", "subsumed"])
def test_nothing_keeps_the_state_of_an_ended_checkpoint(end: str) -> None:
    """A TaskManager's collector of cycles runs so rarely that the state of a thousand checkpoints would wait for it."""
    task = CheckpointedTask()
    states: list[weakref.ref[State]] = []

    def finish() -> OperatorState:
        state = State()
        states.append(weakref.ref(state))
        return OperatorState(state)

    task.chain.on_finish = finish
    with without_collector():
        task.take(aligned(1) if end == "aligned" else unaligned(1))
        if end == "pool last":
            task.checkpoints.complete_inputs(1)
        task.run_pool()
        if end == "inputs last":
            task.checkpoints.complete_inputs(1)
        if end == "aborted":
            task.checkpoints.notify_checkpoint_aborted(1)
        if end == "subsumed":
            task.take(unaligned(2))
        assert task.responder.acknowledged_ids == ([] if end in ("aborted", "subsumed") else [1])
        task.responder.acknowledged.clear()

        assert [each() for each in states] == [None]


def test_closed_operators_decline() -> None:
    """The barrier is out already, so that no consumer waits."""
    task = CheckpointedTask()
    task.chain.is_closed = lambda: True

    task.play("unaligned 1 -> prepare 1; overtaking barrier 1; decline 1 TASK_CLOSING")

    assert task.writer.open_checkpoints == []


def test_channel_state_is_opened_once() -> None:
    task = CheckpointedTask()
    task.checkpoints.init_inputs(1, UNALIGNED)

    with pytest.raises(CheckpointError):
        task.checkpoints.init_inputs(1, UNALIGNED)


# ---------------------------------------------------------------- triggers


def test_a_source_takes_its_checkpoint_in_the_mailbox() -> None:
    """Alignment takes no time; the delay since the trigger is reported."""
    task = CheckpointedTask()
    future = task.checkpoints.trigger_checkpoint_async(CheckpointBarrier(1, 990, UNALIGNED))
    assert task.log == [], "nothing happens on the caller's thread"

    task.mailbox.run()
    task.run_pool()

    assert future.result(0) is True
    ((_, metrics, _),) = task.responder.acknowledged
    assert (metrics.start_delay_ms, metrics.alignment_ms) == (10, 0)


def test_an_unaligned_trigger_is_urgent() -> None:
    """An aligned one keeps its place among the mails."""
    task = CheckpointedTask()
    order: list[str] = []
    for options in (CheckpointOptions(), UNALIGNED):
        task.mailbox.executor.execute(lambda: order.append("mail"), "a mail before")
        task.checkpoints.trigger_checkpoint_async(CheckpointBarrier(1 + options.is_unaligned, 0, options))
        task.mailbox.executor.try_yield()
        order.append("snapshot" if ("snapshot", 1 + options.is_unaligned) in task.log else "nothing")
        task.mailbox.run()

    assert order == ["mail", "nothing", "snapshot", "mail"]


@pytest.mark.parametrize(
    ("num_channels", "ended"),
    [(2, []), (2, [(1, 0)]), (1, [(0, 0), (1, 0)])],
    ids=["all run", "one of four channels has ended", "all have ended"],
)
def test_the_order_injects_a_barrier_into_every_unfinished_channel(
    num_channels: int, ended: list[tuple[int, int]]
) -> None:
    """triggerUnfinishedChannelsCheckpoint: a channel that has ended is neither waited for nor counted; if all have, the
    snapshot is taken in the mailbox.  Injected barriers block nothing.
    """
    task = CheckpointedTask(num_channels)
    for channel in ended:
        task.end(*channel)

    assert task.trigger(1) is True

    assert ("snapshot", 1) in task.log
    assert [gate.calls for gate in task.gates] == [[], []], "nothing was blocked"


def test_a_task_that_does_not_run_declines() -> None:
    """testDeclineWhenNotRunning: and the tasks behind are told."""
    task = CheckpointedTask()
    task.is_running = False

    assert task.trigger(1, UNALIGNED) is False

    assert task.reasons == [(1, REASON.TASK_NOT_READY)]
    assert cancelled(1) in task.log
    assert task.writer.open_checkpoints == []


def test_a_trigger_for_a_mailbox_that_is_closed_is_declined() -> None:
    task = CheckpointedTask()
    task.mailbox.mailbox.quiesce()

    assert task.trigger(1) is False

    assert task.reasons == [(1, REASON.TASK_CLOSING)]


def test_a_trigger_that_is_dropped_is_cancelled() -> None:
    """A caller does not wait for ever if the mailbox is closed before it runs the trigger."""
    task = CheckpointedTask()
    future = task.checkpoints.trigger_checkpoint_async(CheckpointBarrier(1, 0))

    for mail in task.mailbox.mailbox.close():
        mail.try_cancel()

    assert future.cancelled()


def test_a_failing_snapshot_fails_the_future_and_the_task() -> None:
    task = CheckpointedTask()
    task.chain.sync_error = RuntimeError("no disk")
    future = task.checkpoints.trigger_checkpoint_async(CheckpointBarrier(1, 0))

    with pytest.raises(RuntimeError, match="no disk"):
        task.mailbox.run()

    assert isinstance(future.exception(0), RuntimeError)


def test_a_repeated_trigger_is_no_failure() -> None:
    """The JobManager may send an order twice."""
    task = CheckpointedTask()

    assert (task.trigger(1, UNALIGNED), task.trigger(1, UNALIGNED)) == (True, True)

    assert task.log.count(("snapshot", 1)) == 1


# ---------------------------------------------------------------- notifications


def test_notifications_reach_the_operators_once() -> None:
    """Repeated and old ids are skipped."""
    CheckpointedTask().play("complete 2 -> complete 2", "complete 2 ->", "complete 1 ->")


def test_notifications_have_the_highest_priority() -> None:
    """An operator that yields runs them; its own mails are of a lower one."""
    task = CheckpointedTask()
    task.mailbox.executor.execute(lambda: task.log.append(("mail", 0)), "main")
    task.checkpoints.notify_checkpoint_complete_async(1)
    task.checkpoints.notify_checkpoint_aborted_async(9)
    operator = MailboxExecutor(task.mailbox.mailbox, 3)

    while operator.try_yield():
        pass

    assert task.log == [("complete", 1), ("abort output", 9), ("aborted", 9)]


def test_a_task_that_does_not_run_takes_no_notice() -> None:
    """testNotifyCheckpoint...BeforeStart."""
    task = CheckpointedTask()
    task.is_running = False
    task.checkpoints.notify_checkpoint_complete_async(1)
    task.checkpoints.notify_checkpoint_aborted_async(2)
    task.mailbox.run()
    task.mailbox.mailbox.quiesce()

    task.checkpoints.notify_checkpoint_complete_async(3)

    assert task.log == []


# ---------------------------------------------------------------- the end


def test_the_final_checkpoint_is_one_that_was_taken_after_the_end_of_data() -> None:
    task = CheckpointedTask()
    task.trigger(1)
    task.checkpoints.end_of_data_received(StopMode.DRAIN)
    task.trigger(2)
    task.trigger(3)
    task.run_pool()

    for checkpoint_id, is_done in ((1, False), (3, True)):
        task.checkpoints.notify_checkpoint_complete(checkpoint_id)
        assert task.checkpoints.final_checkpoint.is_done == is_done
    assert [state.is_finished for _, _, state in task.responder.acknowledged] == [False, True, True]


def test_a_stop_with_savepoint_waits_for_its_own_id() -> None:
    """testWaitingForFinalCheckpointWithSavepoint: a checkpoint before or behind it is not it."""
    task = CheckpointedTask()
    task.trigger(3)
    task.trigger(4, STOP)
    assert "stops with savepoint 4" in repr(task.checkpoints)
    task.checkpoints.end_of_data_received(StopMode.DRAIN)
    task.trigger(5)

    for checkpoint_id, is_done in ((3, False), (4, True)):
        task.checkpoints.notify_checkpoint_complete(checkpoint_id)
        assert task.checkpoints.final_checkpoint.is_done == is_done


def test_a_stop_whose_savepoint_is_aborted_fails_the_task() -> None:
    task = CheckpointedTask()
    task.trigger(4, STOP)
    task.checkpoints.notify_checkpoint_aborted_async(3)
    task.mailbox.run()
    task.checkpoints.notify_checkpoint_aborted_async(4)

    with pytest.raises(CheckpointError, match="cannot stop with this savepoint"):
        task.mailbox.run()


def test_a_source_whose_savepoint_was_aborted_before_its_trigger_goes_on() -> None:
    """The notification is of a higher priority than the trigger; a source that stopped then would wait for ever."""
    task, stopped = CheckpointedTask(), list[StopMode]()
    task.checkpoints.attach_source(stopped.append)
    future = task.checkpoints.trigger_checkpoint_async(CheckpointBarrier(4, 990, STOP))
    task.checkpoints.notify_checkpoint_aborted_async(4)

    assert MailboxExecutor(task.mailbox.mailbox, MAX_PRIORITY).try_yield()
    task.mailbox.run()

    assert (future.result(0), stopped) == (False, [])
    assert "stops" not in repr(task.checkpoints)
    assert cancelled(4) in task.log
    assert ("snapshot", 4) not in task.log


@pytest.mark.parametrize("num_channels", [0, 1], ids=["source", "task with gates"])
def test_the_close_cancels_what_is_under_way(num_channels: int) -> None:
    """Later checkpoints are cancelled, too."""
    task = CheckpointedTask(num_channels).play(
        ALIGNED_1, "close -> discard op", "aligned 2 -> prepare 2; barrier 2; snapshot 2; discard op", "pool ->"
    )

    assert "[] under way" in repr(task.checkpoints)


# ---------------------------------------------------------------- calls that are due


def mailed(timers: ManualTimers, mailbox: Mailbox, call: Callable[[], None]) -> MailedCall:
    return MailedCall(timers.call_later, mailbox.executor, "test", 0.005, call)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_call_that_is_due_is_a_mail_until_it_is_cancelled(is_cancelled: bool) -> None:
    """A cancel comes in time even if the mail is under way."""
    timers, mailbox, calls = ManualTimers(), Mailbox(), list[int]()
    timer = mailed(timers, mailbox, lambda: calls.append(1))

    timers.ring()
    if is_cancelled:
        timer.cancel()
    assert calls == []
    mailbox.run()

    assert calls == ([] if is_cancelled else [1])


def test_a_cancel_before_the_time_leaves_no_timer() -> None:
    timers = ManualTimers()

    mailed(timers, Mailbox(), lambda: None).cancel()

    assert timers.num_due == 0


def test_a_task_that_has_ended_makes_no_call_that_is_due() -> None:
    timers, mailbox = ManualTimers(), Mailbox()
    mailed(timers, mailbox, lambda: None)
    mailbox.mailbox.quiesce()

    timers.ring()

    assert timers.num_due == 0
