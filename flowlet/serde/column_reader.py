"""Decodes columns of bytes: as lists of values, and as columns of records, which hold Python objects only where no
array can.  ``ChannelDictionary``: the texts that the dictionary codes of one channel stand for.

Hot path: C code per column.

Side:       pure.
Format:     ``column_writer``.
Rules:      a sender numbers texts from 0 and sends each text once, in front of the first codes that need it.  When its
            dictionary is full, it starts a new generation with an empty one.  A column that refers to another
            generation, or to more or fewer texts than were sent, is corrupt.
Invariants: the decoded columns own their memory and stand for exactly the values that were sent.  Every decoded code
            has a text in its table; tables only grow, and a new generation gets a new table.
Units:      codes are u16; text sizes in characters.
Absent:     the sender's side of a dictionary, ``flowlet/io/key_dictionary.py``: it must also know the channel of each
            text.
Raises:     decoding corrupt bytes raises SerdeError, ValueError or struct.error; ``ElementDeserializer`` turns all into
            SerdeError.
"""

import itertools
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    Columns,
    ConstantColumn,
    ListColumn,
    NameTable,
    Shape,
    ShortTextColumn,
)
from flowlet.columns.short_text_column import PACKED16_BYTES
from flowlet.common.types import rows_of
from flowlet.errors import SerdeError
from flowlet.serde.column_writer import (
    ARRAY_TYPES,
    BASE,
    CODED_HEADER,
    CODES,
    ENCODING,
    FIELDS,
    HEAD_SIZE,
    MAX_HEADS,
    MAX_TUPLE_DEPTH,
    NUMBERS,
    OFFSET_TYPES,
    SURROGATES,
    Kind,
    check_end,
    check_length,
    column_at,
    constant_at,
    encode_column,
    num_fields_of,
)
from flowlet.serde.flat_classes import Maker, maker_of
from flowlet.serde.pickles.record_pickle import (
    class_of,
    is_of_another_program,
    loads_all,
    loads_value,
    of_running_program,
)
from netstack.late import dataclass

MAX_TEXTS: Final = 1 << 16  # codes have 16 bits
MAX_CHARACTERS: Final = 16 << 20  # four times the limit of our senders
_INTS: Final = frozenset({*NUMBERS, Kind.OFFSETS} - {Kind.FLOAT64})
_ARRAYS: Final = _INTS | {Kind.FLOAT64, Kind.BOOL}
_INT64: Final = np.iinfo(np.int64)
# The innermost tuple may hold a column of sizes, and the sizes a constant column.
_MAX_COLUMN_DEPTH: Final = MAX_TUPLE_DEPTH + 2
_FIELD_DEPTH: Final = 1
_unpack: Final = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode
_DEFINITION: Final = struct.Struct(">II")
# Kinds of records that are decoded as a list.
_RECORDS: Final = frozenset({Kind.PICKLE, Kind.PACKED, Kind.BYTES, Kind.PICKLES})
# Kinds of fields that are decoded as a list with one exact type.
_LISTS: Final = {Kind.TEXT: str, Kind.TEXT_SIZES: str, Kind.BYTES: bytes, Kind.TUPLES: tuple}
_NATIVE_TYPES: Final = tuple(dtype.newbyteorder("=") for dtype in ARRAY_TYPES)


# ---------------------------------------------------------------- lists of values


def decode_column(view: memoryview, offset: int, num_values: int, *, depth: int = 0) -> tuple[Sequence[Any], int]:
    """Decode the column at ``offset``; return its ``num_values`` values and the offset after it."""
    if depth > _MAX_COLUMN_DEPTH:
        raise SerdeError(f"columns in more than {_MAX_COLUMN_DEPTH} columns")
    kind, payload, end = column_at(view, offset)
    values = _values(kind, payload, num_values, depth)
    check_length(kind, values, num_values)
    return values, end


