"""Flushes the record writers after each mail.

Side:       task.
Invariants: after a mail, as after the default action, no record that it emitted is pending in a record writer.
Source:     none in Flink, whose writers hold no pending records.  Timers and asynchronous results are emitted by mails,
            even while an operator yields inside a long default action: their records must not wait for its end.
"""

from collections.abc import Callable
from typing import TypeVar

from flowlet.mailbox.stream_task_action_executor import IMMEDIATE, StreamTaskActionExecutor

T = TypeVar("T")


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
