"""Encodes lists of values, and columns of records, as columns of bytes; the layout of these.

Hot path.  The exact types of the values are looked at once per chunk and decide the kind of column; C code does the
rest.  One core, chunks of 2,000, encode + decode per value: str 20 + 17 ns, int 17 + 8 ns; (str, int) tuples 75 + 42 ns
(``bench wordcount``).  Objects of flat classes: see ``flat_classes``.

Side:       pure.
Units:      a cell is a value of a column, or a part of a container; about 60 bytes of memory at most.  Sizes in bytes;
            numbers inside columns little-endian, in headers big-endian as everywhere in Flink.
Format:     ``u8 kind, u32 size, size bytes``; the payload by kind: PICKLE: the list of values, as ``record_pickle``
            writes it.  PACKED: msgpack of a few tuples.  CONSTANT: a column with the one value that all have.  INT8 ..
            INT64, FLOAT64: raw numbers, for int and float.  BOOL: one byte each.  OFFSETS: i64 base, u8 bytes per
            offset, then for each int its unsigned difference from the base.  TEXT: UTF-8 (with surrogates), joined by
            NUL.  TEXT_SIZES, BYTES: a column of sizes (characters, bytes), then everything joined.  SHORT_TEXTS: u8
            bytes per text (1 to 16), then ASCII, each text filled up with NULs.  CODED: u32 generation, u32 number of
            texts known before, u32 number of new ones, a column of the new ones if there are any, then u16 codes; see
            ``column_reader``.  ARRAY: u8 index into ``ARRAY_TYPES``, then raw numbers.  ARROW: a record batch of one
            field as an Arrow IPC stream.  TUPLES: u16 number of fields, then a column for each.  ROWS: u16 number of
            fields, a column of field names (None for unnamed rows), then a column for each field.  DICTS: u16 number of
            keys, a column of these, then a column of values for each key.  OBJECTS: u32 size of a head; the head: u16
            number of fields, a column of their names, a class reference; a column for each field.  PICKLES: u16 number
            of class tables; if there are any, a column of these (bytes), and a column with the 1-based place of each
            record's table, or 0; then a column of sizes, and the pickles of all records.  BATCH: an Arrow message with
            records of a declared type (``types/declared_records``), which are PACKED if there are few.  CODED, ARRAY,
            ARROW and SHORT_TEXTS occur as records or their fields, PACKED, PICKLES and BATCH only as records.
Invariants: values come back with exactly the types, signs, NaN bits and (lone) surrogates that they went in with,
            whatever the kind of column; numbers, codes and Arrow arrays keep their representation, too.  Identity
            within a record is kept.  Two records never share a mutable object afterwards, unless the whole list is one
            PICKLE.
Rules:      a reader gets the values that it would get from pickles.  If two fields of a record are one mutable object,
            a pickle keeps them one object and columns do not: so columns are made only if no mutable object occurs
            twice, and none is of a class that cannot be looked into.  Two records that are one object arrive as two, as
            every record is a value of its own.
"""

import struct
from collections.abc import Sequence
from enum import EnumMeta
from functools import lru_cache
from itertools import chain
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    Columns,
    ColumnVisitor,
    ConstantColumn,
    ListColumn,
    OffsetColumn,
    Shape,
    ShortTextColumn,
    narrowed,
)
from flowlet.columns.column import UNCHANGING
from flowlet.columns.short_text_column import Packed16Array
from flowlet.columns.table import exact_type, is_constant, try_transpose
from flowlet.common.types import Row, parts_of
from flowlet.errors import SerdeError
from flowlet.records import PickledRecord
from flowlet.serde.flat_classes import MAX_FIELDS, flat_class_of, parts_of_dicts
from flowlet.serde.pickles.record_pickle import (
    PickleWithClasses,
    class_reference,
    dumps_record,
    dumps_value,
    loads_record,
)


class Kind:
    """The kinds of columns: plain numbers, because one is compared per column."""

    (PICKLE, CONSTANT, INT8, INT16, INT32, INT64, FLOAT64, BOOL) = range(8)
    (TEXT, TEXT_SIZES, BYTES, TUPLES, ROWS, CODED, ARRAY, ARROW, PACKED, OFFSETS, SHORT_TEXTS) = range(8, 19)
    (PICKLES, OBJECTS, DICTS) = range(19, 22)
    BATCH = 28  # 22 to 26 were columns of declared types; 27 was BATCH with a pickle for each of any objects


class ElementTooLargeError(SerdeError):
    """Several records stand for more values than a reader accepts at once; fewer records may do."""


