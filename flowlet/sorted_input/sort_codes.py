"""What keys are sorted by: for each key a code, equal exactly for the same key.

Hot path, per column: integers of 64 bits are their own codes.  All other keys of a run are numbered as they come
(``KeyIndex``), so that each gets its code once, however many records have it, and records are sorted by numbers.

Side:       pure.
Invariants: two codes are equal exactly if their keys are the same (``flowlet.keys.exact_keys``); of a key longer than
            60 bytes up to a collision of 128-bit hashes.  The order of codes is the same in every process, and whether
            they are numbers or bytes.
Rules:      integers of 64 bits first, from 0 up, then the negative ones; then texts, then bytes, then other keys:
            shorter ones first.  So Flink's order comes out for keys of the types LONG and STRING, which sorts their
            serialized bytes; but keys of more than 60 bytes that have the same length and the same first 44 bytes are
            in the order of their hashes.  All keys of an index are of one kind; where a run has several, the index has
            their codes in their place.
"""

import contextlib
import hashlib
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import Column, ListColumn, NameTable
from flowlet.columns.table import exact_type
from flowlet.keys.exact_keys import exact_keys, key_bytes
from flowlet.keys.key_index import KeyIndex

CodeArray = NDArray[Any]  # uint64, or bytes of one width

_INT, _TEXT, _BYTES, _OTHER = b"\x01", b"\x02", b"\x03", b"\x04"
_INT_WIDTH: Final = 9  # the tag and 64 bits
_MAX_BODY: Final = 60  # a longer one is shortened, so that one long key does not make the codes of a whole block wide
_PREFIX: Final = 44  # what is kept of it, and a hash of 16 bytes
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
    """The same codes, all as numbers or all as bytes, so that they can be compared."""
    if all(each.dtype.kind == "u" for each in codes):
        return list(codes)
    return list(map(as_bytes, codes))


def as_bytes(codes: CodeArray) -> CodeArray:
    """The same codes as bytes."""
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
            KeyTypeError: something cannot be a key.
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
        """The keys by number, where the index has them."""
        return None if self._is_of_codes else NameTable(self._index.keys())
