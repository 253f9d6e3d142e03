"""The coroutines of one operator, run on the shared loop; their outcomes wait here until the task takes them.

Side:       shared.  Calls are started, cancelled and collected on the task's thread and run on the loop's.
Invariants: each call that was started has one outcome, unless it was cancelled before; ``on_outcomes`` is called when the first outcome
            comes that was not taken yet, never once per outcome.
Source:     PyFlink's runner of async functions.  Outcomes travel as netstack's events do: a deque and one coalesced wake-up.
"""

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from flowlet.async_io.shared_async_loop import PROCESS_ASYNC_LOOP, SharedAsyncLoop
from flowlet.chain.record_copies import copy_if_mutable
from flowlet.errors import FlowletError

# How long cancelled coroutines may clean up after themselves.  Not measured.
CANCEL_TIMEOUT_S: Final = 5.0
# A loop that does not even answer after this time is blocked: the coroutines had theirs, and a bit.
_ANSWER_TIMEOUT_S: Final = CANCEL_TIMEOUT_S + 1.0

AsyncFunctionCall: TypeAlias = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Failed:
    """The outcome of a call that raised."""

    error: BaseException


class AsyncCall:
    """One attempt: what is called with which record, and for whom.

    Ownership: ``owner`` is the caller's, not looked at here.
    """

    __slots__ = ("_is_cancelled", "_task", "function", "owner", "value")

    def __init__(self, function: AsyncFunctionCall, value: Any, owner: Any) -> None:
        self.function = function
        self.value = value
        self.owner = owner
        self._task: asyncio.Task[None] | None = None  # Loop thread only.
        self._is_cancelled = False  # Loop thread only.

    async def run(self, deliver: Callable[["AsyncCall", Any], None]) -> None:
        """Call and deliver the outcome; loop thread."""
        try:
            outcome = await self.function(self.value)
            if isinstance(outcome, list):
                # Other coroutines may change the results while they wait for the task.
                outcome = list(map(copy_if_mutable, outcome))
        except BaseException as error:  # noqa: BLE001 - a coroutine that calls sys.exit() must not end the loop of all others
            outcome = Failed(error)
        if not self._is_cancelled:
            deliver(self, outcome)

    def start(self, loop: asyncio.AbstractEventLoop, deliver: Callable[["AsyncCall", Any], None]) -> "asyncio.Task[None]":
        """Begin; loop thread."""
        self._task = loop.create_task(self.run(deliver))
        return self._task

    def cancel(self) -> None:
        """Deliver nothing any more, and interrupt the coroutine; loop thread."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()


class CallRunner(Protocol):
    """What operators need of ``AsyncCalls``; tests bring another."""

    def start(self, calls: Sequence[AsyncCall]) -> None:
        """Begin calls, in this order."""

    def cancel(self, call: AsyncCall) -> None:
        """Interrupt a call."""

    def take_outcomes(self) -> list[tuple[AsyncCall, Any]]:
        """Calls that ended since the last time, each with its result or ``Failed``."""

    def run(self, function: AsyncFunctionCall, *args: Any) -> Any:
        """Call a coroutine function and wait for its result."""

    def cancel_all(self) -> None:
        """Interrupt all calls and wait until they have ended."""

    def close(self) -> None:
        """Give back what runs them."""


class AsyncCalls:
    """Runs calls on the shared loop.

    Threading: the task's thread; ``on_outcomes`` is called on the loop's.
    Life cycle: running from the start; ``cancel_all``, then ``close``.

    Args:
        on_outcomes: told that ``take_outcomes`` has something; must be quick and must not raise.
        shared_loop: whose loop to use.
    """

    def __init__(self, on_outcomes: Callable[[], None], shared_loop: SharedAsyncLoop = PROCESS_ASYNC_LOOP) -> None:
        self._on_outcomes = on_outcomes
        self._shared_loop = shared_loop
        self._loop = shared_loop.acquire()
        self._outcomes: deque[tuple[AsyncCall, Any]] = deque()  # Appended by the loop thread, popped by the task's.
        # Set by the loop thread after it appended, cleared by the task's before it pops: no outcome is left without a notification.
        self._is_notified = False
        self._tasks: set[asyncio.Task[None]] = set()  # Loop thread only: those that run.
        self._is_ending = False  # Loop thread only: outcomes are nobody's any more.

    def __repr__(self) -> str:
        return f"<AsyncCalls {len(self._tasks)} running, {len(self._outcomes)} outcomes>"

    def start(self, calls: Sequence[AsyncCall]) -> None:
        """Begin calls, in this order, by one wake-up of the loop."""
        self._loop.execute_threadsafe(self._start_on_loop, calls)

    def cancel(self, call: AsyncCall) -> None:
        """Interrupt a call; an outcome that it had already may still come."""
        self._loop.execute_threadsafe(call.cancel)

    def take_outcomes(self) -> list[tuple[AsyncCall, Any]]:
        """Calls that ended since the last time, in that order, each with its result or ``Failed``."""
        self._is_notified = False
        outcomes = self._outcomes
        return [outcomes.popleft() for _ in range(len(outcomes))]

    def run(self, function: AsyncFunctionCall, *args: Any) -> Any:
        """Call a coroutine function on the loop and wait for its result.

        Raises:
            Whatever it raises.
        """
        outcome = self._loop.submit(_outcome_of(function, args)).result()
        if isinstance(outcome, Failed):
            raise outcome.error
        return outcome

    def cancel_all(self) -> None:
        """Interrupt all calls and wait until they have ended.

        Raises:
            FlowletError: some do not end, or the loop does not answer because one of them blocks it.
        """
        try:
            num_left = self._loop.submit(self._cancel_on_loop()).result(_ANSWER_TIMEOUT_S)
        except concurrent.futures.TimeoutError as error:
            raise FlowletError("the loop of the async functions does not answer: one of them blocks it, such as by time.sleep()") from error
        if num_left:
            raise FlowletError(f"{num_left} calls of async functions still run {CANCEL_TIMEOUT_S:g} s after they were cancelled")

    def close(self) -> None:
        """Give the loop back.

        Raises:
            FlowletError: it does not end.
        """
        self._shared_loop.release()

    # -- loop thread

    def _start_on_loop(self, calls: Sequence[AsyncCall]) -> None:
        for call in calls:
            task = call.start(self._loop.loop, self._deliver)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _deliver(self, call: AsyncCall, outcome: Any) -> None:
        if self._is_ending:
            return
        self._outcomes.append((call, outcome))
        if not self._is_notified:
            self._is_notified = True
            self._on_outcomes()

    async def _cancel_on_loop(self) -> int:
        """How many do not end."""
        self._is_ending = True
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if not tasks:
            return 0
        _, pending = await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_S)
        return len(pending)


async def _outcome_of(function: AsyncFunctionCall, args: tuple[Any, ...]) -> Any:
    try:
        return await function(*args)
    except BaseException as error:  # noqa: BLE001 - see AsyncCall.run
        return Failed(error)
