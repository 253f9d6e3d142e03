"""Declared types of every kind, with records of each, and the meaning of "a value is of a type"."""

import datetime
import decimal
from collections.abc import Callable
from typing import Any, Final

from flowlet.common.time import Instant
from flowlet.common.typeinfo import (
    BasicArrayTypeInfo,
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    ListTypeInfo,
    LocalTimeTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from flowlet.common.types import Row, RowKind

_TimeType = LocalTimeTypeInfo.TimeType
NOON: Final = datetime.datetime(2024, 7, 1, 12, 30, 1, 5)  # noqa: DTZ001 - a time on the wall
ADDRESS: Final = Types.ROW_NAMED(["city", "zip"], [Types.STRING(), Types.INT()])

# By name: a type, and a function from a number to a value of it.
EXAMPLES: Final[dict[str, tuple[TypeInformation, Callable[[int], Any]]]] = {
    "text": (Types.STRING(), lambda number: f"text {number}\0é" if number % 3 else f"t{number}"),
    "byte": (Types.BYTE(), lambda number: number % 256 - 128),
    "short": (Types.SHORT(), lambda number: number * 77 % 65536 - 32768),
    "int": (Types.INT(), lambda number: number * 1_000_003 % 2**32 - 2**31),
    "long": (Types.LONG(), lambda number: number * 10**15 - 2**62),
    "truth": (Types.BOOLEAN(), lambda number: number % 3 == 0),
    "float": (Types.FLOAT(), lambda number: number / 3),
    "double": (Types.DOUBLE(), lambda number: -number / 7),
    "character": (Types.CHAR(), lambda number: chr(97 + number % 26)),
    "big int": (Types.BIG_INT(), lambda number: (number - 5) * 10**30),
    "decimal": (Types.BIG_DEC(), lambda number: decimal.Decimal(number * 31).scaleb(-number % 9)),
    "instant": (Types.INSTANT(), lambda number: Instant(number * 10**6, number)),
    "date": (Types.SQL_DATE(), lambda number: NOON.date() + datetime.timedelta(number)),
    "time": (Types.SQL_TIME(), lambda number: datetime.time(number % 24, 1, 2, number)),
    "timestamp": (Types.SQL_TIMESTAMP(), lambda number: NOON + datetime.timedelta(number, number)),
    "local date": (LocalTimeTypeInfo(_TimeType.LOCAL_DATE), lambda number: NOON.date() - datetime.timedelta(number)),
    "local time": (LocalTimeTypeInfo(_TimeType.LOCAL_TIME), lambda number: datetime.time(0, number % 60, 2, number)),
    "local timestamp": (LocalTimeTypeInfo(_TimeType.LOCAL_DATE_TIME), lambda number: NOON - datetime.timedelta(number)),
    "bytes": (Types.PRIMITIVE_ARRAY(Types.BYTE()), lambda number: bytes([number % 256]) * (number % 4)),
    "numbers": (Types.PRIMITIVE_ARRAY(Types.LONG()), lambda number: list(range(number % 5))),
    "texts": (Types.BASIC_ARRAY(Types.STRING()), lambda number: ["a", None, f"{number}"][: number % 4]),
    "rows in an array": (Types.OBJECT_ARRAY(ADDRESS), lambda number: [Row(city="x", zip=number), None][: number % 3]),
    "lists": (Types.LIST(Types.LIST(Types.DOUBLE())), lambda number: [[0.5 * number], [], None][: number % 4]),
    "map": (Types.MAP(Types.LONG(), Types.STRING()), lambda number: {number: "a", -number - 1: None}),
    "map of tuples": (
        Types.MAP(Types.TUPLE([Types.STRING(), Types.INT()]), Types.LIST(Types.INT())),
        lambda number: {("a", each): [each] for each in range(number % 3)},
    ),
    "tuple": (Types.TUPLE([Types.LONG(), Types.STRING()]), lambda number: (number, f"{number}")),
    "nested tuple": (
        Types.TUPLE([Types.TUPLE([Types.BOOLEAN()]), Types.TUPLE([])]),
        lambda number: ((number > 3,), ()),
    ),
    "row": (ADDRESS, lambda number: Row(city=f"city {number}", zip=number)),
    "rows": (
        Types.ROW_NAMED(["at", "home", "tags"], [Types.SQL_TIMESTAMP(), ADDRESS, Types.MAP(Types.STRING(), ADDRESS)]),
        lambda number: Row(
            at=NOON, home=None if number % 4 == 1 else Row(city="a", zip=3), tags={"x": Row(city=None, zip=number)}
        ),
    ),
    "rows that change a table": (
        ADDRESS,
        lambda number: Row.of_kind(list(RowKind)[number % 4], city=f"city {number}", zip=number),
    ),
}

_BASIC: Final[dict[BasicType, type]] = {
    BasicType.STRING: str,
    BasicType.CHAR: str,
    BasicType.BOOLEAN: bool,
    BasicType.FLOAT: float,
    BasicType.DOUBLE: float,
    BasicType.BIG_INT: int,
    BasicType.BIG_DEC: decimal.Decimal,
    BasicType.INSTANT: Instant,
}
_BITS: Final = {BasicType.BYTE: 8, BasicType.SHORT: 16, BasicType.INT: 32, BasicType.LONG: 64}
_LOCAL: Final = {
    _TimeType.LOCAL_DATE: datetime.date,
    _TimeType.LOCAL_TIME: datetime.time,
    _TimeType.LOCAL_DATE_TIME: datetime.datetime,
}


def is_of_type(value: Any, type_info: TypeInformation) -> bool:
    """Whether a value that was read is None or exactly of the type, with all its parts."""
    if value is None:
        return True
    match type_info:
        case BasicTypeInfo(basic_type=basic) if basic in _BITS:
            return type(value) is int and -(1 << _BITS[basic] - 1) <= value < 1 << _BITS[basic] - 1
        case BasicTypeInfo(basic_type=basic):
            return type(value) is _BASIC[basic] and (basic is not BasicType.CHAR or len(str(value)) == 1)
        case DateTypeInfo():
            return type(value) is datetime.date
        case TimeTypeInfo():
            return type(value) is datetime.time and value.tzinfo is None
        case TimestampTypeInfo():
            return type(value) is datetime.datetime and value.tzinfo is None
        case LocalTimeTypeInfo():
            return type(value) is _LOCAL[type_info.time_type] and getattr(value, "tzinfo", None) is None
        case PrimitiveArrayTypeInfo(elem_type=BasicTypeInfo(basic_type=BasicType.BYTE)):
            return type(value) is bytes
        case PrimitiveArrayTypeInfo():
            return (
                type(value) is list
                and None not in value
                and all(is_of_type(each, type_info.elem_type) for each in value)
            )
        case ListTypeInfo() | BasicArrayTypeInfo() | ObjectArrayTypeInfo():
            return type(value) is list and all(is_of_type(each, type_info.elem_type) for each in value)
        case MapTypeInfo():
            entries = value.items() if type(value) is dict else [(object(), None)]
            return all(
                is_of_type(key, type_info.key_type_info) and is_of_type(each, type_info.value_type_info)
                for key, each in entries
            )
        case TupleTypeInfo():
            return type(value) is tuple and _are_of_types(list(value), type_info.get_field_types())
        case RowTypeInfo():
            names = type_info.get_field_names()
            return (
                type(value) is Row
                and list(value.as_dict()) == names
                and _are_of_types(list(value), type_info.get_field_types())
            )
        case _:
            raise AssertionError(f"no example of {type_info!r}")


def _are_of_types(values: list[Any], types: list[TypeInformation]) -> bool:
    return len(values) == len(types) and all(map(is_of_type, values, types))
