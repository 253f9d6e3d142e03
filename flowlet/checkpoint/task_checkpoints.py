"""What a stream task does about checkpoints: orders of the JobManager in as mails, barriers of its inputs in as calls.

Side:       task.  The ``..._async`` methods from any thread.
Invariants: everything that touches operators runs as a mail or inside a poll, on the task thread; every trigger ends in a result, an
            exception or a cancelled future.
Source:     Flink ``StreamTask.triggerCheckpointAsync``, ``triggerUnfinishedChannelsCheckpoint``, ``performCheckpoint``,
            ``notifyCheckpointOperation``; the final checkpoint of ``afterInvoke``.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from flowlet.checkpoint.barrier_handler import CheckpointBarrierHandler
from flowlet.checkpoint.barrier_orders import BarrierReceived
from flowlet.checkpoint.checkpoint_error import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.responder import CheckpointStatistics, MeasuringResponder
from flowlet.checkpoint.snapshots import AlignmentMetrics, CheckpointMetadata
from flowlet.checkpoint.subtask_checkpoint_coordinator import SubtaskCheckpointCoordinator
from flowlet.errors import MailboxClosedError
from flowlet.mailbox.mailbox_executor import MailboxExecutor
from flowlet.mailbox.task_mailbox import MailOptions
from netstack.availability import AvailabilityFuture
from netstack.wire.events import CheckpointBarrier, CheckpointOptions, SavepointFormat, SnapshotType, StopMode

_NS_PER_MS = 1_000_000
_STOP_MODES: Final = {SnapshotType.SAVEPOINT_SUSPEND: StopMode.NO_DRAIN, SnapshotType.SAVEPOINT_TERMINATE: StopMode.DRAIN}
_SYNCHRONOUS: Final = frozenset(_STOP_MODES)
ALL_TYPES: Final = frozenset(SnapshotType)
ALL_FORMATS: Final = frozenset(SavepointFormat)


class TriggerableGate(Protocol):
    """A gate whose channels a barrier can be injected into; ``SingleInputGate`` is one."""

    @property
    def is_finished(self) -> bool:
        """Whether every channel reached the end of its partition."""

    @property
    def unfinished_channels(self) -> list[int]:
        """The indexes of the channels that did not."""


class TaskCheckpoints:
    """The checkpoints of one stream task; it satisfies ``BarrierListener``.

    Life cycle: made -> ``attach`` with the gates and their handler, or ``attach_source`` -> used -> ``close``.

    Args:
        main_executor: of the lowest priority; snapshots run here.
        notification_executor: of the highest priority, so that an operator that yields is notified as well.
        is_running: whether operators are open and not closed yet.
        types, formats: what the state backend can do.
    """

    def __init__(
        self,
        name: str,
        coordinator: SubtaskCheckpointCoordinator,
        responder: MeasuringResponder,
        main_executor: MailboxExecutor,
        notification_executor: MailboxExecutor,
        is_running: Callable[[], bool],
        *,
        types: frozenset[SnapshotType] = ALL_TYPES,
        formats: frozenset[SavepointFormat] = ALL_FORMATS,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // _NS_PER_MS,
    ) -> None:
        self._name = name
        self._coordinator = coordinator
        self._responder = responder
        self._main_executor = main_executor
        self._notification_executor = notification_executor
        self._is_running = is_running
        self._types = types
        self._formats = formats
        self._wall_ms = wall_ms
        self._gates: tuple[TriggerableGate, ...] = ()
        self._handler: CheckpointBarrierHandler | None = None
        # All below written by the task thread.
        self._synchronous_id: int | None = None  # the savepoint that stops the job
        self._stop_source: Callable[[StopMode], None] | None = None
        self._behind_end_of_data: list[tuple[CheckpointMetadata, CheckpointOptions]] = []  # savepoints that wait for the source to stop
        self._is_end_of_data = False
        self._has_finished = False  # the operators
        self._final_min_id: int | None = None  # the first checkpoint taken after the end of data
        self.final_checkpoint = AvailabilityFuture()
        """Done when a checkpoint is complete that holds all the task will ever have, or the savepoint that stops it is."""

    def __repr__(self) -> str:
        stop = "" if self._synchronous_id is None else f", stops with savepoint {self._synchronous_id}"
        return f"<TaskCheckpoints of {self._name}{stop}, {self._coordinator!r}>"

    def attach(self, gates: Sequence[TriggerableGate], handler: CheckpointBarrierHandler) -> None:
        """Make the gates known, by gate index, and what handles their barriers; once, before the first checkpoint."""
        self._gates = tuple(gates)
        self._handler = handler

    def attach_source(self, stop: Callable[[StopMode], None]) -> None:
        """The task is a source: before a savepoint that stops the job, ``stop`` makes it end its data soon; on the task thread."""
        self._stop_source = stop

    @property
    def statistics(self) -> CheckpointStatistics:
        """How the checkpoints went so far; any thread."""
        return self._responder.statistics

    @property
    def alignment_duration_ns(self) -> int:
        """How long the alignment has taken that is under way, else the last one; any thread."""
        return 0 if self._handler is None else self._handler.alignment_duration_ns

    @property
    def start_delay_ns(self) -> int:
        """How old the last checkpoint was when the task heard of it; any thread."""
        return self.statistics.last.start_delay_ns if self._handler is None else self._handler.start_delay_ns

    def close(self) -> None:
        """Cancel what is under way."""
        if self._handler is not None:
            self._handler.close()
        self._coordinator.close()

    # ---------------------------------------------------------------- orders of the JobManager, any thread

    def trigger_checkpoint_async(self, metadata: CheckpointMetadata, options: CheckpointOptions) -> Future[bool]:
        """Take a checkpoint: true once it was begun here, false if the task does not run; an exception out of it fails the task, too.

        The future is cancelled if the task ends before.

        Raises:
            CheckpointError: snapshots of this kind cannot be had here.
        """
        self._check_supported(metadata.checkpoint_id, options)
        mail = _TriggerMail(lambda: self._trigger(metadata, options))
        mail_options = MailOptions.URGENT if options.is_unaligned else MailOptions.DEFAULT
        try:
            self._main_executor.execute(mail, "checkpoint %s with %s", metadata, options, options=mail_options)
        except MailboxClosedError:
            self._decline(metadata.checkpoint_id, CheckpointFailureReason.TASK_CLOSING)
            mail.future.set_result(False)
        return mail.future

    def notify_checkpoint_complete_async(self, checkpoint_id: int) -> None:
        """Every subtask acknowledged; nothing happens if the task has ended."""
        self._notify(lambda: self._on_complete(checkpoint_id), "checkpoint %s is complete", checkpoint_id)

    def notify_checkpoint_aborted_async(self, checkpoint_id: int) -> None:
        """The coordinator gave it up; fails the task if it waits for that savepoint to stop."""
        self._notify(lambda: self._on_aborted(checkpoint_id), "checkpoint %s is aborted", checkpoint_id)

    def notify_checkpoint_subsumed_async(self, checkpoint_id: int) -> None:
        """A newer one takes its place."""
        self._notify(lambda: self._coordinator.notify_checkpoint_subsumed(checkpoint_id), "checkpoint %s is subsumed", checkpoint_id)

    def _notify(self, action: Callable[[], object], description: str, checkpoint_id: int) -> None:
        def run() -> None:
            if self._is_running():
                action()

        try:
            self._notification_executor.execute(run, description, checkpoint_id)
        except MailboxClosedError:
            return

    def _check_supported(self, checkpoint_id: int, options: CheckpointOptions) -> None:
        wanted = options.savepoint_format
        if options.type in self._types and (wanted is None or wanted in self._formats):
            return
        details = f"{self._name}: {options.type.name}{'' if wanted is None else f' in the {wanted.name} format'}"
        raise CheckpointError(checkpoint_id, CheckpointFailureReason.UNSUPPORTED_SNAPSHOT, details)

    # ---------------------------------------------------------------- mails

    def _trigger(self, metadata: CheckpointMetadata, options: CheckpointOptions) -> bool:
        handler = self._handler
        if options.type in _SYNCHRONOUS and self._stop_source is not None and not self._is_end_of_data:
            # Flink ``SourceStreamTask.triggerStopWithSavepointAsync``: nothing may come behind its barrier.
            self._synchronous_id = metadata.checkpoint_id
            self._behind_end_of_data.append((metadata, options))
            self._stop_source(_STOP_MODES[options.type])
            return True
        if handler is None or all(gate.is_finished for gate in self._gates):
            alignment = AlignmentMetrics(start_delay_ns=_NS_PER_MS * max(0, self._wall_ms() - metadata.timestamp_ms))
            try:
                self._coordinator.init_inputs(metadata.checkpoint_id, options)
            except CheckpointError as error:
                self._give_up(error)
                return False
            self._coordinator.complete_inputs(metadata.checkpoint_id)
            return self._perform(metadata, options, alignment)
        barrier = CheckpointBarrier(metadata.checkpoint_id, metadata.timestamp_ms, options)
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

    def end_of_data_received(self, mode: StopMode) -> None:
        """No data comes any more: the next checkpoint that is taken is the first one that can be the last.

        ``DRAIN``: the operators are finished, too, and need not run again after a restore.
        """
        self._is_end_of_data = True
        self._has_finished = mode is StopMode.DRAIN

    def end_of_data_sent(self) -> None:
        """The consumers were told: take the savepoints that waited for that.

        Raises:
            Exception: as ``trigger_checkpoint_on_barrier``.
        """
        waiting, self._behind_end_of_data = self._behind_end_of_data, []
        for metadata, options in waiting:
            self._trigger(metadata, options)

    def waits_for_final_checkpoint(self, *, is_wanted: bool) -> bool:
        """Whether the task must not end yet: for a last checkpoint, if one ``is_wanted``, or for the savepoint that stops it."""
        return (is_wanted or self._synchronous_id is not None) and not self.final_checkpoint.is_done

    @property
    def synchronous_savepoint_id(self) -> int | None:
        """The savepoint that stops the task once it is complete."""
        return self._synchronous_id

    def init_inputs(self, checkpoint_id: int, options: CheckpointOptions) -> None:
        """Open the channel state of a checkpoint, if it wants one.

        Raises:
            CheckpointError: it was opened or aborted before.
        """
        self._coordinator.init_inputs(checkpoint_id, options)

    def complete_inputs(self, checkpoint_id: int) -> None:
        """Nothing more of the inputs belongs to the checkpoint."""
        self._coordinator.complete_inputs(checkpoint_id)

    def trigger_checkpoint_on_barrier(self, metadata: CheckpointMetadata, options: CheckpointOptions, alignment: AlignmentMetrics) -> None:
        """Take the snapshot.

        Raises:
            Exception: what the chain or an output raised; the task cannot go on.
        """
        self._perform(metadata, options, alignment)

    def abort_checkpoint_on_barrier(self, checkpoint_id: int, error: CheckpointError) -> None:
        """Decline the checkpoint and tell the tasks behind.

        Raises:
            CheckpointError: the task waits for that savepoint to stop.
        """
        self._coordinator.abort_checkpoint_on_barrier(checkpoint_id, error)
        self._fail_stop(checkpoint_id, error.reason)

    def _perform(self, metadata: CheckpointMetadata, options: CheckpointOptions, alignment: AlignmentMetrics) -> bool:
        checkpoint_id = metadata.checkpoint_id
        if not self._is_running():
            self._give_up(CheckpointError(checkpoint_id, CheckpointFailureReason.TASK_NOT_READY, self._name))
            return False
        if options.type in _SYNCHRONOUS:
            self._synchronous_id = checkpoint_id
        if self._is_end_of_data and self._final_min_id is None:
            self._final_min_id = checkpoint_id
        self._coordinator.checkpoint_state(metadata, options, alignment, is_finished=self._has_finished)
        return True

    def _give_up(self, error: CheckpointError) -> None:
        self._coordinator.abort_checkpoint_on_barrier(error.checkpoint_id, error)

    def _fail_stop(self, checkpoint_id: int, reason: CheckpointFailureReason) -> None:
        if checkpoint_id == self._synchronous_id:
            raise CheckpointError(checkpoint_id, reason, f"{self._name} cannot stop with this savepoint")

    def _decline(self, checkpoint_id: int, reason: CheckpointFailureReason) -> None:
        self._responder.decline_checkpoint(checkpoint_id, CheckpointError(checkpoint_id, reason, self._name))


class _TriggerMail:
    """The mail of one trigger: its exception is the future's and the task's."""

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
        """The mailbox drops it."""
        self.future.cancel()
