"""Aligned barriers that may still overtake the data before them, and what a barrier overtakes.

Side:       shared.
Invariants: one barrier at a time; its data in flight is completed or failed exactly once, whatever ends the wait.
Source:     Flink ``PipelinedSubpartition``, its ``channelStateFuture`` and ``channelStateCheckpointId``.
"""

from collections.abc import Callable, Iterable
from functools import partial

from netstack.buffer.buffer_builder import BufferConsumer
from netstack.buffer.content_consumer import ContentConsumer
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import LocalProtocolError, ResourceClosedError
from netstack.late import dataclass
from netstack.partition.channel_state import (
    SEQUENCE_NUMBER_UNKNOWN,
    ChannelStateWriter,
    InFlightData,
    ResultSubpartitionInfo,
)
from netstack.wire.events import CheckpointBarrier, deserialize_event
from netstack.wire.messages import DataType


@dataclass(frozen=True, slots=True)
class TimeoutableBarrier:
    """A barrier in the queue that becomes a priority event if it is not consumed in time."""

    consumer: BufferConsumer
    barrier: CheckpointBarrier
    in_flight: InFlightData


class TimeoutableBarriers:
    """The barrier of one subpartition that waits for its consumer or for its time-out.

    Threading: guarded by the lock of the subpartition, which the caller holds.  The calls that a method returns are
               made after it.
    Life cycle: nothing waits -> ``expect_locked`` -> a barrier waits -> ``consumed_locked``, ``take_locked`` (it timed
    out, or its checkpoint was aborted), ``release_locked``, or ``expect_locked`` of the next one, which is an error of
    the coordinator.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: TimeoutableBarrier | None = None

    @property
    def waiting(self) -> TimeoutableBarrier | None:
        """The barrier that was neither consumed nor timed out."""
        return self._waiting

    def expect_locked(
        self,
        consumer: BufferConsumer,
        barrier: CheckpointBarrier,
        info: ResultSubpartitionInfo,
        writer: ChannelStateWriter,
    ) -> list[Callable[[], object]]:
        """Wait for ``barrier``, which is about to be queued; the calls tell ``writer`` of what will be in flight."""
        calls: list[Callable[[], object]] = []
        former = self._waiting
        if former is not None:
            error = LocalProtocolError(
                f"subpartition {info.subpartition_index} got the barrier of checkpoint {barrier.checkpoint_id} while "
                "that of "
                f"{former.barrier.checkpoint_id} was neither consumed nor timed out"
            )
            calls.append(partial(former.in_flight.fail, error))
        in_flight = InFlightData()
        self._waiting = TimeoutableBarrier(consumer, barrier, in_flight)
        return [
            *calls,
            partial(writer.add_output_data_future, barrier.checkpoint_id, info, SEQUENCE_NUMBER_UNKNOWN, in_flight),
        ]

    def consumed_locked(self, consumer: BufferConsumer) -> InFlightData | None:
        """The event of ``consumer`` was polled; returns what to complete if the barrier was in it: nothing was in
        flight.
        """
        waiting = self._waiting
        if waiting is None or waiting.consumer is not consumer:
            return None
        self._waiting = None
        return waiting.in_flight

    def take_locked(self, checkpoint_id: int) -> TimeoutableBarrier | None:
        """The barrier of ``checkpoint_id``, which no longer waits; None if it does not wait."""
        waiting = self._waiting
        if waiting is None or waiting.barrier.checkpoint_id != checkpoint_id:
            return None
        self._waiting = None
        return waiting

    def release_locked(self, index: int) -> list[Callable[[], object]]:
        """Nobody consumes the barrier any more; ``index`` is that of the subpartition."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return []
        return [
            partial(
                waiting.in_flight.fail,
                ResourceClosedError(f"subpartition {index} was released before the barrier was consumed"),
            )
        ]


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
