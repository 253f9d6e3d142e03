"""Stream elements out of the buffers of one channel.

Hot path, per buffer and element; per record see ``columns``.

Side:       pure.
Invariants: an element comes out once, when its last byte has come in, however the bytes are cut; nothing that was fed is referenced
            after ``feed``; after an error every further ``feed`` raises it again.
Units:      bytes; offsets count from the first byte of the channel.
Source:     Flink ``SpillingAdaptiveSpanningRecordDeserializer`` (spanning and non-spanning elements), ``StreamElementSerializer``.
Absent:     spilling to files (elements are limited instead), handing over a half element to a checkpoint.
"""

import struct

from flowlet.errors import SerdeError
from flowlet.records import ACTIVE, IDLE, Chunk, LatencyMarker, StreamElement, Watermark
from flowlet.serde.columns import decode_column
from flowlet.serde.element_serializer import (
    CHUNK_HEADER,
    CHUNK_VERSION,
    FLAG_TIMESTAMPS,
    LENGTH,
    MAX_CHUNK_RECORDS,
    MAX_ELEMENT_BYTES,
    STATUS_ACTIVE,
    STATUS_IDLE,
    TAG_CHUNK,
    TAG_LATENCY_MARKER,
    TAG_WATERMARK,
    TAG_WATERMARK_STATUS,
)

_WATERMARK = struct.Struct(">Bq")
_LATENCY_MARKER = struct.Struct(">Bq16si")
_STATUS = struct.Struct(">Bi")


class ElementDeserializer:
    """Collects the bytes of one channel.

    Threading: one thread.
    Ownership: views stay the caller's, and may be overwritten once ``feed`` has returned.

    Args:
        limit_bytes: the largest element accepted.
        name: of the channel, for error messages.
    """

    def __init__(self, limit_bytes: int = MAX_ELEMENT_BYTES, name: str = "channel") -> None:
        self._limit_bytes = limit_bytes
        self._name = name
        self._partial = bytearray()  # of one element, from its length field on
        self._offset = 0  # in the channel, of the element that begins or continues next
        self._error: str | None = None

    def __repr__(self) -> str:
        state = "broken" if self._error is not None else f"{len(self._partial)} bytes of an element"
        return f"<ElementDeserializer of {self._name} at offset {self._offset}: {state}>"

    @property
    def has_partial(self) -> bool:
        """Whether the channel is in the middle of an element."""
        return bool(self._partial)

    def feed(self, view: memoryview) -> list[StreamElement]:
        """All elements that these bytes complete, in order.

        Raises:
            SerdeError: the bytes are no elements; names the channel and the offset of the element.
        """
        if self._error is not None:
            raise SerdeError(self._error)
        try:
            return self._feed(view)
        except SerdeError as error:
            self._error = f"{self._name}: corrupt stream in the element at offset {self._offset}: {error}"
            self._partial = bytearray()
            raise SerdeError(self._error) from error

    def _feed(self, view: memoryview) -> list[StreamElement]:
        elements: list[StreamElement] = []
        position = self._complete_partial(view, elements) if self._partial else 0
        end = len(view)
        while end - position >= LENGTH.size:
            length = self._checked_length(view, position)
            element_end = position + LENGTH.size + length
            if element_end > end:
                break
            elements.append(_deserialize(view[position + LENGTH.size : element_end]))
            self._offset += element_end - position
            position = element_end
        if position < end:
            self._partial += view[position:]
        return elements

    def _complete_partial(self, view: memoryview, elements: list[StreamElement]) -> int:
        """Take what the started element lacks; returns how many bytes that were."""
        partial = self._partial
        taken = min(max(0, LENGTH.size - len(partial)), len(view))
        partial += view[:taken]
        if len(partial) < LENGTH.size:
            return taken
        size = LENGTH.size + self._checked_length(partial, 0)
        missing = size - len(partial)
        partial += view[taken : taken + missing]
        taken = min(taken + missing, len(view))
        if len(partial) == size:
            elements.append(_deserialize(memoryview(partial)[LENGTH.size :]))
            self._offset += size
            # A new one: a large element must not keep its memory, and a failed one may still be referenced by the error's traceback.
            self._partial = bytearray()
        return taken

    def _checked_length(self, data: memoryview | bytearray, position: int) -> int:
        length: int = LENGTH.unpack_from(data, position)[0]
        if not 0 < length <= self._limit_bytes:
            raise SerdeError(f"its length is {length}, allowed are 1 to {self._limit_bytes} bytes")
        return length


def _deserialize(body: memoryview) -> StreamElement:
    """One element, whose bytes are exactly ``body``."""
    tag = body[0]
    try:
        if tag == TAG_CHUNK:
            return _deserialize_chunk(body)
        if tag == TAG_WATERMARK:
            return Watermark(_WATERMARK.unpack(body)[1])
        if tag == TAG_WATERMARK_STATUS:
            return _STATUSES[_STATUS.unpack(body)[1]]
        if tag == TAG_LATENCY_MARKER:
            return LatencyMarker(*_LATENCY_MARKER.unpack(body)[1:])
    except (struct.error, KeyError, ValueError) as error:
        # Too few bytes, an unknown status, a text that is not UTF-8, a raw column whose size is no multiple of its item's.
        raise SerdeError(f"tag {tag}, {len(body)} bytes: {type(error).__name__}: {error}") from error
    raise SerdeError(f"found tag {tag}")


_STATUSES = {STATUS_ACTIVE: ACTIVE, STATUS_IDLE: IDLE}


def _deserialize_chunk(body: memoryview) -> Chunk:
    _, version, flags, num_records = CHUNK_HEADER.unpack_from(body)
    if version != CHUNK_VERSION or flags & ~FLAG_TIMESTAMPS:
        raise SerdeError(f"a chunk of version {version} with flags {flags}, known is version {CHUNK_VERSION}")
    if num_records > MAX_CHUNK_RECORDS:
        raise SerdeError(f"a chunk of {num_records} records, allowed are {MAX_CHUNK_RECORDS}")
    offset, timestamps = CHUNK_HEADER.size, None
    if flags & FLAG_TIMESTAMPS:
        column, offset = decode_column(body, offset, num_records)
        timestamps = list(column)
    values, offset = decode_column(body, offset, num_records)
    if offset != len(body):
        raise SerdeError(f"{len(body) - offset} bytes are left behind the chunk")
    return Chunk(list(values), timestamps)
