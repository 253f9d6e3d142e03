"""Tests of ``flowlet.state_reader.saved_state``: values keep their declared types, and nothing is refused."""

from typing import Any

import pyarrow as pa
import pytest

from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.common.types import Row
from flowlet.state.type_compatibility import type_form
from flowlet.state_reader.saved_state import arrow_column

PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])


@pytest.mark.parametrize(
    ("type_info", "values", "expected"),
    [
        (Types.STRING(), ["a", None], pa.string()),
        (Types.BYTE(), [1], pa.int8()),
        (Types.SHORT(), [1], pa.int16()),
        (Types.INT(), [1], pa.int32()),
        (Types.LONG(), [2**62], pa.int64()),
        (Types.FLOAT(), [0.5], pa.float32()),
        (Types.DOUBLE(), [0.1], pa.float64()),
        (Types.BOOLEAN(), [True], pa.bool_()),
        (Types.LIST(Types.LONG()), [[1, 2], []], pa.list_(pa.int64())),
        (Types.MAP(Types.STRING(), Types.INT()), [{"a": 1}], pa.map_(pa.string(), pa.int32())),
        (Types.TUPLE([Types.STRING(), Types.LONG()]), [("a", 1)], pa.struct([("f0", pa.string()), ("f1", pa.int64())])),
        (PERSON, [Row("Ann", 7), Row(name="Bob", age=8)], pa.struct([("name", pa.string()), ("age", pa.int32())])),
    ],
)
def test_a_declared_type_is_the_type_of_the_column(
    type_info: TypeInformation, values: list[Any], expected: pa.DataType
) -> None:
    """An empty column has it, too."""
    form = type_form(type_info)

    column = arrow_column(values, form)

    assert (column.type, len(column)) == (expected, len(values))
    assert arrow_column([], form).type == expected


def test_rows_and_tuples_inside_of_others() -> None:
    """Rows and tuples go by the names of their fields."""
    form = type_form(Types.LIST(Types.TUPLE([PERSON, Types.LONG()])))

    column = arrow_column([[(Row("Ann", 7), 1)]], form)

    assert column.to_pylist() == [[{"f0": {"name": "Ann", "age": 7}, "f1": 1}]]


def test_without_a_declared_type_it_is_what_arrow_finds() -> None:
    assert arrow_column([1, 2]).type == pa.int64()
    form = type_form(PERSON)
    assert arrow_column([Row(age=7, name="Ann")], form).to_pylist() == [{"name": "Ann", "age": 7}]
    assert arrow_column([Row(name="Ann")]).to_pylist() == [{"name": "Ann"}]
    assert arrow_column([Row(1, "b")]).to_pylist() == [{"f0": 1, "f1": "b"}]


def test_what_arrow_does_not_know_is_a_text() -> None:
    """One value of that kind in the column is enough."""
    assert arrow_column([1, {2}, "text", None]).to_pylist() == ["1", "{2}", "text", None]


def test_values_that_do_not_have_the_declared_type_are_not_lost() -> None:
    assert arrow_column(["a"], type_form(Types.LONG())).to_pylist() == ["a"]
    assert arrow_column([2**70], type_form(Types.LONG())).to_pylist() == [str(2**70)]
