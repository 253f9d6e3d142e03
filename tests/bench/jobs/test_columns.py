"""The rows of the columnar shuffle."""

from pathlib import Path

import pyarrow as pa

from bench.jobs import columns, pairs

KEYS = pairs.Keys("int", 10, 1024)


def test_both_kinds_of_source_give_the_rows_of_the_pairs(tmp_path: Path) -> None:
    """The shares together have all rows, and the time of the first batch is written down when it is asked for."""
    sources = {kind: columns.Batches(tmp_path, 200_000, KEYS, kind) for kind in columns.SOURCES}

    batches = {kind: source(1, 2) for kind, source in sources.items()}
    assert not (tmp_path / "start-1").exists()
    tables = {
        kind: pa.Table.from_batches(list(of_kind), columns.SCHEMA).combine_chunks() for kind, of_kind in batches.items()
    }

    assert tables["produced"] == tables["sliced"]
    assert tables["produced"].column("v").to_pylist() == list(range(100_000, 200_000))
    table = pairs.make_table(KEYS)
    assert tables["produced"].column("k").to_pylist() == [table[number % 1024] for number in range(100_000, 200_000)]
    assert (tmp_path / "start-1").exists()
