"""A subpartition and its reader's end, whatever kind of partition it is part of, the end of a pipelined one, and
several read as one.

Side:       shared.  One thread polls a view, the event loop's or the consuming task's; any thread releases.
Invariants: of several subpartitions read as one: buffers of one keep their order; buffers that may hold parts of one
            record follow each other, so the next subpartition has its turn only after an event or a buffer that ends
            with a record; each subpartition that was told of is read or stands in line.  Once the producer released one
            of them nothing can be polled any more, and the listener was told.
Hot path:   none of its own: the view of a pipelined subpartition has the methods of that as its own.
Units:      backlog in data buffers, events do not count; sizes in bytes.
Lock order: ``PipelinedSubpartition._lock`` is never held while the lock of its view is taken, nor the other way round,
            but for the approximate subpartition, which retires a view under its lock.
            ``UnionResultSubpartitionView._lock`` is a leaf: views are polled, and the listener is called, outside it.
            One thread at a time looks ahead; a thread that finds another one doing so uses the elements that are there,
            and is told afterwards.
Source:     Flink ``ResultSubpartition`` (with ``BufferAndBacklog``), ``CheckpointedResultSubpartition``,
            ``ResultSubpartitionView``, ``BufferAvailabilityListener``, ``PipelinedSubpartitionView``.
            Flink ``UnionResultSubpartitionView``, ``RoundRobinSubpartitionSelector``.  What was told before all views
            existed is kept and passed on by ``start``.  A range that cannot be had consumes nothing; in Flink it
            consumes the subpartitions that it got.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, unique
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from netstack.availability import run_all
from netstack.buffer.buffer_builder import BufferConsumer
from netstack.buffer.network_buffer import BufferRecycler, MemorySegment, NetworkBuffer
from netstack.errors import LocalProtocolError, ProducerFailedError
from netstack.late import dataclass
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
    """The party that is told when a subpartition has something to read, or was released."""

    def notify_data_available(self) -> None:
        """Hear that there may be something to poll; any thread, outside every lock."""

    def notify_priority_event(self, sequence_number: int) -> None:
        """Hear that a priority event is at the head, and will be polled with ``sequence_number``; any thread, outside
        every lock.

        Called instead of ``notify_data_available``, once while priority events are queued.
        """


class BufferAndBacklog(NamedTuple):
    """One polled element; the thread that polled it recycles ``buffer``."""

    buffer: NetworkBuffer
    backlog: int
    next_data_type: DataType  # of the next element that can be polled; NONE if there is none
    sequence_number: int


class SegmentRun(NamedTuple):
    """Whole segments full of data that follow each other; the thread that polled them gives them to ``recycler``."""

    segments: list[MemorySegment]
    recycler: BufferRecycler  # of all of them
    backlog: int  # behind the last one
    next_data_type: DataType
    sequence_number: int  # of the first one


class ResultSubpartitionView(ABC):
    """The reader's end of one or several subpartitions; the reader is remote or local.

    Threading: one thread polls; everything else from any thread.
    State: a view of one subpartition has it in ``_subpartition``, and in ``_is_view_released`` whether its reader ended
        the view.  A view of several overrides all methods that use these two.
    """

    __slots__ = ()
    poll_run: Callable[[int], SegmentRun | None] | None = None
    """Polls up to a number of whole segments; None if they come one by one in any case.

    It finds None if the next element is something else (or there is none): ``next_buffer`` then knows.
    """
    _is_view_released: bool
    if TYPE_CHECKING:

        @property
        def _subpartition(self) -> PipelinedSubpartition | BoundedBlockingSubpartition:
            raise NotImplementedError  # an attribute of each view; mypy lets a property be narrowed

    @abstractmethod
    def next_buffer(self) -> BufferAndBacklog | None:
        """Return the next element, which the caller recycles; None if there is nothing or the view is released."""

    def poll_little(self, max_bytes: int, /) -> BufferAndBacklog | None:
        """Poll like ``next_buffer`` if there is only one data buffer of at most ``max_bytes``; None if that is not
        known.
        """
        return None

    def has_data(self, num_credits_available: int) -> bool:
        """Whether something can be polled: with credit anything readable, without only an event at the head."""
        return self.availability(num_credits_available > 0)[0]

    @abstractmethod
    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - per buffer; a keyword costs
        """Return whether something can be polled (without credit: only an event), and how many data buffers can be; one
        lock round.
        """

    @property
    def backlog(self) -> int:
        """How many data buffers can be polled now."""
        return self.availability(True)[1]  # noqa: FBT003 - as above

    @property
    @abstractmethod
    def num_queued_buffers(self) -> int:
        """How many elements are queued, events and elements that cannot be polled yet included; may be
        one pass stale.
        """

    def peek_next_subpartition(self) -> int:
        """Return the index of the next element's subpartition; -1 if there is none.  Only a view of several has to
        look.
        """
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
        """Whether reader or producer ended the view."""
        return self._is_view_released or self._subpartition.state is _RELEASED

    @property
    def failure_cause(self) -> ProducerFailedError | None:
        """Why the producer ended the view, if it did so before everything was consumed."""
        return self._subpartition.parent.failure_cause

    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed."""
        self._subpartition.parent.on_all_data_processed(self._subpartition.index)

    def hand_back(self) -> None:
        """End a view from which nothing was polled: another one may take its place, and finds everything."""
        self.release()

    @abstractmethod
    def release(self) -> None:
        """Mark the subpartition consumed, and drop what is left in it; the second call does nothing."""


