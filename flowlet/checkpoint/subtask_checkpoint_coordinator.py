"""``SubtaskCheckpointCoordinator``: takes one subtask's checkpoints: barrier, synchronous part, asynchronous part,
acknowledgement.

``AsyncSnapshot``: the asynchronous part of one subtask's checkpoint, up to its acknowledgement.
``CheckpointResponder``: receives that, and counts.

Lock order: ``_lock`` is a leaf: operators' parts and the responder are called without it.

Side:       shared.
Invariants: ends exactly once, as acknowledged, declined or cancelled.  It is acknowledged when both the operators'
            parts and the in-flight data are complete; no thread waits for the other.  ids only rise.  A checkpoint that
            was aborted before its barrier arrived is not taken; a cancel marker replaces its barrier.  Every checkpoint
            that was begun ends as acknowledged, declined or aborted, once.
Ownership:  an ended snapshot is part of no cycle of references: the collector of cycles runs rarely while tasks run,
            and the state of many checkpoints would wait for it.
Source:     Flink ``AsyncCheckpointRunnable``, which blocks a thread of the pool until the in-flight data is complete.
            Flink ``SubtaskCheckpointCoordinatorImpl``, ``CheckpointResponder``.
Units:      timestamps in milliseconds of the wall clock, durations in nanoseconds of a monotonic one.
Absent:     file merging, changelogs; files: ``TaskCheckpointing`` of a TaskManager writes them.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from flowlet.checkpoint.barrier_orders import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.snapshots import (
    NO_CHANNEL_DATA,
    AlignmentMetrics,
    ChannelStateSnapshot,
    OperatorSnapshotFuture,
    OperatorState,
    SubtaskState,
)
from flowlet.messages.control_messages import CheckpointDurations
from netstack.availability import run_all
from netstack.late import dataclass
from netstack.loop.forks import end_stranded_child
from netstack.loop.loop_timers import Cancellable, Timers
from netstack.wire.events import Alignment, CancelCheckpointMarker, CheckpointBarrier, CheckpointOptions, Event

if TYPE_CHECKING:
    from flowlet.checkpoint.task_checkpoints import OperatorSnapshots


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    """Counts of a subtask's checkpoints so far."""

    num_acknowledged: int = 0
    num_declined: int = 0
    last_checkpoint_id: int = -1  # the last acknowledged one
    last: CheckpointDurations = CheckpointDurations()  # of the last acknowledged one


class CheckpointResponder(Protocol):
    """The coordinator, for one subtask; counts an acknowledgement when it is sure, which may be later than the call.

    Threading: any thread; must not block.
    One implementer: ``TaskCheckpointing`` stands on a floor above.
    """

    @property
    def statistics(self) -> CheckpointStatistics:
        """The counts so far."""

    def acknowledge_checkpoint(self, checkpoint_id: int, durations: CheckpointDurations, state: SubtaskState) -> None:
        """The subtask's part of the checkpoint is complete; the caller does not use ``state`` any more."""

    def decline_checkpoint(self, checkpoint_id: int, error: CheckpointError) -> None:
        """The subtask could not take its part of the checkpoint."""


class _State(Enum):
    RUNNING = auto()
    COMPLETED = auto()  # acknowledged or declined
    DISCARDED = auto()


