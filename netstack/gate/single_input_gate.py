"""All inputs of one task's edge, polled in turns.

Side:       shared.  The task thread polls; channels notify from any thread; anybody closes.
Hot path:   per buffer.
Invariants: a channel stands in the queue at most once, and knows whether it does, and whether with priority; the future
            is done exactly when the queue is not empty, the priority future exactly when a channel is queued with
            priority.  A channel is taken out of the queue before it is polled, so a notification that comes during the
            poll queues it again; once the gate is finished or closed its future stays done, and once it is closed that
            of priority events.
Units:      sizes in bytes, timeouts in seconds.
Lock order: ``SingleInputGate._lock``, that of the queue, is a leaf, and never held together with that of the
            ``GateChannels``; channels are polled and futures completed outside both (FLINK-18595, FLINK-22946).
Source:     Flink ``InputGate`` (both ``AvailabilityHelper``s), ``SingleInputGate`` (``inputChannelsWithData``,
            ``transformBuffer``, ``transformEvent``, ``decompressBufferIfNeeded``), ``InputGateWithMetrics``.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from netstack.availability import AvailabilityFuture, AvailabilityHelper, run_all
from netstack.buffer.network_buffer import BufferDecompressor, NetworkBuffer, recycle_all
from netstack.errors import LocalProtocolError, NetstackError, RemoteProtocolError, ResourceClosedError
from netstack.gate.channels.input_channel import (
    BufferAndAvailability,
    InputChannel,
    Lifecycle,
    PartitionStateChecker,
    PrioritizedDeque,
)
from netstack.gate.gate_channels import (
    BufferOrEvent,
    EndOfDataStatus,
    GateChannels,
    GateStatistics,
    gate_statistics,
)
from netstack.log_lines import shown_state
from netstack.wire.events import EndOfData, EndOfPartition, Event, StopMode, deserialize_event
from netstack.wire.messages import DataType, is_before

_PRIORITY: Final = DataType.PRIORITIZED_EVENT_BUFFER
_NONE: Final = DataType.NONE
_REQUESTED: Final = Lifecycle.REQUESTED
_RELEASED: Final = Lifecycle.RELEASED
_new: Final = tuple.__new__  # half the cost of a named tuple's own constructor (bench: transport)


class SingleInputGate(GateChannels):
    """The gate of one edge: the turns of its channels, and the polls.

    It has two parts, and few things cross.  Its own queue has the channels that have data; the task takes them out, any
    thread puts them in, under ``_lock``, which methods that end in ``_locked`` need.  ``GateChannels``, the base:
    set-up, requests, updates and the life cycle, under a lock of its own; polls read its list and its state.  Polled
    buffers and events are the task's alone: items carry their references to it, and a buffer that cannot become an item
    is recycled.

    Life cycle: ``Lifecycle``: ``add_channel`` ... -> ``request_partitions`` -> polled until ``is_finished`` ->
        ``close``.

    Args:
        state_checker: knows the state of producers whose partitions are not found; without one that is the channel's
            error at once.
        decompressor: restores compressed buffers; without one they are an error.
        clock_ns: the monotonic clock for timeouts.
    """

    def __init__(
        self,
        owner: str,
        *,
        state_checker: PartitionStateChecker | None = None,
        decompressor: BufferDecompressor | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(owner, state_checker, decompressor)
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._queue: PrioritizedDeque[InputChannel] = PrioritizedDeque()
        self._availability = AvailabilityHelper()
        self._priority_availability = AvailabilityHelper()
        # Written by the task thread.
        self._num_finished = 0
        self._num_ended = 0  # channels whose data has ended
        self._should_drain = True

    def __repr__(self) -> str:
        state = shown_state("open", closed=self.is_closed, finished=self.is_finished)
        channels = f"{self._num_finished} of {self.num_channels} channels finished"
        return f"<SingleInputGate of {self.owner} {state}, {channels}, {len(self._queue)} have data>"

    @property
    def is_finished(self) -> bool:
        """Whether every channel reached the end of its partition; a gate that was closed before is not finished."""
        return self._num_finished == len(self._by_index) and (self._num_finished > 0 or self._lifecycle is _REQUESTED)

    @property
    def end_of_data_status(self) -> EndOfDataStatus:
        """Whether every channel reached the end of its data, and whether all of them want to drain."""
        if self._num_ended < len(self._by_index) or not self._by_index:
            return EndOfDataStatus.NOT_END_OF_DATA
        return EndOfDataStatus.DRAINED if self._should_drain else EndOfDataStatus.STOPPED

    # ---------------------------------------------------------------- requests

    def request_partitions(self) -> None:
        """Let every channel ask for its data; task thread, the second call does nothing.

        Raises:
            ResourceClosedError: the gate was closed.
        """
        channels = self._begin_requests()
        if channels is None:
            return
        for channel in channels:
            self._start(channel)
        # No channel will ever wake the reader of an empty gate, which is finished at once.
        if not channels:
            self._make_available()

    # ---------------------------------------------------------------- polling

    def available_future(self) -> AvailabilityFuture:
        """Return the future that is done if a poll may find something (or the gate is finished or closed), else
        completed when it may.
        """
        with self._lock:
            return self._availability.future

    def priority_event_available_future(self) -> AvailabilityFuture:
        """Return the future that is done while a priority event can be polled (or the gate is closed), else completed
        when one comes.
        """
        with self._lock:
            return self._priority_availability.future

    def get_next(self, timeout_s: float | None = None) -> BufferOrEvent | None:
        """Return the next buffer or event; blocks until there is one.  None if the gate is finished.

        Raises:
            TimeoutError: nothing came within ``timeout_s``.
            ResourceClosedError: the gate was closed, before or meanwhile.
            NetstackError: the error of a channel.
        """
        deadline_ns = None if timeout_s is None else self._clock_ns() + int(timeout_s * 1e9)
        while True:
            found = self.poll_next()
            if found is not None or self.is_finished:
                return found
            remaining_s = None if deadline_ns is None else (deadline_ns - self._clock_ns()) / 1e9
            if remaining_s is not None and remaining_s <= 0:
                raise TimeoutError(f"nothing came within {timeout_s:g} s: {self!r}")
            signal = threading.Lock()  # the cheapest one-shot signal
            signal.acquire()  # no wait: the lock is new
            # Behind the vain poll: data that came since then has completed this future.
            available = self.available_future()
            wake = signal.release
            available.add_done_callback(wake)
            try:
                # waits for data of the gate; ended by data, an error, or close
                signal.acquire(timeout=-1 if remaining_s is None else remaining_s)
            finally:
                available.remove_done_callback(wake)  # Otherwise each timeout would leave a callback on a future.

    def get_many(self, max_items: int, timeout_s: float | None = None) -> list[BufferOrEvent]:
        """Poll like ``poll_many``, but block until there is something.  Empty if the gate is finished.

        Raises as ``get_next``.
        """
        found = self.poll_many(max_items)
        single = None if found else self.get_next(timeout_s)
        return found if single is None else [single]

    def poll_many(self, max_items: int) -> list[BufferOrEvent]:
        """Return up to ``max_items`` items, as ``poll_next`` would give them; an event comes alone.

        Empty if there is nothing.  Never blocks.

        A channel yields several buffers in a row only if it is the only one that has data.  A checkpoint that starts
        before the caller is through with all of them does not know of the rest: they were polled.

        Raises:
            ResourceClosedError: the gate was closed.
            NetstackError: the error of the channel whose turn it was; it is raised again at its next turn.
        """
        found = self.poll_data(max_items)
        if found:
            return found
        single = self.poll_next()
        return [] if single is None else [single]

    def poll_next(self) -> BufferOrEvent | None:
        """Return the next buffer or event, channels taking turns; None if there is none now.  Never blocks.  Task
        thread.

        Raises:
            ResourceClosedError: the gate was closed.
            NetstackError: the error of the channel whose turn it was; it is raised again at its next turn.
        """
        queue, lock = self._queue, self._lock
        while True:
            with lock:
                was_prioritized = bool(queue.priority)
                if was_prioritized:
                    channel = queue.priority.popleft()
                    channel.is_prioritized = False
                elif queue.rest:
                    channel = queue.rest.popleft()
                else:
                    if self._lifecycle is _RELEASED:
                        break
                    return None
                channel.is_queued = False  # Before the poll: a notification that comes during it queues the channel.
            found = self._poll_channel(channel, was_prioritized=was_prioritized)
            if found is not None:
                return found
        raise ResourceClosedError(f"the input gate of {self.owner} was closed")

    @property
    def next_is_data(self) -> bool:
        """Whether the next poll is known to find data: no event, no error.  Task thread."""
        queue = self._queue
        with self._lock:
            channel = None if queue.priority or not queue.rest else queue.rest[0]
        return channel is not None and channel.next_is_data

    @property
    def next_is_event(self) -> bool:
        """Whether the next poll is known to find an event or an error.  Task thread."""
        queue = self._queue
        with self._lock:
            waiting = queue.priority or queue.rest
            channel = waiting[0] if waiting else None
        return channel is not None and channel.next_is_event

    def poll_data(self, max_buffers: int) -> list[BufferOrEvent]:
        """Return data of the channels whose turn it is; nothing if the first one has something else.

        Never blocks.  Task thread.
        """
        queue, lock = self._queue, self._lock
        with lock:
            rest = queue.rest
            if queue.priority or not rest:
                return []
            # Taken out before they are polled: a notification during the poll queues its channel again.
            channels = (
                [rest.popleft() for _ in range(min(len(rest), max_buffers))] if len(rest) > 1 else [rest.popleft()]
            )
            for channel in channels:
                channel.is_queued = False
        # Fast path: no other channel has a turn, so all of its buffers may be taken in one lock round.
        if len(channels) == 1:
            return self._poll_run(channels[0], max_buffers)
        found: list[tuple[InputChannel, list[NetworkBuffer]]] = []
        unfinished: list[InputChannel] = []  # polled, and not known to be empty
        is_more = True
        for channel in channels:
            buffers, is_more = channel.next_data(1)
            if not buffers:
                break
            found.append((channel, buffers))
            if is_more:
                unfinished.append(channel)
        with lock:
            if self._lifecycle is not _RELEASED:  # ``close`` has emptied the queue, which stays empty
                for channel in unfinished:
                    # A notification that came during the poll has queued it already.
                    if not channel.is_queued:
                        channel.is_queued = True
                        rest.append(channel)
                # Channels that have something other than data, or were not polled, keep their turn at the front.
                for channel in reversed(channels[len(found) + (not is_more) :]):
                    if not channel.is_queued:
                        channel.is_queued = True
                        rest.appendleft(channel)
            more_available, more_priority_events = self._look_locked()
        return self._transform_buffers(found, more_available=more_available, more_priority_events=more_priority_events)

    def _poll_run(self, channel: InputChannel, max_buffers: int) -> list[BufferOrEvent]:
        """Poll like ``poll_data``, from the only channel in the queue, which was taken out of it: twice as quick as
        from several (bench: transport).
        """
        buffers, is_more = channel.next_data(max_buffers)
        queue = self._queue
        with self._lock:
            # A close meanwhile has emptied the queue for good; a notification meanwhile has queued the channel.
            if is_more and not channel.is_queued and self._lifecycle is not _RELEASED:
                channel.is_queued = True
                # A channel that gave no data keeps its turn.
                (queue.rest.append if buffers else queue.rest.appendleft)(channel)
            more_priority_events = bool(queue.priority)
            more_available = more_priority_events or bool(queue.rest)
            if not (more_available or self._lifecycle is _RELEASED or self.is_finished):
                self._availability.reset_unavailable()
        compressed = [each for each in buffers if each.is_compressed]
        if compressed:
            found = [(channel, buffers)]
            return self._transform_buffers(
                found, more_available=more_available, more_priority_events=more_priority_events
            )
        index = channel.index
        items = [_new(BufferOrEvent, (index, each, None, True, more_priority_events, each.size)) for each in buffers]
        if items and not more_available:
            each = buffers[-1]
            items[-1] = _new(BufferOrEvent, (index, each, None, False, False, each.size))
        return items

    def _look_locked(self) -> tuple[bool, bool]:
        """Return whether more can be polled, and whether that has priority; the gate becomes unavailable if not."""
        more_priority_events = bool(self._queue.priority)
        more_available = more_priority_events or bool(self._queue.rest)
        if self._lifecycle is not _RELEASED:
            # The end of a gate is looked at under the lock that ``_make_available`` takes: an end that comes now wakes
            # the task behind this reset.
            if not more_priority_events and self._priority_availability.future.is_done:
                self._priority_availability.reset_unavailable()
            if not (more_available or self.is_finished):
                self._availability.reset_unavailable()
        return more_available, more_priority_events

    def _poll_channel(self, channel: InputChannel, *, was_prioritized: bool) -> BufferOrEvent | None:
        next_data_type = DataType.EVENT_BUFFER  # a channel that raises stays in the queue
        found = None
        try:
            found = channel.next_buffer()
            next_data_type = _NONE if found is None else found[2]
        finally:
            with self._lock:
                # Also after an error, which the next turn of the channel raises again.
                if next_data_type is not _NONE and self._lifecycle is not _RELEASED:
                    self._enqueue_locked(channel, has_priority=next_data_type is _PRIORITY)
                    if next_data_type is _PRIORITY:
                        channel.prioritized_by = None
                if was_prioritized and found is not None:
                    self._after_priority_locked(channel, found)
                more_available, more_priority_events = self._look_locked()
        if found is None:
            return None
        buffer = found[0]
        if not buffer.is_buffer:
            # Remembered: the news of it may still come, and would promise another one.
            if buffer.data_type is _PRIORITY and not was_prioritized:
                # It was polled in an ordinary turn, before anybody told of it.
                with self._lock:
                    self._after_priority_locked(channel, found)
                    more_available, more_priority_events = self._look_locked()
            size = buffer.size
            event = self._transform_event(channel, buffer)
            if event is None:
                return None
            if isinstance(event, EndOfPartition):
                more_available = self._end_channel(channel)
            return BufferOrEvent(channel.index, None, event, more_available, more_priority_events, size)
        if buffer.is_compressed:
            buffer = self._decompress(channel, buffer)
        return _new(BufferOrEvent, (channel.index, buffer, None, more_available, more_priority_events, buffer.size))

    def _transform_event(self, channel: InputChannel, buffer: NetworkBuffer) -> Event | None:
        """Decode an event for the task; None if the task must not see it: an end that some subpartitions of the channel
        have not reached.
        """
        # Counted even if the task never sees it: it has left the queue, and the channel has room for another event.
        channel.num_events_in += 1
        channel.num_event_bytes_in += buffer.size
        if channel.num_subpartitions > 1 and not channel.concerns_all(buffer.data_type):
            buffer.recycle()
            return None
        try:
            event = deserialize_event(buffer.view)
        finally:
            buffer.recycle()
        # Only once for a channel: the ends of single subpartitions were dropped above.
        if isinstance(event, EndOfData):
            self._num_ended += 1
            self._should_drain = self._should_drain and event.mode is StopMode.DRAIN
        return event

    def _transform_buffers(
        self,
        found: Sequence[tuple[InputChannel, Sequence[NetworkBuffer]]],
        *,
        more_available: bool,
        more_priority_events: bool,
    ) -> list[BufferOrEvent]:
        """Make one item of each buffer, restored if it was compressed; the last one has ``more_available``.

        A buffer that cannot be restored is its channel's error, for the next poll.
        """
        items: list[BufferOrEvent] = []
        for channel, buffers in found:
            index = channel.index
            num_before = len(items)
            try:
                for each in buffers:
                    buffer = self._decompress(channel, each) if each.is_compressed else each
                    items.append(_new(BufferOrEvent, (index, buffer, None, True, more_priority_events, buffer.size)))
            except NetstackError as error:  # of this buffer: buffers before it, and of other channels, are not lost
                recycle_all(buffers[len(items) - num_before + 1 :])
                channel.fail(error)
                more_available = True
        if items and not more_available:
            last = items[-1]
            items[-1] = _new(BufferOrEvent, (*last[:3], False, *last[4:]))
        return items

    def _decompress(self, channel: InputChannel, buffer: NetworkBuffer) -> NetworkBuffer:
        """Return the original of a compressed ``buffer``.

        Raises:
            NetstackError: compression is off here, or the bytes are none that were compressed.
        """
        if self._decompressor is None:
            buffer.recycle()
            raise RemoteProtocolError(
                f"channel {channel.index} of {self.owner}: a compressed buffer, but compression is off here"
            )
        return self._decompressor.decompress(buffer)

    def _after_priority_locked(self, channel: InputChannel, found: BufferAndAvailability) -> None:
        queue = self._queue
        if found.buffer.data_type is _PRIORITY:
            channel.last_priority_sequence_number = found.sequence_number
            # This event was told of while it was polled, and no later one was: the channel has no other.
            told = channel.prioritized_by
            if channel.is_prioritized and told is not None and not is_before(found.sequence_number, told):
                queue.priority.remove(channel)
                queue.rest.append(channel)
                channel.is_prioritized = False

    def _end_channel(self, channel: InputChannel) -> bool:
        """Release a channel that has ended, and take it out of the queue (FLINK-22368); returns whether another one has
        data.
        """
        # First: ``enqueue_channel`` may have read the state before, and then the channel is taken out below.
        channel.release()
        self._num_finished += 1
        with self._lock:
            # Its end was the last element, but a notification may have come during the poll.
            if channel.is_queued:
                (self._queue.priority if channel.is_prioritized else self._queue.rest).remove(channel)
                channel.is_queued = channel.is_prioritized = False
            more_available, _ = self._look_locked()
            is_finished = self.is_finished
        if is_finished:
            self._make_available()
        return more_available and not is_finished

    # ---------------------------------------------------------------- told by channels

    def notify_channel_non_empty(self, channel: InputChannel) -> None:
        """Note that a channel has data or an error; nothing happens if it is queued, released, or the gate is closed.

        Any thread.
        """
        pending = self.enqueue_channel(channel)
        if pending is not None:
            pending.complete()

    def enqueue_channel(self, channel: InputChannel) -> AvailabilityFuture | None:
        """Queue a channel that has data or an error, without waking the reader: the caller completes the future that
        this returns.

        None: there is nobody to wake, or nothing to queue (as in ``notify_channel_non_empty``).  Any thread.
        """
        with self._lock:
            # The channel's state is read without its lock: ``_end_channel`` releases it before it takes it out of the
            # queue, so a channel that is queued here by a stale read is taken out there.
            if channel.is_queued or self._lifecycle is _RELEASED or channel.lifecycle is _RELEASED:
                return None
            channel.is_queued = True
            self._queue.rest.append(channel)
            return self._availability.unavailable_to_reset_available()

    def notify_priority_event(self, channel: InputChannel, sequence_number: int) -> None:
        """Note that a channel has a priority event, unless that was polled already: a notification may come late.  Any
        thread.
        """
        self._notify_priority(channel, sequence_number)

    def notify_priority_event_force(self, channel: InputChannel) -> None:
        """Note that a channel has a priority event, whatever was polled before.  Any thread."""
        self._notify_priority(channel, None)

    def _notify_priority(self, channel: InputChannel, sequence_number: int | None) -> None:
        with self._lock:
            last = channel.last_priority_sequence_number
            # That event was polled before this call came.
            if sequence_number is not None and last is not None and not is_before(last, sequence_number):
                return
            if self._lifecycle is _RELEASED or channel.lifecycle is _RELEASED:
                return
            # Of two notices the later one counts: until that event is polled the channel has another one.
            known = channel.prioritized_by
            if (
                sequence_number is None
                or not channel.is_prioritized
                or (known is not None and is_before(known, sequence_number))
            ):
                channel.prioritized_by = sequence_number
            self._enqueue_locked(channel, has_priority=True)
            futures = self._become_available_locked(with_priority=True)
        run_all([future.complete for future in futures])

    def _enqueue_locked(self, channel: InputChannel, *, has_priority: bool) -> None:
        """Put ``channel`` where it belongs; it may be queued already."""
        queue = self._queue
        if not channel.is_queued:
            channel.is_queued = True
            channel.is_prioritized = has_priority
            (queue.priority if has_priority else queue.rest).append(channel)
        # Moved, not added: a channel that stands in both parts would be polled in vain, and counted twice.
        elif has_priority and not channel.is_prioritized:
            queue.rest.remove(channel)
            queue.priority.append(channel)
            channel.is_prioritized = True

    def _become_available_locked(self, *, with_priority: bool) -> list[AvailabilityFuture]:
        """Return the futures to complete after the lock: of priority events, if ``with_priority``, and of data."""
        found = [self._priority_availability.unavailable_to_reset_available()] if with_priority else []
        found.append(self._availability.unavailable_to_reset_available())
        return [future for future in found if future is not None]

    def _make_available(self, *, with_priority: bool = False) -> None:
        """Wake threads that wait for data, and with priority those that wait for a priority event."""
        with self._lock:
            futures = self._become_available_locked(with_priority=with_priority)
        run_all([future.complete for future in futures])

    # ---------------------------------------------------------------- orders to the producers

    def resume_consumption(self, channel_index: int) -> None:
        """Let the producer behind a channel go on after a blocking event.

        Raises:
            LocalProtocolError: the gate is finished.
            ResourceClosedError: the gate or the channel was closed.
        """
        self._check_open()
        if self.is_finished:
            raise LocalProtocolError(f"the input gate of {self.owner} is finished, there is nothing to resume")
        self._by_index[channel_index].resume_consumption()

    # ---------------------------------------------------------------- end and numbers

    def close(self) -> None:
        """Release every channel and wake all waiting threads; any thread, any number of times.

        Buffers in the caller's hands stay the caller's.
        """
        channels = self._close_channels()
        if channels is None:
            return
        with self._lock:
            # Behind the new state: a thread that queues a channel now has come before this lock round, or finds the
            # gate closed.
            for channel in self._queue:
                channel.is_queued = channel.is_prioritized = False
            self._queue.clear()
        # Outside the lock: a release recycles buffers and tells producers.
        calls: list[Callable[[], None]] = [channel.release for channel in channels]
        if self._buffer_pool is not None:
            calls.append(self._buffer_pool.destroy)
        run_all([*calls, partial(self._make_available, with_priority=True)])

    def statistics(self) -> GateStatistics:
        """Return the numbers so far; any thread."""
        return gate_statistics(list(self._by_index), self._num_finished)

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        with self._lock:
            queued = list(self._queue)
            assert len({id(each) for each in queued}) == len(queued), "a channel is queued twice"
            assert all(each.is_queued for each in queued), "a queued channel does not know it"
            assert all(each.is_prioritized for each in self._queue.priority), "a prioritized channel does not know it"
            assert sum(each.is_queued for each in self._by_index) == len(queued), "a channel believes it is queued"
            is_available = bool(queued) or self.is_closed or self.is_finished
            assert self._availability.is_available == is_available, (
                f"{len(queued)} channels have data, but {self._availability.future!r}"
            )
            assert self._priority_availability.is_available == (bool(self._queue.priority) or self.is_closed), (
                f"priority: {self._priority_availability.future!r}"
            )
