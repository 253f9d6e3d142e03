"""Promises of the partitioners.

Source: Flink `StreamPartitionerTest`, `RescalePartitionerTest` (who meets whom), `VertexInputInfoComputationUtilsTest`.
"""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.datastream import KeySelector
from flowlet.graph.partitioner import (
    Broadcast,
    Custom,
    Forward,
    Global,
    KeyGroups,
    Partitioner,
    Rebalance,
    Rescale,
    Shuffle,
    consumers_of,
    producers_of,
)


class Modulo:
    """An object with PyFlink's method."""

    def partition(self, key: int, num_partitions: int) -> int:
        return key % num_partitions


class FirstField(KeySelector):
    def get_key(self, value: tuple[str, int]) -> str:
        return value[0]


@pytest.mark.parametrize(
    ("partitioner", "strategy", "is_pointwise"),
    [
        (Forward(), "FORWARD", True),
        (Rebalance(), "REBALANCE", False),
        (Rescale(), "RESCALE", True),
        (Shuffle(), "SHUFFLE", False),
        (Global(), "GLOBAL", False),
        (Custom(max, len), "CUSTOM", False),
        (Broadcast(), "BROADCAST", False),
        (KeyGroups(len), "HASH", False),
    ],
)
def test_a_partitioner_says_how_it_ships(partitioner: Partitioner, strategy: str, is_pointwise: bool) -> None:
    assert (partitioner.ship_strategy, partitioner.is_pointwise) == (strategy, is_pointwise)
    assert pickle.loads(pickle.dumps(partitioner)) == partitioner


def test_a_key_function_comes_from_a_callable_or_from_a_selector() -> None:
    assert KeyGroups(len).key_function("abc") == 3
    assert KeyGroups(FirstField()).key_function(("a", 1)) == "a"


def test_a_custom_choice_comes_from_callables_or_from_objects() -> None:
    assert Custom(max, len).channel_function(3, 2) == 3
    assert Custom(Modulo(), FirstField()).channel_function(5, 3) == 2
    assert Custom(Modulo(), FirstField()).key_function(("a", 1)) == "a"


# (producers, consumers) -> whom each producer feeds
POINTWISE: dict[tuple[int, int], list[list[int]]] = {
    (3, 3): [[0], [1], [2]],
    (2, 4): [[0, 1], [2, 3]],
    (4, 2): [[0], [0], [1], [1]],
    (1, 3): [[0, 1, 2]],
    (3, 1): [[0], [0], [0]],
    (3, 7): [[0, 1, 2], [3, 4], [5, 6]],
    (7, 3): [[0], [0], [1], [1], [2], [2], [2]],
    (2, 3): [[0, 1], [2]],
    (3, 2): [[0], [1], [1]],
}


@pytest.mark.parametrize(("num_producers", "num_consumers"), POINTWISE)
def test_pointwise_edges_spread_evenly(num_producers: int, num_consumers: int) -> None:
    """The larger side is cut into runs of (almost) equal length."""
    fed = [list(consumers_of(producer, num_producers, num_consumers)) for producer in range(num_producers)]

    assert fed == POINTWISE[num_producers, num_consumers]


@given(num_producers=st.integers(1, 60), num_consumers=st.integers(1, 60))
def test_both_sides_of_a_pointwise_edge_agree(num_producers: int, num_consumers: int) -> None:
    """Each subtask of either side has a partner, and the numbers of partners differ by at most one."""
    written = {
        (producer, consumer)
        for producer in range(num_producers)
        for consumer in consumers_of(producer, num_producers, num_consumers)
    }
    read = {
        (producer, consumer)
        for consumer in range(num_consumers)
        for producer in producers_of(consumer, num_producers, num_consumers)
    }

    assert written == read
    assert len(written) == max(num_producers, num_consumers)
    assert {producer for producer, _ in read} == set(range(num_producers))
    assert {consumer for _, consumer in read} == set(range(num_consumers))
    sizes = {len(consumers_of(producer, num_producers, num_consumers)) for producer in range(num_producers)}
    assert max(sizes) - min(sizes) <= 1
