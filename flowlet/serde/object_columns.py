"""Encodes instances of flat classes, rows, and dicts with equal keys as a column for each field, and decodes them.

Hot path: C code per column; see ``flat_classes``.

Side:       pure.
Rules:      a reader gets what it would get from pickles.  A pickle keeps two fields of a record that are the same
            mutable object one object, columns do not: so columns are made only if no mutable object occurs twice, and
            none is of a class that cannot be looked into.  That two records are the same object is not kept, as every
            record is a value of its own.
Format:     ``column_format``.
Raises:     decoding corrupt bytes raises SerdeError, ValueError or struct.error; ``ElementDeserializer`` turns all into
            SerdeError.
"""

import struct
from collections.abc import Hashable, Sequence
from enum import EnumMeta
from functools import lru_cache
from itertools import chain
from types import NoneType
from typing import Any, Final, Protocol

from flowlet.columns.column import UNCHANGING
from flowlet.columns.table import exact_type
from flowlet.common.types import Row, parts_of, rows_of, unnamed_rows_of
from flowlet.errors import SerdeError
from flowlet.serde.column_format import FIELDS, Kind, check_end, framed, num_fields_of
from flowlet.serde.element_limits import MAX_FIELDS
from flowlet.serde.flat_classes import Maker, dict_maker, flat_class_of, parts_of_dicts
from flowlet.serde.pickles.class_references import class_of, class_reference
from flowlet.serde.pickles.record_pickle import is_of_another_program, of_running_program
from netstack.late import dataclass

# Fewer objects are pickled: the headers of their columns have more bytes.  At 12 instances of six fields both ways take
# the same time.
MIN_OBJECTS: Final = 12
_MAX_DEPTH: Final = 4  # of mutable objects in mutable objects; deeper ones are pickled
_MAX_HEADS: Final = 256
_HEAD_SIZE: Final = struct.Struct(">I")


class ColumnEncoder(Hashable, Protocol):
    """``columns.encode_of_type``, passed as an argument so that the modules do not import each other."""

    def __call__(self, values: Sequence[Any], kind: type | None, *, depth: int = 0) -> bytes:
        """Encode values of exact type ``kind`` (None: several) as one column."""


class ColumnDecoder(Hashable, Protocol):
    """``columns.decode_column``, passed as an argument so that the modules do not import each other."""

    def __call__(self, view: memoryview, offset: int, num_values: int, *, depth: int = 0) -> tuple[Sequence[Any], int]:
        """Decode the column at ``offset``; return the values and the offset after it."""


def try_encode_objects(values: Sequence[Any], kind: type, encode: ColumnEncoder, depth: int) -> bytes | None:
    """Encode values of exactly one class as OBJECTS, ROWS or DICTS; None if they must be pickled.

    Raises:
        SerdeError: a value of a field cannot be pickled.
    """
    if len(values) < MIN_OBJECTS:
        return None
    if kind is dict:
        return _try_encode_dicts(values, encode, depth)
    if kind is Row:
        return _try_encode_rows(values, encode, depth)
    flat_class = flat_class_of(kind)
    parts = None if flat_class is None else flat_class.take_apart(values)
    fields = None if parts is None else _try_encode_fields(parts[1], encode, depth)
    if parts is None or fields is None:
        return None
    head = _head(kind, parts[0], encode)
    return framed(Kind.OBJECTS, _HEAD_SIZE.pack(len(head)), head, *fields)


def decode_objects(kind: int, payload: memoryview, num_values: int, decode: ColumnDecoder, depth: int) -> list[Any]:
    """Decode a column of OBJECTS or DICTS.

    Raises:
        SerdeError, ValueError, struct.error: it is corrupt, or the class is another one here.
    """
    head = head_of_objects(kind, payload, decode, depth)
    return head.make(_fields(payload, head.start, len(head.names), num_values, decode, depth))


@dataclass(frozen=True, slots=True)
class ObjectsHead:
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


def head_of_objects(kind: int, payload: memoryview, decode: ColumnDecoder, depth: int) -> ObjectsHead:
    """Decode the head of OBJECTS or DICTS.

    What another program wrote is made of its classes first, and then of those of the running program.
    """
    if kind == Kind.DICTS:
        names, start = _names(payload, decode, depth)
        return ObjectsHead(names, dict, start, dict_maker(names))
    start = _HEAD_SIZE.size + _HEAD_SIZE.unpack_from(payload)[0]
    if start > len(payload):
        raise SerdeError(f"the head of a column of objects ends {start - len(payload)} bytes behind it")
    names, reference = _read_head(bytes(payload[_HEAD_SIZE.size : start]), decode, depth)
    cls = class_of(reference)
    maker = _maker_of(cls, names)
    if is_of_another_program():
        return ObjectsHead(names, cls, start, lambda columns: of_running_program(maker(columns)))
    return ObjectsHead(names, cls, start, maker)


def maker_of(kind: Any, names: tuple[str, ...]) -> Maker:
    """A function that makes instances of a flat class, or dicts, from a column for each field."""
    return dict_maker(names) if kind is dict else _maker_of(kind, names)


def objects_head(kind: Any, names: tuple[str, ...], encode: ColumnEncoder) -> tuple[int, bytes]:
    """The kind of column for records of a class, or dicts, and the bytes in front of their fields."""
    if kind is dict:
        return Kind.DICTS, FIELDS.pack(len(names)) + encode(names, str, depth=1)
    head = _head(kind, names, encode)
    return Kind.OBJECTS, _HEAD_SIZE.pack(len(head)) + head


