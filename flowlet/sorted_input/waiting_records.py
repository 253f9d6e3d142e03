"""The records of one run until they are sorted.

Hot path, per chunk.

Side:   task.
Units:  bytes, estimated: of columns from their arrays, of Python objects from a sample, and of each block a little
        more.
"""

from typing import Final

from flowlet.columns import CodedColumn, Column
from flowlet.io.chunk_content import estimated_bytes
from flowlet.records import Chunk
from flowlet.sorted_input.key_numbering import KeyNumbering, Numbered
from flowlet.sorted_input.sort_codes import column_codes, sortable
from flowlet.sorted_input.sorted_block import Block, joined, with_key_codes, with_key_column

_SHARE_OF_VAIN: Final = 4  # of the memory, for numbers that do not pay yet; not measured closely
_MOST_VAIN: Final = 32 * 1024  # keys that have numbers which do not pay yet; not measured closely
_OBJECT_BYTES: Final = 60  # of a Python object beside what it holds; not measured closely
_OBJECT_FACTOR: Final = 3  # Python objects take about so much more than their pickles
_BLOCK_BYTES: Final = 640  # of a block beside its records: small ones take many times the size of these
_FIELD_BYTES: Final = 200  # of a column beside its values


class WaitingRecords:
    """Blocks in the order of their arrival; task thread only.

    Args:
        most_bytes: that will wait.
    """

    def __init__(self, most_bytes: int) -> None:
        self._blocks: list[Block] = []
        self._block_bytes = 0
        self._most_bytes = most_bytes
        self._numbering: KeyNumbering | None = KeyNumbering()  # None: keys hardly repeat
        self._places_of_numbered: list[int] = []  # of blocks whose codes are still numbers
        self._keys_of_numbered: list[Column] = []  # until it is clear that numbers pay

    def __repr__(self) -> str:
        return f"<WaitingRecords: {len(self._blocks)} blocks, {self.estimated_bytes} bytes, {self._numbering!r}>"

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def estimated_bytes(self) -> int:
        """Of all records."""
        return self._block_bytes + (0 if self._numbering is None else self._numbering.estimated_bytes)

    def add(self, block: Block) -> None:
        """Take over records with their codes."""
        self._blocks.append(block)
        self._block_bytes += bytes_of(block) + _frame_bytes(block)

    def add_chunk(self, chunk: Chunk, keys: Column) -> None:
        """Take over records with their keys.

        Raises:
            KeyTypeError: something cannot be a key.
        """
        numbered = None if self._numbering is None else self._numbering.try_number(keys)
        if numbered is None:
            self.add(Block(chunk, column_codes(keys), chunk.timestamp_array))
        else:
            self._add_numbered(chunk, keys, numbered)

    def _add_numbered(self, chunk: Chunk, keys: Column, numbered: Numbered) -> None:
        numbering = self._numbering
        assert numbering is not None, "it gave the numbers"
        stamps, columns = chunk.timestamp_array, chunk.columns
        self._places_of_numbered.append(len(self._blocks))
        if not numbering.does_pay:
            self._keys_of_numbered.append(keys)
        elif self._keys_of_numbered:
            self._keys_of_numbered = []
        if numbering.does_pay and numbered.are_texts and columns is not None and columns.key_position is not None:
            columns = with_key_column(columns, CodedColumn(numbered.numbers, numbering.names))
            chunk = Chunk.of_columns(columns, stamps)
        self.add(Block(chunk, numbered.numbers, stamps))
        is_large = len(numbering) > _MOST_VAIN or numbering.estimated_bytes * _SHARE_OF_VAIN > self._most_bytes
        if is_large and not numbering.does_pay:
            self._end_numbering()

    def _end_numbering(self) -> None:
        for place, keys in zip(self._places_of_numbered, self._keys_of_numbered, strict=True):
            block = self._blocks[place]
            codes = column_codes(keys)
            self._block_bytes += codes.nbytes - block.codes.nbytes
            self._blocks[place] = Block(block.chunk, codes, block.stamps)
        self._numbering, self._places_of_numbered, self._keys_of_numbered = None, [], []

    def joined(self) -> Block:
        """All records as one block; there is at least one.  Gives them away."""
        if self._numbering is not None and self._keys_of_numbered:
            self._end_numbering()
        blocks, self._blocks = self._blocks, []
        if self._numbering is not None and self._places_of_numbered:
            ranking = self._numbering.ranking()
            for place in self._places_of_numbered:
                block = blocks[place]
                codes = ranking.codes_of(sortable(block.codes))
                blocks[place] = Block(with_key_codes(block.chunk, codes), codes, block.stamps)
        return joined(blocks)


def bytes_of(block: Block) -> int:
    """The estimated size of a block's records, at least 1."""
    size, columns = estimated_bytes(block.chunk), block.chunk.columns
    if columns is None or any(field.has_objects for field in columns.fields):
        size = size * _OBJECT_FACTOR + len(block) * _OBJECT_BYTES * (2 if columns is None else len(columns.fields))
    return max(1, size + block.codes.nbytes + (0 if block.stamps is None else block.stamps.nbytes))


def _frame_bytes(block: Block) -> int:
    columns = block.chunk.columns
    return _BLOCK_BYTES + (0 if columns is None else _FIELD_BYTES * len(columns.fields))
