"""Who waits for a buffer of a pool.

Side:   shared.
Source: Flink ``BufferListener``.
"""

from typing import Protocol

from netstack.buffer.network_buffer import NetworkBuffer


class BufferListener(Protocol):
    """Waits for a buffer of a pool that has none.

    Called on the thread that recycles or destroys, outside every lock.
    """

    def notify_buffer_available(self, buffer: NetworkBuffer) -> bool:
        """One buffer is free: True takes it over, False leaves it to the next listener.

        The listener is out of the line either way.
        """

    def notify_buffer_destroyed(self) -> None:
        """The pool was destroyed; no buffer will come."""
