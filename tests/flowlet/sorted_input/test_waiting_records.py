"""Chunks with keys of every representation, sorted with files and without."""

import enum
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    Columns,
    ConstantColumn,
    ListColumn,
    NameTable,
    Shape,
)
from flowlet.columns.short_text_column import try_short_texts
from flowlet.records import Chunk
from flowlet.sorted_input.external_sorter import ExternalSorter, WaitingRecords
from flowlet.sorted_input.sorted_block import Block, as_bytes, codes_of
from flowlet.sorted_input.sorting_input_processor import key_runs, open_runs

TINY, SMALL, LARGE = 1, 40_000, 1 << 30
ROWS = 40


class Color(enum.StrEnum):
    RED = "key 1"


def chunk_of(kind: str, keys: list[str], first: int, stamps: np.ndarray[Any, Any] | None) -> tuple[Chunk, Column]:
    """Return a chunk of pairs of key and number as the reader of a channel gets it, and its keys."""
    column: Column
    match kind:
        case "coded":
            names = sorted(set(keys), key=hash)
            column = CodedColumn(np.array([names.index(key) for key in keys], np.uint16), NameTable(names))
        case "short":
            short = try_short_texts(keys)
            assert short is not None
            column = short
        case "constant":
            column = ConstantColumn(keys[0], len(keys))
        case _:
            column = ListColumn(keys, str)
    if kind == "records":
        records = Chunk(
            [(key, first + place) for place, key in enumerate(keys)], None if stamps is None else stamps.tolist()
        )
        records.keys = keys
        return records, ListColumn(keys)
    numbers = ArrayColumn(np.arange(first, first + len(keys)))
    table = Columns(len(keys), (column, numbers), Shape.TUPLE, key_position=0)
    return Chunk.of_columns(table, stamps), column


