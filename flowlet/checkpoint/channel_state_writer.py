"""Keeps the in-flight data of unaligned checkpoints, in memory.

Side:       shared.  The task thread starts, finishes and aborts; channels and subpartitions add data from any thread.
Invariants: every buffer is recycled before the call returns.  Data for a checkpoint that is not open, or whose part is
            finished, is dropped. Each result is completed once.  Starting a checkpoint fails the older open ones.
Lock order: ``_lock`` is a leaf: buffers are recycled and results completed without it.
Source:     Flink ``ChannelStateWriterImpl``, ``ChannelStateWriteRequestDispatcherImpl``.
Absent:     files, and sharing them among subtasks; data is copied on the thread that adds it.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, Protocol

from flowlet.checkpoint.barrier_orders import Channel, CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.snapshots import ChannelStateSnapshot
from netstack.availability import run_all
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.partition.channel_state import ChannelStateWriter, InFlightData, InputChannelInfo, ResultSubpartitionInfo

# Not measured; checkpoints aborted before they start, of which there are as many as run concurrently.
_MAX_ABORTED: Final = 32


class CheckpointChannelState(ChannelStateWriter, Protocol):
    """A writer of in-flight data, for a subtask's coordinator."""

    def start(self, checkpoint_id: int) -> None:
        """Start to keep data of the checkpoint; older open ones fail."""

    def finish_input(self, checkpoint_id: int) -> None:
        """No more input data will come."""

    def finish_output(self, checkpoint_id: int) -> None:
        """No more output data will come, except what was announced as a future."""

    def abort(self, checkpoint_id: int, error: CheckpointError) -> None:
        """Drop the data; the result fails with ``error``."""

    def take_result(self, checkpoint_id: int) -> "Future[ChannelStateSnapshot]":
        """The future of all the data; can be taken once."""

    def close(self) -> None:
        """Fail all open checkpoints."""


class _Open:
    """One checkpoint's data so far.  Guarded by the writer's lock."""

    __slots__ = ("has_input", "has_output", "inputs", "num_pending", "outputs", "result")

    def __init__(self) -> None:
        self.result: Future[ChannelStateSnapshot] = Future()
        self.inputs: dict[Channel, list[bytes]] = {}
        self.outputs: dict[Channel, list[bytes]] = {}
        self.has_input = True
        self.has_output = True
        self.num_pending = 0  # futures of output data that are not done

    @property
    def is_complete(self) -> bool:
        return not (self.has_input or self.has_output or self.num_pending)

    def snapshot(self) -> ChannelStateSnapshot:
        inputs = {channel: tuple(pieces) for channel, pieces in self.inputs.items()}
        return ChannelStateSnapshot(inputs, {channel: tuple(pieces) for channel, pieces in self.outputs.items()})


