"""The queue between one producer task and one consumer.

Side:       shared.  The task thread adds and flushes; the consumer's thread (loop or task) polls; anybody releases.
Hot path:   per buffer.
Invariants: only the last consumer in the queue may be unfinished; the backlog reported equals the data buffers that can be polled now;
            sequence numbers start at 0 and rise by one per polled element.
            The reader is told exactly when something became available that it was not told about (the table below); availability is a
            level, so a reader that polls until the next data type is NONE misses nothing.
Units:      backlog in data buffers, events do not count.
Lock order: ``PipelinedSubpartition._lock`` before a buffer's lease; listeners, closed consumers (which may recycle a segment) and the
            partition are called after it.
Source:     Flink ``PipelinedSubpartition``, ``PipelinedSubpartitionView``.
Absent:     blocking events and ``resume_consumption``, priority events, timeoutable barriers, new buffer sizes, receivers without
            exclusive buffers.

================================== ============================== ========= =======================
situation                          listener is told               available backlog
================================== ============================== ========= =======================
add the 1st data buffer            no                             no        0
add the 1st event                  yes (it is finished at once)   yes       0
add the 2nd element                yes, once                      yes       data buffers but the last
add more                           no                             yes       data buffers but the last
flush, 1 buffer with unread bytes  yes, once                      yes       all
flush, more than 1 buffer          no                             yes       all
flush again, or nothing to flush   no
finish                             yes                            yes       all
================================== ============================== ========= =======================
"""

import threading
from collections import deque
from typing import Protocol

from netstack.buffer.builder import BufferConsumer
from netstack.buffer.segment import NetworkBuffer
from netstack.buffer.wakeups import run_all
from netstack.errors import LocalProtocolError, ProducerFailedError
from netstack.partition.view import BufferAndBacklog, BufferAvailabilityListener
from netstack.wire.events import EndOfPartition, event_data_type, serialize_event
from netstack.wire.messages import DataType


class SubpartitionParent(Protocol):
    """What a subpartition tells its partition, outside every lock."""

    @property
    def failure_cause(self) -> ProducerFailedError | None:
        """Why the partition was released before it was consumed."""

    def on_consumed_subpartition(self, index: int) -> None:
        """The view of ``index`` was released."""

    def on_all_data_processed(self, index: int) -> None:
        """The consumer of ``index`` processed everything up to the end of data."""


