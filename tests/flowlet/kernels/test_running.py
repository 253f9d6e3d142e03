"""Each kernel beside a loop with a dictionary, over several chunks."""

import math
import operator
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from flowlet.kernels.grouping import (
    Int64Bound,
    accumulate,
    group,
    magnitude,
    new_extremes,
    rows_of_extremes,
    running_sums,
)

NUM_KEYS = 7
CODES = st.integers(0, NUM_KEYS - 1)
FLOATS = st.floats(width=64) | st.sampled_from([0.0, -0.0, 0.1, 1e308, -1e308, math.inf, math.nan])
SMALL_INTS = st.integers(-(2**40), 2**40)


def chunks_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[tuple[int, Any]]]]:
    """Rows of code and value; some chunks have long groups."""
    few = st.lists(st.tuples(CODES, values), min_size=1, max_size=30)
    many = st.tuples(few, st.integers(60, 70)).map(lambda drawn: drawn[0][:2] * drawn[1] + drawn[0])
    return st.lists(few | many, max_size=4)


def loop(chunks: list[list[tuple[int, Any]]], step: Callable[[Any, Any], Any]) -> list[Any]:
    state: dict[int, Any] = {}
    results = []
    for chunk in chunks:
        for code, value in chunk:
            state[code] = step(state[code], value) if code in state else value
            results.append(state[code])
    return results


def bits(values: list[float]) -> list[str]:
    """Return the numbers' bits with the sign of zero; one NaN is as good as another."""
    return ["nan" if math.isnan(value) else value.hex() for value in values]


def columns(chunk: list[tuple[int, Any]], dtype: type) -> tuple[NDArray[np.uint16], NDArray[Any]]:
    codes, values = zip(*chunk, strict=True)
    return np.array(codes, np.uint16), np.array(values, dtype)


@pytest.mark.slow
@given(chunks_of(SMALL_INTS))
def test_running_sums_of_integers(chunks: list[list[tuple[int, int]]]) -> None:
    state = np.zeros(NUM_KEYS, np.int64)
    found: list[int] = []

    for chunk in chunks:
        codes, values = columns(chunk, np.int64)
        grouping = group(codes, NUM_KEYS)
        sums, last = running_sums(grouping, values, state[grouping.codes])
        state[grouping.codes] = last
        found += grouping.unsorted(sums).tolist()

    assert found == loop(chunks, lambda so_far, value: so_far + value)


def test_sums_over_all_groups_may_leave_64_bits_as_long_as_each_group_does_not() -> None:
    codes, values = np.arange(6, dtype=np.uint16), np.full(6, 2**62, np.int64)
    grouping = group(codes, 6)

    sums, last = running_sums(grouping, values, np.full(6, -5))

    assert grouping.unsorted(sums).tolist() == last.tolist() == [2**62 - 5] * 6


@pytest.mark.slow
@given(chunks_of(FLOATS))
def test_floats_are_added_in_the_order_of_their_rows(chunks: list[list[tuple[int, float]]]) -> None:
    """The sums are equal bit by bit: a cumulative sum over all groups would round otherwise."""
    state = np.full(NUM_KEYS, -0.0)  # what changes no first value
    found: list[float] = []

    for chunk in chunks:
        codes, values = columns(chunk, np.float64)
        grouping = group(codes, NUM_KEYS)
        sums = accumulate(np.add, grouping, grouping.sorted(values), state[grouping.codes])
        state[grouping.codes] = sums[grouping.ends - 1]
        found += grouping.unsorted(sums).tolist()

    assert bits(found) == bits(loop(chunks, lambda so_far, value: so_far + value))


@pytest.mark.slow
@pytest.mark.parametrize("is_largest", [False, True], ids=["smallest", "largest"])
@given(chunks=chunks_of(st.integers(-3, 3) | SMALL_INTS | st.sampled_from([2**63 - 1, -(2**63)])))
def test_running_extremes_and_the_first_row_that_has_them(
    is_largest: bool, chunks: list[list[tuple[int, int]]]
) -> None:
    """Rows are numbered through over all chunks; -1, an older one, is looked up in the state."""
    limits = np.iinfo(np.int64)
    extreme = np.full(NUM_KEYS, limits.min if is_largest else limits.max)
    winner = np.full(NUM_KEYS, -1)
    num_before, found, found_rows = 0, [], []

    for chunk in chunks:
        codes, values = columns(chunk, np.int64)
        grouping = group(codes, NUM_KEYS)
        in_order, initial = grouping.sorted(values), extreme[grouping.codes]
        running = accumulate(np.maximum if is_largest else np.minimum, grouping, in_order.copy(), initial)
        changes = new_extremes(grouping, in_order, running, initial, is_new=winner[grouping.codes] == -1)
        rows = rows_of_extremes(grouping, changes)
        rows = np.where(rows < 0, grouping.spread(winner[grouping.codes]), rows + num_before)
        winner[grouping.codes], extreme[grouping.codes] = rows[grouping.ends - 1], running[grouping.ends - 1]
        found += grouping.unsorted(running).tolist()
        found_rows += grouping.unsorted(rows).tolist()
        num_before += len(chunk)

    numbers = iter(range(num_before))
    numbered = [[(code, (value, next(numbers))) for code, value in chunk] for chunk in chunks]
    is_better = operator.gt if is_largest else operator.lt
    expected = loop(numbered, lambda so_far, value: value if is_better(value[0], so_far[0]) else so_far)
    assert list(zip(found, found_rows, strict=True)) == expected


@given(chunks_of(st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**61), 2**61)))
def test_sums_that_leave_64_bits_are_known_before(chunks: list[list[tuple[int, int]]]) -> None:
    state = np.zeros(NUM_KEYS, np.int64)
    bound = Int64Bound(state)
    done: list[list[tuple[int, int]]] = []

    for chunk in chunks:
        codes, values = columns(chunk, np.int64)
        grouping = group(codes, NUM_KEYS)
        fits = bound.fits_loosely(values) or bound.fits(grouping, values, state)
        exact = loop([*done, chunk], lambda so_far, value: so_far + value)
        if fits:
            assert all(-(2**63) <= total < 2**63 for total in exact)
            done.append(chunk)
            state[grouping.codes] = running_sums(grouping, values, state[grouping.codes])[1]
        else:
            # Not at every large number: half of what there is room for always fits.
            largest_possible = sum(abs(value) for _, value in chunk) + magnitude(state)
            assert largest_possible > 2**62


def test_large_sums_of_different_keys_do_not_add_up() -> None:
    state = np.full(3, 2**61)
    values = np.array([2**61, 2**61, 2**61, -1, -1])
    grouping = group(np.array([0, 1, 2, 0, 1], np.uint16), 3)

    assert Int64Bound(state).fits(grouping, values, state)


def test_many_small_sums_never_run_into_a_bound_that_only_grows() -> None:
    state = np.zeros(2, np.int64)
    bound = Int64Bound(state)
    values = np.array([2**60, -(2**60)] * 2)
    grouping = group(np.array([0, 0, 1, 1], np.uint16), 2)

    assert all(bound.fits(grouping, values, state) for _ in range(20))


def test_the_magnitude_of_the_smallest_integer_is_no_integer_of_64_bits() -> None:
    assert magnitude(np.array([-(2**63), 5])) == 2**63
    assert magnitude(np.array([], np.int64)) == 0
    assert all(magnitude(np.array(pair)) == max(map(abs, pair)) for pair in pairwise([-3, 2, 5, -7]))
