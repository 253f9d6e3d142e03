"""A function of integers that is looked up while they lie close together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flowlet.graph.partitioner import KeyGroups
from flowlet.keys.exact_keys import key_group, operator_index
from flowlet.keys.key_columns import MAX_PLACES, ChannelTable, KeyWindow
from flowlet.keys.key_index import Int64Codes

LIMITS = (-(2**63), 2**63 - 1)


class Square:
    """A function that squares, and counts its calls."""

    def __init__(self) -> None:
        self.num_keys = 0

    def __call__(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        self.num_keys += len(keys)
        return keys * keys


def keys_of(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def test_keys_in_the_window_are_looked_up() -> None:
    square = Square()
    window = KeyWindow()
    assert window.places(keys_of(3, 1, 2), square) is not None
    asked = square.num_keys

    places = window.places(keys_of(2, 2, 0), square)

    assert places is not None
    assert window.table.take(places).tolist() == [4, 4, 0]
    assert square.num_keys == asked


def test_the_window_grows_around_the_keys() -> None:
    square, window = Square(), KeyWindow()
    window.places(keys_of(1_000), square)

    places = window.places(keys_of(9_000, -9_000), square)

    assert places is not None
    assert window.table.take(places).tolist() == [81_000_000, 81_000_000]
    assert window.places(keys_of(1_000), square) is not None


def test_the_window_begins_anew_where_both_do_not_fit() -> None:
    square, window = Square(), KeyWindow()
    window.places(keys_of(0), square)

    places = window.places(keys_of(10**9), square)

    assert places is not None
    assert window.table.take(places).tolist() == [10**18]
    assert len(window.table) < MAX_PLACES


@pytest.mark.parametrize("wide", [(0, MAX_PLACES), (-(2**63), 2**63 - 1)])
def test_keys_that_lie_far_apart_have_no_place(wide: tuple[int, int]) -> None:
    square = Square()

    assert KeyWindow().places(keys_of(*wide), square) is None
    assert not square.num_keys


@pytest.mark.parametrize("limit", LIMITS)
def test_the_window_reaches_to_the_limits_of_64_bits(limit: int) -> None:
    window = KeyWindow()

    places = window.places(keys_of(limit), lambda keys: keys)

    assert places is not None
    assert window.table.take(places).tolist() == [limit]


def test_keys_that_run_away_cost_an_eighth_at_most() -> None:
    square = Square()
    window = KeyWindow()

    for start in range(0, 10_000_000, 10_000):
        window.places(np.arange(start, start + 10_000), square)

    assert square.num_keys <= (10_000_000 + 8 * MAX_PLACES) / 8


INTS = st.one_of(st.integers(-300, 300), st.integers(*LIMITS), st.integers(2**40, 2**40 + 70_000))
CHUNKS = st.lists(st.lists(INTS, min_size=1, max_size=30), max_size=8)


@given(CHUNKS)
def test_channels_are_those_of_single_keys(chunks: list[list[int]]) -> None:
    partitioner = KeyGroups(lambda record: record)
    table = ChannelTable(partitioner.max_parallelism, 3)

    for chunk in chunks:
        expected = [
            operator_index(key_group(key, partitioner.max_parallelism), partitioner.max_parallelism, 3) for key in chunk
        ]
        assert table.of_keys(keys_of(*chunk)).tolist() == expected


EDGES = st.integers(-3, 3) | st.integers(*LIMITS) | st.sampled_from([0, *LIMITS])


@given(CHUNKS | st.lists(st.lists(EDGES, max_size=30), max_size=5))
@settings(max_examples=200)
def test_codes_count_the_different_keys_in_the_order_of_first_sight(chunks: list[list[int]]) -> None:
    codes, expected = Int64Codes(), dict[int, int]()

    for chunk in chunks:
        assert codes.add(keys_of(*chunk)).tolist() == [expected.setdefault(key, len(expected)) for key in chunk]
    assert codes.keys.tolist() == list(expected)
    assert codes.num_codes == len(expected)


@pytest.mark.parametrize("step", [1, 2**20, 2**40 + 1], ids=["near", "far", "farther"])
def test_a_table_of_codes_that_grows_several_times_forgets_nothing(step: int) -> None:
    """The distance of the keys decides where they collide, and may be any."""
    table = Int64Codes()
    keys = np.arange(-20_000, 20_000, dtype=np.int64) * step

    for part in np.array_split(keys, 13):
        table.add(part)

    assert table.add(keys[::-1].copy()).tolist() == list(range(len(keys)))[::-1]
    assert table.keys.tolist() == keys.tolist()


def test_keys_that_all_want_the_same_slot_are_told_apart() -> None:
    """The multiplier's inverse makes keys whose hashes begin alike."""
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    keys = np.array([number * inverse % 2**64 for number in range(500)], np.uint64).view(np.int64)
    table = Int64Codes()

    for _ in range(2):
        assert table.add(keys).tolist() == list(range(500))


def test_keys_that_were_learned_past_the_window_are_not_learned_again() -> None:
    codes = Int64Codes()

    found = [codes.add(keys_of(*chunk)).tolist() for chunk in ([0], [1, -65025], [1], [10**12, 2], [2])]

    assert found == [[0], [1, 2], [1], [3, 4], [4]]


def test_long_arrays_go_block_by_block() -> None:
    keys = np.random.default_rng(1).integers(*LIMITS, 30_000)
    codes, table = Int64Codes(), ChannelTable(128, 5)

    assert codes.add(keys).tolist() == list(range(30_000))
    assert codes.add(keys[::-1]).tolist() == list(range(30_000))[::-1]
    assert table.of_keys(keys).tolist() == [operator_index(key_group(key, 128), 128, 5) for key in keys.tolist()]
