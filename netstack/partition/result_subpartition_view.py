"""The reader's end of a subpartition, whatever kind of partition it is part of.

Who is told that a subpartition can be read.

Side:   shared.
Source: Flink ``BufferAvailabilityListener``.  Flink ``ResultSubpartitionView``,
        ``ResultSubpartition.BufferAndBacklog``.
Units:  backlog in data buffers, events do not count; sizes in bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, Protocol

from netstack.buffer.memory_segment import BufferRecycler, MemorySegment
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import ProducerFailedError
from netstack.wire.messages import DataType


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
    """

    __slots__ = ()

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
    @abstractmethod
    def backlog(self) -> int:
        """How many data buffers can be polled now."""

    @property
    @abstractmethod
    def num_queued_buffers(self) -> int:
        """How many elements are queued, events and what cannot be polled yet included; may be one pass stale."""

    @abstractmethod
    def peek_next_subpartition(self) -> int:
        """Which subpartition the next element belongs to; -1 if there is none.  Only a view of several has to look."""

    @abstractmethod
    def resume_consumption(self) -> None:
        """Go on after a blocking event; the listener is told if something can be polled again."""

    @abstractmethod
    def notify_new_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of ``size_bytes`` from the next one on."""

    def send_empty_buffers(self) -> None:
        """Hand out finished buffers without unread bytes too, if there are any: the reader's receiver keeps room for
        each that it was told of.
        """
        return

    def notify_required_segment_id(self, subpartition: int, segment_id: int) -> None:
        """Say which segment of a tiered subpartition is wanted next; others ignore it."""
        return

    @property
    @abstractmethod
    def is_released(self) -> bool:
        """Whether reader or producer ended it."""

    @property
    @abstractmethod
    def failure_cause(self) -> ProducerFailedError | None:
        """Why the producer ended it, if it did so before everything was consumed."""

    @abstractmethod
    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed."""

    @abstractmethod
    def hand_back(self) -> None:
        """End a view that nothing was polled from: another one may take its place, and finds everything."""

    @abstractmethod
    def release(self) -> None:
        """Mark the subpartition consumed, and drop what is left in it; the second call does nothing."""
