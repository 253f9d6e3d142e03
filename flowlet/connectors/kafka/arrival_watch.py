"""``ArrivalWatch``: waits for the first message on a thread of its own, so that a task need not.

Side:       shared.  One thread per reader, from the first time on that it has nothing; the task thread makes all other
            calls.
Invariants: the thread touches the consumer only between ``watch`` and the end of its future; the task thread does not
            consume meanwhile.  A watch ends with a message, an error or ``close``.  Its wait has a limit, so ``close``
            takes a quarter of a second at most.
Source:     Flink ``SplitFetcher``, ``FutureCompletingBlockingQueue``, for idle times only: while there are messages,
            the task takes them itself, and no thread has to hand them over.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from netstack.availability import AvailabilityFuture

_SLICE_S: Final = 0.25  # how long close may have to wait; four wakeups a second per idle reader


class ArrivalWatch:
    """Watches for one consumer.

    Threading: task thread.
    Life cycle: ``watch``, then ``take`` once its future is done, any number of times; ``close``, idempotent.

    Args:
        consume: waits up to so many seconds for messages, and gives those that have come.
        name: of the thread.
    """

    def __init__(self, consume: Callable[[float], Sequence[Any]], name: str) -> None:
        self._consume = consume
        self._name = name
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)
        self._future: AvailabilityFuture | None = None  # Guarded by _lock: of the watch under way; None: none is
        self._found: Sequence[Any] = ()  # Guarded by _lock.
        self._error: BaseException | None = None  # Guarded by _lock.
        self._is_closed = False  # Guarded by _lock for writes; a stale read costs one slice.
        self._thread: threading.Thread | None = None  # Task thread only.

    def __repr__(self) -> str:
        return f"<ArrivalWatch {self._name!r}, {'watching' if self.is_watching else 'at rest'}>"

    @property
    def is_watching(self) -> bool:
        """Whether the thread has the consumer."""
        with self._lock:
            return self._future is not None

    def watch(self) -> AvailabilityFuture:
        """Begin to wait; the future is done when ``take`` has something to give."""
        future = AvailabilityFuture()
        with self._wanted:
            assert self._future is None, "one watch at a time"
            self._future = future
            self._wanted.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        return future

    def take(self) -> Sequence[Any]:
        """The messages that came.  Raises what the consumer raised."""
        with self._lock:
            found, self._found = self._found, ()
            error, self._error = self._error, None
        if error is not None:
            raise error
        return found

    def close(self) -> None:
        """End the thread and wait for it; then the consumer may be closed."""
        with self._wanted:
            self._is_closed = True
            self._wanted.notify()
        if self._thread is not None:
            self._thread.join()  # waits for the slice of the thread; ended by its limit of a quarter of a second
            self._thread = None

    def _run(self) -> None:
        while True:
            with self._wanted:
                while self._future is None and not self._is_closed:
                    self._wanted.wait()  # waits for the reader to have nothing again; ended by watch() or close()
            if self._is_closed:
                return
            found: Sequence[Any] = ()
            error: BaseException | None = None
            try:
                found = self._consume(_SLICE_S)
            except Exception as caught:  # noqa: BLE001 - the top of a thread: take() raises it on the task's
                error = caught
            if found or error is not None:
                self._end(found, error)

    def _end(self, found: Sequence[Any], error: BaseException | None) -> None:
        with self._lock:
            future, self._future = self._future, None
            self._found, self._error = found, error
        assert future is not None, "only this thread ends a watch"
        future.complete()
