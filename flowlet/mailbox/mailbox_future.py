"""A result that one side of a task makes and the other waits for: mailbox thread, event loop, any other thread.

Side:       shared.  Any thread completes, cancels, adds callbacks or waits; a coroutine awaits on its own loop.
Invariants: the first outcome stays; callbacks run once, after the outcome is there, on the thread that brought it, under no lock.
Source:     Flink ``CompletableFuture`` as ``MailboxExecutor`` and ``StreamTask`` use it.  An own class because a
            ``concurrent.futures.Future`` costs 2.7 us each, and because waiting for a mail on the mailbox thread must be refused.
Absent:     chains of futures (``thenApply``): a mail or a callback does the next step.
"""

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from contextlib import suppress
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar, cast

from netstack.availability import AvailabilityFuture
from netstack.errors import WouldBlock

T = TypeVar("T")


class Signal(Protocol):
    """Something that becomes done once: an ``AvailabilityFuture`` of a gate or a pool, or a ``MailboxFuture``."""

    @property
    def is_done(self) -> bool:
        """Whether it happened."""

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call once it happened, on the thread on which it did; at once if it already did."""

    def remove_done_callback(self, callback: Callable[[], None]) -> None:
        """Forget one callback that was not called yet."""


class _State(Enum):
    PENDING = auto()
    RUNNING = auto()  # cannot be cancelled any more
    COMPLETED = auto()
    FAILED = auto()
    CANCELLED = auto()


_OUTCOMES = frozenset({_State.COMPLETED, _State.FAILED, _State.CANCELLED})


class MailboxFuture(Generic[T]):
    """A value or an error that is there later.

    Threading: every method from any thread; ``await`` on any event loop.

    Args:
        is_producer_thread: tells whether the calling thread is the one that has to bring the outcome; it may not wait for it.
    """

    __slots__ = ("_error", "_is_producer_thread", "_lock", "_signal", "_state", "_value")

    def __init__(self, is_producer_thread: Callable[[], bool] | None = None) -> None:
        self._is_producer_thread = is_producer_thread
        self._lock = threading.Lock()
        self._state = _State.PENDING  # Guarded by _lock for writes; an outcome never changes, so that a bare read of one is safe.
        self._value: T | None = None  # Written before the state that says so.
        self._error: BaseException | None = None  # Written before the state that says so.
        self._signal = AvailabilityFuture()

    def __repr__(self) -> str:
        return f"<MailboxFuture {self._state.name}>"

    # -- the side that brings the outcome

    def try_start(self) -> bool:
        """The work begins, from now on ``cancel`` is too late; False when it was not."""
        with self._lock:
            if self._state is not _State.PENDING:
                return False
            self._state = _State.RUNNING
            return True

    def complete(self, value: T) -> bool:
        """Bring the value; False when there is an outcome already."""
        return self._end(_State.COMPLETED, value=value)

    def fail(self, error: BaseException) -> bool:
        """Bring the error; False when there is an outcome already."""
        return self._end(_State.FAILED, error=error)

    def cancel(self) -> bool:
        """There will be no outcome; False when there is one already, or somebody works on it."""
        return self._end(_State.CANCELLED, error=CancelledError("the mail was dropped, or nobody wanted its result any more"))

    def _end(self, state: _State, *, value: T | None = None, error: BaseException | None = None) -> bool:
        with self._lock:
            if self._state in _OUTCOMES or (state is _State.CANCELLED and self._state is _State.RUNNING):
                return False
            self._value, self._error = value, error
            self._state = state
        self._signal.complete()
        return True

    # -- the side that waits

    @property
    def is_done(self) -> bool:
        """Whether there is an outcome."""
        return self._signal.is_done

    @property
    def is_cancelled(self) -> bool:
        """Whether the outcome is that there is none."""
        return self._state is _State.CANCELLED

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once there is an outcome, on the thread that brings it; at once if there is one."""
        self._signal.add_done_callback(callback)

    def remove_done_callback(self, callback: Callable[[], None]) -> None:
        """Forget one ``callback`` that was not called yet."""
        self._signal.remove_done_callback(callback)

    def result_nowait(self) -> T:
        """The value.

        Raises:
            WouldBlock: there is no outcome yet.
            concurrent.futures.CancelledError: it was cancelled, or the mailbox was closed before the mail ran.
            BaseException: the error that was brought.
        """
        if not self._signal.is_done:
            raise WouldBlock(f"{self!r} has no outcome yet")
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def result(self, timeout_s: float | None = None) -> T:
        """Wait for the value, at most ``timeout_s`` seconds.

        Raises:
            TimeoutError: there is no outcome yet.
            RuntimeError: called on the thread that has to bring the outcome: it would wait for ever.
            concurrent.futures.CancelledError: as ``result_nowait``.
            BaseException: the error that was brought.
        """
        self._wait(timeout_s)
        return self.result_nowait()

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """As ``result``, but returns the error instead of raising it; None when there is a value."""
        self._wait(timeout_s)
        return self._error

    def _wait(self, timeout_s: float | None) -> None:
        if self._signal.is_done:
            return
        if self._is_producer_thread is not None and self._is_producer_thread():
            raise RuntimeError(f"{self!r} is waited for on the mailbox thread, which alone can complete it; yield until it is done instead")
        wakeup = threading.Lock()
        wakeup.acquire()
        self._signal.add_done_callback(wakeup.release)
        if not wakeup.acquire(timeout=-1 if timeout_s is None else timeout_s):
            self._signal.remove_done_callback(wakeup.release)
            raise TimeoutError(f"{self!r} has no outcome after {timeout_s} s")

    def __await__(self) -> Generator[object, None, T]:
        """Wait on the event loop of the calling coroutine; the loop goes on meanwhile."""
        if not self._signal.is_done:
            yield from self._wait_on_loop(asyncio.get_running_loop())
        return self.result_nowait()

    def _wait_on_loop(self, loop: asyncio.AbstractEventLoop) -> Generator[object, None, None]:
        waiter = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def wake_threadsafe() -> None:
            # A loop that was closed has nobody left who waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(wake)

        self._signal.add_done_callback(wake_threadsafe)
        try:
            yield from waiter
        finally:
            self._signal.remove_done_callback(wake_threadsafe)
