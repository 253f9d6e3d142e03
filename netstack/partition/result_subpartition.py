"""What a partition needs of its subpartitions, whatever kind they are of.

Side:   shared.
Source: Flink ``ResultSubpartition``, ``CheckpointedResultSubpartition``.
"""

from collections.abc import Sequence
from enum import Enum, unique
from typing import Protocol

from netstack.buffer.buffer_builder import BufferConsumer
from netstack.errors import ProducerFailedError
from netstack.partition.channel_state import ChannelStateWriter, ResultSubpartitionInfo
from netstack.partition.result_subpartition_view import BufferAvailabilityListener, ResultSubpartitionView


@unique
class SubpartitionState(Enum):
    """The life of a subpartition.

    From ``FINISHED`` on nothing can be added, from ``RELEASED`` on nothing can be read::

        OPEN -- finish --> FINISHED -- release --> RELEASED
          `------------------ release ---------------^
    """

    OPEN = "open"
    FINISHED = "finished"
    RELEASED = "released"


class SubpartitionParent(Protocol):
    """What a subpartition tells its partition, outside every lock.

    One implementer: ``ResultPartition`` imports this module, which therefore cannot import it.
    """

    @property
    def failure_cause(self) -> ProducerFailedError | None:
        """Why the partition was released before it was consumed."""

    def on_consumed_subpartition(self, index: int, *, has_read_all: bool) -> None:
        """A view of ``index`` was released, after everything was read of it or before."""

    def on_all_data_processed(self, index: int) -> None:
        """The consumer of ``index`` processed everything up to the end of data."""


class ConsumerListener(Protocol):
    """What a producer can learn of the consumers of its partition; Flink has no such thing.

    It is told, on the loop thread or on that of a consumer in the same process; it must not block.

    One implementer: none in the product, programs that use netstack alone have them.
    """

    def on_acknowledged(self, subpartition: int) -> None:
        """The consumer has processed everything up to the end of data, and says so.

        A pipelined partition that waits for this must not be finished before: the end of the partition ends the reader.
        """

    def on_consumer_left(self, subpartition: int, *, has_read_all: bool) -> None:
        """The consumer reads no more.

        ``has_read_all``: everything, the end included, was handed to its connection before.
        """


class ResultSubpartition(Protocol):
    """The part of a partition that one consumer reads.

    Threading: the task thread adds and finishes; everything else from any thread.
    """

    index: int
    state: SubpartitionState
    """Written under the lock of the subpartition; read bare, it may be one pass stale."""
    desired_buffer_size: int
    """How large the consumer wants its next buffers; ``NO_BUFFER_SIZE`` if it did not say."""
    channel_state: ChannelStateWriter
    info: ResultSubpartitionInfo

    @property
    def is_released(self) -> bool:
        """Whether nothing can be read of it any more."""

    @property
    def takes_contents(self) -> bool:
        """Whether its reader takes contents (``netstack.buffer.content_consumer``) as they are; once it does, it always
        will.
        """

    @property
    def num_queued_buffers(self) -> int:
        """How many elements wait for the consumer, events included."""

    @property
    def num_queued_bytes(self) -> int:
        """How many bytes wait for the consumer, those of events included."""

    def add(self, consumer: BufferConsumer, partial_record_length: int = 0) -> int:
        """Append ``consumer`` and take it over; the buffer size wanted, or -1 (and it is closed) if nobody will read
        it.
        """

    def add_all(self, consumers: Sequence[BufferConsumer]) -> int:
        """``add`` for several data buffers, which know their partial records."""

    def finish(self) -> int:
        """Append the end of the partition; -1 if nobody will read it."""

    def flush(self) -> None:
        """Make everything committed readable."""

    def create_read_view(self, listener: BufferAvailabilityListener) -> ResultSubpartitionView | None:
        """A view; None if the subpartition was released."""

    def release(self) -> None:
        """Drop everything and tell the readers; the second call does nothing."""

    def aligned_barrier_timeout(self, checkpoint_id: int) -> None:
        """Let the barrier of ``checkpoint_id`` overtake what is queued before it."""

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Nobody waits for the data before that barrier any more."""

    def check_invariants(self) -> None:
        """Assert what always holds."""
