"""Differences between columns are methods of ``Column`` or a ``ColumnVisitor``; no caller asks for a column's class."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import flowlet
from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    ColumnVisitor,
    ConstantColumn,
    ListColumn,
    NameTable,
    OffsetColumn,
    ShortTextColumn,
)
from flowlet.columns.short_text_column import try_short_texts

ROOT = Path(flowlet.__file__).parent
KINDS: set[type[Column]] = {
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    ConstantColumn,
    ListColumn,
    OffsetColumn,
    ShortTextColumn,
}
NAMES = {kind.__name__ for kind in KINDS}


def questions(source: str) -> Iterator[int]:
    """Yield the lines that ask for a class of column."""
    if not any(name in source for name in NAMES):
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, asked]):
                names = asked
            case ast.MatchClass(cls=asked):
                names = asked
            case ast.Compare(left=ast.Call(func=ast.Name(id="type"))):
                names = node
            case _:
                continue
        if any(isinstance(name, ast.Name) and name.id in NAMES for name in ast.walk(names)):
            yield node.lineno


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(column, ArrayColumn)",
        "isinstance(column, ListColumn | ConstantColumn)",
        "type(column) is CodedColumn",
        "match column:\n    case ArrowColumn(array=array): pass",
    ],
)
def test_a_question_is_found(source: str) -> None:
    assert len(list(questions(source))) == 1


def test_no_other_package_asks_for_the_class_of_a_column() -> None:
    found = [
        f"{path}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.parent.name != "columns"
        for line in questions(path.read_text("utf-8"))
    ]

    assert found == []


COLUMNS: list[Column] = [
    ArrayColumn(np.array([1, 2])),
    ArrowColumn(pa.array(["a", None])),
    CodedColumn(np.array([1, 0], np.uint16), NameTable(["a", "b"])),
    ConstantColumn("a", 2),
    ListColumn(["a", 2]),
    OffsetColumn(7, np.array([1, 2], np.uint8)),
    *filter(None, [try_short_texts(["a", "b"])]),
]


class Anything(ColumnVisitor[Column]):
    def visit_any(self, column: Column) -> Column:
        return column


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: type(column).__name__)
def test_each_representation_is_visited_by_a_method_of_its_own_or_as_any(column: Column) -> None:
    methods = {f"visit_{kind.visited_as}" for kind in KINDS}

    def visited_by(name: str) -> Any:
        return type("One", (Anything,), {name: lambda self, column: None})()

    assert len(methods) == len(KINDS)
    assert Anything().visit(column) is column
    assert [visited_by(name).visit(column) for name in methods].count(None) == 1


def test_these_are_all_representations() -> None:
    assert set(map(type, COLUMNS)) == KINDS
    assert {kind.__name__ for kind in Column.__subclasses__() if kind.__module__.startswith("flowlet.")} == NAMES


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: type(column).__name__)
def test_values_come_one_by_one_as_they_come_in_a_list(column: Column) -> None:
    assert (
        list(column)
        == column.to_list()
        == column.as_list()
        == column.widened().to_list()
        == column.detached().to_list()
    )
    assert [column.value_type] == [None] or {column.value_type} == set(map(type, column))
