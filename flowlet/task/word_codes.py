"""Codes of words by their first bytes: a hash table in numpy beside a dictionary of texts.

Hot path: some fifteen numpy calls for all words of a chunk, where a dictionary probe takes 45 ns per word and its object 25
(``bench wordcount``).

Side:       pure.
Invariants: a word is found only if all of its bytes are equal; what is not found, or too long, is for the dictionary.  At least half of
            the places are free.
Rules:      a place holds a code, and the bytes lie by code: frequent words have small codes, so their bytes lie together in the cache.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

CodeArray = NDArray[np.uint16]
HeadArray = NDArray[np.uint64]

UNKNOWN: Final = (1 << 16) - 1  # never a code
_NUM_BITS: Final = 16
_NUM_PLACES: Final = 1 << _NUM_BITS
_MASK: Final = _NUM_PLACES - 1
MAX_WORDS: Final = _NUM_PLACES // 2
_SHIFT: Final = np.uint64(64 - _NUM_BITS)
# Odd multipliers whose upper halves depend on all bits (Fibonacci hashing; the second one is that of MurmurHash3's finalizer).
_FIRST_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SECOND_FACTOR: Final = np.uint64(0xFF51AFD7ED558CCD)
_HALF: Final = np.uint64(32)
_HEAD: Final = np.dtype(np.complex128)  # numpy moves its 16 bytes at once; nobody computes with it
# Neighbours that are looked at; a word that lies farther off is not kept.
_MAX_STEPS: Final = 8


class WordCodes:
    """Words of at most ``HEAD_BYTES`` bytes, and their codes."""

    __slots__ = ("_codes", "_heads", "_num_words")

    def __init__(self) -> None:
        self._codes = np.full(_NUM_PLACES, UNKNOWN, np.uint16)  # by place
        self._heads = np.zeros(UNKNOWN + 1, _HEAD)  # by code
        self._num_words = 0

    def __repr__(self) -> str:
        return f"<WordCodes of {self._num_words} words>"

    def codes_of(self, heads: HeadArray) -> CodeArray:
        """The code of each word; ``UNKNOWN`` for those that are not here."""
        places = _places(heads)
        codes: CodeArray = self._codes.take(places)
        lost = self._different(codes, heads)
        if len(lost):
            codes[lost] = self._beside(heads[lost], places[lost])
        return codes

    def add(self, heads: HeadArray, codes: CodeArray) -> None:
        """Keep the codes of words that are not here, and all different; some may not find a place."""
        self._heads[codes] = heads.view(_HEAD)[:, 0]
        places = _places(heads)
        for _ in range(_MAX_STEPS):
            if not len(codes) or self._num_words + len(codes) > MAX_WORDS:
                return
            is_free = self._codes.take(places) == UNKNOWN
            taken, first = np.unique(places[is_free], return_index=True)
            chosen = np.flatnonzero(is_free)[first]
            self._codes[taken] = codes[chosen]
            self._num_words += len(chosen)
            codes = np.delete(codes, chosen)
            places = (np.delete(places, chosen) + 1) & _MASK

    def _different(self, codes: CodeArray, heads: HeadArray) -> NDArray[np.intp]:
        """Where the words of these codes are others."""
        found = self._heads.take(codes).view(np.uint64).reshape(-1, 2)
        is_different = found[:, 0] != heads[:, 0]
        is_different |= found[:, 1] != heads[:, 1]
        rows: NDArray[np.intp] = is_different.nonzero()[0]
        return rows

    def _beside(self, heads: HeadArray, places: NDArray[np.intp]) -> CodeArray:
        """The codes of words of which others have the first place."""
        found = np.full(len(heads), UNKNOWN, np.uint16)
        rows = np.arange(len(heads))
        for _ in range(1, _MAX_STEPS):
            places = (places + 1) & _MASK
            codes = self._codes.take(places)
            lost = self._different(codes, heads)
            found[rows] = codes
            found[rows[lost]] = UNKNOWN
            lost = lost[codes[lost] != UNKNOWN]
            if not len(lost):
                break
            rows, places, heads = rows[lost], places[lost], heads[lost]
        return found


def _places(heads: HeadArray) -> NDArray[np.intp]:
    mixed = heads[:, 0] * _FIRST_FACTOR
    mixed ^= heads[:, 1] * _SECOND_FACTOR
    mixed ^= mixed >> _HALF
    mixed *= _FIRST_FACTOR
    mixed >>= _SHIFT
    return mixed.view(np.int64)