def chunks_of(
    kinds: list[str], num_keys: int, *, has_stamps: bool, num_chunks: int = 60
) -> Iterator[tuple[Chunk, Column]]:
    rng, num_records = random.Random(num_keys), 0
    for _ in range(num_chunks):
        kind = rng.choice(kinds)
        rows = rng.randrange(1, ROWS // 4 if kind == "records" else ROWS)
        keys = [f"key {rng.randrange(num_keys)}" for _ in range(rows)]
        if kind == "constant":
            keys = keys[:1] * rows
        stamps = np.array([rng.randrange(9) for _ in keys], np.int64) if has_stamps else None
        yield chunk_of(kind, keys, num_records, stamps)
        num_records += rows


def expected_records(chunks: list[Chunk]) -> list[tuple[str, int]]:
    items = []
    for chunk in chunks:
        stamps = chunk.timestamps or [0] * len(chunk)
        items += [
            (len(record[0]), record[0], stamp, record[1]) for record, stamp in zip(chunk.values, stamps, strict=True)
        ]
    return [(key, number) for _, key, _, number in sorted(items)]


@pytest.mark.slow
@pytest.mark.parametrize("has_stamps", [False, True])
@pytest.mark.parametrize("num_keys", [3, 5000])
@pytest.mark.parametrize("budget", [TINY, SMALL, LARGE])
@pytest.mark.parametrize(
    "kinds",
    [
        ["coded"],
        ["list"],
        ["coded", "list", "short", "constant"],
        ["coded", "records"],
        ["records"],
        ["records", "records", "short"],
    ],
)
def test_texts_of_every_representation(
    kinds: list[str], budget: int, num_keys: int, has_stamps: bool, tmp_path: Path
) -> None:
    """Records come out by key, timestamp and arrival; those in columns stay there, wherever most are."""
    sorter = ExternalSorter(budget, str(tmp_path))
    # The budget of the middle needs more to be full.
    chunks = list(chunks_of(kinds, num_keys, has_stamps=has_stamps, num_chunks=60 if budget == SMALL else 20))
    expected = expected_records([chunk for chunk, _ in chunks])
    for chunk, keys in chunks:
        sorter.add(chunk, keys)

    blocks = list(sorter.sorted_blocks())
    sorter.close()

    assert [record for block in blocks for record in block.chunk.values] == expected
    if "records" not in kinds:
        assert all(block.chunk.columns is not None and block.chunk.columns.key_position == 0 for block in blocks)
    for block in blocks:
        assert as_bytes(block.codes).tolist() == as_bytes(codes_of([key for key, _ in block.chunk.values])).tolist()
        assert (block.stamps is None) != has_stamps
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("budget", [TINY, LARGE])
def test_runs_of_keys_have_the_codes_of_their_block(budget: int) -> None:
    """Open runs of one input, and the runs of two that meet key by key."""

    def blocks(seed: int) -> Iterator[Block]:
        sorter = ExternalSorter(budget)
        for chunk, keys in chunks_of(["coded", "list"], 5 + seed, has_stamps=True, num_chunks=20):
            sorter.add(chunk, keys)
        return sorter.sorted_blocks()

    opened = [record for run in open_runs([blocks(0)]) for record in run.chunk.values]
    stretches: list[set[str]] = []
    for run in key_runs([blocks(0), blocks(1)]):
        if run.begins_key or not stretches:
            stretches.append(set())
        stretches[-1] |= {key for key, _ in run.chunk.values}

    assert opened == [record for block in blocks(0) for record in block.chunk.values]
    assert stretches == [{f"key {number}"} for number in range(6)]


def test_keys_that_are_not_exactly_texts_stay_as_they_are() -> None:
    """A member of an enumeration has the key of its text, and is another value."""
    waiting = WaitingRecords()
    for keys in (["key 1", "key 0"] * 5, [Color.RED, "key 0"] * 5):
        column = ListColumn(list(keys))
        table = Columns(len(keys), (column, ConstantColumn(1, len(keys))), Shape.TUPLE, key_position=0)
        waiting.add(Chunk.of_columns(table), column)

    (block,) = waiting.sorted_blocks(LARGE, 1000)

    assert [type(key) for key, _ in block.chunk.values] == [str] * 10 + [str] * 5 + [Color] * 5
    assert np.unique(block.codes, return_index=True)[1].tolist() == [0, 10]


def test_arrow_columns_stay_arrow_columns() -> None:
    """A column that was in Arrow's form keeps its Arrow type."""
    waiting = WaitingRecords()
    for keys in (["b", "a"] * 5, ["a", None] * 5):
        column = ArrowColumn(pa.array(keys, pa.large_string()))
        waiting.add(Chunk.of_columns(Columns(len(keys), (column,), Shape.ROW, ("key",), key_position=0)), column)

    (block,) = waiting.sorted_blocks(LARGE, 1000)
    columns = block.chunk.columns

    assert columns is not None
    assert columns.fields[0].arrow_array().type == pa.large_string()
    assert columns.fields[0].to_list() == ["a"] * 10 + ["b"] * 5 + [None] * 5


def test_records_in_lists_keep_another_key() -> None:
    """A few records in a list, whose key is not their first field, put no other key into the columns."""
    waiting = WaitingRecords()
    chunk, keys = chunk_of("list", ["key 1", "key 2"] * 5, 0, None)
    waiting.add(chunk, keys)
    listed = Chunk([("key 1", 10)])
    listed.keys = ["key 2"]
    waiting.add(listed, ListColumn(["key 2"]))

    (block,) = waiting.sorted_blocks(LARGE, 1000)

    assert block.chunk.columns is None
    assert block.chunk.keys == ["key 1"] * 5 + ["key 2"] * 6
    assert block.chunk.values[-1] == ("key 1", 10)


def test_size_grows_with_the_keys() -> None:
    """Characters count, too, because the records need not hold them any more."""
    waiting = WaitingRecords()
    sizes = [0]
    for _ in range(3):
        waiting.add(Chunk([None] * 5), ListColumn(["a" * 10_000] * 5))
        sizes.append(waiting.estimated_bytes)

    assert sizes[2] - sizes[1] == sizes[3] - sizes[2] < 2_000 < 10_000 < sizes[1]


@pytest.mark.parametrize(
    "key_of",
    [
        lambda number: f"{number:04}".ljust(1000),
        lambda number: f"{number:04}".ljust(500, "\u0394"),
        lambda number: b"%04d" % number * 250,
        lambda number: (f"{number:04}".ljust(1000), number),
        lambda number: (number, ("a", f"{number:04}".ljust(1000))),
        lambda number: 10**2400 + number,
    ],
    ids=["text", "wide text", "bytes", "tuple", "tuple in a tuple", "large integer"],
)
def test_what_keys_hold_counts(key_of: Callable[[int], Any]) -> None:
    """A thousand bytes each, and a little more, wherever in the key they are."""
    waiting, records = WaitingRecords(), WaitingRecords()
    chunk = Chunk([None] * 600)
    records.add(chunk, ListColumn(["key"] * 600))

    waiting.add(chunk, ListColumn([key_of(number % 200) for number in range(600)]))

    assert 200 * 1000 <= waiting.estimated_bytes - records.estimated_bytes <= 200 * 1500, waiting
