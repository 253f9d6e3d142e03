"""The types that take the values of other types, and how."""

import pickle
from typing import Any

import pytest

from flowlet.common import Row, Types
from flowlet.common.typeinfo import TypeInformation
from flowlet.common.types import RowKind
from flowlet.errors import StateRestoreError
from flowlet.state.type_compatibility import converter, type_form

NAME_AND_AGE = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])


def converted(written: TypeInformation, declared: TypeInformation, value: Any) -> Any:
    convert = converter(type_form(written), type_form(declared))
    return value if convert is None else convert(value)


ALL_TYPES = [
    Types.STRING(), Types.LONG(), Types.PICKLED_BYTE_ARRAY(), Types.SQL_DATE(), Types.INSTANT(), NAME_AND_AGE, Types.ROW([Types.INT()]),  # noqa: E501
    Types.TUPLE([Types.STRING(), Types.INT()]), Types.MAP(Types.STRING(), Types.INT()), Types.LIST(Types.INT()),
    Types.PRIMITIVE_ARRAY(Types.INT()), Types.BASIC_ARRAY(Types.INT()), Types.OBJECT_ARRAY(Types.INT()),
]  # fmt: skip


@pytest.mark.parametrize("written", ALL_TYPES, ids=repr)
def test_a_type_takes_its_own_values_and_no_others(written: TypeInformation) -> None:
    assert converter(pickle.loads(pickle.dumps(type_form(written))), type_form(written)) is None
    for declared in ALL_TYPES:
        if declared != written:
            with pytest.raises(StateRestoreError) as caught:
                converter(type_form(written), type_form(declared))
            assert str(type_form(written)) in str(caught.value)
            assert str(type_form(declared)) in str(caught.value)


INTEGERS = [Types.BYTE(), Types.SHORT(), Types.INT(), Types.LONG(), Types.BIG_INT()]


@pytest.mark.parametrize(
    ("narrow", "wide"), [(narrow, wide) for at, narrow in enumerate(INTEGERS) for wide in INTEGERS[at + 1 :]], ids=repr
)
def test_a_wider_integer_takes_a_narrower_one_and_not_the_other_way_round(
    narrow: TypeInformation, wide: TypeInformation
) -> None:
    assert converted(narrow, wide, 5) == 5
    with pytest.raises(StateRestoreError, match=f"{narrow!r} does not hold every {wide!r}"):
        converter(type_form(wide), type_form(narrow))


@pytest.mark.parametrize(
    ("written", "declared", "is_exact"),
    [
        (Types.FLOAT(), Types.DOUBLE(), True),
        (Types.DOUBLE(), Types.FLOAT(), False),
        (Types.BYTE(), Types.FLOAT(), True),
        (Types.SHORT(), Types.FLOAT(), True),
        (Types.INT(), Types.FLOAT(), False),
        (Types.INT(), Types.DOUBLE(), True),
        (Types.LONG(), Types.DOUBLE(), False),
        (Types.BIG_INT(), Types.DOUBLE(), False),
        (Types.DOUBLE(), Types.LONG(), False),
        (Types.BOOLEAN(), Types.INT(), False),
        (Types.LONG(), Types.STRING(), False),
    ],
)
def test_numbers_become_others_only_if_nothing_is_lost(
    written: TypeInformation, declared: TypeInformation, is_exact: bool
) -> None:
    if is_exact:
        value = converted(written, declared, 1.5 if written == Types.FLOAT() else 3)
        assert (type(value), value) == (float, 1.5 if written == Types.FLOAT() else 3.0)
        assert converted(written, declared, None) is None
    else:
        with pytest.raises(StateRestoreError, match="values of type"):
            converter(type_form(written), type_form(declared))


def test_a_value_that_is_no_number_is_not_made_one() -> None:
    with pytest.raises(TypeError, match="'12' is no int"):
        converted(Types.INT(), Types.DOUBLE(), "12")


def test_text_takes_characters() -> None:
    assert converted(Types.CHAR(), Types.STRING(), "x") == "x"


