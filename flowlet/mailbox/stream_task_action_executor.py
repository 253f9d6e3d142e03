"""How the actions of a task are run: plainly, or one at a time with whoever else holds a lock.

Side:       shared.  Any thread may run actions; which ones, the task decides.
Invariants: an executor runs the action on the calling thread, exactly once, and lets its exception through.
Source:     Flink ``StreamTaskActionExecutor``, ``SynchronizedStreamTaskActionExecutor``: a source whose user code runs on a thread of its
            own emits under the same lock that the task's mails take.
Absent:     separate variants for actions with and without a result: a Python callable has one kind of call.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar

T = TypeVar("T")


class StreamTaskActionExecutor(Protocol):
    """Runs an action of a task."""

    def call(self, action: Callable[[], T]) -> T:
        """Run it now, on this thread; its result, or its exception, is the caller's."""


class ImmediateActionExecutor:
    """Runs the action, nothing else."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<ImmediateActionExecutor>"

    def call(self, action: Callable[[], T]) -> T:
        """Run it now, on this thread."""
        return action()


IMMEDIATE: Final = ImmediateActionExecutor()


class SynchronizedActionExecutor:
    """Runs every action under one lock.

    Threading: any thread; a thread that holds the lock may run another action inside.

    Args:
        mutex: reentrant; the executor's own when left out.
    """

    __slots__ = ("mutex",)

    def __init__(self, mutex: AbstractContextManager[object] | None = None) -> None:
        self.mutex: AbstractContextManager[object] = threading.RLock() if mutex is None else mutex

    def __repr__(self) -> str:
        return f"<SynchronizedActionExecutor {self.mutex!r}>"

    def call(self, action: Callable[[], T]) -> T:
        """Run it on this thread, as soon as nobody else runs one."""
        with self.mutex:
            return action()
