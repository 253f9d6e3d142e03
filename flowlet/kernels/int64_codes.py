"""Dense codes for any number of 64-bit integers.

Hot path.  Keys that lie close together are looked up in a table, 1 ns each (``key_window``).  Others by open addressing
in numpy, many
keys at once: 3 ns per key for 1,000 distinct ones (``bench shuffle-columnar``; sorting and searching takes 48, a
    dictionary 70).
Side:       pure.
Invariants: codes are 0, 1, 2, ... in the order in which keys were first seen.  At most a quarter of the table is
            filled, so probes are short.
Source:     multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, 6.4), linear probing.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowlet.keys.key_window import KeyWindow

Int64Array = NDArray[np.int64]
CodeArray = NDArray[np.intp]  # not narrower: numpy converts any other index to this type, 2 ns each

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio
_HASH_BITS: Final = 64
_MIN_BITS: Final = 14  # 256 KiB; with 1,000 keys collisions are rare: 8 -> 5 ns per key
_MAX_LOAD: Final = 4  # slots per key
_MIN_KEYS: Final = 1_024
_EMPTY: Final = -1
_BLOCK_KEYS: Final = 1 << 13


class Int64Codes:
    """Key -> code; grows, and never removes a key."""

    __slots__ = ("_codes", "_keys", "_shift", "_slot_keys", "_window", "num_codes")

    def __init__(self) -> None:
        self.num_codes = 0
        self._keys = np.empty(_MIN_KEYS, np.int64)  # by code; the first num_codes places are in use
        self._make_table(_MIN_BITS)
        self._window = KeyWindow(self._find)

    def __repr__(self) -> str:
        return f"<Int64Codes of {self.num_codes} keys>"

    def close(self) -> None:
        """Break the circle of references between table and window, so that no garbage collector is needed; nothing is
        called afterwards.
        """
        del self._window

    @property
    def keys(self) -> Int64Array:
        """The keys by code; a view, valid until the next ``add``."""
        return self._keys[: self.num_codes]

    def add(self, keys: Int64Array) -> CodeArray:
        """The code of each key; new keys get the next codes, in order."""
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
        # The window does not contain keys that were learned without it.
        codes = self._find(keys)
        new = np.flatnonzero(codes == _EMPTY)
        if new.size:
            self._learn(_firsts(keys[new]))
            codes[new] = self._find(keys[new])
        return codes

    def _find(self, keys: Int64Array) -> CodeArray:
        """The code of each key, -1 for unknown ones; block by block, so that intermediate arrays stay in the cache."""
        if len(keys) <= _BLOCK_KEYS:
            return self._find_block(keys)
        blocks = [self._find_block(keys[start : start + _BLOCK_KEYS]) for start in range(0, len(keys), _BLOCK_KEYS)]
        return np.concatenate(blocks)

    def _find_block(self, keys: Int64Array) -> CodeArray:
        slots = self._home(keys)
        slot_keys, codes, mask = self._slot_keys, self._codes, len(self._codes) - 1
        # An empty slot contains some key, too; its code marks it as empty.
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
        """Add distinct new keys."""
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
        """Enter the keys from code ``first`` on into the table: all at once, then those again whose slot another key
        took.
        """
        keys = self._keys[first : self.num_codes]
        slots, mask = self._home(keys), len(self._codes) - 1
        left = np.arange(len(keys))
        while left.size:
            at = slots[left]
            free = self._codes[at] == _EMPTY
            # If several keys write to one slot, the last one stays.
            self._codes[at[free]] = left[free] + first
            is_placed = self._codes[at] == left + first
            self._slot_keys[at[is_placed]] = keys[left[is_placed]]
            left = left[~is_placed]
            slots[left] = (slots[left] + 1) & mask


def _firsts(keys: Int64Array) -> Int64Array:
    """The distinct keys, in order of first sight."""
    _, positions = np.unique(keys, return_index=True)
    positions.sort()
    return keys[positions]
