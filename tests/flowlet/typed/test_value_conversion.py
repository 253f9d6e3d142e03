"""Promises of ``value_converter``: what PyFlink's coders make of a value, and which values they refuse."""

import ctypes
import datetime
import decimal
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common import Instant, Row, RowKind, TypeInformation, Types
from flowlet.common.typeinfo import LocalTimeTypeInfo
from flowlet.common.values.conversion import element_converter
from flowlet.common.values.field_values import TypeMismatchError
from flowlet.typed.value_conversion import changes_values, value_converter, written_text
from tests.flowlet.serde.exact import exact

PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])
PAIR = Types.TUPLE([Types.STRING(), Types.INT()])
MOMENT = datetime.datetime.fromisoformat("2020-01-02T03:04:05.678901")
BERLIN = datetime.timezone(datetime.timedelta(hours=1))


def converted(value: Any, type_info: TypeInformation, *, is_collected: bool = False) -> Any:
    convert = value_converter(type_info, is_collected=is_collected)
    assert convert is not None
    return convert(value)


@pytest.mark.parametrize(("make", "bits"), [(Types.BYTE, 8), (Types.SHORT, 16), (Types.INT, 32), (Types.LONG, 64)])
@given(value=st.integers(-(2**70), 2**70) | st.integers(-300, 300))
def test_integers_are_kept_if_their_bits_hold_them_else_refused(make: Any, bits: int, value: int) -> None:
    """The limits are those of ``struct``; PyFlink's coders raise OverflowError."""
    code = {8: "b", 16: "h", 32: "i", 64: "q"}[bits]
    try:
        expected = struct.unpack(f">{code}", struct.pack(f">{code}", value))[0]
    except struct.error:
        with pytest.raises(TypeMismatchError, match=f"{value} of type int does not fit into {bits} bits"):
            converted(value, make())
    else:
        assert exact(converted(value, make())) == exact(expected)


@given(value=st.floats(-(2.0**31), 2.0**31 - 1) | st.decimals(-1000, 1000) | st.booleans())
def test_other_numbers_become_integers_towards_zero(value: Any) -> None:
    assert exact(converted(value, Types.INT())) == exact(int(value))


@given(value=st.floats() | st.integers(-(2**40), 2**40))
def test_float_is_rounded_to_32_bits_and_double_is_not(value: float) -> None:
    assert exact(converted(value, Types.FLOAT())) == exact(ctypes.c_float(value).value)
    assert exact(converted(value, Types.DOUBLE())) == exact(float(value))


@given(value=st.floats(width=32, allow_nan=False))  # a text has no sign of nan
def test_a_collected_float_is_the_number_that_java_prints(value: float) -> None:
    """PyFlink's ``execute_and_collect`` reads the text of Java's float: 1.1, not 1.100000023841858."""
    collected = converted(value, Types.FLOAT(), is_collected=True)

    assert exact(ctypes.c_float(collected).value) == exact(value)
    assert converted(1.1, Types.FLOAT(), is_collected=True) == 1.1
    assert converted(1.1, Types.FLOAT()) == 1.100000023841858


