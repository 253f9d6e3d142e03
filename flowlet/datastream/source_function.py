"""Sources as a function that emits, and may block.

Side:   pure.
Source: Flink ``SourceFunction``, ``SourceContext``; in PyFlink only Java has them.
"""

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["SourceContext", "SourceFunction"]


class SourceContext(ABC):
    """Where a ``SourceFunction`` emits; every method may block while the job cannot keep up, and raises when the job is cancelled.

    Threading: the thread that runs ``run``, and any that it starts.
    """

    @abstractmethod
    def collect(self, value: Any) -> None:
        """Emit a record."""

    @abstractmethod
    def collect_with_timestamp(self, value: Any, timestamp: int) -> None:
        """Emit a record with its event time, milliseconds since the epoch."""

    @abstractmethod
    def emit_watermark(self, timestamp: int) -> None:
        """No record with a smaller or equal timestamp comes any more."""

    @abstractmethod
    def mark_as_temporarily_idle(self) -> None:
        """Do not let consumers wait for this subtask's watermark until it emits again."""

    @property
    @abstractmethod
    def is_cancelled(self) -> bool:
        """Whether ``run`` should return."""


class SourceFunction(ABC):
    """A source whose ``run`` may block; it has a thread of its own in each subtask.

    Life cycle: ``run`` once; ``cancel``, from another thread, makes it return early.
    """

    @abstractmethod
    def run(self, ctx: SourceContext) -> None:
        """Emit everything, then return; or emit for ever, until ``cancel``."""

    def cancel(self) -> None:  # noqa: B027  # nothing to do for a function that asks its context
        """Make ``run`` return, for example by closing what it waits for."""
