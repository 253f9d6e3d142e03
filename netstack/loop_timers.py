"""Timers of an event loop, for callers on any thread.

Side:       shared.
Invariants: a call is made at most once, on the loop thread, and never after its cancellation was handled there.
Units:      delays in milliseconds.
"""

import asyncio
import contextlib
from collections.abc import Callable

from netstack.errors import ResourceClosedError
from netstack.eventloop import EventLoopThread


class _Timer:
    """One delayed call; after its construction loop thread only."""

    __slots__ = ("_call", "_handle", "_is_over", "_loop")

    def __init__(self, loop: EventLoopThread, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._handle: asyncio.TimerHandle | None = None
        self._is_over = False

    def start(self, delay_ms: float) -> None:
        if not self._is_over:
            self._handle = self._loop.loop.call_later(delay_ms / 1000, self._fire)

    def stop(self) -> None:
        self._is_over = True
        if self._handle is not None:
            self._handle.cancel()

    def _fire(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._call()


class LoopTimers:
    """``Timers`` of the loop behind an ``EventLoopThread``.

    Threading: any thread.  After the loop was closed no call is made.
    """

    __slots__ = ("_loop",)

    def __init__(self, loop: EventLoopThread) -> None:
        self._loop = loop

    def __repr__(self) -> str:
        return f"<LoopTimers of {self._loop!r}>"

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Callable[[], None]:
        """Make ``call`` on the loop thread after ``delay_ms``; returns a function that cancels it, on any thread."""
        timer = _Timer(self._loop, call)
        self._execute(lambda: timer.start(delay_ms))
        return lambda: self._execute(timer.stop)

    def _execute(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(ResourceClosedError):
            self._loop.execute_threadsafe(function)
