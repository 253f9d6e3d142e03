"""Records with the codes of their keys: what sorters sort, merge and cut.

Hot path, per block: numpy sorts codes, columns are taken by position.

Side:       pure.
Invariants: a block has a code, and perhaps a timestamp, for each record; records are in columns wherever those of a chunk were, unless
            blocks with different columns are joined.
Source:     Flink ``SortingDataInput``, ``KeyAndValueSerializer``, ``FixedLengthByteKeyComparator``: by key, then by timestamp.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import try_concatenate
from flowlet.records import MIN_TIMESTAMP, Chunk, Int64Array
from flowlet.sorted_input.sort_codes import Codes, alike


@dataclass(frozen=True, slots=True)
class Block:
    """Records of one input; of the caller's own, who may give the chunk away.

    ``stamps``: None if no record has a timestamp.
    """

    chunk: Chunk
    codes: Codes
    stamps: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def slice(self, start: int, stop: int) -> "Block":
        """The records from ``start`` to before ``stop``."""
        if start == 0 and stop == len(self):
            return self
        return Block(self.chunk.slice(start, stop), self.codes[start:stop], None if self.stamps is None else self.stamps[start:stop])

    def take(self, rows: NDArray[np.intp]) -> "Block":
        """The records of these rows, in this order."""
        stamps = None if self.stamps is None else self.stamps.take(rows)
        return Block(_taken(self.chunk, rows, stamps), self.codes.take(rows), stamps)

    def sorted(self) -> "Block":
        """By code, then by timestamp; equal ones stay in their order."""
        rows = order_of(self.codes, self.stamps)
        return self if rows is None else self.take(rows)

    def key_starts(self) -> NDArray[np.intp]:
        """The row of each record whose key is another than that of the record before; the block is sorted and not empty."""
        return np.concatenate(([0], np.flatnonzero(self.codes[1:] != self.codes[:-1]) + 1))


def order_of(codes: Codes, stamps: Int64Array | None) -> NDArray[np.intp] | None:
    """The rows by code, then by timestamp, then by position; None if they are in this order already."""
    if stamps is None:
        if not len(codes) or bool((codes[1:] >= codes[:-1]).all()):
            return None
        return np.argsort(codes, kind="stable")
    by_time = np.argsort(stamps, kind="stable")
    return by_time.take(np.argsort(codes.take(by_time), kind="stable"))


def joined(blocks: Sequence[Block]) -> Block:
    """All records in the order of the blocks, of which there is at least one."""
    if len(blocks) == 1:
        return blocks[0]
    stamps = None
    if any(block.stamps is not None for block in blocks):
        stamps = np.concatenate([_stamps_of(block) for block in blocks])
    codes = np.concatenate(alike([block.codes for block in blocks]))
    return Block(joined_chunks([block.chunk for block in blocks], stamps), codes, stamps)


def _stamps_of(block: Block) -> Int64Array:
    # As in Flink, a record without a timestamp comes before those that have one.
    return np.full(len(block), MIN_TIMESTAMP, np.int64) if block.stamps is None else block.stamps


def joined_chunks(chunks: list[Chunk], stamps: Int64Array | None) -> Chunk:
    """All records with these timestamps; in columns if those of all chunks fit together."""
    if len(chunks) == 1:
        return chunks[0]
    tables = [chunk.columns for chunk in chunks if chunk.columns is not None]
    columns = try_concatenate(tables) if len(tables) == len(chunks) else None
    if columns is not None:
        return Chunk.of_columns(columns, stamps)
    listed = Chunk(list(chain.from_iterable(chunk.values for chunk in chunks)), None if stamps is None else stamps.tolist())
    keys = [_keys_of(chunk) for chunk in chunks]
    if None not in keys:
        listed.keys = list(chain.from_iterable(each for each in keys if each is not None))
    return listed


def _keys_of(chunk: Chunk) -> list[Any] | None:
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