class InMemoryChannelStateWriter:
    """The writer of one task; implements ``CheckpointChannelState``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._open: dict[int, _Open] = {}
        self._results: dict[int, Future[ChannelStateSnapshot]] = {}  # not taken yet
        self._newest_started = -1
        self._aborted: deque[int] = deque(maxlen=_MAX_ABORTED)  # these cannot be started any more
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<InMemoryChannelStateWriter: {sorted(self._open)} open>"

    @property
    def open_checkpoints(self) -> list[int]:
        """The checkpoints whose data is not complete."""
        with self._lock:
            return sorted(self._open)

    # ---------------------------------------------------------------- task thread

    def start(self, checkpoint_id: int) -> None:
        """Start to keep data of ``checkpoint_id``; older open checkpoints fail as subsumed.

        Raises:
            CheckpointError: it was started or aborted before, or the writer is closed.
        """
        with self._lock:
            if checkpoint_id <= self._newest_started or checkpoint_id in self._aborted or self._is_closed:
                details = "its channel state was started or aborted before"
                raise CheckpointError(checkpoint_id, CheckpointFailureReason.CHANNEL_STATE_FAILED, details)
            self._newest_started = checkpoint_id
            older = list(self._open)
            calls = [call for each in older for call in self._abort_locked(each, _subsumed(each, checkpoint_id))]
            found = self._open[checkpoint_id] = _Open()
            self._results[checkpoint_id] = found.result
        run_all(calls)

    def finish_input(self, checkpoint_id: int) -> None:
        """No more input data of ``checkpoint_id`` will come; ignored if it is not open."""
        with self._lock:
            found = self._open.get(checkpoint_id)
            if found is not None:
                found.has_input = False
            calls = self._complete_locked(checkpoint_id)
        run_all(calls)

    def finish_output(self, checkpoint_id: int) -> None:
        """No more output data of ``checkpoint_id`` will come, except what was announced as a future."""
        with self._lock:
            found = self._open.get(checkpoint_id)
            if found is not None:
                found.has_output = False
            calls = self._complete_locked(checkpoint_id)
        run_all(calls)

    def take_result(self, checkpoint_id: int) -> Future[ChannelStateSnapshot]:
        """The future of the data of ``checkpoint_id``; can be taken once.

        Raises:
            CheckpointError: the checkpoint was not started, or the result was taken.
        """
        with self._lock:
            result = self._results.pop(checkpoint_id, None)
        if result is None:
            details = "its channel state was not started, or its result was taken before"
            raise CheckpointError(checkpoint_id, CheckpointFailureReason.CHANNEL_STATE_FAILED, details)
        return result

    def abort(self, checkpoint_id: int, error: CheckpointError) -> None:
        """Drop the data of ``checkpoint_id``, fail its result with ``error``, and prevent a later start.

        Any thread.
        """
        with self._lock:
            self._aborted.append(checkpoint_id)
            calls = self._abort_locked(checkpoint_id, error)
            self._results.pop(checkpoint_id, None)
        run_all(calls)

    def close(self) -> None:
        """Fail all open checkpoints; any thread, idempotent."""
        with self._lock:
            self._is_closed = True
            closing = CheckpointFailureReason.TASK_CLOSING
            calls = [
                call for each in list(self._open) for call in self._abort_locked(each, CheckpointError(each, closing))
            ]
            self._results.clear()
        run_all(calls)

    # ---------------------------------------------------------------- any thread

    def add_input_data(
        self,
        checkpoint_id: int,
        channel: InputChannelInfo,
        start_sequence_number: int,
        buffers: Sequence[NetworkBuffer],
    ) -> None:
        """Copy and recycle the buffers of an input channel."""
        pieces = _copies(buffers)
        with self._lock:
            found = self._open.get(checkpoint_id)
            if found is not None and found.has_input:
                found.inputs.setdefault(channel, []).extend(pieces)

    def add_output_data(
        self,
        checkpoint_id: int,
        subpartition: ResultSubpartitionInfo,
        start_sequence_number: int,
        buffers: Sequence[NetworkBuffer],
    ) -> None:
        """Copy and recycle the buffers of a subpartition."""
        pieces = _copies(buffers)
        with self._lock:
            found = self._open.get(checkpoint_id)
            if found is not None and found.has_output:
                found.outputs.setdefault(subpartition, []).extend(pieces)

    def add_output_data_future(
        self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, start_sequence_number: int, data: InFlightData
    ) -> None:
        """Wait for ``data`` without blocking; the checkpoint is complete only with it."""
        with self._lock:
            found = self._open.get(checkpoint_id)
            if found is not None and found.has_output:
                found.num_pending += 1
            else:
                found = None
        data.on_done(partial(self._on_output_data, checkpoint_id, subpartition, found))

    def _on_output_data(
        self, checkpoint_id: int, subpartition: Channel, found: _Open | None, data: InFlightData
    ) -> None:
        pieces, cause = _copies(data.take()), data.error
        with self._lock:
            if found is None or self._open.get(checkpoint_id) is not found:
                return
            found.num_pending -= 1
            if pieces:
                found.outputs.setdefault(subpartition, []).extend(pieces)
            if cause is None:
                calls = self._complete_locked(checkpoint_id)
            else:
                failed = CheckpointError(checkpoint_id, CheckpointFailureReason.CHANNEL_STATE_FAILED, str(cause))
                failed.__cause__ = cause
                calls = self._abort_locked(checkpoint_id, failed)
        run_all(calls)

    # ---------------------------------------------------------------- results

    def _complete_locked(self, checkpoint_id: int) -> list[Callable[[], None]]:
        found = self._open.get(checkpoint_id)
        if found is None or not found.is_complete:
            return []
        del self._open[checkpoint_id]
        return [partial(found.result.set_result, found.snapshot())]

    def _abort_locked(self, checkpoint_id: int, error: CheckpointError) -> list[Callable[[], None]]:
        found = self._open.pop(checkpoint_id, None)
        return [] if found is None else [partial(found.result.set_exception, error)]


def _copies(buffers: Sequence[NetworkBuffer]) -> list[bytes]:
    """Copy the buffers, and recycle all of them even if that fails."""
    try:
        return [bytes(buffer.view) for buffer in buffers]
    finally:
        recycle_all(buffers)


def _subsumed(checkpoint_id: int, newer: int) -> CheckpointError:
    return CheckpointError(checkpoint_id, CheckpointFailureReason.SUBSUMED, f"checkpoint {newer} was started")
