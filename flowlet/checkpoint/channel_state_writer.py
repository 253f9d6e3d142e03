"""Keeps, in memory, the data in flight that belongs to unaligned checkpoints.

Side:       shared.  The task thread opens, finishes and aborts; channels and subpartitions add from any thread.
Invariants: every buffer that comes in is recycled before the call returns; what comes for a checkpoint that is not open, or whose part is
            finished, is recycled and forgotten; a result is completed once; opening a checkpoint fails the older ones that are open.
Lock order: ``_lock`` is a leaf: buffers are recycled and results completed outside it.
Source:     Flink ``ChannelStateWriterImpl``, ``ChannelStateWriteRequestDispatcherImpl``.
Absent:     files, and their sharing among subtasks; copies are made on the thread that adds.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, Protocol

from flowlet.checkpoint.barrier_orders import Channel
from flowlet.checkpoint.checkpoint_error import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.snapshots import ChannelStateSnapshot
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.partition.channel_state import ChannelStateWriter, InputChannelInfo, ResultSubpartitionInfo
from netstack.partition.in_flight_data import InFlightData
from netstack.wakeups import run_all

_MAX_ABORTED: Final = 32  # not measured; aborts of checkpoints that are still to come, of which there are as many as run concurrently


class CheckpointChannelState(ChannelStateWriter, Protocol):
    """The seam between a subtask's coordinator and whatever keeps data in flight."""

    def start(self, checkpoint_id: int) -> None:
        """From now on data of that checkpoint is kept; older open ones fail."""

    def finish_input(self, checkpoint_id: int) -> None:
        """No more input data comes."""

    def finish_output(self, checkpoint_id: int) -> None:
        """No more output data comes, except what was announced as a future."""

    def abort(self, checkpoint_id: int, error: CheckpointError) -> None:
        """Forget the data; whoever waits for the result gets ``error``."""

    def take_result(self, checkpoint_id: int) -> "Future[ChannelStateSnapshot]":
        """What will hold all the data, once."""

    def close(self) -> None:
        """Fail everything that is open."""


class _Open:
    """One checkpoint's data so far; guarded by the writer's lock."""

    __slots__ = ("has_input", "has_output", "inputs", "num_pending", "outputs", "result")

    def __init__(self) -> None:
        self.result: Future[ChannelStateSnapshot] = Future()
        self.inputs: dict[Channel, list[bytes]] = {}
        self.outputs: dict[Channel, list[bytes]] = {}
        self.has_input = True
        self.has_output = True
        self.num_pending = 0  # futures of output data

    @property
    def is_complete(self) -> bool:
        return not (self.has_input or self.has_output or self.num_pending)

    def snapshot(self) -> ChannelStateSnapshot:
        inputs = {channel: tuple(pieces) for channel, pieces in self.inputs.items()}
        return ChannelStateSnapshot(inputs, {channel: tuple(pieces) for channel, pieces in self.outputs.items()})


