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


def running(function: Aggregation, records: list[Any]) -> list[Any]:
    return list(accumulate(records, function.reduce))


def test_min_and_max_change_one_field_of_the_first_record() -> None:
    assert [each[1:] for each in running(Aggregation("min", 1), RECORDS)] == [
        (3, "x"),
        (3, "x"),
        (1, "x"),
        (1, "x"),
    ]
    assert [each[1:] for each in running(Aggregation("max", 1), RECORDS)] == [
        (3, "x"),
        (5, "x"),
        (5, "x"),
        (5, "x"),
    ]


def test_min_by_and_max_by_keep_whole_records_and_the_first_of_equal_ones() -> None:
    assert [each[1:] for each in running(Aggregation("min_by", 1), RECORDS)] == [
        (3, "x"),
        (3, "x"),
        (1, "z"),
        (1, "z"),
    ]
    assert [each[1:] for each in running(Aggregation("max_by", 1), RECORDS)] == [
        (3, "x"),
        (5, "y"),
        (5, "y"),
        (5, "y"),
    ]


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
