"""``TaskCheckpoints``: one checkpoint of a subtask, and its asynchronous part.

Source: Flink ``SubtaskCheckpointCoordinatorTest``, ``AsyncCheckpointRunnable`` in ``StreamTaskTest``.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from flowlet.checkpoint.task.barrier_orders import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.task.snapshots import (
    AlignmentMetrics,
    OperatorState,
)
from flowlet.checkpoint.task.task_checkpoints import TaskCheckpoints
from flowlet.messages.control_messages import CheckpointDurations
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.partition.channel_state import InputChannelInfo
from netstack.wire.events import (
    Alignment,
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointOptions,
    SavepointFormat,
    SnapshotType,
)
from netstack.wire.messages import DataType
from tests.flowlet.checkpoint.task.barriers import aligned, timeoutable, unaligned
from tests.flowlet.checkpoint.task.doubles import (
    Clock,
    Mailbox,
    ManualTimers,
    RecordingChain,
    RecordingOutputs,
    RecordingResponder,
)

REASON = CheckpointFailureReason
UNALIGNED = unaligned(1).options


class Fixture:
    def __init__(self, *, max_concurrent: int = 1) -> None:
        self.log: list[tuple[object, ...]] = []
        self.chain = RecordingChain(self.log)
        self.outputs = RecordingOutputs(self.log)
        self.writer = InMemoryChannelStateWriter()
        self.responder = RecordingResponder()
        self.timers = ManualTimers()
        self.clock = Clock()
        self.pool: list[Callable[[], None]] = []
        self.is_running = True
        mailbox = Mailbox()
        self.coordinator = TaskCheckpoints(
            "task",
            cast(Any, self.chain),
            self.outputs,
            self.writer,
            self.responder,
            self.pool.append,
            self.timers.call_later,
            mailbox.executor,
            mailbox.executor,
            prepare_inputs=self.prepare_inputs,
            is_running=lambda: self.is_running,
            max_concurrent=max_concurrent,
            clock_ns=self.clock.now_ns,
            wall_ms=self.clock.wall_ms,
        )

    def prepare_inputs(self, writer: InMemoryChannelStateWriter, checkpoint_id: int) -> None:
        leftover = NetworkBuffer.unpooled(b"half", DataType.DATA_BUFFER)
        writer.add_input_data(checkpoint_id, InputChannelInfo(0, 0), [leftover])

    def take(self, barrier: CheckpointBarrier, *, init: bool = True) -> None:
        if init:
            self.coordinator.init_inputs(barrier.checkpoint_id, barrier.options)
        self.coordinator.checkpoint_state(barrier, AlignmentMetrics(1, 2_000_000, 3))

    def run_pool(self) -> None:
        while self.pool:
            self.pool.pop(0)()

    @property
    def reasons(self) -> list[tuple[int, CheckpointFailureReason]]:
        return [(error.checkpoint_id, error.reason) for error in self.responder.declined]


def test_the_barrier_goes_out_before_the_snapshot_is_taken() -> None:
    """The barrier follows the operators' last chance to emit; the acknowledgement follows the asynchronous part."""
    fixture = Fixture()

    fixture.take(aligned(1, 5))

    assert fixture.log == [("prepare", 1), ("broadcast", aligned(1, 5), False), ("snapshot", 1)]
    assert fixture.responder.acknowledged == []
    assert "[1] under way" in repr(fixture.coordinator)
    fixture.clock.ms += 4
    fixture.run_pool()

    ((checkpoint_id, metrics, state),) = fixture.responder.acknowledged
    assert checkpoint_id == 1
    assert state.operators == {"op": OperatorState("state")}
    assert metrics == CheckpointDurations(1, 2, 0, 4, 3)
    assert "[] under way" in repr(fixture.coordinator)


@pytest.mark.parametrize("kind", [SnapshotType.SAVEPOINT, SnapshotType.SAVEPOINT_TERMINATE])
def test_a_savepoint_never_has_priority(kind: SnapshotType) -> None:
    """testSavepointNotResultingInPriorityEvents, FLINK-18252."""
    fixture = Fixture()

    fixture.take(CheckpointBarrier(1, 0, CheckpointOptions(kind, SavepointFormat.CANONICAL)))

    assert [entry[2] for entry in fixture.log if entry[0] == "broadcast"] == [False]


