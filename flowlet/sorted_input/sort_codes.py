"""What keys are sorted by: for each key a code, equal exactly for the same key.

Hot path, per column: integers and short texts become codes in numpy; other values one by one, those of a dictionary
once per value.  Where keys come again and again, a run numbers them first (``KeyNumbering``), and each key gets its
code once.

Side:       pure.
Invariants: two codes are equal exactly if their keys are the same (``flowlet.keys.exact_keys``); of a key longer than
            60 bytes up to a collision of 128-bit hashes.  The order of codes is the same in every process, and whether
            they are numbers or bytes.
Rules:      integers of 64 bits first, from 0 up, then the negative ones; then texts, then bytes, then other keys:
            shorter ones first.  So Flink's order comes out for keys of the types LONG and STRING, which sorts their
            serialized bytes; but keys of more than 60 bytes that have the same length and the same first 44 bytes are
            in the order of their hashes.
"""

import datetime
import decimal
import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import CodedColumn, Column, ColumnVisitor, ConstantColumn, ListColumn, ShortTextColumn
from flowlet.columns.short_text_column import PACKED16_BYTES
from flowlet.keys.exact_keys import exact_key
from flowlet.sorted_input.ranked_codes import RankedCodes, try_unify

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
