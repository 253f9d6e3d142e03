"""``MailboxFuture``: a result that one thread of a task produces and another thread, or a coroutine, waits for.

``StreamTaskActionExecutor``: runs the actions of a task, mails and default actions: directly, or under a lock; one
flushes the record writers after each mail.

Side:       shared.  Any thread completes, cancels, adds callbacks or waits; a coroutine awaits on its own loop.
Invariants: the first outcome stays.  Callbacks run once, after the outcome is set, on the thread that set it, under no
            lock.  An action executor runs the action on the calling thread, exactly once, and lets its exception pass.
            After a mail, as after the default action, no record that it emitted is pending in a record writer.
Source:     Flink ``CompletableFuture`` in ``MailboxExecutor`` and ``StreamTask``, without chaining (``thenApply``): a
            mail or a callback does the next step.  A ``concurrent.futures.Future`` costs 2.7 us, and could not refuse a
            wait on the mailbox thread.  Flink ``StreamTaskActionExecutor``, ``SynchronizedStreamTaskActionExecutor``: a
            source whose user function runs on its own thread emits under the lock that the task's mails take.  Flushing
            is ours: Flink's writers hold no pending records.  Timers and asynchronous results are emitted by mails,
            even while an operator yields inside a long default action: their records must not wait for its end.
"""

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, suppress
from enum import Enum, auto
from typing import Final, Generic, Protocol, TypeVar, cast

from netstack.availability import AvailabilityFuture
from netstack.errors import WouldBlock

T = TypeVar("T")


class Signal(Protocol):
    """Becomes done once: an ``AvailabilityFuture`` of a gate or a pool, or a ``MailboxFuture``."""

    @property
    def is_done(self) -> bool:
        """Whether it is done."""

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when it is done, on the thread that completed it; at once if it is done already."""

    def remove_done_callback(self, callback: Callable[[], None]) -> None:
        """Remove a callback that was not called yet."""


class _State(Enum):
    PENDING = auto()
    RUNNING = auto()  # cannot be cancelled any more
    COMPLETED = auto()
    FAILED = auto()
    CANCELLED = auto()


_OUTCOMES = frozenset({_State.COMPLETED, _State.FAILED, _State.CANCELLED})


class MailboxFuture(Generic[T]):
    """A value or an error that is set later.

    Threading: every method from any thread; ``await`` on any event loop.

    ``is_producer_thread`` tells whether the calling thread is the one that must set the outcome, and so may not wait
    for it.
    """

    __slots__ = ("_error", "_is_producer_thread", "_lock", "_signal", "_state", "_value")

    def __init__(self, is_producer_thread: Callable[[], bool] | None = None) -> None:
        self._is_producer_thread = is_producer_thread
        self._lock = threading.Lock()
        # Guarded by _lock for writes.  An outcome never changes, so it may be read without.
        self._state = _State.PENDING
        self._value: T | None = None  # Written before the state.
        self._error: BaseException | None = None  # Written before the state.
        self._signal = AvailabilityFuture()

    def __repr__(self) -> str:
        return f"<MailboxFuture {self._state.name}>"

    # -- the side that brings the outcome

    def try_start(self) -> bool:
        """Start the work, after which ``cancel`` is too late; False if it was started, cancelled or
        completed before.
        """
        with self._lock:
            if self._state is not _State.PENDING:
                return False
            self._state = _State.RUNNING
            return True

    def complete(self, value: T) -> bool:
        """Set the value; False if there is an outcome already."""
        return self._end(_State.COMPLETED, value=value)

    def fail(self, error: BaseException) -> bool:
        """Set the error; False if there is an outcome already."""
        return self._end(_State.FAILED, error=error)

    def cancel(self) -> bool:
        """Cancel; False if there is an outcome already, or the work has started."""
        return self._end(
            _State.CANCELLED, error=CancelledError("the mail was dropped, or its result was no longer wanted")
        )

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
        """Whether there is an outcome: a value, an error or a cancellation."""
        return self._signal.is_done

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._state is _State.CANCELLED

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when there is an outcome, on the thread that sets it; at once if there is one."""
        self._signal.add_done_callback(callback)

    def remove_done_callback(self, callback: Callable[[], None]) -> None:
        """Remove a ``callback`` that was not called yet."""
        self._signal.remove_done_callback(callback)

    def result_nowait(self) -> T:
        """The value.

        Raises:
            WouldBlock: there is no outcome yet.
            concurrent.futures.CancelledError: it was cancelled, or the mailbox was closed before the mail ran.
            BaseException: the error that was set.
        """
        if not self._signal.is_done:
            raise WouldBlock(f"{self!r} has no outcome yet")
        if self._error is not None:
            raise self._error
        return cast("T", self._value)

    def result(self, timeout_s: float | None = None) -> T:
        """Wait at most ``timeout_s`` seconds for the value.

        Raises:
            TimeoutError: there is no outcome yet.
            RuntimeError: called on the thread that must set the outcome, which would wait for ever.
            concurrent.futures.CancelledError: as ``result_nowait``.
            BaseException: the error that was set.
        """
        self._wait(timeout_s)
        return self.result_nowait()

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """As ``result``, but returns the error; None if there is a value."""
        self._wait(timeout_s)
        return self._error

    def _wait(self, timeout_s: float | None) -> None:
        if self._signal.is_done:
            return
        if self._is_producer_thread is not None and self._is_producer_thread():
            raise RuntimeError(
                f"{self!r} cannot be waited for on the mailbox thread, which alone can complete it; call yield_until "
                "instead"
            )
        wakeup = threading.Lock()
        wakeup.acquire()  # no wait: the lock is new
        self._signal.add_done_callback(wakeup.release)
        # waits for a mail's outcome; ended by the mailbox thread, or by closing the mailbox
        if not wakeup.acquire(timeout=-1 if timeout_s is None else timeout_s):
            self._signal.remove_done_callback(wakeup.release)
            raise TimeoutError(f"{self!r} has no outcome after {timeout_s} s")

    def __await__(self) -> Generator[object, None, T]:
        """Wait on the running event loop of the calling coroutine, without blocking it."""
        if not self._signal.is_done:
            yield from self._wait_on_loop(asyncio.get_running_loop())
        return self.result_nowait()

    def _wait_on_loop(self, loop: asyncio.AbstractEventLoop) -> Generator[object, None, None]:
        waiter = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def wake_threadsafe() -> None:
            # A closed loop has no waiter left.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(wake)

        self._signal.add_done_callback(wake_threadsafe)
        try:
            yield from waiter
        finally:
            self._signal.remove_done_callback(wake_threadsafe)


