"""Decodes one complete stream element.

Hot path, per element; per record see ``columns``.

Side:       pure.
Invariants: every byte is used, or it is an error; the decoded element holds no reference to the bytes.
Source:     Flink ``StreamElementSerializer.deserialize``.
"""

import struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import Columns, Shape
from flowlet.common.types import Row
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
)
from flowlet.serde.channel_dictionary import ChannelDictionary, RecordFormat
from flowlet.serde.columns import decode_column
from flowlet.serde.data_view import DataInput
from flowlet.serde.element_serializer import (
    CHUNK_HEADER,
    CHUNK_VERSION,
    DICTIONARY_HEADER,
    DICTIONARY_VERSION,
    FLAG_KEY_FIELD,
    FLAG_KEYS,
    FLAG_TIMESTAMPS,
    MAX_CHUNK_RECORDS,
    STATUS_ACTIVE,
    STATUS_IDLE,
    TAG_CHUNK,
    TAG_COMPLETION_MARK,
    TAG_DICTIONARY,
    TAG_INTERNAL_WATERMARK,
    TAG_LATENCY_MARKER,
    TAG_RECORD,
    TAG_RECORD_ATTRIBUTES,
    TAG_RECORD_WITH_TIMESTAMP,
    TAG_WATERMARK,
    TAG_WATERMARK_STATUS,
)
from flowlet.serde.table_reader import decode_records, decode_timestamps
from flowlet.serde.type_serializer import TypeSerializer

_WATERMARK: Final = struct.Struct(">Bq")
_LATENCY_MARKER: Final = struct.Struct(">Bq16si")
_STATUS: Final = struct.Struct(">Bi")
_ATTRIBUTES: Final = struct.Struct(">BB")
_INTERNAL_WATERMARK: Final = struct.Struct(">Biq")
_COMPLETION_MARK: Final = struct.Struct(">Bq")
_STATUSES: Final = {STATUS_ACTIVE: ACTIVE, STATUS_IDLE: IDLE}
_FLAGS: Final = FLAG_TIMESTAMPS | FLAG_KEYS | FLAG_KEY_FIELD
_BACKLOG: Final = {0: RecordAttributes(is_backlog=False), 1: RecordAttributes(is_backlog=True)}


class ElementDecoder:
    """Decodes the elements of one channel, in order, and keeps the channel's dictionary.

    ``values`` reads the values of single records (tags 0 and 1); None: such records are refused.  ``declared``: the
    type of the records in chunks, if nothing else may be read; None: columns of any objects, from a trusted sender.
    """

    __slots__ = ("_declared", "_values", "dictionary")

    def __init__(self, values: TypeSerializer | None, declared: RecordFormat | None = None) -> None:
        self._values = values
        self._declared = declared
        self.dictionary = ChannelDictionary()

    def __repr__(self) -> str:
        return f"StreamElementSerializer({'' if self._values is None else repr(self._values)})"

    def decode(self, body: memoryview, elements: list[StreamElement]) -> None:
        """Decode the element in ``body`` and append it; a single record joins the chunk before it if that fits.

        Raises:
            SerdeError: the bytes are corrupt; the message names the serializer.
        """
        tag = body[0]
        try:
            if tag == TAG_CHUNK:
                elements.append(_decode_chunk(body, self.dictionary, self._declared))
            elif tag in (TAG_RECORD, TAG_RECORD_WITH_TIMESTAMP):
                self._decode_record(tag, body, elements)
            elif tag == TAG_DICTIONARY:
                _define(self.dictionary, body)
            else:
                elements.append(_decode_control(tag, body))
        except SerdeError as error:
            raise SerdeError(f"{self!r}: {error}") from error
        except (struct.error, KeyError, ValueError, IndexError) as error:
            # Too few bytes, an unknown status, invalid UTF-8, or a raw column whose size is no multiple of its item
            # size.
            raise SerdeError(f"{self!r}: tag {tag}, {len(body)} bytes: {type(error).__name__}: {error}") from error

    def _decode_record(self, tag: int, body: memoryview, elements: list[StreamElement]) -> None:
        if self._values is None:
            raise SerdeError(f"found tag {tag}, a single record, in a stream of chunks")
        source = DataInput(body, 1)
        timestamp = source.read_long() if tag == TAG_RECORD_WITH_TIMESTAMP else None
        value = self._values.read(source)
        if source.remaining:
            raise SerdeError(f"broken serialization: {self._values!r} left {source.remaining} of {len(body)} bytes")
        last = elements[-1] if elements else None
        if type(last) is not Chunk or last.columns is not None or (last.timestamps is None) is not (timestamp is None):
            last = Chunk([], None if timestamp is None else [])
            elements.append(last)
        last.values.append(value)
        if last.timestamps is not None and timestamp is not None:
            last.timestamps.append(timestamp)


