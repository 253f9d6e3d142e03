"""Decodes columns of records; makes Python objects only where there is no array for them.

Hot path: C code per column.

Side:       pure.
Invariants: the decoded columns own their memory and stand for exactly the values that were sent.
Format:     ``column_format``.
Raises:     decoding corrupt bytes raises SerdeError, ValueError or struct.error; ``ElementDeserializer`` turns all into
            SerdeError.
"""

from typing import Any, Final

import numpy as np

from flowlet.columns import ArrayColumn, ArrowColumn, Column, Columns, ConstantColumn, ListColumn, Shape
from flowlet.common.types import unnamed_rows_of
from flowlet.errors import SerdeError
from flowlet.serde.channel_dictionary import ChannelDictionary
from flowlet.serde.column_format import (
    ARRAY_TYPES,
    FIELDS,
    NUMBERS,
    Kind,
    check_end,
    check_length,
    column_at,
    constant_at,
    num_fields_of,
)
from flowlet.serde.columns import INTS, decode_column, decode_ints, decode_payload, decode_short_texts
from flowlet.serde.object_columns import head_of_objects, names_of_rows
from flowlet.serde.pickles.record_pickle import is_of_another_program

_FIELD_DEPTH: Final = 1
# Kinds of records that are decoded as a list.
_RECORDS: Final = frozenset({Kind.PICKLE, Kind.PACKED, Kind.BYTES, Kind.PICKLES})
# Kinds of fields that are decoded as a list with one exact type.
_LISTS: Final = {Kind.TEXT: str, Kind.TEXT_SIZES: str, Kind.BYTES: bytes, Kind.TUPLES: tuple}
_NATIVE_TYPES: Final = tuple(dtype.newbyteorder("=") for dtype in ARRAY_TYPES)


def decode_records(
    view: memoryview, offset: int, num_records: int, dictionary: ChannelDictionary
) -> tuple[Columns | list[Any], int]:
    """Decode the records at ``offset``, as columns if possible, else as a list; return them and the offset after them.

    ``dictionary``: of the channel; learns the texts that come with codes.
    """
    kind, payload, end = column_at(view, offset)
    if kind in _RECORDS:
        values = decode_payload(kind, payload, num_records, 0)
        check_length(kind, values, num_records)
        return list(values), end
    if kind == Kind.TUPLES:
        return _tuples(payload, num_records, dictionary), end
    if kind == Kind.ROWS:
        return _rows(payload, num_records, dictionary), end
    if kind in (Kind.OBJECTS, Kind.DICTS):
        return _objects(kind, payload, num_records, dictionary), end
    return Columns(num_records, (_column(kind, payload, num_records, dictionary),), Shape.SCALAR), end


def decode_timestamps(
    view: memoryview, offset: int, num_records: int
) -> tuple["np.ndarray[Any, np.dtype[np.int64]]", int]:
    """Decode the timestamps at ``offset``, in milliseconds; return them and the offset after them."""
    kind, payload, is_constant, end = constant_at(view, offset)
    if kind not in INTS:
        raise SerdeError("timestamps that are not all integers of 64 bits")
    array = decode_ints(kind, payload)
    check_length(kind, array, 1 if is_constant else num_records)
    return np.full(num_records, array[0]) if is_constant else array, end


def _tuples(payload: memoryview, num_records: int, dictionary: ChannelDictionary) -> Columns | list[Any]:
    num_fields = num_fields_of(payload)
    if not num_fields:
        check_end(FIELDS.size, payload)
        return [()] * num_records
    fields, key_position = _fields(payload, FIELDS.size, num_fields, num_records, dictionary)
    return Columns(num_records, fields, Shape.TUPLE, key_position=key_position)


def _rows(payload: memoryview, num_records: int, dictionary: ChannelDictionary) -> Columns | list[Any]:
    num_fields = num_fields_of(payload)
    names, start = names_of_rows(payload, decode_column, 0)
    fields, key_position = _fields(payload, start, num_fields, num_records, dictionary)
    if names is None:
        return unnamed_rows_of(zip(*[field.to_list() for field in fields], strict=True))
    return Columns(num_records, fields, Shape.ROW, names, key_position)


def _objects(kind: int, payload: memoryview, num_records: int, dictionary: ChannelDictionary) -> Columns | list[Any]:
    head = head_of_objects(kind, payload, decode_column, 0)
    fields, key_position = _fields(payload, head.start, len(head.names), num_records, dictionary)
    if kind == Kind.OBJECTS and is_of_another_program():
        return head.make([field.to_list() for field in fields])  # now: the classes are known while the bytes are read
    return Columns(num_records, fields, Shape.OBJECT, head.names, key_position, head.kind, head.make)


def _fields(
    payload: memoryview, start: int, num_fields: int, num_records: int, dictionary: ChannelDictionary
) -> tuple[tuple[Column, ...], int | None]:
    """The fields, and which of them is the key: the first one in codes, for senders have dictionaries of keys, and of
    nothing else.
    """
    fields, kinds = [], []
    for _ in range(num_fields):
        kind, inner, start = column_at(payload, start)
        fields.append(_column(kind, inner, num_records, dictionary))
        kinds.append(kind)
    check_end(start, payload)
    return tuple(fields), kinds.index(Kind.CODED) if Kind.CODED in kinds else None


def _column(kind: int, payload: memoryview, num_values: int, dictionary: ChannelDictionary) -> Column:
    column = _read(kind, payload, num_values, dictionary)
    check_length(kind, column, num_values)
    return column


def _read(kind: int, payload: memoryview, num_values: int, dictionary: ChannelDictionary) -> Column:
    if kind == Kind.CODED:
        return dictionary.read(payload, num_values)
    if kind in INTS:
        return ArrayColumn(decode_ints(kind, payload))
    if kind == Kind.FLOAT64:
        return ArrayColumn(np.frombuffer(payload, NUMBERS[Kind.FLOAT64]).astype(np.float64))
    if kind == Kind.CONSTANT:
        (value,), end = decode_column(payload, 0, 1, depth=_FIELD_DEPTH + 1)
        check_end(end, payload)
        return ConstantColumn(value, num_values)
    if kind == Kind.BOOL:
        return ArrayColumn(decode_truth_values(payload))
    if kind == Kind.ARRAY:
        return ArrayColumn(decode_array(payload))
    if kind == Kind.SHORT_TEXTS:
        return decode_short_texts(payload, num_values)
    if kind == Kind.ARROW:
        from flowlet.serde.arrow_serializer import decode_arrow_array  # here, because it imports pyarrow

        return ArrowColumn(decode_arrow_array(payload))
    values = decode_payload(kind, payload, num_values, _FIELD_DEPTH)
    return ListColumn(values if isinstance(values, list) else list(values), _LISTS.get(kind))


def decode_truth_values(payload: memoryview) -> Any:
    """The payload of BOOL as an array."""
    raw = np.frombuffer(payload, np.uint8)
    if raw.max(initial=0) > 1:
        raise SerdeError("a column of truth values holds other bytes than 0 and 1")
    return raw.astype(np.bool_)


def decode_array(payload: memoryview) -> Any:
    """The payload of ARRAY as an array."""
    if not payload or payload[0] >= len(ARRAY_TYPES):
        raise SerdeError(f"an array of unknown type {payload[0] if payload else None}")
    return np.frombuffer(payload[1:], ARRAY_TYPES[payload[0]]).astype(_NATIVE_TYPES[payload[0]])
