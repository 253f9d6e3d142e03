"""Sorts the records of one input by key and timestamp, in bounded memory.

A sorted run in a temporary file.

Codes of keys as the bytes of a file.

Hot path, per block: copies of arrays; texts once per key.

Format: width of a code (0: numbers), width of a rank (0: a code for each record), length of the table, bytes of the
        names; then the codes, or the ranks, the table, and the names as a column of texts.  All in the byte order of
        the machine: no other one reads it.

Hot path, per block: one write, one read.

The records of one run wait until they are sorted; a sorted block is cut into blocks of a good size.

Hot path, per chunk; per block one binary search for each cut.

Side:       task.
Invariants: the file has no name, so nothing is left however the process ends; blocks come back in the order of their
            writing, once.  records that wait in memory take about a third of the budget, because sorting them needs as
            much again twice; while runs are merged, their blocks take half of it.  As many runs of one level as are
            merged at a time become one of the next level, so each record is written once per level.  A part of more
            than one record has at most so many bytes, estimated; what it needs of the table of codes and names counts,
            however the keys are spread.
Source:     Flink ``ChannelWriterOutputView``, ``ExternalSorter``.  Flink ``ExternalSorter``, ``SortingDataInput``.
Units:      bytes, estimated: of columns from their arrays, of Python objects from a sample, and of each block a little
            more.
"""

import contextlib
import os
import struct
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import CodedColumn, Column, ConstantColumn, NameTable
from flowlet.errors import FlowletError
from flowlet.io.chunk_content import ChunkContent, estimated_bytes
from flowlet.records import Chunk
from flowlet.serde.columns import decode_texts, encode_texts
from flowlet.serde.element_deserializer import ElementDeserializer
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS, MAX_FIELDS, ElementLimits
from flowlet.sorted_input.key_numbering import KeyNumbering, Numbered
from flowlet.sorted_input.sort_codes import CodeArray, Codes, RankedCodes, column_codes, sortable
from flowlet.sorted_input.sorted_block import Block, joined, joined_chunks, merged, with_key_codes, with_key_column

_CODES_HEADER: Final = struct.Struct(">IIQQ")
_NUMBER: Final = np.dtype(np.uint64)


def codes_to_bytes(codes: Codes) -> bytes:
    """The codes of at least one record."""
    if not isinstance(codes, RankedCodes):
        return b"".join((_CODES_HEADER.pack(_width_of(codes), 0, 0, 0), np.ascontiguousarray(codes).tobytes()))
    names = b"" if codes.names is None else encode_texts(codes.names.names)
    head = _CODES_HEADER.pack(_width_of(codes.table), codes.ranks.dtype.itemsize, len(codes.table), len(names))
    return b"".join((head, codes.ranks.tobytes(), codes.table.tobytes(), names))


def codes_of_bytes(data: bytes, num_rows: int) -> Codes:
    """The opposite."""
    width, rank_width, num_codes, num_bytes_of_names = _CODES_HEADER.unpack_from(data)
    dtype = np.dtype(f"S{width}") if width else _NUMBER
    if not rank_width:
        return np.frombuffer(data, dtype, num_rows, _CODES_HEADER.size)
    ranks = np.frombuffer(data, np.dtype(f"u{rank_width}"), num_rows, _CODES_HEADER.size)
    start = _CODES_HEADER.size + ranks.nbytes
    table = np.frombuffer(data, dtype, num_codes, start)
    if not num_bytes_of_names:
        return RankedCodes(ranks, table)
    texts, _ = decode_texts(memoryview(data), start + table.nbytes, num_codes)
    return RankedCodes(ranks, table, NameTable(list(texts)))


def _width_of(codes: CodeArray) -> int:
    return codes.dtype.itemsize if codes.dtype.kind == "S" else 0


_HEADER: Final = struct.Struct(">QQQ")  # bytes of the codes and of the records, number of records