def test_an_unaligned_checkpoint_waits_for_the_inputs() -> None:
    """TestInitCheckpoint and testForceAlignedCheckpointResultingInPriorityEvents: leftovers of the deserializers belong
    to it.
    """
    fixture = Fixture()

    fixture.take(unaligned(1))
    fixture.run_pool()
    assert fixture.responder.acknowledged == []
    fixture.coordinator.complete_inputs(1)

    ((_, metrics, state),) = fixture.responder.acknowledged
    assert fixture.log[1] == ("broadcast", unaligned(1), True)
    assert state.channels.inputs == {(0, 0): (b"half",)}
    assert metrics.bytes_persisted_during_alignment == 4
    assert metrics.is_unaligned


def test_the_inputs_may_be_complete_before_the_pool_has_a_thread() -> None:
    fixture = Fixture()
    fixture.take(unaligned(1))
    fixture.coordinator.complete_inputs(1)
    assert fixture.responder.acknowledged == []

    fixture.run_pool()

    assert fixture.responder.acknowledged_ids == [1]


def test_what_an_edge_forced_to_be_aligned_overtakes_again_behind_us() -> None:
    """TestForceAlignedCheckpointResultingInPriorityEvents."""
    fixture = Fixture()
    forced = CheckpointOptions(alignment=Alignment.FORCED_ALIGNED)

    fixture.take(CheckpointBarrier(1, 0, forced))
    fixture.run_pool()

    assert fixture.log[1] == ("broadcast", unaligned(1), True)
    assert fixture.responder.acknowledged_ids == [1]


def test_a_barrier_that_may_time_out_is_watched_in_our_own_queues() -> None:
    """testAlignedBarrierTimeout...: 10 ms after it was triggered, of which 4 are over."""
    fixture = Fixture()
    fixture.clock.ms = 1_004

    fixture.take(timeoutable(1, 1_000))
    assert [delay for delay, _ in fixture.timers.armed] == [6]
    fixture.timers.fire()

    assert fixture.log[-1] == ("timeout", 1)
    fixture.run_pool()
    assert fixture.responder.acknowledged_ids == [1], "its inputs were complete, its outputs have nothing in flight"


@pytest.mark.parametrize("end", ["next", "complete", "aborted", "barrier", "close"])
def test_the_timer_of_the_outputs_ends_with_its_checkpoint(end: str) -> None:
    fixture = Fixture()
    fixture.take(timeoutable(1))
    coordinator = fixture.coordinator

    match end:
        case "next":
            fixture.take(aligned(2))
        case "complete":
            coordinator.notify_checkpoint_complete(1)
        case "aborted":
            coordinator.notify_checkpoint_aborted(1)
        case "barrier":
            coordinator.abort_checkpoint_on_barrier(1, CheckpointError(1, REASON.CANCELLATION_BARRIER))
        case _:
            coordinator.close()

    assert fixture.timers.armed == []


# ---------------------------------------------------------------- aborts


def test_an_abort_before_the_barrier() -> None:
    """testBroadcastCancelCheckpointMarkerOnAbortingFromCoordinator: the tasks behind must not wait."""
    fixture = Fixture()
    fixture.coordinator.notify_checkpoint_aborted(1)

    fixture.take(unaligned(1))

    assert fixture.log == [("abort output", 1), ("aborted", 1), ("broadcast", CancelCheckpointMarker(1), False)]
    assert fixture.writer.open_checkpoints == []
    fixture.take(aligned(2))
    fixture.run_pool()
    assert fixture.responder.acknowledged_ids == [2]


def test_an_abort_during_the_asynchronous_part() -> None:
    """testNotifyCheckpointAbortedDuringAsyncPhase: it is discarded, and neither acknowledged nor declined."""
    fixture = Fixture()
    fixture.take(unaligned(1))

    fixture.coordinator.notify_checkpoint_aborted(1)
    fixture.run_pool()
    fixture.coordinator.complete_inputs(1)

    assert fixture.responder.acknowledged == []
    assert fixture.responder.declined == []
    assert fixture.chain.discarded == ["op"]
    assert "[] under way" in repr(fixture.coordinator)
    assert fixture.writer.open_checkpoints == []


