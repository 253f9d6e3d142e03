"""``min``, ``max``, ``min_by`` and ``max_by``: which record of a key comes out after each record."""

from itertools import accumulate
from typing import Any, NamedTuple

import pytest

from flowlet.common import Row
from flowlet.datastream.user_functions.aggregations import Aggregation

RECORDS = [("a", 3, "x"), ("a", 5, "y"), ("a", 1, "z"), ("a", 1, "w")]


class Click(NamedTuple):
    user: str
    second: int


class Pair(tuple[Any, ...]):
    """A tuple class of a user who did not use ``NamedTuple``."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("min", [(3, "x"), (3, "x"), (1, "x"), (1, "x")]),
        ("max", [(3, "x"), (5, "x"), (5, "x"), (5, "x")]),
        ("min_by", [(3, "x"), (3, "x"), (1, "z"), (1, "z")]),
        ("max_by", [(3, "x"), (5, "y"), (5, "y"), (5, "y")]),
    ],
)
def test_min_and_max_change_one_field_of_the_first_record_and_the_others_keep_whole_records(
    method: str, expected: list[tuple[int, str]]
) -> None:
    """``min_by`` and ``max_by`` keep the first of equal records."""
    results = accumulate(RECORDS, Aggregation(method, 1).reduce)

    assert [each[1:] for each in results] == expected


@pytest.mark.parametrize(
    ("first", "second", "position", "expected"),
    [
        (4, 2, 0, 2),
        ([1, 4], [1, 2], 1, [1, 2]),
        (Row(n=1, v=4), Row(n=2, v=2), "v", Row(n=1, v=2)),
        (Click("a", 4), Click("b", 2), "second", Click("a", 2)),
        (Click("a", 4), Click("b", 2), 1, Click("a", 2)),
        (Pair(("a", 4)), Pair(("b", 2)), 1, Pair(("a", 2))),
    ],
)
def test_every_kind_of_record_has_fields(first: Any, second: Any, position: int | str, expected: Any) -> None:
    before = repr(first)

    result = Aggregation("min", position).reduce(first, second)

    assert result == expected
    assert type(result) is type(first)
    assert repr(first) == before, "records are not changed"


@pytest.mark.parametrize(
    ("record", "position"), [(("a", 1), 5), (("a", 1), "v"), ([1], "v"), (3, 1), (Click("a", 1), "v"), (Row(n=1), "v")]
)
def test_a_field_that_is_not_there_is_named(record: Any, position: int | str) -> None:
    with pytest.raises(TypeError, match=rf"max\({position!r}\): a {type(record).__name__} has no such field"):
        Aggregation("max", position).reduce(record, record)
