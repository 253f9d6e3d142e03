"""Encodes lists of values as columns of bytes, and decodes them; also arrays of 64-bit integers, and short ASCII texts,
each padded to the same number of bytes.

Hot path.  The exact types of the values are looked at once per chunk and decide the kind of column; C code does the
rest.  One core, chunks of 2,000, encode + decode per value: str 20 + 17 ns, int 17 + 8 ns; (str, int) tuples 75 + 42 ns
(``bench wordcount``).

Side:       pure.
Format:     ``column_format``.
Raises:     decoding corrupt bytes raises SerdeError, ValueError or struct.error; ``ElementDeserializer`` turns all into
            SerdeError.
Invariants: values come back with exactly the types, signs, NaN bits and (lone) surrogates that they went in with,
            whatever the kind of column.  Identity within a record is kept.  Two records never share a mutable object
            afterwards, unless the whole list is one PICKLE.
"""

import itertools
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowlet.columns import ArrayColumn, Column, ColumnVisitor, ConstantColumn, OffsetColumn, ShortTextColumn, narrowed
from flowlet.columns.short_text_column import PACKED16_BYTES, Packed16Array
from flowlet.columns.table import exact_type, try_transpose
from flowlet.errors import SerdeError
from flowlet.records import PickledRecord
from flowlet.serde.column_format import (
    BASE,
    ENCODING,
    FIELDS,
    NUMBERS,
    OFFSET_TYPES,
    SURROGATES,
    Kind,
    check_end,
    check_length,
    column_at,
    constant_at,
    framed,
    num_fields_of,
    raw,
)
from flowlet.serde.element_limits import MAX_FIELDS
from flowlet.serde.object_columns import (
    are_apart,
    can_change,
    decode_objects,
    decode_rows,
    try_encode_objects,
)
from flowlet.serde.pickles.record_pickle import (
    PickleWithClasses,
    dumps_record,
    dumps_value,
    loads_all,
    loads_record,
    loads_value,
)

INTS: Final = frozenset({*NUMBERS, Kind.OFFSETS} - {Kind.FLOAT64})
_KINDS: Final = {1: Kind.INT8, 2: Kind.INT16, 4: Kind.INT32}
_INT64: Final = np.iinfo(np.int64)


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


def encode_narrowed(column: Column) -> bytes:
    """Encode the result of ``narrowed``."""
    return column.accept(_NARROWED_ENCODER)


def num_ints(kind: int, payload: memoryview) -> int:
    """How many integers a column has whose kind is in ``INTS``."""
    if kind != Kind.OFFSETS:
        return len(payload) // NUMBERS[kind].itemsize
    return (len(payload) - BASE.size) // max(1, int(BASE.unpack_from(payload)[1]))


def decode_ints(kind: int, payload: memoryview) -> NDArray[np.int64]:
    """Decode a column whose kind is in ``INTS``, into a new array."""
    if kind != Kind.OFFSETS:
        return np.frombuffer(payload, NUMBERS[kind]).astype(np.int64)
    base, size = BASE.unpack_from(payload)
    if size not in OFFSET_TYPES:
        raise SerdeError(f"offsets of {size} bytes")
    offsets: NDArray[Any] = np.frombuffer(payload[BASE.size :], OFFSET_TYPES[size])
    if base > _INT64.max - (1 << 8 * size) and base + int(offsets.max(initial=0)) > _INT64.max:
        raise SerdeError(f"an offset above {base} is beyond 64 bits")
    values = offsets.astype(np.int64)
    values += base
    return values


_BLOCK_TEXTS = 64


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


