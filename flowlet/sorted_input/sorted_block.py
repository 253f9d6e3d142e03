"""The codes by which keys are sorted, one for each key; and blocks of records with the codes of their keys, which
sorters sort, merge and cut.

Hot path, per column: integers of 64 bits are their own codes.  All other keys of a run are numbered in the order of
first sight (``KeyIndex``), so that each gets its code once, however many records have it, and records are sorted by
numbers.  Per block: numpy sorts codes, columns are taken by position.  Each step of a merge takes from every run the
records before the end of the block that ends first, and sorts them.

Side:       pure.
Invariants: two codes are equal exactly if their values are one key (``flowlet.keys.exact_keys``); for keys longer than
            60 bytes up to a collision of 128-bit hashes.  The order of codes does not depend on the process, nor on
            whether they are numbers or bytes.  A block has a code, and perhaps a timestamp, for each record; records
            that came in columns stay in columns, unless blocks with records of different kinds are joined.  Among
            records of equal key and timestamp those of an earlier run come first; one block of each run is in memory.
Rules:      integers of 64 bits first, from 0 up, then the negative ones; then texts, then bytes, then other keys:
            shorter ones first.  For keys of the types LONG and STRING this is the order of Flink, which sorts their
            serialized bytes; but keys of more than 60 bytes that agree in their lengths and first 44 bytes are in the
            order of their hashes.  All keys of an index are of one kind; for a run with several kinds the index has
            the codes in place of the keys.
Source:     Flink ``SortingDataInput``, ``KeyAndValueSerializer``, ``FixedLengthByteKeyComparator``: by key, then by
            timestamp.  Flink ``MergeIterator``, which compares single records.
"""

import contextlib
import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import Column, Columns, ListColumn, NameTable, columns_of, concatenated
from flowlet.columns.table import exact_type
from flowlet.kernels.grouping import stable_order
from flowlet.keys.exact_keys import exact_keys, key_bytes
from flowlet.keys.key_index import KeyIndex
from flowlet.records import MIN_TIMESTAMP, Chunk, Int64Array
from netstack.late import dataclass

CodeArray = NDArray[Any]  # uint64, or bytes of one width

_INT, _TEXT, _BYTES, _OTHER = b"\x01", b"\x02", b"\x03", b"\x04"
_INT_WIDTH: Final = 9  # the tag and 64 bits
_MAX_BODY: Final = 60  # a longer one is shortened, so that one long key does not make the codes of a whole block wide
_PREFIX: Final = 44  # the bytes of it that are kept, before a hash of 16 bytes
_MASK: Final = (1 << 64) - 1
_LARGEST: Final = (1 << 63) - 1
_pack_int: Final = struct.Struct(">cQ").pack
_pack_head: Final = struct.Struct(">cI").pack


def integer_codes(keys: Column) -> CodeArray | None:
    """The codes of integers of 64 bits; None: there are other keys among them."""
    if keys.has_objects:
        values = keys.as_list()
        codes = codes_of(values) if exact_type(values) is int else None
        return codes if codes is not None and codes.dtype.kind == "u" else None
    numbers = keys.numbers()
    if numbers is None or numbers.is_valid is not None or numbers.kind.is_instant or numbers.array.dtype.kind != "i":
        return None
    return numbers.array.astype(np.int64, copy=False).view(np.uint64)


def codes_of(exact: list[Any]) -> CodeArray:
    """The codes of exact keys."""
    kind = exact_type(exact)
    if kind is int:
        with contextlib.suppress(OverflowError):
            return np.array(exact, np.int64).view(np.uint64)
    if kind is str:
        return np.array([_framed(_TEXT, key.encode("utf-8", "surrogatepass")) for key in exact])
    return np.array(list(map(_code, exact)), "S")


def _code(exact: Any) -> bytes:
    match exact:
        case int() if -_LARGEST - 1 <= exact <= _LARGEST:
            return _pack_int(_INT, exact & _MASK)
        case str():
            return _framed(_TEXT, exact.encode("utf-8", "surrogatepass"))
        case bytes():
            return _framed(_BYTES, exact)
        case _:
            return _framed(_OTHER, key_bytes(exact))


def _framed(tag: bytes, body: bytes) -> bytes:
    head = _pack_head(tag, len(body))
    if len(body) <= _MAX_BODY:
        return head + body
    return head + body[:_PREFIX] + hashlib.blake2b(body, digest_size=_MAX_BODY - _PREFIX).digest()


def alike(codes: Sequence[CodeArray]) -> list[CodeArray]:
    """These codes all as numbers or all as bytes, so that they can be compared."""
    if all(each.dtype.kind == "u" for each in codes):
        return list(codes)
    return list(map(as_bytes, codes))


def as_bytes(codes: CodeArray) -> CodeArray:
    """These codes as bytes."""
    if codes.dtype.kind == "S":
        return codes
    wide = np.empty((len(codes), _INT_WIDTH), np.uint8)
    wide[:, 0] = _INT[0]
    wide[:, 1:] = codes.astype(">u8").view(np.uint8).reshape(-1, 8)
    return wide.view(f"S{_INT_WIDTH}")[:, 0]


