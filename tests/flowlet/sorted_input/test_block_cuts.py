"""Parts of sorted blocks, and the memory of a sorter whose keys are long texts that repeat."""

import tracemalloc
from itertools import chain

import numpy as np
import pytest

from flowlet.columns import ArrayColumn, CodedColumn, Columns, ListColumn, NameTable, Shape
from flowlet.records import Chunk
from flowlet.sorted_input import key_numbering
from flowlet.sorted_input.external_sorter import ExternalSorter, cut
from flowlet.sorted_input.sort_codes import RankedCodes, as_bytes, list_codes
from flowlet.sorted_input.sorted_block import Block

BUDGET = 2 << 20
LENGTH = 500  # of a key


def ranked_block(repeats: list[int], length: int = LENGTH) -> Block:
    """Sorted records: so many of each key, each with the key and its number as fields."""
    keys = [f"{number:08}".ljust(length, "k") for number in range(len(repeats))]
    ranks = np.repeat(np.arange(len(keys), dtype=np.uint32), repeats)
    names = NameTable(keys)
    fields = (CodedColumn(ranks, names), ArrayColumn(np.arange(len(ranks))))
    chunk = Chunk.of_columns(Columns(len(ranks), fields, Shape.TUPLE, key_position=0))
    return Block(chunk, RankedCodes(ranks, list_codes(keys), names))


def characters_of(block: Block) -> int:
    """Of the names that the codes bring along."""
    assert isinstance(block.codes, RankedCodes)
    assert block.codes.names is not None
    return sum(map(len, block.codes.names.names))


def test_names_count() -> None:
    """A part holds its keys' texts, not only their ranks."""
    parts = list(cut(ranked_block([4] * 1000), 20_000, 1 << 14))

    assert max(map(characters_of, parts)) <= 20_000
    assert min(map(characters_of, parts[:-1])) > 10_000


def test_parts_of_keys_that_are_spread_unevenly() -> None:
    """Where most keys are in few rows, parts are shorter."""
    repeats = [2] * 200 + [5000] * 4
    block = ranked_block(repeats)

    parts = list(cut(block, 20_000, 1 << 14))

    assert max(map(characters_of, parts)) <= 20_000
    assert len(parts[0]) < 100 < 1000 < len(parts[-2])
    assert list(chain.from_iterable(part.chunk.values for part in parts)) == block.chunk.values
    assert list(chain.from_iterable(as_bytes(part.codes).tolist() for part in parts)) == as_bytes(block.codes).tolist()


def test_a_part_has_at_least_one_record_and_at_most_the_rows() -> None:
    """Whatever a record takes."""
    assert [len(part) for part in cut(ranked_block([3, 2]), 1, 100)] == [1] * 5
    assert [len(part) for part in cut(ranked_block([250], length=8), 1 << 20, 100)] == [100, 100, 50]


@pytest.mark.slow
def test_long_keys_that_repeat_stay_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """While records come in, and while runs are merged."""
    monkeypatch.setattr(key_numbering, "_MIN_ROWS", 100)  # as small as the budget is
    sorter = ExternalSorter(BUDGET)
    num_rows = 0
    peaks = []
    tracemalloc.start()
    try:
        for first in range(0, 1_500, 50):
            # Every run has keys of the whole range.
            keys = [
                f"{number * 2654435761 % 2**32:08x}".ljust(6 * LENGTH, "k")
                for number in range(first, first + 50)
                for _ in range(3)
            ]
            numbers = np.arange(num_rows, num_rows + len(keys))
            chunk = Chunk.of_columns(
                Columns(len(keys), (ListColumn(keys, str), ArrayColumn(numbers)), Shape.TUPLE, key_position=0)
            )
            num_rows += len(keys)
            sorter.add_chunk(chunk, ListColumn(keys, str))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
        found = sum(len(block) for block in sorter.sorted_blocks())
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
        sorter.close()

    assert found == num_rows
    assert max(peaks) < BUDGET, peaks