def decode_short_texts(payload: memoryview, num_texts: int) -> ShortTextColumn:
    """Decode ``num_texts`` texts.  Raises SerdeError: the column is corrupt."""
    width = payload[0] if payload else 0
    if not 0 < width <= PACKED16_BYTES:
        raise SerdeError(f"short texts of {width} bytes each, they have 1 to {PACKED16_BYTES}")
    # Checked before each text takes 16 bytes of memory.
    if len(payload) - 1 != num_texts * width:
        raise SerdeError(
            f"{len(payload) - 1} bytes of short texts, {num_texts} of {width} bytes each have {num_texts * width}"
        )
    cells = np.frombuffer(payload[1:], np.uint8).reshape(-1, width)
    if cells.max(initial=0) > 0x7F:
        raise SerdeError("short texts that are not ASCII")
    packed16 = np.zeros((len(cells), PACKED16_BYTES), np.uint8)
    packed16[:, :width] = cells
    return ShortTextColumn(packed16.view(np.uint64))


MAX_TUPLE_DEPTH: Final = 4  # of tuples in tuples; deeper ones are pickled
# The innermost tuple may hold a column of sizes, and that a constant column.
_MAX_COLUMN_DEPTH: Final = MAX_TUPLE_DEPTH + 2
# Up to this many tuples are packed with msgpack: it writes a chunk of one record in 2 us instead of 5, and reads it in
# 2 instead of 8, which counts when every record travels alone.  From about 32 records on, columns are faster.
_MAX_PACKED: Final = 16
_MAY_SHARE: Final = frozenset(
    {Kind.PICKLE, Kind.TUPLES, Kind.OBJECTS, Kind.DICTS, Kind.ROWS}
)  # kinds that may hold mutable objects
_PACKABLE: Final = frozenset({int, str, float, bool, bytes, type(None)})  # msgpack keeps their exact values and types
_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode
# With fewer integers, finding and making a narrower type (two passes) is not worth it.  Not measured closely.
_MIN_NARROWED: Final = 16


def encode_column(values: Sequence[Any], *, depth: int = 0) -> bytes:
    """Encode values as one column.  Raises SerdeError: a value cannot be pickled; the message names its type."""
    return encode_of_type(values, exact_type(values), depth=depth)


def encode_of_type(values: Sequence[Any], kind: type | None, *, depth: int = 0) -> bytes:
    """As ``encode_column``, for values whose exact type is ``kind``; None: they have several types, or there are none.

    Raises:
        SerdeError: a value cannot be pickled; the message names its type.
    """
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
        return _constant(values) or framed(Kind.BYTES, encode_column(list(map(len, values))), b"".join(values))
    if kind is type(None) and len(values) > 1:
        return framed(Kind.CONSTANT, _encode_pickle([None]))
    if kind is PickledRecord or (kind is None and not depth and PickledRecord in map(type, values)):
        return _encode_pickles(values)
    if kind is not None and depth < MAX_TUPLE_DEPTH:
        return try_encode_objects(values, kind, encode_of_type, depth) or _encode_pickle(values)
    return _encode_pickle(values)


def decode_column(view: memoryview, offset: int, num_values: int, *, depth: int = 0) -> tuple[Sequence[Any], int]:
    """Decode the column at ``offset``; return its ``num_values`` values and the offset after it."""
    if depth > _MAX_COLUMN_DEPTH:
        raise SerdeError(f"columns in more than {_MAX_COLUMN_DEPTH} columns")
    kind, payload, end = column_at(view, offset)
    values = decode_payload(kind, payload, num_values, depth)
    check_length(kind, values, num_values)
    return values, end


def _constant(values: Sequence[Any]) -> bytes | None:
    """A CONSTANT column if all values are equal.

    Only for immutable types in which equal values cannot be told apart.
    """
    first = values[0]
    # The last value shows at once for most columns that they are not constant.
    if len(values) > 1 and values[-1] == first and values.count(first) == len(values):
        return framed(Kind.CONSTANT, encode_column([first]))
    return None