class SpilledRun:
    """Blocks in a file.

    Threading: one thread.
    Life cycle: made with all its blocks -> ``blocks`` once -> closed at the end of that, by ``close``, or dropped.

    Args:
        blocks: sorted; each is written before the next one is asked for.
        directory: of the file; None: the system's folder for temporary files.
        limits: of the elements in which records are written.
        name: the task's, for errors.

    Raises:
        FlowletError: the file cannot be made or written, such as on a full disk; the message names the directory.  Also
            from ``blocks``.
    """

    def __init__(self, blocks: Iterable[Block], directory: str | None, limits: ElementLimits, name: str) -> None:
        self._directory = tempfile.gettempdir() if directory is None else directory
        self._limits = limits
        self._name = name
        self.num_bytes = 0
        with self._translated():
            self._fd = _unnamed_file(self._directory)
        self._close = weakref.finalize(self, os.close, self._fd)
        try:
            for block in blocks:
                self._write(block)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<SpilledRun of {self.num_bytes} bytes in {self._directory}{'' if self._close.alive else ', closed'}>"

    def blocks(self) -> Iterator[Block]:
        """The blocks in order; called once."""
        deserializer = ElementDeserializer(name=f"{self._name}, a sorted run in a file", limits=self._limits)
        position = 0
        while position < self.num_bytes:
            num_bytes_of_codes, num_bytes, num_rows = _HEADER.unpack(self._read(_HEADER.size, position))
            position += _HEADER.size
            codes = codes_of_bytes(self._read(num_bytes_of_codes, position), num_rows)
            position += num_bytes_of_codes
            chunks = [
                each
                for each in deserializer.feed(memoryview(self._read(num_bytes, position)))
                if isinstance(each, Chunk)
            ]
            position += num_bytes
            stamps = chunks[0].timestamp_array if len(chunks) == 1 else None
            if len(chunks) > 1 and chunks[0].has_timestamps:
                stamps = np.concatenate([each.timestamp_array for each in chunks if each.timestamp_array is not None])
            yield Block(with_key_codes(joined_chunks(chunks, stamps), codes), codes, stamps)
        self.close()

    def close(self) -> None:
        """Close the file, which frees its space; idempotent."""
        self._close()

    def _write(self, block: Block) -> None:
        codes = codes_to_bytes(block.codes)
        records = ChunkContent(_without_coded_keys(block), 1, self._limits.max_element_bytes).to_bytes()
        data = b"".join((_HEADER.pack(len(codes), len(records), len(block)), codes, records))
        with self._translated():
            view = memoryview(data)
            while len(view):
                view = view[os.write(self._fd, view) :]
        self.num_bytes += len(data)

    def _read(self, num_bytes: int, position: int) -> bytes:
        with self._translated():
            data = os.pread(self._fd, num_bytes, position)
            while len(data) < num_bytes:
                more = os.pread(self._fd, num_bytes - len(data), position + len(data))
                if not more:
                    raise OSError(f"the file ends at byte {position + len(data)}")
                data += more
        return data

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FlowletError(
                f"{self._name}: an input that is sorted by key cannot be kept in a file in {self._directory}: {error}"
            ) from error


def _without_coded_keys(block: Block) -> Chunk:
    """The records, with another value in the place of keys that come back with their codes."""
    chunk, codes = block.chunk, block.codes
    columns = chunk.columns
    if columns is None or columns.key_position is None or not isinstance(codes, RankedCodes) or codes.names is None:
        return chunk
    # Tuples of more fields come back in a list.
    if len(columns.fields) > MAX_FIELDS:
        return chunk
    return Chunk.of_columns(with_key_column(columns, ConstantColumn(0, len(chunk))), chunk.timestamp_array)


def _unnamed_file(directory: str) -> int:
    fd, path = tempfile.mkstemp(prefix="flowlet-sort-", dir=directory)
    os.unlink(path)
    return fd


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
                codes = ranking.take(sortable(block.codes))
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


def cut(block: Block, most_bytes: int, most_rows: int) -> Iterator[Block]:
    """The same records in blocks that are no larger, each with its part of the table only; the block is sorted."""
    codes, num_rows = block.codes, len(block)
    row_bytes = bytes_of(block) / max(1, num_rows)
    if not isinstance(codes, RankedCodes):
        rows = max(1, min(most_rows, int(most_bytes / row_bytes)))
        for start in range(0, num_rows, rows):
            yield block.slice(start, min(start + rows, num_rows))
        return
    sums = np.cumsum(codes.bytes_of_keys())  # of each key and all before it
    start = 0
    while start < num_rows:
        start, begin = start + _rows_of_part(codes, sums, start, row_bytes, most_bytes, most_rows), start
        yield block.slice(begin, start).trimmed()


