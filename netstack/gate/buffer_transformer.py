"""Turns what the channels of a gate hold into what its task sees.

Side:       shared.  The task thread; statistics are read anywhere.
Hot path:   per run of buffers.
Units:      sizes in bytes.
Source:     Flink ``SingleInputGate``: ``transformBuffer``, ``transformEvent``, ``decompressBufferIfNeeded``.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.errors import NetstackError, RemoteProtocolError
from netstack.gate.channels.input_channel import InputChannel
from netstack.gate.input_gate import BufferOrEvent, EndOfDataStatus
from netstack.wire.events import EndOfData, Event, StopMode, deserialize_event

_new: Final = tuple.__new__  # half the cost of a named tuple's own constructor (bench: transport)


class Decompressor(Protocol):
    """Restores compressed buffers."""

    def decompress(self, buffer: NetworkBuffer) -> NetworkBuffer:
        """The original in place of ``buffer``: one reference in, one out; in case of an error none."""


class BufferTransformer:
    """One gate's events, compressed buffers and ends of data.

    Threading: the task thread alone; no lock.
    Ownership: takes the reference of each buffer that is handed in, also if it raises; items carry it to the task.
    """

    def __init__(self, owner: str, decompressor: Decompressor | None) -> None:
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
