"""All inputs of one task, polled in turns.

Side:       shared.  The task thread polls; channels notify from any thread; anybody closes.
Hot path:   per buffer.
Invariants: a channel stands in the queue at most once; it is taken out before it is polled, so a notification that comes during the poll
            queues it again; the future is done exactly when the queue is not empty, or for good once the gate is finished or closed.
Units:      sizes in bytes.
Lock order: ``SingleInputGate._lock`` is a leaf: channels are polled and futures completed outside it (FLINK-18595, FLINK-22946).
Source:     Flink ``SingleInputGate``.
Absent:     priority events, union gates, updates of unknown channels, floating buffers.
"""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from netstack.availability import AvailabilityFuture, AvailabilityHelper
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.segment import NetworkBuffer
from netstack.buffer.wakeups import run_all
from netstack.errors import LocalProtocolError, ResourceClosedError
from netstack.gate.input_channel import InputChannel
from netstack.gate.remote_channel import RemoteInputChannel
from netstack.wire.events import EndOfPartition, Event, deserialize_event
from netstack.wire.messages import DataType


class BufferOrEvent(NamedTuple):
    """What a poll found: data, which the caller recycles, or an event."""

    channel_index: int
    buffer: NetworkBuffer | None
    event: Event | None
    more_available: bool
    more_priority_events: bool = False
    size: int = 0  # bytes of the buffer, or of the event as it travelled


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """The numbers of one gate, over all its channels; events count as buffers too."""

    num_bytes_in_local: int
    num_bytes_in_remote: int
    num_buffers_in: int
    num_queued_buffers: int
    num_credits_granted: int
    num_channels: int
    num_channels_finished: int


