"""``AsyncSnapshot``: the asynchronous part of one subtask's checkpoint, up to its acknowledgement.

Side:       shared.  Created and cancelled on the task thread; runs on a thread of the snapshot pool; in-flight data
            completes on any thread.
Invariants: ends exactly once, as acknowledged, declined or cancelled.  It is acknowledged when both the operators'
            parts and the in-flight data are complete; no thread waits for the other.
Ownership:  an ended snapshot is part of no cycle of references: the collector of cycles runs rarely while tasks run,
            and the state of many checkpoints would wait for it.
Lock order: ``_lock`` is a leaf: operators' parts and the responder are called without it.
Source:     Flink ``AsyncCheckpointRunnable``, which blocks a thread of the pool until the in-flight data is complete.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import Enum, auto

from flowlet.checkpoint.barrier_orders import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.responder import CheckpointResponder
from flowlet.checkpoint.snapshots import (
    NO_CHANNEL_DATA,
    AlignmentMetrics,
    ChannelStateSnapshot,
    CheckpointMetrics,
    OperatorSnapshotFuture,
    SubtaskState,
)
from netstack.availability import run_all
from netstack.loop.forks import end_stranded_child


class _State(Enum):
    RUNNING = auto()
    COMPLETED = auto()  # acknowledged or declined
    DISCARDED = auto()


def _ignore(_: object) -> None:
    return


class AsyncSnapshot:
    """One checkpoint of one subtask.

    Args:
        parts: by operator id.
        channel_state: the in-flight data; None if the checkpoint has none.
        location: of a savepoint.
        is_running: whether the task runs; if not, a failure is not declined.
        on_end: called once, on the thread that ends the snapshot.
    """

    def __init__(
        self,
        checkpoint_id: int,
        parts: Mapping[str, OperatorSnapshotFuture],
        channel_state: "Future[ChannelStateSnapshot] | None",
        responder: CheckpointResponder,
        *,
        alignment: AlignmentMetrics,
        sync_duration_ns: int = 0,
        is_unaligned: bool = False,
        is_finished: bool = False,
        location: str = "",
        is_running: Callable[[], bool] = lambda: True,
        on_end: "Callable[[AsyncSnapshot], None]" = _ignore,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self._parts = parts
        self._channel_state = channel_state
        self._responder = responder
        self._alignment = alignment
        self._sync_duration_ns = sync_duration_ns
        self._is_unaligned = is_unaligned
        self._is_finished = is_finished
        self._location = location
        self._is_running = is_running
        self._on_end = on_end
        self._clock_ns = clock_ns
        self._started_ns = clock_ns()
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._state = _State.RUNNING
        self._states: dict[str, object] | None = None  # once the operators' parts are complete
        self._is_working = False

    def __repr__(self) -> str:
        return f"<AsyncSnapshot of checkpoint {self.checkpoint_id} {self._state.name}>"

    def start(self, execute: Callable[[Callable[[], None]], object]) -> None:
        """Run the operators' parts with ``execute``, and wait for the in-flight data without blocking."""
        future = self._channel_state  # the pool may end the snapshot meanwhile, which lets go of it
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
            states = {operator: part.finish() for operator, part in self._parts.items()}
        except BaseException as error:  # noqa: BLE001 - a user's code, such as sys.exit(); it fails the checkpoint, not the pool
            end_stranded_child()
            self._stop_working(None)
            self._decline(CheckpointFailureReason.ASYNCHRONOUS_PART_FAILED, error)
            return
        if self._stop_working(states):
            self._acknowledge_if_complete()
        else:
            self._discard_unless_working()

    def _stop_working(self, states: dict[str, object] | None) -> bool:
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
        future = self._channel_state
        if future is not None and not future.done():
            return
        if future is not None and (future.cancelled() or future.exception() is not None):
            return  # _on_channel_state declines
        channels = NO_CHANNEL_DATA if future is None else future.result()  # no wait: it is done
        with self._lock:
            states = self._states
        if states is None or not self._end(_State.COMPLETED):
            return  # not complete, or ended already; then the future may have been taken from under this call
        self._parts = {}
        state = SubtaskState(states, channels, self._is_finished, self._location)
        self._responder.acknowledge_checkpoint(self.checkpoint_id, self._metrics(channels), state)

    def _metrics(self, channels: ChannelStateSnapshot) -> CheckpointMetrics:
        return CheckpointMetrics(
            start_delay_ns=self._alignment.start_delay_ns,
            alignment_duration_ns=self._alignment.duration_ns,
            bytes_processed_during_alignment=self._alignment.bytes_processed,
            bytes_persisted_during_alignment=channels.num_bytes,
            sync_duration_ns=self._sync_duration_ns,
            async_duration_ns=self._clock_ns() - self._started_ns,
            is_unaligned=self._is_unaligned,
        )

    def _decline(self, reason: CheckpointFailureReason, cause: BaseException | None) -> None:
        if not self._end(_State.COMPLETED):
            self._discard_unless_working()
            return
        self._discard_unless_working()
        if not self._is_running():
            return
        if isinstance(cause, CheckpointError):
            error = cause
        else:
            details = "" if cause is None else f"{type(cause).__name__}: {cause}"
            error = CheckpointError(self.checkpoint_id, reason, details)
            error.__cause__ = cause
        self._responder.decline_checkpoint(self.checkpoint_id, error)

    def _end(self, state: _State) -> bool:
        with self._lock:
            if self._state is not _State.RUNNING:
                return False
            self._state = state
            self._states = None
        self._channel_state = None  # it keeps the callback, and so this object, even when it is done
        self._on_end(self)
        return True

    def _discard_unless_working(self) -> None:
        with self._lock:
            if self._is_working:
                return  # the working thread discards when it sees the state
            parts, self._parts = self._parts, {}
        run_all([part.discard for part in parts.values()])
