from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flowlet.columns import ArrayColumn, Column, Columns, ConstantColumn, ListColumn, Shape
from flowlet.fusing.projection import projection_of
from tests.flowlet.serde.exact import exact

WORDS = ListColumn(["to", "be", "or"], str)
NUMBERS = ArrayColumn(np.array([1, 2, 3]))
SCALARS = Columns(3, (WORDS,), Shape.SCALAR)
PAIRS = Columns(3, (WORDS, NUMBERS), Shape.TUPLE)
ROWS = Columns(3, (WORDS, NUMBERS), Shape.ROW, ("word", "number"))


class Pairs:
    def map(self, word: str) -> tuple[str, int]:
        return word, 1


OF_SCALARS: dict[str, Callable[[Any], Any]] = {
    "a pair with a constant": lambda word: (word, 1),
    "a constant first": lambda word: (None, word, -0.5),
    "twice": lambda word: (word, word),
    "a method": Pairs().map,
}
OF_PAIRS: dict[str, Callable[[Any], Any]] = {
    "the other way round": lambda pair: (pair[1], pair[0]),
    "one field": lambda pair: (pair[1],),
    "a field and a constant": lambda pair: (pair[0], 1),
}


@pytest.mark.parametrize(
    ("function", "columns"),
    [*[(function, SCALARS) for function in OF_SCALARS.values()], *[(function, PAIRS) for function in OF_PAIRS.values()]],
    ids=[*OF_SCALARS, *OF_PAIRS],
)
def test_results_are_those_of_the_function(function: Callable[[Any], Any], columns: Columns) -> None:
    """With their types; what were columns stay the very columns."""
    projection = projection_of(function)

    assert projection is not None
    made = projection.try_apply(columns)
    assert made is not None
    assert exact(made.to_list()) == exact([function(record) for record in columns.to_list()])
    fields: tuple[Column, ...] = (*columns.fields, *(field for field in made.fields if isinstance(field, ConstantColumn)))
    assert all(any(field is each for each in fields) for field in made.fields)


@pytest.mark.parametrize(
    ("function", "columns"),
    [
        (lambda pair: (pair[0], 1), SCALARS),
        (lambda pair: (pair[0], 1), ROWS),
        (lambda pair: (pair, 1), PAIRS),
        (lambda pair: (pair[2], 1), PAIRS),
    ],
    ids=["a character", "a row", "a pair in a pair", "a field that is not there"],
)
def test_records_of_another_shape_are_left_to_the_function(function: Callable[[Any], Any], columns: Columns) -> None:
    """It may fail, or give something that has no columns."""
    projection = projection_of(function)

    assert projection is not None
    assert projection.try_apply(columns) is None


@pytest.mark.parametrize(
    "function",
    [
        lambda record: record,
        lambda record: [record, 1],
        lambda record: (),
        lambda record: ("a", True),
        lambda record: (record[-1],),
        lambda record: (record[True],),
        lambda record: (record["a"],),
        lambda record: (record[0][0],),
        lambda record: (record[0] + 1, 1),
        lambda record: (record, (1, 2)),
        lambda record: (len(record), 1),
        lambda record, other: (record, other),
        len,
    ],
)
def test_other_functions_are_none(function: Callable[..., Any]) -> None:
    """Whatever does more, or something else."""
    assert projection_of(function) is None