@dataclass(eq=False, slots=True)
class AsyncSnapshot:
    """One checkpoint of one subtask.

    Args:
        parts: by operator id.
        channel_state: the in-flight data; None if the checkpoint has none.
        location: of a savepoint.
        is_running: whether the task runs; if not, a failure is not declined.
        on_end: called once, on the thread that ends the snapshot.
    """

    checkpoint_id: int
    parts: Mapping[str, OperatorSnapshotFuture]
    channel_state: "Future[ChannelStateSnapshot] | None"
    responder: CheckpointResponder
    alignment: AlignmentMetrics
    sync_duration_ns: int
    is_unaligned: bool
    is_finished: bool
    location: str
    is_running: Callable[[], bool]
    on_end: "Callable[[AsyncSnapshot], None]"
    clock_ns: Callable[[], int]
    _started_ns: int = field(init=False)
    _lock: threading.Lock = field(init=False)
    # Guarded by _lock.
    _state: _State = field(init=False, default=_State.RUNNING)
    _states: dict[str, OperatorState] | None = field(init=False, default=None)  # once the operators' parts are complete
    _is_working: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Note when it starts."""
        self._started_ns = self.clock_ns()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<AsyncSnapshot of checkpoint {self.checkpoint_id} {self._state.name}>"

    def start(self, execute: Callable[[Callable[[], None]], object]) -> None:
        """Run the operators' parts with ``execute``, and wait for the in-flight data without blocking."""
        future = self.channel_state  # the pool may end the snapshot meanwhile, which lets go of it
        execute(self._run)
        if future is not None:
            future.add_done_callback(self._on_channel_state)

    def cancel(self) -> bool:
        """Cancel the snapshot and discard its parts, on the thread that is running them if there is one; False if it
        had ended.
        """
        if not self._end(_State.DISCARDED):
            return False
        self._discard_unless_working()
        return True

    def _run(self) -> None:
        with self._lock:
            if self._state is not _State.RUNNING:
                return
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
            return self._state is _State.RUNNING

    def _on_channel_state(self, future: "Future[ChannelStateSnapshot]") -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
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
            states = self._states
        if states is None or not self._end(_State.COMPLETED):
            return  # not complete, or ended already; then the future may have been taken from under this call
        self.parts = {}
        state = SubtaskState(states, channels, self.is_finished, self.location)
        self.responder.acknowledge_checkpoint(self.checkpoint_id, self._durations(channels), state)

    def _durations(self, channels: ChannelStateSnapshot) -> CheckpointDurations:
        return CheckpointDurations(
            start_delay_ms=self.alignment.start_delay_ms,
            alignment_ms=self.alignment.duration_ns // _NS_PER_MS,
            sync_ms=self.sync_duration_ns // _NS_PER_MS,
            async_ms=(self.clock_ns() - self._started_ns) // _NS_PER_MS,
            bytes_processed_during_alignment=self.alignment.bytes_processed,
            bytes_persisted_during_alignment=channels.num_bytes,
            is_unaligned=self.is_unaligned,
        )

    def _decline(self, reason: CheckpointFailureReason, cause: BaseException | None) -> None:
        if not self._end(_State.COMPLETED):
            self._discard_unless_working()
            return
        self._discard_unless_working()
        if not self.is_running():
            return
        if isinstance(cause, CheckpointError):
            error = cause
        else:
            details = "" if cause is None else f"{type(cause).__name__}: {cause}"
            error = CheckpointError(self.checkpoint_id, reason, details)
            error.__cause__ = cause
        self.responder.decline_checkpoint(self.checkpoint_id, error)

    def _end(self, state: _State) -> bool:
        with self._lock:
            if self._state is not _State.RUNNING:
                return False
            self._state = state
            self._states = None
        self.channel_state = None  # it keeps the callback, and so this object, even when it is done
        self.on_end(self)
        return True

    def _discard_unless_working(self) -> None:
        with self._lock:
            if self._is_working:
                return  # the working thread discards when it sees the state
            parts, self.parts = self.parts, {}
        run_all([part.discard for part in parts.values()])


_NS_PER_MS = 1_000_000


