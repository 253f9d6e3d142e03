"""Merges sorted runs of blocks into one.

Hot path, per block: each step takes from every run what lies before the end of the block that ends first, and sorts it.

Side:       pure.
Invariants: of records with the same key and timestamp those of an earlier run come first; one block of each run is in
            memory.
Source:     Flink ``MergeIterator``, which compares single records.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from flowlet.records import MIN_TIMESTAMP
from flowlet.sorted_input.sort_codes import as_bytes, place_of
from flowlet.sorted_input.sorted_block import Block, joined

_Bound = tuple[bytes, int, int]  # code, timestamp, number of the run


class _Cursor:
    """What is left of one run."""

    def __init__(self, number: int, blocks: Iterator[Block]) -> None:
        self.number = number
        self._blocks = blocks
        self.rest: Block | None = None
        self.read_on()

    def read_on(self) -> None:
        """Take the next block that is not empty, if there is one."""
        self.rest = next((block for block in self._blocks if len(block)), None)

    def last(self) -> _Bound:
        """Where the block ends."""
        assert self.rest is not None, "asked only while there is a block"
        stamp = MIN_TIMESTAMP if self.rest.stamps is None else int(self.rest.stamps[-1])
        return bytes(as_bytes(self.rest.codes[-1:])[0]), stamp, self.number

    def take_until(self, bound: _Bound) -> Block | None:
        """The records up to a place in the order of all runs."""
        assert self.rest is not None, "asked only while there is a block"
        count = self._num_until(self.rest, bound)
        if count == len(self.rest):
            whole, self.rest = self.rest, None
            self.read_on()
            return whole
        part, self.rest = self.rest.slice(0, count), self.rest.slice(count, len(self.rest))
        return part if count else None

    def _num_until(self, block: Block, bound: _Bound) -> int:
        code, stamp, number = bound
        takes_equal = self.number <= number
        if block.stamps is None:
            return place_of(block.codes, code, "right" if takes_equal or stamp > MIN_TIMESTAMP else "left")
        start, stop = place_of(block.codes, code, "left"), place_of(block.codes, code, "right")
        return start + int(np.searchsorted(block.stamps[start:stop], stamp, "right" if takes_equal else "left"))


def merge_steps(runs: Sequence[Iterable[Block]]) -> Iterator[list[tuple[int, Block]]]:
    """The parts of each step, with the numbers of their runs; every record of a step is before every one of the next
    step.
    """
    cursors = [
        cursor for number, blocks in enumerate(runs) if (cursor := _Cursor(number, iter(blocks))).rest is not None
    ]
    while cursors:
        bound = min(cursor.last() for cursor in cursors)
        parts = [(cursor.number, part) for cursor in cursors if (part := cursor.take_until(bound)) is not None]
        cursors = [cursor for cursor in cursors if cursor.rest is not None]
        yield parts


def merged(runs: Sequence[Iterable[Block]]) -> Iterator[Block]:
    """All records in order; no block is longer than the current blocks of all runs together."""
    if len(runs) == 1:
        yield from runs[0]
        return
    for parts in merge_steps(runs):
        yield joined([part for _, part in parts]).sorted()
