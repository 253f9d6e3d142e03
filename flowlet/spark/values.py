"""Converts single values of Spark to flowlet's: nested values, and those that Arrow cannot hold unchanged.

Side:       pure.
Invariants: a value that is not exactly of its type raises TypeError; None stays None.
Source:     the Python values of ``pyspark.sql.types`` (``fromInternal``) and of ``pyarrow``'s ``to_pylist``; both forms
            are accepted.
"""

import datetime
import decimal
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import types as st

from flowlet.common.time import Instant
from flowlet.common.typeinfo import (
    ARRAY_TYPES,
    MapTypeInfo,
    PickledBytesTypeInfo,
    RowTypeInfo,
    TimestampTypeInfo,
    TypeInformation,
    Types,
)
from flowlet.common.types import Row, are_positions, fields_by_name
from flowlet.common.values.conversion import to_declared_shape
from flowlet.serde.type_serializer import ValueMismatchError, fields_in_order
from flowlet.spark.gate_schema import spark_type_of

Convert = Callable[[Any], Any]

_CLASSES: Final[dict[type[st.DataType], frozenset[type]]] = {
    st.StringType: frozenset({str}),
    st.BooleanType: frozenset({bool}),
    st.ByteType: frozenset({int}),
    st.ShortType: frozenset({int}),
    st.IntegerType: frozenset({int}),
    st.LongType: frozenset({int}),
    st.FloatType: frozenset({float}),
    st.DoubleType: frozenset({float}),
    st.BinaryType: frozenset({bytes, bytearray}),
    st.DateType: frozenset({datetime.date}),
    st.TimestampType: frozenset({datetime.datetime}),
    st.TimestampNTZType: frozenset({datetime.datetime}),
    st.DecimalType: frozenset({decimal.Decimal}),
}
_BINARY: Final = Types.PRIMITIVE_ARRAY(Types.BYTE())
_INSTANT: Final = Types.INSTANT()
_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC, as everything here
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


def classes_of(type_info: TypeInformation) -> frozenset[type] | None:
    """The exact classes of Spark's values for a type without parts; None: any."""
    spark_type = spark_type_of(type_info)
    return None if spark_type is None else _CLASSES.get(type(spark_type))


def in_utc(value: datetime.datetime, *, clock_is_utc: bool) -> datetime.datetime:
    """The point in time in UTC, without a zone; a value without a zone is in the local time of this process."""
    if value.tzinfo is None and clock_is_utc:
        return value
    return value.astimezone(datetime.UTC).replace(tzinfo=None)


def value_converter(type_info: TypeInformation, *, clock_is_utc: bool) -> Convert:
    """A function that checks and converts one value; it raises TypeError if the value is not of the type.

    ``clock_is_utc``: as ``in_utc``.
    """
    if isinstance(type_info, PickledBytesTypeInfo):
        return _as_it_is
    convert = _not_none_converter(
        type_info, partial(in_utc, clock_is_utc=clock_is_utc), partial(value_converter, clock_is_utc=clock_is_utc)
    )

    def convert_or_none(value: Any) -> Any:
        return None if value is None else convert(value)

    return convert_or_none


def _not_none_converter(
    type_info: TypeInformation, to_utc: Convert, inner: Callable[[TypeInformation], Convert]
) -> Convert:
    if type_info == _BINARY:
        return _checked(type_info, bytes)
    if type_info == _INSTANT:
        return _checked(type_info, lambda value: _instant(to_utc(value)))
    match type_info:
        case TimestampTypeInfo():
            return _checked(type_info, to_utc)
        case _ if isinstance(type_info, ARRAY_TYPES):
            return _list_converter(inner(type_info.elem_type))
        case MapTypeInfo():
            return _map_converter(inner(type_info.key_type_info), inner(type_info.value_type_info))
        case RowTypeInfo():
            return _row_converter(type_info.get_field_names(), [inner(field) for field in type_info.get_field_types()])
        case _:
            return _checked(type_info, lambda value: to_declared_shape(value, type_info))


def _checked(type_info: TypeInformation, convert: Convert) -> Convert:
    allowed = classes_of(type_info)

    def checked(value: Any) -> Any:
        if allowed is None or type(value) not in allowed:
            raise TypeError(f"{value!r} is a {type(value).__name__}")
        return convert(value)

    return checked


def _list_converter(convert: Convert) -> Convert:
    def converted(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise TypeError(f"{value!r} is no list")
        return [convert(item) for item in value]

    return converted


def _map_converter(convert_key: Convert, convert_value: Convert) -> Convert:
    def converted(value: Any) -> dict[Any, Any]:
        # From Arrow: a list of pairs.
        pairs: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else value
        return {convert_key(key): convert_value(item) for key, item in pairs}

    return converted


def _row_converter(names: list[str], converters: list[Convert]) -> Convert:
    make = Row(*names)

    def converted(value: Any) -> Row:
        try:
            # Arrow gives a dict.
            values = _values_of_dict(value, names) if isinstance(value, dict) else fields_in_order(value, names)
        except ValueMismatchError as error:
            raise TypeError(str(error)) from error
        return make(*(convert(item) for convert, item in zip(converters, values, strict=True)))

    return converted


def _values_of_dict(value: dict[str, Any], names: list[str]) -> Sequence[Any]:
    values = list(value.values())
    return values if are_positions(names) and len(values) == len(names) else fields_by_name(list(value), values, names)


def _instant(value: datetime.datetime) -> Instant:
    micros = (value - _EPOCH) // _MICROSECOND
    seconds, rest = divmod(micros, 1_000_000)
    return Instant(seconds, rest * 1000)


def _as_it_is(value: Any) -> Any:
    return value
