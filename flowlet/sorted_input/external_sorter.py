"""Sorts the records of one input by key and timestamp, in bounded memory: they wait, become sorted runs in files, and
the runs are merged.

Hot path, per chunk: one look at its keys; per block one write and one read.

Side:       task.
Invariants: files have no names, so no file is left however the process ends; blocks come back in the order of their
            writing, once.  Records that wait in memory take about a third of the budget, because sorting them needs
            twice as much again; while runs are merged, their blocks take half of it.  When a level has as many runs as
            are merged at a time, they become one run of the next level, so each record is written once per level.
Units:      bytes, estimated: of columns from their arrays, of Python objects from a sample, and of each block a little
            more; a block that turns out too large when it is written is cut in two.
Format:     a block: the sizes in bytes of its codes and of its records, the number of records, the width of a code (0:
            numbers); then the codes in the byte order of the machine, and the records as elements.
Source:     Flink ``ExternalSorter``, ``SortingDataInput``, ``ChannelWriterOutputView``.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from flowlet.columns import ArrayColumn, CodedColumn, Column, NameTable
from flowlet.columns.table import exact_type
from flowlet.errors import FlowletError
from flowlet.io.chunk_content import ChunkContent, estimated_bytes
from flowlet.records import Chunk
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS, ElementLimits
from flowlet.serde.element_serializer import ElementDeserializer, SpillFile
from flowlet.sorted_input.sorted_block import Block, RunKeys, integer_codes, joined, joined_chunks, merged
from netstack.late import dataclass

_HEADER: Final = struct.Struct(">QQQI")
_NUMBER: Final = np.dtype(np.uint64)


class SpilledRun:
    """Blocks in a file.

    Threading: one thread.
    Life cycle: made with all its blocks -> ``blocks`` once -> closed at the end of that, or by ``close``.

    Args:
        blocks: sorted; each is written before the next one is requested.
        directory: of the file; None: the system's folder for temporary files.
        limits: of the elements in which records are written.
        name: the task's, for errors.
        most_bytes: of a block of more than one record.

    Raises:
        FlowletError: the file cannot be made or written, such as on a full disk; the message names the directory.  Also
            from ``blocks``.
    """

    def __init__(
        self, blocks: Iterable[Block], directory: str | None, limits: ElementLimits, name: str, most_bytes: int
    ) -> None:
        self._limits = limits
        self._name = name
        self._most_bytes = most_bytes
        self._file = SpillFile(directory, f"{name}: an input that is sorted by key", FlowletError, buffering=0)
        try:
            for block in blocks:
                self._write(block)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<SpilledRun in {self._file!r}>"

    @property
    def num_bytes(self) -> int:
        """The size of the file."""
        return len(self._file)

    def blocks(self) -> Iterator[Block]:
        """The blocks in order; called once."""
        deserializer = ElementDeserializer(name=f"{self._name}, a sorted run in a file", limits=self._limits)
        offset = 0
        while offset < self.num_bytes:
            num_bytes_of_codes, num_bytes, num_rows, width = _HEADER.unpack(self._file.read(offset, _HEADER.size))
            start_of_codes = offset + _HEADER.size
            start = start_of_codes + num_bytes_of_codes
            offset = start + num_bytes
            dtype = np.dtype(f"S{width}") if width else _NUMBER
            codes = np.frombuffer(self._file.read(start_of_codes, num_bytes_of_codes), dtype, num_rows)
            elements = deserializer.feed(memoryview(self._file.read(start, num_bytes)))
            chunks = [each for each in elements if isinstance(each, Chunk)]
            arrays = [each.timestamp_array for each in chunks if each.timestamp_array is not None]
            stamps = np.concatenate(arrays) if arrays else None
            yield Block(joined_chunks(chunks, stamps), codes, stamps)
        self.close()

    def close(self) -> None:
        """Close the file, which frees its space; idempotent."""
        self._file.close()

    def _write(self, block: Block) -> None:
        records = ChunkContent(block.chunk, 1, self._limits.max_element_bytes).to_bytes()
        if len(records) > self._most_bytes and len(block) > 1:
            for half in block.parts((len(block) + 1) // 2):
                self._write(half)
            return
        codes = np.ascontiguousarray(block.codes).tobytes()
        width = 0 if block.codes.dtype.kind == "u" else block.codes.dtype.itemsize
        header = _HEADER.pack(len(codes), len(records), len(block), width)
        self._file.append(b"".join((header, codes, records)))


_OBJECT_BYTES: Final = 60  # of a Python object beside its content; not measured closely
_OBJECT_FACTOR: Final = 3  # Python objects take about so much more than their pickles
_BLOCK_BYTES: Final = 640  # of a block beside its records: small ones take many times the size of these
_FIELD_BYTES: Final = 200  # of a column beside its values
_KEY_BYTES: Final = 200  # of a key beside its content: in the index, its code and its rank; not measured closely


@dataclass(slots=True)
class _Waiting:
    block: Block
    has_texts: bool  # whether the key is a field of texts, which may become codes of the keys' numbers


class WaitingRecords:
    """Records in the order of their arrival; task thread only."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._keys: RunKeys | None = None  # None: all keys are integers, which are their own codes
        self._bytes_of_keys = 0
        self.estimated_bytes = 0
        """The estimated size of all records and keys."""

    def __repr__(self) -> str:
        return f"<WaitingRecords: {len(self._waiting)} chunks, {self.estimated_bytes} bytes, {self._keys!r}>"

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, chunk: Chunk, keys: Column) -> None:
        """Take over records with their keys.

        Raises:
            KeyTypeError: a value cannot be a key.
        """
        codes = integer_codes(keys) if self._keys is None else None
        if codes is None:
            codes = self._numbers(keys)
        columns = chunk.columns
        field = None if columns is None or columns.key_position is None else columns.fields[columns.key_position]
        kind = exact_type(keys.as_list()) if keys.has_objects else keys.value_type
        has_texts = keys is field and kind is str
        block = Block(chunk, codes, chunk.timestamp_array)
        self._waiting.append(_Waiting(block, has_texts))
        num_fields = 0 if columns is None else len(columns.fields)
        self.estimated_bytes += bytes_of(block) + _BLOCK_BYTES + _FIELD_BYTES * num_fields

    def _numbers(self, keys: Column) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
        if self._keys is None:
            self._keys = RunKeys()
            for each in self._waiting:
                each.block = each.block.with_codes(self._keys.numbers(ArrayColumn(each.block.codes.view(np.int64))))
        num_before = len(self._keys)
        numbers = self._keys.numbers(keys)
        num_new = len(self._keys) - num_before
        if num_new:
            size = num_new * estimated_bytes(Chunk(keys.to_list())) // len(keys)
            self._bytes_of_keys += size
            self.estimated_bytes += size + num_new * _KEY_BYTES
        return numbers

    def sorted_blocks(self, most_bytes: int, most_rows: int) -> Iterator[Block]:
        """Give away all records, at least one, in order; blocks have about ``most_bytes`` and at most ``most_rows``."""
        waiting = self._waiting
        self._waiting = []
        if self._keys is None:
            block = joined([each.block for each in waiting]).sorted()
            yield from block.parts(_rows_of_part(block, 0, most_bytes, most_rows))
            return
        names = self._keys.names()
        blocks = [each.block if names is None else _with_names(each, names) for each in waiting]
        waiting = []
        ranks, codes = self._keys.ranking()
        block = joined([block.with_codes(ranks.take(block.codes)) for block in blocks]).sorted()
        blocks = []
        bytes_of_key = codes.itemsize + self._bytes_of_keys // len(self._keys)
        for part in block.parts(_rows_of_part(block, bytes_of_key, most_bytes, most_rows)):
            yield part.with_codes(codes.take(part.codes))