def _encode_ints(values: Sequence[int]) -> bytes:
    try:
        packed = struct.pack(f"<{len(values)}q", *values)
    except struct.error:  # beyond 64 bits
        return _encode_pickle(values)
    if len(values) < _MIN_NARROWED:
        return framed(Kind.INT64, packed)
    return encode_narrowed(narrowed(np.frombuffer(packed, NUMBERS[Kind.INT64])))


def encode_texts(values: Sequence[str]) -> bytes:
    """Encode values that are all exactly ``str``; at least one."""
    constant = _constant(values)
    if constant is not None:
        return constant
    joined = "\0".join(values)
    if joined.count("\0") == len(values) - 1:
        return framed(Kind.TEXT, joined.encode(ENCODING, SURROGATES))
    return framed(Kind.TEXT_SIZES, encode_column(list(map(len, values))), "".join(values).encode(ENCODING, SURROGATES))


def _encode_tuples(values: Sequence[tuple[Any, ...]], depth: int) -> bytes:
    columns = try_transpose(values)
    if columns is None or len(columns) > MAX_FIELDS:
        return _encode_pickle(values)
    fields = [encode_column(column, depth=depth + 1) for column in columns]
    # Two fields of a tuple may hold the same mutable object: columns would make two of it, a pickle keeps one.
    unclear = [
        column for column, field in zip(columns, fields, strict=True) if field[0] in _MAY_SHARE and can_change(column)
    ]
    if len(unclear) > 1 and not are_apart(unclear):
        return _encode_pickle(values)
    return framed(Kind.TUPLES, FIELDS.pack(len(columns)), *fields)


def _try_pack_tuples(values: Sequence[tuple[Any, ...]]) -> bytes | None:
    if not _PACKABLE.issuperset(map(type, itertools.chain.from_iterable(values))):
        return None
    try:
        return framed(Kind.PACKED, _pack(values))
    except (OverflowError, UnicodeEncodeError):  # an int beyond 64 bits, a lone surrogate
        return None


