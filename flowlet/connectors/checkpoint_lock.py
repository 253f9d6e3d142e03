"""``CheckpointLock``: what a source function changes and emits while it holds it, a checkpoint sees together or not at
all.

Side:       shared.  Functions take it on their threads, the task on its own.
Invariants: one owner at a time.  Once the task wants it, nobody else gets it: a function in a tight loop cannot keep it
            from the task.
Source:     Flink ``SourceContext.getCheckpointLock``.
"""

import threading
from types import TracebackType


class CheckpointLock:
    """A lock that its owner may take again, for ``with``; ``hold`` and ``let_go`` are the task's."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._owner: int | None = None  # the thread of the function
        self._depth = 0  # how often the owner has taken it
        self._is_wanted = False  # by the task, or held by it

    def __repr__(self) -> str:
        return f"<CheckpointLock of thread {self._owner}{', held by the task' if self._is_wanted else ''}>"

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            if self._owner != me:
                while self._owner is not None or self._is_wanted:
                    # waits for the task's snapshot or another thread of the function; ended by either
                    self._changed.wait()
                self._owner = me
            self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._depth -= 1
            if not self._depth:
                self._owner = None
                self._changed.notify_all()

    def hold(self) -> None:
        """Wait until the function does not hold it, and keep the function from it until ``let_go``."""
        with self._changed:
            self._is_wanted = True
            while self._owner is not None:
                self._changed.wait()  # waits for the function to leave the lock; ended by the function

    def let_go(self) -> None:
        """The function may take it again; idempotent."""
        with self._changed:
            self._is_wanted = False
            self._changed.notify_all()
