"""Runs the actions of a task: directly, or under a lock.

Flushes the record writers after each mail.

Side:       shared.
Invariants: an executor runs the action on the calling thread, exactly once, and lets its exception pass.  after a mail,
            as after the default action, no record that it emitted is pending in a record writer.
Source:     Flink ``StreamTaskActionExecutor``, ``SynchronizedStreamTaskActionExecutor``: a source whose user function
            runs on its own thread emits under the lock that the task's mails take.  none in Flink, whose writers hold
            no pending records.  Timers and asynchronous results are emitted by mails, even while an operator yields
            inside a long default action: their records must not wait for its end.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar

T = TypeVar("T")


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
