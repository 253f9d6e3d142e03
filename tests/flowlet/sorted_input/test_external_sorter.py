"""Sorting in bounded memory, against ``sorted``."""

import io
import os
import random
import tempfile
import tracemalloc
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.columns import ArrayColumn, Column, Columns, ListColumn, Shape
from flowlet.errors import FlowletError
from flowlet.keys.exact_keys import exact_key
from flowlet.records import Chunk
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS, ElementLimits
from flowlet.sorted_input import external_sorter
from flowlet.sorted_input.external_sorter import ExternalSorter
from flowlet.sorted_input.sorted_block import Block, as_bytes, codes_of
from flowlet.sorted_input.sorting_input_processor import key_runs, open_runs

TINY = 1  # every block becomes a run
SMALL = 64 * 1024
LARGE = 1 << 30

Record = tuple[Any, int]  # key, and the number of the record
records_of_chunks = st.lists(
    st.lists(
        st.tuples(st.integers(-3, 3) | st.sampled_from("abc") | st.tuples(st.integers(0, 1)), st.integers(0, 5)),
        max_size=8,
    ),
    max_size=8,
)


Added = tuple[Chunk, Column]  # records, and their keys


def listed(keys: list[Any], first: int, stamps: list[int] | None = None) -> Added:
    chunk = Chunk([(key, first + place) for place, key in enumerate(keys)], stamps)
    chunk.keys = keys
    return chunk, ListColumn(keys)


def numbers(keys: list[int], first: int, stamps: list[int] | None = None) -> Added:
    fields = (ArrayColumn(np.array(keys, np.int64)), ArrayColumn(np.arange(first, first + len(keys))))
    array = None if stamps is None else np.array(stamps, np.int64)
    return Chunk.of_columns(Columns(len(keys), fields, Shape.TUPLE, key_position=0), array), fields[0]


def block_of(keys: list[int], first: int) -> Block:
    return Block(listed(keys, first)[0], codes_of(keys))


def sort_key(key: Any) -> bytes:
    return bytes(as_bytes(codes_of([exact_key(key)]))[0])


def records_of(blocks: Iterator[Block]) -> list[Record]:
    return [record for block in blocks for record in block.chunk.values]


@pytest.fixture(params=[TINY, SMALL, LARGE])
def sorter(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ExternalSorter]:
    sorter = ExternalSorter(request.param, str(tmp_path))
    yield sorter
    sorter.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@given(chunks=records_of_chunks, budget=st.sampled_from([TINY, SMALL, LARGE]), has_stamps=st.booleans())
@settings(deadline=None, max_examples=60)
def test_records_come_out_as_sorted_gives_them(
    chunks: list[list[tuple[Any, int]]], budget: int, has_stamps: bool
) -> None:
    """Records are sorted by key, then by timestamp, then in the order of their arrival; with files or without."""
    sorter = ExternalSorter(budget)
    expected: list[tuple[bytes, int, Record]] = []
    for chunk in chunks:
        keys, stamps = [key for key, _ in chunk], [stamp for _, stamp in chunk]
        if keys:
            sorter.add(*listed(keys, len(expected), stamps if has_stamps else None))
            expected += [
                (sort_key(key), stamp if has_stamps else 0, (key, len(expected) + place))
                for place, (key, stamp) in enumerate(chunk)
            ]

    found = records_of(sorter.sorted_blocks())
    sorter.close()

    assert found == [record for _, _, record in sorted(expected, key=lambda item: item[:2])]


@pytest.mark.slow
def test_columns_stay_columns(sorter: ExternalSorter) -> None:
    """Columns keep their form and their timestamps through files, too."""
    rng = random.Random(7)
    keys = [rng.randrange(200) for _ in range(4_000)]
    stamps = [rng.randrange(1000) for _ in keys]
    for start in range(0, len(keys), 1000):
        sorter.add(*numbers(keys[start : start + 1000], start, stamps[start : start + 1000]))

    blocks = list(sorter.sorted_blocks())

    assert all(block.chunk.columns is not None and block.chunk.columns.key_position == 0 for block in blocks)
    expected = sorted(range(len(keys)), key=lambda place: (keys[place], stamps[place]))
    assert records_of(iter(blocks)) == [(keys[place], place) for place in expected]
    assert [stamp for block in blocks for stamp in block.chunk.timestamps or ()] == [
        stamps[place] for place in expected
    ]