class PipelinedSubpartition:
    """First in, first out, read once, by one view.

    Life cycle: released by its partition, or by its view, whichever comes first; from then on everything added is dropped, so a producer
    whose consumer has gone runs on at full speed.
    """

    __slots__ = (
        "_buffers",
        "_flush_requested",
        "_is_finished",
        "_lock",
        "_num_data_buffers",
        "_parent",
        "_sequence_number",
        "_view",
        "index",
        "is_released",
    )

    def __init__(self, index: int, parent: SubpartitionParent) -> None:
        self.index = index
        self._parent = parent
        self._lock = threading.Lock()
        self.is_released = False  # Written once, under _lock; a bare read may be one pass stale.
        # All below guarded by _lock.
        self._buffers: deque[BufferConsumer] = deque()
        self._num_data_buffers = 0
        self._flush_requested = False
        self._is_finished = False
        self._sequence_number = 0
        self._view: PipelinedSubpartitionView | None = None

    def __repr__(self) -> str:
        state = "released" if self.is_released else "finished" if self._is_finished else "open"
        return f"<PipelinedSubpartition {self.index} {state}, {len(self._buffers)} buffers, {self._sequence_number} polled>"

    @property
    def parent(self) -> SubpartitionParent:
        """The partition it is part of."""
        return self._parent

    @property
    def num_queued_buffers(self) -> int:
        """How many elements are queued, events included."""
        return len(self._buffers)

    @property
    def backlog(self) -> int:
        """How many data buffers can be polled now."""
        with self._lock:
            return self._backlog_locked()

    # ---------------------------------------------------------------- producer

    def add(self, consumer: BufferConsumer) -> bool:
        """Append ``consumer`` and take it over; False (and the consumer is closed) if nobody will read it."""
        return self._add(consumer, is_end=False)

    def finish(self) -> bool:
        """Append the end of the partition; False if nobody will read it."""
        event = EndOfPartition()
        return self._add(BufferConsumer.of_event(serialize_event(event), event_data_type(event)), is_end=True)

    def flush(self) -> None:
        """Make everything committed readable, the unfinished last buffer included; any thread."""
        with self._lock:
            buffers = self._buffers
            if not buffers or self._flush_requested:
                return
            has_one_unfinished = len(buffers) == 1 and buffers[0].is_data_available
            # With more than one buffer the reader was told when the second one came.
            self._flush_requested = has_one_unfinished or len(buffers) > 1
            view = self._view if has_one_unfinished else None
        if view is not None:
            view.listener.notify_data_available()

    def _add(self, consumer: BufferConsumer, *, is_end: bool) -> bool:
        with self._lock:
            is_refused = self._is_finished or self.is_released
            view = None
            if not is_refused:
                self._buffers.append(consumer)
                if consumer.is_buffer:
                    self._num_data_buffers += 1
                self._is_finished = is_end
                if is_end or (not self._flush_requested and self._num_finished_locked() == 1):
                    view = self._view
        if is_refused:
            consumer.close()
            return False
        if view is not None:
            view.listener.notify_data_available()
        return True

    # ---------------------------------------------------------------- consumer

    def create_read_view(self, listener: BufferAvailabilityListener) -> "PipelinedSubpartitionView | None":
        """The one view; ``listener`` is told at once if something is queued.  None if the subpartition was released.

        Raises:
            LocalProtocolError: there is a view already.
        """
        with self._lock:
            if self.is_released:
                return None
            if self._view is not None:
                raise LocalProtocolError(f"subpartition {self.index} is being read by somebody else already")
            view = self._view = PipelinedSubpartitionView(self, listener)
            has_data = bool(self._buffers)
        if has_data:
            listener.notify_data_available()
        return view

    def poll(self) -> BufferAndBacklog | None:
        """The next element, or what is committed of the last one; empty buffers are skipped.  None if there is nothing."""
        consumed: list[BufferConsumer] = []
        with self._lock:
            buffer = self._next_locked(consumed)
            if buffer is None:
                found = None
            else:
                found = BufferAndBacklog(buffer, self._backlog_locked(), self._next_data_type_locked(), self._sequence_number)
                self._sequence_number += 1
        for consumer in consumed:  # after the lock: the last reference of an empty one returns its segment
            consumer.close()
        return found

    def _next_locked(self, consumed: list[BufferConsumer]) -> NetworkBuffer | None:
        buffers = self._buffers
        if not buffers:
            self._flush_requested = False
        while buffers:
            consumer = buffers[0]
            buffer = consumer.try_build()
            is_finished = consumer.is_finished
            assert is_finished or len(buffers) == 1, "only the last buffer may be unfinished"
            if len(buffers) == 1:
                self._flush_requested = False  # everything committed has been polled
            if is_finished:
                consumed.append(buffers.popleft())
                if consumer.is_buffer:
                    self._num_data_buffers -= 1
            if buffer is not None or not is_finished:
                return buffer
        return None

    def has_data(self, num_credits_available: int) -> bool:
        """Whether a reader with so much credit can poll something."""
        with self._lock:
            if num_credits_available > 0:
                return self._is_available_locked()
            return bool(self._buffers) and not self._buffers[0].is_buffer

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - see ResultSubpartitionView
        """Whether a reader can poll something, and how many data buffers it could."""
        with self._lock:
            is_available = self._is_available_locked()
            if is_available and not is_credit_available:
                is_available = bool(self._buffers) and not self._buffers[0].is_buffer
            return is_available, self._backlog_locked()

    def resume_consumption(self) -> None:
        """Go on after a blocking event."""

    def set_buffer_size(self, size_bytes: int) -> None:
        """The consumer wants buffers of this size from now on."""

    def _num_finished_locked(self) -> int:
        buffers = self._buffers
        if len(buffers) == 1 and buffers[0].is_finished:
            return 1
        return max(0, len(buffers) - 1)

    def _is_available_locked(self) -> bool:
        return self._flush_requested or self._num_finished_locked() > 0

    def _next_data_type_locked(self) -> DataType:
        return self._buffers[0].data_type if self._is_available_locked() else DataType.NONE

    def _backlog_locked(self) -> int:
        if not self._buffers:
            return 0
        # An event at the end (the end of the partition is one) says that all data before it is finished.
        if self._flush_requested or not self._buffers[-1].is_buffer:
            return self._num_data_buffers
        return max(0, self._num_data_buffers - 1)

    # ---------------------------------------------------------------- end

    def release(self) -> None:
        """Drop everything and tell the reader, which then sees a released view; any thread, any number of times."""
        with self._lock:
            if self.is_released:
                return
            garbage = self._release_locked()
            view = self._view
        run_all([consumer.close for consumer in garbage] + ([] if view is None else [view.listener.notify_data_available]))

    def release_by_view(self) -> None:
        """For the view: the consumer wants no more."""
        with self._lock:
            garbage = [] if self.is_released else self._release_locked()
        index, parent = self.index, self._parent
        run_all([*(consumer.close for consumer in garbage), lambda: parent.on_consumed_subpartition(index)])

    def _release_locked(self) -> list[BufferConsumer]:
        self.is_released = True
        garbage = list(self._buffers)
        self._buffers.clear()
        self._num_data_buffers = 0
        self._flush_requested = False
        return garbage

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        with self._lock:
            buffers = list(self._buffers)
            assert self._num_data_buffers == sum(consumer.is_buffer for consumer in buffers), "the backlog is miscounted"
            assert not (self.is_released and buffers), "a released subpartition keeps nothing"
            assert self._is_available_locked() or self._backlog_locked() == 0, "a backlog that cannot be polled"