def _rows_of_part(
    codes: RankedCodes, sums: NDArray[np.int64], start: int, row_bytes: float, most_bytes: int, most_rows: int
) -> int:
    ranks = codes.ranks[start : start + most_rows]
    before = int(sums[ranks[0] - 1]) if ranks[0] else 0

    def size(count: int) -> int:
        return int(count * row_bytes) + int(sums[ranks[count - 1]]) - before

    return max(1, bisect_right(range(1, len(ranks) + 1), most_bytes, key=size))


_MAX_RUNS: Final = 32  # of one level, are merged; Flink merges 128 at a time
_NUM_LEVELS: Final = 2  # more need some thousand times the budget squared
_SHARE_WAITING: Final = 3  # of the budget; see the header
# A block that is read takes about three times its size: bytes, records, and what is taken of them.
_SHARE_OF_BLOCK: Final = 6
_LEAST_BLOCK_BYTES: Final = 4 * 1024
_MOST_BLOCK_BYTES: Final = 1024 * 1024
_MOST_BLOCK_ROWS: Final = 16 * 1024


class ExternalSorter:
    """Takes blocks in any order, gives them back sorted.

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
        self._waiting = WaitingRecords(self._most_waiting)
        self._runs: list[SpilledRun] = []  # in the order of their records' arrival
        self._levels: list[int] = []  # of each run; they fall
        self.num_spilled_bytes = 0

    def __repr__(self) -> str:
        return (
            f"<ExternalSorter of {self._name}: {self._waiting.estimated_bytes} bytes in memory, {len(self._runs)} "
            "runs in files>"
        )

    def add(self, block: Block) -> None:
        """Take over records.

        Raises:
            FlowletError: a file cannot be written.
        """
        self._waiting.add(block)
        self._make_room()

    def add_chunk(self, chunk: Chunk, keys: Column) -> None:
        """Take over records with the key of each.

        Raises:
            FlowletError: a file cannot be written.
            KeyTypeError: something cannot be a key.
        """
        self._waiting.add_chunk(chunk, keys)
        self._make_room()

    def sorted_blocks(self) -> Iterator[Block]:
        """All records in order, in blocks.

        Raises:
            FlowletError: a file cannot be read.
        """
        last = self._sorted_waiting()
        if not self._runs:
            return last
        return _of_few_rows(merged([*(run.blocks() for run in self._runs), last]))

    def close(self) -> None:
        """Let records and files go; idempotent."""
        self._waiting = WaitingRecords(self._most_waiting)
        for run in self._runs:
            run.close()

    def _make_room(self) -> None:
        if self._waiting.estimated_bytes < self._most_waiting:
            return
        self._spill(self._sorted_waiting(), 0)
        while self._levels[-self._max_runs :] == [self._levels[-1]] * self._max_runs:
            self._merge_last(self._max_runs)

    def _merge_last(self, count: int) -> None:
        """The last runs, of one level, become one."""
        level = self._levels[-1]
        runs = self._runs[-count:]
        self._spill(self._cut(merged([run.blocks() for run in runs])), level + 1)
        del self._runs[-count - 1 : -1], self._levels[-count - 1 : -1]

    def _spill(self, blocks: Iterator[Block], level: int) -> None:
        run = SpilledRun(blocks, self._directory, self._limits, self._name)
        self.num_spilled_bytes += run.num_bytes
        self._runs.append(run)
        self._levels.append(level)

    def _sorted_waiting(self) -> Iterator[Block]:
        waiting, self._waiting = self._waiting, WaitingRecords(self._most_waiting)
        return self._cut(iter((waiting.joined().sorted(),))) if len(waiting) else iter(())

    def _cut(self, blocks: Iterator[Block]) -> Iterator[Block]:
        """The same records in blocks of a good size."""
        for block in blocks:
            yield from cut(block, self._block_bytes, _MOST_BLOCK_ROWS)


def _of_few_rows(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same records; parts of a block share its table of codes, as they are handed over at once."""
    for block in blocks:
        for start in range(0, len(block), _MOST_BLOCK_ROWS):
            yield block.slice(start, min(start + _MOST_BLOCK_ROWS, len(block)))