def _values(kind: int, payload: memoryview, num_values: int, depth: int) -> Sequence[Any]:
    """The values of a column; the caller checks their number."""
    if kind == Kind.TEXT:
        # The limit on splits keeps a corrupt payload from making many more texts than there are records.
        return str(payload, ENCODING, SURROGATES).split("\0", num_values)
    if kind == Kind.CONSTANT:
        return [_constant(payload, depth)] * num_values
    if kind in _ARRAYS:
        numbers: list[Any] = _array(kind, payload).tolist()
        return numbers
    if kind == Kind.TUPLES:
        columns = _fields(payload, FIELDS.size, num_fields_of(payload), num_values, depth)
        return list(zip(*columns, strict=True)) if columns else [()] * num_values
    if kind == Kind.PICKLE:
        return _unpickled(payload)
    if kind == Kind.PACKED:
        return _unpack_tuples(payload)
    if kind in (Kind.OBJECTS, Kind.DICTS):
        head = _head_of_objects(kind, payload, depth)
        return head.make(_fields(payload, head.start, len(head.names), num_values, depth))
    if kind == Kind.ROWS:
        names, start = _names_of_rows(payload, depth)
        records = zip(*_fields(payload, start, num_fields_of(payload), num_values, depth), strict=True)
        return rows_of(names, records)
    if kind == Kind.PICKLES and not depth:
        return _unpickled_each(payload, num_values)
    if kind in (Kind.TEXT_SIZES, Kind.BYTES):
        sizes, end = _sizes(payload, 0, num_values)
        joined = bytes(payload[end:]) if kind == Kind.BYTES else str(payload[end:], ENCODING, SURROGATES)
        return _split_by_sizes(joined, sizes)
    raise SerdeError(f"unknown kind of column {kind}")


def _constant(payload: memoryview, depth: int) -> Any:
    (value,), end = decode_column(payload, 0, 1, depth=depth + 1)
    check_end(end, payload)
    return value


def _fields(payload: memoryview, start: int, num_fields: int, num_values: int, depth: int) -> list[Sequence[Any]]:
    columns = []
    for _ in range(num_fields):
        column, start = decode_column(payload, start, num_values, depth=depth + 1)
        columns.append(column)
    check_end(start, payload)
    return columns


