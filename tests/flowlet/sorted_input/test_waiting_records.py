"""Chunks with keys of every representation, sorted with files and without."""

import enum
import itertools
import random
from collections.abc import Iterator
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
    ShortTextColumn,
)
from flowlet.columns.short_text_column import try_short_texts
from flowlet.records import Chunk
from flowlet.sorted_input import external_sorter as waiting_records
from flowlet.sorted_input import key_numbering
from flowlet.sorted_input import sort_codes as ranked_codes
from flowlet.sorted_input.external_sorter import ExternalSorter, WaitingRecords
from flowlet.sorted_input.sort_codes import RankedCodes, as_bytes, list_codes
from flowlet.sorted_input.sorted_block import Block
from flowlet.sorted_input.sorting_input_processor import key_runs, open_runs

TINY, SMALL, LARGE = 1, 40_000, 1 << 30
ROWS = 40


class Color(enum.StrEnum):
    RED = "key 1"


def chunk_of(kind: str, keys: list[str], first: int, stamps: np.ndarray[Any, Any] | None) -> tuple[Chunk, Column]:
    """A chunk of pairs of key and number as the reader of a channel gets it, and its keys."""
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


def chunks_of(kinds: list[str], num_keys: int, *, has_stamps: bool) -> Iterator[tuple[Chunk, Column]]:
    rng, num_records = random.Random(num_keys), 0
    for _ in range(60):
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
    kinds: list[str], budget: int, num_keys: int, has_stamps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records come out by key, timestamp and arrival; those in columns stay there, wherever most are."""
    # As small as the data are, so that numbers soon pay, or are soon given up.
    monkeypatch.setattr(key_numbering, "_MIN_ROWS", 100)
    monkeypatch.setattr(ranked_codes, "_MIN_ROWS", 20)
    monkeypatch.setattr(waiting_records, "_MOST_VAIN", 200)
    sorter = ExternalSorter(budget, str(tmp_path))
    chunks = list(chunks_of(kinds, num_keys, has_stamps=has_stamps))
    expected = expected_records([chunk for chunk, _ in chunks])
    for chunk, keys in chunks:
        sorter.add_chunk(chunk, keys)

    blocks = list(sorter.sorted_blocks())
    sorter.close()

    assert [record for block in blocks for record in block.chunk.values] == expected
    if "records" not in kinds:
        assert all(block.chunk.columns is not None and block.chunk.columns.key_position == 0 for block in blocks)
    for block in blocks:
        assert as_bytes(block.codes).tolist() == as_bytes(list_codes([key for key, _ in block.chunk.values])).tolist()
        assert (block.stamps is None) != has_stamps
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("budget", [TINY, LARGE])
def test_runs_of_keys_have_the_codes_of_their_block(budget: int) -> None:
    """Open runs of one input, and the runs of two that meet key by key."""

    def blocks(seed: int) -> Iterator[Block]:
        sorter = ExternalSorter(budget)
        for chunk, keys in chunks_of(["coded", "list"], 5 + seed, has_stamps=True):
            sorter.add_chunk(chunk, keys)
        return sorter.sorted_blocks()

    opened = [record for run in open_runs([blocks(0)]) for record in run.chunk.values]
    stretches: list[set[str]] = []
    for run in key_runs([blocks(0), blocks(1)]):
        if run.begins_key or not stretches:
            stretches.append(set())
        stretches[-1] |= {key for key, _ in run.chunk.values}

    assert opened == [record for block in blocks(0) for record in block.chunk.values]
    assert stretches == [{f"key {number}"} for number in range(6)]


def test_keys_that_are_not_exactly_texts_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member of an enumeration is the same key as its text, and another value."""
    monkeypatch.setattr(key_numbering, "_MIN_ROWS", 1)
    waiting = WaitingRecords(1 << 30)
    for keys in (["key 1", "key 0"] * 5, [Color.RED, "key 0"] * 5):
        column = ListColumn(list(keys))
        table = Columns(len(keys), (column, ConstantColumn(1, len(keys))), Shape.TUPLE, key_position=0)
        waiting.add_chunk(Chunk.of_columns(table), column)

    block = waiting.joined().sorted()

    assert [type(key) for key, _ in block.chunk.values] == [str] * 10 + [str] * 5 + [Color] * 5
    assert block.key_starts().tolist() == [0, 10]


def test_arrow_columns_stay_arrow_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked for Arrow gets its type back."""
    monkeypatch.setattr(key_numbering, "_MIN_ROWS", 1)
    waiting = WaitingRecords(1 << 30)
    for keys in (["b", "a"] * 5, ["a", None] * 5):
        column = ArrowColumn(pa.array(keys, pa.large_string()))
        waiting.add_chunk(Chunk.of_columns(Columns(len(keys), (column,), Shape.ROW, ("key",), key_position=0)), column)

    columns = waiting.joined().sorted().chunk.columns

    assert columns is not None
    assert columns.fields[0].arrow_array().type == pa.large_string()
    assert columns.fields[0].to_list() == ["a"] * 10 + ["b"] * 5 + [None] * 5


def test_a_part_of_many_keys_keeps_its_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether ranks are worth it is a matter of the keys of the part."""
    monkeypatch.setattr(key_numbering, "_MIN_ROWS", 1)
    waiting = WaitingRecords(1 << 30)
    chunk, keys = chunk_of("list", [f"key {number:03}" for number in range(200) for _ in range(4)], 0, None)
    waiting.add_chunk(chunk, keys)

    part = waiting.joined().sorted().slice(8, 20).trimmed()

    assert isinstance(part.codes, RankedCodes)
    assert part.codes.names is not None
    assert part.codes.names.names == ["key 002", "key 003", "key 004"]


def test_numbers_in_vain_are_given_up() -> None:
    """Columns stay as they came, and what the numbers took is free again."""
    waiting = WaitingRecords(most_bytes=100_000)
    sizes = []
    for start in range(0, 400, 20):
        chunk, keys = chunk_of("short", [f"key {number:03}" for number in range(start, start + 20)], start, None)
        waiting.add_chunk(chunk, keys)
        sizes.append(waiting.estimated_bytes)

    block = waiting.joined().sorted()

    assert min(later - earlier for earlier, later in itertools.pairwise(sizes)) < 0
    assert block.chunk.columns is not None
    assert isinstance(block.chunk.columns.fields[0], ShortTextColumn)
    assert isinstance(block.codes, np.ndarray)
    assert [number for _, number in block.chunk.values] == list(range(400))


def test_records_in_lists_keep_another_key() -> None:
    """A few records in a list, whose key is not their first field, put no other key into the columns."""
    waiting = WaitingRecords(1 << 30)
    chunk, keys = chunk_of("list", ["key 1", "key 2"] * 5, 0, None)
    waiting.add_chunk(chunk, keys)
    listed = Chunk([("key 1", 10)])
    listed.keys = ["key 2"]
    waiting.add_chunk(listed, ListColumn(["key 2"]))

    block = waiting.joined().sorted()

    assert block.chunk.columns is None
    assert block.chunk.keys == ["key 1"] * 5 + ["key 2"] * 6
    assert block.chunk.values[-1] == ("key 1", 10)
