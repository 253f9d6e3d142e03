"""What a task gets from a poll of its input.

Side:   shared.
Units:  sizes in bytes.
Source: Flink ``BufferOrEvent``.
"""

from typing import NamedTuple

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.wire.events import Event


class BufferOrEvent(NamedTuple):
    """What a poll found: data, which the caller recycles, or an event."""

    channel_index: int
    buffer: NetworkBuffer | None
    event: Event | None
    more_available: bool
    more_priority_events: bool = False
    size: int = 0  # bytes of the buffer, or of the event as it travelled