class InMemoryChannelStateWriter:
    """One task's writer; it satisfies ``CheckpointChannelState``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._open: dict[int, _Open] = {}
        self._results: dict[int, Future[ChannelStateSnapshot]] = {}  # not taken yet
        self._newest_started = -1
        self._aborted: deque[int] = deque(maxlen=_MAX_ABORTED)  # cannot be opened any more
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
        """From now on data of ``checkpoint_id`` is kept; older open checkpoints fail as subsumed.

        Raises:
            CheckpointError: it was opened before, aborted, or the writer was closed.
        """
        with self._lock:
            if checkpoint_id <= self._newest_started or checkpoint_id in self._aborted or self._is_closed:
                details = "its channel state was opened or given up before"
                raise CheckpointError(checkpoint_id, CheckpointFailureReason.CHANNEL_STATE_FAILED, details)
            self._newest_started = checkpoint_id
            older = list(self._open)
            calls = [call for each in older for call in self._abort_locked(each, _subsumed(each, checkpoint_id))]
            found = self._open[checkpoint_id] = _Open()
            self._results[checkpoint_id] = found.result
        run_all(calls)

    def finish_input(self, checkpoint_id: int) -> None:
        """No more input data of ``checkpoint_id`` comes; nothing happens if it is not open."""
        with self._lock:
            found = self._open.get(checkpoint_id)
            if found is not None:
                found.has_input = False
            calls = self._complete_locked(checkpoint_id)
        run_all(calls)

    def finish_output(self, checkpoint_id: int) -> None:
        """No more output data of ``checkpoint_id`` comes, except what was announced as a future."""
        with self._lock:
            found = self._open.get(checkpoint_id)
            if found is not None:
                found.has_output = False
            calls = self._complete_locked(checkpoint_id)
        run_all(calls)

    def take_result(self, checkpoint_id: int) -> Future[ChannelStateSnapshot]:
        """What will hold the data of ``checkpoint_id``, once.

        Raises:
            CheckpointError: it was not opened, or the result was taken.
        """
        with self._lock:
            result = self._results.pop(checkpoint_id, None)
        if result is None:
            details = "its channel state was not opened, or is taken"
            raise CheckpointError(checkpoint_id, CheckpointFailureReason.CHANNEL_STATE_FAILED, details)
        return result

    def abort(self, checkpoint_id: int, error: CheckpointError) -> None:
        """Forget the data of ``checkpoint_id``; whoever waits for it gets ``error``.  It cannot be opened any more.  Any thread."""
        with self._lock:
            self._aborted.append(checkpoint_id)
            calls = self._abort_locked(checkpoint_id, error)
            self._results.pop(checkpoint_id, None)
        run_all(calls)

    def close(self) -> None:
        """Fail everything that is open; any thread, any number of times."""
        with self._lock:
            self._is_closed = True
            closing = CheckpointFailureReason.TASK_CLOSING
            calls = [call for each in list(self._open) for call in self._abort_locked(each, CheckpointError(each, closing))]
            self._results.clear()
        run_all(calls)

    # ---------------------------------------------------------------- any thread

    def add_input_data(
        self, checkpoint_id: int, channel: InputChannelInfo, start_sequence_number: int, buffers: Sequence[NetworkBuffer]
    ) -> None:
        """Copy and recycle ``buffers`` of an input channel."""
        pieces = _copies(buffers)
        with self._lock:
            found = self._open.get(checkpoint_id)
            if found is not None and found.has_input:
                found.inputs.setdefault(channel, []).extend(pieces)

    def add_output_data(
        self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, start_sequence_number: int, buffers: Sequence[NetworkBuffer]
    ) -> None:
        """Copy and recycle ``buffers`` of a subpartition."""
        pieces = _copies(buffers)
        with self._lock:
            found = self._open.get(checkpoint_id)
            if found is not None and found.has_output:
                found.outputs.setdefault(subpartition, []).extend(pieces)

    def add_output_data_future(
        self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, start_sequence_number: int, data: InFlightData
    ) -> None:
        """Wait for ``data``; the checkpoint is complete only with it."""
        with self._lock:
            found = self._open.get(checkpoint_id)
            if found is not None and found.has_output:
                found.num_pending += 1
            else:
                found = None
        data.on_done(partial(self._on_output_data, checkpoint_id, subpartition, found))

    def _on_output_data(self, checkpoint_id: int, subpartition: Channel, found: _Open | None, data: InFlightData) -> None:
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
    """The bytes of ``buffers``, which are recycled, all of them."""
    try:
        return [bytes(buffer.view) for buffer in buffers]
    finally:
        recycle_all(buffers)


def _subsumed(checkpoint_id: int, newer: int) -> CheckpointError:
    return CheckpointError(checkpoint_id, CheckpointFailureReason.SUBSUMED, f"checkpoint {newer} was started")
