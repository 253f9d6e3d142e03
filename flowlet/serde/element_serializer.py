"""Serializes stream elements.

Hot path, per chunk; per record see ``columns``.

Side:   pure.
Format: ``i32 length``, then the bytes, of which the first is the tag; big-endian: 0, record with timestamp: i64
        milliseconds, value.  1, record without timestamp: value.  2, watermark: i64 milliseconds.  3, latency marker:
        i64 milliseconds, 16 bytes operator id, i32 subtask.  4, watermark status: i32, 0 active, -1 idle.  5, record
        attributes: u8, 1 for backlog.  6, watermark of one subpartition: i32 subpartition, i64 milliseconds.  64,
        chunk: u8 version, u8 flags (1 timestamps, 2 keys, 4 the key is a field), u32 number of records, [column of
        timestamps], [column of keys, or u8 position of the key field], column of values.  65, dictionary of the
        channel: u8 version, u32 generation, u32 number of texts, column of texts; only in front of in-flight data of a
        checkpoint.  66, completion mark: i64 number.
Source: Flink ``StreamElementSerializer``, ``SpanningRecordSerializer``; tags from 64 on are ours.
        ``ResultPartition.emit_record`` cuts the bytes into buffers.
"""

import struct
from typing import Any, Final, assert_never

from flowlet.common.job_settings import MAX_RECORD_BYTES_OPTION
from flowlet.errors import SerdeError
from flowlet.records import (
    Chunk,
    CompletionMark,
    InternalWatermark,
    LatencyMarker,
    PickledRecord,
    RecordAttributes,
    StreamElement,
    Watermark,
    WatermarkStatus,
)
from flowlet.serde.channel_dictionary import ChannelDictionary, RecordFormat
from flowlet.serde.column_format import INT64, framed
from flowlet.serde.columns import encode_column
from flowlet.serde.data_view import DataOutput
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS
from flowlet.serde.pickles.record_pickle import loads_record
from flowlet.serde.table_writer import CodeWriter, encode_timestamps, table_parts
from flowlet.serde.type_serializer import TypeSerializer

TAG_RECORD_WITH_TIMESTAMP: Final = 0
TAG_RECORD: Final = 1
TAG_WATERMARK: Final = 2
TAG_LATENCY_MARKER: Final = 3
TAG_WATERMARK_STATUS: Final = 4
TAG_RECORD_ATTRIBUTES: Final = 5
TAG_INTERNAL_WATERMARK: Final = 6
TAG_CHUNK: Final = 64
TAG_DICTIONARY: Final = 65
TAG_COMPLETION_MARK: Final = 66
CHUNK_VERSION: Final = 1
DICTIONARY_VERSION: Final = 1
FLAG_TIMESTAMPS: Final = 1
FLAG_KEYS: Final = 2
FLAG_KEY_FIELD: Final = 4
STATUS_ACTIVE: Final = 0
STATUS_IDLE: Final = -1
# Up to this many records are checked for a key that is a field of theirs; larger chunks with such keys are columns
# already.
_MAX_COMPARED_KEYS: Final = 32
_MAX_PLACE: Final = 255
MAX_CHUNK_RECORDS: Final = 1 << 20  # a receiver refuses larger chunks
LENGTH: Final = struct.Struct(">i")
CHUNK_HEADER: Final = struct.Struct(">BBBI")
DICTIONARY_HEADER: Final = struct.Struct(">BB")
_FRAMED_WATERMARK: Final = struct.Struct(">iBq")
_FRAMED_LATENCY_MARKER: Final = struct.Struct(">iBq16si")
_FRAMED_STATUS: Final = struct.Struct(">iBi")
_FRAMED_ATTRIBUTES: Final = struct.Struct(">iB?")
_FRAMED_INTERNAL_WATERMARK: Final = struct.Struct(">iBiq")
_FRAMED_COMPLETION_MARK: Final = struct.Struct(">iBq")
_FRAMED_CHUNK_HEADER: Final = struct.Struct(">iBBBI")


