"""Ctrl-C in the user's thread: only where it can do no harm.

Side:       shared.
Invariants: a signal handler that raises does so before a guarded block or after it, never inside; who waits in
            ``Latch.wait`` holds nothing that another thread needs, and hears of a signal within ``_LOOK_INTERVAL_S``.
Why:        Python runs signal handlers between any two calls of the main thread, also just after
            ``Condition.__enter__`` took its lock and before the ``with`` statement knows.  A KeyboardInterrupt there
            leaves the lock of a ``concurrent.futures.Future`` or of a ``threading.Event`` taken for ever, and the next
            thread that completes the future, our event loop, stops for ever.  So the user's thread touches what it
            shares with the loop inside ``DeferredSignals``, and waits outside of it on a ``Latch``.  And a signal
            interrupts a wait only if it comes after the wait has begun, on the main thread: one that comes just before
            (while the thread hands over the interpreter's lock, which takes milliseconds on a busy machine), or that
            the kernel gives to another thread, is only noted.  So a wait without end looks up now and then.
Absent:     signals for which the program has no handler of its own (they end the process), and other threads (they
            never see a signal).
"""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

# Those that people and supervisors send, and whose handlers raise: KeyboardInterrupt, SystemExit.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_INTERVAL_S: Final = 0.25  # a person does not notice; four wakeups a second cost nothing


class DeferredSignals:
    """A block, ``with DeferredSignals():``, in which signals wait: the handlers of arrived signals run when it is over.

    Threading: any thread; on another one than the main thread it does nothing, because handlers run on that one alone.
    Life cycle: one ``with`` statement each; blocks may be nested, then the outermost one counts.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._arrived: dict[int, FrameType | None] = {}  # one entry per signal, as the kernel merges them, too

    def __repr__(self) -> str:
        return f"<DeferredSignals {sorted(self._handlers)}, arrived {sorted(self._arrived)}>"

    def __enter__(self) -> "DeferredSignals":
        if threading.get_ident() != threading.main_thread().ident:
            return self
        try:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):  # not SIG_DFL, not SIG_IGN, not one set from C
                    self._handlers[number] = handler
                    signal.signal(number, self._arrive)
        except BaseException:  # one arrived that is not deferred yet
            self._restore()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._restore()
        finally:
            self._deliver()

    def _arrive(self, number: int, frame: FrameType | None) -> None:
        self._arrived[number] = frame

    def _restore(self) -> None:
        # A handler that is back may raise between two steps: the others are put back nevertheless.
        try:
            while self._handlers:
                number, handler = next(iter(self._handlers.items()))
                signal.signal(number, handler)
                del self._handlers[number]
        finally:
            if self._handlers:
                self._restore()

    def _deliver(self) -> None:
        try:
            while self._arrived:
                number, frame = self._arrived.popitem()
                handler = signal.getsignal(number)
                if callable(handler):
                    handler(number, frame)
        finally:
            if self._arrived:
                self._deliver()


class Latch:
    """Opens once.  Like ``threading.Event``, but an interrupted wait leaves nothing behind that stops others.

    Threading: ``open`` on any thread, any number of times; ``wait`` on one.
    """

    __slots__ = ("_lock", "is_open")

    def __init__(self) -> None:
        self.is_open = False  # Set by any thread, before the lock is released.
        # A bare lock is taken and waited for in C: a signal finds it taken or not, never in between.
        self._lock = threading.Lock()
        self._lock.acquire()  # no wait: the lock is new

    def __repr__(self) -> str:
        return f"<Latch {'open' if self.is_open else 'shut'}>"

    def open(self, *_: object) -> None:
        """Let the waiting thread go on; takes arguments so that it can be a callback."""
        self.is_open = True
        with contextlib.suppress(RuntimeError):  # it was released before
            self._lock.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is open, at most ``timeout_s`` seconds, None: for ever; returns whether it is."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not self.is_open:
            left_s = deadline - time.monotonic()
            # waits for what its caller waits for; ended by open()
            if left_s <= 0 or self._lock.acquire(timeout=min(left_s, _LOOK_INTERVAL_S)):
                break
        return self.is_open
