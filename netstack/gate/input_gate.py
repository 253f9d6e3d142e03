"""What a task sees of its input: ``BufferOrEvent``s, made by a ``BufferTransformer`` of what the channels hold.

Side:       shared.  The task thread polls and transforms; any thread asks for the statistics.
Hot path:   per buffer.
Units:      sizes in bytes, timeouts in seconds.
Source:     Flink ``BufferOrEvent``, ``InputGate``, ``PullingAsyncDataInput.EndOfDataStatus``.  ``SingleInputGate``:
            ``setup``, ``requestPartitions``, ``close``, ``transformBuffer``, ``transformEvent``,
            ``decompressBufferIfNeeded``.  ``InputBuffersMetrics``: ``inputQueueLength``, ``inputQueueSize``.
Absent:     ``UnionInputGate``: a task with several inputs reads its gates itself.  How much of a gate's buffers is in
            use (``inPoolUsage``): tasks report sums.
"""

import threading
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum, auto
from typing import Final, NamedTuple, Protocol

from netstack.availability import AvailabilityFuture
from netstack.buffer.buffer_compressor import BufferDecompressor
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.errors import NetstackError, RemoteProtocolError
from netstack.gate.channels.input_channel import InputChannel
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.late import dataclass
from netstack.wire.events import EndOfData, Event, StopMode, deserialize_event


class BufferOrEvent(NamedTuple):
    """What a poll found: data, which the caller recycles, or an event."""

    channel_index: int
    buffer: NetworkBuffer | None
    event: Event | None
    more_available: bool
    more_priority_events: bool = False
    size: int = 0  # bytes of the buffer, or of the event as it travelled


class GateLifecycle(IntEnum):
    """A gate only moves on, to a greater one.

    That every channel has ended is counted, and is no state: a gate may be closed before and after.
    """

    SET_UP = auto()
    """Channels are added."""
    REQUESTED = auto()
    """Channels have asked for their data and are polled; those with unknown producers are replaced."""
    CLOSED = auto()
    """Every channel is released."""


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
    num_buffers_in_local: int = 0
    queue_size_bytes: int = 0


def gate_statistics(channels: Sequence[InputChannel], num_finished: int) -> GateStatistics:
    """Add up what ``channels`` say."""
    remote = [channel for channel in channels if isinstance(channel, RemoteInputChannel)]
    num_bytes_in_remote = sum(channel.num_bytes_in for channel in remote)
    num_buffers_in = sum(channel.num_buffers_in for channel in channels)
    return GateStatistics(
        num_bytes_in_local=sum(channel.num_bytes_in for channel in channels) - num_bytes_in_remote,
        num_bytes_in_remote=num_bytes_in_remote,
        num_buffers_in=num_buffers_in,
        num_queued_buffers=sum(channel.num_queued_buffers for channel in channels),
        num_credits_granted=sum(channel.buffer_manager.num_granted for channel in remote),
        num_channels=len(channels),
        num_channels_finished=num_finished,
        num_buffers_in_local=num_buffers_in - sum(channel.num_buffers_in for channel in remote),
        queue_size_bytes=sum(channel.queue_size_bytes for channel in remote),
    )


class EndOfDataStatus(Enum):
    """What the ends of data seen so far ask for."""

    NOT_END_OF_DATA = auto()
    DRAINED = auto()
    """Every channel ended its data, and all want windows and timers fired."""
    STOPPED = auto()
    """Every channel ended its data, at least one without draining."""


class InputGate(Protocol):
    """What ``wait_for_next`` needs of a gate: this one's, or the task's that looks at its barriers."""

    @property
    def is_finished(self) -> bool:
        """Whether every channel reached the end of its partition."""

    def available_future(self) -> AvailabilityFuture:
        """Done if a poll may find something, or the gate is finished or closed."""

    def poll_next(self) -> BufferOrEvent | None:
        """The next buffer or event, or None; never blocks."""


