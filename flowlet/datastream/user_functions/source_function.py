"""Sources written as a function that emits records and may block.

Side:   pure.
Source: Flink ``SourceFunction``, ``SourceContext``; PyFlink has only Java-backed ones.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from flowlet.datastream.user_functions.function import WrittenInPython

if TYPE_CHECKING:
    from flowlet.connectors.blocking_source import BlockingSourceReader

__all__ = ["SourceContext", "SourceFunction"]


class SourceContext:
    """The output of a ``SourceFunction``; it emits under its checkpoint lock if it has one, as in Flink.

    Every method may block while the job is back-pressured, and raises if the job is cancelled.

    Threading: the thread of ``run``, and any thread that it starts.
    """

    def __init__(self, reader: "BlockingSourceReader") -> None:
        self._reader = reader
        self._lock: AbstractContextManager[None] = reader.checkpoint_lock or nullcontext()

    def collect(self, value: Any) -> None:
        """Emit a record."""
        with self._lock:
            self._reader.emit(value, None)

    def collect_with_timestamp(self, value: Any, timestamp: int) -> None:
        """Emit a record with its event time in milliseconds since the epoch."""
        with self._lock:
            self._reader.emit(value, timestamp)

    def emit_watermark(self, timestamp: int) -> None:
        """Emit a watermark: no record with a timestamp up to this one follows."""
        with self._lock:
            self._reader.emit_watermark(timestamp)

    def mark_as_temporarily_idle(self) -> None:
        """Make the subtask idle: consumers do not wait for its watermark until it emits again."""
        with self._lock:
            self._reader.become_idle()

    def mark_position(self, position: Any) -> None:
        """Mark the source's position: after ``restore_position(position)``, ``run`` emits the records that follow.

        Needed only if the function has ``restore_position``.  ``position``: any object that can be pickled; it may be
        changed afterwards.  One mark per thousand records is enough; each costs as much as some records.
        """
        self._reader.mark(position)

    def get_checkpoint_lock(self) -> AbstractContextManager[None]:
        """The lock under which a ``CheckpointedFunction`` changes its state and emits the records of the change.

        No checkpoint is taken within a block ``with ctx.get_checkpoint_lock(): ...``, so it sees the change and the
        records together.  Checkpoints wait meanwhile: wait for input outside.  Other functions do not need the lock.
        """
        return self._lock

    @property
    def is_cancelled(self) -> bool:
        """Whether ``run`` should return."""
        return self._reader.is_cancelled


class SourceFunction(WrittenInPython, ABC):
    """A source whose ``run`` may block; each subtask runs it on a thread of its own.

    Life cycle: after a restart ``restore_position``; ``run`` once; ``cancel``, from another thread, makes it return
        early.

    A function that overrides ``restore_position`` can be replayed: from a marked position on, or from the start if
    there is none, each run emits equal records in an equal order.  After a restart of the job the records that were
    processed before the checkpoint are dropped, so each counts once.  A ``CheckpointedFunction`` keeps in its states
    what it needs to go on.  Any other function begins anew after a restart, and records that it emits again count
    again.
    """

    _instead = (
        "sources written in Java cannot be used; derive a class with run(ctx) from it, or read a connector of "
        "flowlet.datastream.connectors with from_source()"
    )

    @abstractmethod
    def run(self, ctx: SourceContext) -> None:
        """Emit all records, then return; or emit until ``cancel``."""

    def restore_position(self, position: Any) -> None:
        """Go on behind ``position``, the last mark before the checkpoint; called before ``run`` if there was a mark."""
        raise NotImplementedError

    def cancel(self) -> None:  # nothing to do for a function that asks its context
        """Make ``run`` return, for example by closing what it waits for."""


def can_be_replayed(function: SourceFunction) -> bool:
    """Whether the function overrides ``restore_position``."""
    return type(function).restore_position is not SourceFunction.restore_position
