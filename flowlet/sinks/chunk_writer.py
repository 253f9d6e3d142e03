"""``ChunkWriter``: a writer of ours that takes chunks as they are, for columns.

Side: task.
"""

from abc import ABC, abstractmethod

from flowlet.records import Chunk
from flowlet.sinks.sink_contexts import RecordContext


class ChunkWriter(ABC):
    """A second base class of a ``SinkWriter``."""

    @abstractmethod
    def write_chunk(self, chunk: Chunk, context: RecordContext) -> None:
        """Take all records of a chunk, which the context does not describe.

        Raises BadRecordError: one of them cannot be written.
        """