def _with_names(waiting: _Waiting, names: NameTable) -> Block:
    """The records with numbers of keys in place of the texts of the key field."""
    block = waiting.block
    columns = block.chunk.columns
    if columns is None or not waiting.has_texts:
        return block
    assert columns.key_position is not None, "the key is a field"
    table = columns.with_field(columns.key_position, CodedColumn(block.codes, names))
    return Block(Chunk.of_columns(table, block.stamps), block.codes, block.stamps)


def _rows_of_part(block: Block, bytes_of_key: int, most_bytes: int, most_rows: int) -> int:
    bytes_of_row = bytes_of(block) // len(block) + bytes_of_key
    return max(1, min(most_rows, most_bytes // max(1, bytes_of_row)))


def bytes_of(block: Block) -> int:
    """The estimated size of a block's records, at least 1."""
    size, columns = estimated_bytes(block.chunk), block.chunk.columns
    if columns is None or any(field.has_objects for field in columns.fields):
        size = size * _OBJECT_FACTOR + len(block) * _OBJECT_BYTES * (2 if columns is None else len(columns.fields))
    return max(1, size + block.codes.nbytes + (0 if block.stamps is None else block.stamps.nbytes))


_MAX_RUNS: Final = 32  # of one level, are merged; Flink merges 128 at a time
_NUM_LEVELS: Final = 2  # more need some thousand times the budget squared
_SHARE_WAITING: Final = 3  # of the budget; see the header
# A block that is read takes about three times its size: bytes, records, and the parts that are taken of them.
_SHARE_OF_BLOCK: Final = 6
_LEAST_BLOCK_BYTES: Final = 4 * 1024
_MOST_BLOCK_BYTES: Final = 1024 * 1024
_MOST_BLOCK_ROWS: Final = 16 * 1024


class ExternalSorter:
    """Takes records in any order, gives them back sorted.

    Threading: one thread.
    Life cycle: ``add`` any number of times -> ``sorted_blocks`` once -> ``close``, in every state.

    Args:
        budget_bytes: the memory that it may use.
        directory: of its files; None: the system's folder for temporary files.
        limits: of the elements in files.
        name: the task's, for errors.
    """

    def __init__(
        self,
        budget_bytes: int,
        directory: str | None = None,
        limits: ElementLimits = DEFAULT_ELEMENT_LIMITS,
        name: str = "sorter",
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._name = name
        self._most_waiting = max(1, budget_bytes // _SHARE_WAITING)
        self._max_runs = max(2, min(_MAX_RUNS, budget_bytes // (_SHARE_OF_BLOCK * _LEAST_BLOCK_BYTES)))
        bytes_of_run = budget_bytes // (_SHARE_OF_BLOCK * _NUM_LEVELS * self._max_runs)
        self._block_bytes = max(_LEAST_BLOCK_BYTES, min(_MOST_BLOCK_BYTES, bytes_of_run))
        self._waiting = WaitingRecords()
        self._runs: list[SpilledRun] = []  # in the order of their records' arrival
        self._levels: list[int] = []  # of each run; they fall
        self.num_spilled_bytes = 0

    def __repr__(self) -> str:
        return (
            f"<ExternalSorter of {self._name}: {self._waiting.estimated_bytes} bytes in memory, {len(self._runs)} "
            "runs in files>"
        )

    def add(self, chunk: Chunk, keys: Column) -> None:
        """Take over records with the key of each.

        Raises:
            FlowletError: a file cannot be written.
            KeyTypeError: a value cannot be a key.
        """
        self._waiting.add(chunk, keys)
        if self._waiting.estimated_bytes < self._most_waiting:
            return
        self._spill(self._sorted_waiting(), 0)
        while self._levels[-self._max_runs :] == [self._levels[-1]] * self._max_runs:
            self._merge_last(self._max_runs)

    def sorted_blocks(self) -> Iterator[Block]:
        """All records in order, in blocks.

        Raises:
            FlowletError: a file cannot be read.
        """
        blocks = merged([*(run.blocks() for run in self._runs), self._sorted_waiting()])
        return (part for block in blocks for part in block.parts(_MOST_BLOCK_ROWS))

    def close(self) -> None:
        """Let records and files go; idempotent."""
        self._waiting = WaitingRecords()
        for run in self._runs:
            run.close()

    def _merge_last(self, count: int) -> None:
        """Merge the last ``count`` runs, which are of one level, into one run of the next level."""
        level = self._levels[-1]
        blocks = merged([run.blocks() for run in self._runs[-count:]])
        self._spill((part for block in blocks for part in block.parts(self._rows_of_part(block))), level + 1)
        del self._runs[-count - 1 : -1], self._levels[-count - 1 : -1]

    def _rows_of_part(self, block: Block) -> int:
        return _rows_of_part(block, 0, self._block_bytes, _MOST_BLOCK_ROWS)

    def _spill(self, blocks: Iterator[Block], level: int) -> None:
        run = SpilledRun(blocks, self._directory, self._limits, self._name, self._block_bytes)
        self.num_spilled_bytes += run.num_bytes
        self._runs.append(run)
        self._levels.append(level)

    def _sorted_waiting(self) -> Iterator[Block]:
        waiting = self._waiting
        self._waiting = WaitingRecords()
        return waiting.sorted_blocks(self._block_bytes, _MOST_BLOCK_ROWS) if len(waiting) else iter(())
