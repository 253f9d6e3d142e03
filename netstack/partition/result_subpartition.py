"""A subpartition and its reader's end, whatever kind of partition it is part of, and the end of a pipelined one.

Side:       shared.  One thread polls a view, the event loop's or the consuming task's; any thread releases.
Hot path:   none of its own: readers of a pipelined subpartition take ``poller`` and ``run_poller``, its methods.
Units:      backlog in data buffers, events do not count; sizes in bytes.
Lock order: ``PipelinedSubpartition._lock`` is never held while the lock of its view is taken, nor the other way round,
            but for the approximate subpartition, which retires a view under its lock.
Source:     Flink ``ResultSubpartition`` (with ``BufferAndBacklog``), ``CheckpointedResultSubpartition``,
            ``ResultSubpartitionView``, ``BufferAvailabilityListener``, ``PipelinedSubpartitionView``.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum, unique
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from netstack.buffer.buffer_builder import BufferConsumer
from netstack.buffer.network_buffer import BufferRecycler, MemorySegment, NetworkBuffer
from netstack.errors import ProducerFailedError
from netstack.partition.channel_state import ChannelStateWriter, ResultSubpartitionInfo
from netstack.wire.messages import DataType

if TYPE_CHECKING:
    from netstack.partition.bounded_blocking_result_partition import BoundedBlockingSubpartition
    from netstack.partition.pipelined_subpartition import PipelinedSubpartition


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


_RELEASED: Final = SubpartitionState.RELEASED  # a lookup in the enum would cost more than the comparison


class BufferAvailabilityListener(Protocol):
    """Who is told that a subpartition has something to read, or was released."""

    def notify_data_available(self) -> None:
        """There may be something to poll; any thread, outside every lock."""

    def notify_priority_event(self, sequence_number: int) -> None:
        """A priority event is at the head, and will be polled with ``sequence_number``; any thread, outside every lock.

        Told instead of ``notify_data_available``, once while priority events are queued.
        """


class BufferAndBacklog(NamedTuple):
    """One polled element; whoever polled it recycles ``buffer``."""

    buffer: NetworkBuffer
    backlog: int
    next_data_type: DataType  # of what can be polled next, NONE if nothing can
    sequence_number: int


class SegmentRun(NamedTuple):
    """Whole segments full of data that follow each other; whoever polled them gives them to ``recycler``."""

    segments: list[MemorySegment]
    recycler: BufferRecycler  # of all of them
    backlog: int  # behind the last one
    next_data_type: DataType
    sequence_number: int  # of the first one


class ResultSubpartitionView(ABC):
    """What a reader, remote or local, may do with a subpartition.

    Threading: one thread polls; everything else from any thread.
    State: a view of one subpartition has it in ``_subpartition``, and in ``_is_view_released`` whether its reader ended
        it.  A view of several overrides what asks these.
    """

    __slots__ = ()
    _is_view_released: bool
    if TYPE_CHECKING:

        @property
        def _subpartition(self) -> PipelinedSubpartition | BoundedBlockingSubpartition:
            raise NotImplementedError  # an attribute of each view; mypy lets a property be narrowed

    @abstractmethod
    def next_buffer(self) -> BufferAndBacklog | None:
        """The next element, which the caller recycles; None if there is nothing or the view is released."""

    def poller(self) -> Callable[[], BufferAndBacklog | None]:
        """What ``next_buffer`` does, as a function without a detour: for whoever polls often."""
        return self.next_buffer

    def run_poller(self) -> Callable[[int], SegmentRun | None] | None:
        """A function that polls at most so many whole segments; None if they come one by one in any case.

        That function finds None if the next element is something else (or there is none): ``next_buffer`` then knows.
        """
        return None

    def poll_little(self, max_bytes: int) -> BufferAndBacklog | None:
        """``next_buffer``, if all there is to poll is one data buffer of at most so many bytes; None if that is not
        known.
        """
        return None

    def has_data(self, num_credits_available: int) -> bool:
        """Whether something can be polled: with credit anything readable, without only an event at the head."""
        return self.availability(num_credits_available > 0)[0]

    @abstractmethod
    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - per buffer; a keyword costs
        """Whether something can be polled (without credit: only an event), and how many data buffers can be; one lock
        round.
        """

    @property
    def backlog(self) -> int:
        """How many data buffers can be polled now."""
        return self.availability(True)[1]  # noqa: FBT003 - as above

    @property
    @abstractmethod
    def num_queued_buffers(self) -> int:
        """How many elements are queued, events and what cannot be polled yet included; may be one pass stale."""

    def peek_next_subpartition(self) -> int:
        """Which subpartition the next element belongs to; -1 if there is none.  Only a view of several has to look."""
        return self._subpartition.index

    @abstractmethod
    def resume_consumption(self) -> None:
        """Go on after a blocking event; the listener is told if something can be polled again."""

    def notify_new_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of ``size_bytes`` from the next one on, if they are not all written."""
        return

    def send_empty_buffers(self) -> None:
        """Hand out finished buffers without unread bytes too, if there are any: the reader's receiver keeps room for
        each that it was told of.
        """
        return

    @property
    def is_released(self) -> bool:
        """Whether reader or producer ended it."""
        return self._is_view_released or self._subpartition.state is _RELEASED

    @property
    def failure_cause(self) -> ProducerFailedError | None:
        """Why the producer ended it, if it did so before everything was consumed."""
        return self._subpartition.parent.failure_cause

    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed."""
        self._subpartition.parent.on_all_data_processed(self._subpartition.index)

    def hand_back(self) -> None:
        """End a view that nothing was polled from: another one may take its place, and finds everything."""
        self.release()

    @abstractmethod
    def release(self) -> None:
        """Mark the subpartition consumed, and drop what is left in it; the second call does nothing."""


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
        return self.state is _RELEASED

    @property
    def takes_contents(self) -> bool:
        """Whether its reader takes contents (``netstack.buffer.buffer_builder``) as they are; once it does, it always
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


