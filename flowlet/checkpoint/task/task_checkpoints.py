"""``TaskCheckpoints``: the checkpoints of a stream task: triggered by mails of the JobManager and by barriers of its
inputs; barrier, synchronous part, asynchronous part, acknowledgement.

Lock order: ``_lock`` is a leaf: operators' parts and the responder are called without it.

Side:       task.  The ``..._async`` methods on any thread; asynchronous parts end on any thread.
Invariants: operators are touched only in a mail or a poll, on the task thread; every trigger ends in a result, an
            exception or a cancelled future.  Ids only rise.  A checkpoint that was aborted before its barrier arrived
            is not taken; a cancel marker replaces its barrier.  Every checkpoint that was begun ends as acknowledged,
            declined or aborted, once.
Source:     Flink ``StreamTask.triggerCheckpointAsync``, ``triggerUnfinishedChannelsCheckpoint``, ``performCheckpoint``,
            ``notifyCheckpointOperation``, the final checkpoint of ``afterInvoke``.  Flink
            ``SubtaskCheckpointCoordinatorImpl``.
Units:      timestamps in milliseconds of the wall clock, durations in nanoseconds of a monotonic one.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from flowlet.checkpoint.task.barrier_orders import BarrierReceived, CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.task.checkpoint_barrier_handler import CheckpointBarrierHandler
from flowlet.checkpoint.task.operator_snapshots import (
    AsyncSnapshot,
    CheckpointResponder,
    OperatorSnapshots,
)
from flowlet.checkpoint.task.snapshots import AlignmentMetrics
from flowlet.errors import MailboxClosedError
from flowlet.mailbox.mailbox_processor import MailboxExecutor
from flowlet.mailbox.task_mailbox import MailOptions
from netstack.availability import AvailabilityFuture, run_all
from netstack.late import dataclass
from netstack.loop.eventloop import Cancellable, ScheduleTimer
from netstack.wire.events import (
    Alignment,
    CancelCheckpointMarker,
    CheckpointBarrier,
    CheckpointOptions,
    SnapshotType,
    StopMode,
)

if TYPE_CHECKING:
    from flowlet.task.checkpoint_wiring import TaskOutputs
    from netstack.gate.single_input_gate import SingleInputGate

_NS_PER_MS = 1_000_000
_STOP_MODES: Final = {
    SnapshotType.SAVEPOINT_SUSPEND: StopMode.NO_DRAIN,
    SnapshotType.SAVEPOINT_TERMINATE: StopMode.DRAIN,
}
_SYNCHRONOUS: Final = frozenset(_STOP_MODES)


@dataclass(eq=False)
class TaskCheckpoints:
    """The checkpoints of one stream task.

    Threading: the task thread, if nothing else is said.
    Life cycle: ``attach`` with the gates and their handler, or ``attach_source``; later ``close``, which cancels
        pending snapshots.

    Args:
        main_executor: of the lowest priority; runs the snapshots.
        notification_executor: of the highest priority, so that an operator that yields is notified, too.
        execute_async: runs a call on the snapshot pool.
        call_later: makes its calls on the task thread.
        is_running: whether operators are open.
        prepare_inputs: adds the incomplete records in the deserializers to the channel state.
        max_concurrent: how many checkpoints the JobManager runs at a time, and so how many aborted ids are remembered.
    """

    name: str
    chain: OperatorSnapshots
    outputs: "TaskOutputs"
    channel_state: InMemoryChannelStateWriter
    responder: CheckpointResponder
    execute_async: Callable[[Callable[[], None]], object]
    call_later: ScheduleTimer
    main_executor: MailboxExecutor
    notification_executor: MailboxExecutor
    is_running: Callable[[], bool] = lambda: True
    prepare_inputs: Callable[[InMemoryChannelStateWriter, int], None] = lambda _writer, _checkpoint_id: None
    max_concurrent: int = 1
    clock_ns: Callable[[], int] = time.monotonic_ns
    wall_ms: Callable[[], int] = lambda: time.time_ns() // _NS_PER_MS
    # Done when a checkpoint is complete that was taken after the end of data, or the savepoint that stops the job.
    final_checkpoint: AvailabilityFuture = field(init=False, default_factory=AvailabilityFuture)
    _gates: "tuple[SingleInputGate, ...]" = field(init=False, default=())
    _handler: CheckpointBarrierHandler | None = field(init=False, default=None)
    # Written by the task thread, as all below but ``_snapshots``.
    _synchronous_id: int | None = field(init=False, default=None)  # the savepoint that stops the job
    _stop_source: Callable[[StopMode], None] | None = field(init=False, default=None)
    # Savepoints to take once the source has stopped.
    _behind_end_of_data: list[CheckpointBarrier] = field(init=False, default_factory=list)
    # Set when the data has ended, and operators still hold records.
    _on_stop: Callable[[], None] | None = field(init=False, default=None)
    # Savepoints whose barriers came.
    _at_end_of_data: list[tuple[CheckpointBarrier, AlignmentMetrics]] = field(init=False, default_factory=list)
    _is_end_of_data: bool = field(init=False, default=False)
    _has_finished: bool = field(init=False, default=False)  # the operators
    _final_min_id: int | None = field(init=False, default=None)  # the first checkpoint taken after the end of data
    _last_id: int = field(init=False, default=-1)
    _last_completed: int = field(init=False, default=-1)
    # Aborted before their barriers arrived; at most max_concurrent.
    _aborted: set[int] = field(init=False, default_factory=set)
    _newest_aborted: int = field(init=False, default=-1)
    _alignment_timer: tuple[int, Cancellable] | None = field(init=False, default=None)  # and its checkpoint
    _is_closed: bool = field(init=False, default=False)
    _lock: threading.Lock = field(init=False)
    _snapshots: dict[int, AsyncSnapshot] = field(init=False, default_factory=dict)  # Guarded by _lock.

    def __post_init__(self) -> None:
        """Make the lock."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        stop = "" if self._synchronous_id is None else f", stops with savepoint {self._synchronous_id}"
        under_way = f"last {self._last_id}, {sorted(self._snapshots)} under way"
        return f"<TaskCheckpoints of {self.name}{stop}: {under_way}>"

    def attach(self, gates: "Sequence[SingleInputGate]", handler: CheckpointBarrierHandler) -> None:
        """Set the gates, by index, and their barrier handler; once, before the first checkpoint."""
        self._gates = tuple(gates)
        self._handler = handler

    def attach_source(self, stop: Callable[[StopMode], None]) -> None:
        """Set the function that makes a source end its data soon, for savepoints that stop the job; called on the task
        thread.
        """
        self._stop_source = stop

    def metrics(self) -> dict[str, int]:
        """Return the fields of ``TaskMetrics`` that tell of checkpoints; any thread."""
        statistics = self.responder.statistics
        handler = self._handler
        return {
            "checkpoint_alignment_ms": 0 if handler is None else handler.alignment_duration_ns // _NS_PER_MS,
            "checkpoint_start_delay_ms": statistics.last.start_delay_ms if handler is None else handler.start_delay_ms,
            "num_checkpoints": statistics.num_acknowledged,
            "num_declined_checkpoints": statistics.num_declined,
            "last_checkpoint_id": statistics.last_checkpoint_id,
            "last_checkpoint_sync_ms": statistics.last.sync_ms,
            "last_checkpoint_async_ms": statistics.last.async_ms,
            "last_checkpoint_in_flight_bytes": statistics.last.bytes_persisted_during_alignment,
        }

    def close(self) -> None:
        """Cancel pending snapshots; later ones are cancelled at once."""
        if self._handler is not None:
            self._handler.close()
        with self._lock:
            # In the lock round of the copy: a snapshot that starts behind it finds the mark, and is cancelled.
            self._is_closed = True
            snapshots = list(self._snapshots.values())
        # The snapshots before the channel state: otherwise they would miss it, and decline.
        calls: list[Callable[[], object]] = [self._stop_alignment_timer, *(snapshot.cancel for snapshot in snapshots)]
        run_all([*calls, self.channel_state.close])

    # ---------------------------------------------------------------- orders of the JobManager, any thread

    def trigger_checkpoint_async(self, barrier: CheckpointBarrier) -> Future[bool]:
        """Take the checkpoint of a barrier; the result is True once it was begun here, False if the task does not run.

        An exception fails the task, too.  The future is cancelled if the task ends before.
        """
        mail = _TriggerMail(lambda: self._trigger(barrier))
        # A source has no data in front of its barrier; its trigger keeps its place among the mails that bring its
        # splits.
        is_urgent = barrier.options.is_unaligned and self._stop_source is None
        mail_options = MailOptions.URGENT if is_urgent else MailOptions.DEFAULT
        try:
            self.main_executor.execute(mail, "trigger of %s", barrier, options=mail_options)
        except MailboxClosedError:
            closing = CheckpointError(barrier.checkpoint_id, CheckpointFailureReason.TASK_CLOSING, self.name)
            self.responder.decline_checkpoint(barrier.checkpoint_id, closing)
            mail.set_result(False)
        return mail

    def notify_checkpoint_complete_async(self, checkpoint_id: int) -> None:
        """Note that every subtask has acknowledged; ignored if the task has ended."""
        self._notify(lambda: self.notify_checkpoint_complete(checkpoint_id), "checkpoint %s is complete", checkpoint_id)

    def notify_checkpoint_aborted_async(self, checkpoint_id: int) -> None:
        """Note that the JobManager aborted the checkpoint; fails the task if it waits for this savepoint to stop."""
        self._notify(lambda: self.notify_checkpoint_aborted(checkpoint_id), "checkpoint %s is aborted", checkpoint_id)

    def _notify(self, action: Callable[[], object], description: str, checkpoint_id: int) -> None:
        def run() -> None:
            # The mail may run behind the close of the operators, which must hear nothing more.
            if self.is_running():
                action()

        try:
            self.notification_executor.execute(run, description, checkpoint_id)
        except MailboxClosedError:
            return

    # ---------------------------------------------------------------- mails

    def _trigger(self, barrier: CheckpointBarrier) -> bool:
        checkpoint_id = barrier.checkpoint_id
        options = barrier.options
        handler = self._handler
        if options.type in _SYNCHRONOUS and self._stop_source is not None and not self._is_end_of_data:
            # Flink ``SourceStreamTask.triggerStopWithSavepointAsync``: no record may follow the barrier of this
            # savepoint.  The notification has overtaken the trigger: the source goes on.
            if self.is_aborted(checkpoint_id):
                self.checkpoint_state(barrier, AlignmentMetrics())
                return False
            self._synchronous_id = checkpoint_id
            self._behind_end_of_data.append(barrier)
            self._stop_source(_STOP_MODES[options.type])
            return True
        # No channel will bring a barrier any more: the task is triggered like a source.
        if handler is None or all(gate.is_finished for gate in self._gates):
            alignment = AlignmentMetrics(max(0, self.wall_ms() - barrier.timestamp_ms))
            try:
                self.init_inputs(checkpoint_id, options)
            except CheckpointError as error:
                self._abort_on_barrier(error.checkpoint_id, error)
                return False
            self.complete_inputs(checkpoint_id)
            return self.trigger_checkpoint_on_barrier(barrier, alignment)
        # All producers have finished and send no barrier; this one stands for theirs.
        for index, gate in enumerate(self._gates):
            for channel in gate.unfinished_channels:
                handler.handle(BarrierReceived((index, channel), barrier, is_injected=True))
        return True

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Note that every subtask has acknowledged; ignored if this, or a newer completion, was known."""
        # Notes may come late: operators commit in the order of the ids.
        if checkpoint_id <= self._last_completed:
            return
        self._last_completed = checkpoint_id
        self._stop_alignment_timer(checkpoint_id)
        self.chain.notify_checkpoint_complete(checkpoint_id)
        if self._synchronous_id is not None:
            # Another checkpoint may be complete first: the task would end without the savepoint.
            is_final = checkpoint_id == self._synchronous_id
        else:
            is_final = self._final_min_id is not None and checkpoint_id >= self._final_min_id
        if is_final:
            self.final_checkpoint.complete()

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Note that the JobManager aborted the checkpoint: before, during or after it was taken here.

        Raises CheckpointError: the task waits for this savepoint to stop.
        """
        if not self._cancel_snapshot(checkpoint_id) and checkpoint_id > self._last_id:
            self._aborted = set(sorted({*self._aborted, checkpoint_id})[-self.max_concurrent :])
            self._newest_aborted = max(self._newest_aborted, checkpoint_id)
        error = self._aborted_by_notification(checkpoint_id)
        self.channel_state.abort(checkpoint_id, error)
        self._stop_alignment_timer(checkpoint_id)
        self.outputs.abort_checkpoint(checkpoint_id, error)
        self.chain.notify_checkpoint_aborted(checkpoint_id)
        self._fail_stop(checkpoint_id, error.reason)

    # ---------------------------------------------------------------- task thread

    def draining_began(self, on_stop: Callable[[], None]) -> None:
        """Note that the data has ended, and operators still hold records: a savepoint that stops the task is taken
        behind its end of data.

        ``on_stop`` is called when such a savepoint waits; then ``stops_without_drain`` may be true.
        """
        self._on_stop = on_stop

    @property
    def stops_without_drain(self) -> bool:
        """Whether a savepoint waits for the end of data that stops the task without the records that its operators
        hold.
        """
        return any(_STOP_MODES[barrier.options.type] is StopMode.NO_DRAIN for barrier, _ in self._at_end_of_data)

    def end_of_data_received(self, mode: StopMode) -> None:
        """Note that no more data will come, so the next checkpoint can be the final one.

        ``DRAIN``: the operators have finished, too, and need not run again after a restore.
        """
        self._is_end_of_data = True
        self._has_finished = mode is StopMode.DRAIN

    def end_of_data_sent(self) -> None:
        """Take the savepoints that waited for the end of data: the consumers know of it.

        Raises:
            Exception: as ``trigger_checkpoint_on_barrier``.
        """
        # Emptied first: a trigger below may put another savepoint there.
        waiting, self._behind_end_of_data = self._behind_end_of_data, []
        for barrier in waiting:
            self._trigger(barrier)
        aligned, self._at_end_of_data = self._at_end_of_data, []
        for barrier, alignment in aligned:
            self.trigger_checkpoint_on_barrier(barrier, alignment)

    def waits_for_final_checkpoint(self, *, is_wanted: bool) -> bool:
        """Whether the task must wait for a final checkpoint, if one ``is_wanted``, or for the
        savepoint that stops it.
        """
        return (is_wanted or self._synchronous_id is not None) and not self.final_checkpoint.is_done

    # ---------------------------------------------------------------- inputs

    def init_inputs(self, checkpoint_id: int, options: CheckpointOptions) -> None:
        """Open the channel state of a checkpoint, if it needs one and was not aborted.

        Raises CheckpointError: it was opened before.
        """
        if checkpoint_id > self._last_id and not self.is_aborted(checkpoint_id):
            self._open_channel_state(checkpoint_id, options)

    def _open_channel_state(self, checkpoint_id: int, options: CheckpointOptions) -> None:
        if not options.needs_channel_state:
            return
        self.channel_state.start(checkpoint_id)
        if options.is_unaligned:
            self.prepare_inputs(self.channel_state, checkpoint_id)
        else:  # an aligned barrier: only queued output may become part of the checkpoint
            self.channel_state.finish_input(checkpoint_id)

    def complete_inputs(self, checkpoint_id: int) -> None:
        """Complete the inputs' part of the channel state."""
        # All barriers are here: data that arrives from now on is behind one of them.
        self.channel_state.finish_input(checkpoint_id)

    # ---------------------------------------------------------------- the snapshot

    def trigger_checkpoint_on_barrier(self, barrier: CheckpointBarrier, alignment: AlignmentMetrics) -> bool:
        """Take the snapshot, now or behind the end of data; False: the task does not run.

        Raises Exception: from the chain or an output; the task cannot go on.
        """
        checkpoint_id = barrier.checkpoint_id
        if not self.is_running():
            error = CheckpointError(checkpoint_id, CheckpointFailureReason.TASK_NOT_READY, self.name)
            self._abort_on_barrier(checkpoint_id, error)
            return False
        if barrier.options.type in _SYNCHRONOUS:
            if self._on_stop is not None and not self._is_end_of_data:
                self._at_end_of_data.append((barrier, alignment))
                self._on_stop()
                return True
            self._synchronous_id = checkpoint_id
        # The first one behind the end of data holds everything that the task ever emitted.
        if self._is_end_of_data and self._final_min_id is None:
            self._final_min_id = checkpoint_id
        self.checkpoint_state(barrier, alignment)
        return True

    def checkpoint_state(self, barrier: CheckpointBarrier, alignment: AlignmentMetrics) -> None:
        """Take the checkpoint, unless it was aborted or is older than the last one.

        Raises:
            Exception: from the chain or an output; the task cannot go on.
        """
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id <= self._last_id:
            self.channel_state.abort(checkpoint_id, self._aborted_by_notification(checkpoint_id))
            self._take_aborted(checkpoint_id)
            return
        self._last_id = checkpoint_id
        if self._take_aborted(checkpoint_id):
            # Without the marker, downstream tasks would wait for the barrier.
            self.outputs.broadcast_event(CancelCheckpointMarker(checkpoint_id))
            self.channel_state.abort(checkpoint_id, self._aborted_by_notification(checkpoint_id))
            return
        if barrier.options.alignment is Alignment.FORCED_ALIGNED:
            # Only the edge before this task does not support it.
            barrier = replace(barrier, options=barrier.options.with_unaligned_supported())
            self._open_channel_state(checkpoint_id, barrier.options)
            self.channel_state.finish_input(checkpoint_id)
        self.chain.prepare_snapshot_pre_barrier(checkpoint_id)
        # Before the snapshot, as in Flink: the consumers go on with their part while this task copies its state.
        self.outputs.broadcast_event(barrier, is_priority=barrier.options.is_unaligned)
        self._start_alignment_timer(barrier)
        # Behind the broadcast, which hands over the output that the barrier overtakes.
        if barrier.options.needs_channel_state:
            self.channel_state.finish_output(checkpoint_id)
        self._take_snapshot(barrier, alignment)

    def _take_snapshot(self, barrier: CheckpointBarrier, alignment: AlignmentMetrics) -> None:
        checkpoint_id = barrier.checkpoint_id
        # A mail that waited may run behind the close: the operators hold nothing any more.
        if self.chain.is_closed():
            error = CheckpointError(checkpoint_id, CheckpointFailureReason.TASK_CLOSING, self.name)
            self.channel_state.abort(checkpoint_id, error)
            self.responder.decline_checkpoint(checkpoint_id, error)
            return
        started_ns = self.clock_ns()
        try:
            needs_channels = barrier.options.needs_channel_state
            channel_state = self.channel_state.take_result(checkpoint_id) if needs_channels else None
            parts = self.chain.snapshot_state(barrier)
        except Exception as error:
            details = f"{self.name}: {type(error).__name__}: {error}"
            failed = CheckpointError(checkpoint_id, CheckpointFailureReason.SYNCHRONOUS_PART_FAILED, details)
            self.channel_state.abort(checkpoint_id, failed)
            raise
        sync_duration_ns = self.clock_ns() - started_ns
        self._start(AsyncSnapshot(self, barrier, parts, channel_state, alignment, sync_duration_ns, self._has_finished))

    def _start(self, snapshot: AsyncSnapshot) -> None:
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._snapshots[snapshot.barrier.checkpoint_id] = snapshot
        if is_closed:
            snapshot.cancel()
        else:
            snapshot.start(self.execute_async)

    def snapshot_ended(self, snapshot: AsyncSnapshot) -> None:
        """Forget a snapshot that has ended; any thread."""
        with self._lock:
            if self._snapshots.get(snapshot.barrier.checkpoint_id) is snapshot:
                del self._snapshots[snapshot.barrier.checkpoint_id]

    # ---------------------------------------------------------------- queued barriers of the outputs

    def _start_alignment_timer(self, barrier: CheckpointBarrier) -> None:
        self._stop_alignment_timer()
        options, checkpoint_id = barrier.options, barrier.checkpoint_id
        if not options.is_timeoutable:
            return

        def fire() -> None:
            self._alignment_timer = None
            self.outputs.aligned_barrier_timeout(checkpoint_id)

        # Never longer than the timeout: the clock of the JobManager, which made the barrier, may be ahead, or this one
        # was put back.
        delay_ms = max(0, options.aligned_timeout_ms - max(0, self.wall_ms() - barrier.timestamp_ms))
        self._alignment_timer = (checkpoint_id, self.call_later(delay_ms / 1000, fire))

    def _stop_alignment_timer(self, checkpoint_id: int | None = None) -> None:
        timer = self._alignment_timer
        if timer is not None and checkpoint_id in (None, timer[0]):
            self._alignment_timer = None
            timer[1].cancel()

    # ---------------------------------------------------------------- aborts

    def abort_checkpoint_on_barrier(self, checkpoint_id: int, error: CheckpointError) -> None:
        """Decline a checkpoint that an input aborted, and tell the downstream tasks.

        Raises CheckpointError: the task waits for this savepoint to stop.
        """
        self._abort_on_barrier(checkpoint_id, error)
        self._fail_stop(checkpoint_id, error.reason)

    def _abort_on_barrier(self, checkpoint_id: int, error: CheckpointError) -> None:
        self._last_id = max(self._last_id, checkpoint_id)
        self._aborted = {each for each in self._aborted if each > self._last_id}
        self._cancel_snapshot(checkpoint_id)  # first; otherwise it would miss its channel state and decline, too
        self.channel_state.abort(checkpoint_id, error)
        self._stop_alignment_timer(checkpoint_id)
        self.responder.decline_checkpoint(checkpoint_id, error)
        self.outputs.abort_checkpoint(checkpoint_id, error)
        # Consumers that have a barrier of it from other producers are blocked until they hear of it.
        self.outputs.broadcast_event(CancelCheckpointMarker(checkpoint_id))

    def _cancel_snapshot(self, checkpoint_id: int) -> bool:
        with self._lock:
            snapshot = self._snapshots.get(checkpoint_id)
        return snapshot is not None and snapshot.cancel()

    def _take_aborted(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint was aborted; forgets that.  Ids too old to be remembered count as aborted."""
        is_aborted = self.is_aborted(checkpoint_id)
        self._aborted.discard(checkpoint_id)
        return is_aborted

    def is_aborted(self, checkpoint_id: int) -> bool:
        """Whether the JobManager has aborted a checkpoint that was not taken yet."""
        return checkpoint_id in self._aborted or checkpoint_id + self.max_concurrent < self._newest_aborted

    @staticmethod
    def _aborted_by_notification(checkpoint_id: int) -> CheckpointError:
        return CheckpointError(checkpoint_id, CheckpointFailureReason.ABORTED_BY_NOTIFICATION)

    def _fail_stop(self, checkpoint_id: int, reason: CheckpointFailureReason) -> None:
        if checkpoint_id == self._synchronous_id:
            raise CheckpointError(checkpoint_id, reason, f"{self.name} cannot stop with this savepoint")


class _TriggerMail(Future[bool]):
    """The mail of one trigger, and its result; an exception fails both this and the task.

    The mailbox calls ``cancel`` when it drops the mail.
    """

    def __init__(self, action: Callable[[], bool]) -> None:
        super().__init__()
        self._action = action

    def __call__(self) -> None:
        if not self.set_running_or_notify_cancel():
            return
        try:
            result = self._action()
        except BaseException as error:
            self.set_exception(error)
            raise
        self.set_result(result)
