"""Hands chunks to another task of the process without serializing them.

Hot path, per chunk: no record is looked at.
Side:       task.  The producer's thread makes a content, the consumer's thread takes it.
Invariants: the producer drops a chunk that it wrote.  Its records no longer change (``chain.record_shape``), and the
            arrays of its columns are not written again (``columns.column``); so the consumer may have the objects and
            arrays themselves.
Source:     none in Flink; see ``netstack.buffer.buffer_builder``.
"""

import pickle
from collections.abc import Iterator
from typing import Any, Final

from flowlet.chain.record_shape import unpickled
from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    ColumnVisitor,
    ListColumn,
    OffsetColumn,
    ShortTextColumn,
)
from flowlet.records import Chunk, PickledRecord
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS
from flowlet.serde.element_serializer import StreamElementSerializer
from netstack.late import dataclass

# Fewer records are serialized: sharing a buffer with others is cheaper than a buffer for them alone.  Not measured
# closely.
MIN_CONTENT_RECORDS: Final = 64
# Larger lists are serialized and larger columns are cut, so that each buffer of a channel holds at most this much.
MAX_CONTENT_BYTES: Final = 1024 * 1024
_NUM_SAMPLES: Final = 8
# A larger element is cut in two: so a consumer never holds more than a quarter of its limit of 64 MiB.  Not measured.
MAX_ELEMENT_BYTES: Final = 16 * 1024 * 1024
_FIELD_BYTES: Final = 16  # assumed for a value of unknown size


@dataclass(eq=False, slots=True)
class ChunkContent:
    """A chunk in the place of its serialized bytes; owns the chunk until ``take`` gives it away.

    ``max_element_bytes``: the limit of the reader, if it reads bytes.
    """

    _chunk: Chunk
    size_bytes: int
    _max_element_bytes: int = DEFAULT_ELEMENT_LIMITS.max_element_bytes

    def __repr__(self) -> str:
        return f"<ChunkContent: {len(self)} records, about {self.size_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._chunk)

    def to_bytes(self) -> bytes:
        """The serialized elements: of a size that receivers accept, and without references to a dictionary.

        Raises:
            SerdeError: a record is too large on its own.
        """
        limit = self._max_element_bytes
        return b"".join(
            _elements(StreamElementSerializer(max_element_bytes=limit), self._chunk, min(limit, MAX_ELEMENT_BYTES))
        )

    def take(self) -> Chunk:
        """The chunk; called once."""
        chunk = self._chunk
        if chunk.columns is None:
            return chunk.with_values(unpickled(chunk.values))
        return chunk


def try_contents(
    chunk: Chunk, max_element_bytes: int = DEFAULT_ELEMENT_LIMITS.max_element_bytes
) -> list[ChunkContent] | None:
    """The chunk in contents of at most ``MAX_CONTENT_BYTES``, in order: columns are cut, lists are not.

    Args:
        chunk: given away.
        max_element_bytes: the limit of readers of its bytes.

    Returns:
        None if it is better serialized as a whole: a list that is too large, or columns that stay too large in short
        parts, such as those that share a large dictionary or have one very long text.
    """
    size = estimated_bytes(chunk)
    if size <= MAX_CONTENT_BYTES:
        return [ChunkContent(chunk, size, max_element_bytes)]
    half = len(chunk) // 2
    if chunk.columns is None or half < MIN_CONTENT_RECORDS:
        return None
    first = try_contents(chunk.slice(0, half), max_element_bytes)
    rest = None if first is None else try_contents(chunk.slice(half, len(chunk)), max_element_bytes)
    return None if first is None or rest is None else first + rest


def _elements(serializer: StreamElementSerializer, chunk: Chunk, most_bytes: int) -> Iterator[bytes]:
    data = serializer.serialize_chunk(chunk)
    if len(data) <= most_bytes or len(chunk) == 1:
        yield data
        return
    half = len(chunk) // 2
    yield from _elements(serializer, chunk.slice(0, half), most_bytes)
    yield from _elements(serializer, chunk.slice(half, len(chunk)), most_bytes)


def estimated_bytes(chunk: Chunk) -> int:
    """The approximate serialized size in bytes, at least 1: from the columns, or from the largest of a few records."""
    columns = chunk.columns
    if columns is not None:
        return max(1, sum(map(_ESTIMATED_BYTES.visit, columns.fields)))
    return max(map(_record_bytes, _few_of(chunk.values))) * len(chunk)


def _few_of(values: list[Any]) -> list[Any]:
    return values[:: max(1, len(values) // _NUM_SAMPLES)]


def _record_bytes(record: Any) -> int:
    try:
        return len(record.data) if type(record) is PickledRecord else len(pickle.dumps(record, pickle.HIGHEST_PROTOCOL))
    except Exception:  # noqa: BLE001 - what cannot be pickled is not sent either
        return _FIELD_BYTES


class _EstimatedBytes(ColumnVisitor[int]):
    def visit_any(self, column: Column) -> int:
        return _FIELD_BYTES

    def visit_array(self, column: ArrayColumn) -> int:
        return column.array.nbytes

    def visit_coded(self, column: CodedColumn) -> int:
        return column.codes.nbytes

    def visit_short_texts(self, column: ShortTextColumn) -> int:
        return _FIELD_BYTES * len(column)

    def visit_arrow(self, column: ArrowColumn) -> int:
        return int(column.array.nbytes)

    def visit_offsets(self, column: OffsetColumn) -> int:
        return int(column.offsets.nbytes)

    def visit_list(self, column: ListColumn) -> int:
        sizes = [len(value) if isinstance(value, str | bytes) else _FIELD_BYTES for value in _few_of(column.values)]
        return max(sizes, default=0) * len(column)


_ESTIMATED_BYTES: Final = _EstimatedBytes()
