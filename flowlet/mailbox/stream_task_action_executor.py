"""Runs the actions of a task: directly, or under a lock.

Side:       shared.  The task decides which actions it runs this way.
Invariants: an executor runs the action on the calling thread, exactly once, and lets its exception pass.
Source:     Flink ``StreamTaskActionExecutor``, ``SynchronizedStreamTaskActionExecutor``: a source whose user function
            runs on its own thread emits under the lock that the task's mails take.
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