@pytest.mark.parametrize(
    ("value", "type_info", "expected"),
    [
        (np.int64(7), Types.INT(), 7),
        (np.float32(1.5), Types.DOUBLE(), 1.5),
        (2**70, Types.BIG_INT(), 2**70),
        (2, Types.BOOLEAN(), True),
        (0.0, Types.BOOLEAN(), False),
        (np.str_("a"), Types.STRING(), "a"),
        ("a", Types.CHAR(), "a"),
        (1e300, Types.FLOAT(), float("inf")),
        (5, Types.BIG_DEC(), decimal.Decimal(5)),
        (1.5, Types.BIG_DEC(), decimal.Decimal("1.5")),
        (MOMENT, Types.SQL_DATE(), datetime.date(2020, 1, 2)),
        (MOMENT.time(), Types.SQL_TIME(), datetime.time(3, 4, 5, 678000)),
        (MOMENT, Types.SQL_TIMESTAMP(), MOMENT.replace(microsecond=678000)),
        (MOMENT.replace(tzinfo=BERLIN), Types.SQL_TIMESTAMP(), MOMENT.replace(microsecond=678000)),
        (Instant(1, 2), Types.INSTANT(), Instant(1, 2)),
        (MOMENT.time().replace(tzinfo=BERLIN), LocalTimeTypeInfo(LocalTimeTypeInfo.TimeType.LOCAL_TIME), MOMENT.time()),
        (MOMENT.replace(tzinfo=BERLIN), LocalTimeTypeInfo(LocalTimeTypeInfo.TimeType.LOCAL_DATE_TIME), MOMENT),
        (MOMENT, LocalTimeTypeInfo(LocalTimeTypeInfo.TimeType.LOCAL_DATE), MOMENT.date()),
        (("a", True), PAIR, ("a", 1)),
        (("a", 1, "more"), PAIR, ("a", 1)),
        ((1.1,), Types.TUPLE([Types.FLOAT()]), (1.100000023841858,)),
        ((("a", 1.5), 1), Types.TUPLE([PAIR, Types.LONG()]), (("a", 1), 1)),
        (Row("a", 1), PERSON, Row(name="a", age=1)),
        (Row(age=1.5, name="a"), PERSON, Row(name="a", age=1)),
        (Row(None, None), PERSON, Row(name=None, age=None)),
        (Row.of_kind(RowKind.DELETE, "a", 1), PERSON, Row.of_kind(RowKind.DELETE, name="a", age=1)),
        (Row(Row("a", 1), [1.5]), Types.ROW([PERSON, Types.LIST(Types.INT())]), Row(f0=Row(name="a", age=1), f1=[1])),
        ([1, True], Types.LIST(Types.INT()), [1, 1]),
        (["a", None], Types.BASIC_ARRAY(Types.STRING()), ["a", None]),
        ([Row("a", 1), None], Types.OBJECT_ARRAY(PERSON), [Row(name="a", age=1), None]),
        (bytearray(b"ab"), Types.PRIMITIVE_ARRAY(Types.BYTE()), b"ab"),
        ({"a": 1.9, "b": None}, Types.MAP(Types.STRING(), Types.INT()), {"a": 1, "b": None}),
        (("a", object), Types.TUPLE([Types.STRING(), Types.PICKLED_BYTE_ARRAY()]), ("a", object)),
        (None, Types.STRING(), None),
        (None, Types.SQL_DATE(), None),
    ],
)
def test_values_become_what_pyflinks_coders_make_of_them(value: Any, type_info: TypeInformation, expected: Any) -> None:
    assert exact(converted(value, type_info)) == exact(expected)


@pytest.mark.parametrize(
    ("value", "type_info", "message"),
    [
        (5, Types.STRING(), "expected a str, got 5 of type int"),
        (b"x", Types.STRING(), "expected a str"),
        ("ab", Types.CHAR(), "expected a str of one character"),
        ("5", Types.INT(), "expected an int, got '5' of type str"),
        (None, Types.INT(), "expected an int, got None"),
        (float("nan"), Types.INT(), "nan of type float is no int"),
        ("5", Types.DOUBLE(), "expected a float"),
        (10**400, Types.FLOAT(), "is no float"),
        (256, Types.BOOLEAN(), "expected a bool"),
        ("x", Types.BIG_DEC(), "expected a decimal.Decimal"),
        ("2020-01-02", Types.SQL_DATE(), "expected a datetime.date"),
        (MOMENT.date(), Types.SQL_TIMESTAMP(), "expected a datetime.datetime"),
        (5, Types.INSTANT(), "expected an Instant"),
        (["a", 1], PAIR, "expected a tuple, got .* of type list"),
        (Row("a", 1), PAIR, "expected a tuple"),
        (("a",), PAIR, "has 1 fields, not 2"),
        (("a", None), PAIR, r"^field 1 \(Integer\): expected an int, got None"),
        (
            ((1, 1), 1),
            Types.TUPLE([PAIR, Types.INT()]),
            r"^field 0 \(TupleTypeInfo.*\), field 0 \(String\): expected a str",
        ),
        (("a", 1), PERSON, "expected a Row"),
        ({"name": "a", "age": 1}, PERSON, "expected a Row"),
        (Row("a"), PERSON, "a row of 1 fields, declared are 2"),
        (Row("a", 1, 2), PERSON, "a row of 3 fields, declared are 2"),  # PyFlink drops what is too much
        (Row(name="a", years=1), PERSON, "a row without the field 'age', its fields are 'name', 'years'"),
        (Row(name="a", age=1, years=1), PERSON, "a row with the field 'years', which is not declared"),
        (Row("a", "x"), PERSON, r"^field 'age' \(Integer\): expected an int"),
        (Row("a", 2**31), PERSON, "2147483648 of type int does not fit into 32 bits"),
        ((1, 2), Types.LIST(Types.INT()), "expected a list"),
        ([1, None], Types.LIST(Types.INT()), "element 1: expected an int, got None"),
        ([1, 2], Types.PRIMITIVE_ARRAY(Types.BYTE()), "expected bytes"),
        ([("a", 1)], Types.MAP(Types.STRING(), Types.INT()), "expected a dict"),
        ({None: 1}, Types.MAP(Types.STRING(), Types.INT()), "a key: expected a str"),
        ({"a": "x"}, Types.MAP(Types.STRING(), Types.INT()), "the value of 'a': expected an int"),
    ],
)
def test_values_of_another_type_are_refused_with_place_and_value(
    value: Any, type_info: TypeInformation, message: str
) -> None:
    with pytest.raises(TypeMismatchError, match=message):
        converted(value, type_info)


