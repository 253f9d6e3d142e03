"""The base classes of connectors.

Side:   pure.  A connector describes; the task that runs it opens files and sockets.
Source: PyFlink ``pyflink.datastream.connectors.base``; Flink ``DiscardingSink``, ``Sink`` and its mix-ins.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any

from flowlet.datastream.connectors.committer import Committer
from flowlet.datastream.connectors.sink_writer import SinkWriter, StatefulSinkWriter, WriterInitContext

__all__ = [
    "BuiltInSource",
    "DeliveryGuarantee",
    "DiscardingSink",
    "Sink",
    "Source",
    "SupportsCommitter",
    "SupportsGlobalCommitter",
    "SupportsWriterState",
]


class DeliveryGuarantee(Enum):
    """How often a record is visible at the other side of a sink, if the job restarts on the way."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
    NONE = 2


class Source:
    """Base class of the argument of ``from_source``.

    Your own source has ``create_reader(subtask, parallelism)``, which each subtask calls.  The reader's
    ``poll_chunk()`` returns a ``flowlet.records.Chunk``, or None at the end of the input; ``close()`` ends it.
    ``is_bounded`` says whether the input ends by itself.
    """

    is_bounded: bool = True


class BuiltInSource(Source):
    """A source of flowlet's own: it says what to read, and the client makes the source of the runtime that reads it."""


class Sink:
    """Base class of the argument of ``sink_to``; your own sink has ``create_writer``.  It is pickled with the job."""

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        """The writer of one subtask."""
        raise NotImplementedError(f"{type(self).__name__} has no create_writer()")


class SupportsWriterState(ABC):
    """A second base class of a sink whose writers are ``StatefulSinkWriter``s."""

    @abstractmethod
    def restore_writer(self, context: WriterInitContext, recovered_state: Sequence[Any]) -> StatefulSinkWriter[Any]:
        """The writer of one subtask that goes on from a checkpoint, in place of ``create_writer``; ``recovered_state``
        may be empty.
        """


class SupportsCommitter(ABC):
    """A second base class of a sink whose writers are ``CommittingSinkWriter``s."""

    @abstractmethod
    def create_committer(self, context: WriterInitContext) -> Committer[Any]:
        """The committer of one subtask; it gets what writers of this sink prepared, of this subtask
        or of former ones.
        """


class SupportsGlobalCommitter(ABC):
    """A second base class of a ``SupportsCommitter`` that does one thing more for the whole sink,
    once per checkpoint.
    """

    @abstractmethod
    def create_global_committer(self, context: WriterInitContext) -> Committer[Any]:
        """The one committer that gets the committables of all subtasks after these have committed them."""


class DiscardingSink(Sink):
    """Drops every record; to measure a job without its output."""
