"""What every connector is.

Side:   pure.  A connector describes; the task that runs it opens files and sockets.
Source: PyFlink ``pyflink.datastream.connectors.base``; Flink ``DiscardingSink``.
Absent: ``DeliveryGuarantee``.
"""

__all__ = ["DiscardingSink", "Sink", "Source"]


class Source:
    """Base of what ``from_source`` takes.

    A source of one's own has ``create_reader(subtask, parallelism)``, called in each subtask; the reader's ``poll_chunk()`` returns a
    ``flowlet.records.Chunk``, or None at the end of the input, and ``close()`` ends it.  ``is_bounded`` says whether it ends by itself.
    """

    is_bounded: bool = True


class Sink:
    """Base of what ``sink_to`` takes."""


class DiscardingSink(Sink):
    """Takes every record and does nothing with it; to measure a job without its output."""
