"""Protocols for delayed calls, so that modules need no clock and no loop; and how long to wait before another try.

Side:   pure.
Units:  delays in milliseconds, of ``ScheduleTimer`` in seconds; of a ``Backoff`` those that it was given.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Protocol

from netstack.late import dataclass


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


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays before one try after another: ``first``, each later one ``factor`` times as long, at most ``longest``.

    ``jitter``: the share of a delay that may be taken off at random, so that those who failed together do not come
    back together.
    """

    first: float
    longest: float
    factor: float = 2
    jitter: float = 0.0

    def delay(self, num_failures: int, chance: float = 0.0) -> float:
        """The delay after so many failures, one at least; ``chance``, up to 1: how much of the jitter counts."""
        try:
            delay = min(self.first * self.factor ** (num_failures - 1), self.longest)
        except OverflowError:
            delay = self.longest
        return delay * (1 - self.jitter * chance)

    def delays(self, chance: Callable[[], float] = float) -> Iterator[float]:
        """The delay after each failure, without end."""
        return (self.delay(num_failures, chance()) for num_failures in count(1))
