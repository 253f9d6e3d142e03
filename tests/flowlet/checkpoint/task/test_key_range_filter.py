"""Each record is kept by exactly the subtask that a record writer would send it to."""

import operator
from typing import Any

import numpy as np
import pytest

from flowlet.checkpoint.task.input_recovery import KeyRangeFilter
from flowlet.columns import ArrayColumn, Columns, Shape
from flowlet.graph.partitioner import KeyGroups
from flowlet.keys.exact_keys import key_group, key_group_range, operator_index
from flowlet.records import Chunk

NUM_GROUPS, NUM_SUBTASKS = 12, 5
KEYS = [*range(200), -1, 2**70, "text", ("a", 1)]


def listed(*, are_keyed: bool) -> Chunk:
    chunk = Chunk([(key, number) for number, key in enumerate(KEYS)], list(range(len(KEYS))))
    chunk.keys = list(KEYS) if are_keyed else None
    return chunk


def in_columns(key_position: int | None) -> Chunk:
    keys = np.arange(200, dtype=np.int64)
    columns = Columns(200, (ArrayColumn(keys), ArrayColumn(keys * 2)), Shape.TUPLE, key_position=key_position)
    return Chunk.of_columns(columns, np.arange(200, dtype=np.int64))


@pytest.mark.parametrize("chunk", [listed(are_keyed=True), listed(are_keyed=False), in_columns(0), in_columns(None)])
def test_every_record_is_kept_once_in_order_with_its_timestamp(chunk: Chunk) -> None:
    partitioner = KeyGroups(operator.itemgetter(0), NUM_GROUPS)
    found: list[tuple[Any, int]] = []

    for subtask in range(NUM_SUBTASKS):
        kept = KeyRangeFilter(partitioner, key_group_range(NUM_GROUPS, NUM_SUBTASKS, subtask), subtask)(chunk)
        assert kept.timestamps is not None
        assert kept.timestamps == sorted(kept.timestamps)
        assert all(
            operator_index(key_group(key, NUM_GROUPS), NUM_GROUPS, NUM_SUBTASKS) == subtask for key, _ in kept.values
        )
        assert kept.keys in (None, [key for key, _ in kept.values])
        found += zip(kept.values, kept.timestamps, strict=True)

    assert chunk.timestamps is not None
    assert sorted(found, key=operator.itemgetter(1)) == list(zip(chunk.values, chunk.timestamps, strict=True))


def test_a_subtask_with_all_keys_gets_the_very_chunk() -> None:
    chunk, nothing = listed(are_keyed=False), Chunk([])
    everything = KeyRangeFilter(KeyGroups(operator.itemgetter(0), NUM_GROUPS), range(NUM_GROUPS), 0)

    assert everything(chunk) is chunk
    assert everything(nothing) is nothing
    assert repr(everything) == "<KeyRangeFilter of range(0, 12) of 12>"