# The number of cells that an element may stand for, besides one for each of its bytes: constants, nulls and containers
# cost few bytes or none.  2 Mi cells are a chunk of 65,536 rows with 32 such columns.
FREE_CELLS: Final = 1 << 21
# For 17 records of a declared type an Arrow message takes twice the time of msgpack, for 64 as long as msgpack.
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
    """The kind and payload of the column at ``offset``, whether it is constant, and the offset after it.

    Kind and payload of a CONSTANT column are those of the column in it.  Raises as ``column_at``.
    """
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


_Names = tuple[str | None, ...]
_KINDS: Final = {1: Kind.INT8, 2: Kind.INT16, 4: Kind.INT32}
_INT64: Final = np.dtype(np.int64)
_ARRAY_KINDS: Final = {dtype.newbyteorder("="): index for index, dtype in enumerate(ARRAY_TYPES)}
_BLOCK_TEXTS: Final = 64
# Up to this many tuples are packed with msgpack: it writes a chunk of one record in 2 us instead of 5, and reads it in
# 2 instead of 8, which counts when every record travels alone.  From about 32 records on, columns are faster.
_MAX_PACKED: Final = 16
_MAX_DEPTH: Final = 4  # of mutable objects in mutable objects; deeper ones are pickled
# Fewer objects are pickled: the headers of their columns have more bytes.  At 12 instances of six fields both ways are
# equally fast.
MIN_OBJECTS: Final = 12
# Kinds that may hold mutable objects.
_MAY_SHARE: Final = frozenset({Kind.PICKLE, Kind.TUPLES, Kind.OBJECTS, Kind.DICTS, Kind.ROWS})
_PACKABLE: Final = frozenset({int, str, float, bool, bytes, type(None)})  # msgpack keeps their exact values and types
_pack: Final = msgspec.msgpack.Encoder().encode
# With fewer integers, finding and making a narrower type (two passes) is not worth it.  Not measured closely.
_MIN_NARROWED: Final = 16
# The depth of a field (it is in the tuple of all fields) and of the value of a constant field.
_FIELD_DEPTH: Final = 1
_CONSTANT_DEPTH: Final = 2


# ---------------------------------------------------------------- lists of values


def encode_column(values: Sequence[Any], kind: Any = ..., *, depth: int = 0) -> bytes:
    """Encode values as one column.

    ``kind``: the exact type of the values, if that is known already; None: they have several types, or there are none.

    Raises:
        SerdeError: a value cannot be pickled; the message names its type.
    """
    if kind is ...:
        kind = exact_type(values)
    if kind is int:
        return _constant(values) or _encode_ints(values)
    if kind is str:
        return encode_texts(values)
    if kind is tuple and depth < MAX_TUPLE_DEPTH:
        return (not depth and len(values) <= _MAX_PACKED and _try_pack_tuples(values)) or _encode_tuples(values, depth)
    if kind is float:
        return framed(Kind.FLOAT64, struct.pack(f"<{len(values)}d", *values))
    if kind is bool:
        return _constant(values) or framed(Kind.BOOL, bytes(values))
    if kind is bytes:
        return _constant(values) or framed(Kind.BYTES, *_joined(values))
    if kind is type(None) and len(values) > 1:
        return framed(Kind.CONSTANT, _encode_pickle([None]))
    if kind is PickledRecord or (kind is None and not depth and PickledRecord in map(type, values)):
        return _encode_pickles(values)
    if kind is not None and depth < MAX_TUPLE_DEPTH:
        return _try_encode_objects(values, kind, depth) or _encode_pickle(values)
    return _encode_pickle(values)


def _constant(values: Sequence[Any]) -> bytes | None:
    """A CONSTANT column if all values are equal.

    Only for immutable types in which equal values cannot be told apart.
    """
    return framed(Kind.CONSTANT, encode_column(values[:1])) if len(values) > 1 and is_constant(values) else None


def _encode_ints(values: Sequence[int]) -> bytes:
    try:
        packed = struct.pack(f"<{len(values)}q", *values)
    except struct.error:  # beyond 64 bits
        return _encode_pickle(values)
    if len(values) < _MIN_NARROWED:
        return framed(Kind.INT64, packed)
    return encode_int64(np.frombuffer(packed, NUMBERS[Kind.INT64]))


