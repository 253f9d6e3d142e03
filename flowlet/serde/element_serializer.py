"""Serializes stream elements; assembles them from the buffers of one channel, and decodes them.  ``SpillFile`` has the
bytes of a large, incomplete element.

Hot path, per buffer, chunk and element; per record see ``column_writer`` and ``column_reader``.

Side:       task.  ``StreamElementSerializer`` is pure.
Invariants: a byte that is not used is an error; the decoded element holds no reference to the bytes.  A spill file has
            no name, so no file is left however the process ends.  An element comes out exactly once, with its last
            byte, wherever the bytes are cut.  No reference to a view remains after ``feed``.  After an error every
            further ``feed`` raises it again.  A length is accepted only up to the limit, and memory is taken only as
            the bytes arrive.
Format:     ``i32 length``, then the bytes, of which the first is the tag; big-endian: 2, watermark: i64 milliseconds.
            3, latency marker: i64 milliseconds, 16 bytes operator id, i32 subtask.  4, watermark status: i32, 0 active,
            -1 idle.  5, record attributes: u8, 1 for backlog.  6, watermark of one subpartition: i32 subpartition, i64
            milliseconds.  64, chunk: u8 version, u8 flags (1 timestamps, 2 keys, 4 the key is a field), u32 number of
            records, [column of timestamps], [column of keys, or u8 position of the key field], column of values.  65,
            dictionary of the channel: u8 version, u32 generation, u32 number of texts, column of texts; only in front
            of in-flight data of a checkpoint.  66, completion mark: i64 number.
Source:     Flink ``StreamElementSerializer``, ``SpanningRecordSerializer``; tags from 64 on are ours.
            ``ResultPartition.emit_record`` cuts the bytes into buffers.  Flink ``SpanningWrapper``: one file per large
            record, written through a buffer of 2 MiB.  Flink ``SpillingAdaptiveSpanningRecordDeserializer``,
            ``NonSpanningWrapper``.
Absent:     Flink's single records (tags 0 and 1): records travel in chunks.  Reserving the disk space in advance: a
            length from the network is not trusted.
Units:      bytes; offsets count from the first byte of the channel.
"""

import contextlib
import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowlet.columns import Columns, Shape
from flowlet.common.job_settings import MAX_RECORD_BYTES_OPTION
from flowlet.common.types import Row
from flowlet.errors import FlowletError, SerdeError
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
from flowlet.serde.column_reader import ChannelDictionary, decode_column, decode_records, decode_timestamps
from flowlet.serde.column_writer import CodeWriter, Kind, encode_column, encode_int64, framed, table_parts
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS, ElementLimits
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
# Up to this many records are checked for a key that is one of their fields; larger chunks with such keys are columns
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
    """The form of a control element in bytes: its tag, then its fields in a layout."""

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
        declared: the type of records whose reader knows it and unpickles no bytes; such chunks are sent without keys.
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
        flags, keys, timestamps, array = 0, b"", b"", None
        if self.declared is not None and num_records:
            values = [self.declared.encode(chunk)]
            array = chunk.timestamp_array
        elif columns is not None:
            values = table_parts(columns, codes)
            array = chunk.timestamp_array
            if columns.key_position is not None:
                flags, keys = FLAG_KEY_FIELD, bytes((columns.key_position,))
        else:
            records, stamps, selected = chunk.values, chunk.timestamps, chunk.keys
            values = [encode_column(records)]
            if stamps is not None:
                timestamps = encode_column(stamps) if num_records else framed(Kind.INT64)
            if selected is not None and num_records:
                flags, keys = _encode_keys(selected, records)
        if array is not None:
            timestamps = encode_int64(array)
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
    """The element (tag 65) from which another reader of the channel gets an equal dictionary; empty bytes for an empty
    dictionary.
    """
    definition = dictionary.definition()
    if definition is None:
        return b""
    header = DICTIONARY_HEADER.pack(TAG_DICTIONARY, DICTIONARY_VERSION)
    return LENGTH.pack(len(header) + len(definition)) + header + definition


_FLAGS: Final = FLAG_TIMESTAMPS | FLAG_KEYS | FLAG_KEY_FIELD
_BY_TAG: Final = {form.tag: form for form in CONTROL_FORMS.values()}