class SingleInputGate:
    """The gate of one edge.

    Life cycle: ``add_channel`` ... -> ``request_partitions`` -> polled until ``is_finished`` -> ``close``.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._channels: list[InputChannel] = []  # complete before the first notification
        self._is_requested = False  # Written by the task thread.
        self._buffer_pool: LocalBufferPool | None = None
        self._num_finished = 0  # Written by the task thread.
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._queue: deque[InputChannel] = deque()
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
    def is_finished(self) -> bool:
        """Whether every channel reached the end of its partition."""
        return self._is_requested and self._num_finished == len(self._channels)

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    def available_future(self) -> AvailabilityFuture:
        """Done if a poll may find something (or the gate is finished or closed), else completed when it may."""
        with self._lock:
            return self._availability.future

    # ---------------------------------------------------------------- set-up

    def add_channel(self, channel: InputChannel) -> None:
        """Add the next channel; its index must be the number of channels so far.

        Raises:
            LocalProtocolError: the index is another one, or the partitions were requested already.
        """
        if self._is_requested or channel.index != len(self._channels):
            state = " after the request" if self._is_requested else ""
            raise LocalProtocolError(f"{self.owner}: channel {channel.index} is added as number {len(self._channels)}{state}")
        self._channels.append(channel)

    def request_partitions(self) -> None:
        """Let every channel ask for its data; task thread, the second call does nothing.

        Raises:
            ResourceClosedError: the gate was closed.
        """
        self._check_open()
        if self._is_requested:
            return
        self._is_requested = True
        for channel in self._channels:
            channel.request_subpartition()
        if not self._channels:
            self._make_available()

    # ---------------------------------------------------------------- polling

    def poll_next(self) -> BufferOrEvent | None:
        """The next buffer or event, channels taking turns; None if there is none now.  Never blocks.  Task thread.

        Raises:
            ResourceClosedError: the gate was closed.
            NetstackError: the error of the channel whose turn it was; it is raised again at its next turn.
        """
        while True:
            with self._lock:
                if not self._queue:
                    if self._is_closed:
                        break
                    return None
                channel = self._queue.popleft()
                channel.is_queued = False
            found, more_available = self._poll_channel(channel)
            if found is not None:
                return self._buffer_or_event(channel, found, more_available=more_available)
        raise ResourceClosedError(f"the input gate of {self.owner} was closed")

    def _poll_channel(self, channel: InputChannel) -> tuple[NetworkBuffer | None, bool]:
        has_more = True  # a channel that raises stays in the queue
        found = None
        try:
            found = channel.next_buffer()
            has_more = found is not None and found.next_data_type is not DataType.NONE
        finally:
            with self._lock:
                if has_more and not self._is_closed and not channel.is_queued:
                    channel.is_queued = True
                    self._queue.append(channel)
                more_available = bool(self._queue)
                if not (more_available or self._is_closed or self.is_finished):
                    self._availability.reset_unavailable()
        return (None if found is None else found.buffer), more_available

    def _buffer_or_event(self, channel: InputChannel, buffer: NetworkBuffer, *, more_available: bool) -> BufferOrEvent:
        size = buffer.size
        if buffer.is_buffer:
            return BufferOrEvent(channel.index, buffer, None, more_available, size=size)
        try:
            event = deserialize_event(buffer.view)
        finally:
            buffer.recycle()
        if isinstance(event, EndOfPartition):
            more_available = self._end_channel(channel)
        return BufferOrEvent(channel.index, None, event, more_available, size=size)

    def _end_channel(self, channel: InputChannel) -> bool:
        """Release a channel that has ended; whether another one has data."""
        channel.release()
        self._num_finished += 1
        if self.is_finished:
            self._make_available()
        with self._lock:
            return bool(self._queue) and not self.is_finished

    def notify_channel_non_empty(self, channel: InputChannel) -> None:
        """A channel has data or an error; nothing happens if it is queued, released, or the gate is closed.  Any thread."""
        with self._lock:
            if channel.is_queued or self._is_closed or channel.is_released:
                return
            channel.is_queued = True
            self._queue.append(channel)
            pending = self._availability.unavailable_to_reset_available()
        if pending is not None:
            pending.complete()

    def priority_event_available_future(self) -> AvailabilityFuture:
        """Done while a priority event can be polled, else completed when one comes."""
        with self._lock:
            return self._priority_availability.future

    def resume_consumption(self, channel_index: int) -> None:
        """Let the producer behind a channel go on after a blocking event."""
        self._channels[channel_index].resume_consumption()

    def send_task_event(self, event: bytes) -> None:
        """Bring a serialized event to the producers behind all channels."""
        for channel in self._channels:
            channel.send_task_event(event)

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Ask all producers for buffers of this size from now on."""
        for channel in self._channels:
            channel.announce_buffer_size(size_bytes)

    def set_buffer_pool(self, pool: LocalBufferPool) -> None:
        """Give the gate its floating buffers, which it destroys when it is closed; before the request."""
        self._buffer_pool = pool

    def acknowledge_all_records_processed(self, channel_index: int) -> None:
        """Tell the producer behind a channel that everything up to its end of data was processed."""
        self._channels[channel_index].acknowledge_all_records_processed()

    # ---------------------------------------------------------------- end and numbers

    def close(self) -> None:
        """Release every channel and wake whoever waits; any thread, any number of times.  Buffers in the caller's hands stay his."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._queue.clear()
            for channel in self._channels:
                channel.is_queued = False
        pools = [] if self._buffer_pool is None else [self._buffer_pool.destroy]
        run_all([*(channel.release for channel in self._channels), *pools, self._make_available])

    def statistics(self) -> GateStatistics:
        """The numbers so far; any thread."""
        channels = list(self._channels)
        remote = [channel for channel in channels if isinstance(channel, RemoteInputChannel)]
        num_bytes_in_remote = sum(channel.num_bytes_in for channel in remote)
        return GateStatistics(
            num_bytes_in_local=sum(channel.num_bytes_in for channel in channels) - num_bytes_in_remote,
            num_bytes_in_remote=num_bytes_in_remote,
            num_buffers_in=sum(channel.num_buffers_in for channel in channels),
            num_queued_buffers=sum(channel.num_queued_buffers for channel in channels),
            num_credits_granted=sum(channel.num_credits_granted for channel in remote),
            num_channels=len(channels),
            num_channels_finished=self._num_finished,
        )

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        with self._lock:
            queued = list(self._queue)
            assert len({id(channel) for channel in queued}) == len(queued), "a channel is queued twice"
            assert all(channel.is_queued for channel in queued), "a queued channel does not know it"
            assert sum(channel.is_queued for channel in self._channels) == len(queued), "a channel believes it is queued"
            is_available = bool(queued) or self._is_closed or self.is_finished
            assert self._availability.is_available == is_available, f"{len(queued)} channels have data, but {self._availability.future!r}"

    def _make_available(self) -> None:
        with self._lock:
            pending = self._availability.unavailable_to_reset_available()
        if pending is not None:
            pending.complete()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ResourceClosedError(f"the input gate of {self.owner} was closed")