def test_an_abort_while_the_inputs_are_waited_for_discards_what_the_operators_gave() -> None:
    fixture = Fixture()
    fixture.take(unaligned(1))
    fixture.run_pool()

    fixture.coordinator.notify_checkpoint_aborted(1)

    assert fixture.chain.discarded == ["op"]
    assert fixture.responder.declined == []


def test_an_abort_while_the_pool_works_discards_when_it_is_done() -> None:
    """Files that a writer still writes are not removed; an abort discards them when the writer is done."""
    fixture = Fixture()
    discarded_meanwhile: list[int] = []

    def abort() -> OperatorState:
        fixture.coordinator.notify_checkpoint_aborted(1)
        discarded_meanwhile.append(len(fixture.chain.discarded))
        return OperatorState("state")

    fixture.chain.on_finish = abort
    fixture.take(aligned(1))

    fixture.run_pool()

    assert discarded_meanwhile == [0]
    assert fixture.chain.discarded == ["op"]
    assert fixture.responder.acknowledged == []


def test_an_abort_after_the_acknowledgement() -> None:
    """testNotifyCheckpointAbortedAfterAsyncPhase: the operators are told, and nothing more happens."""
    fixture = Fixture()
    fixture.take(aligned(1))
    fixture.run_pool()

    fixture.coordinator.notify_checkpoint_aborted(1)
    fixture.take(aligned(2))
    fixture.run_pool()

    assert ("aborted", 1) in fixture.log
    assert fixture.chain.discarded == []
    assert fixture.responder.acknowledged_ids == [1, 2]


def test_aborted_ids_are_not_remembered_for_ever() -> None:
    """testAbortedCheckpointsMemoryBound...: as many as run concurrently; older ones count as aborted."""
    fixture = Fixture(max_concurrent=2)
    for checkpoint_id in range(1, 11):
        fixture.coordinator.notify_checkpoint_aborted(checkpoint_id)
    assert len(fixture.coordinator._aborted) == 2

    fixture.take(aligned(3))
    fixture.take(aligned(9))
    fixture.take(aligned(10))
    fixture.take(aligned(11))

    markers = [entry[1] for entry in fixture.log if entry[0] == "broadcast"]
    assert markers == [*(CancelCheckpointMarker(each) for each in (3, 9, 10)), aligned(11)]


def test_an_older_checkpoint_is_not_taken() -> None:
    """TestSkipCheckpoint / out of order: nothing is sent for it."""
    fixture = Fixture()
    fixture.take(aligned(5))
    before = list(fixture.log)

    fixture.take(unaligned(4))
    fixture.take(aligned(5))

    assert fixture.log == before
    assert fixture.writer.open_checkpoints == []


def test_the_inputs_give_a_checkpoint_up() -> None:
    """The checkpoint is declined, and the tasks behind are told; its late barrier finds it done."""
    fixture = Fixture()
    fixture.take(unaligned(1))
    error = CheckpointError(1, REASON.CANCELLATION_BARRIER)

    fixture.coordinator.abort_checkpoint_on_barrier(1, error)
    fixture.coordinator.abort_checkpoint_on_barrier(2, CheckpointError(2, REASON.CANCELLATION_BARRIER))
    fixture.take(aligned(2))
    fixture.run_pool()

    assert fixture.reasons == [(1, REASON.CANCELLATION_BARRIER), (2, REASON.CANCELLATION_BARRIER)]
    assert fixture.log[-2:] == [("abort output", 2), ("broadcast", CancelCheckpointMarker(2), False)]
    assert fixture.responder.acknowledged == []
    assert "last 2" in repr(fixture.coordinator)


# ---------------------------------------------------------------- failures


