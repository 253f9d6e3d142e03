"""Tables that number keys: whole numbers and short texts.

Hot path.  Keys that lie close together are looked up in a table, 1 ns each (``key_window``).  Others by open addressing
in numpy, many keys at once: 3 ns per key for 1,000 distinct ones (``bench shuffle-columnar``; sorting and searching
takes 48, a dictionary 70).

Dense codes for any number of short texts.

Hot path.  Open addressing in numpy, all texts of a column at once.  So their cache misses overlap, where those of a
dictionary follow each other (10**6 texts: 400 -> 60 ns; ``bench shuffle``).

Side:       pure.
Invariants: codes are 0, 1, 2, ... in the order in which keys were first seen.  At most a quarter of the table is
            filled, so probes are short.  codes are 0, 1, 2, ... in the order in which texts were first seen.  At most a
            third of the table is filled, so probes are short.
Source:     multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, 6.4), linear probing.  as
            ``int64_codes``.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns.short_texts import PACKED16, Packed16Array, differ, mixed, take_packed16, texts_of
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


_MIN_TEXT_BITS: Final = 12
_MAX_TEXT_LOAD: Final = 3  # places per text
_MIN_TEXTS: Final = 1_024


class TextCodes:
    """Text -> code; grows, and never removes a text."""

    __slots__ = ("_packed16", "_shift", "_table", "num_codes")

    def __init__(self) -> None:
        self.num_codes = 0
        self._packed16 = np.zeros((_MIN_TEXTS, 2), np.uint64)  # by code; the first num_codes places are in use
        self._make_table(_MIN_TEXT_BITS)

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
            self._learn(_first_texts(take_packed16(packed16, new)))
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
        if total * _MAX_TEXT_LOAD > len(self._table):
            self._make_table((total * _MAX_TEXT_LOAD).bit_length() + 1)
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


def _first_texts(packed16: Packed16Array) -> Packed16Array:
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
