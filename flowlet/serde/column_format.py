"""How columns lie in the bytes of a chunk.

Hot path, per column.

Side:   pure.
Units:  sizes in bytes; numbers inside columns little-endian, in headers big-endian as all of Flink's.
Format: ``u8 kind, u32 size, size bytes``.  PICKLE: the list, as ``record_pickle`` has it.  CONSTANT: a column of one value, which all
        have.  INT8 .. INT64, FLOAT64: raw, stands for int and float.  BOOL: one byte each.  TEXT: UTF-8 (with surrogates) joined by
        NUL.  TEXT_SIZES, BYTES: a column of ints (sizes: in characters, in bytes), then everything joined.  TUPLES: u16 number of
        fields, then a column for each.  ROWS: the same behind a column of field names, each None if rows have none.  CODED: u32
        generation, u32 number of texts known before, u32 number of new ones, a column of these if there are any, then u16 codes; see
        ``channel_dictionary``.  ARRAY: u8 index of a numpy type (``ARRAY_TYPES``), then raw.  ARROW: a record batch of one field as an
        Arrow IPC stream.  PACKED: msgpack of a few tuples.  OFFSETS: i64 base, u8 bytes per offset, then for each int what it is above
        the base, unsigned.  SHORT_TEXTS: u8 bytes per text (1 to 16), then ASCII, each text filled up with NULs.  PICKLES: u16 number
        of class tables; if there are any, a column of these (bytes) and a column of ints, for each record the place of its table
        counted from 1, or 0; then a column of sizes, and the pickles of all records.  OBJECTS: u32 size of a head; the head: u16 number
        of fields, a column of their names, a class reference; then a column for each field.  DICTS: u16 number of keys, a column of
        these, then a column for each.
        CODED, ARRAY, ARROW and SHORT_TEXTS are fields of records, or records, PACKED and PICKLES are records; they are nowhere deeper.
"""

import struct
from typing import Any, Final

import numpy as np

from flowlet.errors import SerdeError

(PICKLE, CONSTANT, INT8, INT16, INT32, INT64, FLOAT64, BOOL) = range(8)
(TEXT, TEXT_SIZES, BYTES, TUPLES, ROWS, CODED, ARRAY, ARROW, PACKED, OFFSETS, SHORT_TEXTS) = range(8, 19)
(PICKLES, OBJECTS, DICTS) = range(19, 22)
ENCODING: Final = "utf-8"
SURROGATES: Final = "surrogatepass"
NUMBERS: Final[dict[int, "np.dtype[Any]"]] = {
    INT8: np.dtype("<i1"),
    INT16: np.dtype("<i2"),
    INT32: np.dtype("<i4"),
    INT64: np.dtype("<i8"),
    FLOAT64: np.dtype("<f8"),
}
ARRAY_TYPES: Final = tuple(map(np.dtype, ["<i1", "<i2", "<i4", "<u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<M8[us]"]))
CODES: Final = np.dtype("<u2")
OFFSET_TYPES: Final = {size: np.dtype(f"<u{size}") for size in (1, 2, 4)}
BASE: Final = struct.Struct(">qB")
FIELDS: Final = struct.Struct(">H")
MAX_FIELDS: Final = 255
_HEADER: Final = struct.Struct(">BI")


def framed(kind: int, *payload: bytes | memoryview) -> bytes:
    """A column."""
    return b"".join((_HEADER.pack(kind, sum(map(len, payload))), *payload))


def header(kind: int, *payload: bytes | memoryview) -> bytes:
    """What stands in front of the parts of a column."""
    return _HEADER.pack(kind, sum(map(len, payload)))


def raw(array: "np.ndarray[Any, np.dtype[Any]]", dtype: "np.dtype[Any]") -> memoryview:
    """The bytes of an array, once it is of this type; copied only if it must be converted."""
    return np.ascontiguousarray(array, dtype).view(np.uint8).data


def column_at(view: memoryview, offset: int) -> tuple[int, memoryview, int]:
    """Kind and payload of the column at ``offset``, and the offset behind it.

    Raises:
        SerdeError, struct.error: its end is not there.
    """
    kind, size = _HEADER.unpack_from(view, offset)
    start = offset + _HEADER.size
    end = start + size
    if end > len(view):
        raise SerdeError(f"a column of {size} bytes ends {end - len(view)} bytes behind its chunk")
    return kind, view[start:end], end


def num_fields_of(payload: memoryview) -> int:
    """How many fields the records of a column of TUPLES or ROWS have.

    Raises:
        SerdeError, struct.error: more than any sender puts into one.
    """
    num_fields: int = FIELDS.unpack_from(payload)[0]
    if num_fields > MAX_FIELDS:
        raise SerdeError(f"records of {num_fields} fields, at most {MAX_FIELDS} are sent in columns")
    return num_fields


def check_length(kind: int, values: Any, num_values: int) -> None:
    """Refuse a column with too many or too few values.

    Raises:
        SerdeError: it is one.
    """
    if len(values) != num_values:
        raise SerdeError(f"a column of kind {kind} has {len(values)} values in a chunk of {num_values} records")


def check_end(end: int, payload: memoryview) -> None:
    """Refuse what is behind the last part of a column.

    Raises:
        SerdeError: there is something.
    """
    if end != len(payload):
        raise SerdeError(f"{len(payload) - end} bytes are left behind the last column")
