"""``OperatorSnapshots``: takes and restores the state of a chain of operators: the synchronous part of a checkpoint.

``AsyncSnapshot``: the asynchronous part of one subtask's checkpoint, up to its acknowledgement.
``CheckpointResponder``: receives that, and counts.

Lock order: ``_lock`` is a leaf: operators' parts and the responder are called without it.

Side:       task.  ``AsyncSnapshot``: any thread.
Invariants: as in Flink, operators prepare for the barrier head first and are asked for their state tail first.  An
            operator without state is not in the snapshot.  Timers and keyed state are part of their operator's state
            and are copied in the synchronous part.  An asynchronous part ends exactly once, as acknowledged, declined
            or cancelled.  It is acknowledged when both the operators' parts and the in-flight data are complete; no
            thread waits for the other.
Ownership:  an ended snapshot is part of no cycle of references: the collector of cycles runs rarely while tasks run,
            and the state of many checkpoints would wait for it.
Source:     Flink ``RegularOperatorChain.prepareSnapshotPreBarrier``, ``snapshotState``, ``notifyCheckpointComplete``.
            Flink ``AsyncCheckpointRunnable``, which blocks a thread of the pool until the in-flight data is complete;
            ``CheckpointResponder``.
Units:      durations in nanoseconds of a monotonic clock.
Absent:     file merging, changelogs; files: ``TaskCheckpointing`` of a TaskManager writes them.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.task.barrier_orders import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.task.snapshots import (
    NO_CHANNEL_DATA,
    AlignmentMetrics,
    ChannelStateSnapshot,
    OperatorSnapshotFuture,
    OperatorState,
    SubtaskState,
)
from flowlet.errors import FlowletError, StateRestoreError
from flowlet.messages.control_messages import CheckpointDurations
from netstack.availability import run_all
from netstack.late import dataclass
from netstack.loop.forks import end_stranded_child
from netstack.wire.events import CheckpointBarrier

if TYPE_CHECKING:
    from flowlet.checkpoint.task.task_checkpoints import TaskCheckpoints

_NOTHING = OperatorState()


@dataclass(eq=False, slots=True)
class OperatorSnapshots:
    """The operators of a task, head first, which were set up; every call is on the task thread.

    Args:
        is_closed: whether no snapshot can be taken any more.
        check_cancelled: raises TaskCancelled if the task was cancelled, so that no other function of the chain is
            called then.
    """

    _operators: Sequence[StreamOperator]
    is_closed: Callable[[], bool]
    _check_cancelled: Callable[[], None] = lambda: None

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Let every operator emit records that belong before the barrier."""
        for each in self._operators:
            self._check_cancelled()
            each.prepare_snapshot_pre_barrier(checkpoint_id)

    def snapshot_state(self, barrier: CheckpointBarrier) -> Mapping[str, OperatorSnapshotFuture]:
        """Return each operator's state, by its id in hex: a value, or a callable that makes it on another thread.

        Raises:
            FlowletError: a state cannot be written, for example a value of another type than declared; names the
                operator.
            Exception: whatever a user function raises.
        """
        snapshots = {}
        for each in reversed(self._operators):
            self._check_cancelled()
            snapshot = _begun(each, barrier)
            if snapshot is not None:
                snapshots[each.ctx.operator_id.hex()] = snapshot
        return snapshots

    def restore(self, states: Mapping[str, OperatorState]) -> None:
        """Restore state and timers of every operator, tail first (None: it has none); before the operators are opened.

        Raises:
            StateRestoreError: an operator's state has another version than the operator reads, or its back end refuses
                the keyed state (``KeyedStateBackend.restore``); the message names the operator.
        """
        for each in reversed(self._operators):
            ctx = each.ctx
            state = states.get(ctx.operator_id.hex(), _NOTHING)
            # First: an operator must not touch what it cannot read.
            state.check_version(each.name, each.state_version)
            # Without them windows that were open at the checkpoint would never fire.
            if ctx.timers is not None:
                ctx.timers.restore(state.timers)
            if ctx.keyed_state is not None and state.keyed is not None:
                try:
                    for part in state.keyed if isinstance(state.keyed, Sequence) else (state.keyed,):
                        ctx.keyed_state.restore(part)
                except StateRestoreError as error:
                    raise StateRestoreError(f"operator {each.name!r}: {error}") from error.__cause__
            if ctx.operator_state is not None and state.by_subtask is not None:
                ctx.operator_state.restore(state.by_subtask)
            # Last: the operator may look at its timers and keyed state in it.
            each.initialize_state(state.own)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell every operator that a checkpoint is complete."""
        for each in self._operators:
            self._check_cancelled()
            if each.ctx.keyed_state is not None:
                each.ctx.keyed_state.notify_checkpoint_complete(checkpoint_id)
            each.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell every operator that a checkpoint was aborted."""
        for each in self._operators:
            self._check_cancelled()
            each.notify_checkpoint_aborted(checkpoint_id)


