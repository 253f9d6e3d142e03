"""What keys are sorted by: for each key a code, equal exactly for the same key.

``RankedCodes``: codes as their ranks among the codes that occur, for many records of few keys.

Hot path, per column: integers and short texts become codes in numpy; other values one by one, those of a dictionary
once per value.  Where keys come again and again, a run numbers them first (``KeyNumbering``), and each key gets its
code once.  Ranks are sorted, compared and moved as integers, per block; codes themselves only once per key.

Side:       pure.
Invariants: two codes are equal exactly if their keys are the same (``flowlet.keys.exact_keys``); of a key longer than
            60 bytes up to a collision of 128-bit hashes.  The order of codes is the same in every process, and whether
            they are numbers or bytes.  A table of ranks rises; each rank is the place of a record's code in it, so
            ranks are in the order of the codes.
Rules:      integers of 64 bits first, from 0 up, then the negative ones; then texts, then bytes, then other keys:
            shorter ones first.  So Flink's order comes out for keys of the types LONG and STRING, which sorts their
            serialized bytes; but keys of more than 60 bytes that have the same length and the same first 44 bytes are
            in the order of their hashes.
"""

import datetime
import decimal
import hashlib
import struct
import sys
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import CodedColumn, Column, ColumnVisitor, ConstantColumn, ListColumn, NameTable, ShortTextColumn
from flowlet.columns.short_text_column import PACKED16_BYTES
from flowlet.keys.exact_keys import exact_key
from netstack.late import dataclass

_MAX_SHORT: Final = 1 << 16  # ranks below take two bytes
_POINTER_BYTES: Final = 8
# Of blocks with different tables: fewer are sorted by the codes themselves; not measured closely.
_MIN_ROWS: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class RankedCodes:
    """The codes of many records.

    ``ranks``: uint16 or uint32.  ``table``: the codes as bytes of one width.  ``names``: the keys that they stand for,
        if all of these are
    exactly texts, and keys that are a field are wanted as codes, too; else None.
    """

    ranks: NDArray[Any]
    table: NDArray[Any]
    names: NameTable | None = None

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def nbytes(self) -> int:
        """Of the ranks; the table is not counted."""
        return self.ranks.nbytes

    def bytes_of_keys(self) -> NDArray[np.int64]:
        """Of each code of the table: its own, and those of its name."""
        own = self.table.itemsize
        if self.names is None:
            return np.full(len(self.table), own, np.int64)
        return np.fromiter(map(sys.getsizeof, self.names.names), np.int64, len(self.table)) + (own + _POINTER_BYTES)

    def __getitem__(self, rows: slice) -> "RankedCodes":
        return RankedCodes(self.ranks[rows], self.table, self.names)

    def take(self, rows: NDArray[np.intp]) -> "RankedCodes":
        """The codes of these rows, in this order."""
        return RankedCodes(self.ranks.take(rows), self.table, self.names)

    def to_bytes_array(self) -> NDArray[Any]:
        """Each code."""
        return self.table.take(self.ranks)

    def trimmed(self) -> "RankedCodes":
        """The same without what is in the table before the first and behind the last one that occurs; there is at least
        one.
        """
        low, stop = int(self.ranks.min()), int(self.ranks.max()) + 1
        is_short = stop - low <= _MAX_SHORT
        if stop - low == len(self.table) and is_short == (self.ranks.dtype == np.uint16):
            return self
        ranks = (self.ranks - self.ranks.dtype.type(low)).astype(np.uint16 if is_short else np.uint32)
        return RankedCodes(
            ranks, self.table[low:stop], None if self.names is None else NameTable(self.names.names[low:stop])
        )

    def is_worthwhile(self) -> bool:
        """Whether records share codes."""
        return len(self.table) * 2 <= len(self.ranks)


