"""A sorted run in a temporary file.

Codes of keys as the bytes of a file.

Hot path, per block: copies of arrays; texts once per key.

Format: width of a code (0: numbers), width of a rank (0: a code for each record), length of the table, bytes of the
        names; then the codes, or the ranks, the table, and the names as a column of texts.  All in the byte order of
        the machine: no other one reads it.

Hot path, per block: one write, one read.

Side:       task.
Invariants: the file has no name, so nothing is left however the process ends; blocks come back in the order of their
            writing, once.
Source:     Flink ``ChannelWriterOutputView``, ``ExternalSorter``.
"""

import contextlib
import os
import struct
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from flowlet.columns import ConstantColumn, NameTable
from flowlet.errors import FlowletError
from flowlet.io.chunk_content import ChunkContent
from flowlet.records import Chunk
from flowlet.serde.columns import decode_texts, encode_texts
from flowlet.serde.element_deserializer import ElementDeserializer
from flowlet.serde.element_limits import MAX_FIELDS, ElementLimits
from flowlet.sorted_input.sort_codes import CodeArray, Codes, RankedCodes
from flowlet.sorted_input.sorted_block import Block, joined_chunks, with_key_codes, with_key_column

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
