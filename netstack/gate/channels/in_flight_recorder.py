"""The part of a channel's queue that belongs to an unaligned checkpoint, on its way to the writer.

Side:       shared.
Invariants: buffers are persisted exactly while a checkpoint was started whose barrier has not arrived on this channel.
            While it is, every data buffer that arrives is noted; a checkpoint whose barrier came before its start gets
            the queued data before the barrier.  Buffers reach the writer in the order of their arrival, from one thread
            at a time, outside the lock: whoever finds another thread at it leaves its buffers there, and that thread
            takes them along.
Lock order: the channel's lock, which is shared with it, is a leaf; ``_locked`` methods are called under it, the writer
            outside it.
Source:     Flink ``ChannelStatePersister``; ``RemoteInputChannel.checkpointStarted``, ``getInflightBuffersUnsafe``.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Final, TypeAlias

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import CheckpointSubsumedError
from netstack.partition.channel_state import ChannelStateWriter, InputChannelInfo
from netstack.wire.events import CheckpointBarrier, deserialize_event
from netstack.wire.messages import is_before

_BARRIER_TYPE: Final = b"\0\0\0\1"  # an event's first bytes, if it is a checkpoint barrier


def barrier_of(buffer: NetworkBuffer) -> CheckpointBarrier | None:
    """The checkpoint barrier in an event buffer; other events are left to the gate."""
    view = buffer.view
    if bytes(view[:4]) != _BARRIER_TYPE:
        return None
    event = deserialize_event(view)
    assert isinstance(event, CheckpointBarrier), "that is what its type says"
    return event


class _Status(Enum):
    COMPLETED = auto()
    BARRIER_PENDING = auto()
    BARRIER_RECEIVED = auto()


SequenceBuffer: TypeAlias = tuple[NetworkBuffer, int]
"""A received buffer with its number."""


class InFlightRecorder:
    """One channel's checkpoints.

    Ownership: holds a reference of each buffer that is to be persisted, and gives it to the writer.

    Attributes:
        is_pending: whether data that arrives now belongs to checkpoint ``last_seen_barrier``.
    """

    __slots__ = (
        "_info", "_is_handing_over", "_lock", "_status", "_to_persist", "_writer", "is_pending", "last_barrier",
        "last_seen_barrier",
    )  # fmt: skip

    def __init__(self, lock: threading.Lock, writer: ChannelStateWriter, info: InputChannelInfo) -> None:
        self._lock = lock
        self._writer = writer
        self._info = info
        # Guarded by _lock.
        self._status = _Status.COMPLETED
        self.is_pending = False
        self.last_seen_barrier = -1
        self._to_persist: deque[tuple[int, list[NetworkBuffer]]] = deque()
        self._is_handing_over = False
        # Id and sequence number, until its checkpoint has been stopped.
        self.last_barrier: tuple[int, int] | None = None

    def __repr__(self) -> str:
        status = f"{self._status.name.lower()}, last barrier {self.last_seen_barrier}"
        return f"<InFlightRecorder {status}, {len(self._to_persist)} to persist>"

    @property
    def has_barrier_received(self) -> bool:
        """Whether the barrier of a checkpoint that is not stopped has arrived."""
        return self._status is _Status.BARRIER_RECEIVED

    def set_writer(self, writer: ChannelStateWriter, info: InputChannelInfo) -> None:
        """Hand over to ``writer`` from now on, as data of ``info``; before the request."""
        self._writer = writer
        self._info = info

    def start_locked(self, checkpoint_id: int, queued: Iterable[SequenceBuffer]) -> None:
        """The task started a checkpoint; note what is ``queued`` before its barrier, or all if that has not come.

        Raises:
            CheckpointSubsumedError: a later checkpoint's barrier is here already.
        """
        if self.last_barrier is not None:
            last_id = self.last_barrier[0]
            if checkpoint_id < last_id:
                raise CheckpointSubsumedError(
                    f"the barrier of checkpoint {checkpoint_id} is not known any more, checkpoint {last_id} came"
                )
            if checkpoint_id > last_id:
                self.last_barrier = None  # an obsolete one, which the task did not look at
        if self.has_barrier_received and self.last_seen_barrier > checkpoint_id:
            raise CheckpointSubsumedError(
                f"the barrier of checkpoint {self.last_seen_barrier} arrived before checkpoint {checkpoint_id} was "
                "started"
            )
        if self.last_seen_barrier < checkpoint_id:
            # Also if an older barrier arrived that the task did not look at: only the newer one counts now.
            self._go_to(_Status.BARRIER_PENDING, checkpoint_id)
        buffers = self.in_flight_locked(queued)
        if buffers:
            self._to_persist.append((checkpoint_id, buffers))

    def stop_locked(self, checkpoint_id: int) -> None:
        """The checkpoint is complete or aborted; a later one that was started goes on."""
        if checkpoint_id >= self.last_seen_barrier:
            self._go_to(_Status.COMPLETED, checkpoint_id)
        if self.last_barrier is not None and self.last_barrier[0] == checkpoint_id:
            self.last_barrier = None

    def note_buffer_locked(self, buffer: NetworkBuffer) -> None:
        """A data buffer arrived while ``is_pending``."""
        self._to_persist.append((self.last_seen_barrier, [buffer.retain()]))

    def note_barrier_locked(self, checkpoint_id: int, sequence_number: int) -> None:
        """A barrier arrived: if the task has not started the checkpoint, it will want to know what was before it."""
        is_latest = self.last_barrier is None or checkpoint_id > self.last_barrier[0]
        if self.on_barrier(checkpoint_id) and is_latest:
            self.last_barrier = (checkpoint_id, sequence_number)

    def on_barrier(self, checkpoint_id: int) -> bool:
        """A barrier arrived; whether it counts: it is new, or the one that was waited for."""
        if checkpoint_id < self.last_seen_barrier + (self._status is _Status.COMPLETED):
            return False
        self._go_to(_Status.BARRIER_RECEIVED, checkpoint_id)
        return True

    def _go_to(self, status: _Status, checkpoint_id: int) -> None:
        self._status = status
        self.is_pending = status is _Status.BARRIER_PENDING
        self.last_seen_barrier = checkpoint_id

    def is_last_barrier_locked(self, sequence_number: int) -> bool:
        """Whether that is the number of the last barrier, whose checkpoint goes on."""
        last = self.last_barrier
        return last is not None and last[1] == sequence_number and self.has_barrier_received

    def in_flight_locked(self, queued: Iterable[SequenceBuffer]) -> list[NetworkBuffer]:
        """The data in ``queued`` before the last barrier, or all; with a reference of each for the caller."""
        buffers = []
        for buffer, sequence_number in queued:
            if not buffer.is_buffer:
                continue
            if self.last_barrier is not None and not is_before(sequence_number, self.last_barrier[1]):
                break
            buffers.append(buffer.retain())
        return buffers

    def drop_locked(self) -> list[NetworkBuffer]:
        """What was noted and will not be persisted any more; the caller recycles it."""
        buffers = [buffer for _, noted in self._to_persist for buffer in noted]
        self._to_persist.clear()
        return buffers

    def hand_over_polled(self, buffers: Sequence[NetworkBuffer]) -> None:
        """Give the writer what a local channel polled while ``is_pending``; the thread that polls, outside the lock."""
        self._writer.add_input_data(self.last_seen_barrier, self._info, buffers)

    def hand_over(self) -> None:
        """Give the writer what was noted; outside the lock, any thread."""
        while True:
            with self._lock:
                if self._is_handing_over or not self._to_persist:
                    return
                self._is_handing_over = True
                checkpoint_id, buffers = self._to_persist.popleft()
            try:
                self._writer.add_input_data(checkpoint_id, self._info, buffers)
            finally:
                with self._lock:
                    self._is_handing_over = False

    def check_invariants_locked(self) -> None:
        """Assert the invariants of this module; the caller holds the lock."""
        assert not self._to_persist or self._is_handing_over, "something to persist lies around"
