"""A dense code for each of arbitrarily many 64-bit integers.

Hot path.  Keys that lie close together are looked up in a table, 1 ns each (``key_window``).  Others by open addressing in numpy, many
keys at once: 3 ns per key for 1,000 distinct ones (``bench shuffle-columnar``; sorting and searching takes 48, a dictionary 70).

Side:       pure.
Invariants: the codes are 0, 1, 2, ... in the order in which keys were first seen; at most a quarter of the table is filled, so that probes
            are short.
Source:     multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, 6.4), linear probing.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowlet.keys.key_window import KeyWindow

Int64Array = NDArray[np.int64]
CodeArray = NDArray[np.intp]  # not narrower: numpy turns any other index into this type, at 2 ns each

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio
_HASH_BITS: Final = 64
_MIN_BITS: Final = 14  # 256 KiB; 1,000 keys then seldom meet: 8 -> 5 ns per key
_MAX_LOAD: Final = 4  # slots per key
_MIN_KEYS: Final = 1_024
_EMPTY: Final = -1
_BLOCK_KEYS: Final = 1 << 13


class Int64Codes:
    """Key -> code; grows, forgets nothing."""

    __slots__ = ("_codes", "_keys", "_shift", "_slot_keys", "_window", "num_codes")

    def __init__(self) -> None:
        self.num_codes = 0
        self._keys = np.empty(_MIN_KEYS, np.int64)  # by code; the first num_codes are filled
        self._make_table(_MIN_BITS)
        self._window = KeyWindow(self._find)

    def __repr__(self) -> str:
        return f"<Int64Codes of {self.num_codes} keys>"

    @property
    def keys(self) -> Int64Array:
        """The keys by code; a view, true until the next call of ``add``."""
        return self._keys[: self.num_codes]

    def add(self, keys: Int64Array) -> CodeArray:
        """The code of each key; keys that are new get the next codes, in order."""
        if not len(keys):
            return np.empty(0, np.intp)
        places = self._window.places(keys)
        codes = self._find(keys) if places is None else self._window.table.take(places)
        if codes.min() == _EMPTY:
            missing = np.flatnonzero(codes == _EMPTY)
            codes[missing] = found = self._find_or_learn(keys[missing])
            if places is not None:
                self._window.table[places[missing]] = found
        return codes

    def _find_or_learn(self, keys: Int64Array) -> CodeArray:
        # The window does not see what was learned past it.
        codes = self._find(keys)
        new = np.flatnonzero(codes == _EMPTY)
        if new.size:
            self._learn(_firsts(keys[new]))
            codes[new] = self._find(keys[new])
        return codes

    def _find(self, keys: Int64Array) -> CodeArray:
        """The code of each key, -1 where there is none; block by block, so that all that is in between stays in the cache."""
        if len(keys) <= _BLOCK_KEYS:
            return self._find_block(keys)
        blocks = [self._find_block(keys[start : start + _BLOCK_KEYS]) for start in range(0, len(keys), _BLOCK_KEYS)]
        return np.concatenate(blocks)

    def _find_block(self, keys: Int64Array) -> CodeArray:
        slots = self._home(keys)
        slot_keys, codes, mask = self._slot_keys, self._codes, len(self._codes) - 1
        # An empty slot holds some key, too; its code says that it is none.
        wrong = np.flatnonzero(slot_keys.take(slots) != keys)
        while wrong.size:
            at = slots[wrong]
            is_filled = codes[at] != _EMPTY
            wrong, at = wrong[is_filled], (at[is_filled] + 1) & mask
            slots[wrong] = at
            wrong = wrong[slot_keys[at] != keys[wrong]]
        return codes.take(slots)

    def _home(self, keys: Int64Array) -> Int64Array:
        return (keys.view(np.uint64) * _MULTIPLIER >> self._shift).view(np.int64)

    def _learn(self, keys: Int64Array) -> None:
        """Add distinct keys that are not there."""
        total = self.num_codes + len(keys)
        if total > len(self._keys):
            grown = np.empty(max(total, 2 * len(self._keys)), np.int64)
            grown[: self.num_codes] = self.keys
            self._keys = grown
        self._keys[self.num_codes : total] = keys
        first, self.num_codes = self.num_codes, total
        if total * _MAX_LOAD > len(self._codes):
            self._make_table((total * _MAX_LOAD).bit_length() + 1)
            first = 0
        self._insert(first)

    def _make_table(self, bits: int) -> None:
        self._shift = np.uint64(_HASH_BITS - bits)
        self._slot_keys = np.zeros(1 << bits, np.int64)
        self._codes = np.full(1 << bits, _EMPTY, np.intp)

    def _insert(self, first: int) -> None:
        """Put the keys from code ``first`` on into the table: all at once, then again those whose slot another one got."""
        keys = self._keys[first : self.num_codes]
        slots, mask = self._home(keys), len(self._codes) - 1
        left = np.arange(len(keys))
        while left.size:
            at = slots[left]
            free = self._codes[at] == _EMPTY
            # Of several for one slot the last one written stays.
            self._codes[at[free]] = left[free] + first
            is_placed = self._codes[at] == left + first
            self._slot_keys[at[is_placed]] = keys[left[is_placed]]
            left = left[~is_placed]
            slots[left] = (slots[left] + 1) & mask


def _firsts(keys: Int64Array) -> Int64Array:
    """Each different key once, in the order of first sight."""
    _, positions = np.unique(keys, return_index=True)
    positions.sort()
    return keys[positions]
