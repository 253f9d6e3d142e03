"""Serializes stream elements.

Hot path, per chunk; per record see ``columns``.

Side:   pure.
Format: ``i32 length``, then the bytes, of which the first is the tag; big-endian: 2, watermark: i64 milliseconds.  3,
        latency marker: i64 milliseconds, 16 bytes operator id, i32 subtask.  4, watermark status: i32, 0 active, -1
        idle.  5, record attributes: u8, 1 for backlog.  6, watermark of one subpartition: i32 subpartition, i64
        milliseconds.  64, chunk: u8 version, u8 flags (1 timestamps, 2 keys, 4 the key is a field), u32 number of
        records, [column of timestamps], [column of keys, or u8 position of the key field], column of values.  65,
        dictionary of the channel: u8 version, u32 generation, u32 number of texts, column of texts; only in front of
        in-flight data of a checkpoint.  66, completion mark: i64 number.
Source: Flink ``StreamElementSerializer``, ``SpanningRecordSerializer``; tags from 64 on are ours.
        ``ResultPartition.emit_record`` cuts the bytes into buffers.
Absent: Flink's single records (tags 0 and 1): records travel in chunks.
"""

import struct
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowlet.common.job_settings import MAX_RECORD_BYTES_OPTION
from flowlet.errors import SerdeError
from flowlet.records import (
    ACTIVE,
    IDLE,
    Chunk,
    CompletionMark,
    InternalWatermark,
    LatencyMarker,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowlet.serde.column_format import Kind, framed
from flowlet.serde.column_reader import ChannelDictionary
from flowlet.serde.column_writer import CodeWriter, encode_column, encode_int64, table_parts
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS
from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.types.declared_records import DeclaredRecords

TAGS_OF_RECORDS: Final = (0, 1)
TAG_CHUNK: Final = 64
TAG_DICTIONARY: Final = 65
CHUNK_VERSION: Final = 1
DICTIONARY_VERSION: Final = 1
FLAG_TIMESTAMPS: Final = 1
FLAG_KEYS: Final = 2
FLAG_KEY_FIELD: Final = 4
# Up to this many records are checked for a key that is a field of theirs; larger chunks with such keys are columns
# already.
_MAX_COMPARED_KEYS: Final = 32
_MAX_PLACE: Final = 255
MAX_CHUNK_RECORDS: Final = 1 << 20  # a receiver refuses larger chunks
LENGTH: Final = struct.Struct(">i")
CHUNK_HEADER: Final = struct.Struct(">BBBI")
DICTIONARY_HEADER: Final = struct.Struct(">BB")
_FRAMED_TAG: Final = struct.Struct(">iB")
_FRAMED_CHUNK_HEADER: Final = struct.Struct(">iBBBI")


class ControlForm(NamedTuple):
    """The bytes of a control element: its tag, then its fields in a layout."""

    tag: int
    layout: struct.Struct
    fields: Callable[[Any], tuple[int | bytes, ...]]
    make: Callable[..., StreamElement]


_STATUSES: Final = {0: ACTIVE, -1: IDLE}
_BACKLOG: Final = {0: RecordAttributes(is_backlog=False), 1: RecordAttributes(is_backlog=True)}
_MARKER_FIELDS: Final = attrgetter("marked_time_ms", "operator_id", "subtask")
CONTROL_FORMS: Final[dict[type, ControlForm]] = {
    Watermark: ControlForm(2, struct.Struct(">q"), lambda element: (element.timestamp,), Watermark),
    LatencyMarker: ControlForm(3, struct.Struct(">q16si"), _MARKER_FIELDS, LatencyMarker),
    WatermarkStatus: ControlForm(4, struct.Struct(">i"), lambda element: (-element.is_idle,), _STATUSES.__getitem__),
    RecordAttributes: ControlForm(5, struct.Struct(">B"), lambda element: (element.is_backlog,), _BACKLOG.__getitem__),
    InternalWatermark: ControlForm(
        6, struct.Struct(">iq"), attrgetter("subpartition", "timestamp"), lambda each, at: InternalWatermark(at, each)
    ),
    CompletionMark: ControlForm(66, struct.Struct(">q"), lambda element: (element.number,), CompletionMark),
}


@dataclass(eq=False, slots=True, kw_only=True)
class StreamElementSerializer:
    """Serializes elements with their length in front.  Threading: any; it has no state.

    Args:
        max_element_bytes: the receiver's limit.
        declared: of chunks whose reader knows their type and unpickles nothing.  They are sent without keys.
    """

    max_element_bytes: int = DEFAULT_ELEMENT_LIMITS.max_element_bytes
    declared: "DeclaredRecords | None" = None

    def __repr__(self) -> str:
        return "StreamElementSerializer()"

    def serialize(self, element: StreamElement, codes: CodeWriter | None = None) -> bytes:
        """The element with its length in front.

        A chunk of several records may exceed ``max_element_bytes``; the caller then splits it.  ``codes``: the
        channel's dictionary, if any.

        Raises:
            SerdeError: the chunk has too many records, or a record has another type than declared, cannot be pickled,
                or is too large on its own; the message says which.
        """
        if isinstance(element, Chunk):
            return self.serialize_chunk(element, codes)
        form = CONTROL_FORMS[type(element)]
        return _FRAMED_TAG.pack(1 + form.layout.size, form.tag) + form.layout.pack(*form.fields(element))

    def serialize_chunk(self, chunk: Chunk, codes: CodeWriter | None = None) -> bytes:
        """``serialize`` for a chunk.

        Raises:
            SerdeError: as ``serialize``.
            ElementTooLargeError: the records expand to too many values for one element.
        """
        num_records = len(chunk)
        if num_records > MAX_CHUNK_RECORDS:
            raise SerdeError(f"a chunk of {num_records} records, at most {MAX_CHUNK_RECORDS} go into one")
        columns = chunk.columns if num_records else None
        flags, keys = 0, b""
        if self.declared is not None and num_records:
            values = [self.declared.encode(chunk)]
            timestamps = encode_int64(chunk.timestamp_array) if chunk.timestamp_array is not None else b""
        elif columns is None:
            values = [encode_column(chunk.values)]
            timestamps = b""
            if chunk.timestamps is not None:
                timestamps = encode_column(chunk.timestamps) if num_records else framed(Kind.INT64)
            if chunk.keys is not None and num_records:
                flags, keys = _encode_keys(chunk.keys, chunk.values)
        else:
            values = table_parts(columns, codes)
            timestamps = b"" if chunk.timestamp_array is None else encode_int64(chunk.timestamp_array)
            if columns.key_position is not None:
                flags, keys = FLAG_KEY_FIELD, bytes((columns.key_position,))
        if timestamps:
            flags |= FLAG_TIMESTAMPS
        length = CHUNK_HEADER.size + len(timestamps) + len(keys) + sum(map(len, values))
        if num_records == 1 and length > self.max_element_bytes:
            raise SerdeError(
                f"a record takes {length} bytes, the limit is {self.max_element_bytes}: split it up, or raise the "
                f"job's option {MAX_RECORD_BYTES_OPTION!r}"
            )
        return b"".join(
            (_FRAMED_CHUNK_HEADER.pack(length, TAG_CHUNK, CHUNK_VERSION, flags, num_records), timestamps, keys, *values)
        )


def _encode_keys(keys: list[Any], values: list[Any]) -> tuple[int, bytes]:
    """The flag for the keys and their bytes: the position of the field that is the key, or a column of keys."""
    if len(keys) <= _MAX_COMPARED_KEYS:
        first = values[0]
        if list(map(type, values)).count(tuple) == len(values):
            position = next((position for position, field in enumerate(first) if field is keys[0]), _MAX_PLACE)
            if position < _MAX_PLACE and all(
                position < len(value) and value[position] is key for value, key in zip(values, keys, strict=True)
            ):
                return FLAG_KEY_FIELD, bytes((position,))
    return FLAG_KEYS, encode_column(keys)


def serialize_dictionary(dictionary: ChannelDictionary) -> bytes:
    """The element (tag 65) from which another reader of the channel gets the same dictionary; empty if the dictionary
    is.
    """
    definition = dictionary.definition()
    if definition is None:
        return b""
    header = DICTIONARY_HEADER.pack(TAG_DICTIONARY, DICTIONARY_VERSION)
    return LENGTH.pack(len(header) + len(definition)) + header + definition
