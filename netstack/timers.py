"""Calls that are due later, asked for through a protocol, so that no module has to own a clock or a loop.

Side:   pure.
Units:  delays in milliseconds, of ``ScheduleTimer`` in seconds.
"""

from collections.abc import Callable
from typing import Protocol


class Timers(Protocol):
    """Whoever can call later: an event loop at work, a manual clock in tests."""

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Callable[[], None]:
        """Have ``call`` made once, on the timers' own thread; returns what cancels it (any thread; harmless once it was made)."""


class Cancellable(Protocol):
    """A call that was scheduled."""

    def cancel(self) -> object:
        """Do not make it; without effect when it was made."""


# Makes a call on the loop thread after so many seconds; may be called from any thread.
ScheduleTimer = Callable[[float, Callable[[], None]], Cancellable]