@contextmanager
def _naming(operator: str) -> Iterator[None]:
    """Let an error that names a state name its operator, too: two operators may have states of one name."""
    try:
        yield
    except FlowletError as error:
        if type(error) is not FlowletError:
            raise  # an error of its own class tells more
        raise FlowletError(f"operator {operator!r}: {error}") from error.__cause__


def _begun(operator: StreamOperator, barrier: CheckpointBarrier) -> OperatorSnapshotFuture | None:
    """Run the synchronous part of one operator; None: it has no state."""
    ctx = operator.ctx
    name = operator.name
    version = operator.state_version
    checkpoint_id = barrier.checkpoint_id
    # It names no file that a checkpoint of the job may remove, and every back end reads it.
    is_full = barrier.options.type.is_savepoint
    operator.snapshot_functions(checkpoint_id, barrier.timestamp_ms)
    own = operator.snapshot_state(checkpoint_id)
    timers = {} if ctx.timers is None else ctx.timers.snapshot()
    # Taken now, before the next record: what records behind the barrier change must not be in the snapshot.
    with _naming(name):
        keyed = None if ctx.keyed_state is None else ctx.keyed_state.snapshot(checkpoint_id, is_full=is_full)
        by_subtask = None if ctx.operator_state is None else ctx.operator_state.snapshot()
    if own is None and not timers and keyed is None and by_subtask is None:
        return None

    def finish() -> OperatorState:
        with _naming(name):
            finished = own() if callable(own) else own
            of_keys = None if keyed is None else keyed()
            return OperatorState(finished, timers, version, of_keys, None if by_subtask is None else by_subtask())

    if ctx.keyed_state is None:
        return OperatorSnapshotFuture(finish)
    return OperatorSnapshotFuture(finish, partial(ctx.keyed_state.discard_snapshot, checkpoint_id))


_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    """Counts of a subtask's checkpoints so far."""

    num_acknowledged: int = 0
    num_declined: int = 0
    last_checkpoint_id: int = -1  # the last acknowledged one
    last: CheckpointDurations = CheckpointDurations()  # of the last acknowledged one


class CheckpointResponder(Protocol):
    """The way to the coordinator, for one subtask; counts an acknowledgement when it is sure, which may be later than
    the call.

    Threading: any thread; must not block.
    One implementer: ``TaskCheckpointing`` stands on a floor above.
    """

    @property
    def statistics(self) -> CheckpointStatistics:
        """Return the counts so far."""

    def acknowledge_checkpoint(self, checkpoint_id: int, durations: CheckpointDurations, state: SubtaskState) -> None:
        """Report that the subtask's part of the checkpoint is complete; the caller does not use ``state`` any more."""

    def decline_checkpoint(self, checkpoint_id: int, error: CheckpointError) -> None:
        """Report that the subtask could not take its part of the checkpoint."""


