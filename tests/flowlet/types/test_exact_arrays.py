"""Columns of exactly the values that a declared type has."""

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.common.types import Row
from flowlet.serde.type_serializer import ValueMismatchError
from flowlet.types.gate_forms import exact_array
from flowlet.types.leaf_forms import arrow_type_of

ADDRESS = Types.ROW_NAMED(["street", "lines"], [Types.STRING(), Types.LIST(Types.LONG())])


@pytest.mark.parametrize(
    ("type_info", "arrow"),
    [
        (Types.LONG(), pa.int64()),
        (Types.STRING(), pa.string()),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), pa.binary()),
        (Types.PRIMITIVE_ARRAY(Types.LONG()), pa.list_(pa.int64())),
        (Types.LIST(Types.LIST(Types.DOUBLE())), pa.list_(pa.list_(pa.float64()))),
        (ADDRESS, pa.struct([("street", pa.string()), ("lines", pa.list_(pa.int64()))])),
        (Types.PICKLED_BYTE_ARRAY(), None),
        (Types.LIST(Types.PICKLED_BYTE_ARRAY()), None),
        (Types.ROW_NAMED(["a"], [Types.BIG_INT()]), None),
    ],
    ids=str,
)
def test_a_declared_type_has_an_arrow_type_or_none(type_info: TypeInformation, arrow: pa.DataType | None) -> None:
    assert arrow_type_of(type_info) == arrow


@pytest.mark.parametrize(
    ("values", "arrow"),
    [
        ([1, None, -(2**63)], pa.int64()),
        ([1.5, None, float("inf"), -0.0], pa.float64()),
        (["a\0b", "", None, "ä"], pa.string()),
        ([True, None, False], pa.bool_()),
        ([datetime.date(1, 1, 1), None], pa.date32()),
        ([datetime.time(23, 59, 59, 999999), None], pa.time64("us")),
        ([decimal.Decimal("1.50"), None], pa.decimal128(12, 2)),
        ([[1, None], None, []], pa.list_(pa.int64())),
        ([[["a"], None], []], pa.list_(pa.list_(pa.string()))),
        ([], pa.int64()),
        ([], pa.list_(pa.int64())),
        ([], pa.struct([("a", pa.int64())])),
    ],
    ids=repr,
)
def test_values_come_back_as_they_were(values: list[Any], arrow: pa.DataType) -> None:
    array = exact_array(values, arrow)

    assert array.type == arrow
    assert repr(array.to_pylist()) == repr(values)


def test_rows_become_structs() -> None:
    arrow = arrow_type_of(ADDRESS)
    assert arrow is not None

    array = exact_array([Row(street="a", lines=[1, 2]), None, ("b", None)], arrow)

    assert array.to_pylist() == [{"street": "a", "lines": [1, 2]}, None, {"street": "b", "lines": None}]


def test_nan_is_no_null() -> None:
    assert exact_array([float("nan"), None], pa.float64()).is_null().to_pylist() == [False, True]


@pytest.mark.parametrize(
    ("wrong", "arrow"),
    [
        (1.5, pa.int64()),
        (True, pa.int64()),
        (2**63, pa.int64()),
        (128, pa.int8()),
        (1, pa.float64()),
        (1, pa.bool_()),
        (b"a", pa.string()),
        ("\ud800", pa.string()),
        (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC), pa.date32()),
        (1.5, pa.decimal128(12, 2)),
        ("ab", pa.list_(pa.string())),
        ([1, "a"], pa.list_(pa.int64())),
        ((1, 2), pa.struct([("a", pa.int64())])),
        (5, pa.struct([("a", pa.int64())])),
        ("x", pa.struct([("a", pa.string())])),
        ({"a": "x"}, pa.struct([("a", pa.string())])),
        ({"a": 1}, pa.map_(pa.string(), pa.int64())),
    ],
    ids=repr,
)
def test_what_would_have_to_be_changed_is_refused(wrong: Any, arrow: pa.DataType) -> None:
    """Arrow itself would cut 1.5 to 1."""
    with pytest.raises(ValueMismatchError, match=r" of type .* is no | has 2 fields, "):
        exact_array([None, wrong], arrow)
