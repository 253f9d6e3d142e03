"""Futures for "there is input", "there is a free buffer", "all data was processed", and calls after a lock.

Side:       shared.  Any thread may complete a future or add a callback.
Invariants: a callback runs exactly once, never under a lock of this package: on the thread that completes the future,
            or at once on the caller's thread if the future is done.  ``run_all`` makes every call, in order, even if an
            earlier one raises.  Otherwise a broken callback would leave another thread asleep (FLINK-9755).
Source:     Flink ``AvailabilityProvider.AvailabilityHelper``.  A class of our own, because a
            ``concurrent.futures.Future`` costs 2.7 us.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack


def run_all(calls: Sequence[Callable[[], object]]) -> None:
    """Make every call, then raise the error of the last failing one, with earlier errors as its context."""
    for position, call in enumerate(calls):
        try:
            call()
        except BaseException:
            with ExitStack() as others:  # not recursion: any number of calls may fail
                for other in reversed(calls[position + 1 :]):
                    others.callback(other)
                raise


class AvailabilityFuture:
    """A one-shot signal without a value.

    Threading: every method may be called from any thread.
    """

    __slots__ = ("_callbacks", "_lock", "is_done")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Whether the signal was given.  Guarded by _lock for writes; it only ever goes from False to True, so a bare
        # read is safe.
        self.is_done = False
        self._callbacks: list[Callable[[], None]] = []  # Guarded by _lock.

    def __repr__(self) -> str:
        return f"<AvailabilityFuture {'done' if self.is_done else 'pending'}>"

    def complete(self) -> None:
        """Give the signal and run the callbacks, all of them; the second call does nothing.

        Raises:
            Exception: what the last failing callback raised, with those of earlier ones as its context.
        """
        with self._lock:
            if self.is_done:
                return
            self.is_done = True
            callbacks, self._callbacks = self._callbacks, []
        if len(callbacks) == 1:
            callbacks[0]()
        elif callbacks:
            run_all(callbacks)

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once the signal is given, at once if it already was."""
        with self._lock:
            if not self.is_done:
                self._callbacks.append(callback)
                return
        callback()

    def remove_done_callback(self, callback: Callable[[], None]) -> None:
        """Remove one ``callback`` that was added and has not run."""
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)


AVAILABLE = AvailabilityFuture()
AVAILABLE.complete()


class AvailabilityHelper:
    """The current availability future of one provider.

    Threading: not thread-safe; the owner calls it under its own lock and completes the returned futures outside.
    """

    __slots__ = ("future",)

    def __init__(self, *, is_available: bool = False) -> None:
        self.future = AVAILABLE if is_available else AvailabilityFuture()  # of the current state: done means available

    @property
    def is_available(self) -> bool:
        """Whether the current future is done."""
        return self.future.is_done

    def reset_unavailable(self) -> None:
        """Become unavailable: replace the current future by a pending one, if it is done."""
        if self.future.is_done:
            self.future = AvailabilityFuture()

    def unavailable_to_reset_available(self) -> AvailabilityFuture | None:
        """Become available; returns the pending future that the caller must complete outside its lock, or None."""
        if self.future is AVAILABLE:
            return None
        pending, self.future = self.future, AVAILABLE
        return pending
