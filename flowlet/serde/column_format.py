"""The layout of columns in the bytes of a chunk.

Hot path, per column.

Side:   pure.
Units:  sizes in bytes; numbers inside columns little-endian, in headers big-endian as everywhere in Flink.
Format: ``u8 kind, u32 size, size bytes``; the payload by kind: PICKLE: the list of values, as ``record_pickle`` writes
        it.  PACKED: msgpack of a few tuples.  CONSTANT: a column with the one value that all have.  INT8 .. INT64,
        FLOAT64: raw numbers, for int and float.  BOOL: one byte each.  OFFSETS: i64 base, u8 bytes per offset, then for
        each int its unsigned difference from the base.  TEXT: UTF-8 (with surrogates), joined by NUL.  TEXT_SIZES,
        BYTES: a column of sizes (characters, bytes), then everything joined.  SHORT_TEXTS: u8 bytes per text (1 to 16),
        then ASCII, each text filled up with NULs.  CODED: u32 generation, u32 number of texts known before, u32 number
        of new ones, a column of the new ones if there are any, then u16 codes; see ``column_reader``.  ARRAY: u8 index
        into ``ARRAY_TYPES``, then raw numbers.  ARROW: a record batch of one field as an Arrow IPC stream.
        TUPLES: u16 number of fields, then a column for each.  ROWS: the same after a column of field names (None for
        unnamed rows).  DICTS: u16 number of keys, a column of these, then a column of values for each key.  OBJECTS:
        u32 size of a head; the head: u16 number of fields, a column of their names, a class reference; a column for
        each field.  PICKLES: u16 number of class tables; if there are any, a column of these (bytes), and a column with
        the 1-based place of each record's table, or 0; then a column of sizes, and the pickles of all records.  BATCH:
        an Arrow message with records of a declared type (``types/declared_records``), whose others are PACKED.  CODED,
        ARRAY, ARROW and SHORT_TEXTS occur as records or their fields, PACKED, PICKLES and BATCH only as records.
"""

import struct
from typing import Any, Final

import numpy as np

from flowlet.errors import SerdeError
from flowlet.serde.element_limits import MAX_FIELDS


class Kind:
    """The kinds of columns: plain numbers, because one is compared per column."""

    (PICKLE, CONSTANT, INT8, INT16, INT32, INT64, FLOAT64, BOOL) = range(8)
    (TEXT, TEXT_SIZES, BYTES, TUPLES, ROWS, CODED, ARRAY, ARROW, PACKED, OFFSETS, SHORT_TEXTS) = range(8, 19)
    (PICKLES, OBJECTS, DICTS) = range(19, 22)
    BATCH = 28  # 22 to 26 were columns of declared types; 27 was BATCH with a pickle for each of any objects


# Of 17 records of a declared type an Arrow message takes twice the time of msgpack, of 64 the same.
MAX_PACKED_DECLARED: Final = 32
HAS_KINDS: Final = 1  # flags of BATCH
TEXTS_ARE_BYTES: Final = 2
ENCODING: Final = "utf-8"
SURROGATES: Final = "surrogatepass"
NUMBERS: Final[dict[int, "np.dtype[Any]"]] = {
    Kind.INT8: np.dtype("<i1"),
    Kind.INT16: np.dtype("<i2"),
    Kind.INT32: np.dtype("<i4"),
    Kind.INT64: np.dtype("<i8"),
    Kind.FLOAT64: np.dtype("<f8"),
}
ARRAY_TYPES: Final = tuple(map(np.dtype, ["<i1", "<i2", "<i4", "<u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<M8[us]"]))
CODES: Final = np.dtype("<u2")
OFFSET_TYPES: Final = {size: np.dtype(f"<u{size}") for size in (1, 2, 4)}
BASE: Final = struct.Struct(">qB")
FIELDS: Final = struct.Struct(">H")
CODED_HEADER: Final = struct.Struct(">III")
HEAD_SIZE: Final = struct.Struct(">I")
MAX_HEADS: Final = 256  # of OBJECTS, in a cache
MAX_TUPLE_DEPTH: Final = 4  # of tuples in tuples; deeper ones are pickled
_HEADER: Final = struct.Struct(">BI")


def framed(kind: int, *payload: bytes | memoryview) -> bytes:
    """The bytes of a whole column."""
    return b"".join((_HEADER.pack(kind, sum(map(len, payload))), *payload))


def header(kind: int, *payload: bytes | memoryview) -> bytes:
    """The bytes in front of the payload, for callers that join the parts themselves."""
    return _HEADER.pack(kind, sum(map(len, payload)))


def raw(array: "np.ndarray[Any, np.dtype[Any]]", dtype: "np.dtype[Any]") -> memoryview:
    """The bytes of an array converted to ``dtype``; copied only if the conversion needs it."""
    return np.ascontiguousarray(array, dtype).view(np.uint8).data


def column_at(view: memoryview, offset: int) -> tuple[int, memoryview, int]:
    """The kind and payload of the column at ``offset``, and the offset after it.

    Raises:
        SerdeError, struct.error: the column is cut off.
    """
    kind, size = _HEADER.unpack_from(view, offset)
    start = offset + _HEADER.size
    end = start + size
    if end > len(view):
        raise SerdeError(f"a column of {size} bytes ends {end - len(view)} bytes behind its chunk")
    return kind, view[start:end], end


def constant_at(view: memoryview, offset: int) -> tuple[int, memoryview, bool, int]:
    """As ``column_at``; of a CONSTANT column the kind and payload of the one in it, and whether it is constant."""
    kind, payload, end = column_at(view, offset)
    if kind != Kind.CONSTANT:
        return kind, payload, False, end
    kind, inner, last = column_at(payload, 0)
    check_end(last, payload)
    return kind, inner, True, end


def num_fields_of(payload: memoryview) -> int:
    """The u16 in front of a payload: its number of fields, keys or class tables.

    Raises:
        SerdeError, struct.error: it is cut off, or above ``MAX_FIELDS``.
    """
    num_fields: int = FIELDS.unpack_from(payload)[0]
    if num_fields > MAX_FIELDS:
        raise SerdeError(f"records of {num_fields} fields, at most {MAX_FIELDS} are sent in columns")
    return num_fields


def check_length(kind: int, values: Any, num_values: int) -> None:
    """Check the number of values of a column.  Raises SerdeError: it is not ``num_values``."""
    if len(values) != num_values:
        raise SerdeError(f"a column of kind {kind} has {len(values)} values in a chunk of {num_values} records")


def check_end(end: int, payload: memoryview) -> None:
    """Check that a payload ends at ``end``.  Raises SerdeError: bytes are left."""
    if end != len(payload):
        raise SerdeError(f"{len(payload) - end} bytes are left behind the last column")