@pytest.mark.parametrize(
    ("value", "type_info"),
    [
        ("a", Types.STRING()),
        (("a", 1), PAIR),
        (Row(name="a", age=1), PERSON),
        (Row(name=None, age=1), PERSON),
        (1, Types.INT()),
    ],
)
def test_a_record_of_its_type_is_returned_itself(value: Any, type_info: TypeInformation) -> None:
    assert converted(value, type_info) is value


def test_any_object_needs_no_conversion() -> None:
    assert value_converter(Types.PICKLED_BYTE_ARRAY()) is None


def test_collected_times_have_no_fractions_and_bytes_are_lists() -> None:
    """The results are those of PyFlink's ``execute_and_collect``."""
    assert converted(MOMENT.time(), Types.SQL_TIME(), is_collected=True) == datetime.time(3, 4, 5)
    assert converted(b"a\xff", Types.PRIMITIVE_ARRAY(Types.BYTE()), is_collected=True) == [97, -1]


@pytest.mark.parametrize(
    ("type_info", "changes"),
    [
        (PAIR, False),
        (PERSON, True),
        (Types.MAP(Types.STRING(), Types.LIST(Types.FLOAT())), True),
        (Types.BASIC_ARRAY(Types.LONG()), False),
        (Types.TUPLE([Types.SQL_TIME()]), True),
        (Types.PICKLED_BYTE_ARRAY(), False),
    ],
)
def test_types_tell_whether_they_change_values_of_the_right_kind(type_info: TypeInformation, changes: bool) -> None:
    assert changes_values(type_info) is changes


VALUES = {
    Types.STRING(): st.text(),
    Types.INT(): st.integers(-(2**31), 2**31 - 1),
    Types.LONG(): st.integers(-(2**63), 2**63 - 1),
    Types.DOUBLE(): st.floats(),
    Types.BOOLEAN(): st.booleans(),
    Types.FLOAT(): st.floats(width=32),
}


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 2) -> tuple[TypeInformation, Any]:
    """Draw a type and a value of it."""
    kind = draw(st.sampled_from(["plain", "tuple", "row", "list", "map"] if depth else ["plain"]))
    if kind == "plain":
        plain = draw(st.sampled_from(list(VALUES)))
        return plain, draw(VALUES[plain])
    parts = [draw(typed_values(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    types, values = [each for each, _ in parts], [each for _, each in parts]
    match kind:
        case "tuple":
            return Types.TUPLE(types), tuple(values)
        case "row":
            names = [f"n{index}" for index in range(len(types))]
            return Types.ROW_NAMED(names, types), Row(**dict(zip(names, values, strict=True)))
        case "list":
            return Types.LIST(types[0]), [values[0]]
        case _:
            return Types.MAP(Types.STRING(), types[0]), {"k": values[0]}


@given(typed=typed_values())
def test_values_of_their_type_come_out_equal(typed: tuple[TypeInformation, Any]) -> None:
    type_info, value = typed

    assert exact(converted(value, type_info)) == exact(value)


def test_a_users_type_without_a_hash_changes_nothing() -> None:
    class Mine(TypeInformation):
        def __eq__(self, other: object) -> bool:
            return self is other

        __hash__ = None  # type: ignore[assignment]  # as Python does it where there is only ``__eq__``

    row = Types.TUPLE([Mine(), Types.INT()])

    assert value_converter(Mine()) is None
    assert converted((1.5, 2.0), row) == (1.5, 2)
    assert element_converter(row)([1.5, 2]) == (1.5, 2)
    assert written_text(row)((1.5, 2)) == "(1.5,2)"
