"""Protocols for delayed calls, so that modules need no clock and no loop.

Side:   pure.
Units:  delays in milliseconds, of ``ScheduleTimer`` in seconds.
"""

from collections.abc import Callable
from typing import Protocol


class Timers(Protocol):
    """Makes delayed calls: an event loop, or a manual clock in tests."""

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Callable[[], None]:
        """Make ``call`` once after ``delay_ms``, on the timers' thread; returns a function that cancels it, on any
        thread.
        """


class Cancellable(Protocol):
    """A scheduled call."""

    def cancel(self) -> object:
        """Do not make the call; without effect after it was made."""


# (seconds, call): makes the call on the loop thread; may be called from any thread.
ScheduleTimer = Callable[[float, Callable[[], None]], Cancellable]
