"""The part of channels in a checkpoint: which channel, and the buffers that were on their way.

An aligned ``TimeoutableBarrier`` may still overtake the data before it.  Which buffers those are is known only when it
was consumed or timed out: ``InFlightData`` brings them.

Side:       shared.
Invariants: ``InFlightData`` is completed once, whatever ends the wait; its buffers have one owner, the caller of
            ``take``.  A channel that hands buffers over gives away one reference of each; the writer recycles it.
Source:     Flink ``ChannelStateWriter``, ``InputChannelInfo``, ``ResultSubpartitionInfo``; ``PipelinedSubpartition``,
            its ``channelStateFuture`` (a ``CompletableFuture<List<Buffer>>``) and ``channelStateCheckpointId``.
Absent:     the writer itself: what is written where is the runtime's business.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Final, NamedTuple, Protocol

from netstack.availability import AvailabilityFuture
from netstack.buffer.buffer_builder import BufferConsumer, ContentConsumer
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.errors import LocalProtocolError
from netstack.late import dataclass
from netstack.wire.events import CheckpointBarrier, deserialize_event
from netstack.wire.messages import DataType


@dataclass(slots=True, eq=False)
class InFlightData:
    """A result that comes when the barrier is consumed (no data was in flight), times out, or its checkpoint ends.

    Threading: any thread; the subpartition decides under its lock which of these ends comes first, so there is only
        one.
    Ownership: it holds the buffers until they are taken.
    """

    end: AvailabilityFuture = field(default_factory=AvailabilityFuture)  # its callbacks are called outside every lock
    error: BaseException | None = None  # why there will be no buffers, if so
    _buffers: Sequence[NetworkBuffer] = field(default=(), repr=False)

    def complete(self, buffers: Sequence[NetworkBuffer], error: BaseException | None = None) -> None:
        """Hand over ``buffers``, or the error by which the checkpoint gets none; called once."""
        assert not self.end.is_done, "one thread has taken the barrier"
        # Before the signal: its callbacks take the buffers at once.
        self._buffers = buffers
        self.error = error
        self.end.complete()

    def take(self) -> Sequence[NetworkBuffer]:
        """Return the buffers, which the caller recycles; empty from the second call on, and after a failure."""
        buffers = self._buffers
        self._buffers = ()
        return buffers


class InputChannelInfo(NamedTuple):
    """The place of a channel in a task: its gate, and its index there."""

    gate_index: int
    channel_index: int


class ResultSubpartitionInfo(NamedTuple):
    """The place of a subpartition in a task: its partition, and its index there."""

    partition_index: int
    subpartition_index: int


class ChannelStateWriter(Protocol):
    """Takes the in-flight data of one task.

    Threading: any thread; called outside every lock.
    """

    def add_input_data(self, checkpoint_id: int, channel: InputChannelInfo, buffers: Sequence[NetworkBuffer]) -> None:
        """Add ``buffers`` of an input channel to the checkpoint; the writer recycles them."""

    def add_output_data(self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, data: InFlightData) -> None:
        """Add ``data`` of a subpartition, which may come later, to the checkpoint; the writer recycles it then."""


class NoChannelState:
    """A writer that keeps nothing: for tasks without unaligned checkpoints."""

    __slots__ = ()

    def add_input_data(self, checkpoint_id: int, channel: InputChannelInfo, buffers: Sequence[NetworkBuffer]) -> None:
        """Recycle ``buffers``."""
        recycle_all(buffers)

    def add_output_data(self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, data: InFlightData) -> None:
        """Recycle the buffers of ``data`` when they come."""
        # The buffers come later, with the barrier or its time-out, and this call is their last owner.
        data.end.add_done_callback(lambda: recycle_all(data.take()))


NO_CHANNEL_STATE: Final = NoChannelState()


class DecompressedInput:
    """Passes everything on to ``writer``, input data decompressed: its later reader knows nothing of the connection.

    Args:
        writer: gets the data.
        decompress: the original in place of a compressed buffer; one reference in, one out.
    """

    __slots__ = ("_decompress", "_writer", "add_output_data")

    def __init__(self, writer: ChannelStateWriter, decompress: Callable[[NetworkBuffer], NetworkBuffer]) -> None:
        self._writer = writer
        self._decompress = decompress
        self.add_output_data = writer.add_output_data

    def add_input_data(self, checkpoint_id: int, channel: InputChannelInfo, buffers: Sequence[NetworkBuffer]) -> None:
        """Restore compressed buffers, and pass all on.

        Raises:
            RemoteProtocolError: a buffer is broken; all are recycled.
        """
        restored: list[NetworkBuffer] = []
        rest = deque(buffers)
        try:
            # Taken out before it is restored: ``decompress`` recycles a broken buffer, and the rest alone is left to
            # recycle.
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
    """Copy the unread bytes of the data buffers among ``consumers``; each copy has a reference of its own."""
    copies = []
    for consumer in consumers:
        # A checkpoint keeps bytes, because the content goes to its reader as it is.
        if type(consumer) is ContentConsumer:
            copies += consumer.byte_buffers()
        elif consumer.is_buffer and consumer.is_data_available:
            reader = consumer.copy()
            copies.append(reader.build())
            reader.close()  # never the last reference: the copy holds one
    return copies


def checked_barrier(consumer: BufferConsumer) -> CheckpointBarrier | None:
    """Return the barrier in a priority or timeoutable event; None if it is no such event or no barrier.

    Raises:
        LocalProtocolError: it is a barrier of another kind; ``consumer`` is closed.
    """
    is_timeoutable = consumer.data_type is DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
    if not is_timeoutable and not consumer.data_type.has_priority:
        return None
    # A copy has a position of its own: the barrier is still unread for its consumer.
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
    # Nobody else holds it: the caller has handed it over.
    consumer.close()
    raise LocalProtocolError(f"{event} cannot be sent as {consumer.data_type.name}")
