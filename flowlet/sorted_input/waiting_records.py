"""The records of one run until they are sorted.

Hot path, per chunk.

Side:   task.
Units:  bytes, estimated: of columns from their arrays, of Python objects from a sample, and of each block a little more.
"""

from typing import Final

from flowlet.columns import ArrowColumn, CodedColumn, Column, ColumnVisitor
from flowlet.io.chunk_content import estimated_bytes, has_objects
from flowlet.records import Chunk
from flowlet.sorted_input.key_numbering import KeyNumbering
from flowlet.sorted_input.sort_codes import column_codes, sortable
from flowlet.sorted_input.sorted_block import Block, joined, with_key_codes, with_key_column

_OBJECT_BYTES: Final = 60  # of a Python object beside what it holds; not measured closely
_OBJECT_FACTOR: Final = 3  # Python objects take about so much more than their pickles
_BLOCK_BYTES: Final = 640  # of a block beside its records: small ones take many times the size of these
_FIELD_BYTES: Final = 200  # of a column beside its values


class WaitingRecords:
    """Blocks in the order of their arrival; task thread only."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._places_of_numbered: list[int] = []  # of blocks whose codes are still numbers
        self._block_bytes = 0
        self._numbering = KeyNumbering()

    def __repr__(self) -> str:
        return f"<WaitingRecords: {len(self._blocks)} blocks, {self.estimated_bytes} bytes, {self._numbering!r}>"

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def estimated_bytes(self) -> int:
        """Of all records."""
        return self._block_bytes + self._numbering.estimated_bytes

    def add(self, block: Block) -> None:
        """Take over records with their codes."""
        self._blocks.append(block)
        self._block_bytes += bytes_of(block) + _frame_bytes(block)

    def add_chunk(self, chunk: Chunk, keys: Column) -> None:
        """Take over records with their keys.

        Raises:
            KeyTypeError: something cannot be a key.
        """
        stamps = chunk.timestamp_array
        numbered = self._numbering.try_number(keys)
        if numbered is None:
            self.add(Block(chunk, column_codes(keys), stamps))
            return
        columns = chunk.columns
        if numbered.are_texts and columns is not None and columns.key_position is not None:
            columns = with_key_column(columns, CodedColumn(numbered.numbers, self._numbering.names))
            chunk = Chunk.of_columns(columns, stamps)
        self._places_of_numbered.append(len(self._blocks))
        self.add(Block(chunk, numbered.numbers, stamps))

    def joined(self) -> Block:
        """All records as one block; there is at least one.  Gives them away."""
        blocks, self._blocks = self._blocks, []
        if self._places_of_numbered:
            ranking = self._numbering.ranking()
            for place in self._places_of_numbered:
                block = blocks[place]
                codes = ranking.codes_of(sortable(block.codes))
                blocks[place] = Block(with_key_codes(block.chunk, codes), codes, block.stamps)
        return joined(blocks)


def bytes_of(block: Block) -> int:
    """The estimated size of a block's records, at least 1."""
    size, columns = estimated_bytes(block.chunk), block.chunk.columns
    if columns is not None:
        size += sum(field.accept(_ARROW_BYTES) for field in columns.fields)
    if has_objects(block.chunk):
        size = size * _OBJECT_FACTOR + len(block) * _OBJECT_BYTES * (2 if columns is None else len(columns.fields))
    return max(1, size + block.codes.nbytes + (0 if block.stamps is None else block.stamps.nbytes))


def _frame_bytes(block: Block) -> int:
    columns = block.chunk.columns
    return _BLOCK_BYTES + (0 if columns is None else _FIELD_BYTES * len(columns.fields))


class _ArrowBytes(ColumnVisitor[int]):
    """What ``estimated_bytes`` does not see."""

    def visit_any(self, column: Column) -> int:
        return 0

    def visit_arrow(self, column: ArrowColumn) -> int:
        return int(column.array.nbytes)


_ARROW_BYTES: Final = _ArrowBytes()
