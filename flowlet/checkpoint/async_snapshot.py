"""The asynchronous part of one subtask's snapshot, from the end of the synchronous part to the acknowledgement.

Side:       shared.  Made and cancelled on the task thread; works on a thread of the snapshot pool; data in flight arrives on any thread.
Invariants: exactly one of acknowledged, declined and cancelled; it is acknowledged when the operators' parts and the data in flight are
            complete, whichever is last; no thread waits for the other part.
Lock order: ``_lock`` is a leaf: parts are run and discarded, and the responder is called, outside it.
Source:     Flink ``AsyncCheckpointRunnable``, which blocks a thread of the pool until the data in flight is there.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import Enum, auto

from flowlet.checkpoint.checkpoint_error import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.responder import CheckpointResponder
from flowlet.checkpoint.snapshots import (
    NO_CHANNEL_DATA,
    AlignmentMetrics,
    ChannelStateSnapshot,
    CheckpointMetrics,
    OperatorSnapshot,
    SubtaskState,
)
from netstack.wakeups import run_all


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
        channel_state: the data in flight; None if the checkpoint has none.
        is_running: whether a failure is still worth a decline.
        on_end: called once, on the thread that ends it.
    """

    def __init__(
        self,
        checkpoint_id: int,
        parts: Mapping[str, OperatorSnapshot],
        channel_state: "Future[ChannelStateSnapshot] | None",
        responder: CheckpointResponder,
        *,
        alignment: AlignmentMetrics,
        sync_duration_ns: int = 0,
        is_unaligned: bool = False,
        is_finished: bool = False,
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
        """Have the operators' parts carried out by ``execute``, and wait for the data in flight."""
        execute(self._run)
        if self._channel_state is not None:
            self._channel_state.add_done_callback(self._on_channel_state)

    def cancel(self) -> bool:
        """Give it up; False if it had ended.  The parts are discarded, by the thread that works on them if there is one."""
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
        except Exception as error:  # noqa: BLE001 - foreign code; it is the checkpoint's failure, not the pool's
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
            return  # declined by its own callback
        channels = NO_CHANNEL_DATA if future is None else future.result()
        with self._lock:
            states = self._states
        if states is None or not self._end(_State.COMPLETED):
            return
        state = SubtaskState(states, channels, self._is_finished)
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
        self._on_end(self)
        return True

    def _discard_unless_working(self) -> None:
        with self._lock:
            if self._is_working:
                return  # whoever works finds the end, and discards
            parts, self._parts = self._parts, {}
        run_all([part.discard for part in parts.values()])