def _unpack_tuples(payload: memoryview) -> list[tuple[Any, ...]]:
    try:
        return _unpack(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SerdeError(f"packed tuples cannot be read: {error}") from error


def _unpickled(payload: memoryview) -> list[Any]:
    values = _loaded("column", loads_value, payload)
    if type(values) is not list:
        raise SerdeError(f"a pickled column holds a {type(values).__name__} instead of a list")
    return values


def _loaded(what: str, load: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return load(*arguments)
    except SerdeError:
        raise
    except Exception as error:
        raise SerdeError(f"a pickled {what} cannot be read: {type(error).__name__}: {error}") from error


def _unpickled_each(payload: memoryview, num_values: int) -> list[Any]:
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
    sizes, end = _sizes(payload, end, num_values)
    found: list[Any] = _loaded("record", loads_all, _split_by_sizes(payload[end:], sizes), tables, places)
    return found


def _sizes(view: memoryview, offset: int, num_values: int) -> tuple[list[int], int]:
    """Decode a column of sizes; any values but integers from 0 on are an error."""
    kind, payload, is_constant, end = constant_at(view, offset)
    if kind not in _INTS or _num_ints(kind, payload) != (1 if is_constant else num_values):
        raise SerdeError(f"{num_values} sizes in a column of kind {kind} with {len(payload)} bytes")
    sizes: list[int] = _array(kind, payload).tolist()
    if min(sizes, default=0) < 0:
        raise SerdeError(f"a size of {min(sizes)}")
    return sizes * num_values if is_constant else sizes, end


def _split_by_sizes(joined: Any, sizes: Sequence[Any]) -> list[Any]:
    ends = list(itertools.accumulate(sizes))
    if (ends[-1] if ends else 0) != len(joined):
        raise SerdeError(f"sizes of a column do not add up to the {len(joined)} that are there")
    return [joined[end - size : end] for size, end in zip(sizes, ends, strict=True)]


# ---------------------------------------------------------------- arrays


def _num_ints(kind: int, payload: memoryview) -> int:
    """How many integers a column has whose kind is in ``_INTS``."""
    if kind != Kind.OFFSETS:
        return len(payload) // NUMBERS[kind].itemsize
    return (len(payload) - BASE.size) // max(1, int(BASE.unpack_from(payload)[1]))


def _array(kind: int, payload: memoryview) -> NDArray[Any]:
    """Decode a column whose kind is in ``_ARRAYS``, into a new array; kinds in ``_INTS`` give integers of 64 bits."""
    if kind == Kind.BOOL:
        truth_values = np.frombuffer(payload, np.uint8)
        if truth_values.max(initial=0) > 1:
            raise SerdeError("a column of truth values holds other bytes than 0 and 1")
        return truth_values.astype(np.bool_)
    if kind != Kind.OFFSETS:
        return np.frombuffer(payload, NUMBERS[kind]).astype(np.float64 if kind == Kind.FLOAT64 else np.int64)
    base, size = BASE.unpack_from(payload)
    if size not in OFFSET_TYPES:
        raise SerdeError(f"offsets of {size} bytes")
    offsets: NDArray[Any] = np.frombuffer(payload[BASE.size :], OFFSET_TYPES[size])
    if base > _INT64.max - (1 << 8 * size) and base + int(offsets.max(initial=0)) > _INT64.max:
        raise SerdeError(f"an offset above {base} is beyond 64 bits")
    values = offsets.astype(np.int64)
    values += base
    return values


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


# ---------------------------------------------------------------- names and classes of objects and rows


@dataclass(frozen=True, slots=True)
class _ObjectsHead:
    """The head of OBJECTS or DICTS: field names, class (``dict`` for DICTS), the offset of the first field, and the
    maker.
    """

    names: tuple[str, ...]
    kind: Any
    start: int
    maker: Maker

    def make(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Make the objects from a column for each field.  Raises SerdeError: the class refuses the values."""
        try:
            return self.maker(columns)
        except Exception as error:  # a Struct checks its values
            raise SerdeError(f"an object cannot be made of its fields: {type(error).__name__}: {error}") from error


def _head_of_objects(kind: int, payload: memoryview, depth: int) -> _ObjectsHead:
    """Decode the head of OBJECTS or DICTS.

    Objects that another program wrote are made of its classes first, and then of the running program's classes.
    """
    if kind == Kind.DICTS:
        names, start = _names(payload, depth)
        return _ObjectsHead(names, dict, start, maker_of(dict, names))
    start = HEAD_SIZE.size + HEAD_SIZE.unpack_from(payload)[0]
    if start > len(payload):
        raise SerdeError(f"the head of a column of objects ends {start - len(payload)} bytes behind it")
    names, reference = _read_head(bytes(payload[HEAD_SIZE.size : start]), depth)
    cls = class_of(reference)
    maker = maker_of(cls, names)
    if is_of_another_program():
        return _ObjectsHead(names, cls, start, lambda columns: of_running_program(maker(columns)))
    return _ObjectsHead(names, cls, start, maker)


@lru_cache(MAX_HEADS)
def _read_head(head: bytes, depth: int) -> tuple[tuple[str, ...], bytes]:
    names, end = _names(memoryview(head), depth)
    return names, head[end:]


def _names(payload: memoryview, depth: int) -> tuple[tuple[str, ...], int]:
    """The names of the fields, and the offset after them."""
    names, end = _names_of_rows(payload, depth)
    if names is None:
        raise SerdeError("objects whose fields have no names")
    return names, end


def _names_of_rows(payload: memoryview, depth: int) -> tuple[tuple[str, ...] | None, int]:
    """The names of the fields, None for unnamed rows, and the offset after them."""
    num_fields = num_fields_of(payload)
    names, end = decode_column(payload, FIELDS.size, num_fields, depth=depth + 1)
    if num_fields and list(names) == [None] * num_fields:
        return None, end
    if not num_fields or list(map(type, names)).count(str) != num_fields:
        raise SerdeError(f"records of {num_fields} fields with other names than texts")
    return tuple(names), end


# ---------------------------------------------------------------- codes


class ChannelDictionary:
    """The dictionary of one receiver; initially empty.  Threading: one thread."""

    __slots__ = ("_generation", "_num_characters", "_table")

    def __init__(self) -> None:
        self._generation = 0
        self._num_characters = 0
        self._table = NameTable()

    def __repr__(self) -> str:
        return f"<ChannelDictionary, generation {self._generation}: {len(self._table)} texts>"

    def read(self, payload: memoryview, num_values: int) -> CodedColumn:
        """Decode a column of codes, and add the texts that precede them.

        Raises:
            SerdeError, ValueError, struct.error: the column is corrupt, or not the next one of its channel.
        """
        generation, num_known, num_new = CODED_HEADER.unpack_from(payload)
        start = (
            self._learn(payload, CODED_HEADER.size, generation, num_known, num_new) if num_new else CODED_HEADER.size
        )
        if generation != self._generation or num_known + num_new != len(self._table):
            raise SerdeError(f"codes for {num_known} texts of generation {generation}, known are {self!r}")
        codes = np.frombuffer(payload[start:], CODES).astype(np.uint16)
        if len(codes) != num_values:
            raise SerdeError(f"{len(codes)} codes in a chunk of {num_values} records")
        if num_values and int(codes.max()) >= len(self._table):
            raise SerdeError(f"code {int(codes.max())} of {self!r}")
        return CodedColumn(codes, self._table)

    def define(self, payload: memoryview) -> None:
        """Replace the whole dictionary by a definition."""
        generation, num_texts = _DEFINITION.unpack_from(payload)
        check_end(self._learn(payload, _DEFINITION.size, generation, 0, num_texts), payload)

    def definition(self) -> bytes | None:
        """The bytes from which ``define`` makes an equal dictionary; None while this one is empty."""
        texts = self._table.names
        return _DEFINITION.pack(self._generation, len(texts)) + encode_column(texts) if texts else None

    def _learn(self, payload: memoryview, offset: int, generation: int, num_known: int, num_new: int) -> int:
        if num_known and (generation != self._generation or num_known != len(self._table)):
            raise SerdeError(f"texts that follow the first {num_known} of generation {generation}, known are {self!r}")
        if num_known + num_new > MAX_TEXTS:
            raise SerdeError(f"a dictionary of {num_known + num_new} texts, at most {MAX_TEXTS} can be told apart")
        texts, end = _texts(payload, offset, num_new)
        if not num_known:
            self._generation, self._table, self._num_characters = generation, NameTable(), 0
        self._num_characters += sum(map(len, texts))
        if self._num_characters > MAX_CHARACTERS:
            raise SerdeError(f"a dictionary of {self._num_characters} characters, at most {MAX_CHARACTERS} are kept")
        self._table.names += texts
        return end


def _texts(view: memoryview, offset: int, num_texts: int) -> tuple[Sequence[str], int]:
    """Decode a column of texts; values of any other kind are an error."""
    kind, payload, is_constant, end = constant_at(view, offset)
    if kind not in (Kind.TEXT, Kind.TEXT_SIZES):
        raise SerdeError(f"other values than texts, in a column of kind {kind}")
    texts = _values(kind, payload, 1 if is_constant else num_texts, 0)
    check_length(kind, texts, 1 if is_constant else num_texts)
    return list(texts) * num_texts if is_constant else texts, end


# ---------------------------------------------------------------- columns of records


def decode_records(
    view: memoryview, offset: int, num_records: int, dictionary: ChannelDictionary
) -> tuple[Columns | list[Any], int]:
    """Decode the records at ``offset``, as columns if possible, else as a list; return them and the offset after them.

    ``dictionary``: of the channel; learns the texts that come with codes.
    """
    kind, payload, end = column_at(view, offset)
    if kind in _RECORDS:
        values = _values(kind, payload, num_records, 0)
        check_length(kind, values, num_records)
        return list(values), end
    if kind == Kind.TUPLES:
        num_fields = num_fields_of(payload)
        if not num_fields:
            check_end(FIELDS.size, payload)
            return [()] * num_records, end
        fields, key_position = _columns(payload, FIELDS.size, num_fields, num_records, dictionary)
        return Columns(num_records, fields, Shape.TUPLE, key_position=key_position), end
    if kind == Kind.ROWS:
        names, start = _names_of_rows(payload, 0)
        fields, key_position = _columns(payload, start, num_fields_of(payload), num_records, dictionary)
        if names is None:
            return rows_of(None, zip(*[field.to_list() for field in fields], strict=True)), end
        return Columns(num_records, fields, Shape.ROW, names, key_position), end
    if kind in (Kind.OBJECTS, Kind.DICTS):
        head = _head_of_objects(kind, payload, 0)
        fields, key_position = _columns(payload, head.start, len(head.names), num_records, dictionary)
        if kind == Kind.OBJECTS and is_of_another_program():
            # Now: the classes are known while the bytes are read.
            return head.make([field.to_list() for field in fields]), end
        return Columns(num_records, fields, Shape.OBJECT, head.names, key_position, head.kind, head.make), end
    return Columns(num_records, (_column(kind, payload, num_records, dictionary),), Shape.SCALAR), end


def decode_timestamps(view: memoryview, offset: int, num_records: int) -> tuple[NDArray[np.int64], int]:
    """Decode the timestamps at ``offset``, in milliseconds; return them and the offset after them."""
    kind, payload, is_constant, end = constant_at(view, offset)
    if kind not in _INTS:
        raise SerdeError("timestamps that are not all integers of 64 bits")
    array = _array(kind, payload)
    check_length(kind, array, 1 if is_constant else num_records)
    return np.full(num_records, array[0]) if is_constant else array, end


def _columns(
    payload: memoryview, start: int, num_fields: int, num_records: int, dictionary: ChannelDictionary
) -> tuple[tuple[Column, ...], int | None]:
    """The fields, and the position of the key: the first field in codes, for senders have dictionaries of keys only."""
    fields, kinds = [], []
    for _ in range(num_fields):
        kind, inner, start = column_at(payload, start)
        fields.append(_column(kind, inner, num_records, dictionary))
        kinds.append(kind)
    check_end(start, payload)
    return tuple(fields), kinds.index(Kind.CODED) if Kind.CODED in kinds else None


def _column(kind: int, payload: memoryview, num_values: int, dictionary: ChannelDictionary) -> Column:
    column: Column
    if kind == Kind.CODED:
        return dictionary.read(payload, num_values)
    if kind == Kind.CONSTANT:
        return ConstantColumn(_constant(payload, _FIELD_DEPTH), num_values)
    if kind == Kind.SHORT_TEXTS:
        return decode_short_texts(payload, num_values)
    if kind in _ARRAYS:
        column = ArrayColumn(_array(kind, payload))
    elif kind == Kind.ARRAY:
        if not payload or payload[0] >= len(ARRAY_TYPES):
            raise SerdeError(f"an array of unknown type {payload[0] if payload else None}")
        column = ArrayColumn(np.frombuffer(payload[1:], ARRAY_TYPES[payload[0]]).astype(_NATIVE_TYPES[payload[0]]))
    elif kind == Kind.ARROW:
        from flowlet.serde.arrow_serializer import decode_arrow_array  # here, because it imports pyarrow

        column = ArrowColumn(decode_arrow_array(payload))
    else:
        values = _values(kind, payload, num_values, _FIELD_DEPTH)
        column = ListColumn(values if isinstance(values, list) else list(values), _LISTS.get(kind))
    check_length(kind, column, num_values)
    return column
