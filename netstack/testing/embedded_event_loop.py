"""An event loop that runs only when a test says so, and a clock that moves only then.

Side:       any.
Invariants: callbacks run in the order in which they become due; an exception of a callback is never lost.
Units:      the clock counts nanoseconds.
Source:     Netty ``EmbeddedEventLoop``.
Absent:     sockets, tasks and futures of asyncio.
"""

import asyncio
import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

from netstack.loop.eventloop import EventLoopThread


class ManualClock:
    """A clock that the test moves, in place of ``time.monotonic_ns``.

    Threading: one thread at a time.
    """

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def __repr__(self) -> str:
        return f"<ManualClock at {self._now_ns} ns>"

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        return self._now_ns

    def advance(self, duration_ns: int) -> None:
        """Move the time forward; raises ValueError for a negative ``duration_ns``."""
        if duration_ns < 0:
            raise ValueError(f"time cannot go back by {-duration_ns} ns")
        self._now_ns += duration_ns


Ts = TypeVarTuple("Ts")

_NS_PER_S = 1_000_000_000
# More means that callbacks post each other for ever.
_MAX_CALLBACKS_PER_RUN = 100_000


class _ManualLoop(asyncio.AbstractEventLoop):
    """Callbacks and timers over a manual clock."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.errors: list[BaseException] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()

    def __repr__(self) -> str:
        return f"<manual loop, {len(self._ready)} ready, {self.num_timers} timers>"

    @property
    def num_timers(self) -> int:
        return sum(not timer.cancelled() for _, _, timer in self._timers)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def time(self) -> float:
        return self.clock.now_ns() / _NS_PER_S

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Note a cancelled timer, which is skipped when it is due; called by ``TimerHandle.cancel``."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context.get("exception") or RuntimeError(context["message"]))

    def run_pending(self) -> int:
        """Run everything that is ready or becomes ready meanwhile; returns how many callbacks ran."""
        for num_run in range(_MAX_CALLBACKS_PER_RUN):
            if not self._ready:
                return num_run
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()
        raise AssertionError(f"still not done after {_MAX_CALLBACKS_PER_RUN} callbacks: {self!r}")

    def next_timer(self) -> float | None:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def take_due_timers(self) -> None:
        while (when := self.next_timer()) is not None and when <= self.time():
            self._ready.append(heapq.heappop(self._timers)[2])


class EmbeddedEventLoop(EventLoopThread):
    """An ``EventLoopThread`` without a thread: functions run in ``run_pending``, timers in ``advance``.

    Threading: the thread that makes it is the loop thread; ``execute_threadsafe`` from any thread, as in production.
    """

    def __init__(self, clock: ManualClock | None = None, name: str = "embedded") -> None:
        self.clock = ManualClock() if clock is None else clock
        # typeshed calls every method of AbstractEventLoop abstract; the class itself is not.
        self._manual = _ManualLoop(self.clock)  # type: ignore[abstract]
        super().__init__(self._manual, name)
        self._thread_id = threading.get_ident()

    @property
    def num_timers(self) -> int:
        """The number of pending timers."""
        return self._manual.num_timers

    def run_pending(self) -> int:
        """Run everything that is ready or becomes ready meanwhile; returns how many callbacks ran.

        Raises:
            Exception: the first exception of a function or callback, after all of them ran.
        """
        num_run = self._manual.run_pending()
        if self._manual.errors:
            error, self._manual.errors = self._manual.errors[0], []
            raise error
        return num_run

    def advance(self, duration_s: float) -> None:
        """Advance the clock from timer to timer and run due callbacks.

        Raises:
            Exception: as in ``run_pending``.
        """
        end_ns = self.clock.now_ns() + round(duration_s * _NS_PER_S)
        self.run_pending()
        while (when := self._manual.next_timer()) is not None and round(when * _NS_PER_S) <= end_ns:
            self.clock.advance(max(0, round(when * _NS_PER_S) - self.clock.now_ns()))
            self._manual.take_due_timers()
            self.run_pending()
        self.clock.advance(end_ns - self.clock.now_ns())