class ConsumerListener(Protocol):
    """A producer's listener to the consumers of its partition; Flink has no such thing.

    It is called on the loop thread, or on the thread of a consumer in this process; it must not block.

    One implementer: none in the product, programs that use netstack alone have them.
    """

    def on_acknowledged(self, subpartition: int) -> None:
        """Hear that the consumer has processed everything up to the end of data.

        A pipelined partition that waits for this must not be finished before: the end of the partition ends the reader.
        """

    def on_consumer_left(self, subpartition: int, *, has_read_all: bool) -> None:
        """Hear that the consumer reads no more.

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
        """Whether the reader takes contents (``netstack.buffer.buffer_builder``) as they are; once it does, it always
        will.
        """

    @property
    def num_queued_buffers(self) -> int:
        """How many elements wait for the consumer, events included."""

    @property
    def num_queued_bytes(self) -> int:
        """How many bytes wait for the consumer, those of events included."""

    def add(self, consumer: BufferConsumer, partial_record_length: int = 0) -> int:
        """Append ``consumer`` and take it over; returns the buffer size wanted, or -1 (and ``consumer`` is closed) if
        nobody will read it.
        """

    def add_all(self, consumers: Sequence[BufferConsumer]) -> int:
        """Add several data buffers, which know their partial records."""

    def finish(self) -> int:
        """Append the end of the partition; -1 if nobody will read it."""

    def flush(self) -> None:
        """Make everything committed readable."""

    def create_read_view(self, listener: BufferAvailabilityListener) -> ResultSubpartitionView | None:
        """Make a view; None if the subpartition was released."""

    def release(self) -> None:
        """Drop everything and tell the readers; the second call does nothing."""

    def aligned_barrier_timeout(self, checkpoint_id: int) -> None:
        """Let the barrier of ``checkpoint_id`` overtake what is queued before it."""

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """End the wait for the data before the barrier of ``checkpoint_id``."""

    def check_invariants(self) -> None:
        """Assert what always holds."""


class PipelinedSubpartitionView(ResultSubpartitionView):
    """The reader's end of a subpartition.

    Threading: one thread polls; ``release`` and the properties from any thread.
    """

    __slots__ = (
        "_is_view_released", "_lock", "_subpartition", "listener", "next_buffer", "poll_little", "poll_run",
        "takes_contents",
    )  # fmt: skip
    _subpartition: "PipelinedSubpartition"
    next_buffer: Callable[[], BufferAndBacklog | None]
    poll_little: Callable[[int], BufferAndBacklog | None]

    def __init__(self, subpartition: "PipelinedSubpartition", listener: BufferAvailabilityListener) -> None:
        self._subpartition = subpartition
        self.listener = listener
        self.takes_contents = getattr(listener, "takes_contents", False)
        self._lock = threading.Lock()
        self._is_view_released = False  # Guarded by _lock for the one write.
        # The methods of the subpartition, without a detour.
        self.next_buffer = subpartition.poll
        self.poll_little = subpartition.poll_little
        # A compressor looks at each buffer.
        self.poll_run = None if subpartition.compressor is not None else subpartition.poll_run

    def __repr__(self) -> str:
        return f"<PipelinedSubpartitionView {'released' if self.is_released else 'open'} of {self._subpartition!r}>"

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - see ResultSubpartitionView
        """Return whether something can be polled, and how many data buffers; one lock round."""
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
            # Looked at and set in one lock round: of two threads that release, one alone tells the partition.
            was_open = not self._is_view_released
            self._is_view_released = True
        return was_open

    def hand_back(self) -> None:
        """End a view from which nothing was polled: another one may take its place, and finds everything."""
        if self.retire():
            self._subpartition.take_back(self)

    def release(self) -> None:
        """Mark the subpartition consumed, and drop what is left in it; the second call does nothing."""
        if self.retire():
            self._subpartition.release_by_view()


CACHE_CAPACITY: Final = 10  # Flink's; looking ahead tells the next data type and the backlog


@unique
class UnionViewState(Enum):
    """The life of a union.

    ``start`` passes on notifications that came during ``OPENING``; from ``DROPPED`` on nothing can be polled::

        OPENING -- start --> STARTED -- the producer released a subpartition --> DROPPED -- release --> RELEASED
          |                     `---------------------- release ---------------------------------------^
          `-- as STARTED
    """

    OPENING = "opening"
    STARTED = "open"
    DROPPED = "dropped"
    RELEASED = "released"


_CAN_BE_READ: Final = (UnionViewState.OPENING, UnionViewState.STARTED)


@dataclass(slots=True, eq=False)
class _ListenerOfOne:
    """The listener of one view of a union: tells the union which of its views can be read."""

    union: "UnionResultSubpartitionView"
    index: int

    def notify_data_available(self) -> None:
        """Hear that the subpartition became readable, or was released."""
        self.union.on_data_available(self.index)

    def notify_priority_event(self, sequence_number: int) -> None:
        """Hear that the subpartition has a priority event at its head; in a union it has no priority over the other
        subpartitions.
        """
        self.union.on_data_available(self.index)


class UnionResultSubpartitionView(ResultSubpartitionView):
    """The reader's end of a range of subpartitions.

    Threading: one thread polls; everything else from any thread.
    Life cycle: ``UnionViewState``.  Made; a view added for each subpartition, under the listener made for it; ``start``
        or ``hand_back``; ``release``.
    """

    def __init__(self, listener: BufferAvailabilityListener, subpartitions: range) -> None:
        self.listener = listener
        self._subpartitions = subpartitions
        self._views: dict[int, ResultSubpartitionView] = {}  # Complete before ``start``.
        self._lock = threading.Lock()
        # All below guarded by _lock.
        self._ready: dict[int, None] = {}  # subpartitions that have data and are not being read: an ordered set
        self._cache: deque[tuple[BufferAndBacklog, int]] = deque()
        self._unfinished: int | None = None  # the subpartition whose record may go on in its next buffer
        self._sequence_number = 0
        self._is_looking_ahead = False
        self._was_missed = False  # another thread came while one looked ahead
        self._state = UnionViewState.OPENING  # A bare read may be one pass stale.

    def __repr__(self) -> str:
        return (
            f"<UnionResultSubpartitionView {self._subpartitions} {self._state.value}, {len(self._cache)} buffers ahead>"
        )

    def listener_of(self, subpartition: int) -> BufferAvailabilityListener:
        """Make the listener for the view of ``subpartition``."""
        return _ListenerOfOne(self, subpartition)

    def add_view(self, subpartition: int, view: ResultSubpartitionView) -> None:
        """Read ``view`` as ``subpartition``; it may have notified its listener already."""
        self._views[subpartition] = view

    def start(self) -> None:
        """Pass on the notifications that came before all views were there."""
        # A release behind this look has put its subpartition into the line: the listener is told of that, too.
        is_gone = any(view.is_released for view in self._views.values())
        with self._lock:
            cached = self._drop_locked() if is_gone else []
            if self._state is UnionViewState.OPENING:
                self._state = UnionViewState.STARTED
            # What was told while the views were made was kept: without this look the reader would sleep on.
            is_ready = bool(self._ready)
            is_told = is_ready or is_gone
        self._recycle_and_tell(cached, is_told=is_told)

    def on_data_available(self, subpartition: int) -> None:
        """Queue the view of ``subpartition`` for the next poll and tell the reader; called by ``_ListenerOfOne``."""
        # None while the view is being made: it may tell before ``add_view``.
        view = self._views.get(subpartition)
        is_gone = view is not None and view.is_released
        cached: list[NetworkBuffer] = []
        with self._lock:
            if self._state not in _CAN_BE_READ:
                return
            is_told = self._state is UnionViewState.STARTED
            if is_gone:  # told even if it stands in line: the reader may not look there again
                cached = self._drop_locked()
            elif subpartition in self._ready:
                return
            self._ready[subpartition] = None
        self._recycle_and_tell(cached, is_told=is_told)

    def _drop_locked(self) -> list[NetworkBuffer]:
        """End polling; returns the buffers that the caller recycles outside the lock."""
        self._state = UnionViewState.DROPPED
        cached = [found.buffer for found, _ in self._cache]
        self._cache.clear()
        return cached

    def _recycle_and_tell(self, cached: list[NetworkBuffer], *, is_told: bool) -> None:
        run_all([*(buffer.recycle for buffer in cached), *([self.listener.notify_data_available] if is_told else [])])

    # ---------------------------------------------------------------- reading

    def next_buffer(self) -> BufferAndBacklog | None:
        """Return the next element, which the caller recycles; None if there is nothing or the view is released."""
        self._look_ahead()
        with self._lock:
            if not self._cache:
                return None
            found, _ = self._cache.popleft()
            next_data_type = self._cache[0][0].buffer.data_type if self._cache else DataType.NONE
            sequence_number = self._sequence_number
            self._sequence_number += 1
            return BufferAndBacklog(found.buffer, self._backlog_locked(), next_data_type, sequence_number)

    def peek_next_subpartition(self) -> int:
        """Return the index of the next element's subpartition; -1 if there is none."""
        self._look_ahead()
        with self._lock:
            return self._cache[0][1] if self._cache else -1

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - see ResultSubpartitionView
        """Return whether something can be polled, and how many data buffers were looked at ahead."""
        self._look_ahead()
        with self._lock:
            if not self._cache:
                return False, 0
            return is_credit_available or not self._cache[0][0].buffer.is_buffer, self._backlog_locked()

    def _look_ahead(self) -> None:
        with self._lock:
            if self._is_looking_ahead:
                self._was_missed = True
                return
            # Of two threads that look ahead at once, the second one could put its element before the first one's.
            self._is_looking_ahead = True
        try:
            while (subpartition := self._next_in_line()) is not None:
                found = self._views[subpartition].next_buffer()
                if found is not None:  # else it will tell when there is something
                    self._keep(found, subpartition)
        finally:
            with self._lock:
                self._is_looking_ahead = False
                was_missed, self._was_missed = self._was_missed, False
        # The other thread may have left with an empty cache: what was found since is news to it.
        if was_missed:
            self.listener.notify_data_available()

    def _next_in_line(self) -> int | None:
        """Take the next subpartition out of the line, before it is polled, so that no notification
        meanwhile is lost.
        """
        with self._lock:
            if self.is_released or len(self._cache) == CACHE_CAPACITY:
                return None
            if self._unfinished is not None:
                subpartition = self._unfinished if self._unfinished in self._ready else None
            else:
                subpartition = next(iter(self._ready), None)
            if subpartition is not None:
                del self._ready[subpartition]
            return subpartition

    def _keep(self, found: BufferAndBacklog, subpartition: int) -> None:
        with self._lock:
            is_late = self.is_released
            if not is_late:
                # Such a buffer may end inside a record: the rest must follow it, before any other subpartition.
                self._unfinished = subpartition if found.buffer.data_type is DataType.DATA_BUFFER else None
                self._cache.append((found, subpartition))
                # The subpartition does not tell again of elements that its reader was promised.
                if found.next_data_type is not DataType.NONE:
                    self._ready[subpartition] = None
        # The release has emptied the cache before this element came.
        if is_late:
            found.buffer.recycle()

    def _backlog_locked(self) -> int:
        return sum(found.buffer.is_buffer for found, _ in self._cache)

    # ---------------------------------------------------------------- for the producer, and the end

    @property
    def num_queued_buffers(self) -> int:
        """How many elements are queued."""
        return len(self._cache) + sum(view.num_queued_buffers for view in self._views.values())

    def resume_consumption(self) -> None:
        """Refuse: it is not known which of several subpartitions is meant.

        Raises:
            LocalProtocolError: always.
        """
        raise LocalProtocolError(f"subpartitions {self._subpartitions} are read as one, and cannot be resumed")

    def notify_new_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of ``size_bytes``, in every subpartition."""
        for view in self._views.values():
            view.notify_new_buffer_size(size_bytes)

    def send_empty_buffers(self) -> None:
        """Hand out empty buffers too, of every subpartition."""
        for view in self._views.values():
            view.send_empty_buffers()

    @property
    def is_released(self) -> bool:
        """Whether the reader ended the view, or the producer any of its subpartitions."""
        return self._state not in _CAN_BE_READ

    @property
    def failure_cause(self) -> ProducerFailedError | None:
        """Why the producer ended the view, if it did so before everything was consumed."""
        return next((view.failure_cause for view in self._views.values() if view.failure_cause is not None), None)

    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed, in every subpartition."""
        run_all([view.acknowledge_all_data_processed for view in self._views.values()])

    def hand_back(self) -> None:
        """End a union that was not started: some of its subpartitions cannot be had, and others may read those that it
        has.
        """
        # The cache is empty: nobody polls before ``start``.
        run_all([view.hand_back for view in self._views.values()])

    def release(self) -> None:
        """Mark every subpartition consumed, and drop what is left; the second call does nothing."""
        with self._lock:
            if self._state is UnionViewState.RELEASED:
                return
            cached = self._drop_locked()
            self._state = UnionViewState.RELEASED
        run_all([*(buffer.recycle for buffer in cached), *(view.release for view in self._views.values())])