class StreamTaskActionExecutor(Protocol):
    """Runs an action of a task."""

    def call(self, action: Callable[[], T]) -> T:
        """Run the action now, on this thread; returns its result, raises its exception."""


class ImmediateActionExecutor:
    """Runs the action without a lock."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<ImmediateActionExecutor>"

    def call(self, action: Callable[[], T]) -> T:
        """Run the action now, on this thread."""
        return action()


IMMEDIATE: Final = ImmediateActionExecutor()


class SynchronizedActionExecutor:
    """Runs every action under one reentrant lock (``mutex``, or its own); any thread."""

    __slots__ = ("mutex",)

    def __init__(self, mutex: AbstractContextManager[object] | None = None) -> None:
        self.mutex: AbstractContextManager[object] = threading.RLock() if mutex is None else mutex

    def __repr__(self) -> str:
        return f"<SynchronizedActionExecutor {self.mutex!r}>"

    def call(self, action: Callable[[], T]) -> T:
        """Run the action on this thread as soon as no other thread runs one."""
        with self.mutex:
            return action()


class FlushingActionExecutor:
    """Runs the actions of mails with ``inner``, each followed by ``flush``, which is cheap when nothing is pending."""

    __slots__ = ("_flush", "_inner")

    def __init__(self, flush: Callable[[], None], inner: StreamTaskActionExecutor = IMMEDIATE) -> None:
        self._flush = flush
        self._inner = inner

    def __repr__(self) -> str:
        return f"<FlushingActionExecutor around {self._inner!r}>"

    def call(self, action: Callable[[], T]) -> T:
        """Run the action now, on this thread.  If it raises, nothing is flushed."""
        return self._inner.call(lambda: self._run(action))

    def _run(self, action: Callable[[], T]) -> T:
        result = action()
        self._flush()
        return result
