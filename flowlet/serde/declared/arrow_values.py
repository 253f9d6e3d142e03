"""Maps declared types to Arrow types, makes Arrow arrays of exactly the given values, and takes Arrow arrays as columns
of declared types.

Side:       pure.
Invariants: nothing is rounded, widened or cut off, but floats to their 32 bits: a value of another class, or out of the
            range of its type, is refused, and so is a time whose offset is not that of UTC in a column without a time
            zone.  An array that was read has exactly the Arrow type of the declared one, is validated, and all its
            values are Python values: a point in time beyond the year 9999, which ``to_pylist`` could not make, is
            refused.
Units:      dates in days, times in microseconds; in a column with a time zone, a ``datetime`` without one means UTC.
Absent:     arrays of ``Instant``, decimals, maps, and of pickled values; columns of rows and maps, which are checked
            value by value.
"""

import datetime
import decimal
from array import array as number_array
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import attrgetter, sub
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flowlet.columns import ArrowColumn
from flowlet.columns.arrow_batches import first_overflow
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
from flowlet.errors import SerdeError
from flowlet.serde.arrow_serializer import decode_arrow_array, num_values, parts_of_array
from flowlet.serde.element_limits import MAX_MICROS, MIN_MICROS, CellBudget
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
    if arrow_type == pa.float32() and (value := first_overflow(values, found)) is not None:
        raise _mismatch(value, arrow_type)
    return found


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
                value = number_array("b", value)  # the same bytes with a sign
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


_MICROS_PER_DAY: Final = 24 * 3600 * 1_000_000
# The integers that are values of a type, where not all are.
_RANGES: Final = {
    pa.date32(): (pa.int32(), MIN_MICROS // _MICROS_PER_DAY, MAX_MICROS // _MICROS_PER_DAY),
    pa.time64("us"): (pa.int64(), 0, _MICROS_PER_DAY - 1),
    pa.timestamp("us"): (pa.int64(), MIN_MICROS, MAX_MICROS),
}
_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
# Types whose values are those of the other type, too.
_SAME_VALUES: Final = frozenset(
    {
        *((narrow, wide) for index, wide in enumerate(_INTEGERS) for narrow in _INTEGERS[:index]),
        (pa.float32(), pa.float64()),
        (pa.large_string(), pa.string()),
        (pa.large_binary(), pa.binary()),
    }
)


def python_values(array: pa.Array) -> list[Any]:
    """The values as Python objects, maps as dicts.  Raises ValueMismatchError: a map has a key twice."""
    try:
        values: list[Any] = array.to_pylist(maps_as_pydicts="strict")
    except TypeError:  # before pyarrow 19
        return list(array.to_pylist())
    except KeyError as error:
        raise ValueMismatchError(f"a map with the key {error} twice") from error
    return values


def _has_rows(type_info: TypeInformation) -> bool:
    inner = getattr(type_info, "elem_type", None)
    return isinstance(type_info, RowTypeInfo) or (inner is not None and _has_rows(inner))


def fitting_array(array: pa.Array, type_info: TypeInformation) -> pa.Array | None:
    """The same values in the Arrow type of the declared one; None: it has none, or one that is not sent.

    Raises:
        ValueMismatchError: the array is of another type.
    """
    declared = arrow_type_of(type_info)
    if declared is None or _has_rows(type_info):
        return None
    found = array.type
    if _is_declared(found, declared):
        fitting = array
    elif (found, declared) in _SAME_VALUES:
        fitting = array.cast(declared)
    else:
        values = preview(array.slice(0, 3).to_pylist())
        raise ValueMismatchError(f"{values} of Arrow's type {found}, declared is {type_info!r}: cast it to {declared}")
    _check_values(fitting)
    return fitting


def _is_declared(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether it is the declared type; the elements of a list may have another name."""
    if pa.types.is_list(found) and pa.types.is_list(declared):
        return bool(found.value_type == declared.value_type)
    return bool(found == declared)


def decode_arrow(payload: memoryview, num_values: int, type_info: TypeInformation, cells: CellBudget) -> ArrowColumn:
    """Read an Arrow array.  Raises SerdeError: it is corrupt, or of another type."""
    declared = arrow_type_of(type_info)
    if declared is None or _has_rows(type_info):
        raise SerdeError(f"an Arrow array, which is no form of {type_info!r}")
    array = decode_arrow_array(payload)
    if not _is_declared(array.type, declared):
        raise SerdeError(f"an Arrow array of {array.type}, declared is {type_info!r}")
    if len(array) != num_values:
        raise SerdeError(f"an Arrow array of {len(array)} values in a chunk of {num_values} records")
    _check_values(array, cells)
    return ArrowColumn(array)


def _check_values(array: pa.Array, cells: CellBudget | None = None) -> None:
    parts = parts_of_array(array)
    if cells is not None:
        cells.take(sum(map(num_values, parts)))
    for part in parts:
        _check_values(part)
    if array.type in _RANGES:
        plain, low, high = _RANGES[array.type]
        found = pc.min_max(array.view(plain)).as_py()
        if found["min"] is not None and not low <= found["min"] <= found["max"] <= high:
            raise ValueMismatchError(f"{found} in an array of {array.type}, Python has values from {low} to {high}")
