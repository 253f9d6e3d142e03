"""A loop's clock and timers that a test moves by hand."""

import asyncio
from collections.abc import Callable
from typing import cast


class ManualTimer:
    """The handle that ``call_at`` returns."""

    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self._when, self.callback, self.is_cancelled = when, callback, False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualTimers:
    """The part of a loop that keeps the time; begins at 100 s."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers: list[ManualTimer] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], object], /) -> asyncio.TimerHandle:
        self.timers.append(ManualTimer(when, callback))
        return cast(asyncio.TimerHandle, self.timers[-1])

    def advance(self, seconds: float) -> None:
        """Move the time on, timer by timer, as a loop does that is never late."""
        end_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer.when() <= end_s]:
            first = min(due, key=ManualTimer.when)
            self.now_s = max(self.now_s, first.when())
            self._call(first)
        self.now_s = end_s

    def stall(self, seconds: float) -> None:
        """Move the time on while the loop stands still; then call the timers that are due."""
        self.now_s += seconds
        for timer in [timer for timer in self.timers if timer.when() <= self.now_s]:
            self._call(timer)

    def _call(self, timer: ManualTimer) -> None:
        self.timers.remove(timer)
        if not timer.is_cancelled:
            timer.callback()