class RunKeys:
    """The keys of one run by number.

    Threading: one thread.
    """

    __slots__ = ("_index", "_is_of_codes")

    def __init__(self) -> None:
        self._index = KeyIndex()
        self._is_of_codes = False

    def __repr__(self) -> str:
        return f"<RunKeys: {self._index!r}>"

    def __len__(self) -> int:
        return self._index.num_slots

    def numbers(self, keys: Column) -> NDArray[np.uint32]:
        """The number of each key.

        Raises:
            KeyTypeError: a value cannot be a key.
        """
        found = None if self._is_of_codes else self._index.slots(keys)
        if found is None:
            found = self._numbers_of_codes(exact_keys(keys.to_list()))
        return found.astype(np.uint32)

    def _numbers_of_codes(self, exact: list[Any]) -> NDArray[np.intp]:
        if not self._is_of_codes:
            codes = list(map(_code, self._index.keys()))
            self._index = KeyIndex()
            self._index.load(codes)
            self._is_of_codes = True
        found = self._index.slots(ListColumn(list(map(_code, exact)), bytes))
        assert found is not None, "all codes are bytes"
        return found

    def ranking(self) -> tuple[NDArray[np.uint32], CodeArray]:
        """The rank of each number in the order of the codes, and the codes in this order."""
        keys = self._index.keys()
        codes = np.array(keys, "S") if self._is_of_codes else codes_of(keys)
        order = np.argsort(codes, kind="stable")
        ranks = np.empty(len(order), np.uint32)
        ranks[order] = np.arange(len(order), dtype=np.uint32)
        return ranks, codes.take(order)

    def names(self) -> NameTable | None:
        """The keys by number; None if the index has their codes instead."""
        return None if self._is_of_codes else NameTable(self._index.keys())


@dataclass(frozen=True, slots=True)
class Block:
    """Records of one input, with the code of each one's key.  The owner of a block may give its chunk away.

    ``stamps``: the timestamps; None if no record has one.
    """

    chunk: Chunk
    codes: CodeArray
    stamps: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def with_codes(self, codes: CodeArray) -> "Block":
        """These records with other codes."""
        return self if codes is self.codes else Block(self.chunk, codes, self.stamps)

    def slice(self, start: int, stop: int) -> "Block":
        """The records from ``start`` to before ``stop``."""
        if start == 0 and stop >= len(self):
            return self
        stamps = None if self.stamps is None else self.stamps[start:stop]
        return Block(self.chunk.slice(start, stop), self.codes[start:stop], stamps)

    def parts(self, num_rows: int) -> Iterator["Block"]:
        """These records in blocks of at most ``num_rows``."""
        for start in range(0, len(self), num_rows):
            yield self.slice(start, start + num_rows)

    def sorted(self) -> "Block":
        """These records by code, then by timestamp; equal ones keep their order."""
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
    """All records in the order of the blocks, at least one block; all codes must be numbers, or all bytes."""
    if len(blocks) == 1:
        return blocks[0]
    stamps = None
    if any(block.stamps is not None for block in blocks):
        stamps = np.concatenate([stamps_of(block) for block in blocks])
    chunks = _in_columns([block.chunk for block in blocks])
    return Block(joined_chunks(chunks, stamps), np.concatenate([block.codes for block in blocks]), stamps)


def stamps_of(block: Block) -> Int64Array:
    """The timestamp of each record; as in Flink, records without a timestamp sort before all others."""
    return np.full(len(block), MIN_TIMESTAMP, np.int64) if block.stamps is None else block.stamps


def joined_chunks(chunks: list[Chunk], stamps: Int64Array | None) -> Chunk:
    """The records of all chunks with these timestamps; in columns if the columns of all chunks fit together."""
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
    """These records, all in columns if most are and all are of one kind: a few records may have come in a list."""
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
    """The columns of a chunk.  A list becomes columns only if its key is the field at the position that ``like`` has;
    else None.
    """
    if chunk.columns is not None:
        return chunk.columns
    columns, place, keys = columns_of(chunk.values), like.key_position, chunk.keys
    if columns is None or place is None or keys is None or place >= len(columns.fields):
        return None
    # Equal texts, and equal integers, are one key; other types are not compared.
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
    """The rest of one run, block by block."""

    def __init__(self, number: int, blocks: Iterable[Block]) -> None:
        self.number = number
        self._blocks = (block for block in blocks if len(block))
        self.rest = next(self._blocks, None)

    def end(self) -> tuple[Any, int, int]:
        """The end of the present block: code, timestamp, number of the run."""
        assert self.rest is not None, "asked only while there is a block"
        stamp = MIN_TIMESTAMP if self.rest.stamps is None else int(self.rest.stamps[-1])
        return self.rest.codes[-1], stamp, self.number

    def take_until(self, bound: tuple[Any, int, int]) -> Block:
        """Take the records of the present block up to an ``end`` of some run; perhaps none."""
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
    """The parts of each step of a merge, with the numbers of their runs; all records of a step come before those of the
    next step.

    The codes of a step are all numbers, or all bytes.
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
