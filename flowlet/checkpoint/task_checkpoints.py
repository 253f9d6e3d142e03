"""``TaskCheckpoints``: the checkpoints of a stream task; triggered by mails of the JobManager and by barriers of its
inputs.

``OperatorSnapshots``: takes and restores the state of a chain of operators.

Side:       task.  The ``..._async`` methods on any thread.
Invariants: operators are touched only in a mail or a poll, on the task thread; every trigger ends in a result, an
            exception or a cancelled future.  As in Flink, operators prepare for the barrier head first and are asked
            for their state tail first.  An operator without state is not in the snapshot.  Timers and keyed state are
            part of their operator's state and are copied in the synchronous part.
Source:     Flink ``StreamTask.triggerCheckpointAsync``, ``triggerUnfinishedChannelsCheckpoint``, ``performCheckpoint``,
            ``notifyCheckpointOperation``; the final checkpoint of ``afterInvoke``.  Flink
            ``RegularOperatorChain.prepareSnapshotPreBarrier``, ``snapshotState``, ``notifyCheckpointComplete``.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.barrier_orders import BarrierReceived, CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.checkpoint_barrier_handler import CheckpointBarrierHandler
from flowlet.checkpoint.snapshots import AlignmentMetrics, OperatorSnapshotFuture, OperatorState
from flowlet.checkpoint.subtask_checkpoint_coordinator import (
    CheckpointResponder,
    CheckpointStatistics,
    SubtaskCheckpointCoordinator,
)
from flowlet.errors import FlowletError, MailboxClosedError
from flowlet.mailbox.mailbox_executor import MailboxExecutor
from flowlet.mailbox.task_mailbox import MailOptions
from flowlet.state.state_backends import KeyedStateBackend
from flowlet.state.state_snapshots import IncrementalSnapshot, KeyedStateSnapshot, OperatorStateSnapshot
from netstack.availability import AvailabilityFuture
from netstack.wire.events import CheckpointBarrier, CheckpointOptions, SnapshotType, StopMode

if TYPE_CHECKING:
    from netstack.gate.single_input_gate import SingleInputGate

_NS_PER_MS = 1_000_000
_STOP_MODES: Final = {
    SnapshotType.SAVEPOINT_SUSPEND: StopMode.NO_DRAIN,
    SnapshotType.SAVEPOINT_TERMINATE: StopMode.DRAIN,
}
_SYNCHRONOUS: Final = frozenset(_STOP_MODES)


class TaskCheckpoints:
    """The checkpoints of one stream task; implements ``BarrierListener``.

    Life cycle: ``attach`` with the gates and their handler, or ``attach_source``; later ``close``.

    Args:
        main_executor: of the lowest priority; runs the snapshots.
        notification_executor: of the highest priority, so that an operator that yields is notified, too.
        is_running: whether operators are open.
    """

    def __init__(
        self,
        name: str,
        coordinator: SubtaskCheckpointCoordinator,
        responder: CheckpointResponder,
        main_executor: MailboxExecutor,
        notification_executor: MailboxExecutor,
        is_running: Callable[[], bool],
        *,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // _NS_PER_MS,
    ) -> None:
        self._name = name
        self._coordinator = coordinator
        self._responder = responder
        self._main_executor = main_executor
        self._notification_executor = notification_executor
        self._is_running = is_running
        self._wall_ms = wall_ms
        self._gates: tuple[SingleInputGate, ...] = ()
        self._handler: CheckpointBarrierHandler | None = None
        # Written by the task thread, as all below.
        self._synchronous_id: int | None = None  # the savepoint that stops the job
        self._stop_source: Callable[[StopMode], None] | None = None
        # Savepoints to take once the source has stopped.
        self._behind_end_of_data: list[CheckpointBarrier] = []
        self._on_stop: Callable[[], None] | None = None  # set when the data has ended, and operators still hold records
        # Savepoints whose barriers came.
        self._at_end_of_data: list[tuple[CheckpointBarrier, AlignmentMetrics]] = []
        self._is_end_of_data = False
        self._has_finished = False  # the operators
        self._final_min_id: int | None = None  # the first checkpoint taken after the end of data
        self.final_checkpoint = AvailabilityFuture()
        """Done when a checkpoint is complete that was taken after the end of data, or the savepoint
        that stops the job.
        """

    def __repr__(self) -> str:
        stop = "" if self._synchronous_id is None else f", stops with savepoint {self._synchronous_id}"
        return f"<TaskCheckpoints of {self._name}{stop}, {self._coordinator!r}>"

    def attach(self, gates: "Sequence[SingleInputGate]", handler: CheckpointBarrierHandler) -> None:
        """Set the gates, by index, and their barrier handler; once, before the first checkpoint."""
        self._gates = tuple(gates)
        self._handler = handler

    def attach_source(self, stop: Callable[[StopMode], None]) -> None:
        """Set the function that makes a source end its data soon, for savepoints that stop the job; called on the task
        thread.
        """
        self._stop_source = stop

    @property
    def statistics(self) -> CheckpointStatistics:
        """The counts so far; any thread."""
        return self._responder.statistics

    @property
    def alignment_duration_ns(self) -> int:
        """The duration of the current alignment, else of the last one; any thread."""
        return 0 if self._handler is None else self._handler.alignment_duration_ns

    @property
    def start_delay_ms(self) -> int:
        """The age of the last checkpoint when its first barrier or trigger arrived; any thread."""
        return self.statistics.last.start_delay_ms if self._handler is None else self._handler.start_delay_ms

    def close(self) -> None:
        """Cancel pending snapshots."""
        if self._handler is not None:
            self._handler.close()
        self._coordinator.close()

    # ---------------------------------------------------------------- orders of the JobManager, any thread

    def trigger_checkpoint_async(self, barrier: CheckpointBarrier) -> Future[bool]:
        """Take the checkpoint of a barrier: the result is True once it was begun here, False if the task does not run.

        An exception fails the task, too.  The future is cancelled if the task ends before.
        """
        mail = _TriggerMail(lambda: self._trigger(barrier))
        # A source has no data in front of its barrier; its trigger keeps its place among the mails that bring its
        # splits.
        is_urgent = barrier.options.is_unaligned and self._stop_source is None
        mail_options = MailOptions.URGENT if is_urgent else MailOptions.DEFAULT
        try:
            self._main_executor.execute(mail, "trigger of %s", barrier, options=mail_options)
        except MailboxClosedError:
            closing = CheckpointError(barrier.checkpoint_id, CheckpointFailureReason.TASK_CLOSING, self._name)
            self._responder.decline_checkpoint(barrier.checkpoint_id, closing)
            mail.future.set_result(False)
        return mail.future

    def notify_checkpoint_complete_async(self, checkpoint_id: int) -> None:
        """Every subtask has acknowledged; ignored if the task has ended."""
        self._notify(lambda: self._on_complete(checkpoint_id), "checkpoint %s is complete", checkpoint_id)

    def notify_checkpoint_aborted_async(self, checkpoint_id: int) -> None:
        """The JobManager aborted the checkpoint; fails the task if it waits for this savepoint to stop."""
        self._notify(lambda: self._on_aborted(checkpoint_id), "checkpoint %s is aborted", checkpoint_id)

    def _notify(self, action: Callable[[], object], description: str, checkpoint_id: int) -> None:
        def run() -> None:
            if self._is_running():
                action()

        try:
            self._notification_executor.execute(run, description, checkpoint_id)
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
            if self._coordinator.is_aborted(checkpoint_id):
                self._coordinator.checkpoint_state(barrier, AlignmentMetrics())
                return False
            self._synchronous_id = checkpoint_id
            self._behind_end_of_data.append(barrier)
            self._stop_source(_STOP_MODES[options.type])
            return True
        if handler is None or all(gate.is_finished for gate in self._gates):
            alignment = AlignmentMetrics(max(0, self._wall_ms() - barrier.timestamp_ms))
            try:
                self._coordinator.init_inputs(checkpoint_id, options)
            except CheckpointError as error:
                self._coordinator.abort_checkpoint_on_barrier(error.checkpoint_id, error)
                return False
            self._coordinator.complete_inputs(checkpoint_id)
            return self._perform(barrier, alignment)
        for index, gate in enumerate(self._gates):
            for channel in gate.unfinished_channels:
                handler.handle(BarrierReceived((index, channel), barrier, is_injected=True))
        return True

    def _on_complete(self, checkpoint_id: int) -> None:
        if not self._coordinator.notify_checkpoint_complete(checkpoint_id):
            return
        if self._synchronous_id is not None:
            is_final = checkpoint_id == self._synchronous_id
        else:
            is_final = self._final_min_id is not None and checkpoint_id >= self._final_min_id
        if is_final:
            self.final_checkpoint.complete()

    def _on_aborted(self, checkpoint_id: int) -> None:
        self._coordinator.notify_checkpoint_aborted(checkpoint_id)
        self._fail_stop(checkpoint_id, CheckpointFailureReason.ABORTED_BY_NOTIFICATION)

    # ---------------------------------------------------------------- task thread

    def draining_began(self, on_stop: Callable[[], None]) -> None:
        """The data has ended, and operators still hold records: a savepoint that stops the task is taken behind its end
        of data.

        ``on_stop`` is called when one waits; then ``stops_without_drain`` may be true.
        """
        self._on_stop = on_stop

    @property
    def stops_without_drain(self) -> bool:
        """Whether a savepoint waits for the end of data that stops the task without the records that its operators
        hold.
        """
        return any(_STOP_MODES[barrier.options.type] is StopMode.NO_DRAIN for barrier, _ in self._at_end_of_data)

    def end_of_data_received(self, mode: StopMode) -> None:
        """No more data will come, so the next checkpoint can be the final one.

        ``DRAIN``: the operators have finished, too, and need not run again after a restore.
        """
        self._is_end_of_data = True
        self._has_finished = mode is StopMode.DRAIN

    def end_of_data_sent(self) -> None:
        """The consumers know of the end of data: take the savepoints that waited for it.

        Raises:
            Exception: as ``trigger_checkpoint_on_barrier``.
        """
        waiting, self._behind_end_of_data = self._behind_end_of_data, []
        for barrier in waiting:
            self._trigger(barrier)
        aligned, self._at_end_of_data = self._at_end_of_data, []
        for barrier, alignment in aligned:
            self._perform(barrier, alignment)

    def waits_for_final_checkpoint(self, *, is_wanted: bool) -> bool:
        """Whether the task must wait for a final checkpoint, if one ``is_wanted``, or for the
        savepoint that stops it.
        """
        return (is_wanted or self._synchronous_id is not None) and not self.final_checkpoint.is_done

    def init_inputs(self, checkpoint_id: int, options: CheckpointOptions) -> None:
        """Open the channel state of a checkpoint, if it needs one.

        Raises CheckpointError: it was opened or aborted before.
        """
        self._coordinator.init_inputs(checkpoint_id, options)

    def complete_inputs(self, checkpoint_id: int) -> None:
        """The inputs' part of the channel state is complete."""
        self._coordinator.complete_inputs(checkpoint_id)

    def trigger_checkpoint_on_barrier(self, barrier: CheckpointBarrier, alignment: AlignmentMetrics) -> None:
        """Take the snapshot.  Raises Exception: from the chain or an output; the task cannot go on."""
        self._perform(barrier, alignment)

    def abort_checkpoint_on_barrier(self, checkpoint_id: int, error: CheckpointError) -> None:
        """Decline the checkpoint and tell the downstream tasks.

        Raises CheckpointError: the task waits for this savepoint to stop.
        """
        self._coordinator.abort_checkpoint_on_barrier(checkpoint_id, error)
        self._fail_stop(checkpoint_id, error.reason)

    def _perform(self, barrier: CheckpointBarrier, alignment: AlignmentMetrics) -> bool:
        checkpoint_id = barrier.checkpoint_id
        if not self._is_running():
            error = CheckpointError(checkpoint_id, CheckpointFailureReason.TASK_NOT_READY, self._name)
            self._coordinator.abort_checkpoint_on_barrier(checkpoint_id, error)
            return False
        if barrier.options.type in _SYNCHRONOUS:
            if self._on_stop is not None and not self._is_end_of_data:
                self._at_end_of_data.append((barrier, alignment))
                self._on_stop()
                return True
            self._synchronous_id = checkpoint_id
        if self._is_end_of_data and self._final_min_id is None:
            self._final_min_id = checkpoint_id
        self._coordinator.checkpoint_state(barrier, alignment, is_finished=self._has_finished)
        return True

    def _fail_stop(self, checkpoint_id: int, reason: CheckpointFailureReason) -> None:
        if checkpoint_id == self._synchronous_id:
            raise CheckpointError(checkpoint_id, reason, f"{self._name} cannot stop with this savepoint")