class _NarrowedEncoder(ColumnVisitor[bytes]):
    def visit_any(self, column: Column) -> bytes:
        raise AssertionError(f"narrowed integers in {column!r}")

    def visit_constant(self, column: ConstantColumn) -> bytes:
        return framed(Kind.CONSTANT, framed(Kind.INT64, raw(np.array([column.value]), NUMBERS[Kind.INT64])))

    def visit_array(self, column: ArrayColumn) -> bytes:
        return framed(Kind.INT64, raw(column.array, NUMBERS[Kind.INT64]))

    def visit_offsets(self, column: OffsetColumn) -> bytes:
        offsets = column.offsets
        size = offsets.dtype.itemsize
        if offsets.dtype.kind == "i":
            return framed(_KINDS[size], raw(offsets, NUMBERS[_KINDS[size]]))
        return framed(Kind.OFFSETS, BASE.pack(column.base, size), raw(offsets, OFFSET_TYPES[size]))


_NARROWED_ENCODER: Final = _NarrowedEncoder()


def encode_int64(array: NDArray[np.int64]) -> bytes:
    """Encode integers of 64 bits, such as timestamps in milliseconds; at least one."""
    return _NARROWED_ENCODER.visit(narrowed(array))


def encode_texts(values: Sequence[str]) -> bytes:
    """Encode values that are all exactly ``str``; at least one."""
    constant = _constant(values)
    if constant is not None:
        return constant
    joined = "\0".join(values)
    if joined.count("\0") == len(values) - 1:
        return framed(Kind.TEXT, joined.encode(ENCODING, SURROGATES))
    return framed(Kind.TEXT_SIZES, encode_column(list(map(len, values))), "".join(values).encode(ENCODING, SURROGATES))


def encode_short_texts(packed16: Packed16Array) -> bytes:
    """Encode at least one text; each takes as many bytes as the longest one."""
    # Blocks of texts side by side, because numpy's inner loops run over the last dimension: two columns alone would be
    # slow.
    whole = len(packed16) - len(packed16) % _BLOCK_TEXTS
    of_blocks = np.bitwise_or.reduce(packed16[:whole].reshape(-1, 2 * _BLOCK_TEXTS), axis=0).reshape(-1, 2)
    used = np.flatnonzero(np.bitwise_or.reduce(np.concatenate((of_blocks, packed16[whole:])), axis=0).view(np.uint8))
    width = int(used[-1]) + 1 if len(used) else 1
    cells = packed16.view(np.uint8)[:, :width]
    return framed(Kind.SHORT_TEXTS, bytes((width,)), cells.tobytes())


def encode_codes(generation: int, num_known: int, new_texts: list[str], codes: NDArray[np.uint16]) -> bytes:
    """A column of codes, preceded by the texts that the receiver does not know yet.

    Args:
        generation: of the sender's dictionary, counted from 0.
        num_known: how many texts of this generation the receiver knows.
        new_texts: the texts that follow these.
        codes: one per value.
    """
    texts = encode_column(new_texts) if new_texts else b""
    return framed(Kind.CODED, CODED_HEADER.pack(generation, num_known, len(new_texts)), texts, raw(codes, CODES))


def _encode_tuples(values: Sequence[tuple[Any, ...]], depth: int) -> bytes:
    columns = try_transpose(values)
    if columns is None or len(columns) > MAX_FIELDS:
        return _encode_pickle(values)
    fields = [encode_column(column, depth=depth + 1) for column in columns]
    # Two fields of a tuple may hold one mutable object: columns would make two of it, a pickle keeps one.
    unclear = [
        column for column, field in zip(columns, fields, strict=True) if field[0] in _MAY_SHARE and _can_change(column)
    ]
    if len(unclear) > 1 and not are_apart(unclear):
        return _encode_pickle(values)
    return framed(Kind.TUPLES, FIELDS.pack(len(columns)), *fields)


def _try_pack_tuples(values: Sequence[tuple[Any, ...]]) -> bytes | None:
    if not _PACKABLE.issuperset(map(type, chain.from_iterable(values))):
        return None
    try:
        return framed(Kind.PACKED, _pack(values))
    except (OverflowError, UnicodeEncodeError):  # an int beyond 64 bits, a lone surrogate
        return None


def _encode_pickle(values: Sequence[Any]) -> bytes:
    try:
        return framed(Kind.PICKLE, dumps_value(list(values)))
    except SerdeError as error:
        types = ", ".join(sorted({type(value).__name__ for value in values}))
        raise SerdeError(
            f"records with values of type {types} cannot be pickled to be sent: {error.__cause__ or error}"
        ) from error


