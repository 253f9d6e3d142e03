"""Runs the coroutines of one operator on the shared loop, and keeps their outcomes until the task takes them.

``SharedAsyncLoop``: the event loop on which users' coroutines run.

Side:       shared.  The task's thread starts, cancels and collects calls; they run on the loop's thread.
Invariants: one loop per process, on its own thread, so that users' coroutines cannot stall the network.  It runs
            exactly while it has a holder.  Each started call has one outcome, unless it was cancelled before.
            ``on_outcomes`` is called once when outcomes wait, not once per outcome.
Source:     none in Flink, whose users bring their own thread pools; PyFlink runs one loop per operator.  PyFlink's
            runner of async functions.  Outcomes travel like netstack's events: one deque and one coalesced wake-up.
"""

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from flowlet.chain.record_shape import copy_if_mutable
from flowlet.errors import FlowletError
from netstack.availability import AvailabilityFuture
from netstack.errors import ResourceBrokenError
from netstack.late import dataclass
from netstack.loop.eventloop import EventLoopThread
from netstack.loop.forks import end_stranded_child

LOOP_NAME: Final = "flowlet async functions"


class SharedAsyncLoop:
    """Starts an event loop for the first holder and ends it after the last, any number of times.

    Threading: any thread, but ``release`` not on the loop itself.
    """

    def __init__(self, start: Callable[[str], EventLoopThread] = EventLoopThread.start) -> None:
        self._start = start
        # Held while a loop starts (about a millisecond): a second holder must get that loop, not start another one.
        self._lock = threading.Lock()
        self._loop: EventLoopThread | None = None  # Guarded by _lock.
        self.num_holders = 0  # Guarded by _lock for writes; elsewhere at once outdated.

    def __repr__(self) -> str:
        return f"<SharedAsyncLoop {'idle' if self._loop is None else 'running'}, {self.num_holders} holders>"

    def acquire(self) -> EventLoopThread:
        """The running loop, started if there is none; call ``release`` once."""
        with self._lock:
            if self._loop is None:
                self._loop = self._start(LOOP_NAME)
            self.num_holders += 1
            return self._loop

    def release(self) -> None:
        """Give the loop back.  The last holder ends it and waits for its end.

        Raises:
            FlowletError: the loop did not end, because a coroutine blocks it.  It is not used again.
        """
        with self._lock:
            assert self.num_holders > 0, "released more often than acquired"
            self.num_holders -= 1
            if self.num_holders:
                return
            loop, self._loop = self._loop, None
        assert loop is not None, "the caller holds the loop"
        try:
            loop.close()
        except ResourceBrokenError as error:
            raise FlowletError(
                "the event loop does not end: an async function blocks it; use asyncio.sleep(), not time.sleep()"
            ) from error


# One per process: all tasks of a TaskManager share it.
PROCESS_ASYNC_LOOP: Final = SharedAsyncLoop()


# How long cancelled coroutines may take to clean up.  Not measured.
CANCEL_TIMEOUT_S: Final = 5.0
# A loop that does not answer within this time is blocked: it covers the clean-up of coroutines, and a little more.
_ANSWER_TIMEOUT_S: Final = CANCEL_TIMEOUT_S + 1.0

AsyncFunctionCall: TypeAlias = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Failed:
    """The outcome of a call that raised."""

    error: BaseException


@dataclass(eq=False, slots=True)
class AsyncCall:
    """One attempt of a call: the function, the record, and the ``owner``, which only the caller of ``start`` uses."""

    function: AsyncFunctionCall
    value: Any
    owner: Any
    task: "asyncio.Task[None] | None" = None  # Loop thread only.
    is_cancelled: bool = False  # Loop thread only.

    def cancel(self) -> None:
        """Interrupt the coroutine; no outcome is delivered afterwards.  Loop thread."""
        self.is_cancelled = True
        if self.task is not None:
            self.task.cancel()


