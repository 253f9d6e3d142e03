"""Runs users' coroutines on the thread of the test, by the manual clock.

Side:       any.
Invariants: nothing runs outside of ``run_until_idle``, ``run`` and ``wait_for_others``.  ``asyncio.sleep`` and timeouts
            use the manual clock, so they take no time.  The order of outcomes is always the same.
Source:     no counterpart in Flink; ``AsyncCalls`` runs them in a task.
Absent:     real time: while a coroutine waits for a thread or a socket (``wait_for_others``), the clock stands still.
"""

import asyncio
import contextvars
import math
import selectors
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVarTuple, Unpack

from flowlet.async_io.async_calls import AsyncCall, AsyncFunctionCall
from netstack.availability import AvailabilityFuture

_Args = TypeVarTuple("_Args")

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


class SteppedAsyncCalls:
    """Stands in for ``AsyncCalls``; calls ``on_outcomes`` when ``take_outcomes`` has something.

    ``wait_until`` steps the loop, and time, until a condition holds.
    """

    def __init__(
        self, on_outcomes: Callable[[], None], loop: SteppedEventLoop, wait_until: Callable[[Callable[[], bool]], None]
    ) -> None:
        self._on_outcomes = on_outcomes
        self._loop = loop
        self._wait_until = wait_until
        self._outcomes: list[tuple[AsyncCall, Any]] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<SteppedAsyncCalls {len(self._tasks)} running, {len(self._outcomes)} outcomes>"

    def start(self, calls: Sequence[AsyncCall]) -> None:
        """Start calls; they begin in this order with the next step."""
        for call in calls:
            self._keep(call.start(self._loop, self._deliver))

    def cancel(self, call: AsyncCall) -> None:
        """Cancel a call."""
        call.cancel()

    def take_outcomes(self) -> list[tuple[AsyncCall, Any]]:
        """The calls that have ended since the last time, each with its result or ``Failed``."""
        outcomes = self._outcomes
        self._outcomes = []
        return outcomes

    def run(
        self, function: AsyncFunctionCall, *args: Any, wait: Callable[[AvailabilityFuture], None] | None = None
    ) -> Any:
        """Call a coroutine function; step until it has a result, and return it.

        No mail runs meanwhile, so ``wait`` is not used.
        """

        async def call() -> Any:
            return await function(*args)

        task = self._loop.create_task(call())
        self._keep(task)
        self._wait_until(task.done)
        return task.result()  # no wait: it is done

    def cancel_all(self) -> None:
        """Cancel all calls and step until they have ended."""
        for task in self._tasks:
            task.cancel()
        self._wait_until(lambda: not self._tasks)
        self._outcomes = []

    def close(self) -> None:
        """Does nothing: the harness closes the loop."""

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _deliver(self, call: AsyncCall, outcome: Any) -> None:
        self._outcomes.append((call, outcome))
        if len(self._outcomes) == 1:
            self._on_outcomes()