class StreamElementSerializer:
    """Serializes elements with their length in front.  Threading: any; it has no state.

    Args:
        values: None: a chunk is one element (tag 64), whose columns need no declared type.  Otherwise each record is an
            element of its own (tags 0 and 1), as in Flink, with its value in the format of this serializer.
        max_element_bytes: the receiver's limit.
        declared: of chunks whose reader knows their type and unpickles nothing.  They are sent without keys.
    """

    __slots__ = ("_declared", "_values", "max_element_bytes")

    def __init__(
        self,
        values: TypeSerializer | None = None,
        *,
        max_element_bytes: int = DEFAULT_ELEMENT_LIMITS.max_element_bytes,
        declared: RecordFormat | None = None,
    ) -> None:
        self._values = values
        self._declared = declared
        self.max_element_bytes = max_element_bytes

    def __repr__(self) -> str:
        return f"StreamElementSerializer({'' if self._values is None else repr(self._values)})"

    def serialize(self, element: StreamElement, codes: CodeWriter | None = None) -> bytes:
        """The element with its length in front; with a serializer of values, each record of a chunk so.

        A chunk of several records may exceed ``max_element_bytes``; the caller then splits it.  ``codes``: the
        channel's dictionary, if any.

        Raises:
            SerdeError: the chunk has too many records, or a record has another type than declared, cannot be pickled,
                or is too large on its own; the message says which.
        """
        if type(element) is Chunk:
            return self.serialize_chunk(element, codes)
        match element:
            case Watermark(timestamp=timestamp):
                return _framed(_FRAMED_WATERMARK, TAG_WATERMARK, timestamp)
            case WatermarkStatus(is_idle=is_idle):
                return _framed(_FRAMED_STATUS, TAG_WATERMARK_STATUS, STATUS_IDLE if is_idle else STATUS_ACTIVE)
            case LatencyMarker(marked_time_ms=marked_time_ms, operator_id=operator_id, subtask=subtask):
                return _framed(_FRAMED_LATENCY_MARKER, TAG_LATENCY_MARKER, marked_time_ms, operator_id, subtask)
            case RecordAttributes(is_backlog=is_backlog):
                return _framed(_FRAMED_ATTRIBUTES, TAG_RECORD_ATTRIBUTES, is_backlog)
            case InternalWatermark(timestamp=timestamp, subpartition=subpartition):
                return _framed(_FRAMED_INTERNAL_WATERMARK, TAG_INTERNAL_WATERMARK, subpartition, timestamp)
            case CompletionMark(number=number):
                return _framed(_FRAMED_COMPLETION_MARK, TAG_COMPLETION_MARK, number)
            case Chunk():
                return self.serialize(Chunk(element.values, element.timestamps))
            case _:
                assert_never(element)

    def serialize_chunk(self, chunk: Chunk, codes: CodeWriter | None = None) -> bytes:
        """``serialize`` for a chunk.

        Raises:
            SerdeError: as ``serialize``.
            ElementTooLargeError: the records expand to too many values for one element.
        """
        if self._values is not None:
            return self._serialize_records(chunk, self._values)
        num_records = len(chunk)
        if num_records > MAX_CHUNK_RECORDS:
            raise SerdeError(f"a chunk of {num_records} records, at most {MAX_CHUNK_RECORDS} go into one")
        columns = chunk.columns if num_records else None
        flags, keys = 0, b""
        if self._declared is not None and num_records:
            values = [self._declared.encode(chunk, codes)]
            timestamps = encode_timestamps(chunk.timestamp_array) if chunk.timestamp_array is not None else b""
        elif columns is None:
            values = [encode_column(chunk.values)]
            timestamps = b""
            if chunk.timestamps is not None:
                timestamps = encode_column(chunk.timestamps) if num_records else framed(INT64)
            if chunk.keys is not None and num_records:
                flags, keys = _encode_keys(chunk.keys, chunk.values)
        else:
            values = table_parts(columns, codes)
            timestamps = b"" if chunk.timestamp_array is None else encode_timestamps(chunk.timestamp_array)
            if columns.key_position is not None:
                flags, keys = FLAG_KEY_FIELD, bytes((columns.key_position,))
        if timestamps:
            flags |= FLAG_TIMESTAMPS
        length = CHUNK_HEADER.size + len(timestamps) + len(keys) + sum(map(len, values))
        if num_records == 1 and length > self.max_element_bytes:
            self._check_length(length)
        return b"".join(
            (_FRAMED_CHUNK_HEADER.pack(length, TAG_CHUNK, CHUNK_VERSION, flags, num_records), timestamps, keys, *values)
        )

    def _serialize_records(self, chunk: Chunk, values: TypeSerializer) -> bytes:
        output = DataOutput()
        for index, value in enumerate(chunk.values):
            start = len(output)
            output.write_int(0)  # the length, filled in below
            if chunk.timestamps is None:
                output.write_byte(TAG_RECORD)
            else:
                output.write_byte(TAG_RECORD_WITH_TIMESTAMP)
                output.write_long(chunk.timestamps[index])
            try:
                values.serialize(loads_record(value.data) if type(value) is PickledRecord else value, output)
            except SerdeError as error:
                raise SerdeError(f"{self!r}: record {index} of a chunk of {len(chunk)}: {error}") from error
            length = len(output) - start - LENGTH.size
            self._check_length(length)
            LENGTH.pack_into(output.buffer, start, length)
        return bytes(output.buffer)

    def _check_length(self, length: int) -> None:
        if length > self.max_element_bytes:
            raise SerdeError(
                f"a record takes {length} bytes, the limit is {self.max_element_bytes}: split it up, or raise the "
                "job's option "
                f"{MAX_RECORD_BYTES_OPTION!r}"
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


def _framed(layout: struct.Struct, tag: int, *fields: int | bytes) -> bytes:
    return layout.pack(layout.size - LENGTH.size, tag, *fields)
