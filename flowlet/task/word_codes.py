"""Codes of words by their first bytes: a hash table in numpy beside a dictionary of texts.

Hot path: some fifteen numpy calls for all words of a chunk, where a dictionary probe takes 45 ns per word and its object 25
(``bench wordcount``).

Side:       pure.
Invariants: a word is found only if all of its bytes are equal; what is not found, or too long, is for the dictionary.  There are not more
            words than codes, so at least half of the places are free.
Rules:      a place holds the code of the word that came first; the others with the same place are in a dictionary by their bytes (of the
            occurrences of 10,000 Zipf words 1 %).  The bytes lie by code: frequent words have small codes, so their bytes lie together in
            the cache.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

CodeArray = NDArray[np.uint16]
HeadArray = NDArray[np.uint64]

UNKNOWN: Final = (1 << 16) - 1  # never a code
_NUM_BITS: Final = 17  # 16 are as quick, with twice as many words in the dictionary
_NUM_PLACES: Final = 1 << _NUM_BITS
_SHIFT: Final = np.uint64(64 - _NUM_BITS)
# Odd multipliers whose upper halves depend on all bits (Fibonacci hashing; the second one is that of MurmurHash3's finalizer).
_FIRST_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
_SECOND_FACTOR: Final = np.uint64(0xFF51AFD7ED558CCD)
_HALF: Final = np.uint64(32)
_HEAD: Final = np.dtype(np.complex128)  # numpy moves its 16 bytes at once; nobody computes with it
_WORD: Final = np.dtype("S16")  # gives the bytes without the NULs behind them


class WordCodes:
    """Words of at most ``HEAD_BYTES`` bytes, and their codes."""

    __slots__ = ("_beside", "_codes", "_heads", "_num_words")

    def __init__(self) -> None:
        self._codes = np.full(_NUM_PLACES, UNKNOWN, np.uint16)  # by place
        self._heads = np.zeros(UNKNOWN + 1, _HEAD)  # by code
        self._beside: dict[bytes, int] = {}  # words whose places others have
        self._num_words = 0

    def __repr__(self) -> str:
        return f"<WordCodes of {self._num_words} words>"

    def codes_of(self, heads: HeadArray) -> CodeArray:
        """The code of each word; ``UNKNOWN`` for those that are not here."""
        codes: CodeArray = self._codes.take(_places(heads))
        found = self._heads.take(codes).view(np.uint64).reshape(-1, 2)
        is_other = found[:, 0] != heads[:, 0]
        is_other |= found[:, 1] != heads[:, 1]
        others = is_other.nonzero()[0]
        if len(others):
            get = self._beside.get
            codes[others] = [get(word, UNKNOWN) for word in _bytes_of(heads[others])]
        return codes

    def add(self, heads: HeadArray, codes: CodeArray) -> None:
        """Keep the codes of words that are not here, and all different."""
        self._num_words += len(codes)
        self._heads[codes] = heads.view(_HEAD)[:, 0]
        places = _places(heads)
        # Of several words with one place the first one has it.
        taken, first = np.unique(places, return_index=True)
        is_free = self._codes.take(taken) == UNKNOWN
        self._codes[taken[is_free]] = codes[first[is_free]]
        others = self._codes.take(places) != codes
        self._beside.update(zip(_bytes_of(heads[others]), codes[others].tolist(), strict=True))


def _bytes_of(heads: HeadArray) -> list[bytes]:
    words: list[bytes] = heads.view(_WORD)[:, 0].tolist()
    return words


def _places(heads: HeadArray) -> NDArray[np.intp]:
    mixed = heads[:, 0] * _FIRST_FACTOR
    mixed ^= heads[:, 1] * _SECOND_FACTOR
    mixed ^= mixed >> _HALF
    mixed *= _FIRST_FACTOR
    mixed >>= _SHIFT
    return mixed.view(np.int64)
