"""Test doubles for users of the package: no sockets, no wall clock."""

from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.testing.embedded_event_loop import EmbeddedEventLoop, ManualClock

__all__ = ["EmbeddedChannel", "EmbeddedEventLoop", "ManualClock"]
