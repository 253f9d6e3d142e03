"""Every declared type, and strategies of its values, for tests of the formats."""

import datetime
import decimal
from typing import Any, Final

from hypothesis import strategies as st

from flowlet.common import Instant, Row, TypeInformation, Types
from flowlet.common.typeinfo import (
    BasicArrayTypeInfo,
    ListTypeInfo,
    LocalTimeTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
)

TimeType = LocalTimeTypeInfo.TimeType
TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]))
DECIMALS: Final = st.decimals(allow_nan=False, allow_infinity=False)
MOMENTS: Final = st.datetimes()
INSTANTS: Final = st.builds(Instant, st.integers(-62_135_596_800, 253_402_300_799), st.integers(0, 999_999_999))

PLAIN: Final[dict[str, tuple[TypeInformation, st.SearchStrategy[Any]]]] = {
    "STRING": (Types.STRING(), TEXTS),
    "CHAR": (Types.CHAR(), st.characters(exclude_categories=["Cs"])),
    "BOOLEAN": (Types.BOOLEAN(), st.booleans()),
    "BYTE": (Types.BYTE(), st.integers(-128, 127)),
    "SHORT": (Types.SHORT(), st.integers(-(2**15), 2**15 - 1)),
    "INT": (Types.INT(), st.integers(-(2**31), 2**31 - 1)),
    "LONG": (Types.LONG(), st.integers(-(2**63), 2**63 - 1)),
    "FLOAT": (Types.FLOAT(), st.floats(width=32)),
    "DOUBLE": (Types.DOUBLE(), st.floats()),
    "BIG_INT": (Types.BIG_INT(), st.integers(-(10**40), 10**40)),
    "BIG_DEC": (Types.BIG_DEC(), DECIMALS),
    "INSTANT": (Types.INSTANT(), INSTANTS),
    "SQL_DATE": (Types.SQL_DATE(), st.dates()),
    "SQL_TIME": (Types.SQL_TIME(), st.times()),
    "SQL_TIMESTAMP": (Types.SQL_TIMESTAMP(), MOMENTS),
    "LOCAL_DATE": (LocalTimeTypeInfo(TimeType.LOCAL_DATE), st.dates()),
    "LOCAL_TIME": (LocalTimeTypeInfo(TimeType.LOCAL_TIME), st.times()),
    "LOCAL_DATE_TIME": (LocalTimeTypeInfo(TimeType.LOCAL_DATE_TIME), MOMENTS),
    "bytes": (Types.PRIMITIVE_ARRAY(Types.BYTE()), st.binary()),
    "LIST of BYTE": (Types.LIST(Types.BYTE()), st.binary()),
}
PAIR: Final = Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.INT()])
COMPOSITE: Final[dict[str, tuple[TypeInformation, st.SearchStrategy[Any]]]] = {
    "PRIMITIVE_ARRAY": (Types.PRIMITIVE_ARRAY(Types.LONG()), st.lists(st.integers(-(2**63), 2**63 - 1))),
    "BASIC_ARRAY": (Types.BASIC_ARRAY(Types.STRING()), st.lists(st.none() | TEXTS)),
    "OBJECT_ARRAY": (
        Types.OBJECT_ARRAY(PAIR),
        st.lists(st.none() | st.builds(lambda a, b: Row(b=b, a=a), TEXTS, st.integers(0, 9))),
    ),
    "LIST": (Types.LIST(Types.DOUBLE()), st.lists(st.floats(allow_nan=False))),
    "MAP": (Types.MAP(Types.STRING(), Types.BIG_DEC()), st.dictionaries(TEXTS, st.none() | DECIMALS)),
    "MAP of INT": (Types.MAP(Types.INT(), Types.SQL_DATE()), st.dictionaries(st.integers(-9, 9), st.dates())),
    "TUPLE": (Types.TUPLE([Types.INT(), Types.STRING()]), st.tuples(st.integers(0, 9), TEXTS)),
    "ROW": (Types.ROW([Types.INT(), PAIR]), st.builds(lambda a, b: Row(a, Row(b, a)), st.integers(0, 9), TEXTS)),
    "ROW_NAMED": (PAIR, st.builds(lambda a, b: Row(b=b, a=a), TEXTS, st.none() | st.integers(0, 9))),
}
ALL: Final = {**PLAIN, **COMPOSITE}
EXAMPLES: Final[dict[str, Any]] = {
    "STRING": "a",
    "CHAR": "a",
    "BOOLEAN": True,
    "BYTE": -7,
    "SHORT": 300,
    "INT": 70_000,
    "LONG": 2**40,
    "FLOAT": 1.5,
    "DOUBLE": 0.1,
    "BIG_INT": 2**62,
    "BIG_DEC": decimal.Decimal("1.50"),
    "INSTANT": Instant(1_700_000_000, 5_000_000),
    "SQL_DATE": datetime.date(2024, 2, 29),
    "SQL_TIME": datetime.time(12, 30, 15, 5),
    "SQL_TIMESTAMP": datetime.datetime(2024, 2, 29, 12, 30, 15, 5),  # noqa: DTZ001 - a time on the wall
    "LOCAL_DATE": datetime.date(2024, 2, 29),
    "LOCAL_TIME": datetime.time(12, 30, 15, 5),
    "LOCAL_DATE_TIME": datetime.datetime(2024, 2, 29, 12, 30, 15, 5),  # noqa: DTZ001 - as above
    "bytes": b"a\xff",
    "LIST of BYTE": b"a\xff",
    "PRIMITIVE_ARRAY": [1, -2],
    "BASIC_ARRAY": ["a", "b"],
    "OBJECT_ARRAY": [Row(b=1, a="x")],
    "LIST": [0.5, 1.0],
    "MAP": {"k": decimal.Decimal("2.5")},
    "MAP of INT": {3: datetime.date(2024, 2, 29)},
    "TUPLE": (1, "a"),
    "ROW": Row(1, Row("a", 2)),
    "ROW_NAMED": Row(b=1, a="x"),
}


def described(value: Any, type_info: TypeInformation) -> Any:
    """Return the value by the names of its fields; floats by their text, in which NaN is equal to itself, and -0.0 is
    not 0.0.
    """
    match type_info:
        case _ if value is None:
            return None
        case RowTypeInfo():
            names, types = type_info.get_field_names(), type_info.get_field_types()
            fields = (
                dict(zip(names, value, strict=True))
                if isinstance(value, tuple) or not has_names(value)
                else value.as_dict()
            )
            return {name: described(fields[name], kind) for name, kind in zip(names, types, strict=True)}
        case TupleTypeInfo():
            return tuple(described(each, kind) for each, kind in zip(value, type_info.get_field_types(), strict=True))
        case MapTypeInfo():
            return {key: described(each, type_info.value_type_info) for key, each in value.items()}
        case ListTypeInfo() | BasicArrayTypeInfo() | ObjectArrayTypeInfo() | PrimitiveArrayTypeInfo() if isinstance(
            value, list
        ):
            return [described(each, type_info.elem_type) for each in value]
        case _:
            return type(value), repr(value) if isinstance(value, float) else value


def has_names(row: Row) -> bool:
    return not repr(row).startswith("<Row")
