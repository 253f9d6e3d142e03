"""All inputs of one task's edge, polled in turns.

Side:       shared.  The task thread polls; channels notify from any thread; anybody closes.
Hot path:   per buffer.
Invariants: a channel stands in the queue at most once; it is taken out before it is polled, so a notification that comes during the poll
            queues it again; the future is done exactly when the queue is not empty, or for good once the gate is finished or closed;
            the priority future is done exactly when a channel is queued with priority, or the gate is closed.
Units:      sizes in bytes.
Lock order: ``SingleInputGate._lock`` and ``_request_lock`` are leaves: channels are polled, requested and replaced, and futures completed
            outside them (FLINK-18595, FLINK-22946, FLINK-12510).  ``OfferedInputGate`` takes its book lock under the second one.
Source:     Flink ``InputGate``, ``SingleInputGate``, ``InputGateWithMetrics``.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from netstack.availability import AvailabilityFuture, AvailabilityHelper
from netstack.buffer.buffer_debloater import BufferDebloater
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.buffer.throughput_calculator import ThroughputCalculator
from netstack.errors import LocalProtocolError, NetstackError, RemoteProtocolError, ResourceClosedError, TransportError
from netstack.gate.gate_api import BufferOrEvent, Decompressor, EndOfDataStatus, wait_for_many, wait_for_next
from netstack.gate.gate_statistics import GateStatistics, gate_statistics
from netstack.gate.input_channel import BufferAndAvailability, ChannelStatistics, InputChannel, PartitionStateChecker
from netstack.gate.prioritized_deque import PrioritizedDeque
from netstack.gate.remote_channel import RemoteInputChannel
from netstack.gate.sequence_numbers import is_before
from netstack.gate.unknown_channel import UnknownInputChannel
from netstack.ids import ResultPartitionID
from netstack.partition.channel_state import ChannelStateWriter, DecompressedInput, InputChannelInfo
from netstack.wakeups import run_all
from netstack.wire.events import CheckpointBarrier, EndOfData, EndOfPartition, Event, StopMode, deserialize_event
from netstack.wire.messages import DataType

__all__ = ["BufferOrEvent", "EndOfDataStatus", "SingleInputGate"]  # what a poll yields is imported from here, too

_PRIORITY: Final = DataType.PRIORITIZED_EVENT_BUFFER
_NONE: Final = DataType.NONE
_NS_PER_MS: Final = 1_000_000
_new: Final = tuple.__new__  # half the cost of a named tuple's own constructor (bench: transport)


class SingleInputGate:
    """The gate of one edge.

    Life cycle: ``add_channel`` ... -> ``request_partitions`` -> polled until ``is_finished`` -> ``close``.

    Args:
        state_checker: knows the state of producers whose partitions are not found; without one that is the channel's error at once.
        decompressor: restores compressed buffers; without one they are an error.
        debloater: says which buffer size to ask the producers for; without one none is asked for.
        clock_ns: the monotonic clock for timeouts and throughput.
    """

    def __init__(
        self,
        owner: str,
        *,
        state_checker: PartitionStateChecker | None = None,
        decompressor: Decompressor | None = None,
        debloater: BufferDebloater | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.owner = owner
        self._state_checker = state_checker
        self._decompressor = decompressor
        self._debloater = debloater
        self._throughput = None if debloater is None else ThroughputCalculator()
        self._clock_ns = clock_ns
        self._buffer_pool: LocalBufferPool | None = None
        # Written by the task thread.
        self._num_finished = 0
        self._num_ended = 0
        self._should_drain = True
        self._request_lock = threading.Lock()
        # Guarded by _request_lock for writes; the list is replaced or grows, so it is read bare.
        self._channels: list[InputChannel] = []
        self._is_requested = False
        self._num_unknown = 0
        self._pending_events: list[Event] = []  # for producers that are not known yet (FLINK-1496)
        self._channel_state: tuple[ChannelStateWriter, int] | None = None  # where data in flight is kept, and the gate's index there
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._queue: PrioritizedDeque[InputChannel] = PrioritizedDeque()
        self._availability = AvailabilityHelper()
        self._priority_availability = AvailabilityHelper()
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "finished" if self.is_finished else "open"
        channels = f"{self._num_finished} of {len(self._channels)} channels finished"
        return f"<SingleInputGate of {self.owner} {state}, {channels}, {len(self._queue)} have data>"

    @property
    def channels(self) -> Sequence[InputChannel]:
        """The channels, by index."""
        return self._channels

    @property
    def num_channels(self) -> int:
        """How many channels it has."""
        return len(self._channels)

    @property
    def unfinished_channels(self) -> list[int]:
        """The indexes of the channels that have not reached the end of their partition."""
        return [channel.index for channel in self._channels if not channel.is_released]

    @property
    def is_finished(self) -> bool:
        """Whether every channel reached the end of its partition."""
        return self._is_requested and self._num_finished == len(self._channels)

    @property
    def end_of_data_status(self) -> EndOfDataStatus:
        """Whether every channel reached the end of its data, and whether all of them want to drain."""
        if self._num_ended < len(self._channels) or not self._channels:
            return EndOfDataStatus.NOT_END_OF_DATA
        return EndOfDataStatus.DRAINED if self._should_drain else EndOfDataStatus.STOPPED

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    def available_future(self) -> AvailabilityFuture:
        """Done if a poll may find something (or the gate is finished or closed), else completed when it may."""
        with self._lock:
            return self._availability.future

    def priority_event_available_future(self) -> AvailabilityFuture:
        """Done while a priority event can be polled (or the gate is closed), else completed when one comes."""
        with self._lock:
            return self._priority_availability.future

    # ---------------------------------------------------------------- set-up

    def set_buffer_pool(self, pool: LocalBufferPool) -> None:
        """Give the gate its floating buffers, once, before the request; the gate destroys the pool when it is closed.

        Raises:
            LocalProtocolError: it has a pool already.
        """
        if self._buffer_pool is not None:
            raise LocalProtocolError(f"{self.owner}: the gate has its floating buffers already")
        self._buffer_pool = pool
        for channel in self._channels:
            self._set_up(channel)

    def set_channel_state_writer(self, writer: ChannelStateWriter, gate_index: int) -> None:
        """Let every channel, also one that comes later, keep its data in flight with ``writer``; before the request.

        Raises:
            LocalProtocolError: the partitions were requested already.
        """
        if self._decompressor is not None:
            writer = DecompressedInput(writer, self._decompressor.decompress)
        with self._request_lock:
            is_requested = self._is_requested
            if not is_requested:
                self._channel_state = (writer, gate_index)
                for channel in self._channels:
                    channel.set_channel_state_writer(writer, InputChannelInfo(gate_index, channel.index))
        if is_requested:
            raise LocalProtocolError(f"{self.owner}: where data in flight is kept must be known before the request")

    def add_channel(self, channel: InputChannel) -> None:
        """Add the next channel; its index must be the number of channels so far.

        Raises:
            LocalProtocolError: the index is another one, or the partitions were requested already.
        """
        with self._request_lock:
            num_channels, is_requested = len(self._channels), self._is_requested
            if not is_requested and channel.index == num_channels:
                self._channels.append(channel)
                self._num_unknown += isinstance(channel, UnknownInputChannel)
                self._set_up(channel)
                return
        state = " after the request" if is_requested else ""
        raise LocalProtocolError(f"{self.owner}: channel {channel.index} is added as number {num_channels}{state}")

    def _set_up(self, channel: InputChannel) -> None:
        if self._buffer_pool is not None and isinstance(channel, RemoteInputChannel):
            channel.set_floating_pool(self._buffer_pool)
        if self._channel_state is not None:
            writer, gate_index = self._channel_state
            channel.set_channel_state_writer(writer, InputChannelInfo(gate_index, channel.index))

    def request_partitions(self) -> None:
        """Let every channel ask for its data; task thread, the second call does nothing.

        Raises:
            ResourceClosedError: the gate was closed.
        """
        self._check_open()
        with self._request_lock:
            if self._is_requested:
                return
            self._is_requested = True  # together with the list: an update knows who requests what it brings (FLINK-10747)
            channels = list(self._channels)
        for channel in channels:
            channel.request_subpartition()
        if not channels:
            self._make_available()

    def update_channel(self, channel: InputChannel) -> bool:
        """Put ``channel`` in the place of the unknown one with its index: its producer is known now.  Any thread.

        False (and ``channel`` is released) if the gate was closed, or that channel was known already.
        """
        with self._request_lock:
            index = channel.index
            is_wanted = not self._is_closed and index < len(self._channels) and isinstance(self._channels[index], UnknownInputChannel)
            is_requested = self._is_requested
            events = list(self._pending_events)
            if is_wanted:
                self._set_up(channel)
                self._channels[index] = channel
                self._num_unknown -= 1
                if not self._num_unknown:
                    self._pending_events.clear()
        if not is_wanted:
            channel.release()
            return False
        if is_requested:
            channel.request_subpartition()
        for event in events:
            channel.send_task_event(event)
        return True

    def retrigger_partition_request(self, partition_id: ResultPartitionID, subpartition: int) -> None:
        """Ask for a partition once more, with the channel's back-off; nothing happens after the close.  Any thread."""
        if self._is_closed:
            return
        for channel in list(self._channels):
            if channel.partition_id == partition_id and channel.subpartition == subpartition:
                channel.retrigger_subpartition_request()

    def trigger_partition_state_check(self, channel: InputChannel) -> None:
        """Find out whether the producer of a partition that was not found is alive; any thread, never blocks."""
        if self._state_checker is None:
            channel.fail_partition_request()
            return
        try:
            self._state_checker.check(channel.partition_id, channel.on_producer_state)
        except Exception as error:  # noqa: BLE001 - the checker is foreign; whoever calls this only logs, and the channel would hang
            if isinstance(error, NetstackError):
                channel.on_error(error)
                return
            failed = TransportError(f"the producer of partition {channel.partition_id} cannot be checked: {type(error).__name__}: {error}")
            failed.__cause__ = error
            channel.on_error(failed)

    # ---------------------------------------------------------------- polling

    def poll_next(self) -> BufferOrEvent | None:
        """The next buffer or event, channels taking turns; None if there is none now.  Never blocks.  Task thread.

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
                    if self._is_closed:
                        break
                    return None
                channel.is_queued = False
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

    def poll_many(self, max_items: int) -> list[BufferOrEvent]:
        """What so many ``poll_next`` would find at most, but an event comes alone; empty if there is nothing.  Never blocks.

        A channel yields several buffers in a row only if it is the only one that has data.  A checkpoint that starts before the caller is
        through with all of them does not know of the rest: they were polled.

        Raises:
            ResourceClosedError: the gate was closed.
            NetstackError: the error of the channel whose turn it was; it is raised again at its next turn.
        """
        found = self.poll_data(max_items)
        if not found:
            single = self.poll_next()
            return [] if single is None else [single]
        return found

    def get_many(self, max_items: int, timeout_s: float | None = None) -> list[BufferOrEvent]:
        """``poll_many``, but blocks until there is something.  Empty if the gate is finished, or nothing came within ``timeout_s``.

        Raises:
            ResourceClosedError: the gate was closed, before or meanwhile.
            NetstackError: the error of a channel.
        """
        return wait_for_many(self, max_items, timeout_s, self._clock_ns)

    def poll_data(self, max_buffers: int) -> list[BufferOrEvent]:
        """Data of the channels whose turn it is; nothing if the first one has something else.  Never blocks.  Task thread."""
        queue, lock = self._queue, self._lock
        with lock:
            rest = queue.rest
            if queue.priority or not rest:
                return []
            channels = [rest.popleft() for _ in range(min(len(rest), max_buffers))] if len(rest) > 1 else [rest.popleft()]
            for channel in channels:
                channel.is_queued = False
        if len(channels) == 1:
            return self._poll_run(channels[0], max_buffers)
        found: list[tuple[InputChannel, list[NetworkBuffer]]] = []
        unfinished: list[InputChannel] = []  # polled, and not known to be empty
        for channel in channels:
            buffers, is_more = channel.next_data(1)
            if not buffers:
                break
            found.append((channel, buffers))
            if is_more:
                unfinished.append(channel)
        with lock:
            if not self._is_closed:
                for channel in unfinished:
                    if not channel.is_queued:
                        channel.is_queued = True
                        rest.append(channel)
                for channel in reversed(channels[len(found) :]):  # their turn is still to come
                    if not channel.is_queued:
                        channel.is_queued = True
                        rest.appendleft(channel)
            more_priority_events = bool(queue.priority)
            more_available = more_priority_events or bool(rest)
            if not (more_available or self._is_closed or self.is_finished):
                self._availability.reset_unavailable()
        return self._as_items(found, more_available=more_available, more_priority_events=more_priority_events)

    def _poll_run(self, channel: InputChannel, max_buffers: int) -> list[BufferOrEvent]:
        """``poll_data`` of the only channel in the queue, which was taken out of it: twice as quick as of several (bench: transport)."""
        buffers, is_more = channel.next_data(max_buffers)
        queue = self._queue
        with self._lock:
            if is_more and not channel.is_queued and not self._is_closed:
                channel.is_queued = True
                (queue.rest.append if buffers else queue.rest.appendleft)(channel)  # without data its turn is still to come
            more_priority_events = bool(queue.priority)
            more_available = more_priority_events or bool(queue.rest)
            if not (more_available or self._is_closed or self.is_finished):
                self._availability.reset_unavailable()
        compressed = [each for each in buffers if each.is_compressed]
        if compressed or self._throughput is not None:
            return self._as_items([(channel, buffers)], more_available=more_available, more_priority_events=more_priority_events)
        index = channel.index
        items = [_new(BufferOrEvent, (index, each, None, True, more_priority_events, each.size)) for each in buffers]
        if items and not more_available:
            each = buffers[-1]
            items[-1] = _new(BufferOrEvent, (index, each, None, False, False, each.size))
        return items

    def _as_items(
        self, found: list[tuple[InputChannel, list[NetworkBuffer]]], *, more_available: bool, more_priority_events: bool
    ) -> list[BufferOrEvent]:
        items: list[BufferOrEvent] = []
        for channel, buffers in found:
            index, num_before = channel.index, len(items)
            try:
                for each in buffers:
                    buffer = self._decompress(channel, each) if each.is_compressed else each
                    items.append(_new(BufferOrEvent, (index, buffer, None, True, more_priority_events, buffer.size)))
            except NetstackError as error:  # of this buffer: what was found before it, and elsewhere, is not lost
                recycle_all(buffers[len(items) - num_before + 1 :])
                channel.fail(error)
                more_available = True
        if items and not more_available:
            last = items[-1]
            items[-1] = _new(BufferOrEvent, (*last[:3], False, *last[4:]))
        if items and self._throughput is not None:
            self._throughput.add_bytes(sum(item.size for item in items), self._now_ms())
        return items

    def get_next(self, timeout_s: float | None = None) -> BufferOrEvent | None:
        """The next buffer or event; blocks until there is one.  None if the gate is finished, or nothing came within ``timeout_s``.

        Raises:
            ResourceClosedError: the gate was closed, before or meanwhile.
            NetstackError: the error of a channel.
        """
        return wait_for_next(self, timeout_s, self._clock_ns)

    def _poll_channel(self, channel: InputChannel, *, was_prioritized: bool) -> BufferOrEvent | None:
        next_data_type = DataType.EVENT_BUFFER  # a channel that raises stays in the queue
        found = None
        try:
            found = channel.next_buffer()
            next_data_type = _NONE if found is None else found[2]
        finally:
            queue = self._queue
            with self._lock:
                if next_data_type is not _NONE and not self._is_closed:
                    if channel.is_queued or next_data_type is _PRIORITY:
                        self._enqueue_locked(channel, has_priority=next_data_type is _PRIORITY)
                    else:
                        channel.is_queued = True
                        queue.rest.append(channel)
                if was_prioritized:
                    self._after_priority_locked(channel, found)
                more_priority_events = bool(queue.priority)
                more_available = more_priority_events or bool(queue.rest)
                if not (more_available or self._is_closed or self.is_finished):
                    self._availability.reset_unavailable()
        if found is None:
            return None
        buffer = found[0]
        if not buffer.is_buffer:
            if buffer.data_type is _PRIORITY and not was_prioritized:
                more_priority_events = self._after_unannounced_priority(channel, found)
            return self._event(channel, buffer, more_available=more_available, more_priority_events=more_priority_events)
        if buffer.is_compressed:
            buffer = self._decompress(channel, buffer)
        size = buffer.size
        if self._throughput is not None:
            self._throughput.add_bytes(size, self._now_ms())
        return _new(BufferOrEvent, (channel.index, buffer, None, more_available, more_priority_events, size))

    def _after_priority_locked(self, channel: InputChannel, found: BufferAndAvailability | None) -> None:
        queue = self._queue
        if found is not None and found.buffer.data_type is _PRIORITY:
            channel.last_priority_sequence_number = found.sequence_number
            # Told of while it was polled: it is in hand, and nothing else was told of.
            told = channel.prioritized_by
            if channel.is_prioritized and told is not None and not is_before(found.sequence_number, told):
                queue.priority.remove(channel)
                queue.rest.append(channel)
                channel.is_prioritized = False
        if not queue.priority and not self._is_closed:
            self._priority_availability.reset_unavailable()

    def _after_unannounced_priority(self, channel: InputChannel, found: BufferAndAvailability) -> bool:
        """A priority event was polled in an ordinary turn, before anybody told of it; whether there are more."""
        with self._lock:
            self._after_priority_locked(channel, found)
            return bool(self._queue.priority)

    def _enqueue_locked(self, channel: InputChannel, *, has_priority: bool, told: int | None = None) -> None:
        """Put ``channel`` where it belongs; it may have been queued while it was polled.  ``told``: of which event somebody told."""
        queue = self._queue
        if has_priority:
            known = channel.prioritized_by
            if told is None or not channel.is_prioritized or (known is not None and is_before(known, told)):
                channel.prioritized_by = told
        if not channel.is_queued:
            channel.is_queued = True
            channel.is_prioritized = has_priority
            (queue.priority if has_priority else queue.rest).append(channel)
        elif has_priority and not channel.is_prioritized:
            queue.rest.remove(channel)
            queue.priority.append(channel)
            channel.is_prioritized = True

    def _event(
        self, channel: InputChannel, buffer: NetworkBuffer, *, more_available: bool, more_priority_events: bool
    ) -> BufferOrEvent | None:
        """What the task sees of an event, if it sees anything."""
        size = buffer.size
        channel.num_events_in += 1
        channel.num_event_bytes_in += size
        if channel.num_subpartitions > 1 and not channel.concerns_all(buffer.data_type):
            buffer.recycle()
            return None
        try:
            event = deserialize_event(buffer.view)
        finally:
            buffer.recycle()
        if isinstance(event, EndOfPartition):
            more_available = self._end_channel(channel)
        elif isinstance(event, EndOfData):
            self._num_ended += 1
            self._should_drain = self._should_drain and event.mode is StopMode.DRAIN
        return BufferOrEvent(channel.index, None, event, more_available, more_priority_events, size)

    def _decompress(self, channel: InputChannel, buffer: NetworkBuffer) -> NetworkBuffer:
        if self._decompressor is None:
            buffer.recycle()
            raise RemoteProtocolError(f"channel {channel.index} of {self.owner}: a compressed buffer, but compression is off here")
        return self._decompressor.decompress(buffer)

    def _end_channel(self, channel: InputChannel) -> bool:
        """Release a channel that has ended, and take it out of the queue (FLINK-22368); whether another one has data."""
        channel.release()
        self._num_finished += 1
        with self._lock:
            if channel.is_queued:
                self._queue.get_and_remove(lambda each: each is channel)
                channel.is_queued = channel.is_prioritized = False
            more_available = bool(self._queue)
            is_finished = self.is_finished
            if not self._is_closed:
                if not self._queue.priority:
                    self._priority_availability.reset_unavailable()
                if not (more_available or is_finished):
                    self._availability.reset_unavailable()
        if is_finished:
            self._make_available()
        return more_available and not is_finished

    # ---------------------------------------------------------------- told by channels

    def notify_channel_non_empty(self, channel: InputChannel) -> None:
        """A channel has data or an error; nothing happens if it is queued, released, or the gate is closed.  Any thread."""
        pending = self.enqueue_channel(channel)
        if pending is not None:
            pending.complete()

    def enqueue_channel(self, channel: InputChannel) -> AvailabilityFuture | None:
        """The same, but whoever waits is woken by the caller, who must complete the future that this returns.  Any thread."""
        with self._lock:
            if channel.is_queued or self._is_closed or channel.is_released:
                return None
            channel.is_queued = True
            self._queue.rest.append(channel)
            return self._availability.unavailable_to_reset_available()

    def notify_priority_event(self, channel: InputChannel, sequence_number: int) -> None:
        """A channel has a priority event, unless that was polled already: a notification may come late.  Any thread."""
        self._notify_priority(channel, sequence_number)

    def notify_priority_event_force(self, channel: InputChannel) -> None:
        """A channel has a priority event, whatever was polled before.  Any thread."""
        self._notify_priority(channel, None)

    def _notify_priority(self, channel: InputChannel, sequence_number: int | None) -> None:
        with self._lock:
            last = channel.last_priority_sequence_number
            if sequence_number is not None and last is not None and not is_before(last, sequence_number):
                return
            if self._is_closed or channel.is_released:
                return
            self._enqueue_locked(channel, has_priority=True, told=sequence_number)
            futures = self._become_available_locked()
        run_all([future.complete for future in futures])

    def _become_available_locked(self) -> list[AvailabilityFuture]:
        """The futures to complete after the lock: of priority events, and of data."""
        found = (self._priority_availability.unavailable_to_reset_available(), self._availability.unavailable_to_reset_available())
        return [future for future in found if future is not None]

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
        self._channels[channel_index].resume_consumption()

    def acknowledge_all_records_processed(self, channel_index: int) -> None:
        """Tell the producer behind a channel that everything up to its end of data was processed."""
        self._channels[channel_index].acknowledge_all_records_processed()

    def send_task_event(self, event: Event) -> None:
        """Bring ``event`` to the producers of all channels; those that are not known yet get it once they are.

        Raises:
            ResourceClosedError: the gate was closed, or a channel has ended.
            PartitionNotFoundError: a producer in this process is gone.
        """
        self._check_open()
        with self._request_lock:
            channels = list(self._channels)
            if self._num_unknown:
                self._pending_events.append(event)
        for channel in channels:
            channel.send_task_event(event)

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Ask all producers for buffers of this size from now on; channels that have ended are passed over (FLINK-24738)."""
        for channel in list(self._channels):
            try:
                if not channel.is_released:
                    channel.announce_buffer_size(size_bytes)
            except ResourceClosedError:  # released between the two lines
                continue

    def trigger_debloating(self) -> None:
        """Measure the throughput since the last call, and ask for another buffer size if that is worth it.  Task thread."""
        debloater, throughput = self._debloater, self._throughput
        if debloater is None or throughput is None or self._is_closed or self.is_finished:
            return
        size_bytes = debloater.recalculate(throughput.calculate(self._now_ms()), self.num_buffers_in_use)
        if size_bytes is not None:
            self.announce_buffer_size(size_bytes)

    @property
    def throughput(self) -> ThroughputCalculator | None:
        """What measures the throughput, for whoever knows when the task is idle; None without a debloater."""
        return self._throughput

    @property
    def num_buffers_in_use(self) -> int:
        """How many buffers are under way to the task, at least one."""
        return max(1, sum(channel.num_buffers_in_use for channel in list(self._channels)))

    # ---------------------------------------------------------------- checkpoints

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """Persist the in-flight data of every channel; task thread.

        Raises:
            CheckpointSubsumedError: a later checkpoint's barrier has arrived on a channel.
        """
        for channel in self._channels:
            channel.checkpoint_started(barrier)

    def checkpoint_stopped(self, checkpoint_id: int) -> None:
        """Persist nothing more for a checkpoint; task thread."""
        for channel in self._channels:
            channel.checkpoint_stopped(checkpoint_id)

    def convert_to_priority_event(self, channel_index: int, sequence_number: int) -> None:
        """Let an announced barrier overtake the data before it; task thread.

        Raises:
            LocalProtocolError: it is not queued in that channel.
        """
        self._channels[channel_index].convert_to_priority_event(sequence_number)

    # ---------------------------------------------------------------- end and numbers

    def close(self) -> None:
        """Release every channel and wake whoever waits; any thread, any number of times.  Buffers in the caller's hands stay his."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for channel in self._queue:
                channel.is_queued = channel.is_prioritized = False
            self._queue.clear()
        with self._request_lock:  # an update that comes later sees that the gate is closed
            channels = list(self._channels)
        calls: list[Callable[[], None]] = [channel.release for channel in channels]
        if self._buffer_pool is not None:
            calls.append(self._buffer_pool.destroy)
        run_all([*calls, self._make_available, partial(self._make_available, with_priority=True)])

    def statistics(self) -> GateStatistics:
        """The numbers so far; any thread."""
        return gate_statistics(list(self._channels), self._buffer_pool, self._num_finished)

    def channel_statistics(self) -> list[ChannelStatistics]:
        """One row per channel, for a dump; any thread."""
        return [channel.statistics() for channel in list(self._channels)]

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        with self._lock:
            queued = list(self._queue)
            assert len({id(channel) for channel in queued}) == len(queued), "a channel is queued twice"
            assert all(channel.is_queued for channel in queued), "a queued channel does not know it"
            assert all(channel.is_prioritized for channel in self._queue.priority), "a prioritized channel does not know it"
            assert sum(channel.is_queued for channel in self._channels) == len(queued), "a channel believes it is queued"
            is_available = bool(queued) or self._is_closed or self.is_finished
            assert self._availability.is_available == is_available, f"{len(queued)} channels have data, but {self._availability.future!r}"
            has_priority = bool(self._queue.priority) or self._is_closed
            assert self._priority_availability.is_available == has_priority, f"priority: {self._priority_availability.future!r}"

    def _make_available(self, *, with_priority: bool = False) -> None:
        helper = self._priority_availability if with_priority else self._availability
        with self._lock:
            pending = helper.unavailable_to_reset_available()
        if pending is not None:
            pending.complete()

    def _now_ms(self) -> int:
        return self._clock_ns() // _NS_PER_MS

    def _check_open(self) -> None:
        if self._is_closed:
            raise ResourceClosedError(f"the input gate of {self.owner} was closed")