def test_a_tuple_may_get_fields_at_its_end() -> None:
    written = Types.TUPLE([Types.STRING(), Types.INT()])
    declared = Types.TUPLE([Types.STRING(), Types.DOUBLE(), Types.LIST(Types.LONG())])

    assert converted(written, declared, ("a", 1)) == ("a", 1.0, None)
    assert converted(written, declared, None) is None
    assert converter(type_form(written), type_form(Types.TUPLE([Types.STRING(), Types.LONG()]))) is None
    with pytest.raises(StateRestoreError, match="3 fields were written, 2 are declared; keep the others"):
        converter(type_form(declared), type_form(written))
    with pytest.raises(ValueError, match="zip"):
        converted(written, declared, ("a", 1, 2))


def test_a_row_may_get_fields_at_its_end_and_keeps_kind_and_names() -> None:
    declared = Types.ROW_NAMED(["name", "age", "city"], [Types.STRING(), Types.LONG(), Types.STRING()])
    person = Row(name="Ann", age=3)
    person.set_row_kind(RowKind.DELETE)

    grown = converted(NAME_AND_AGE, declared, person)
    without_names = converted(NAME_AND_AGE, declared, Row("Ann", 3))

    assert repr(grown) == repr(Row(name="Ann", age=3, city=None))
    assert grown.get_row_kind() is RowKind.DELETE
    assert without_names == Row("Ann", 3, None)
    assert repr(converted(NAME_AND_AGE, declared, Row(age=3, name="Ann"))) == repr(Row(name="Ann", age=3, city=None))
    assert person == Row.of_kind(RowKind.DELETE, name="Ann", age=3)
    assert converted(NAME_AND_AGE, declared, None) is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["name", "years"],
            "field 'age' is 'years' now; keep the names and their order, and add new fields at the end",
        ),
        (["age", "name"], "field 'name' is 'age' now"),
        (["first", "name", "age"], "field 'name' is 'first' now"),
    ],
)
def test_fields_of_rows_are_neither_renamed_nor_moved(names: list[str], message: str) -> None:
    declared = Types.ROW_NAMED(names, [Types.STRING(), Types.INT(), Types.INT()][: len(names)])

    with pytest.raises(StateRestoreError, match=message):
        converter(type_form(NAME_AND_AGE), type_form(declared))


def test_what_is_inside_is_converted_and_what_does_not_fit_is_named_with_its_place() -> None:
    written = Types.MAP(Types.INT(), Types.LIST(Types.TUPLE([Types.INT()])))
    declared = Types.MAP(Types.LONG(), Types.LIST(Types.TUPLE([Types.DOUBLE()])))

    assert converted(written, declared, {1: [(2,)], 3: None}) == {1: [(2.0,)], 3: None}
    assert converted(written, declared, None) is None
    assert converter(type_form(Types.LIST(Types.INT())), type_form(Types.LIST(Types.LONG()))) is None
    assert (
        converter(type_form(Types.MAP(Types.INT(), Types.INT())), type_form(Types.MAP(Types.INT(), Types.LONG())))
        is None
    )
    with pytest.raises(StateRestoreError, match="its values: its elements: field '0': String was written"):
        converter(type_form(Types.MAP(Types.INT(), Types.LIST(Types.TUPLE([Types.STRING()])))), type_form(declared))
    with pytest.raises(StateRestoreError, match="its keys: Integer would become other keys"):
        converter(type_form(Types.MAP(Types.INT(), Types.INT())), type_form(Types.MAP(Types.DOUBLE(), Types.INT())))


def test_arrays_of_primitives_stay_as_they_are() -> None:
    """Bytes are ``bytes``, other numbers are lists."""
    with pytest.raises(StateRestoreError, match="PrimitiveArray"):
        converter(type_form(Types.PRIMITIVE_ARRAY(Types.BYTE())), type_form(Types.PRIMITIVE_ARRAY(Types.INT())))
