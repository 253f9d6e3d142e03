"""Records become tuples of values that a driver takes; only columns that need it are looked at value by value."""

from typing import Any

import pytest

from flowlet.common import Row
from flowlet.connectors.database.database_driver import DatabaseDriver, RefusedRowError, Trouble
from flowlet.connectors.database.sink import RowValues


class Driver(DatabaseDriver):
    """Takes integers and texts as they are."""

    plain = frozenset({int, str, type(None)})

    def __init__(self, max_int: int | None) -> None:
        self.max_int = max_int  # type: ignore[misc]  # of the class, of other drivers

    def connect(self) -> Any:
        raise NotImplementedError

    def trouble(self, error: BaseException) -> Trouble:
        raise NotImplementedError

    def look_at_statement(self, connection: Any) -> None:
        raise NotImplementedError

    def converted(self, value: Any) -> Any:
        if isinstance(value, list):
            raise TypeError("no column for a list")
        if isinstance(value, int) and self.max_int is not None and not ~self.max_int <= value <= self.max_int:
            raise ValueError("too large")
        return f"<{value!r}>" if isinstance(value, bytes) else value


def values(max_int: int | None = None) -> RowValues:
    return RowValues(["a", "b"], Driver(max_int))


def test_plain_tuples_stay_the_same_objects() -> None:
    records = [(1, "x"), (2, None)]

    assert all(row is record for row, record in zip(values().of(records), records, strict=True))


def test_rows_and_lists_become_tuples_and_names_count() -> None:
    assert values().of([Row(1, "x"), [2, "y"], Row(b="z", a=3)]) == [(1, "x"), (2, "y"), (3, "z")]


def test_one_column_is_converted_and_the_other_stays() -> None:
    assert values().of([(1, b"x"), (2, "y")]) == [(1, "<b'x'>"), (2, "y")]


@pytest.mark.parametrize("large", [128, -129])
@pytest.mark.parametrize("other", [5, None])
def test_integers_have_a_limit(large: int, other: int | None) -> None:
    assert values(127).of([(127, "x"), (-128, None), (other, "y")]) == [(127, "x"), (-128, None), (other, "y")]

    with pytest.raises(
        RefusedRowError, match=rf"field 'a' of the record \({large}, 'x'\) cannot be written: too large"
    ):
        values(127).of([(other, "y"), (large, "x")])


def test_no_records_are_no_rows() -> None:
    assert values().of([]) == []


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ((1,), r"the record \(1,\) is a row of 1 fields, declared are 2"),
        (5, "the record 5 is no row of the fields a, b"),
        (Row(c=4, b="w"), "without the field 'a', its fields are 'c', 'b'"),
        (Row(a=4, b="w", c=1), "with the field 'c', which is not declared"),
        ((1, []), r"field 'b' of the record \(1, \[\]\) cannot be written: no column for a list"),
    ],
)
def test_what_cannot_be_written_is_named(record: Any, reason: str) -> None:
    with pytest.raises(RefusedRowError, match=reason):
        values().of([(1, "x"), record])
