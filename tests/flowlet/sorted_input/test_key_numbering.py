"""Numbers of keys, against a dictionary of exact keys."""

import enum
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns import ArrayColumn, ArrowColumn, CodedColumn, Column, ConstantColumn, ListColumn, NameTable
from flowlet.columns.short_text_column import try_short_texts
from flowlet.keys.exact_keys import exact_key
from flowlet.sorted_input.key_numbering import KeyNumbering
from flowlet.sorted_input.sort_codes import as_bytes, list_codes


class Color(enum.StrEnum):
    RED = "red"


def short_texts(texts: list[str]) -> Column:
    column = try_short_texts(texts)
    assert column is not None
    return column


TEXTS: list[Column] = [
    ListColumn(["red", "blue", "red"]),
    ListColumn(["blue", "green"], str),
    CodedColumn(np.array([2, 0, 2], np.uint16), NameTable(["green", "unused", "blue"])),
    ConstantColumn("yellow", 3),
    short_texts(["red", "black", ""]),
]
OTHERS: list[Column] = [
    ListColumn([1.0, 1, True, None, (1, "a"), "red", 2**70]),
    ListColumn([Color.RED, Color.RED]),
    ArrowColumn(pa.array(["red", None, "white"])),
    ArrayColumn(np.array([0.0, -0.0, 1.0])),
    ConstantColumn((1, 2.0), 2),
    CodedColumn(np.array([0, 1], np.uint16), NameTable(["red", None])),
]


@pytest.mark.parametrize("columns", [TEXTS, TEXTS + OTHERS, OTHERS + TEXTS])
def test_keys_have_one_number_exactly_if_they_are_the_same(columns: list[Column]) -> None:
    """Whatever columns they come in; and their ranks are in the order of their codes."""
    numbering = KeyNumbering()
    found: dict[int, Any] = {}
    for column in columns:
        numbered = numbering.try_number(column)
        assert numbered is not None, column
        for number, key in zip(numbered.numbers.tolist(), column, strict=True):
            assert found.setdefault(number, exact_key(key)) == exact_key(key)
    assert len(set(found.values())) == len(found)

    ranking = numbering.ranking()

    keys = [key for column in columns for key in column]
    codes = ranking.take(
        np.concatenate([numbered.numbers for each in columns if (numbered := numbering.try_number(each))])
    )
    assert codes.to_bytes_array().tolist() == as_bytes(list_codes(keys)).tolist()
    assert sorted(set(ranking.table.tolist())) == ranking.table.tolist()
    assert (ranking.names is not None) == (columns is TEXTS)
    if ranking.names is not None:
        assert ranking.names.values_of(codes.ranks) == keys


@pytest.mark.parametrize("column", [ListColumn([1, 2]), ArrayColumn(np.array([1, 2])), ConstantColumn(3, 2)])
def test_integers_are_not_numbered(column: Column) -> None:
    """Numpy sorts them as they are."""
    assert KeyNumbering().try_number(column) is None


def test_a_dictionary_that_grew() -> None:
    """Codes that came in since are looked up then."""
    names = NameTable(["a"])
    numbering = KeyNumbering()
    assert numbering.try_number(CodedColumn(np.array([0], np.uint16), names)) is not None
    names.names.append("b")

    numbered = numbering.try_number(CodedColumn(np.array([1, 0], np.uint16), names))

    assert numbered is not None
    assert numbered.numbers.tolist() == [1, 0]


def test_numbers_pay_once_there_are_twice_as_many_records_as_keys() -> None:
    """Not settled before there are some thousand records; settled for good."""
    numbering = KeyNumbering()
    for start in range(0, 5000, 1000):
        numbering.try_number(ListColumn([f"key {number}" for number in range(start, start + 1000)]))
    assert not numbering.does_pay

    numbering.try_number(ConstantColumn("key 1", 5000))
    assert numbering.does_pay
    assert len(numbering) == 5000

    numbering.try_number(ListColumn([f"other {number}" for number in range(1000)]))
    assert numbering.does_pay


def test_size_grows_with_the_keys() -> None:
    """Characters count, too, because the records need not hold them any more."""
    numbering = KeyNumbering()
    numbering.try_number(ListColumn(["a" * 10_000] * 5))
    once = numbering.estimated_bytes
    numbering.try_number(ListColumn(["a" * 10_000] * 5))
    assert numbering.estimated_bytes == once > 10_000


@pytest.mark.parametrize(
    "key_of",
    [
        lambda number: f"{number:04}".ljust(1000),
        lambda number: f"{number:04}".ljust(500, "\u0394"),
        lambda number: b"%04d" % number * 250,
        lambda number: (f"{number:04}".ljust(1000), number),
        lambda number: (number, ("a", f"{number:04}".ljust(1000))),
        lambda number: 10**2400 + number,
    ],
    ids=["text", "wide text", "bytes", "tuple", "tuple in a tuple", "large integer"],
)
def test_what_keys_hold_counts(key_of: Callable[[int], Any]) -> None:
    """A thousand bytes each, and a little more, wherever in the key they are."""
    numbering = KeyNumbering()

    numbering.try_number(ListColumn([key_of(number % 200) for number in range(600)] + [None]))

    assert 200 * 1000 <= numbering.estimated_bytes <= 200 * 1500, numbering
