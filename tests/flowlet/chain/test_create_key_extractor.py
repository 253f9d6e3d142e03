import operator
from typing import Any

import numpy as np
import pytest

from flowlet.chain.chunking_output import KeyExtractor, create_key_extractor
from flowlet.errors import UserFunctionError
from flowlet.graph.partitioner import Broadcast, Custom, Forward, Global, KeyGroups, Rebalance, Rescale, Shuffle
from flowlet.records import Chunk

SUBTASK = 5


def taken(keys: KeyExtractor | None, *records: Any) -> list[Any] | None:
    assert keys is not None
    return keys.keyed(Chunk(list(records))).keys


class ById:
    def get_key(self, value: Any) -> Any:
        return value["id"]


class Ranges:
    def partition(self, key: int, num_partitions: int) -> int:
        return min(key // 10, num_partitions - 1)


@pytest.mark.parametrize("partitioner", [Forward(), Global(), Broadcast(), Rebalance(), Rescale(), Shuffle()], ids=repr)
def test_where_nothing_of_a_record_counts_nobody_is_asked(partitioner: Any) -> None:
    assert create_key_extractor(partitioner, SUBTASK, 3) is None


@pytest.mark.parametrize(
    "selector", [lambda record: record["id"], operator.itemgetter("id"), ById()], ids=["lambda", "getter", "object"]
)
def test_a_stream_by_key_is_asked_for_keys(selector: Any) -> None:
    """Selectors may be functions or objects, and channels any number."""
    for num_channels in (1, 3):
        keys = create_key_extractor(KeyGroups(selector), SUBTASK, num_channels)

        assert keys is not None
        assert keys.makes_keys
        assert taken(keys, {"id": 1}, {"id": "a"}) == [1, "a"]


def test_a_getter_of_a_field_says_so() -> None:
    getter = create_key_extractor(KeyGroups(operator.itemgetter(1)), SUBTASK, 2)
    function = create_key_extractor(KeyGroups(lambda record: record[1]), SUBTASK, 2)

    assert getter is not None
    assert function is not None
    assert (getter.field, function.field) == (1, None)


@pytest.mark.parametrize(
    "function", [Ranges(), Ranges().partition, lambda key, num_partitions: np.int64(min(key // 10, num_partitions - 1))]
)
def test_a_custom_partitioner_is_asked_for_channels(function: Any) -> None:
    keys = create_key_extractor(Custom(function, lambda record: record["at"]), SUBTASK, 3)

    assert keys is not None
    assert not keys.makes_keys
    channels = taken(keys, {"at": 5}, {"at": 15}, {"at": 99})
    assert channels == [0, 1, 2]
    assert set(map(type, channels)) == {int}


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (3, "the partitioner returned 3; it must return a number from 0 to 2"),
        (-1, "the partitioner returned -1"),
        ("0", "'str' object cannot be interpreted as an integer"),
        (0.0, "'float'"),
        (None, "'NoneType'"),
    ],
)
def test_a_channel_that_there_is_not_is_refused_with_its_record(chosen: Any, message: str) -> None:
    keys = create_key_extractor(Custom(lambda key, _: chosen if key == "bad" else 0, lambda record: record), SUBTASK, 3)

    with pytest.raises(UserFunctionError) as caught:
        taken(keys, "good", "bad")

    assert (caught.value.operator, caught.value.subtask, caught.value.record_preview) == (
        "partition_custom",
        5,
        "'bad'",
    )
    assert message in str(caught.value.__cause__)


def test_a_key_selector_that_fails_is_named_by_its_step() -> None:
    with pytest.raises(UserFunctionError) as caught:
        taken(create_key_extractor(KeyGroups(lambda record: record["id"]), SUBTASK, 2), {"name": 1})

    assert (caught.value.operator, caught.value.subtask, caught.value.record_preview) == ("key_by", 5, "{'name': 1}")
