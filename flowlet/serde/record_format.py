"""``RecordFormat``: how the records of a chunk become bytes if both sides know more about them than that they are
objects.

Side:   pure.
Source: none in Flink; implemented by ``declared.DeclaredRecords``.
"""

from typing import Any, Protocol

from flowlet.columns import Columns
from flowlet.errors import SerdeError
from flowlet.records import Chunk
from flowlet.serde.channel_dictionary import ChannelDictionary
from flowlet.serde.table_writer import CodeWriter


class ElementTooLargeError(SerdeError):
    """Several records stand for more values than a reader accepts at once; fewer records may do."""


class RecordFormat(Protocol):
    """Writes and reads the column of the records in a chunk."""

    def encode(self, chunk: Chunk, codes: CodeWriter | None = None) -> bytes:
        """The records of a chunk, at least one, as one column.  Raises SerdeError, ElementTooLargeError."""

    def decode(
        self, view: memoryview, offset: int, num_records: int, dictionary: ChannelDictionary
    ) -> tuple[Columns | list[Any], int]:
        """Read the records at ``offset``; return them and the offset after them.  Raises SerdeError."""