def try_unify(codes: Sequence[RankedCodes]) -> list[RankedCodes] | None:
    """The same codes with one table; None if that does not pay.  There is at least one, none empty."""
    first = codes[0]
    if all(each.table is first.table for each in codes):
        return list(codes)
    if sum(map(len, codes)) < _MIN_ROWS:
        return None
    codes = [each.trimmed() for each in codes]
    sizes = [len(each.table) for each in codes]
    if sum(sizes) * 2 > sum(map(len, codes)):
        return None
    table, places, ranks = np.unique(
        np.concatenate([each.table for each in codes]), return_index=True, return_inverse=True
    )
    tables = [each.names for each in codes if each.names is not None]
    names = None
    if len(tables) == len(codes):
        all_names = list(chain.from_iterable(each.names for each in tables))
        names = NameTable([all_names[place] for place in places.tolist()])
    ranks = ranks.astype(np.uint32)
    starts = [0, *accumulate(sizes)]
    return [
        RankedCodes(ranks[start:].take(each.ranks), table, names) for start, each in zip(starts, codes, strict=False)
    ]


CodeArray = NDArray[Any]  # uint64, or bytes of one width
Codes = CodeArray | RankedCodes

_INT, _TEXT, _BYTES, _OTHER = b"\x01", b"\x02", b"\x03", b"\x04"
_INT_WIDTH: Final = 9  # the tag and 64 bits
_HEAD: Final = 5  # the tag and the length
_MAX_BODY: Final = 60  # a longer one is shortened, so that one long key does not make the codes of a whole block wide
_PREFIX: Final = 44  # what is kept of it, and a hash of 16 bytes
_MASK: Final = (1 << 64) - 1
_LARGEST: Final = (1 << 63) - 1
_pack_int: Final = struct.Struct(">cQ").pack
_pack_head: Final = struct.Struct(">cI").pack


def column_codes(keys: Column) -> CodeArray:
    """The codes of a column of keys."""
    return keys.accept(_CODES)


def list_codes(keys: list[Any]) -> CodeArray:
    """The codes of a list of keys.

    Raises:
        KeyTypeError: something in it cannot be a key.
    """
    kinds = set(map(type, keys))
    if kinds == {int}:
        try:
            return np.array(keys, np.int64).view(np.uint64)
        except OverflowError:
            pass
    if kinds == {str}:
        return np.array([_framed(_TEXT, key.encode("utf-8", "surrogatepass")) for key in keys])
    return exact_codes(map(exact_key, keys)) if keys else np.empty(0, np.uint64)


def exact_codes(keys: Iterable[Any]) -> CodeArray:
    """The codes of exact keys, as bytes; there is at least one."""
    return np.array([_code(key) for key in keys], "S")


def as_bytes(codes: Codes) -> CodeArray:
    """The same codes as bytes, to compare them with such."""
    if isinstance(codes, RankedCodes):
        return codes.to_bytes_array()
    if codes.dtype.kind == "S":
        return codes
    wide = np.empty((len(codes), _INT_WIDTH), np.uint8)
    wide[:, 0] = _INT[0]
    wide[:, 1:] = codes.astype(">u8").view(np.uint8).reshape(-1, 8)
    return wide.view(f"S{_INT_WIDTH}")[:, 0]


def alike(codes: Sequence[Codes]) -> list[Codes]:
    """The same codes, all as numbers, as ranks in one table, or as bytes."""
    arrays = [each for each in codes if not isinstance(each, RankedCodes)]
    if not arrays:
        unified = try_unify([each for each in codes if isinstance(each, RankedCodes)])
        if unified is not None:
            return [*unified]
    elif len(arrays) == len(codes) and all(each.dtype.kind == "u" for each in arrays):
        return [*arrays]
    return [as_bytes(each) for each in codes]


def sortable(codes: Codes) -> CodeArray:
    """What is in the order of the codes, and equal where they are."""
    return codes.ranks if isinstance(codes, RankedCodes) else codes


def concatenated(codes: Sequence[Codes]) -> Codes:
    """Codes that are alike as one; there is at least one."""
    array = np.concatenate([sortable(each) for each in codes])
    first = codes[0]
    return RankedCodes(array, first.table, first.names) if isinstance(first, RankedCodes) else array