def _decode_chunk(body: memoryview, dictionary: ChannelDictionary, declared: "DeclaredRecords | None") -> Chunk:
    _, version, flags, num_records = CHUNK_HEADER.unpack_from(body)
    if version != CHUNK_VERSION or flags & ~_FLAGS:
        raise SerdeError(f"a chunk of version {version} with flags {flags}, known is version {CHUNK_VERSION}")
    if num_records > MAX_CHUNK_RECORDS:
        raise SerdeError(f"a chunk of {num_records} records, allowed are {MAX_CHUNK_RECORDS}")
    offset, timestamps = CHUNK_HEADER.size, None
    if flags & FLAG_TIMESTAMPS:
        timestamps, offset = decode_timestamps(body, offset, num_records)
    if declared is not None and flags & ~FLAG_TIMESTAMPS:
        raise SerdeError("a chunk with keys, which records of a declared type do not bring along")
    keys, key_position = None, None
    if flags & FLAG_KEYS:
        keys, offset = decode_column(body, offset, num_records)
    elif flags & FLAG_KEY_FIELD:
        key_position, offset = body[offset], offset + 1
    if declared is None:
        records, offset = decode_records(body, offset, num_records, dictionary)
    else:
        records, offset = declared.decode(body, offset, num_records)
    if offset != len(body):
        raise SerdeError(f"{len(body) - offset} bytes are left behind the chunk")
    if isinstance(records, Columns):
        if key_position is not None and key_position != records.key_position:
            if key_position >= len(records.fields):
                raise SerdeError(f"the key is field {key_position} of records with {len(records.fields)} fields")
            records = records.with_key_position(key_position)
        if keys is None and records.shape is not Shape.OBJECT:
            return Chunk.of_columns(records, timestamps)
        # Objects of a class go on as lists, so the keys must be taken out of the columns now.
        if keys is None and records.key_position is not None:
            keys = records.fields[records.key_position].to_list()
        records = records.to_list()
    chunk = Chunk(records, None if timestamps is None else timestamps.tolist())
    if keys is not None:
        chunk.keys = list(keys)
    elif key_position is not None:
        chunk.keys = _keys_at(records, key_position)
    return chunk


def _keys_at(records: list[Any], position: int) -> list[Any]:
    """The key field of each record; a record without fields is its own key."""
    try:
        return [record[position] if isinstance(record, tuple | Row) else (record,)[position] for record in records]
    except (IndexError, TypeError) as error:
        raise SerdeError(f"the key is field {position} of records that have no such field") from error


_WRITE_BYTES: Final = 2 << 20  # Flink's