class _TriggerMail:
    """The mail of one trigger; an exception fails both the future and the task."""

    __slots__ = ("_action", "future")

    def __init__(self, action: Callable[[], bool]) -> None:
        self._action = action
        self.future: Future[bool] = Future()

    def __call__(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._action()
        except BaseException as error:
            self.future.set_exception(error)
            raise
        self.future.set_result(result)

    def cancel(self) -> None:
        """Called when the mailbox drops the mail."""
        self.future.cancel()


_NOTHING = OperatorState()


class OperatorSnapshots:
    """The operators of a task, head first, which were set up; every call is on the task thread.

    ``check_cancelled``: raises TaskCancelled if the task was cancelled, so that no other function of the chain is
        called then.
    """

    def __init__(
        self,
        operators: Sequence[StreamOperator],
        is_closed: Callable[[], bool],
        check_cancelled: Callable[[], None] = lambda: None,
    ) -> None:
        self._operators = tuple(operators)
        self._is_closed = is_closed
        self._check_cancelled = check_cancelled

    @property
    def is_closed(self) -> bool:
        """Whether no snapshot can be taken any more."""
        return self._is_closed()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Let every operator emit records that belong before the barrier."""
        for each in self._operators:
            self._check_cancelled()
            each.prepare_snapshot_pre_barrier(checkpoint_id)

    def snapshot_state(self, barrier: CheckpointBarrier) -> Mapping[str, OperatorSnapshotFuture]:
        """Each operator's state, by its id in hex: a value, or a callable that makes it on another thread.

        Raises:
            FlowletError: a state cannot be written, for example a value of another type than declared; names the
                operator.
            Exception: whatever a user function raises.
        """
        snapshots = {}
        # It names no file that a checkpoint of the job may remove, and every back end reads it.
        is_full = barrier.options.type.is_savepoint
        checkpoint_id = barrier.checkpoint_id
        for each in reversed(self._operators):
            self._check_cancelled()
            ctx = each.ctx
            each.snapshot_functions(checkpoint_id, barrier.timestamp_ms)
            own = each.snapshot_state(checkpoint_id)
            timers = {} if ctx.timers is None else ctx.timers.snapshot()
            with _naming(each.name):
                keyed = None if ctx.keyed_state is None else ctx.keyed_state.snapshot(checkpoint_id, is_full=is_full)
                by_subtask = None if ctx.operator_state is None else ctx.operator_state.snapshot()
            if own is not None or timers or keyed is not None or by_subtask is not None:
                finish = partial(_finish, each.name, own, timers, each.state_version, keyed, by_subtask)
                discard = partial(_discard, ctx.keyed_state, checkpoint_id)
                snapshots[ctx.operator_id.hex()] = OperatorSnapshotFuture(finish, discard)
        return snapshots

    def restore(self, states: Mapping[str, OperatorState]) -> None:
        """Restore state and timers of every operator, tail first (None: it has none); before the operators are opened.

        Raises:
            StateRestoreError: an operator's state has another version than the operator reads, or another number of key
                groups.
        """
        for each in reversed(self._operators):
            ctx = each.ctx
            state = states.get(ctx.operator_id.hex(), _NOTHING)
            state.check_version(each.name, each.state_version)
            if ctx.timers is not None:
                ctx.timers.restore(state.timers)
            if ctx.keyed_state is not None and state.keyed is not None:
                for part in state.keyed if isinstance(state.keyed, Sequence) else (state.keyed,):
                    ctx.keyed_state.restore(part)
            if ctx.operator_state is not None and state.by_subtask is not None:
                ctx.operator_state.restore(state.by_subtask)
            each.initialize_state(state.own)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell every operator."""
        for each in self._operators:
            self._check_cancelled()
            if each.ctx.keyed_state is not None:
                each.ctx.keyed_state.notify_checkpoint_complete(checkpoint_id)
            each.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell every operator."""
        for each in self._operators:
            self._check_cancelled()
            each.notify_checkpoint_aborted(checkpoint_id)


def _discard(keyed_state: KeyedStateBackend | None, checkpoint_id: int) -> None:
    if keyed_state is not None:
        keyed_state.discard_snapshot(checkpoint_id)


@contextmanager
def _naming(operator: str) -> Iterator[None]:
    """Let an error that names a state name its operator, too: two operators may have states of one name."""
    try:
        yield
    except FlowletError as error:
        if type(error) is not FlowletError:
            raise  # it says more
        raise FlowletError(f"operator {operator!r}: {error}") from error.__cause__


def _finish(
    operator: str,
    own: object,
    timers: Mapping[int, Mapping[str, object]],
    version: int,
    keyed: Callable[[], KeyedStateSnapshot | IncrementalSnapshot] | None,
    by_subtask: Callable[[], OperatorStateSnapshot] | None,
) -> OperatorState:
    with _naming(operator):
        return OperatorState(
            own() if callable(own) else own,
            timers,
            version,
            None if keyed is None else keyed(),
            None if by_subtask is None else by_subtask(),
        )
