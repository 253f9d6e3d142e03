"""Records with the codes of their keys: what sorters sort, merge and cut.

Hot path, per block: numpy sorts codes, columns are taken by position.  Each step of a merge takes from every run what
lies before the end of the block that ends first, and sorts it.

Side:       pure.
Invariants: a block has a code, and perhaps a timestamp, for each record; records are in columns wherever those of a
            chunk were, unless blocks with records of different kinds are joined.  Of records with the same key and
            timestamp those of an earlier run come first; one block of each run is in memory.
Source:     Flink ``SortingDataInput``, ``KeyAndValueSerializer``, ``FixedLengthByteKeyComparator``: by key, then by
            timestamp.  Flink ``MergeIterator``, which compares single records.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import Columns, columns_of, concatenated
from flowlet.kernels.grouping import stable_order
from flowlet.records import MIN_TIMESTAMP, Chunk, Int64Array
from flowlet.sorted_input.sort_codes import CodeArray, alike
from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """Records of one input; of the caller's own, who may give the chunk away.

    ``stamps``: None if no record has a timestamp.
    """

    chunk: Chunk
    codes: CodeArray
    stamps: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def with_codes(self, codes: CodeArray) -> "Block":
        """The same records."""
        return self if codes is self.codes else Block(self.chunk, codes, self.stamps)

    def slice(self, start: int, stop: int) -> "Block":
        """The records from ``start`` to before ``stop``."""
        if start == 0 and stop >= len(self):
            return self
        stamps = None if self.stamps is None else self.stamps[start:stop]
        return Block(self.chunk.slice(start, stop), self.codes[start:stop], stamps)

    def parts(self, num_rows: int) -> Iterator["Block"]:
        """The same records in blocks of so many."""
        for start in range(0, len(self), num_rows):
            yield self.slice(start, start + num_rows)

    def sorted(self) -> "Block":
        """By code, then by timestamp; equal ones stay in their order."""
        rows = order_of(self.codes, self.stamps)
        if rows is None:
            return self
        stamps = None if self.stamps is None else self.stamps.take(rows)
        return Block(_taken(self.chunk, rows, stamps), self.codes.take(rows), stamps)


def order_of(codes: CodeArray, stamps: Int64Array | None) -> NDArray[np.intp] | None:
    """The rows by code, then by timestamp, then by position; None if they are in this order already."""
    by_time = None if stamps is None else stable_order(stamps)
    if by_time is None:
        return _order_of_codes(codes)
    by_code = _order_of_codes(codes.take(by_time))
    return by_time if by_code is None else by_time.take(by_code)


def _order_of_codes(codes: CodeArray) -> NDArray[np.intp] | None:
    if codes.dtype.kind == "u":
        return stable_order(codes)
    return None if bool((codes[1:] >= codes[:-1]).all()) else np.argsort(codes, kind="stable")


def joined(blocks: Sequence[Block]) -> Block:
    """All records in the order of the blocks, of which there is at least one; their codes are alike."""
    if len(blocks) == 1:
        return blocks[0]
    stamps = None
    if any(block.stamps is not None for block in blocks):
        stamps = np.concatenate([stamps_of(block) for block in blocks])
    chunks = _in_columns([block.chunk for block in blocks])
    return Block(joined_chunks(chunks, stamps), np.concatenate([block.codes for block in blocks]), stamps)


def stamps_of(block: Block) -> Int64Array:
    """The timestamp of each record; as in Flink, one without a timestamp comes before those that have one."""
    return np.full(len(block), MIN_TIMESTAMP, np.int64) if block.stamps is None else block.stamps


def joined_chunks(chunks: list[Chunk], stamps: Int64Array | None) -> Chunk:
    """All records with these timestamps; in columns if those of all chunks fit together."""
    if len(chunks) == 1:
        return chunks[0]
    tables = [chunk.columns for chunk in chunks if chunk.columns is not None]
    columns = concatenated(tables) if len(tables) == len(chunks) else None
    if columns is not None:
        return Chunk.of_columns(columns, stamps)
    listed = Chunk(
        list(chain.from_iterable(chunk.values for chunk in chunks)), None if stamps is None else stamps.tolist()
    )
    keys = [known_keys(chunk) for chunk in chunks]
    if None not in keys:
        listed.keys = list(chain.from_iterable(each for each in keys if each is not None))
    return listed


def _in_columns(chunks: list[Chunk]) -> list[Chunk]:
    """The same records: where most are in columns, all, if they are of one kind; a few records travel in a list."""
    like = next((chunk.columns for chunk in chunks if chunk.columns is not None), None)
    num_listed = sum(len(chunk) for chunk in chunks if chunk.columns is None)
    if like is None or not num_listed or num_listed * 2 > sum(map(len, chunks)):
        return chunks
    found: list[Chunk] = []
    for chunk in chunks:
        columns = _columns_like(chunk, like)
        if columns is None:
            return chunks
        found.append(chunk if columns is chunk.columns else Chunk.of_columns(columns, chunk.timestamp_array))
    return found


def _columns_like(chunk: Chunk, like: Columns) -> Columns | None:
    """The columns of a chunk; of a list those with the key in the same place, if it is there."""
    if chunk.columns is not None:
        return chunk.columns
    columns, place, keys = columns_of(chunk.values), like.key_position, chunk.keys
    if columns is None or place is None or keys is None or place >= len(columns.fields):
        return None
    # Equal texts, and equal integers, are the same key; others are not looked at.
    kinds = set(map(type, keys))
    field = columns.fields[place].to_list()
    is_key = kinds in ({str}, {int}) and set(map(type, field)) == kinds and field == keys
    return columns.with_key_position(place) if is_key else None


def known_keys(chunk: Chunk) -> list[Any] | None:
    """The keys that the sender took, beside the records or as one of their fields; None: it took none."""
    columns = chunk.columns
    if columns is None:
        return chunk.keys
    return None if columns.key_position is None else columns.fields[columns.key_position].to_list()


def _taken(chunk: Chunk, rows: NDArray[np.intp], stamps: Int64Array | None) -> Chunk:
    if chunk.columns is not None:
        return Chunk.of_columns(chunk.columns.take(rows), stamps)
    places, values, keys = rows.tolist(), chunk.values, chunk.keys
    taken = Chunk([values[place] for place in places], None if stamps is None else stamps.tolist())
    if keys is not None:
        taken.keys = [keys[place] for place in places]
    taken.key_field = chunk.key_field
    return taken


class _Cursor:
    """What is left of one run."""

    def __init__(self, number: int, blocks: Iterable[Block]) -> None:
        self.number = number
        self._blocks = (block for block in blocks if len(block))
        self.rest = next(self._blocks, None)

    def end(self) -> tuple[Any, int, int]:
        """Where the block ends: code, timestamp, number of the run."""
        assert self.rest is not None, "asked only while there is a block"
        stamp = MIN_TIMESTAMP if self.rest.stamps is None else int(self.rest.stamps[-1])
        return self.rest.codes[-1], stamp, self.number

    def take_until(self, bound: tuple[Any, int, int]) -> Block:
        """The records up to a place in the order of all runs, perhaps none."""
        block = self.rest
        assert block is not None, "asked only while there is a block"
        code, stamp, number = bound
        start, stop = int(block.codes.searchsorted(code)), int(block.codes.searchsorted(code, "right"))
        takes_equal = self.number <= number
        if block.stamps is None:
            count = stop if takes_equal or stamp > MIN_TIMESTAMP else start
        else:
            count = start + int(block.stamps[start:stop].searchsorted(stamp, "right" if takes_equal else "left"))
        self.rest = block.slice(count, len(block)) if count < len(block) else next(self._blocks, None)
        return block.slice(0, count)


def merge_steps(runs: Sequence[Iterable[Block]]) -> Iterator[list[tuple[int, Block]]]:
    """The parts of each step, with the numbers of their runs, and codes that are alike; every record of a step is
    before every one of the next step.
    """
    cursors = [_Cursor(number, blocks) for number, blocks in enumerate(runs)]
    while cursors := [cursor for cursor in cursors if cursor.rest is not None]:
        rests = [cursor.rest for cursor in cursors if cursor.rest is not None]
        for cursor, rest, codes in zip(cursors, rests, alike([rest.codes for rest in rests]), strict=True):
            cursor.rest = rest.with_codes(codes)
        bound = min(cursor.end() for cursor in cursors)
        parts = [(cursor.number, cursor.take_until(bound)) for cursor in cursors]
        yield [(number, part) for number, part in parts if len(part)]


def merged(runs: Sequence[Iterable[Block]]) -> Iterator[Block]:
    """All records in order; no block is longer than the current blocks of all runs together."""
    for parts in merge_steps(runs):
        yield joined([part for _, part in parts]).sorted()
