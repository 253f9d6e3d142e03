"""The pairs of the shuffle, and what has to come out."""

from pathlib import Path
from typing import Any

import pytest

from bench.jobs import pairs
from bench.jobs.checked import MarkedReader

KEYS = [pairs.Keys("int", 7, 700), pairs.Keys("str", 300, 300)]


def records_of(reader: MarkedReader) -> list[tuple[Any, int]]:
    records: list[tuple[Any, int]] = []
    while (chunk := reader.poll_chunk()) is not None:
        records += chunk.values
    return records


@pytest.mark.parametrize("keys", KEYS, ids=["int", "str"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_both_kinds_of_source_give_the_same_pairs_whose_sums_are_known(
    tmp_path: Path, keys: pairs.Keys, parallelism: int
) -> None:
    readers = {
        kind: [
            pairs.PairSource(tmp_path, 5_130, keys, kind).create_reader(subtask, parallelism)
            for subtask in range(parallelism)
        ]
        for kind in pairs.SOURCES
    }

    records = {kind: [records_of(reader) for reader in of_kind] for kind, of_kind in readers.items()}

    assert records["sliced"] == records["produced"]
    sums: dict[Any, int] = {}
    for key, value in (pair for of_reader in records["sliced"] for pair in of_reader):
        sums[key] = sums.get(key, 0) + value
    assert sums == pairs.Job(keys=keys, num_pairs=5_130).sums()
    assert {type(key) for key in sums} == {str if keys.kind == "str" else int}


def test_a_table_has_every_key_equally_often_in_a_random_order() -> None:
    table = pairs.make_table(KEYS[0])

    assert sorted(table) == sorted(list(range(7)) * 100)
    assert table != sorted(table)
