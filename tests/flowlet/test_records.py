"""A chunk has equal records whatever it is made of."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import columns_of
from flowlet.records import Chunk
from tests.flowlet.serde.exact import columns, exact

TUPLES = [("a", 1), ("b", 2), ("c", 3)]


def in_columns(values: list[Any], timestamps: Any = None) -> Chunk:
    table = columns_of(values)
    assert table is not None
    return Chunk.of_columns(table, timestamps)


@given(columns(), st.booleans(), st.booleans(), st.integers(0, 22), st.integers(0, 22))
def test_a_chunk_in_columns_is_the_chunk_of_the_list(
    values: list[Any], is_timed: bool, in_numpy: bool, start: int, stop: int
) -> None:
    table = columns_of(values)
    timestamps = [2**62 + number for number in range(len(values))] if is_timed else None
    if table is None:
        return

    chunk = Chunk.of_columns(table, np.array(timestamps) if in_numpy and timestamps is not None else timestamps)

    for each, expected in (
        (chunk, Chunk(values, timestamps)),
        (chunk.copy(), Chunk(values, timestamps)),
        (chunk.slice(start, stop), Chunk(values, timestamps).slice(start, stop)),
    ):
        assert len(each) == len(expected)
        assert exact(each.values) == exact(expected.values)
        assert each.timestamps == expected.timestamps
        assert (each.timestamp_array is None, each.has_timestamps) == (timestamps is None, timestamps is not None)
        assert timestamps is None or (
            each.timestamp_array is not None and each.timestamp_array.tolist() == expected.timestamps
        )


def test_the_length_needs_no_records() -> None:
    class Unread:
        num_rows = 3

        def to_list(self) -> list[Any]:
            raise AssertionError("the records were made")

    chunk = Chunk.of_columns(Unread())  # type: ignore[arg-type]  # a table that must not be read

    assert (len(chunk), repr(chunk)) == (3, "<Chunk of 3 records in columns>")


def test_records_are_made_once() -> None:
    chunk = in_columns(TUPLES, np.array([1, 2, 3]))

    assert chunk.values is chunk.values
    assert chunk.timestamps is chunk.timestamps
    assert type(chunk.timestamps[0] if chunk.timestamps else None) is int


def test_what_came_in_columns_can_be_read_in_columns() -> None:
    chunk = in_columns(TUPLES)

    assert chunk.columns is not None
    assert chunk.copy().columns is chunk.columns
    assert Chunk(TUPLES).columns is None


def test_the_owner_may_change_a_list_and_a_copy_stays_as_it_is() -> None:
    chunk = Chunk(["a"], [1])
    copied = chunk.copy()
    stamps = chunk.timestamp_array

    chunk.values.append("b")
    assert chunk.timestamps is not None
    chunk.timestamps.append(2)

    assert (len(chunk), chunk.timestamps) == (2, [1, 2])
    assert chunk.timestamp_array is not None
    assert chunk.timestamp_array.tolist() == [1, 2]
    assert copied == Chunk(["a"], [1])
    assert stamps is not None
    assert stamps.tolist() == [1]


@pytest.mark.parametrize("timestamps", [None, [4, 5, 6], np.array([4, 5, 6])])
def test_timestamps_can_be_set_in_either_representation(timestamps: Any) -> None:
    expected = None if timestamps is None else [4, 5, 6]

    for chunk in (Chunk(list(TUPLES), [1, 2, 3]), in_columns(TUPLES, [1, 2, 3])):
        values = chunk.values
        changed = chunk.with_timestamps(timestamps)

        assert changed == Chunk(TUPLES, expected)
        assert changed.columns is chunk.columns
        assert changed.values is values, "made once"


def test_the_representation_says_nothing_about_equality() -> None:
    assert in_columns(TUPLES) == Chunk(TUPLES)
    assert in_columns(TUPLES, [1, 2, 3]) == Chunk(TUPLES, [1, 2, 3])
    assert in_columns(TUPLES, [1, 2, 3]) != Chunk(TUPLES)
    assert Chunk(TUPLES) != TUPLES


def test_each_record_has_a_timestamp_or_none_has() -> None:
    with pytest.raises(AssertionError, match="one timestamp per record"):
        Chunk([1, 2], [1])
    with pytest.raises(AssertionError, match="one timestamp per record"):
        in_columns(TUPLES, [1])


def test_representations_and_rows_can_be_told_apart() -> None:
    assert repr(Chunk([1], [1])) == "<Chunk of 1 records with timestamps>"
    assert repr(in_columns(TUPLES, [1, 2, 3])) == "<Chunk of 3 records in columns with timestamps>"


@pytest.mark.parametrize("timestamps", [None, [1, 2, 3]])
def test_a_chunk_without_keys_is_the_same_records(timestamps: list[int] | None) -> None:
    """The chunk may be a list or columns, with keys or without."""
    keyed_list = Chunk(list(TUPLES), timestamps)
    keyed_list.keys, keyed_list.key_field = ["a", "b", "c"], 0
    table = columns_of(TUPLES)
    assert table is not None
    keyed_columns = Chunk.of_columns(table.with_key_position(0), timestamps)

    for chunk in (keyed_list, keyed_columns, Chunk(list(TUPLES), timestamps), Chunk.of_columns(table, timestamps)):
        found = chunk.without_keys()

        assert (found.values, found.timestamps) == (TUPLES, timestamps)
        assert (found.keys, found.key_field) == (None, None)
        assert found.columns is None or found.columns.key_position is None
