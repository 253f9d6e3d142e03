"""Keeps the in-flight data of unaligned checkpoints, in memory, and its bytes.

Lock order: ``_lock`` is a leaf: buffers are recycled and results completed without it.

Side:       shared.
Invariants: every buffer is recycled before the call returns.  Data for a checkpoint that is not open, or whose part is
            finished, is dropped.  Each result is completed once.  Starting a checkpoint fails the older open ones.
            This module unpickles nothing.  The data that ``encode_channels`` wrote comes back piece by piece, each
            piece a copy of its own.
Format:     magic number (4 bytes), version (u16), size of the head (u32), the head (MessagePack), then all pieces one
            after the other.  The head names each channel with the sizes of its pieces: first those of the inputs, then
            those of the outputs.
Source:     Flink ``ChannelStateWriterImpl``, ``ChannelStateWriteRequestDispatcherImpl``,
            ``ChannelStateSerializerImpl``; ``InputChannelStateHandle`` and ``ResultSubpartitionStateHandle`` for the
            offsets.
Absent:     files, and sharing them among subtasks; data is copied on the thread that adds it.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import field
from functools import partial
from itertools import chain
from typing import Final

import msgspec

from flowlet.checkpoint.task.barrier_orders import Channel, CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.task.snapshots import ChannelStateSnapshot, HeadedBytes
from flowlet.errors import StateRestoreError
from netstack.availability import run_all
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.late import dataclass
from netstack.partition.channel_state import InFlightData, InputChannelInfo, ResultSubpartitionInfo

# Not measured; checkpoints aborted before they start, of which there are as many as run concurrently.
_MAX_ABORTED: Final = 32


_INPUTS: Final = 0
_OUTPUTS: Final = 1
_Pieces = defaultdict[Channel, list[bytes]]


@dataclass(slots=True, eq=False)
class _Open:
    """One checkpoint's data so far.  Guarded by the writer's lock.

    ``pieces``: of the inputs and of the outputs.  ``sides``: which of them more data may come of.  ``num_pending``:
    futures of output data that are not done.
    """

    result: Future[ChannelStateSnapshot] = field(default_factory=Future)
    pieces: tuple[_Pieces, _Pieces] = field(default_factory=lambda: (_Pieces(list), _Pieces(list)))
    sides: set[int] = field(default_factory=lambda: {_INPUTS, _OUTPUTS})
    num_pending: int = 0

    def snapshot(self) -> ChannelStateSnapshot:
        return ChannelStateSnapshot(*({each: tuple(pieces) for each, pieces in side.items()} for side in self.pieces))


class InMemoryChannelStateWriter:
    """The writer of in-flight data of one task, for its gates, its partitions and its checkpoint coordinator."""

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
            # In the lock round that opens it: an abort that came before its start must not be forgotten.
            if checkpoint_id <= self._newest_started or checkpoint_id in self._aborted or self._is_closed:
                details = "its channel state was started or aborted before"
                raise CheckpointError(checkpoint_id, CheckpointFailureReason.CHANNEL_STATE_FAILED, details)
            self._newest_started = checkpoint_id
            why = CheckpointFailureReason.SUBSUMED
            details = f"checkpoint {checkpoint_id} was started"
            errors = [CheckpointError(each, why, details) for each in self._open]
            # A task thread may wait for one of these results: a newer checkpoint takes their place, and no data comes
            # any more.
            calls = [call for each in errors for call in self._abort_locked(each.checkpoint_id, each)]
            found = self._open[checkpoint_id] = _Open()
            self._results[checkpoint_id] = found.result
        run_all(calls)

    def finish_input(self, checkpoint_id: int) -> None:
        """Note that no more input data of ``checkpoint_id`` will come; ignored if it is not open."""
        self._finish(checkpoint_id, _INPUTS)

    def finish_output(self, checkpoint_id: int) -> None:
        """Note that no more output data of ``checkpoint_id`` will come, except data that was announced as a future."""
        self._finish(checkpoint_id, _OUTPUTS)

    def _finish(self, checkpoint_id: int, side: int) -> None:
        with self._lock:
            found = self._open.get(checkpoint_id)
            if found is not None:
                found.sides.discard(side)
            # Behind the mark: the last of the two sides completes the result.
            calls = self._complete_locked(checkpoint_id)
        run_all(calls)

    def take_result(self, checkpoint_id: int) -> Future[ChannelStateSnapshot]:
        """Take the future of the data of ``checkpoint_id``, once.

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
            # Even if it is not open: a barrier that comes later must not start it.
            self._aborted.append(checkpoint_id)
            calls = self._abort_locked(checkpoint_id, error)
            self._results.pop(checkpoint_id, None)
        run_all(calls)

    def close(self) -> None:
        """Fail all open checkpoints; any thread, idempotent."""
        with self._lock:
            self._is_closed = True
            why = CheckpointFailureReason.TASK_CLOSING
            calls = [call for each in list(self._open) for call in self._abort_locked(each, CheckpointError(each, why))]
            # Nobody takes them any more: the task ends.
            self._results.clear()
        run_all(calls)

    # ---------------------------------------------------------------- any thread

    def add_input_data(self, checkpoint_id: int, channel: InputChannelInfo, buffers: Sequence[NetworkBuffer]) -> None:
        """Copy and keep the buffers; implements ``ChannelStateWriter``; any thread."""
        # Outside the lock, for which the task and the loop would wait while buffers are copied.
        pieces = _copies(buffers)
        with self._lock:
            found = self._open.get(checkpoint_id)
            if found is not None and _INPUTS in found.sides:
                found.pieces[_INPUTS][channel] += pieces

    def add_output_data(self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, data: InFlightData) -> None:
        """Keep the data when it comes: the checkpoint waits for it; implements ``ChannelStateWriter``; any thread."""
        with self._lock:
            found = self._open.get(checkpoint_id)
            if found is not None and _OUTPUTS in found.sides:
                # Before the callback, which may be called at once.
                found.num_pending += 1
            else:
                found = None  # nobody wants the data, but the callback recycles its buffers
        data.end.add_done_callback(partial(self._on_output_data, checkpoint_id, subpartition, found, data))

    def _on_output_data(
        self, checkpoint_id: int, subpartition: Channel, found: _Open | None, data: InFlightData
    ) -> None:
        pieces, cause = _copies(data.take()), data.error
        with self._lock:
            if found is None or self._open.get(checkpoint_id) is not found:  # not wanted, or aborted meanwhile
                return
            found.num_pending -= 1
            if pieces:
                found.pieces[_OUTPUTS][subpartition] += pieces
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
        # Output that a barrier may still overtake is not known yet: the result waits for it.
        if found is None or found.sides or found.num_pending:
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
        # Whatever happens: network memory that a checkpoint keeps is lost to the job.
        recycle_all(buffers)


