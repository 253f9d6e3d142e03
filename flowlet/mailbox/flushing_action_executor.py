"""Lets out what a mail emitted.

Side:       task.
Invariants: nothing that a mail emitted stays in a record writer after it, as nothing of the default action does.
Source:     no counterpart in Flink, whose writers hold no pending records.  Timers and results of asynchronous calls are emitted by mails,
            also while an operator yields inside a long default action: their records must not wait for its end.
"""

from collections.abc import Callable
from typing import TypeVar

from flowlet.mailbox.stream_task_action_executor import IMMEDIATE, StreamTaskActionExecutor

T = TypeVar("T")


class FlushingActionExecutor:
    """Runs the actions of mails, each followed by a flush.

    Args:
        flush: writes what is pending; cheap when nothing is.
        inner: runs action and flush together.
    """

    __slots__ = ("_flush", "_inner")

    def __init__(self, flush: Callable[[], None], inner: StreamTaskActionExecutor = IMMEDIATE) -> None:
        self._flush = flush
        self._inner = inner

    def __repr__(self) -> str:
        return f"<FlushingActionExecutor around {self._inner!r}>"

    def call(self, action: Callable[[], T]) -> T:
        """Run it now, on this thread; its exception is the caller's, and then nothing is flushed."""
        return self._inner.call(lambda: self._run(action))

    def _run(self, action: Callable[[], T]) -> T:
        result = action()
        self._flush()
        return result