def decode_rows(payload: memoryview, num_values: int, decode: ColumnDecoder, depth: int) -> list[Row]:
    """Decode a column of ROWS."""
    names, start = names_of_rows(payload, decode, depth)
    num_fields = num_fields_of(payload)
    records = zip(*_fields(payload, start, num_fields, num_values, decode, depth), strict=True)
    return unnamed_rows_of(records) if names is None else rows_of(names, records)


def names_of_rows(payload: memoryview, decode: ColumnDecoder, depth: int) -> tuple[tuple[str, ...] | None, int]:
    """The field names in a column of ROWS (None: unnamed rows), and the offset after them."""
    num_fields = num_fields_of(payload)
    names, end = decode(payload, FIELDS.size, num_fields, depth=depth + 1)
    if num_fields and list(names) == [None] * num_fields:
        return None, end
    return _checked_names(names, num_fields), end


def are_apart(columns: Sequence[Sequence[Any]]) -> bool:
    """Whether no mutable object occurs twice in these columns, and all of them could be looked into."""
    return _Mutables().are_apart(columns, 0)


def can_change(column: Sequence[Any]) -> bool:
    """Whether a value may be mutable, or hold something mutable, as a tuple may."""
    return not all(map(_never_changes, set(map(type, column))))


def _never_changes(kind: type) -> bool:
    """Whether values of exactly this type are immutable, or unique in their process like members of an enum."""
    return kind in UNCHANGING or isinstance(kind, EnumMeta)


def _try_encode_dicts(values: Sequence[dict[Any, Any]], encode: ColumnEncoder, depth: int) -> bytes | None:
    """Encode dicts that do not share their keys, such as parsed JSON.

    The decoded dicts share them, so the next step is faster.

    Dicts made from a program's literals share their keys already: a pickle writes each key once, and takes two thirds
    of the time.
    """
    first = values[0]
    if next(iter(first), None) is next(iter(values[-1]), None) or can_change(list(first.values())):
        return None
    parts = parts_of_dicts(values, are_keys_checked=True)
    fields = None if parts is None else _try_encode_fields(parts[1], encode, depth)
    if parts is None or fields is None:
        return None
    return framed(Kind.DICTS, FIELDS.pack(len(fields)), encode(parts[0], str, depth=depth + 1), *fields)


def _try_encode_rows(values: Sequence[Row], encode: ColumnEncoder, depth: int) -> bytes | None:
    parts = parts_of(values)
    if parts is None:
        return None
    names, records = parts
    num_fields = len(records[0])
    if not 0 < num_fields <= MAX_FIELDS or (names is not None and list(map(type, names)).count(str) != num_fields):
        return None
    fields = _try_encode_fields(list(zip(*records, strict=True)), encode, depth)
    if fields is None:
        return None
    named = (
        encode((None,) * num_fields, NoneType, depth=depth + 1)
        if names is None
        else encode(names, str, depth=depth + 1)
    )
    return framed(Kind.ROWS, FIELDS.pack(num_fields), named, *fields)


def _try_encode_fields(columns: Sequence[Sequence[Any]], encode: ColumnEncoder, depth: int) -> list[bytes] | None:
    kinds = list(map(exact_type, columns))
    unclear = [column for column, kind in zip(columns, kinds, strict=True) if kind not in UNCHANGING]
    if unclear and not are_apart(unclear):
        return None
    return [encode(column, kind, depth=depth + 1) for column, kind in zip(columns, kinds, strict=True)]


@lru_cache(_MAX_HEADS)
def _head(kind: type, names: tuple[str, ...], encode: ColumnEncoder) -> bytes:
    return FIELDS.pack(len(names)) + encode(names, str) + class_reference(kind)


@lru_cache(_MAX_HEADS)
def _read_head(head: bytes, decode: ColumnDecoder, depth: int) -> tuple[tuple[str, ...], bytes]:
    names, end = _names(memoryview(head), decode, depth)
    return names, head[end:]


@lru_cache(_MAX_HEADS)
def _maker_of(cls: type, names: tuple[str, ...]) -> Maker:
    flat_class = flat_class_of(cls)
    if flat_class is None:
        raise SerdeError(
            f"objects of class {cls.__qualname__} by fields, which is another class here: it is pickled in its own way"
        )
    return flat_class.maker(names)


def _names(payload: memoryview, decode: ColumnDecoder, depth: int) -> tuple[tuple[str, ...], int]:
    num_fields = num_fields_of(payload)
    names, end = decode(payload, FIELDS.size, num_fields, depth=depth + 1)
    return _checked_names(names, num_fields), end


def _checked_names(names: Sequence[Any], num_fields: int) -> tuple[str, ...]:
    if not num_fields or list(map(type, names)).count(str) != num_fields:
        raise SerdeError(f"records of {num_fields} fields with other names than texts")
    return tuple(names)


def _fields(
    payload: memoryview, start: int, num_fields: int, num_values: int, decode: ColumnDecoder, depth: int
) -> list[Sequence[Any]]:
    columns = []
    for _ in range(num_fields):
        column, start = decode(payload, start, num_values, depth=depth + 1)
        columns.append(column)
    check_end(start, payload)
    return columns


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
