"""Tables joined are the records of all of them; tables that do not fit together stay apart."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    Columns,
    ConstantColumn,
    ListColumn,
    NameTable,
    Shape,
    ShortTextColumn,
    columns_of,
    concatenated,
    try_concatenate,
)
from tests.flowlet.columns.test_short_texts import heads_of
from tests.flowlet.serde.exact import ATOMS, columns, exact

TABLE = NameTable(["a", "b"])
INTS = ArrayColumn(np.array([1, 2]))
TEXTS = ListColumn(["x", "y"], str)
SHORT_TEXTS = ShortTextColumn(heads_of(["x", "y"]))


def scalar(column: Column) -> Columns:
    return Columns(len(column), (column,), Shape.SCALAR)


def kinds() -> st.SearchStrategy[list[list[Any]]]:
    """Draw several lists of records, all with fields of one drawn form."""
    shapes = st.lists(st.sampled_from(list(ATOMS.values())), min_size=1, max_size=3)
    return shapes.flatmap(
        lambda fields: st.lists(st.lists(st.tuples(*fields), min_size=1, max_size=5), min_size=1, max_size=4)
    )


@given(kinds() | st.lists(columns(), min_size=1, max_size=3))
def test_joined_tables_are_the_joined_lists(parts: list[list[Any]]) -> None:
    tables = [columns_of(part) for part in parts]
    known = [table for table in tables if table is not None]
    if len(known) < len(tables):
        return

    joined = try_concatenate(known)

    assert joined is None or exact(joined.to_list()) == exact([value for part in parts for value in part])


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ([INTS, INTS], ArrayColumn),
        ([INTS, ConstantColumn(7, 3)], ArrayColumn),
        ([ConstantColumn(7, 3), INTS], ArrayColumn),
        ([ArrayColumn(np.array([True, False])), ConstantColumn(True, 3)], ArrayColumn),
        ([ConstantColumn(1, 2), ConstantColumn(1, 2)], ConstantColumn),
        ([ConstantColumn(1, 2), ConstantColumn(2, 2)], ListColumn),
        ([ConstantColumn(1, 2), ConstantColumn(True, 2)], ListColumn),
        ([ConstantColumn(0.0, 2), ConstantColumn(-0.0, 2)], ListColumn),
        ([TEXTS, ConstantColumn("z", 2)], ListColumn),
        ([SHORT_TEXTS, SHORT_TEXTS], ShortTextColumn),
        ([CodedColumn(np.array([0, 1], np.uint16), TABLE), CodedColumn(np.array([1], np.uint16), TABLE)], CodedColumn),
        ([ArrowColumn(pa.array(["a"])), ArrowColumn(pa.array(["b"]))], ArrowColumn),
    ],
)
def test_columns_that_fit_are_one(columns: list[Column], kind: type) -> None:
    joined = try_concatenate([scalar(column) for column in columns])

    assert joined is not None
    assert type(joined.fields[0]) is kind
    assert exact(joined.to_list()) == exact([value for column in columns for value in column.to_list()])


@pytest.mark.parametrize(
    "columns",
    [
        [INTS, ArrayColumn(np.array([1.0]))],
        [INTS, ArrayColumn(np.array([1], np.int32))],
        [INTS, ConstantColumn(True, 2)],
        [INTS, ConstantColumn(2**63, 2)],
        [ArrayColumn(np.array([1.0])), ConstantColumn(1.0, 2)],
        [INTS, TEXTS],
        [TEXTS, INTS],
        [CodedColumn(np.array([0], np.uint16), TABLE), CodedColumn(np.array([0], np.uint16), NameTable(["a", "b"]))],
        [CodedColumn(np.array([0], np.uint16), TABLE), TEXTS],
        [ArrowColumn(pa.array(["a"])), ArrowColumn(pa.array([1]))],
        [TEXTS, SHORT_TEXTS],
        [SHORT_TEXTS, TEXTS],
    ],
)
def test_columns_that_do_not_fit_stay_apart(columns: list[Column]) -> None:
    assert try_concatenate([scalar(column) for column in columns]) is None


def test_the_type_of_a_joined_list_is_known_if_it_is_one() -> None:
    for second, expected in (
        (TEXTS, str),
        (ListColumn(["x", "y"]), None),
        (ConstantColumn("z", 2), str),
        (ConstantColumn(1, 2), None),
    ):
        joined = try_concatenate([scalar(TEXTS), scalar(second)])
        assert joined is not None
        assert isinstance(joined.fields[0], ListColumn)
        assert joined.fields[0].value_type is expected


def test_shapes_do_not_mix() -> None:
    tables = [
        Columns(2, (INTS,), Shape.SCALAR),
        Columns(2, (INTS,), Shape.TUPLE),
        Columns(2, (INTS, INTS), Shape.TUPLE),
        Columns(2, (INTS,), Shape.ROW, ("a",)),
        Columns(2, (INTS,), Shape.ROW, ("b",)),
    ]

    for first in tables:
        assert [try_concatenate([first, second]) is not None for second in tables] == [
            first is second for second in tables
        ]


def test_one_table_is_itself() -> None:
    table = Columns(1, (ArrowColumn(pa.array(["a"])),), Shape.SCALAR)

    assert try_concatenate([table]) is table


@given(kinds() | st.lists(columns(), min_size=1, max_size=3))
def test_columns_that_do_not_fit_together_become_lists(parts: list[list[Any]]) -> None:
    tables = [columns_of(part) for part in parts]
    known = [table for table in tables if table is not None]
    if len(known) < len(tables) or len({(table.shape, len(table.fields)) for table in known}) > 1:
        return

    joined = concatenated(known)

    assert joined is not None
    assert exact(joined.to_list()) == exact([value for part in parts for value in part])


def test_only_the_column_that_does_not_fit_becomes_a_list() -> None:
    texts, codes = ListColumn(["x", "y"], str), CodedColumn(np.array([0, 1], np.uint16), TABLE)
    joined = concatenated(
        [Columns(2, (column, INTS), Shape.TUPLE, key_position=0) for column in (codes, texts, SHORT_TEXTS)]
    )

    assert joined is not None
    assert [type(field) for field in joined.fields] == [ListColumn, ArrayColumn]
    assert joined.key_position == 0
    assert joined.to_list() == [("a", 1), ("b", 2), ("x", 1), ("y", 2), ("x", 1), ("y", 2)]
    assert concatenated([Columns(2, (INTS,), Shape.TUPLE), scalar(INTS)]) is None