class PipelinedSubpartitionView:
    """The reader's end of a subpartition.

    Threading: one thread polls; ``release`` and the properties from any thread.
    """

    __slots__ = ("_is_view_released", "_lock", "_subpartition", "listener")

    def __init__(self, subpartition: PipelinedSubpartition, listener: BufferAvailabilityListener) -> None:
        self._subpartition = subpartition
        self.listener = listener
        self._lock = threading.Lock()
        self._is_view_released = False  # Guarded by _lock for the one write.

    def __repr__(self) -> str:
        return f"<PipelinedSubpartitionView {'released' if self.is_released else 'open'} of {self._subpartition!r}>"

    def next_buffer(self) -> BufferAndBacklog | None:
        """The next element, which the caller recycles; None if there is nothing or the view is released."""
        return self._subpartition.poll()

    def has_data(self, num_credits_available: int) -> bool:
        """Whether something can be polled: with credit anything readable, without only an event at the head."""
        return self._subpartition.has_data(num_credits_available)

    @property
    def next_is_event(self) -> bool:
        """Whether the element at the head is an event, which needs no credit."""
        return self._subpartition.has_data(0)

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - see ResultSubpartitionView
        """Whether something can be polled, and how many data buffers; one lock round."""
        return self._subpartition.availability(is_credit_available)

    @property
    def backlog(self) -> int:
        """How many data buffers can be polled now."""
        return self._subpartition.backlog

    @property
    def num_queued_buffers(self) -> int:
        """How many elements are queued."""
        return self._subpartition.num_queued_buffers

    def peek_next_subpartition(self) -> int:
        """The one subpartition that it reads."""
        return self._subpartition.index

    def resume_consumption(self) -> None:
        """Go on after a blocking event."""
        self._subpartition.resume_consumption()

    def notify_new_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of ``size_bytes`` from the next one on."""
        self._subpartition.set_buffer_size(size_bytes)

    def notify_required_segment_id(self, subpartition: int, segment_id: int) -> None:
        """Nothing: it has no segments."""

    @property
    def is_released(self) -> bool:
        """Whether reader or producer ended it."""
        return self._is_view_released or self._subpartition.is_released

    @property
    def failure_cause(self) -> ProducerFailedError | None:
        """Why the producer ended it, if it did so before everything was consumed."""
        return self._subpartition.parent.failure_cause

    def acknowledge_all_data_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed."""
        self._subpartition.parent.on_all_data_processed(self._subpartition.index)

    def release(self) -> None:
        """Mark the subpartition consumed, and drop what is left in it; the second call does nothing."""
        with self._lock:
            if self._is_view_released:
                return
            self._is_view_released = True
        self._subpartition.release_by_view()