class SpillFile:
    """Bytes in a file: appended, then read.

    Threading: one thread.
    Life cycle: ``close``, or drop it; views stay valid until they are dropped.

    Args:
        directory: of the file; None: the system's folder for temporary files.
        what: names the content of the file in errors.
        error_type: the class of errors.
        buffering: the bytes of memory through which small pieces are written; 0: none.

    Raises:
        FlowletError: the file cannot be created or written, such as on a full disk; the message names the directory.
            Also from ``append``, ``view``, ``read``.
    """

    __slots__ = ("__weakref__", "_close", "_directory", "_error_type", "_file", "_map", "_size", "_what")

    def __init__(
        self,
        directory: str | None,
        what: str = "an element too large for memory",
        error_type: type[FlowletError] = SerdeError,
        buffering: int = _WRITE_BYTES,
    ) -> None:
        self._directory = tempfile.gettempdir() if directory is None else directory
        self._what = what
        self._error_type = error_type
        self._size = 0
        self._map: mmap.mmap | None = None
        with self._translated():
            self._file = tempfile.TemporaryFile(dir=self._directory, buffering=buffering)  # noqa: SIM115 - closed below
        self._close = weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<SpillFile of {self._size} bytes in {self._directory}{'' if self._close.alive else ', closed'}>"

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Write ``data`` at the end."""
        left = memoryview(data)
        with self._translated():
            while left:
                left = left[self._file.write(left) :]
        self._size += len(data)

    def view(self) -> memoryview:
        """All bytes, memory-mapped; ``append`` must not be called afterwards."""
        with self._translated():
            self._file.flush()
            self._map = mmap.mmap(self._file.fileno(), self._size, access=mmap.ACCESS_READ)
        return memoryview(self._map)

    def read(self, start: int, num_bytes: int) -> bytes:
        """``num_bytes`` bytes from an offset on, or fewer at the end of the file; ``append`` may follow."""
        data = b""
        with self._translated():
            self._file.flush()
            while len(data) < min(num_bytes, self._size - start):
                more = os.pread(self._file.fileno(), num_bytes - len(data), start + len(data))
                if not more:
                    raise OSError(f"the file ends at byte {start + len(data)}")
                data += more
        return data

    def close(self) -> None:
        """Close the file; the disk space is freed when no view is left."""
        with contextlib.suppress(OSError):  # flushing failed, but the bytes are not needed
            self._close()
        if self._map is not None:
            # The traceback of an error may still hold a view; the mapping is then freed with it.
            with contextlib.suppress(BufferError):
                self._map.close()
            self._map = None

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._error_type(f"{self._what} cannot be kept in a file in {self._directory}: {error}") from error


@dataclass(eq=False)
class ElementDeserializer:
    """Collects the bytes of one channel and decodes its elements.

    Threading: one thread.
    Ownership: views stay the caller's and may be overwritten once ``feed`` has returned.
    Life cycle: ``close``, or drop it.

    Args:
        limits: the largest element, and the size from which an incomplete one is kept in a file.
        declared: the type of the records, if their sender is not trusted: no other records are read; None: chunks may
            have any objects.
    """

    name: str = "channel"
    limits: ElementLimits = field(default=DEFAULT_ELEMENT_LIMITS, kw_only=True)
    declared: "DeclaredRecords | None" = field(default=None, kw_only=True)
    _dictionary: ChannelDictionary = field(init=False, default_factory=ChannelDictionary)
    # An incomplete element, from its length field on; empty while it is in a file.
    _partial: bytearray = field(init=False, default_factory=bytearray)
    # The incomplete element once it is too large for memory.
    _spilled: SpillFile | None = field(init=False, default=None)
    _spilled_size: int = field(init=False, default=0)  # the full size of that element, with its length field
    _offset: int = field(init=False, default=0)  # where in the channel the next or incomplete element begins
    _error: str | None = field(init=False, default=None)

    def __repr__(self) -> str:
        state = "broken" if self._error is not None else f"{self._num_gathered} bytes of an element"
        return (
            f"<ElementDeserializer of {self.name} at offset {self._offset}: "
            f"{state}{'' if self._spilled is None else ', in a file'}>"
        )

    @property
    def has_partial(self) -> bool:
        """Whether an element is incomplete."""
        return self._num_gathered > 0

    def unconsumed(self, piece_bytes: int) -> Iterator[bytes]:
        """The dictionary and the bytes of the incomplete element, in pieces; exhaust it before the next ``feed``.

        Another deserializer that is fed these pieces has the state of this one.  An unaligned checkpoint keeps them
        (Flink's ``getUnconsumedBuffer``).
        """
        definition = serialize_dictionary(self._dictionary)
        for start in range(0, len(definition), piece_bytes):
            yield definition[start : start + piece_bytes]
        if self._spilled is not None:
            for start in range(0, len(self._spilled), piece_bytes):
                yield self._spilled.read(start, piece_bytes)
        for start in range(0, len(self._partial), piece_bytes):
            yield bytes(self._partial[start : start + piece_bytes])

    def feed(self, view: memoryview) -> list[StreamElement]:
        """Take the next bytes; return the elements that they complete.

        Raises:
            SerdeError: the bytes are corrupt; names the channel, the offset of the element and the serializer.
        """
        if self._error is not None:
            raise SerdeError(self._error)
        elements: list[StreamElement] = []
        position = 0
        try:
            if self._spilled is not None:
                position = self._complete_spilled(self._spilled, view, elements)
            elif self._partial:
                position = self._complete_partial(view, elements)
            decode = self._decode
            max_length = self.limits.max_element_bytes
            end = len(view)
            while end - position >= LENGTH.size:
                (length,) = LENGTH.unpack_from(view, position)
                if not 0 < length <= max_length:
                    self._checked_length(view, position)  # raises the error
                element_end = position + LENGTH.size + length
                if element_end > end:
                    break
                decode(view[position + LENGTH.size : element_end], elements)
                self._offset += element_end - position
                position = element_end
            if position < end:
                self._partial += view[position:]
        except SerdeError as error:
            self._error = f"{self.name}: corrupt stream in the element at offset {self._offset}: {error}"
            self.close()
            raise SerdeError(self._error) from error
        return elements

    def close(self) -> None:
        """Drop an incomplete element and its file."""
        self._partial = bytearray()
        if self._spilled is not None:
            self._spilled.close()
            self._spilled = None

    @property
    def _num_gathered(self) -> int:
        return len(self._partial) if self._spilled is None else len(self._spilled)

    def _complete_partial(self, view: memoryview, elements: list[StreamElement]) -> int:
        """Complete the element that began in earlier buffers; return how many bytes of ``view`` it took."""
        partial = self._partial
        taken = min(max(0, LENGTH.size - len(partial)), len(view))
        partial += view[:taken]
        if len(partial) < LENGTH.size:
            return taken
        size = LENGTH.size + self._checked_length(partial, 0)
        missing = size - len(partial)
        if missing > len(view) - taken > self.limits.spill_above_bytes - len(partial):
            spilled = self._spilled = SpillFile(self.limits.spill_directory)
            self._spilled_size = size
            spilled.append(partial)
            self._partial = bytearray()
            spilled.append(view[taken:])
            return len(view)
        partial += view[taken : taken + missing]
        taken = min(taken + missing, len(view))
        if len(partial) == size:
            self._decode_gathered(memoryview(partial), elements)
            # Not clear(): that would keep a large element's memory, and fails if an error's traceback still refers to
            # the bytes.
            self._partial = bytearray()
        return taken

    def _complete_spilled(self, spilled: SpillFile, view: memoryview, elements: list[StreamElement]) -> int:
        taken = min(self._spilled_size - len(spilled), len(view))
        spilled.append(view[:taken])
        if len(spilled) == self._spilled_size:
            self._decode_gathered(spilled.view(), elements)
            self.close()
        return taken

    def _decode_gathered(self, framed: memoryview, elements: list[StreamElement]) -> None:
        self._decode(framed[LENGTH.size :], elements)
        self._offset += len(framed)

    def _decode(self, body: memoryview, elements: list[StreamElement]) -> None:
        """Decode the element in ``body`` and append it.

        Raises:
            SerdeError: the bytes are corrupt; the message names the serializer.
        """
        tag = body[0]
        try:
            if tag == TAG_CHUNK:
                elements.append(_decode_chunk(body, self._dictionary, self.declared))
            elif tag == TAG_DICTIONARY:
                _, version = DICTIONARY_HEADER.unpack_from(body)
                if version != DICTIONARY_VERSION:
                    raise SerdeError(f"a dictionary of version {version}, known is version {DICTIONARY_VERSION}")
                self._dictionary.define(body[DICTIONARY_HEADER.size :])
            elif tag in _BY_TAG:
                form = _BY_TAG[tag]
                elements.append(form.make(*form.layout.unpack(body[1:])))
            else:
                single = ", a single record, in a stream of chunks" if tag in TAGS_OF_RECORDS else ""
                raise SerdeError(f"found tag {tag}{single}")
        except SerdeError as error:
            raise SerdeError(f"StreamElementSerializer(): {error}") from error
        except (struct.error, KeyError, ValueError, IndexError) as error:
            # Too few bytes, an unknown status, invalid UTF-8, or a raw column whose size is no multiple of its item
            # size.
            raise SerdeError(
                f"StreamElementSerializer(): tag {tag}, {len(body)} bytes: {type(error).__name__}: {error}"
            ) from error

    def _checked_length(self, data: memoryview | bytearray, position: int) -> int:
        length: int = LENGTH.unpack_from(data, position)[0]
        if not 0 < length <= self.limits.max_element_bytes:
            raise SerdeError(
                f"its length is {length}, allowed are 1 to {self.limits.max_element_bytes} bytes; both ends must have "
                f"the same limit (a job's option {MAX_RECORD_BYTES_OPTION!r})"
            )
        return length