def _unpack_tuples(payload: memoryview) -> list[tuple[Any, ...]]:
    try:
        return _unpack(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SerdeError(f"packed tuples cannot be read: {error}") from error


def _encode_pickle(values: Sequence[Any]) -> bytes:
    try:
        return framed(Kind.PICKLE, dumps_value(list(values)))
    except SerdeError as error:
        types = ", ".join(sorted({type(value).__name__ for value in values}))
        raise SerdeError(
            f"records with values of type {types} cannot be pickled to be sent: {error.__cause__ or error}"
        ) from error


def _encode_pickles(values: Sequence[Any]) -> bytes:
    """Encode records of which some were pickled when they were emitted; the others are pickled here."""
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


def decode_payload(kind: int, payload: memoryview, num_values: int, depth: int) -> Sequence[Any]:
    """Decode a column whose kind and payload are known; the caller checks the number of values."""
    if kind == Kind.TEXT:
        # The limit on splits keeps a corrupt payload from making many more texts than there are records.
        return str(payload, ENCODING, SURROGATES).split("\0", num_values)
    if kind == Kind.CONSTANT:
        (value,), end = decode_column(payload, 0, 1, depth=depth + 1)
        check_end(end, payload)
        return [value] * num_values
    if kind == Kind.FLOAT64:
        values: list[Any] = np.frombuffer(payload, NUMBERS[Kind.FLOAT64]).tolist()
        return values
    if kind in INTS:
        ints: list[Any] = decode_ints(kind, payload).tolist()
        return ints
    if kind == Kind.TUPLES:
        return _decode_tuples(payload, num_values, depth)
    if kind == Kind.PICKLE:
        return _decode_pickle(payload)
    if kind == Kind.PACKED:
        return _unpack_tuples(payload)
    if kind in (Kind.OBJECTS, Kind.DICTS):
        return decode_objects(kind, payload, num_values, decode_column, depth)
    if kind == Kind.ROWS:
        return decode_rows(payload, num_values, decode_column, depth)
    if kind == Kind.PICKLES and not depth:
        return _decode_pickles(payload, num_values)
    if kind == Kind.BOOL:
        if not {0, 1}.issuperset(payload):
            raise SerdeError("a column of truth values holds other bytes than 0 and 1")
        return list(map(bool, payload))
    if kind in (Kind.TEXT_SIZES, Kind.BYTES):
        sizes, end = decode_sizes(payload, 0, num_values)
        joined = bytes(payload[end:]) if kind == Kind.BYTES else str(payload[end:], ENCODING, SURROGATES)
        return _split_by_sizes(joined, sizes)
    raise SerdeError(f"unknown kind of column {kind}")


def _decode_tuples(payload: memoryview, num_values: int, depth: int) -> list[tuple[Any, ...]]:
    num_fields = num_fields_of(payload)
    columns = []
    end = FIELDS.size
    for _ in range(num_fields):
        column, end = decode_column(payload, end, num_values, depth=depth + 1)
        columns.append(column)
    check_end(end, payload)
    return list(zip(*columns, strict=True)) if columns else [()] * num_values


def _decode_pickle(payload: memoryview) -> list[Any]:
    try:
        values = loads_value(payload)
    except SerdeError:
        raise
    except Exception as error:
        raise SerdeError(f"a pickled column cannot be read: {type(error).__name__}: {error}") from error
    if type(values) is not list:
        raise SerdeError(f"a pickled column holds a {type(values).__name__} instead of a list")
    return values


def _decode_pickles(payload: memoryview, num_values: int) -> list[Any]:
    num_tables = num_fields_of(payload)
    tables: Sequence[Any] = ()
    places: Sequence[Any] = ()
    end = FIELDS.size
    if num_tables:
        tables, end = decode_column(payload, end, num_tables, depth=1)
        places, end = decode_column(payload, end, num_values, depth=1)
        if set(map(type, tables)) != {bytes} or not all(
            type(place) is int and 0 <= place <= num_tables for place in places
        ):
            raise SerdeError(f"records of {num_tables} class tables that are not there")
    sizes, end = decode_sizes(payload, end, num_values)
    pickles = _split_by_sizes(payload[end:], sizes)
    try:
        return loads_all(pickles, tables, places)
    except SerdeError:
        raise
    except Exception as error:
        raise SerdeError(f"a pickled record cannot be read: {type(error).__name__}: {error}") from error


def decode_sizes(view: memoryview, offset: int, num_values: int) -> tuple[list[int], int]:
    """Decode a column of sizes: integers from 0, and nothing else."""
    kind, payload, is_constant, end = constant_at(view, offset)
    if kind not in INTS or num_ints(kind, payload) != (1 if is_constant else num_values):
        raise SerdeError(f"{num_values} sizes in a column of kind {kind} with {len(payload)} bytes")
    sizes: list[int] = decode_ints(kind, payload).tolist()
    if min(sizes, default=0) < 0:
        raise SerdeError(f"a size of {min(sizes)}")
    return sizes * num_values if is_constant else sizes, end


def decode_texts(view: memoryview, offset: int, num_texts: int) -> tuple[Sequence[str], int]:
    """Decode a column of texts, and nothing else."""
    kind, payload, is_constant, end = constant_at(view, offset)
    if kind not in (Kind.TEXT, Kind.TEXT_SIZES):
        raise SerdeError(f"other values than texts, in a column of kind {kind}")
    texts = decode_payload(kind, payload, 1 if is_constant else num_texts, 0)
    check_length(kind, texts, 1 if is_constant else num_texts)
    return list(texts) * num_texts if is_constant else texts, end


def _split_by_sizes(joined: Any, sizes: Sequence[Any]) -> list[Any]:
    ends = list(itertools.accumulate(sizes))
    if (ends[-1] if ends else 0) != len(joined):
        raise SerdeError(f"sizes of a column do not add up to the {len(joined)} that are there")
    return [joined[end - size : end] for size, end in zip(sizes, ends, strict=True)]
