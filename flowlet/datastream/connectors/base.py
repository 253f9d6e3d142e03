"""The base classes of connectors.

Side:   pure.  A connector describes; the task that runs it opens files and sockets.
Source: PyFlink ``pyflink.datastream.connectors.base``; Flink ``DiscardingSink``.
Absent: ``DeliveryGuarantee``.
"""

__all__ = ["DiscardingSink", "Sink", "Source"]


class Source:
    """Base class of the argument of ``from_source``.

    Your own source has ``create_reader(subtask, parallelism)``, which each subtask calls.  The reader's ``poll_chunk()`` returns a
    ``flowlet.records.Chunk``, or None at the end of the input; ``close()`` ends it.  ``is_bounded`` says whether the input ends by itself.
    """

    is_bounded: bool = True


class Sink:
    """Base class of the argument of ``sink_to``."""


class DiscardingSink(Sink):
    """Drops every record; to measure a job without its output."""
