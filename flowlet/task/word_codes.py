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

from flowlet.columns.short_texts import HeadArray, bytes_of, differ, mixed, take_heads

CodeArray = NDArray[np.uint16]

UNKNOWN: Final = (1 << 16) - 1  # never a code
_NUM_BITS: Final = 17  # 16 are as quick, with twice as many words in the dictionary
_NUM_PLACES: Final = 1 << _NUM_BITS
_SHIFT: Final = np.uint64(64 - _NUM_BITS)


class WordCodes:
    """Words of at most ``HEAD_BYTES`` bytes, and their codes."""

    __slots__ = ("_beside", "_codes", "_heads", "_num_words")

    def __init__(self) -> None:
        self._codes = np.full(_NUM_PLACES, UNKNOWN, np.uint16)  # by place
        self._heads = np.zeros((UNKNOWN + 1, 2), np.uint64)  # by code
        self._beside: dict[bytes, int] = {}  # words whose places others have
        self._num_words = 0

    def __repr__(self) -> str:
        return f"<WordCodes of {self._num_words} words>"

    def codes_of(self, heads: HeadArray) -> CodeArray:
        """The code of each word; ``UNKNOWN`` for those that are not here."""
        codes: CodeArray = self._codes.take(_places(heads))
        others = np.flatnonzero(differ(take_heads(self._heads, codes), heads))
        if len(others):
            get = self._beside.get
            codes[others] = [get(word, UNKNOWN) for word in bytes_of(heads[others])]
        return codes

    def add(self, heads: HeadArray, codes: CodeArray) -> None:
        """Keep the codes of words that are not here, and all different."""
        self._num_words += len(codes)
        self._heads[codes] = heads
        places = _places(heads)
        # Of several words with one place the first one has it.
        taken, first = np.unique(places, return_index=True)
        is_free = self._codes.take(taken) == UNKNOWN
        self._codes[taken[is_free]] = codes[first[is_free]]
        others = self._codes.take(places) != codes
        self._beside.update(zip(bytes_of(heads[others]), codes[others].tolist(), strict=True))


def _places(heads: HeadArray) -> NDArray[np.int64]:
    return (mixed(heads) >> _SHIFT).view(np.int64)