def wait_for_next(gate: InputGate, timeout_s: float | None, clock_ns: Callable[[], int]) -> BufferOrEvent | None:
    """Poll ``gate`` until it yields something; None if it is finished.  The thread sleeps in between.

    Raises:
        TimeoutError: nothing came within ``timeout_s``.
    """
    deadline_ns = None if timeout_s is None else clock_ns() + int(timeout_s * 1e9)
    while True:
        found = gate.poll_next()
        if found is not None or gate.is_finished:
            return found
        remaining_s = None if deadline_ns is None else (deadline_ns - clock_ns()) / 1e9
        if remaining_s is not None and remaining_s <= 0:
            raise TimeoutError(f"nothing came within {timeout_s:g} s: {gate!r}")
        signal = threading.Lock()  # the cheapest one-shot signal
        signal.acquire()  # no wait: the lock is new
        available, wake = gate.available_future(), signal.release
        available.add_done_callback(wake)
        try:
            # waits for data of the gate; ended by data, an error, or close
            signal.acquire(timeout=-1 if remaining_s is None else remaining_s)
        finally:
            available.remove_done_callback(wake)


_new: Final = tuple.__new__  # half the cost of a named tuple's own constructor (bench: transport)


class BufferTransformer:
    """One gate's events, compressed buffers and ends of data.

    Threading: the task thread alone; no lock.
    Ownership: takes the reference of each buffer that is handed in, also if it raises; items carry it to the task.
    """

    def __init__(self, owner: str, decompressor: BufferDecompressor | None) -> None:
        self._owner = owner
        self._decompressor = decompressor
        self._num_ended = 0  # channels whose data has ended
        self._should_drain = True

    def __repr__(self) -> str:
        return f"<BufferTransformer {self._num_ended} channels ended their data>"

    def end_of_data_status(self, num_channels: int) -> EndOfDataStatus:
        """Whether so many channels reached the end of their data, and whether all of them want to drain."""
        if self._num_ended < num_channels or not num_channels:
            return EndOfDataStatus.NOT_END_OF_DATA
        return EndOfDataStatus.DRAINED if self._should_drain else EndOfDataStatus.STOPPED

    def transform_event(self, channel: InputChannel, buffer: NetworkBuffer) -> Event | None:
        """What the task sees of an event, if it sees anything: one end of several subpartitions is
        not the channel's.
        """
        channel.num_events_in += 1
        channel.num_event_bytes_in += buffer.size
        if channel.num_subpartitions > 1 and not channel.concerns_all(buffer.data_type):
            buffer.recycle()
            return None
        try:
            event = deserialize_event(buffer.view)
        finally:
            buffer.recycle()
        if isinstance(event, EndOfData):
            self._num_ended += 1
            self._should_drain = self._should_drain and event.mode is StopMode.DRAIN
        return event

    def transform_buffers(
        self,
        found: Sequence[tuple[InputChannel, Sequence[NetworkBuffer]]],
        *,
        more_available: bool,
        more_priority_events: bool,
    ) -> list[BufferOrEvent]:
        """One item for each buffer, restored if it was compressed; the last one says ``more_available``.

        A buffer that cannot be restored is its channel's error, for the next poll.
        """
        items: list[BufferOrEvent] = []
        for channel, buffers in found:
            index, num_before = channel.index, len(items)
            try:
                for each in buffers:
                    buffer = self.decompress(channel, each) if each.is_compressed else each
                    items.append(_new(BufferOrEvent, (index, buffer, None, True, more_priority_events, buffer.size)))
            except NetstackError as error:  # of this buffer: what was found before it, and elsewhere, is not lost
                recycle_all(buffers[len(items) - num_before + 1 :])
                channel.fail(error)
                more_available = True
        if items and not more_available:
            last = items[-1]
            items[-1] = _new(BufferOrEvent, (*last[:3], False, *last[4:]))
        return items

    def decompress(self, channel: InputChannel, buffer: NetworkBuffer) -> NetworkBuffer:
        """The original in place of a compressed ``buffer``.

        Raises:
            NetstackError: compression is off here, or the bytes are none that were compressed.
        """
        if self._decompressor is None:
            buffer.recycle()
            raise RemoteProtocolError(
                f"channel {channel.index} of {self._owner}: a compressed buffer, but compression is off here"
            )
        return self._decompressor.decompress(buffer)
