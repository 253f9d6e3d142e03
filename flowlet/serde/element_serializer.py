"""Stream elements as bytes.

Hot path, per chunk; per record see ``columns``.

Side:   pure.
Format: ``i32 length`` and then that many bytes, beginning with a tag.  2, watermark: i64 milliseconds.  3, latency marker: i64
        milliseconds, 16 bytes of the operator's id, i32 subtask.  4, status: i32, 0 active, -1 idle.
        64, a chunk of records: u8 version, u8 flags (1: has timestamps), u32 number of records, [column of timestamps], column of values.
        Big-endian.
Source: Flink ``StreamElementSerializer``, ``SpanningRecordSerializer``; tag 64 is ours and takes the place of 0 and 1 (single records).
Absent: record attributes.
"""

import struct
from typing import Final, assert_never

from flowlet.errors import SerdeError
from flowlet.records import Chunk, LatencyMarker, StreamElement, Watermark, WatermarkStatus
from flowlet.serde.columns import encode_column

TAG_WATERMARK: Final = 2
TAG_LATENCY_MARKER: Final = 3
TAG_WATERMARK_STATUS: Final = 4
TAG_CHUNK: Final = 64
CHUNK_VERSION: Final = 1
FLAG_TIMESTAMPS: Final = 1
STATUS_ACTIVE: Final = 0
STATUS_IDLE: Final = -1
# What a receiver takes in one element, and in one chunk.
MAX_ELEMENT_BYTES: Final = 64 << 20
MAX_CHUNK_RECORDS: Final = 1 << 20
LENGTH: Final = struct.Struct(">i")
CHUNK_HEADER: Final = struct.Struct(">BBBI")
_FRAMED_WATERMARK: Final = struct.Struct(">iBq")
_FRAMED_LATENCY_MARKER: Final = struct.Struct(">iBq16si")
_FRAMED_STATUS: Final = struct.Struct(">iBi")
_FRAMED_CHUNK_HEADER: Final = struct.Struct(">iBBBI")


class StreamElementSerializer:
    """Makes elements into framed bytes; no state."""

    __slots__ = ()

    def serialize(self, element: StreamElement) -> bytes:
        """The element behind its length.

        A chunk of several records may come out larger than a receiver takes (``MAX_ELEMENT_BYTES``): then send it in parts.

        Raises:
            SerdeError: the chunk has too many records, or a record cannot be pickled, or is alone too large; the message says which.
        """
        if type(element) is Chunk:
            return self._serialize_chunk(element)
        match element:
            case Watermark(timestamp=timestamp):
                return _FRAMED_WATERMARK.pack(_FRAMED_WATERMARK.size - LENGTH.size, TAG_WATERMARK, timestamp)
            case WatermarkStatus(is_idle=is_idle):
                status = STATUS_IDLE if is_idle else STATUS_ACTIVE
                return _FRAMED_STATUS.pack(_FRAMED_STATUS.size - LENGTH.size, TAG_WATERMARK_STATUS, status)
            case LatencyMarker(marked_time_ms=marked_time_ms, operator_id=operator_id, subtask=subtask):
                length = _FRAMED_LATENCY_MARKER.size - LENGTH.size
                return _FRAMED_LATENCY_MARKER.pack(length, TAG_LATENCY_MARKER, marked_time_ms, operator_id, subtask)
            case Chunk():
                return self._serialize_chunk(element)
            case _:
                assert_never(element)

    def _serialize_chunk(self, chunk: Chunk) -> bytes:
        num_records = len(chunk.values)
        if num_records > MAX_CHUNK_RECORDS:
            raise SerdeError(f"a chunk of {num_records} records, at most {MAX_CHUNK_RECORDS} go into one")
        values = encode_column(chunk.values)
        timestamps = b"" if chunk.timestamps is None else encode_column(chunk.timestamps)
        length = CHUNK_HEADER.size + len(timestamps) + len(values)
        if length > MAX_ELEMENT_BYTES and num_records == 1:
            raise SerdeError(f"a record takes {length} bytes, more than the {MAX_ELEMENT_BYTES} that can be sent: split it up")
        flags = 0 if chunk.timestamps is None else FLAG_TIMESTAMPS
        return b"".join((_FRAMED_CHUNK_HEADER.pack(length, TAG_CHUNK, CHUNK_VERSION, flags, num_records), timestamps, values))
