"""Who is told that a subpartition can be read.

Side:   shared.
Source: Flink ``BufferAvailabilityListener``.
"""

from typing import Protocol


class BufferAvailabilityListener(Protocol):
    """Who is told that a subpartition has something to read, or was released."""

    def notify_data_available(self) -> None:
        """There may be something to poll; any thread, outside every lock."""

    def notify_priority_event(self, sequence_number: int) -> None:
        """A priority event is at the head, and will be polled with ``sequence_number``; any thread, outside every lock.

        Told instead of ``notify_data_available``, once while priority events are queued.
        """