def test_a_failing_synchronous_part_is_the_tasks_failure() -> None:
    fixture = Fixture()
    fixture.chain.sync_error = RuntimeError("no disk")
    fixture.coordinator.init_inputs(1, UNALIGNED)

    with pytest.raises(RuntimeError, match="no disk"):
        fixture.take(unaligned(1), init=False)

    assert fixture.writer.open_checkpoints == []
    assert fixture.pool == []


@pytest.mark.parametrize("error", [RuntimeError("no disk"), SystemExit("no disk")])
def test_a_failing_asynchronous_part_is_declined(error: BaseException) -> None:
    """testAsyncCheckpointFailure...: the task goes on, whatever a user's code raises on the pool."""
    fixture = Fixture()
    fixture.chain.async_error = error
    fixture.take(aligned(1))

    fixture.run_pool()

    assert fixture.reasons == [(1, REASON.ASYNCHRONOUS_PART_FAILED)]
    assert f"{type(error).__name__}: no disk" in str(fixture.responder.declined[0])
    assert fixture.chain.discarded == ["op"]


def test_a_task_that_ends_declines_nothing() -> None:
    """TestFailingAsyncCheckpointRunnable when not running: no answer is wanted."""
    fixture = Fixture()
    fixture.chain.async_error = RuntimeError("no disk")
    fixture.take(aligned(1))
    fixture.is_running = False

    fixture.run_pool()

    assert fixture.responder.declined == []


def test_lost_channel_state_is_declined() -> None:
    """A newer checkpoint opened its own before this one was complete."""
    fixture = Fixture()
    fixture.take(unaligned(1))
    fixture.run_pool()

    fixture.take(unaligned(2))

    assert fixture.reasons == [(1, REASON.SUBSUMED)]
    assert fixture.chain.discarded == ["op"]


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
    fixture = Fixture()
    states: list[weakref.ref[State]] = []

    def finish() -> OperatorState:
        state = State()
        states.append(weakref.ref(state))
        return OperatorState(state)

    fixture.chain.on_finish = finish
    with without_collector():
        fixture.take(aligned(1) if end == "aligned" else unaligned(1))
        if end == "pool last":
            fixture.coordinator.complete_inputs(1)
        fixture.run_pool()
        if end == "inputs last":
            fixture.coordinator.complete_inputs(1)
        if end == "aborted":
            fixture.coordinator.notify_checkpoint_aborted(1)
        if end == "subsumed":
            fixture.take(unaligned(2))
        assert fixture.responder.acknowledged_ids == ([] if end in ("aborted", "subsumed") else [1])
        fixture.responder.acknowledged.clear()

        assert [each() for each in states] == [None]


def test_closed_operators_decline() -> None:
    """testCheckpointDeclinedWhenTaskClosing: the barrier is out already, so that no consumer waits."""
    fixture = Fixture()
    fixture.chain.is_closed = lambda: True

    fixture.take(unaligned(1))

    assert fixture.reasons == [(1, REASON.TASK_CLOSING)]
    assert fixture.log == [("prepare", 1), ("broadcast", unaligned(1), True)]
    assert fixture.writer.open_checkpoints == []


def test_channel_state_is_opened_once() -> None:
    fixture = Fixture()
    fixture.coordinator.init_inputs(1, UNALIGNED)

    with pytest.raises(CheckpointError):
        fixture.coordinator.init_inputs(1, UNALIGNED)


# ---------------------------------------------------------------- notifications and the end


def test_notifications_reach_the_operators_once() -> None:
    """testNotifyCheckpointComplete, repeated and old ids skipped."""
    fixture = Fixture()

    fixture.coordinator.notify_checkpoint_complete(2)
    fixture.coordinator.notify_checkpoint_complete(2)
    fixture.coordinator.notify_checkpoint_complete(1)

    assert fixture.log == [("complete", 2)]


def test_the_close_cancels_what_is_under_way() -> None:
    """testSnapshotAfterClose: later checkpoints are cancelled, too."""
    fixture = Fixture()
    fixture.take(aligned(1))

    fixture.coordinator.close()
    fixture.take(aligned(2))
    fixture.run_pool()

    assert fixture.responder.acknowledged == []
    assert fixture.chain.discarded == ["op", "op"]
    assert "[] under way" in repr(fixture.coordinator)
