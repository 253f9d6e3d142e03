"""Notices that a producer waits for credit for too long.

Side:       pure; the clock is given.
Invariants: one warning per stall, whatever it lasts.
Units:      seconds.
"""

from collections.abc import Callable
from typing import Final

WARN_AFTER_S: Final = 10.0


class StallWatch:
    """When one writer last began to wait; an observer of its buffer pool (``mark_start``, ``mark_end``).

    Threading: the writing thread marks, the loop thread looks; one number is written and read, and one look stale is fine.
    """

    __slots__ = ("_clock", "_reported_since_s", "_since_s")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s: float | None = None  # Written by the writing thread.
        self._reported_since_s: float | None = None  # Of the wait that was reported last.  Written by the loop thread.

    def __repr__(self) -> str:
        return f"<StallWatch {'idle' if self._since_s is None else f'waits since {self._since_s:.1f}'}>"

    def mark_start(self) -> None:
        """The writer begins to wait."""
        self._since_s = self._clock()

    def mark_end(self) -> None:
        """The writer goes on."""
        self._since_s = None

    def overdue_s(self) -> float | None:
        """How long the present wait has lasted, once, if that is too long."""
        since_s = self._since_s
        if since_s is None or since_s == self._reported_since_s:
            return None
        waited_s = self._clock() - since_s
        if waited_s < WARN_AFTER_S:
            return None
        self._reported_since_s = since_s
        return waited_s