def test_numbers_and_texts_are_merged(tmp_path: Path) -> None:
    """Runs of numbers are merged with later ones of bytes."""
    sorter = ExternalSorter(TINY, str(tmp_path))
    sorter.add(*numbers([3, 1, 2], 0))
    sorter.add(*listed(["b", 2, "a"], 3))

    found = records_of(sorter.sorted_blocks())

    assert found == [(1, 1), (2, 2), (2, 4), (3, 0), ("a", 5), ("b", 3)]


def test_many_runs_are_merged_before_the_end(tmp_path: Path) -> None:
    """Two files become one again and again with a tiny budget."""
    sorter = ExternalSorter(TINY, str(tmp_path))
    for number in range(50):
        sorter.add(*numbers([number % 7, 9], number * 2))
        assert len(os.listdir("/proc/self/fd")) < 60 + 100
        assert sum(run.num_bytes for run in sorter._runs) < sorter.num_spilled_bytes or number < 2

    assert [key for key, _ in records_of(sorter.sorted_blocks())] == sorted(
        [number % 7 for number in range(50)] + [9] * 50
    )


@pytest.mark.parametrize("budget", [TINY, SMALL, LARGE])
def test_blocks_have_a_bounded_number_of_rows(budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound holds for blocks that are merged of many runs, too."""
    monkeypatch.setattr(external_sorter, "_MOST_BLOCK_ROWS", 50)
    sorter = ExternalSorter(budget, str(tmp_path))
    for number in range(0, 3_500, 500):
        sorter.add(*numbers([place * 7 % 500 for place in range(500)], number))

    lengths = [len(block) for block in sorter.sorted_blocks()]
    sorter.close()

    assert sum(lengths) == 3_500
    assert max(lengths) <= 50


def test_many_small_blocks_take_no_more_memory_than_large_ones(tmp_path: Path) -> None:
    """An array of one number takes many times its size."""
    sorter = ExternalSorter(SMALL, str(tmp_path))
    tracemalloc.start()
    try:
        for number in range(1_000):
            sorter.add(*numbers([number], number, [number]))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        sorter.close()

    assert peak_bytes < 2 * SMALL, sorter


def test_a_full_disk_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the task and the directory; nothing is left."""

    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(28, "No space left on device")

    sorter = ExternalSorter(TINY, str(tmp_path), name="Reduce (1/2)")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())

    with pytest.raises(
        FlowletError, match=rf"Reduce \(1/2\): an input that is sorted by key .* in {tmp_path}.*No space left"
    ):
        sorter.add(*listed(["a"], 0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@given(chunks=records_of_chunks, budget=st.sampled_from([TINY, LARGE]))
@settings(deadline=None, max_examples=40)
def test_each_run_has_one_key_and_tells_where_the_next_begins(chunks: list[list[tuple[Any, int]]], budget: int) -> None:
    """Every key has one stretch of runs, of two inputs too; within it timestamps rise."""
    sorters = [ExternalSorter(budget), ExternalSorter(budget)]
    for number, chunk in enumerate(chunk for chunk in chunks if chunk):
        sorters[number % 2].add(*listed([key for key, _ in chunk], number * 100, [stamp for _, stamp in chunk]))

    stretches: list[list[tuple[Any, int]]] = []
    for run in key_runs([sorter.sorted_blocks() for sorter in sorters]):
        if run.begins_key or not stretches:
            stretches.append([])
        stretches[-1] += [
            (key, stamp) for (key, _), stamp in zip(run.chunk.values, run.chunk.timestamps or (), strict=True)
        ]

    assert all(len({sort_key(key) for key, _ in stretch}) == 1 for stretch in stretches)
    assert len({sort_key(stretch[0][0]) for stretch in stretches}) == len(stretches)
    assert all([stamp for _, stamp in stretch] == sorted(stamp for _, stamp in stretch) for stretch in stretches)
    assert sorted(map(repr, chain.from_iterable(stretches))) == sorted(map(repr, chain.from_iterable(chunks)))


def test_open_runs_end_where_a_key_may_go_on() -> None:
    """All keys of a block but the last one form a run, and the last one, which may go on, another."""
    first, second = block_of([1, 1, 2, 3], 0), block_of([3, 3], 4)
    third = block_of([4, 5], 6)

    runs = [(run.begins_key, [key for key, _ in run.chunk.values]) for run in open_runs([[first, second, third]])]

    assert runs == [(False, [1, 1, 2]), (True, [3]), (False, [3, 3]), (True, [4]), (True, [5])]


@pytest.mark.slow
@given(chunks=records_of_chunks, budget=st.sampled_from([TINY, LARGE]), num_inputs=st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_open_runs_of_several_inputs_end_where_a_key_may_go_on(
    chunks: list[list[tuple[Any, int]]], budget: int, num_inputs: int
) -> None:
    """No key has records before and after the begin of another key, and each input keeps its order."""
    sorters = [ExternalSorter(budget) for _ in range(num_inputs)]
    for number, chunk in enumerate(chunk for chunk in chunks if chunk):
        sorters[number % num_inputs].add(
            *listed([key for key, _ in chunk], number * 100, [stamp for _, stamp in chunk])
        )

    stretches: list[list[Any]] = []
    found: list[list[Record]] = [[] for _ in sorters]
    for run in open_runs([sorter.sorted_blocks() for sorter in sorters]):
        if run.begins_key or not stretches:
            stretches.append([])
        stretches[-1] += [key for key, _ in run.chunk.values]
        found[run.input_index] += run.chunk.values

    keys = [{sort_key(key) for key in stretch} for stretch in stretches]
    assert sum(map(len, keys)) == len(set().union(*keys))
    orders = [[sort_key(key) for key, _ in records] for records in found]
    assert orders == [sorted(order) for order in orders]
    assert sorted(map(repr, chain.from_iterable(keys_of(found)))) == sorted(
        repr(key) for key, _ in chain.from_iterable(chunks)
    )


def keys_of(inputs: list[list[Record]]) -> list[list[Any]]:
    """Return the key of each record."""
    return [[key for key, _ in records] for records in inputs]


@pytest.mark.slow
def test_a_record_above_the_default_limit_goes_into_a_run_if_the_job_allows_it(tmp_path: Path) -> None:
    """``flowlet.max-record-bytes`` is for the files of a sorted input, too."""
    size = DEFAULT_ELEMENT_LIMITS.max_element_bytes + 1000
    sorter = ExternalSorter(TINY, str(tmp_path), ElementLimits(2 * size))

    for key, data in ((1, bytes(size)), (0, b"small")):
        chunk = Chunk([(key, data)])
        chunk.keys = [key]
        sorter.add(chunk, ListColumn(chunk.keys))

    assert sorter.num_spilled_bytes > size
    assert [(key, len(data)) for block in sorter.sorted_blocks() for key, data in block.chunk.values] == [
        (0, 5),
        (1, size),
    ]
    sorter.close()


def test_runs_keep_to_a_limit_below_the_default(tmp_path: Path) -> None:
    """The blocks of runs are cut until each element is one that the job's limit allows to be read again."""
    sorter = ExternalSorter(SMALL, str(tmp_path), ElementLimits(10_000))

    for first in range(0, 400, 50):
        sorter.add(*listed([f"{number:500}" for number in range(first, first + 50)], first))

    assert sorter.num_spilled_bytes > 100_000
    assert sorted(int(key) for key, _ in records_of(sorter.sorted_blocks())) == list(range(400))
    sorter.close()


@pytest.mark.slow
def test_long_keys_that_repeat_stay_in_the_budget() -> None:
    """The budget holds while records come in, and while runs are merged."""
    sorter = ExternalSorter(2 << 20)
    num_rows = 0
    peaks = []
    tracemalloc.start()
    try:
        for first in range(0, 600, 20):
            # Every run has keys of the whole range.
            keys = [
                f"{number * 2654435761 % 2**32:08x}".ljust(7500, "k")
                for number in range(first, first + 20)
                for _ in range(3)
            ]
            numbers = np.arange(num_rows, num_rows + len(keys))
            chunk = Chunk.of_columns(
                Columns(len(keys), (ListColumn(keys, str), ArrayColumn(numbers)), Shape.TUPLE, key_position=0)
            )
            num_rows += len(keys)
            sorter.add(chunk, ListColumn(keys, str))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
        found = sum(len(block) for block in sorter.sorted_blocks())
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
        sorter.close()

    assert found == num_rows
    assert max(peaks) < (2 << 20), peaks
