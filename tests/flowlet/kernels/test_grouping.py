"""Rows by group, their last ones, their order, and values by slot."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowlet.columns import ArrayColumn, Column, ListColumn
from flowlet.kernels.grouping import FieldStore, LastRows, group, order_by_digits, stable_order


@pytest.mark.parametrize("num_codes", [20, 65_536, 65_537, 2**31 - 1])
@given(data=st.data())
def test_rows_are_listed_by_code_and_then_in_their_order(num_codes: int, data: st.DataObject) -> None:
    """The result does not depend on the number of codes, which decides how rows are sorted and borders found."""
    largest = num_codes - 1
    drawn = data.draw(st.lists(st.integers(0, 5) | st.integers(0, largest) | st.just(largest), min_size=1, max_size=40))

    for dtype in (np.uint16, np.int32, np.int64):
        limit = int(np.iinfo(dtype).max)
        codes = [code if code <= limit else limit - code % 1000 for code in drawn]
        grouping = group(np.array(codes, dtype), num_codes)

        rows: dict[int, list[int]] = {code: [] for code in sorted(set(codes))}
        for row, code in enumerate(codes):
            rows[code].append(row)
        assert grouping.codes.tolist() == list(rows)
        assert grouping.order.tolist() == [row for group_rows in rows.values() for row in group_rows]
        assert grouping.lengths.tolist() == [len(group_rows) for group_rows in rows.values()]
        assert grouping.ends.tolist() == np.cumsum(grouping.lengths).tolist()
        assert len(grouping) == len(rows)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_what_was_sorted_can_be_put_back(codes: list[int]) -> None:
    grouping = group(np.array(codes), 10)
    values = np.arange(len(codes))

    assert grouping.unsorted(grouping.sorted(values)).tolist() == values.tolist()
    assert grouping.unsorted(grouping.spread(grouping.codes)).tolist() == codes


@example(chunks=[[1, 0] * 160])  # so many rows that the slots are scanned
@given(chunks=st.lists(st.lists(st.integers(0, 39), min_size=1, max_size=500), max_size=4))
def test_last_rows_are_those_of_a_loop(chunks: list[list[int]]) -> None:
    few, many = LastRows(), LastRows()

    for chunk in chunks:
        expected = sorted({slot: row for row, slot in enumerate(chunk)}.values())
        assert few.of(np.array(chunk), 40).tolist() == expected
        assert many.of(np.array(chunk), 4_000).tolist() == expected


# ---------------------------------------------------------------- the order of integers, against sorted


def expected_order(values: list[int]) -> list[int]:
    return sorted(range(len(values)), key=values.__getitem__)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64, np.int64])
@pytest.mark.parametrize("span_bits", [3, 15, 16, 17, 40, 63])
def test_integers_of_every_width_and_span(dtype: Any, span_bits: int) -> None:
    """Equal ones keep their order."""
    rng, limits = random.Random(span_bits), np.iinfo(dtype)
    low = 0 if dtype != np.int64 else -(1 << span_bits - 1)
    values = [low + rng.randrange(min(1 << span_bits, int(limits.max) - low + 1)) for _ in range(500)] * 2

    order = stable_order(np.array(values, dtype))

    assert order is not None
    assert order.tolist() == expected_order(values)


def test_the_ends_of_64_bits() -> None:
    """The difference of signed integers may need a bit more than they have."""
    values = [2**63 - 1, -(2**63), 0, -1, 1]
    order = stable_order(np.array(values, np.int64))
    assert order is not None
    assert order.tolist() == expected_order(values)


@pytest.mark.parametrize("values", [[], [7], [1, 1, 2, 9]])
def test_what_is_in_order_is_left(values: list[int]) -> None:
    """Values that are in order need no new order."""
    assert stable_order(np.array(values, np.int64)) is None


def test_one_digit_is_enough_for_small_ones() -> None:
    """The upper digits are not looked at."""
    assert order_by_digits(np.array([3, 1 << 16, 2], np.uint32), 1).tolist() == [1, 2, 0]


# ---------------------------------------------------------------- values by slot


OBJECTS = ListColumn(["a", 1, None])
NUMBERS = ArrayColumn(np.array([3, 4, 5]))


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("column", [OBJECTS, NUMBERS], ids=["objects", "numbers"])
def test_values_are_taken_by_their_slots(column: Column, *, is_replaced: bool) -> None:
    """The values may be beside others of any type."""
    first, second, third = column.to_list()
    store = FieldStore(column, is_replaced=is_replaced)
    store.append(column)

    either = store.take_either(ListColumn(["new"]), np.array([2, 0]), np.array([2, 0, 1]))
    taken = store.take(np.array([1, 1, 0]))
    store.append(ListColumn([True]))

    assert either.to_list() == [first, "new", third]
    assert taken.to_list() == [second, second, first]
    assert store.column().to_list() == [first, second, third, True]
    assert type(store.column().to_list()[3]) is bool


@pytest.mark.parametrize("column", [OBJECTS, NUMBERS], ids=["objects", "numbers"])
def test_values_are_replaced_by_their_slots(column: Column) -> None:
    """Values that were taken before a replacement stay the old ones."""
    first, second, third = column.to_list()
    store = FieldStore(column, is_replaced=True)
    store.append(column)
    taken = store.take(np.array([1, 1, 0]))

    store.replace(np.array([1]), ListColumn([True]))

    assert taken.to_list() == [second, second, first]
    assert store.column().to_list() == [first, True, third]
    assert type(store.column().to_list()[1]) is bool