def place_of(codes: Codes, code: bytes, side: Literal["left", "right"]) -> int:
    """Where the code stands in sorted ones: its first place, or that behind its last one."""
    if isinstance(codes, RankedCodes):
        return int(codes.ranks.searchsorted(codes.table.searchsorted(np.bytes_(code), side)))
    if codes.dtype.kind == "S":
        return int(codes.searchsorted(np.bytes_(code), side))
    wide = code.ljust(_INT_WIDTH, b"\0")  # numpy leaves NULs at the end out
    if wide[:1] != _INT or len(wide) != _INT_WIDTH:
        return len(codes)  # every number is before every other code
    return int(codes.searchsorted(codes.dtype.type(int.from_bytes(wide[1:], "big")), side))


class _CodesOfColumn(ColumnVisitor[CodeArray]):
    def visit_any(self, column: Column) -> CodeArray:
        numbers = column.numbers()
        if numbers is None or numbers.kind.is_instant or numbers.array.dtype.kind != "i":
            return list_codes(column.to_list())
        if numbers.is_valid is None:
            return numbers.array.astype(np.int64, copy=False).view(np.uint64)
        values, are_valid = numbers.array.tolist(), numbers.is_valid.tolist()
        return list_codes([value if is_valid else None for value, is_valid in zip(values, are_valid, strict=True)])

    def visit_list(self, column: ListColumn) -> CodeArray:
        return list_codes(column.values)

    def visit_constant(self, column: ConstantColumn) -> CodeArray:
        return np.repeat(list_codes([column.value]), len(column))

    def visit_coded(self, column: CodedColumn) -> CodeArray:
        used, places = np.unique(column.codes, return_inverse=True)
        return list_codes(column.names.values_of(used)).take(places)

    def visit_short_texts(self, column: ShortTextColumn) -> CodeArray:
        characters = np.ascontiguousarray(column.packed16).view(np.uint8).reshape(-1, PACKED16_BYTES)
        wide = np.zeros((len(column), _HEAD + PACKED16_BYTES), np.uint8)
        wide[:, 0] = _TEXT[0]
        wide[:, _HEAD - 1] = PACKED16_BYTES - np.argmax(characters[:, ::-1] != 0, axis=1)
        wide[~characters.any(axis=1), _HEAD - 1] = 0
        wide[:, _HEAD:] = characters
        return wide.view(f"S{_HEAD + PACKED16_BYTES}")[:, 0]


_CODES: Final = _CodesOfColumn()


def _code(exact: Any) -> bytes:
    match exact:
        case int() if -_LARGEST - 1 <= exact <= _LARGEST:
            return _pack_int(_INT, exact & _MASK)
        case str():
            return _framed(_TEXT, exact.encode("utf-8", "surrogatepass"))
        case bytes():
            return _framed(_BYTES, exact)
        case _:
            return _framed(_OTHER, _canonical(exact))


def _framed(tag: bytes, body: bytes) -> bytes:
    head = _pack_head(tag, len(body))
    if len(body) <= _MAX_BODY:
        return head + body
    return head + body[:_PREFIX] + hashlib.blake2b(body, digest_size=_MAX_BODY - _PREFIX).digest()


def _canonical(exact: Any) -> bytes:
    """Bytes that are equal exactly if the stand-ins of two keys are."""
    match exact:
        case tuple():
            return b"(" + b"".join(_part(each) for each in exact)
        case frozenset():
            return b"{" + b"".join(sorted(_part(each) for each in exact))
        case type():
            return f"t{exact.__module__}.{exact.__qualname__}".encode()
        case str():
            return b"s" + exact.encode("utf-8", "surrogatepass")
        case bytes():
            return b"b" + exact
        case decimal.Decimal() if exact.is_finite():
            return f"d{exact.as_integer_ratio()}".encode()
        case datetime.datetime() | datetime.time():
            return f"c{exact.replace(fold=0).isoformat()}".encode()
        case _:
            return f"r{type(exact).__name__}{exact!r}".encode("utf-8", "surrogatepass")


def _part(exact: Any) -> bytes:
    body = _canonical(exact)
    return struct.pack(">I", len(body)) + body