def _encode_pickles(values: Sequence[Any]) -> bytes:
    """Encode records as pickles; some records were pickled when they were emitted, the others are pickled here."""
    pickles = [value.data if type(value) is PickledRecord else dumps_record(value) for value in values]
    if exact_type(pickles) is bytes:
        return framed(Kind.PICKLES, FIELDS.pack(0), *_joined(pickles))
    of_records = [data.table if type(data) is PickleWithClasses else None for data in pickles]
    tables = [table for table in dict.fromkeys(of_records) if table is not None]
    if len(tables) > MAX_FIELDS:  # too many for the format: one pickle of all records has its own table
        return _encode_pickle([loads_record(data) for data in pickles])
    places = {table: place for place, table in enumerate(tables, 1)} | {None: 0}
    column = encode_column([places[table] for table in of_records], depth=1)
    return framed(Kind.PICKLES, FIELDS.pack(len(tables)), encode_column(tables), column, *_joined(pickles))


def _joined(texts: Sequence[bytes]) -> tuple[bytes, bytes]:
    return encode_column(list(map(len, texts))), b"".join(texts)


# ---------------------------------------------------------------- objects, rows and dicts, by field


def _try_encode_objects(values: Sequence[Any], kind: type, depth: int) -> bytes | None:
    """Encode values of exactly one class as OBJECTS, ROWS or DICTS; None if they must be pickled.

    Raises:
        SerdeError: a value of a field cannot be pickled.
    """
    parts = _taken_apart(values, kind) if len(values) >= MIN_OBJECTS else None
    if parts is None:
        return None
    names, columns = parts
    kinds = list(map(exact_type, columns))
    unclear = [column for column, each in zip(columns, kinds, strict=True) if each not in UNCHANGING]
    if unclear and not are_apart(unclear):
        return None
    fields = [encode_column(column, each, depth=depth + 1) for column, each in zip(columns, kinds, strict=True)]
    column_kind, head = _head(kind, names)
    return framed(column_kind, head, *fields)


def _taken_apart(values: Sequence[Any], kind: type) -> tuple[_Names, list[Sequence[Any]]] | None:
    """The names of the fields, each None for unnamed rows, and their columns; None: the values must be pickled."""
    if kind is dict:
        # Parsed JSON: the decoded dicts share their keys, so the next step is faster.  Dicts made from a program's
        # literals share them already: a pickle writes each key once, and takes two thirds of the time.
        first = values[0]
        if next(iter(first), None) is next(iter(values[-1]), None) or _can_change(list(first.values())):
            return None
        return parts_of_dicts(values, are_keys_checked=True)
    if kind is Row:
        parts = parts_of(values)
        if parts is None:
            return None
        names, records = parts
        num_fields = len(records[0])
        if not 0 < num_fields <= MAX_FIELDS or (names is not None and list(map(type, names)).count(str) != num_fields):
            return None
        return names or (None,) * num_fields, list(zip(*records, strict=True))
    flat_class = flat_class_of(kind)
    return None if flat_class is None else flat_class.take_apart(values)


def _head(kind: Any, names: _Names) -> tuple[int, bytes]:
    """The kind of column for records of a class, rows or dicts, and the bytes in front of their fields."""
    if kind is dict or kind is Row:
        return (Kind.DICTS if kind is dict else Kind.ROWS), FIELDS.pack(len(names)) + encode_column(names, depth=1)
    head = _class_head(kind, names)
    return Kind.OBJECTS, HEAD_SIZE.pack(len(head)) + head


@lru_cache(MAX_HEADS)
def _class_head(kind: type, names: _Names) -> bytes:
    return FIELDS.pack(len(names)) + encode_column(names) + class_reference(kind)


# ---------------------------------------------------------------- whether a mutable object occurs twice


def are_apart(columns: Sequence[Sequence[Any]]) -> bool:
    """Whether no mutable object occurs twice in these columns, and all of them could be looked into."""
    return _Mutables().are_apart(columns, 0)


def _can_change(column: Sequence[Any]) -> bool:
    """Whether a value may be mutable, or hold a mutable object, as a tuple may."""
    return not all(map(_never_changes, set(map(type, column))))


def _never_changes(kind: type) -> bool:
    """Whether values of exactly this type are immutable, or unique in their process like members of an enum."""
    return kind in UNCHANGING or isinstance(kind, EnumMeta)


