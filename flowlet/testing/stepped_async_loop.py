"""Runs users' coroutines on the thread of the test, by the manual clock.

Side:       any.
Invariants: nothing runs outside of ``run_until_idle``, ``run`` and ``wait_for_others``.  ``asyncio.sleep`` and timeouts
            use the manual clock, so they take no time.  The order of outcomes is always the same.
Source:     no counterpart in Flink; ``AsyncCalls`` runs them in a task.
Absent:     real time: while a coroutine waits for a thread or a socket (``wait_for_others``), the clock stands still.
"""

import asyncio
import concurrent.futures
import contextvars
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from netstack.loop.eventloop import EventLoopThread

_Args = TypeVarTuple("_Args")
T = TypeVar("T")

_MAX_ROUNDS: Final = 100_000  # only a coroutine that never ends and never waits needs more


class SteppedEventLoop(asyncio.SelectorEventLoop):
    """An event loop that runs only in steps, by the manual clock ``now_ms``."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        # Time counts from here, because floats hold milliseconds of small numbers more exactly.
        self._start_ms = now_ms()
        self._readiness = selectors.DefaultSelector()
        self._has_more = False  # whether something was scheduled for the next round
        self._timer_handles: list[asyncio.TimerHandle] = []
        super().__init__(self._readiness)
        self.set_debug(False)  # debug mode would report slow callbacks by this clock

    def time(self) -> float:
        """The manual clock, in seconds since the loop was created."""
        return (self._now_ms() - self._start_ms) / 1_000

    def call_soon(
        self, callback: Callable[[Unpack[_Args]], object], *args: *_Args, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As the base class; notes that there is more to run."""
        self._has_more = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Args]], object],
        *args: *_Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """As the base class; keeps the handle for ``next_timer_ms``."""
        handle = super().call_at(when, callback, *args, context=context)
        self._timer_handles.append(handle)
        return handle

    def next_timer_ms(self) -> int | None:
        """The clock time at which the next timer fires; None if there is none."""
        now_ms = self._now_ms()
        self._timer_handles = [
            handle for handle in self._timer_handles if not handle.cancelled() and self._due_ms(handle) > now_ms
        ]
        return min(map(self._due_ms, self._timer_handles), default=None)

    def _due_ms(self, handle: asyncio.TimerHandle) -> int:
        return self._start_ms + math.ceil(round(handle.when() * 1_000, 6))

    def run_until_idle(self) -> None:
        """Run everything that is ready, and what becomes ready by it."""
        for _ in range(_MAX_ROUNDS):
            self._has_more = False
            # One round: stop is queued behind everything that is ready.
            super().call_soon(self.stop)
            self.run_forever()
            if not self._has_more:
                return
        raise AssertionError(f"coroutines still do not wait for anything after {_MAX_ROUNDS} rounds")

    def wait_for_others(self, timeout_s: float) -> bool:
        """Wait until a thread or a socket wakes the loop; False after ``timeout_s``."""
        return bool(self._readiness.select(timeout_s))


class SteppedLoopThread(EventLoopThread):
    """Stands in for the thread of ``AsyncCalls``: all runs on that of the test.

    ``wait_until`` steps the loop, and time, until a condition holds.  No mail runs meanwhile.
    """

    def __init__(self, loop: SteppedEventLoop, wait_until: Callable[[Callable[[], bool]], None]) -> None:
        super().__init__(loop, "stepped")
        self._wait_until = wait_until

    def execute_threadsafe(self, function: Callable[[*_Args], None], *args: *_Args) -> None:
        """Call the function at once."""
        function(*args)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Step until the coroutine has ended."""
        task = self.loop.create_task(coroutine)
        self._wait_until(task.done)
        future = concurrent.futures.Future[T]()
        future.set_result(task.result())  # no wait: it is done
        return future

    def close(self, timeout_s: float = 0) -> None:
        """Does nothing: the harness closes the loop."""
