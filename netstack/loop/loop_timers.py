"""Timers of an event loop: ``LoopTimers`` for callers on any thread, ``RunningTimer`` and ``running_timeout`` for those
on the loop.

Side:       shared.
Invariants: a call is made at most once, on the loop thread, and never after its cancellation was handled there.
Units:      delays in milliseconds, of ``RunningTimer`` and ``running_timeout`` in seconds.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from netstack.errors import ResourceClosedError
from netstack.flow.heartbeats import Silence
from netstack.loop.eventloop import EventLoopThread


class RunningTimer:
    """One delayed call on a loop; time in which the loop stood still does not count (``Silence``).

    A function of the user may keep the interpreter's lock.  What is waited for lies in a socket then, or its sender
    stood still, too.

    Threading: the loop.
    """

    __slots__ = ("_call", "_handle", "_loop", "_silence")

    def __init__(self, loop: asyncio.AbstractEventLoop, delay_s: float, call: Callable[[], object]) -> None:
        self._loop = loop
        self._call = call
        self._silence = Silence(delay_s, loop.time())
        self._look_later()

    def __repr__(self) -> str:
        return f"<RunningTimer, {self._silence!r}>"

    def cancel(self) -> None:
        """Do not make the call; without effect after it was made."""
        self._handle.cancel()

    def _look_later(self) -> None:
        self._handle = self._loop.call_later(self._silence.next_look_s, self._look)

    def _look(self) -> None:
        if self._silence.look(self._loop.time()):
            self._call()
        else:
            self._look_later()


@contextlib.asynccontextmanager
async def running_timeout(timeout_s: float | None) -> AsyncIterator[None]:
    """``asyncio.timeout``, but time in which the loop stood still does not count; None: there is no timeout.

    Raises:
        TimeoutError: at the end of the block.
    """
    async with asyncio.timeout(None) as timeout:
        if timeout_s is None:
            yield
            return
        loop = asyncio.get_running_loop()
        timer = RunningTimer(loop, timeout_s, lambda: timeout.reschedule(loop.time()))
        try:
            yield
        finally:
            timer.cancel()


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
