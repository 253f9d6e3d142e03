"""Dense codes for any number of short texts.

Hot path.  Open addressing in numpy, all texts of a column at once.  So their cache misses overlap, where those of a
dictionary follow each other (10**6 texts: 400 -> 60 ns; ``bench shuffle``).
Side:       pure.
Invariants: codes are 0, 1, 2, ... in the order in which texts were first seen.  At most a third of the table is filled,
            so probes are short.
Source:     as ``int64_codes``.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns.short_texts import PACKED16, Packed16Array, differ, mixed, take_packed16, texts_of

CodeArray = NDArray[np.intp]

_HASH_BITS: Final = 64
_MIN_BITS: Final = 12
_MAX_LOAD: Final = 3  # places per text
_EMPTY: Final = -1
_MIN_TEXTS: Final = 1_024


class TextCodes:
    """Text -> code; grows, and never removes a text."""

    __slots__ = ("_packed16", "_shift", "_table", "num_codes")

    def __init__(self) -> None:
        self.num_codes = 0
        self._packed16 = np.zeros((_MIN_TEXTS, 2), np.uint64)  # by code; the first num_codes places are in use
        self._make_table(_MIN_BITS)

    def __repr__(self) -> str:
        return f"<TextCodes of {self.num_codes} texts>"

    def texts(self) -> list[str]:
        """The texts by code."""
        return texts_of(self._packed16[: self.num_codes])

    def add(self, packed16: Packed16Array) -> CodeArray:
        """The code of each text; new texts get the next codes, in order."""
        codes = self._find(packed16)
        new = np.flatnonzero(codes == _EMPTY)
        if new.size:
            self._learn(_firsts(take_packed16(packed16, new)))
            codes[new] = self._find(take_packed16(packed16, new))
        return codes.astype(np.intp)

    def _find(self, packed16: Packed16Array) -> NDArray[np.int32]:
        """The code of each text, -1 for unknown ones."""
        places = self._homes(packed16)
        codes: NDArray[np.int32] = self._table.take(places)
        wrong = self._wrong(codes, packed16)
        if wrong.size:
            codes[wrong] = self._find_beside(take_packed16(packed16, wrong), places[wrong])
        return codes

    def _find_beside(self, packed16: Packed16Array, places: NDArray[np.int64]) -> NDArray[np.int32]:
        """The code of each text whose first places are taken by other texts."""
        codes = np.empty(len(packed16), np.int32)
        left, mask = np.arange(len(packed16)), len(self._table) - 1
        while left.size:
            places = (places + 1) & mask
            codes[left] = found = self._table.take(places)
            wrong = self._wrong(found, packed16)
            left, places, packed16 = left[wrong], places[wrong], take_packed16(packed16, wrong)
        return codes

    def _wrong(self, codes: NDArray[np.int32], packed16: Packed16Array) -> NDArray[np.intp]:
        """Indexes of codes that belong to another text."""
        # A code of -1 reads the last text; the result for it is not used.
        return np.flatnonzero(differ(take_packed16(self._packed16, codes), packed16) & (codes != _EMPTY))

    def _homes(self, packed16: Packed16Array) -> NDArray[np.int64]:
        return (mixed(packed16) >> self._shift).view(np.int64)

    def _learn(self, packed16: Packed16Array) -> None:
        """Add distinct new texts."""
        total = self.num_codes + len(packed16)
        if total > len(self._packed16):
            grown = np.zeros((max(total, 2 * len(self._packed16)), 2), np.uint64)
            grown[: self.num_codes] = self._packed16[: self.num_codes]
            self._packed16 = grown
        self._packed16[self.num_codes : total] = packed16
        first, self.num_codes = self.num_codes, total
        if total * _MAX_LOAD > len(self._table):
            self._make_table((total * _MAX_LOAD).bit_length() + 1)
            first = 0
        self._insert(first)

    def _make_table(self, bits: int) -> None:
        self._shift = np.uint64(_HASH_BITS - bits)
        self._table = np.full(1 << bits, _EMPTY, np.int32)

    def _insert(self, first: int) -> None:
        """Enter the texts from code ``first`` on into the table: all at once, then those again whose place another text
        took.
        """
        codes = np.arange(first, self.num_codes, dtype=np.int32)
        places, mask = self._homes(self._packed16[first : self.num_codes]), len(self._table) - 1
        while codes.size:
            is_free = self._table.take(places) == _EMPTY
            # If several texts write to one place, the last one stays.
            self._table[places[is_free]] = codes[is_free]
            is_left = self._table.take(places) != codes
            codes, places = codes[is_left], (places[is_left] + 1) & mask


def _firsts(packed16: Packed16Array) -> Packed16Array:
    """The distinct texts, in order of first sight."""
    hashes = mixed(packed16)
    order = hashes.argsort(kind="stable")
    in_order = hashes.take(order)
    is_first = np.ones(len(order), np.bool_)
    np.not_equal(in_order[1:], in_order[:-1], out=is_first[1:])
    repeated = np.flatnonzero(~is_first)
    # Two texts, one hash.
    if differ(take_packed16(packed16, order[repeated]), take_packed16(packed16, order[repeated - 1])).any():
        _, positions = np.unique(packed16.view(f"S{PACKED16.itemsize}")[:, 0], return_index=True)
    else:
        positions = order[is_first]
    return take_packed16(packed16, np.sort(positions))