class AsyncCalls:
    """Runs calls on the shared loop.

    Threading: the task's thread; ``on_outcomes`` is called on the loop's.
    Life cycle: runs from the start; ``cancel_all``, then ``close``.

    Args:
        on_outcomes: called when outcomes wait; must be quick and must not raise.
        shared_loop: provides the loop.
    """

    def __init__(self, on_outcomes: Callable[[], None], shared_loop: SharedAsyncLoop = PROCESS_ASYNC_LOOP) -> None:
        self._on_outcomes = on_outcomes
        self._shared_loop = shared_loop
        self._loop = shared_loop.acquire()
        # Appended by the loop thread, popped by the task's thread.
        self._outcomes: deque[tuple[AsyncCall, Any]] = deque()
        # Set by the loop thread after it appends; cleared by the task's thread before it pops.  So no outcome stays
        # without a notification.
        self._is_notified = False
        self._tasks: set[asyncio.Task[Any]] = set()  # Loop thread only: the running coroutines.
        self._is_ending = False  # Loop thread only: outcomes are dropped from now on.

    def __repr__(self) -> str:
        return f"<AsyncCalls {len(self._tasks)} running, {len(self._outcomes)} outcomes>"

    def start(self, calls: Sequence[AsyncCall]) -> None:
        """Start calls, in this order, with one wake-up of the loop."""
        self._loop.execute_threadsafe(self._start_on_loop, calls)

    def cancel(self, call: AsyncCall) -> None:
        """Interrupt a call; an outcome that is there already may still be delivered."""
        self._loop.execute_threadsafe(call.cancel)

    def take_outcomes(self) -> list[tuple[AsyncCall, Any]]:
        """The calls that ended since the last time, in the order of their ends, each with its result or ``Failed``."""
        self._is_notified = False
        outcomes = self._outcomes
        return [outcomes.popleft() for _ in range(len(outcomes))]

    def run(
        self, function: AsyncFunctionCall, *args: Any, wait: Callable[[AvailabilityFuture], None] | None = None
    ) -> Any:
        """Call a coroutine function on the loop; waits for its result, raises its error.

        ``wait``: waits for the end of the coroutine; if it raises, such as TaskCancelled, the coroutine and all calls
            are interrupted.
        """
        future = self._loop.submit(self._outcome_of(function, args))
        if wait is not None:
            ended = AvailabilityFuture()
            future.add_done_callback(lambda _: ended.complete())
            try:
                wait(ended)
            except BaseException:
                self.cancel_all()
                raise
        # waits for close() of an async function, or not at all if wait() has returned; ended by that function
        outcome = future.result()
        if isinstance(outcome, Failed):
            raise outcome.error
        return outcome

    def cancel_all(self) -> None:
        """Interrupt all calls and wait for their ends.

        Raises FlowletError if some do not end, or one blocks the loop.
        """
        try:
            num_left = self._loop.submit(self._cancel_on_loop()).result(_ANSWER_TIMEOUT_S)
        except concurrent.futures.TimeoutError as error:
            raise FlowletError(
                "the event loop does not answer: an async function blocks it; use asyncio.sleep(), not time.sleep()"
            ) from error
        if num_left:
            raise FlowletError(
                f"{num_left} calls of async functions still run {CANCEL_TIMEOUT_S:g} s after they were cancelled"
            )

    def close(self) -> None:
        """Release the loop.  Raises FlowletError if it does not end."""
        self._shared_loop.release()

    # -- loop thread

    def _start_on_loop(self, calls: Sequence[AsyncCall]) -> None:
        for call in calls:
            call.task = self._loop.loop.create_task(self._run(call))
            self._tasks.add(call.task)  # before its first step: it may be cancelled until then
            call.task.add_done_callback(self._tasks.discard)

    async def _run(self, call: AsyncCall) -> None:
        try:
            outcome = await call.function(call.value)
            if isinstance(outcome, Iterable):
                # Copied: other coroutines could change the results while they wait for the task.
                outcome = list(map(copy_if_mutable, outcome))
        except BaseException as error:  # noqa: BLE001 - a coroutine that calls sys.exit() must not end the loop of all others
            end_stranded_child()
            outcome = Failed(error)
        end_stranded_child()
        if not call.is_cancelled:
            self._deliver(call, outcome)

    def _deliver(self, call: AsyncCall, outcome: Any) -> None:
        if self._is_ending:
            return
        self._outcomes.append((call, outcome))
        if not self._is_notified:
            self._is_notified = True
            self._on_outcomes()

    async def _outcome_of(self, function: AsyncFunctionCall, args: tuple[Any, ...]) -> Any:
        task = asyncio.current_task()
        assert task is not None, "a coroutine of the loop"
        self._tasks.add(task)
        try:
            return await function(*args)
        except BaseException as error:  # noqa: BLE001 - as in ``_run``
            return Failed(error)
        finally:
            self._tasks.discard(task)

    async def _cancel_on_loop(self) -> int:
        """Cancel all coroutines; returns how many do not end."""
        self._is_ending = True
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if not tasks:
            return 0
        _, pending = await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT_S)
        return len(pending)