class BarrierOutputs(Protocol):
    """The outputs of a task: ``TaskOutputs``.

    One implementer: ``TaskOutputs`` imports this module, which therefore cannot import it.
    """

    def broadcast_event(self, event: Event, *, is_priority: bool = False) -> None:
        """Send ``event`` to all consumers, after all records emitted so far."""

    def aligned_barrier_timeout(self, checkpoint_id: int) -> None:
        """Let queued barriers of the checkpoint overtake the data before them."""

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Stop keeping data in front of the barriers of the checkpoint."""


@dataclass(eq=False, slots=True)
class SubtaskCheckpointCoordinator:
    """Takes the snapshots of one task.

    Threading: the task thread; asynchronous parts end on any thread.
    Life cycle: ``close`` cancels pending snapshots.

    Args:
        execute_async: runs a call on the snapshot pool.
        timers: run their calls on the task thread.
        prepare_inputs: adds the incomplete records in the deserializers to the channel state.
        max_concurrent: how many checkpoints the JobManager runs at a time, and so how many aborted ids are remembered.
    """

    name: str
    chain: "OperatorSnapshots"
    outputs: BarrierOutputs
    channel_state: InMemoryChannelStateWriter
    responder: CheckpointResponder
    execute_async: Callable[[Callable[[], None]], object]
    timers: Timers
    prepare_inputs: Callable[[InMemoryChannelStateWriter, int], None] = lambda _writer, _checkpoint_id: None
    is_running: Callable[[], bool] = lambda: True
    max_concurrent: int = 1
    clock_ns: Callable[[], int] = time.monotonic_ns
    wall_ms: Callable[[], int] = lambda: time.time_ns() // _NS_PER_MS
    _last_id: int = field(init=False, default=-1)
    _last_completed: int = field(init=False, default=-1)
    # Aborted before their barriers arrived; at most max_concurrent.
    _aborted: set[int] = field(init=False, default_factory=set)
    _newest_aborted: int = field(init=False, default=-1)
    _alignment_timer: tuple[int, Cancellable] | None = field(init=False, default=None)  # of which checkpoint
    _is_closed: bool = field(init=False, default=False)
    _lock: threading.Lock = field(init=False)
    _snapshots: dict[int, AsyncSnapshot] = field(init=False, default_factory=dict)  # Guarded by _lock.

    def __post_init__(self) -> None:
        """Make the lock."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return (
            f"<SubtaskCheckpointCoordinator of {self.name}: last {self._last_id}, {sorted(self._snapshots)} under way>"
        )

    # ---------------------------------------------------------------- inputs

    def init_inputs(self, checkpoint_id: int, options: CheckpointOptions) -> None:
        """Open the channel state of a checkpoint, if it needs one and was not aborted.

        Raises CheckpointError: it was opened before.
        """
        if not options.needs_channel_state or checkpoint_id <= self._last_id or self.is_aborted(checkpoint_id):
            return
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
        """The inputs' part of the channel state is complete."""
        self.channel_state.finish_input(checkpoint_id)

    # ---------------------------------------------------------------- the snapshot

    def checkpoint_state(
        self, barrier: CheckpointBarrier, alignment: AlignmentMetrics, *, is_finished: bool = False
    ) -> None:
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
        self.outputs.broadcast_event(barrier, is_priority=barrier.options.is_unaligned)
        self._start_alignment_timer(barrier)
        if barrier.options.needs_channel_state:
            self.channel_state.finish_output(checkpoint_id)
        self._take_snapshot(barrier, alignment, is_finished=is_finished)

    def _take_snapshot(self, barrier: CheckpointBarrier, alignment: AlignmentMetrics, *, is_finished: bool) -> None:
        checkpoint_id = barrier.checkpoint_id
        options = barrier.options
        if self.chain.is_closed:
            error = CheckpointError(checkpoint_id, CheckpointFailureReason.TASK_CLOSING, self.name)
            self.channel_state.abort(checkpoint_id, error)
            self.responder.decline_checkpoint(checkpoint_id, error)
            return
        started_ns = self.clock_ns()
        try:
            channel_state = self.channel_state.take_result(checkpoint_id) if options.needs_channel_state else None
            parts = self.chain.snapshot_state(barrier)
        except Exception as error:
            details = f"{self.name}: {type(error).__name__}: {error}"
            failed = CheckpointError(checkpoint_id, CheckpointFailureReason.SYNCHRONOUS_PART_FAILED, details)
            self.channel_state.abort(checkpoint_id, failed)
            raise
        self._start(
            AsyncSnapshot(
                checkpoint_id,
                parts,
                channel_state,
                self.responder,
                alignment=alignment,
                sync_duration_ns=self.clock_ns() - started_ns,
                is_unaligned=options.is_unaligned,
                is_finished=is_finished,
                location="" if options.location is None else options.location.decode(),
                is_running=self.is_running,
                on_end=self._forget,
                clock_ns=self.clock_ns,
            )
        )

    def _start(self, snapshot: AsyncSnapshot) -> None:
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._snapshots[snapshot.checkpoint_id] = snapshot
        if is_closed:
            snapshot.cancel()
        else:
            snapshot.start(self.execute_async)

    def _forget(self, snapshot: AsyncSnapshot) -> None:
        """Called on any thread."""
        with self._lock:
            if self._snapshots.get(snapshot.checkpoint_id) is snapshot:
                del self._snapshots[snapshot.checkpoint_id]

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
        self._alignment_timer = (checkpoint_id, self.timers.call_later(delay_ms / 1000, fire))

    def _stop_alignment_timer(self, checkpoint_id: int | None = None) -> None:
        timer = self._alignment_timer
        if timer is not None and checkpoint_id in (None, timer[0]):
            self._alignment_timer = None
            timer[1].cancel()

    # ---------------------------------------------------------------- aborts and notifications

    def abort_checkpoint_on_barrier(self, checkpoint_id: int, error: CheckpointError) -> None:
        """An input aborted the checkpoint: decline it, and tell the downstream tasks."""
        self._last_id = max(self._last_id, checkpoint_id)
        self._aborted = {each for each in self._aborted if each > self._last_id}
        self._cancel_snapshot(checkpoint_id)  # first; otherwise it would miss its channel state and decline, too
        self.channel_state.abort(checkpoint_id, error)
        self._stop_alignment_timer(checkpoint_id)
        self.responder.decline_checkpoint(checkpoint_id, error)
        self.outputs.abort_checkpoint(checkpoint_id, error)
        self.outputs.broadcast_event(CancelCheckpointMarker(checkpoint_id))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> bool:
        """Every subtask has acknowledged; returns False if this, or a newer completion, was known."""
        if checkpoint_id <= self._last_completed:
            return False
        self._last_completed = checkpoint_id
        self._stop_alignment_timer(checkpoint_id)
        self.chain.notify_checkpoint_complete(checkpoint_id)
        return True

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The JobManager aborted the checkpoint: before, during or after it was taken here."""
        if not self._cancel_snapshot(checkpoint_id) and checkpoint_id > self._last_id:
            self._remember_aborted(checkpoint_id)
        error = self._aborted_by_notification(checkpoint_id)
        self.channel_state.abort(checkpoint_id, error)
        self._stop_alignment_timer(checkpoint_id)
        self.outputs.abort_checkpoint(checkpoint_id, error)
        self.chain.notify_checkpoint_aborted(checkpoint_id)

    def close(self) -> None:
        """Cancel pending snapshots; later ones are cancelled at once."""
        with self._lock:
            self._is_closed = True
            snapshots = list(self._snapshots.values())
        calls: list[Callable[[], object]] = [self._stop_alignment_timer, *(snapshot.cancel for snapshot in snapshots)]
        run_all([*calls, self.channel_state.close])

    def _cancel_snapshot(self, checkpoint_id: int) -> bool:
        with self._lock:
            snapshot = self._snapshots.get(checkpoint_id)
        return snapshot is not None and snapshot.cancel()

    def _remember_aborted(self, checkpoint_id: int) -> None:
        self._aborted.add(checkpoint_id)
        self._newest_aborted = max(self._newest_aborted, checkpoint_id)
        while len(self._aborted) > self.max_concurrent:
            self._aborted.remove(min(self._aborted))

    def _take_aborted(self, checkpoint_id: int) -> bool:
        """Whether it was aborted, and forget that.  Ids too old to be remembered count as aborted."""
        is_aborted = self.is_aborted(checkpoint_id)
        self._aborted.discard(checkpoint_id)
        return is_aborted

    def is_aborted(self, checkpoint_id: int) -> bool:
        """Whether the JobManager has aborted a checkpoint that was not taken yet."""
        return checkpoint_id in self._aborted or checkpoint_id + self.max_concurrent < self._newest_aborted

    @staticmethod
    def _aborted_by_notification(checkpoint_id: int) -> CheckpointError:
        return CheckpointError(checkpoint_id, CheckpointFailureReason.ABORTED_BY_NOTIFICATION)
