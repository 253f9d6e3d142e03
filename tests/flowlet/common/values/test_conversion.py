"""Promises of ``element_converter``."""

import datetime
import decimal
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common import Row, RowKind, TypeInformation, Types
from flowlet.common.values.conversion import element_converter

PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])


@pytest.mark.parametrize(
    "value", [("Alice", 11), ["Alice", 11], {"age": 11, "name": "Alice", "more": 0}, Row("Alice", 11)]
)
def test_everything_row_like_becomes_the_declared_row(value: object) -> None:
    assert element_converter(PERSON)(value) == Row(name="Alice", age=11)


def test_a_row_keeps_its_kind() -> None:
    assert element_converter(PERSON)(Row.of_kind(RowKind.DELETE, "Alice", 11)) == Row.of_kind(
        RowKind.DELETE, name="Alice", age=11
    )


def test_lists_become_the_declared_tuple_at_every_depth() -> None:
    type_info = Types.TUPLE(
        [Types.LIST(Types.TUPLE([Types.INT()])), Types.MAP(Types.STRING(), Types.TUPLE([Types.INT()]))]
    )

    assert element_converter(type_info)([[[1], (2,)], {"a": [3]}]) == ([(1,), (2,)], {"a": (3,)})


@pytest.mark.parametrize(
    "type_info",
    [
        Types.STRING(),
        Types.INT(),
        PERSON,
        Types.TUPLE([Types.INT()]),
        Types.LIST(Types.INT()),
        Types.SQL_DATE(),
        Types.MAP(Types.INT(), Types.INT()),
    ],
)
def test_none_is_of_every_type(type_info: TypeInformation) -> None:
    assert element_converter(type_info)(None) is None


@pytest.mark.parametrize(
    ("value", "type_info"),
    [
        ("x", Types.STRING()),
        ("x", Types.CHAR()),
        (True, Types.BOOLEAN()),
        (1.5, Types.DOUBLE()),
        (2**80, Types.BIG_INT()),
        (decimal.Decimal(1), Types.BIG_DEC()),
        (datetime.date(2024, 1, 1), Types.SQL_DATE()),
        (datetime.time(1), Types.SQL_TIME()),
        (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), Types.SQL_TIMESTAMP()),
        (object(), Types.PICKLED_BYTE_ARRAY()),
        (b"x", Types.PRIMITIVE_ARRAY(Types.BYTE())),
        (object(), Types.INSTANT()),
    ],
)
def test_a_leaf_of_its_type_is_kept_as_it_is(value: object, type_info: TypeInformation) -> None:
    assert element_converter(type_info)(value) is value


@pytest.mark.parametrize(
    ("value", "type_info", "message"),
    [
        (1.5, Types.STRING(), "1.5 is of type float, not String"),
        ("1", Types.INT(), "'1' is of type str, not Integer"),
        (1.0, Types.LONG(), "1.0 is of type float, not Long"),
        (True, Types.INT(), "True is of type bool, not Integer"),
        (False, Types.DOUBLE(), "False is of type bool, not Double"),
        (1, Types.BOOLEAN(), "1 is of type int, not Boolean"),
        ("ab", Types.CHAR(), "'ab' is not one character"),
        (("Alice", "x"), PERSON, "'x' is of type str, not Integer"),
        (("Alice",), PERSON, r"is no RowTypeInfo\(name: String, age: Integer\): a row of 1 fields, declared are 2"),
        ({"name": "Alice"}, PERSON, "has no 'age'"),
        (7, PERSON, "7 is of type int"),
        ((1, 2), Types.TUPLE([Types.INT()]), "2 fields"),
        ({1}, Types.LIST(Types.INT()), "of type set"),
        ([1], Types.MAP(Types.INT(), Types.INT()), "of type list"),
        ({"a": 1}, Types.MAP(Types.INT(), Types.INT()), "'a' is of type str"),
        ("2024-01-01", Types.SQL_DATE(), "of type str, not DateTypeInfo"),
        (1, Types.SQL_TIME(), "not TimeTypeInfo"),
        (datetime.date(2024, 1, 1), Types.SQL_TIMESTAMP(), "not TimestampTypeInfo"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(value: object, type_info: TypeInformation, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        element_converter(type_info)(value)


def test_integers_of_64_bits_fit_into_them() -> None:
    convert, limit = element_converter(Types.LONG()), 1 << 63

    assert convert(limit - 1) == limit - 1
    assert convert(-limit) == -limit
    for value in (limit, -limit - 1):
        with pytest.raises(TypeError, match="does not fit into the 64 bits"):
            convert(value)


def test_an_error_says_where() -> None:
    with pytest.raises(TypeError, match=r"^element 1: field 'age': 'x' is of type str, not Integer"):
        element_converter(Types.LIST(PERSON))([("a", 1), ("b", "x")])


@given(values=st.lists(st.tuples(st.text(), st.integers(-(2**31), 2**31 - 1))))
def test_conversion_happens_once(values: list[tuple[str, int]]) -> None:
    """A value that already has the declared shape is converted to an equal value."""
    type_info = Types.LIST(PERSON)

    once = element_converter(type_info)(values)

    assert element_converter(type_info)(once) == once
    assert [tuple(row) for row in once] == values


def test_a_named_row_is_read_by_its_names() -> None:
    assert element_converter(PERSON)(Row(age=11, name="Alice")) == Row(name="Alice", age=11)
    with pytest.raises(TypeError, match="a row without the field 'age'"):
        element_converter(PERSON)(Row(name="Alice", years=11))
    with pytest.raises(TypeError, match="a row with the field 'years', which is not declared"):
        element_converter(PERSON)(Row(name="Alice", age=11, years=11))


@pytest.mark.parametrize(("make", "code"), [(Types.BYTE, "b"), (Types.SHORT, "h"), (Types.INT, "i")])
@given(value=st.integers(-(2**70), 2**70))
def test_integers_of_a_collection_wrap_around(make: type[TypeInformation], code: str, value: int) -> None:
    """The lowest bits of an integer count, as in Java's ``byteValue``, ``shortValue`` and ``intValue``."""
    size = struct.calcsize(code)

    expected = struct.unpack(f"<{code}", (value & (1 << 8 * size) - 1).to_bytes(size, "little"))[0]

    assert element_converter(make())(value) == expected


@pytest.mark.parametrize(
    ("value", "type_info", "expected"),
    [
        (1.1, Types.FLOAT(), 1.100000023841858),
        (1, Types.DOUBLE(), 1.0),
        (5, Types.STRING(), "5"),
        (("a", 2**31), PERSON, Row(name="a", age=-(2**31))),
    ],
)
def test_elements_of_a_collection_become_what_java_makes_of_them(
    value: object, type_info: TypeInformation, expected: object
) -> None:
    converted = element_converter(type_info)(value)

    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("value", "type_info"),
    [
        (1.7, Types.INT()),
        (True, Types.INT()),
        (2**63, Types.LONG()),
        (True, Types.STRING()),
        (1.5, Types.STRING()),
        ("1", Types.FLOAT()),
    ],
)
def test_elements_of_another_kind_are_refused(value: object, type_info: TypeInformation) -> None:
    with pytest.raises(TypeError):
        element_converter(type_info)(value)