class PipelinedSubpartitionView(ResultSubpartitionView):
    """The reader's end of a subpartition.

    Threading: one thread polls; ``release`` and the properties from any thread.
    """

    __slots__ = ("_is_view_released", "_lock", "_subpartition", "listener", "takes_contents")
    _subpartition: "PipelinedSubpartition"

    def __init__(self, subpartition: "PipelinedSubpartition", listener: BufferAvailabilityListener) -> None:
        self._subpartition = subpartition
        self.listener = listener
        self.takes_contents = getattr(listener, "takes_contents", False)
        self._lock = threading.Lock()
        self._is_view_released = False  # Guarded by _lock for the one write.

    def __repr__(self) -> str:
        return f"<PipelinedSubpartitionView {'released' if self.is_released else 'open'} of {self._subpartition!r}>"

    def next_buffer(self) -> BufferAndBacklog | None:
        """The next element, which the caller recycles; None if there is nothing or the view is released."""
        return self._subpartition.poll()

    def poller(self) -> Callable[[], BufferAndBacklog | None]:
        """``next_buffer`` without a detour."""
        return self._subpartition.poll

    def run_poller(self) -> Callable[[int], SegmentRun | None] | None:
        """``poll_run``; a compressor looks at each buffer."""
        return None if self._subpartition.compressor is not None else self._subpartition.poll_run

    def poll_little(self, max_bytes: int) -> BufferAndBacklog | None:
        """``next_buffer``, if all there is to poll is one data buffer of at most so many bytes."""
        return self._subpartition.poll_little(max_bytes)

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - see ResultSubpartitionView
        """Whether something can be polled, and how many data buffers; one lock round."""
        return self._subpartition.availability(is_credit_available)

    @property
    def num_queued_buffers(self) -> int:
        """How many elements are queued."""
        return self._subpartition.num_queued_buffers

    def resume_consumption(self) -> None:
        """Go on after a blocking event."""
        self._subpartition.resume_consumption()

    def notify_new_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of ``size_bytes`` from the next one on."""
        self._subpartition.set_buffer_size(size_bytes)

    def send_empty_buffers(self) -> None:
        """Hand out finished buffers without unread bytes too."""
        self._subpartition.send_empty_buffers()

    def retire(self) -> bool:
        """Mark the view as released, and nothing else; False if it was."""
        with self._lock:
            was_open = not self._is_view_released
            self._is_view_released = True
        return was_open

    def hand_back(self) -> None:
        """End a view that nothing was polled from: another one may take its place, and finds everything."""
        if self.retire():
            self._subpartition.take_back(self)

    def release(self) -> None:
        """Mark the subpartition consumed, and drop what is left in it; the second call does nothing."""
        if self.retire():
            self._subpartition.release_by_view()
