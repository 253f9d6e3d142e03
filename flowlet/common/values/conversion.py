"""Converts elements into a declared shape.

Side:   pure.
Rules:  the shape changes: a tuple, list or dict becomes the declared ``Row``, a list the declared tuple.  Plain values
        are checked and kept; as elements of ``from_collection`` they become what Java makes of them: integers wrap
        around at their 8, 16 or 32 bits, FLOAT is rounded to 32 bits, and a number is a text of its digits.  None is
        allowed everywhere.
Source: what PyFlink's ``from_collection(..., type_info)`` does to elements on their way through the JVM.
"""

import ctypes
import datetime
import decimal
from collections.abc import Callable, Sequence
from typing import Any, Final

from flowlet.common.typeinfo import (
    INTEGER_BITS,
    BasicArrayTypeInfo,
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    RowTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TupleTypeInfo,
    TypeInformation,
)
from flowlet.common.types import Row, RowFieldsError, fields_of_record

_LEAF_CLASSES: Final[dict[BasicType, tuple[type, ...]]] = {
    **dict.fromkeys((BasicType.STRING, BasicType.CHAR), (str,)),
    **dict.fromkeys((*INTEGER_BITS, BasicType.BIG_INT), (int,)),
    **dict.fromkeys((BasicType.FLOAT, BasicType.DOUBLE), (float, int)),
    BasicType.BOOLEAN: (bool,),
    BasicType.BIG_DEC: (decimal.Decimal,),
}


_Leaf = Callable[[Any, BasicType], Any]


def to_declared_shape(value: Any, type_info: TypeInformation) -> Any:
    """The value in the shape of the type.

    Raises TypeError if the value does not fit; names the part of it, and why.
    """
    return _shaped(value, type_info, _checked_leaf)


def to_declared_element(value: Any, type_info: TypeInformation) -> Any:
    """The same for an element of ``from_collection``, whose plain values are converted, too."""
    return _shaped(value, type_info, _javas_leaf)


def _shaped(value: Any, type_info: TypeInformation, leaf: _Leaf) -> Any:
    if value is None:
        return None
    match type_info:
        case BasicTypeInfo():
            return leaf(value, type_info.basic_type)
        case RowTypeInfo():
            return _to_row(value, type_info, leaf)
        case TupleTypeInfo():
            return _to_tuple(value, type_info, leaf)
        case ListTypeInfo() | BasicArrayTypeInfo() | ObjectArrayTypeInfo():
            _require(value, (list, tuple), type_info)
            return [_shaped(item, type_info.elem_type, leaf) for item in value]
        case MapTypeInfo():
            _require(value, (dict,), type_info)
            return {
                _shaped(key, type_info.key_type_info, leaf): _shaped(item, type_info.value_type_info, leaf)
                for key, item in value.items()
            }
        case DateTypeInfo():
            return _require(value, (datetime.date,), type_info)
        case TimeTypeInfo():
            return _require(value, (datetime.time,), type_info)
        case TimestampTypeInfo():
            return _require(value, (datetime.datetime,), type_info)
        case _:
            return value


def _to_row(value: Any, type_info: RowTypeInfo, leaf: _Leaf) -> Row:
    _require(value, (Row, tuple, list, dict), type_info)
    names, types = type_info.get_field_names(), type_info.get_field_types()
    if isinstance(value, dict):
        missing = [name for name in names if name not in value]
        if missing:
            raise TypeError(f"{value!r} has no {missing[0]!r}, which {type_info!r} declares")
        values: Sequence[Any] = [value[name] for name in names]
    else:
        try:
            values = fields_of_record(value, names)
        except RowFieldsError as error:
            raise TypeError(f"{value!r} is no {type_info!r}: {error}") from None
    row = Row(*(_shaped(item, field_type, leaf) for item, field_type in zip(values, types, strict=True)))
    row.set_field_names(names)
    if isinstance(value, Row):
        row.set_row_kind(value.get_row_kind())
    return row


def _to_tuple(value: Any, type_info: TupleTypeInfo, leaf: _Leaf) -> tuple[Any, ...]:
    _require(value, (tuple, list), type_info)
    types = type_info.get_field_types()
    if len(value) != len(types):
        raise TypeError(f"{value!r} has {len(value)} fields, {type_info!r} declares {len(types)}")
    return tuple(_shaped(item, field_type, leaf) for item, field_type in zip(value, types, strict=True))


def _checked_leaf(value: Any, basic_type: BasicType) -> Any:
    classes = _LEAF_CLASSES.get(basic_type)
    if classes is None:
        return value
    is_stray_bool = isinstance(value, bool) and basic_type is not BasicType.BOOLEAN
    if is_stray_bool or not isinstance(value, classes):
        raise TypeError(f"{value!r} is of type {type(value).__name__}, not {basic_type.value}")
    if basic_type is BasicType.CHAR and isinstance(value, str) and len(value) != 1:
        raise TypeError(f"{value!r} is not one character")
    bits = INTEGER_BITS.get(basic_type)
    if bits is not None and isinstance(value, int) and not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise TypeError(f"{value!r} does not fit into the {bits} bits of {basic_type.value}")
    return value


def _javas_leaf(value: Any, basic_type: BasicType) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if basic_type in _WRAPPING and isinstance(value, int) and is_number:
        return _WRAPPING[basic_type](value).value
    if basic_type in _REAL and is_number:
        number = float(_checked_leaf(value, basic_type))
        return ctypes.c_float(number).value if basic_type is BasicType.FLOAT else number
    if basic_type is BasicType.STRING and isinstance(value, int) and is_number:
        return str(value)
    return _checked_leaf(value, basic_type)


_WRAPPING: Final[dict[BasicType, Any]] = {
    BasicType.BYTE: ctypes.c_int8,
    BasicType.SHORT: ctypes.c_int16,
    BasicType.INT: ctypes.c_int32,
}
_REAL: Final = frozenset({BasicType.FLOAT, BasicType.DOUBLE})


def _require(value: Any, classes: tuple[type, ...], type_info: TypeInformation) -> Any:
    if not isinstance(value, classes):
        raise TypeError(f"{value!r} is of type {type(value).__name__}, not {type_info!r}")
    return value
