"""What a checkpoint holds of channels: which channel, and the buffers that were on their way.

Of an aligned barrier that may still overtake the data before it, a ``TimeoutableBarrier``, these are known when it was
consumed or timed out: ``InFlightData`` brings them.

Side:       shared.
Invariants: ``InFlightData`` is completed or failed once, whatever ends the wait; every callback is called once, outside
            the lock; its buffers have one owner, whoever ``take``s them.  Whoever hands buffers over gives away one
            reference of each; the writer recycles it.
Source:     Flink ``ChannelStateWriter``, ``InputChannelInfo``, ``ResultSubpartitionInfo``; ``PipelinedSubpartition``,
            its ``channelStateFuture`` (a ``CompletableFuture<List<Buffer>>``) and ``channelStateCheckpointId``.
Absent:     the writer itself: what is written where is the runtime's business.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from netstack.availability import AvailabilityFuture
from netstack.buffer.buffer_builder import BufferConsumer, ContentConsumer
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.errors import LocalProtocolError
from netstack.late import dataclass
from netstack.log_lines import shown_state
from netstack.wire.events import CheckpointBarrier, deserialize_event
from netstack.wire.messages import DataType


class InFlightData:
    """A result that comes when the barrier is consumed (nothing was in flight), times out, or its checkpoint ends.

    Threading: any thread.
    Ownership: it holds the buffers until they are taken; untaken ones of a failed checkpoint are its completer's to
               recycle.
    """

    __slots__ = ("_buffers", "_end_signal", "_lock", "error", "is_done")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end_signal = AvailabilityFuture()
        # All below written under _lock; a bare read may be one moment stale.
        self.is_done = False  # it was completed or failed
        self.error: BaseException | None = None  # why there will be no buffers, if so
        self._buffers: list[NetworkBuffer] = []

    def __repr__(self) -> str:
        state = shown_state("pending", failed=self.error is not None, done=self.is_done)
        return f"<InFlightData {state}, {len(self._buffers)} buffers>"

    def complete(self, buffers: Sequence[NetworkBuffer]) -> None:
        """Hand over ``buffers``; a second end changes nothing and recycles them."""
        if not self._end(list(buffers), None):
            recycle_all(buffers)

    def fail(self, error: BaseException) -> None:
        """Say that the checkpoint got no buffers, and why; a second end changes nothing."""
        self._end([], error)

    def take(self) -> list[NetworkBuffer]:
        """The buffers, which the caller recycles; empty for everybody but the first, and after a failure."""
        with self._lock:
            buffers = self._buffers
            self._buffers = []
        return buffers

    def on_done(self, callback: "Callable[[InFlightData], None]") -> None:
        """Call ``callback`` once it is done, at once if it is; on the thread that completes it, outside every lock."""
        self._end_signal.add_done_callback(partial(callback, self))

    def _end(self, buffers: list[NetworkBuffer], error: BaseException | None) -> bool:
        with self._lock:
            if self.is_done:
                return False
            self.is_done = True
            self._buffers = buffers
            self.error = error
        self._end_signal.complete()
        return True


class InputChannelInfo(NamedTuple):
    """Which channel of which gate of a task."""

    gate_index: int
    channel_index: int


class ResultSubpartitionInfo(NamedTuple):
    """Which subpartition of which partition of a task."""

    partition_index: int
    subpartition_index: int


class ChannelStateWriter(Protocol):
    """Takes the in-flight data of one task.

    Threading: any thread; called outside every lock.
    """

    def add_input_data(self, checkpoint_id: int, channel: InputChannelInfo, buffers: Sequence[NetworkBuffer]) -> None:
        """``buffers`` of an input channel belong to the checkpoint; the writer recycles them."""

    def add_output_data(
        self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, buffers: Sequence[NetworkBuffer]
    ) -> None:
        """``buffers`` of a subpartition belong to the checkpoint; the writer recycles them."""

    def add_output_data_future(
        self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, data: InFlightData
    ) -> None:
        """What is in flight will be known when the barrier was consumed or timed out; the writer recycles it then."""


class NoChannelState:
    """A writer that keeps nothing: for tasks without unaligned checkpoints."""

    __slots__ = ()

    def add_input_data(self, checkpoint_id: int, channel: InputChannelInfo, buffers: Sequence[NetworkBuffer]) -> None:
        """Recycle ``buffers``."""
        recycle_all(buffers)

    def add_output_data(
        self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, buffers: Sequence[NetworkBuffer]
    ) -> None:
        """Recycle ``buffers``."""
        recycle_all(buffers)

    def add_output_data_future(
        self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, data: InFlightData
    ) -> None:
        """Recycle whatever ``data`` brings."""
        data.on_done(lambda ended: recycle_all(ended.take()))


NO_CHANNEL_STATE: Final = NoChannelState()


class DecompressedInput:
    """Passes everything on, input data as it was before it was compressed: whoever reads it back knows nothing of the
    connection.

    Args:
        writer: gets the data.
        decompress: the original in place of a compressed buffer; one reference in, one out.
    """

    __slots__ = ("_decompress", "_writer", "add_output_data", "add_output_data_future")

    def __init__(self, writer: ChannelStateWriter, decompress: Callable[[NetworkBuffer], NetworkBuffer]) -> None:
        self._writer = writer
        self._decompress = decompress
        self.add_output_data = writer.add_output_data
        self.add_output_data_future = writer.add_output_data_future

    def add_input_data(self, checkpoint_id: int, channel: InputChannelInfo, buffers: Sequence[NetworkBuffer]) -> None:
        """Restore what is compressed, and pass all on.

        Raises:
            RemoteProtocolError: a buffer is broken; all are recycled.
        """
        restored: list[NetworkBuffer] = []
        rest = deque(buffers)
        try:
            while rest:
                restored.append(self._decompress(rest.popleft()))
        except BaseException:
            recycle_all([*restored, *rest])
            raise
        self._writer.add_input_data(checkpoint_id, channel, restored)


@dataclass(frozen=True, slots=True)
class TimeoutableBarrier:
    """A barrier in the queue that becomes a priority event if it is not consumed in time."""

    consumer: BufferConsumer
    barrier: CheckpointBarrier
    in_flight: InFlightData


def copies_of_unread(consumers: Iterable[BufferConsumer]) -> list[NetworkBuffer]:
    """The unread bytes of the data buffers among ``consumers``; each copy has a reference of its own."""
    copies = []
    for consumer in consumers:
        if type(consumer) is ContentConsumer:
            copies += consumer.byte_buffers()
        elif consumer.is_buffer and consumer.is_data_available:
            reader = consumer.copy()
            copies.append(reader.build())
            reader.close()  # never the last reference: the copy holds one
    return copies


def checked_barrier(consumer: BufferConsumer) -> CheckpointBarrier | None:
    """The barrier in a priority or timeoutable event, None if it is no such event or no barrier.

    Raises:
        LocalProtocolError: it is a barrier of another kind; ``consumer`` is closed.
    """
    is_timeoutable = consumer.data_type is DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
    if not is_timeoutable and not consumer.data_type.has_priority:
        return None
    reader = consumer.copy()
    buffer = reader.build()
    event = deserialize_event(buffer.view)
    buffer.recycle()
    reader.close()
    if not isinstance(event, CheckpointBarrier):
        if not is_timeoutable:
            return None
    elif event.options.is_timeoutable if is_timeoutable else event.options.is_unaligned:
        return event
    consumer.close()
    raise LocalProtocolError(f"{event} cannot be sent as {consumer.data_type.name}")