@dataclass(eq=False, slots=True)
class AsyncSnapshot:
    """One checkpoint of one subtask.

    Args:
        owner: the checkpoints of the task, which are told of its end once, on the thread that ends it.  If the task
            does not run any more, a failure is not declined.
        parts: by operator id.
        channel_state: the in-flight data; None if the checkpoint has none.
    """

    owner: "TaskCheckpoints"
    barrier: CheckpointBarrier
    parts: Mapping[str, OperatorSnapshotFuture]
    channel_state: "Future[ChannelStateSnapshot] | None"
    alignment: AlignmentMetrics
    sync_duration_ns: int
    is_finished: bool
    _started_ns: int = field(init=False)
    _lock: threading.Lock = field(init=False)
    # Guarded by _lock.
    _is_over: bool = field(init=False, default=False)  # acknowledged, declined or discarded
    _states: dict[str, OperatorState] | None = field(init=False, default=None)  # once the operators' parts are complete
    _is_working: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Note the time of the start."""
        self._started_ns = self.owner.clock_ns()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<AsyncSnapshot of checkpoint {self.barrier.checkpoint_id}{', over' if self._is_over else ''}>"

    def start(self, execute: Callable[[Callable[[], None]], object]) -> None:
        """Run the operators' parts with ``execute``, and wait for the in-flight data without blocking.

        Where no thread can be started for them, the checkpoint is declined, and the task goes on.
        """
        future = self.channel_state  # the pool may end the snapshot meanwhile, which lets go of it
        try:
            execute(self._run)
        except FlowletError as error:
            self._decline(CheckpointFailureReason.ASYNCHRONOUS_PART_FAILED, error)
            return
        if future is not None:
            future.add_done_callback(self._on_channel_state)

    def cancel(self) -> bool:
        """Cancel the snapshot and discard its parts, on the thread that is running them if there is one; False if it
        had ended.
        """
        if not self._end():
            return False
        # The parts may hold files or views of a database: without this they would stay until the task ends.
        self._discard_unless_working()
        return True

    def _run(self) -> None:
        with self._lock:
            if self._is_over:
                return
            # In the lock round of the look: a cancellation from here on leaves the parts to this thread.
            self._is_working = True
        try:
            states = {operator: part.finish() for operator, part in self.parts.items()}
        except BaseException as error:  # noqa: BLE001 - a user's code, such as sys.exit(); it fails the checkpoint, not the pool
            end_stranded_child()
            self._stop_working(None)
            self._decline(CheckpointFailureReason.ASYNCHRONOUS_PART_FAILED, error)
            return
        if self._stop_working(states):
            self._acknowledge_if_complete()
        else:
            self._discard_unless_working()

    def _stop_working(self, states: dict[str, OperatorState] | None) -> bool:
        with self._lock:
            self._is_working = False
            self._states = states
            return not self._is_over

    def _on_channel_state(self, future: "Future[ChannelStateSnapshot]") -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            # Whatever the operators' parts do: without its data in flight the checkpoint would lose records.
            self._decline(CheckpointFailureReason.CHANNEL_STATE_FAILED, error)
        else:
            self._acknowledge_if_complete()

    def _acknowledge_if_complete(self) -> None:
        future = self.channel_state
        if future is not None and not future.done():
            return
        if future is not None and (future.cancelled() or future.exception() is not None):
            return  # _on_channel_state declines
        channels = NO_CHANNEL_DATA if future is None else future.result()  # no wait: it is done
        with self._lock:
            # Before ``_end``, which lets go of them.
            states = self._states
        location = (self.barrier.options.location or b"").decode(errors="surrogateescape")  # of a savepoint
        if states is None or not self._end():
            return  # not complete, or ended already; then the future may have been taken from under this call
        self.parts = {}
        state = SubtaskState(states, channels, self.is_finished, location)
        self.owner.responder.acknowledge_checkpoint(self.barrier.checkpoint_id, self._durations(channels), state)

    def _durations(self, channels: ChannelStateSnapshot) -> CheckpointDurations:
        return CheckpointDurations(
            start_delay_ms=self.alignment.start_delay_ms,
            alignment_ms=self.alignment.duration_ns // _NS_PER_MS,
            sync_ms=self.sync_duration_ns // _NS_PER_MS,
            async_ms=(self.owner.clock_ns() - self._started_ns) // _NS_PER_MS,
            bytes_processed_during_alignment=self.alignment.bytes_processed,
            bytes_persisted_during_alignment=channels.num_bytes,
            is_unaligned=self.barrier.options.is_unaligned,
        )

    def _decline(self, reason: CheckpointFailureReason, cause: BaseException | None) -> None:
        is_first = self._end()
        # Also if another thread ended it before: the parts may not be discarded yet.
        self._discard_unless_working()
        if not is_first or not self.owner.is_running():
            return
        checkpoint_id = self.barrier.checkpoint_id
        if isinstance(cause, CheckpointError):
            error = cause
        else:
            details = "" if cause is None else f"{type(cause).__name__}: {cause}"
            error = CheckpointError(checkpoint_id, reason, details)
            error.__cause__ = cause
        self.owner.responder.decline_checkpoint(checkpoint_id, error)

    def _end(self) -> bool:
        with self._lock:
            # One of the three threads ends it: the pool's, that of the channel state, or the task's.
            if self._is_over:
                return False
            self._is_over = True
            self._states = None
        self.channel_state = None  # it keeps the callback, and so this object, even when it is done
        # Outside the lock: the owner takes its own.
        self.owner.snapshot_ended(self)
        return True

    def _discard_unless_working(self) -> None:
        with self._lock:
            if self._is_working:
                return  # the working thread discards when it sees the state
            # Taken under the lock: each part is discarded once, whichever threads come.
            parts, self.parts = self.parts, {}
        run_all([part.discard for part in parts.values()])