class _Mutables:
    """Looks for mutable objects that occur twice."""

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._num_met = 0

    def are_apart(self, columns: Sequence[Sequence[Any]], depth: int) -> bool:
        return all(self._is_apart(column, depth) for column in columns)

    def _is_apart(self, values: Sequence[Any], depth: int) -> bool:
        kinds = set(map(type, values))
        if UNCHANGING.issuperset(kinds):
            return True
        for kind in kinds:
            if not _never_changes(kind):
                part = values if len(kinds) == 1 else [value for value in values if type(value) is kind]
                if depth >= _MAX_DEPTH or not self._is_kind_apart(kind, part, depth + 1):
                    return False
        return True

    def _is_kind_apart(self, kind: type, values: Sequence[Any], depth: int) -> bool:
        if kind in (tuple, frozenset):
            return self._is_apart(list(chain.from_iterable(values)), depth)
        if kind in (list, set, Row):
            return self._are_new(values) and self._is_apart(list(chain.from_iterable(values)), depth)
        if kind is dict:
            parts = [list(chain.from_iterable(values)), list(chain.from_iterable(map(dict.values, values)))]
            return self._are_new(values) and self.are_apart(parts, depth)
        flat_class = flat_class_of(kind)
        if flat_class is None or not (flat_class.is_frozen or self._are_new(values)):
            return False
        taken = flat_class.take_apart(values)
        return taken is not None and self.are_apart(taken[1], depth)

    def _are_new(self, values: Sequence[Any]) -> bool:
        self._ids.update(map(id, values))
        self._num_met += len(values)
        return len(self._ids) == self._num_met


# ---------------------------------------------------------------- columns of records


class CodeWriter(Protocol):
    """The sender's view of the dictionary of one channel.

    One implementer: ``ChannelCodes`` stands on a floor above.
    """

    def try_encode(self, column: CodedColumn) -> bytes | None:
        """Encode a column as codes, with the texts that the channel does not know; None if its codes belong to another
        dictionary.
        """


def table_parts(table: Columns, codes: CodeWriter | None = None) -> list[bytes]:
    """The bytes of at least one record as one column, in parts to be joined.

    ``codes``: the dictionary of the channel; None: codes are sent as their texts.

    Raises:
        SerdeError: a value cannot be pickled, or a row has too many fields.
    """
    if len(table.fields) > MAX_FIELDS:
        if table.shape in (Shape.TUPLE, Shape.OBJECT):
            return [encode_column(table.to_list())]
        raise SerdeError(f"rows of {len(table.fields)} fields, at most {MAX_FIELDS} can be sent")
    fields = list(map(_FieldEncoder(codes).visit, table.fields))
    if table.shape is Shape.SCALAR:
        return fields
    if table.shape is Shape.KEYED:
        # ``flowlet.io.record_writer`` prevents it.
        raise SerdeError("records with separate keys cannot be sent as columns")
    if table.shape is Shape.TUPLE:
        kind, head = Kind.TUPLES, FIELDS.pack(len(fields))
    else:
        kind, head = _head(Row if table.shape is Shape.ROW else table.record_type, table.field_names)
    return [header(kind, head, *fields), head, *fields]


class _FieldEncoder(_NarrowedEncoder):
    """Encodes one field.

    Args:
        codes: as in ``table_parts``.
    """

    __slots__ = ("_codes",)

    def __init__(self, codes: CodeWriter | None) -> None:
        self._codes = codes

    def visit_any(self, column: Column) -> bytes:
        return encode_column(column.as_list(), depth=_FIELD_DEPTH)

    def visit_coded(self, column: CodedColumn) -> bytes:
        coded = None if self._codes is None else self._codes.try_encode(column)
        return self.visit_any(column) if coded is None else coded

    def visit_array(self, column: ArrayColumn) -> bytes:
        array = column.array
        if array.dtype == _INT64:
            return encode_int64(array)
        if array.dtype == np.float64:
            return framed(Kind.FLOAT64, raw(array, NUMBERS[Kind.FLOAT64]))
        if array.dtype == np.bool_:
            return framed(Kind.BOOL, raw(array, array.dtype))
        kind = _ARRAY_KINDS[array.dtype]
        return framed(Kind.ARRAY, bytes((kind,)), raw(array, ARRAY_TYPES[kind]))

    def visit_constant(self, column: ConstantColumn) -> bytes:
        one = encode_column([column.value], depth=_CONSTANT_DEPTH)
        return one if len(column) == 1 else framed(Kind.CONSTANT, one)

    def visit_list(self, column: ListColumn) -> bytes:
        return encode_texts(column.values) if column.value_type is str else self.visit_any(column)

    def visit_short_texts(self, column: ShortTextColumn) -> bytes:
        return encode_short_texts(column.packed16)

    def visit_arrow(self, column: ArrowColumn) -> bytes:
        from flowlet.serde.arrow_serializer import encode_arrow_array  # here, because it imports pyarrow

        return framed(Kind.ARROW, encode_arrow_array(column.array))
