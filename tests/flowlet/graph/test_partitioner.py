"""Promises of the partitioners."""

import pickle

import pytest

from flowlet.datastream import KeySelector
from flowlet.graph.partitioner import Broadcast, Forward, Global, KeyGroups, Partitioner, Rebalance


class FirstField(KeySelector):
    def get_key(self, value: tuple[str, int]) -> str:
        return value[0]


@pytest.mark.parametrize(
    ("partitioner", "strategy", "is_pointwise"),
    [
        (Forward(), "FORWARD", True),
        (Rebalance(), "REBALANCE", False),
        (Global(), "GLOBAL", False),
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
