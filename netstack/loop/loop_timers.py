"""Delayed calls: what everybody asks for, ``ScheduleTimer``, and the timers of an event loop.

A loop's ``call_later`` is that for its own thread, ``LoopTimer`` for any thread; ``LoopTimers`` are for the manager of
partitions, whose users may bring others.  ``RunningTimer`` and ``running_timeout`` are for waits of a loop that may
stand still.

Side:       shared.
Invariants: a call is made at most once, on the loop thread, and never after its cancellation was handled there.
Units:      delays in seconds.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from netstack.errors import ResourceClosedError
from netstack.flow.heartbeats import Silence
from netstack.late import dataclass
from netstack.loop.eventloop import EventLoopThread


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Cancellable(Protocol):
    """A scheduled call."""

    def cancel(self) -> object:
        """Do not make the call; without effect after it was made."""


class Timers(Protocol):
    """Makes delayed calls: an event loop, ``LoopTimers``, or a manual clock in tests."""

    def call_later(self, delay_s: float, call: Callable[[], None], /) -> Cancellable:
        """Make ``call`` once after ``delay_s``, on the timers' thread; who may cancel it, the timers say."""


ScheduleTimer = Callable[[float, Callable[[], None]], Cancellable]
"""``call_later`` alone, as tasks and checkpoints have it."""


class LoopClock(Protocol):
    """The clock of an event loop, and its calls at a time; in seconds."""

    def time(self) -> float:
        """The time now."""

    def call_at(self, when: float, callback: Callable[[], object], /) -> asyncio.TimerHandle:
        """Call ``callback`` at a time."""


class RunningTimer:
    """One delayed call on a loop; time in which the loop stood still does not count (``Silence``).

    A function of the user may keep the interpreter's lock.  What is waited for lies in a socket then, or its sender
    stood still, too.

    Threading: the loop.
    """

    __slots__ = ("_call", "_handle", "_loop", "_silence")

    def __init__(self, loop: LoopClock, delay_s: float, call: Callable[[], object]) -> None:
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
        self._handle = self._loop.call_at(self._loop.time() + self._silence.next_look_s, self._look)

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


class LoopTimer:
    """One call after a delay, on the loop thread.

    Threading: created and cancelled on any thread; ``cancel`` does not wait for a call that has begun.
    Ownership: lets go of the callback, whose owner usually holds this timer, once it was called or cancelled.
    """

    __slots__ = ("_callback", "_handle", "_loop")

    def __init__(self, loop: EventLoopThread, delay_s: float, callback: Callable[[], None]) -> None:
        self._loop = loop
        # None: it was called or cancelled.  Cleared by any thread; read by the loop thread.
        self._callback: Callable[[], None] | None = callback
        self._handle: asyncio.TimerHandle | None = None  # Loop thread only.
        with contextlib.suppress(ResourceClosedError):  # the loop has ended: no call is made
            loop.execute_threadsafe(self._arm, delay_s)

    def _arm(self, delay_s: float) -> None:
        if self._callback is not None:
            self._handle = self._loop.loop.call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._handle = None
        callback = self._callback
        self._callback = None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        """Prevent the call if it has not begun."""
        self._callback = None
        with contextlib.suppress(ResourceClosedError):  # the loop has ended, and its timers with it
            self._loop.execute_threadsafe(self._disarm)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


@dataclass(frozen=True, slots=True)
class LoopTimers:
    """``Timers`` of the loop behind an ``EventLoopThread``; any thread."""

    loop: EventLoopThread

    def call_later(self, delay_s: float, call: Callable[[], None], /) -> LoopTimer:
        """Make ``call`` on the loop thread after ``delay_s``; any thread may cancel it."""
        return LoopTimer(self.loop, delay_s, call)