def _decode_control(tag: int, body: memoryview) -> StreamElement:
    if tag == TAG_WATERMARK:
        return Watermark(_WATERMARK.unpack(body)[1])
    if tag == TAG_WATERMARK_STATUS:
        return _STATUSES[_STATUS.unpack(body)[1]]
    if tag == TAG_LATENCY_MARKER:
        return LatencyMarker(*_LATENCY_MARKER.unpack(body)[1:])
    if tag == TAG_RECORD_ATTRIBUTES:
        return _BACKLOG[_ATTRIBUTES.unpack(body)[1]]
    if tag == TAG_INTERNAL_WATERMARK:
        _, subpartition, timestamp = _INTERNAL_WATERMARK.unpack(body)
        return InternalWatermark(timestamp, subpartition)
    if tag == TAG_COMPLETION_MARK:
        return CompletionMark(_COMPLETION_MARK.unpack(body)[1])
    raise SerdeError(f"found tag {tag}")


def _define(dictionary: ChannelDictionary, body: memoryview) -> None:
    _, version = DICTIONARY_HEADER.unpack_from(body)
    if version != DICTIONARY_VERSION:
        raise SerdeError(f"a dictionary of version {version}, known is version {DICTIONARY_VERSION}")
    dictionary.define(body[DICTIONARY_HEADER.size :])


def _decode_chunk(body: memoryview, dictionary: ChannelDictionary, declared: RecordFormat | None) -> Chunk:
    _, version, flags, num_records = CHUNK_HEADER.unpack_from(body)
    if version != CHUNK_VERSION or flags & ~_FLAGS:
        raise SerdeError(f"a chunk of version {version} with flags {flags}, known is version {CHUNK_VERSION}")
    if num_records > MAX_CHUNK_RECORDS:
        raise SerdeError(f"a chunk of {num_records} records, allowed are {MAX_CHUNK_RECORDS}")
    offset, timestamps = CHUNK_HEADER.size, None
    if flags & FLAG_TIMESTAMPS:
        timestamps, offset = decode_timestamps(body, offset, num_records)
    if declared is not None:
        return _declared_chunk(body, offset, flags, num_records, timestamps, dictionary, declared)
    keys, key_position = None, None
    if flags & FLAG_KEYS:
        keys, offset = decode_column(body, offset, num_records)
    elif flags & FLAG_KEY_FIELD:
        key_position, offset = body[offset], offset + 1
    records, offset = decode_records(body, offset, num_records, dictionary)
    if offset != len(body):
        raise SerdeError(f"{len(body) - offset} bytes are left behind the chunk")
    if isinstance(records, Columns):
        records = _keyed(records, key_position)
        if keys is None and records.shape is not Shape.OBJECT:
            return Chunk.of_columns(records, timestamps)
        # From here on only lists are known for objects of a class, so the keys must be taken out of the columns now.
        if keys is None and records.key_position is not None:
            keys = records.fields[records.key_position].to_list()
        records = records.to_list()
    chunk = Chunk(records, None if timestamps is None else timestamps.tolist())
    if keys is not None:
        chunk.keys = list(keys)
    elif key_position is not None:
        chunk.keys = _keys_at(records, key_position)
    return chunk


def _declared_chunk(
    body: memoryview,
    offset: int,
    flags: int,
    num_records: int,
    timestamps: NDArray[np.int64] | None,
    dictionary: ChannelDictionary,
    declared: RecordFormat,
) -> Chunk:
    if flags & ~FLAG_TIMESTAMPS:
        raise SerdeError("a chunk with keys, which records of a declared type do not bring along")
    records, offset = declared.decode(body, offset, num_records, dictionary)
    if offset != len(body):
        raise SerdeError(f"{len(body) - offset} bytes are left behind the chunk")
    if isinstance(records, Columns):
        return Chunk.of_columns(records, timestamps)
    return Chunk(records, None if timestamps is None else timestamps.tolist())


def _keys_at(records: list[Any], position: int) -> list[Any]:
    """The key field of each record; a record without fields is its own key."""
    try:
        return [record[position] if isinstance(record, tuple | Row) else (record,)[position] for record in records]
    except (IndexError, TypeError) as error:
        raise SerdeError(f"the key is field {position} of records that have no such field") from error


def _keyed(records: Columns, key_position: int | None) -> Columns:
    if key_position is None or key_position == records.key_position:
        return records
    if key_position >= len(records.fields):
        raise SerdeError(f"the key is field {key_position} of records with {len(records.fields)} fields")
    return records.with_key_position(key_position)