class _Stream(msgspec.Struct, frozen=True, array_like=True):
    """The data of one channel: its gate or partition, its index there, and the sizes of its pieces."""

    group: int
    channel: int
    sizes: list[int]


class _Head(msgspec.Struct, frozen=True):
    """The streams whose bytes follow, in order."""

    inputs: list[_Stream]
    outputs: list[_Stream]


_BYTES: Final = HeadedBytes(b"FLCH", msgspec.msgpack.Decoder(_Head), "data in flight", "data in flight")


def encode_channels(channels: ChannelStateSnapshot) -> bytes:
    """Encode all data in flight of one subtask."""
    head = _Head(_streams(channels.inputs), _streams(channels.outputs))
    return _BYTES.joined(head, chain.from_iterable(chain(channels.inputs.values(), channels.outputs.values())))


def decode_channels(content: bytes) -> ChannelStateSnapshot:
    """Restore the snapshot that ``encode_channels`` was given.

    Raises:
        StateRestoreError: the bytes are of another version, or are no data in flight.
    """
    head, position = _BYTES.head_of(content)
    expected = position + sum(sum(each.sizes) for each in chain(head.inputs, head.outputs))
    # Before a byte is taken: a part of the data would look like all of it.
    if len(content) != expected:
        raise StateRestoreError(
            f"the data in flight has {len(content)} bytes instead of {expected}; restore another checkpoint"
        )
    inputs, position = _read(content, position, head.inputs)
    outputs, _ = _read(content, position, head.outputs)
    return ChannelStateSnapshot(inputs, outputs)


def _streams(channels: Mapping[Channel, tuple[bytes, ...]]) -> list[_Stream]:
    return [_Stream(group, channel, list(map(len, pieces))) for (group, channel), pieces in channels.items()]


def _read(content: bytes, position: int, streams: list[_Stream]) -> tuple[dict[Channel, tuple[bytes, ...]], int]:
    """Read the pieces of each channel; returns them, and the position behind them."""
    found: dict[Channel, tuple[bytes, ...]] = {}
    for each in streams:
        pieces = []
        for size in each.sizes:
            pieces.append(content[position : position + size])
            position += size
        found[each.group, each.channel] = tuple(pieces)
    return found, position
