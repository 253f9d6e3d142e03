"""Maps declared types to Arrow types, and makes Arrow arrays of exactly the given values.

Side:       pure.
Invariants: nothing is rounded, widened or cut off, but floats to their 32 bits: a value of another class, or out of the
            range of its type, is refused, and so is a time whose offset is not that of UTC in a column without a time
            zone.
Units:      dates in days, times in microseconds; in a column with a time zone, a ``datetime`` without one means UTC.
Absent:     arrays of ``Instant``, decimals, maps, and of pickled values.
"""

import datetime
import decimal
import math
from array import array
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import attrgetter, sub
from typing import Any, Final

import numpy as np
import pyarrow as pa

from flowlet.common.typeinfo import (
    BasicArrayTypeInfo,
    ListTypeInfo,
    LocalTimeTypeInfo,
    ObjectArrayTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TypeInformation,
    Types,
)
from flowlet.common.types import Row
from flowlet.serde.type_serializer import ValueMismatchError, fields_in_order, preview

_TimeType = LocalTimeTypeInfo.TimeType
_LEAVES: Final[Mapping[TypeInformation, pa.DataType]] = {
    Types.STRING(): pa.string(),
    Types.BOOLEAN(): pa.bool_(),
    Types.BYTE(): pa.int8(),
    Types.SHORT(): pa.int16(),
    Types.INT(): pa.int32(),
    Types.LONG(): pa.int64(),
    Types.FLOAT(): pa.float32(),
    Types.DOUBLE(): pa.float64(),
    Types.PRIMITIVE_ARRAY(Types.BYTE()): pa.binary(),
    Types.SQL_DATE(): pa.date32(),
    Types.SQL_TIME(): pa.time64("us"),
    Types.SQL_TIMESTAMP(): pa.timestamp("us"),
    LocalTimeTypeInfo(_TimeType.LOCAL_DATE): pa.date32(),
    LocalTimeTypeInfo(_TimeType.LOCAL_TIME): pa.time64("us"),
    LocalTimeTypeInfo(_TimeType.LOCAL_DATE_TIME): pa.timestamp("us"),
}
# By the id of an Arrow type, which is the same for all units, zones and precisions.
_CLASSES: Final[Mapping[int, frozenset[type]]] = {
    pa.string().id: frozenset({str}),
    pa.large_string().id: frozenset({str}),
    pa.bool_().id: frozenset({bool}),
    **{each.id: frozenset({int}) for each in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    pa.float32().id: frozenset({float}),
    pa.float64().id: frozenset({float}),
    pa.binary().id: frozenset({bytes, bytearray}),
    pa.large_binary().id: frozenset({bytes, bytearray}),
    pa.date32().id: frozenset({datetime.date}),
    pa.time64("us").id: frozenset({datetime.time}),
    pa.timestamp("us").id: frozenset({datetime.datetime}),
    pa.decimal128(38, 18).id: frozenset({decimal.Decimal}),
}
_TIMESTAMP: Final = pa.timestamp("us")
_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - as in the columns
_UNZONED: Final = frozenset({pa.time64("us").id, pa.timestamp("us").id})
_ZONE: Final = attrgetter("tzinfo")
_NO_OFFSET: Final = datetime.timedelta(0)
_NONE: Final = frozenset({type(None)})


def arrow_type_of(type_info: TypeInformation) -> pa.DataType | None:
    """The Arrow type for values of a declared type; None if there is none."""
    match type_info:
        case ListTypeInfo() | BasicArrayTypeInfo() | ObjectArrayTypeInfo() | PrimitiveArrayTypeInfo() if (
            type_info not in _LEAVES
        ):
            element = arrow_type_of(type_info.elem_type)
            return None if element is None else pa.list_(element)
        case RowTypeInfo():
            types = [arrow_type_of(each) for each in type_info.get_field_types()]
            return None if None in types else pa.struct(list(zip(type_info.get_field_names(), types, strict=True)))
        case _:
            return _LEAVES.get(type_info)


def exact_array(values: Sequence[Any], arrow_type: pa.DataType) -> pa.Array:
    """An array of exactly these values, None as null.

    Raises ValueMismatchError: a value is not of the type; the message shows it.
    """
    allowed = _CLASSES.get(arrow_type.id)
    if allowed is None:
        return _composite_array(values, arrow_type)
    if not set(map(type, values)) - _NONE <= allowed:
        raise _mismatch(next(value for value in values if value is not None and type(value) not in allowed), arrow_type)
    if arrow_type.id in _UNZONED and getattr(arrow_type, "tz", None) is None:
        if arrow_type == _TIMESTAMP and (instants := _instants(values)) is not None:
            return instants
        values = _unzoned(values, arrow_type)
    try:
        found = pa.array(values, type=arrow_type, from_pandas=False)
    except (pa.ArrowException, OverflowError, UnicodeError):
        raise _mismatch(next(value for value in values if not _fits(value, arrow_type)), arrow_type) from None
    if arrow_type == pa.float32() and (place := _first_overflow(values, found)) is not None:
        raise _mismatch(values[place], arrow_type)
    return found


def _first_overflow(values: Sequence[Any], found: pa.Array) -> int | None:
    """The first finite float that is infinite in an array of fewer bits; None: there is none."""
    infinite = np.flatnonzero(np.isinf(found.to_numpy(zero_copy_only=False).astype(np.float32)))
    return next(
        (place for place in infinite.tolist() if values[place] is not None and math.isfinite(values[place])), None
    )


def _instants(values: Sequence[Any]) -> pa.Array | None:
    """As ``pa.array`` of datetimes without a zone, in less than half the time; None: one has a zone, or is None."""
    try:
        return pa.array(list(map(sub, values, repeat(_EPOCH))), pa.duration("us")).view(_TIMESTAMP)
    except TypeError:
        return None


def _unzoned(values: Sequence[Any], arrow_type: pa.DataType) -> Sequence[Any]:
    """The times without zone; those in UTC lose it.  Raises ValueMismatchError: one has another offset."""
    if not any(map(_ZONE, filter(None, values))):
        return values
    found = []
    for value in values:
        plain = value
        if value is not None and value.tzinfo is not None:
            if value.utcoffset() != _NO_OFFSET:
                raise ValueMismatchError(
                    f"{preview(value)} has an offset from UTC, which a {arrow_type} cannot hold: convert it, or use a "
                    "column in UTC"
                )
            plain = value.replace(tzinfo=None)
        found.append(plain)
    return found


def _composite_array(values: Sequence[Any], arrow_type: pa.DataType) -> pa.Array:
    """An array of lists or rows, made from arrays of their parts."""
    if pa.types.is_struct(arrow_type):
        return _struct_array(values, arrow_type)
    if not pa.types.is_list(arrow_type):
        raise _mismatch(next(iter(values), None), arrow_type)
    offsets: list[int] = [0]
    items: list[Any] = []
    for value in values:
        if value is not None:
            if isinstance(value, bytes) and arrow_type.value_type == pa.int8():  # a list of BYTE
                value = array("b", value)  # the same bytes with a sign
            elif not isinstance(value, list | tuple):
                raise _mismatch(value, arrow_type)
            items.extend(value)
        offsets.append(len(items))
    missing = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), exact_array(items, arrow_type.value_type), mask=missing
    )


def _struct_array(values: Sequence[Any], arrow_type: pa.StructType) -> pa.Array:
    width = arrow_type.num_fields
    fields = list(arrow_type)
    names = [each.name for each in fields]
    empty = (None,) * width
    rows = []
    for value in values:
        if value is not None and not isinstance(value, Row | tuple | list):
            raise _mismatch(value, arrow_type)
        rows.append(empty if value is None else fields_in_order(value, names))
    columns = list(zip(*rows, strict=True)) or [()] * width
    arrays = [exact_array(column, each.type) for column, each in zip(columns, fields, strict=True)]
    return pa.StructArray.from_arrays(
        arrays, fields=fields, mask=pa.array([value is None for value in values], pa.bool_())
    )


def _mismatch(value: Any, arrow_type: pa.DataType) -> ValueMismatchError:
    return ValueMismatchError(f"{preview(value)} of type {type(value).__name__} is no {arrow_type}")


def _fits(value: Any, arrow_type: pa.DataType) -> bool:
    try:
        pa.array([value], type=arrow_type, from_pandas=False)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return False
    return True
