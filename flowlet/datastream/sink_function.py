"""Sinks written as a function.

Side:   pure.  An instance is made in the user's program, pickled, and called on the thread of one task.
Source: Flink ``SinkFunction``, ``RichSinkFunction``; PyFlink has only Java-backed ones.
"""

from abc import ABC, abstractmethod
from typing import Any

from flowlet.datastream.function import Function

__all__ = ["SinkContext", "SinkFunction"]


class SinkContext(ABC):
    """The record that a ``SinkFunction`` gets; valid during one call of ``invoke``."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """The timestamp of the record, in milliseconds; None: it has none."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark, in milliseconds."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """What the clock shows, in milliseconds since the epoch."""


class SinkFunction(Function):
    """Called with each record; argument of ``add_sink``.

    With ``CheckpointedFunction`` or ``CheckpointListener`` as a second base class it takes part in checkpoints.
    """

    @abstractmethod
    def invoke(self, value: Any, context: SinkContext) -> None:
        """Take one record."""

    def finish(self) -> None:
        """Write out what waits: no record follows.  Not called after a failure, as ``close`` is."""
