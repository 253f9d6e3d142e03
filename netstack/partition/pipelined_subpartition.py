"""The queue between one producer task and one consumer.

Side:       shared.  The task thread adds and flushes; the consumer's thread (loop or task) polls; anybody releases.
Hot path:   per buffer.  Data takes ``add`` and ``poll`` alone; whatever belongs to events stands in functions of its
            own.
Invariants: only the last consumer in the queue may be unfinished; the backlog reported equals the data buffers that can
            be polled now; sequence numbers start at 0 and rise by one per polled element; priority events stand before
            everything else.  The reader is notified if and only if something became available of which it does not know
            (the table below); availability is a level, so a reader that polls until the next data type is NONE misses
            nothing.
Units:      backlog in data buffers, events do not count; sizes in bytes.
Lock order: ``PipelinedSubpartition._lock`` before a buffer's lease; listeners, the channel state writer, closed
            consumers (which may recycle a segment) and the partition are called after it.
Source:     Flink ``PipelinedSubpartition``.  Unlike Flink's, resuming tells the listener itself, so that no reader can
            forget to look (FLINK-23223, FLINK-25664).

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
anything while blocked             no                             no        0
resume, something is available     yes                            yes       as above
add the 1st priority event         of the priority event, and as  yes, also blocked: 0
                                   above                          blocked
add another priority event         no                             yes
================================== ============================== ========= =======================
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from netstack.availability import run_all
from netstack.buffer.buffer_builder import BufferConsumer, SegmentConsumer
from netstack.buffer.network_buffer import BufferCompressor, BufferRecycler, MemorySegment
from netstack.errors import LocalProtocolError, ResourceClosedError
from netstack.partition.channel_state import (
    NO_CHANNEL_STATE,
    ChannelStateWriter,
    InFlightData,
    ResultSubpartitionInfo,
    TimeoutableBarrier,
    checked_barrier,
    copies_of_unread,
)
from netstack.partition.result_subpartition import (
    BufferAndBacklog,
    BufferAvailabilityListener,
    PipelinedSubpartitionView,
    SegmentRun,
    SubpartitionState,
)
from netstack.wire.events import CheckpointBarrier, EndOfPartition, event_data_type, serialize_event
from netstack.wire.messages import DataType

if TYPE_CHECKING:
    from netstack.partition.result_partition import ResultPartition

ADD_REFUSED: Final = -1  # the result of ``add`` if nobody will read the buffer
NO_BUFFER_SIZE: Final = 2**31 - 1  # the consumer asked for no size: whole segments
_NONE: Final = DataType.NONE
_OPEN: Final = SubpartitionState.OPEN
_new_tuple: Final = tuple.__new__  # half the cost of a named tuple's own constructor (bench: transport)


class PipelinedSubpartition:
    """A queue, first in, first out (but for priority events), read once, by one view.

    Life cycle: ``SubpartitionState``.  Released by its partition, or by its view, whichever comes first; from then on
    everything added is dropped, so a producer whose consumer has gone runs on at full speed.

    State, guarded by ``_lock`` unless it says otherwise, and who uses it:
        queue: ``_buffers``, ``_num_data_buffers``, ``_num_priority``, ``_flush_requested``.  Producers, readers and
            release.
        reading: ``_sequence_number``, ``_is_blocked``, ``_skips_partial_record``, ``_sends_empty_buffers``.  Readers
            alone change it; a producer looks at ``_is_blocked``.
        ends: ``state``, ``_view``.
        barriers: ``_waiting`` and, written once, ``channel_state`` and ``info``.  Events and time-outs; data buffers
            never.

    Args:
        index: which subpartition of its partition it is.
        parent: the partition.
        sends_empty_buffers: whether a finished buffer without unread bytes is sent too: a receiver without exclusive
            buffers has to learn that the room it made for it is free again.  Its reader can ask for it later
            (``send_empty_buffers``).
    """

    def __init__(
        self,
        index: int,
        parent: "ResultPartition",
        *,
        sends_empty_buffers: bool = False,
        partition_index: int = 0,
        compressor: BufferCompressor | None = None,
    ) -> None:
        self.index = index
        self.info = ResultSubpartitionInfo(partition_index, index)
        # Written before the first barrier, by the task thread.
        self.channel_state: ChannelStateWriter = NO_CHANNEL_STATE
        self.parent = parent
        self.compressor = compressor
        self._sends_empty_buffers = sends_empty_buffers
        self._lock = threading.Lock()
        self.state = _OPEN  # Written under _lock; a bare read may be one pass stale.
        self.desired_buffer_size = NO_BUFFER_SIZE  # Written under _lock; a bare read may be one buffer stale.
        # All below guarded by _lock.
        self._buffers: deque[BufferConsumer] = deque()
        self._num_data_buffers = 0
        self._num_priority = 0  # how many of the first elements are priority events
        self._flush_requested = False
        self._is_blocked = False  # a blocking event was polled, and the consumer has not resumed yet
        self._skips_partial_record = False
        self._sequence_number = 0
        self._waiting: TimeoutableBarrier | None = None  # neither consumed nor timed out; one at a time
        self._view: PipelinedSubpartitionView | None = None

    def __repr__(self) -> str:
        blocked = ", blocked" if self._is_blocked else ""
        return (
            f"<{type(self).__name__} {self.index} {self.state.value}{blocked}, {len(self._buffers)} buffers, "
            f"{self._num_data_buffers} of them data, {self._sequence_number} polled>"
        )

    @property
    def is_released(self) -> bool:
        """Whether nothing can be read of it any more."""
        return self.state is SubpartitionState.RELEASED

    @property
    def takes_contents(self) -> bool:
        """Whether its one reader is of this process, and takes contents as they are."""
        view = self._view  # Without the lock: one attribute load; a view that comes just now counts from the next call.
        return view is not None and view.takes_contents and self.compressor is None

    @property
    def num_queued_buffers(self) -> int:
        """How many elements are queued, events included."""
        return len(self._buffers)  # Without the lock: the length of a deque is one read; it may be one pass stale.

    @property
    def num_queued_bytes(self) -> int:
        """How many committed bytes are queued, those of events included."""
        with self._lock:
            return sum(consumer.num_bytes_unread for consumer in self._buffers)

    # ---------------------------------------------------------------- producer

    def add(self, consumer: BufferConsumer, partial_record_length: int = 0) -> int:
        """Append ``consumer`` and take it over.

        Args:
            consumer: a data buffer, or an event, which goes before everything else if it has priority.
            partial_record_length: how many of the first bytes belong to a record that began in an earlier buffer.

        Returns:
            the buffer size the consumer wants from now on; or ``ADD_REFUSED`` (and ``consumer`` is closed) if nobody
            will read it.

        Raises:
            LocalProtocolError: a barrier is marked as something it is not; ``consumer`` is closed.
        """
        if not consumer.is_buffer:
            return self._add_event(consumer, is_end=False)
        if partial_record_length:
            consumer.partial_record_length = partial_record_length
        view = None
        with self._lock:
            is_refused = self.state is not _OPEN
            if not is_refused:
                self._buffers.append(consumer)
                self._num_data_buffers += 1
                if self._is_news_locked():
                    view = self._view
        if is_refused:
            consumer.close()
            return ADD_REFUSED
        if view is not None:
            view.listener.notify_data_available()
        return self.desired_buffer_size

    def add_all(self, consumers: Sequence[BufferConsumer]) -> int:
        """Add several data buffers, which know their partial records, in one lock round and with one notification."""
        view = None
        buffers = self._buffers
        with self._lock:
            is_refused = self.state is not _OPEN
            if not is_refused:
                num_before = len(buffers)
                buffers.extend(consumers)
                self._num_data_buffers += len(consumers)
                if not (self._flush_requested or self._is_blocked) and (
                    num_before < 2 <= len(buffers) or (num_before == 0 < len(buffers) and buffers[0].is_finished)
                ):
                    view = self._view
        if is_refused:
            run_all([consumer.close for consumer in consumers])
            return ADD_REFUSED
        if view is not None:
            view.listener.notify_data_available()
        return self.desired_buffer_size

    def finish(self) -> int:
        """Append the end of the partition; ``ADD_REFUSED`` if nobody will read it."""
        event = EndOfPartition()
        return self._add_event(BufferConsumer.of_event(serialize_event(event), event_data_type(event)), is_end=True)

    def flush(self) -> None:
        """Make everything committed readable, the unfinished last buffer included; any thread."""
        with self._lock:
            buffers = self._buffers
            if not buffers or self._flush_requested:
                return
            has_one_unfinished = len(buffers) == 1 and buffers[0].is_data_available
            # With more than one buffer the reader was told when the second one came.
            self._flush_requested = has_one_unfinished or len(buffers) > 1
            view = self._view if has_one_unfinished and not self._is_blocked else None
        if view is not None:
            view.listener.notify_data_available()

    def _is_news_locked(self) -> bool:
        """Whether the element that was just appended is, or finishes, the first one that can be read."""
        if self._flush_requested or self._is_blocked:
            return False
        num_buffers = len(self._buffers)
        return num_buffers == 2 or (num_buffers == 1 and self._buffers[0].is_finished)

    # ---------------------------------------------------------------- events and barriers

    def _add_event(self, consumer: BufferConsumer, *, is_end: bool) -> int:
        calls: list[Callable[[], object]] = []
        barrier = checked_barrier(consumer)
        with self._lock:
            is_refused = self.state is not _OPEN
            if not is_refused:
                if consumer.data_type.has_priority:
                    calls += self._add_priority_locked(consumer, barrier)
                else:
                    if barrier is not None:
                        calls += self._expect_locked(consumer, barrier)
                    self._buffers.append(consumer)
                if is_end:
                    # In the lock round of the append: data that a thread adds in between would stand behind the end.
                    self.state = SubpartitionState.FINISHED
                if self._view is not None and (is_end or self._is_news_locked()):
                    calls.append(self._view.listener.notify_data_available)
        if is_refused:
            consumer.close()
            return ADD_REFUSED
        run_all(calls)
        return self.desired_buffer_size

    def _expect_locked(self, consumer: BufferConsumer, barrier: CheckpointBarrier) -> list[Callable[[], object]]:
        """Let ``barrier``, which is about to be queued, wait for its consumer or time-out; returns calls to make."""
        former = self._waiting
        self._waiting = waiting = TimeoutableBarrier(consumer, barrier, InFlightData())
        tell = partial(self.channel_state.add_output_data, barrier.checkpoint_id, self.info, waiting.in_flight)
        if former is None:
            return [tell]
        # An error of the coordinator; the writer of the first one must not wait for ever.
        error = LocalProtocolError(
            f"subpartition {self.index} got the barrier of checkpoint {barrier.checkpoint_id} while that of "
            f"{former.barrier.checkpoint_id} was neither consumed nor timed out"
        )
        return [partial(former.in_flight.complete, (), error), tell]

    def _add_priority_locked(
        self, consumer: BufferConsumer, barrier: CheckpointBarrier | None
    ) -> list[Callable[[], object]]:
        """Put the event behind the other priority events; returns the calls to make."""
        # Before anything changes: making bytes of a content may fail.
        overtaken = [] if barrier is None else copies_of_unread(self._buffers)
        # In front: the data that it overtakes was copied above, for its checkpoint.
        self._buffers.insert(self._num_priority, consumer)
        self._num_priority += 1
        calls: list[Callable[[], object]] = []
        if barrier is not None and overtaken:
            data = InFlightData()
            calls.append(partial(data.complete, overtaken))
            calls.append(partial(self.channel_state.add_output_data, barrier.checkpoint_id, self.info, data))
        return calls + self._tell_priority_locked()

    def _tell_priority_locked(self) -> list[Callable[[], object]]:
        if self._num_priority != 1 or self._view is None:
            return []  # the reader finds it behind the first one
        # Not as data: the gate would let it wait behind the data of other channels.
        return [partial(self._view.listener.notify_priority_event, self._sequence_number)]

    def aligned_barrier_timeout(self, checkpoint_id: int) -> None:
        """Turn the barrier of ``checkpoint_id`` into a priority event, if it was not consumed yet; any thread."""
        with self._lock:
            # Consumed meanwhile, or of another checkpoint: its timer may fire late.
            waiting = self._waiting
            if waiting is None or waiting.barrier.checkpoint_id != checkpoint_id:
                return
            # Before anything changes: making bytes of a content may fail.
            position = self._buffers.index(waiting.consumer)
            overtaken = copies_of_unread(islice(self._buffers, position))
            self._waiting = None
            del self._buffers[position]
            data = serialize_event(waiting.barrier.as_unaligned())
            self._buffers.insert(self._num_priority, BufferConsumer.of_event(data, DataType.PRIORITIZED_EVENT_BUFFER))
            self._num_priority += 1
            calls = self._tell_priority_locked()
        run_all([partial(waiting.in_flight.complete, overtaken), waiting.consumer.close, *calls])

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """End the wait for the data before the barrier of a checkpoint that is over; any thread."""
        with self._lock:
            # Of another checkpoint: an abort that comes late must leave the next one's barrier alone.
            waiting = self._waiting
            if waiting is None or waiting.barrier.checkpoint_id != checkpoint_id:
                return
            self._waiting = None
        waiting.in_flight.complete((), cause)

    # ---------------------------------------------------------------- consumer

    def create_read_view(self, listener: BufferAvailabilityListener) -> PipelinedSubpartitionView | None:
        """Make the one view; ``listener`` is told at once if something is queued.  None: the subpartition was released.

        Raises:
            LocalProtocolError: there is a view already.
        """
        with self._lock:
            if self.is_released:
                return None
            view = self._view = self._new_view_locked(listener)
            calls: list[Callable[[], object]] = [listener.notify_data_available] if self._buffers else []
            if self._num_priority:
                calls.append(partial(listener.notify_priority_event, self._sequence_number))
        run_all(calls)
        return view

    def _new_view_locked(self, listener: BufferAvailabilityListener) -> PipelinedSubpartitionView:
        if self._view is not None:
            raise LocalProtocolError(
                f"subpartition {self.index} is being read by somebody else already, and can only be consumed once"
            )
        return PipelinedSubpartitionView(self, listener)

    def poll(self, reader: PipelinedSubpartitionView | None = None) -> BufferAndBacklog | None:
        """Take the next element, or the committed bytes of the last one; skips empty buffers.  None: there is none.

        A blocked subpartition gives only priority events.

        ``reader``: the polling view, if there may have been others; a view that another one has replaced finds nothing.
        """
        consumed: list[BufferConsumer] = []
        buffer = in_flight = found = None
        with self._lock:
            if self._is_blocked and not self._num_priority:
                return None
            # Under the lock under which a view is replaced: the former reader takes nothing from the next one.
            if reader is not None and reader is not self._view:
                return None
            buffers = self._buffers
            while buffers:
                head = buffers[0]
                if self._skips_partial_record:
                    self._skip_partial_record_locked(head)
                buffer = head.take()
                # As ``take`` saw it: bytes that the writer commits behind it must not be dropped with the buffer.
                is_finished = head.is_finished
                is_last = len(buffers) == 1
                assert is_finished or is_last, "only the last buffer may be unfinished"
                if is_last:
                    self._flush_requested = False  # everything committed has been polled
                if is_finished:
                    buffers.popleft()
                    if buffer is None:
                        consumed.append(head)
                        if self._sends_empty_buffers and head.is_buffer:
                            buffer = head.build()
                    if head.is_buffer:
                        self._num_data_buffers -= 1
                    else:
                        in_flight = self._on_event_polled_locked(head)
                if buffer is not None or not is_finished:
                    break
            if buffer is not None:
                is_available, backlog = self._availability_locked()
                next_data_type = buffers[0].data_type if is_available else DataType.NONE
                found = _new_tuple(BufferAndBacklog, (buffer, backlog, next_data_type, self._sequence_number))
                self._sequence_number += 1
        for consumer in consumed:  # outside every lock: the last reference of an empty buffer returns its segment
            consumer.close()
        if in_flight is not None:
            in_flight.complete(())
        if self.compressor is not None and found is not None:
            return found._replace(buffer=self.compressor.compress(found.buffer))
        return found

    def poll_run(self, max_segments: int) -> SegmentRun | None:
        """Take up to ``max_segments`` whole segments of one recycler; None: the head is something else, ``poll`` it."""
        with self._lock:
            if self._is_blocked or self._num_priority or self._skips_partial_record:
                return None
            buffers = self._buffers
            recycler: BufferRecycler | None = None
            segments: list[MemorySegment] = []
            while buffers and len(segments) < max_segments:
                head = buffers[0]
                # An event, or another pool's segment: a run goes home to one recycler.
                if type(head) is not SegmentConsumer or (head.recycler is not recycler and segments):
                    break
                segment = head.take_segment()
                if segment is None:
                    break
                recycler = head.recycler
                segments.append(segment)
                del buffers[0]
            if recycler is None:
                return None
            self._num_data_buffers -= len(segments)
            if not buffers:
                self._flush_requested = False  # everything committed has been polled
            is_available, backlog = self._availability_locked()
            next_data_type = buffers[0].data_type if is_available else DataType.NONE
            sequence_number = self._sequence_number
            self._sequence_number += len(segments)
        return _new_tuple(SegmentRun, (segments, recycler, backlog, next_data_type, sequence_number))

    def _on_event_polled_locked(self, consumer: BufferConsumer) -> InFlightData | None:
        """Count an event and block behind a blocking one; returns the result to complete without buffers, if any."""
        # Priority events stand in front: the polled one was one of them, and others may be left.
        if self._num_priority:
            self._num_priority -= 1
        # Data behind an aligned barrier belongs to the next checkpoint: it waits until the reader resumes.
        if consumer.data_type.is_blocking_upstream:
            self._is_blocked = True
        waiting = self._waiting
        if waiting is None or waiting.consumer is not consumer:
            return None
        self._waiting = None
        return waiting.in_flight

    def _skip_partial_record_locked(self, consumer: BufferConsumer) -> None:
        """Leave out the rest of a record whose beginning went to a consumer that failed."""
        if not consumer.is_buffer:
            return
        if not consumer.is_start_of_data_buffer:
            # Bytes behind those that were read begin with a record.  If there are none, the read ones may have ended
            # within a record.
            self._skips_partial_record = not consumer.is_data_available
            return
        length = consumer.partial_record_length
        if length == 0:
            self._skips_partial_record = False
            return
        consumer.skip(length)
        # A record that fills its buffer may go on in the next one; if it does not, that one begins with a record.
        self._skips_partial_record = length == consumer.segment_size_bytes

    def poll_little(self, max_bytes: int) -> BufferAndBacklog | None:
        """Poll like ``poll`` if there is only one data buffer of at most ``max_bytes``."""
        # Written out in one function for speed.  bench: latency.
        with self._lock:
            buffers = self._buffers
            if len(buffers) != 1 or self._is_blocked or self._skips_partial_record or self.compressor is not None:
                return None
            head = buffers[0]
            if (
                not head.is_buffer
                or not (self._flush_requested or head.is_finished)
                or not 0 < head.num_bytes_unread <= max_bytes
            ):
                return None
            buffer = head.take()
            assert buffer is not None, "there were bytes"
            self._flush_requested = False
            if head.is_finished:
                buffers.popleft()
                self._num_data_buffers -= 1
            number = self._sequence_number
            self._sequence_number = number + 1
        return _new_tuple(BufferAndBacklog, (buffer, 0, _NONE, number))

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - see ResultSubpartitionView
        """Whether a reader can poll something, and how many data buffers it could."""
        with self._lock:
            is_available, backlog = self._availability_locked()
            if is_available and not is_credit_available:
                is_available = not self._buffers[0].is_buffer
        return is_available, backlog

    def resume_consumption(self, reader: PipelinedSubpartitionView | None = None) -> None:
        """Go on after a blocking event; the reader is told if something can be read.

        ``reader``: the calling view, if there may have been others; the call of a replaced view changes nothing.

        Raises:
            LocalProtocolError: it is not blocked.
        """
        with self._lock:
            if self.is_released or (reader is not None and reader is not self._view):
                return
            if not self._is_blocked:
                raise LocalProtocolError(f"subpartition {self.index} is resumed, but not blocked")
            self._is_blocked = False
            # What was added while it was blocked was not told of.
            view = self._view if self._availability_locked()[0] else None
        if view is not None:
            view.listener.notify_data_available()

    def set_buffer_size(self, size_bytes: int) -> None:
        """Set the size of buffers that the consumer wants from the next one on.

        Raises:
            ValueError: the size is negative.
        """
        if size_bytes < 0:
            raise ValueError(f"a buffer size of {size_bytes} bytes")
        with self._lock:
            self.desired_buffer_size = size_bytes

    def send_empty_buffers(self) -> None:
        """Let finished buffers without unread bytes be polled, too, from now on."""
        with self._lock:
            self._sends_empty_buffers = True

    def _availability_locked(self) -> tuple[bool, int]:
        """Whether the head can be polled, and the backlog."""
        buffers = self._buffers
        if not buffers:
            return False, 0
        if self._is_blocked:
            return self._num_priority > 0, 0
        last = buffers[-1]
        # An event at the end (the end of the partition is one) says that all data before it is finished.
        if self._flush_requested or not last.is_buffer:
            return True, self._num_data_buffers
        return len(buffers) > 1 or last.is_finished, self._num_data_buffers - 1

    # ---------------------------------------------------------------- end

    def release(self) -> None:
        """Drop everything and tell the reader, which then sees a released view; any thread, any number of times."""
        with self._lock:
            if self.is_released:
                return
            calls = self._release_locked()
            view = self._view
        run_all(calls + ([] if view is None else [view.listener.notify_data_available]))

    def take_back(self, view: PipelinedSubpartitionView) -> None:
        """Let another view be made in place of ``view``, which polled nothing."""
        with self._lock:
            if self._view is view:
                self._view = None

    def release_by_view(self) -> None:
        """Release the subpartition for its view: the consumer wants no more."""
        with self._lock:
            has_read_all = self.state is SubpartitionState.FINISHED and not self._buffers
            calls = [] if self.is_released else self._release_locked()
        run_all([*calls, partial(self.parent.on_consumed_subpartition, self.index, has_read_all=has_read_all)])

    def _release_locked(self) -> list[Callable[[], object]]:
        self.state = SubpartitionState.RELEASED
        calls: list[Callable[[], object]] = [consumer.close for consumer in self._buffers]
        self._buffers.clear()
        self._num_data_buffers = self._num_priority = 0
        self._flush_requested = False
        # Nobody consumes the barrier any more: without an end its snapshot would wait for ever.
        if self._waiting is not None:
            error = ResourceClosedError(f"subpartition {self.index} was released before the barrier was consumed")
            calls.append(partial(self._waiting.in_flight.complete, (), error))
            self._waiting = None
        return calls

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        with self._lock:
            buffers = list(self._buffers)
            assert self._num_data_buffers == sum(consumer.is_buffer for consumer in buffers), (
                "the backlog is miscounted"
            )
            assert not (self.is_released and buffers), "a released subpartition keeps nothing"
            is_available, backlog = self._availability_locked()
            assert is_available or backlog == 0, "a backlog that cannot be polled"
            assert buffers or not self._flush_requested, "nothing is left to be flushed"
            has_priority = [consumer.data_type.has_priority for consumer in buffers]
            assert has_priority == [position < self._num_priority for position in range(len(buffers))], (
                "priority events come first"
            )
            waiting = self._waiting
            assert waiting is None or waiting.consumer in buffers, "a barrier that was consumed cannot time out"
