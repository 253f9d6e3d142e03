"""Numbers the keys of columns: from a key to the slot of its state, by tables of whole numbers and of short texts.

Hot path.  Integers that lie close together are looked up in a table, 1 ns each (``KeyWindow``).  Others by open
addressing in numpy, many keys at once: 3 ns per key for 1,000 distinct ones (``bench shuffle-columnar``; sorting and
searching takes 48, a dictionary 70).  Short texts by open addressing, too, all texts of a column at once: so their
cache misses overlap, where those of a dictionary follow each other (10**6 texts: 400 -> 60 ns; ``bench shuffle``).
Dictionary codes are looked up in an array per table of names; Arrow's texts once per distinct one; all else in a
dictionary.

Side:       pure.
Invariants: codes and slots are 0, 1, 2, ... in the order in which keys were first seen.  At most a quarter of a table
            is filled, so probes are short.  Two values share a slot exactly if they are one key
            (``flowlet.keys.exact_keys``).  All keys of an index are of one kind; a column of another kind is refused.
Source:     multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, 6.4), linear probing.
"""

import datetime
from collections.abc import Callable
from enum import Enum
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    ColumnVisitor,
    ConstantColumn,
    ListColumn,
    NameTable,
    ShortTextColumn,
)
from flowlet.columns.column import Numbers
from flowlet.columns.short_text_column import (
    PACKED16,
    Packed16Array,
    differ,
    mixed,
    take_packed16,
    texts_of,
    try_short_texts,
)
from flowlet.columns.table import exact_type
from flowlet.errors import KeyTypeError
from flowlet.keys.exact_keys import exact_key, exact_keys
from flowlet.keys.key_columns import KeyWindow

Int64Array = NDArray[np.int64]
CodeArray = NDArray[np.intp]  # not narrower: numpy converts any other index to this type, 2 ns each

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio
_HASH_BITS: Final = 64
_MIN_BITS: Final = 14  # 128 KiB; with 1,000 keys collisions are rare: 8 -> 5 ns per key
_MAX_LOAD: Final = 4  # places per key
_MIN_KEYS: Final = 1_024
_EMPTY: Final = -1
_BLOCK_KEYS: Final = 1 << 13


def grown(array: NDArray[Any], num_rows: int, filler: Any = 0) -> NDArray[Any]:
    """The array with room for ``num_rows`` rows: itself, or a longer copy."""
    if num_rows <= len(array):
        return array
    longer = np.full((max(num_rows, 2 * len(array), _MIN_KEYS), *array.shape[1:]), filler, array.dtype)
    longer[: len(array)] = array
    return longer


class _OpenCodes:
    """The codes of keys that are in an array; grows, and never removes a key.

    A subclass has four functions for its kind of keys.  ``_hashes`` gives a number for each key whose upper bits are
    good for a place in the table.  ``_differ`` tells where two arrays of keys differ.  ``_take`` gives the keys at some
    positions, and ``_distinct`` the distinct keys in order of first sight.

    Args:
        no_keys: an array of this kind of keys, with room for the first ones.
    """

    __slots__ = ("_keys", "_shift", "_table", "num_codes")
    _hashes: Callable[[NDArray[Any]], NDArray[np.uint64]]
    _differ: Callable[[NDArray[Any], NDArray[Any]], NDArray[np.bool_]]
    _take: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
    _distinct: Callable[[NDArray[Any]], NDArray[Any]]

    def __init__(self, no_keys: NDArray[Any]) -> None:
        self.num_codes = 0
        self._keys = no_keys  # by code; the first num_codes places are in use
        self._make_table(_MIN_BITS)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.num_codes} keys>"

    def add(self, keys: NDArray[Any]) -> CodeArray:
        """The code of each key; new keys get the next codes, in order."""
        codes = self._find(keys)
        new = np.flatnonzero(codes == _EMPTY)
        if new.size:
            new_keys = self._take(keys, new)
            self._learn(self._distinct(new_keys))
            codes[new] = self._find(new_keys)
        return codes

    def _find(self, keys: NDArray[Any]) -> CodeArray:
        """The code of each key, -1 for unknown ones; block by block, so that intermediate arrays stay in the cache."""
        if len(keys) <= _BLOCK_KEYS:
            return self._find_block(keys)
        blocks = [self._find_block(keys[start : start + _BLOCK_KEYS]) for start in range(0, len(keys), _BLOCK_KEYS)]
        return np.concatenate(blocks)

    def _find_block(self, keys: NDArray[Any]) -> CodeArray:
        places = self._homes(keys)
        mask = len(self._table) - 1
        codes: CodeArray = self._table.take(places)
        wrong = self._wrong(codes, keys)
        while wrong.size:
            at = places[wrong] + 1 & mask
            places[wrong] = at
            codes[wrong] = found = self._table.take(at)
            wrong = wrong[self._wrong(found, self._take(keys, wrong))]
        return codes

    def _wrong(self, codes: CodeArray, keys: NDArray[Any]) -> NDArray[np.intp]:
        """The positions whose code belongs to another key."""
        # A code of -1 reads the last key, so such positions are taken out again below.
        wrong: NDArray[np.intp] = np.flatnonzero(self._differ(self._take(self._keys, codes), keys))
        known: NDArray[np.intp] = wrong[codes.take(wrong) != _EMPTY]
        return known

    def _homes(self, keys: NDArray[Any]) -> Int64Array:
        return (self._hashes(keys) >> self._shift).view(np.int64)

    def _learn(self, keys: NDArray[Any]) -> None:
        """Give codes to keys that have none; each occurs once."""
        first = self.num_codes
        self.num_codes += len(keys)
        self._keys = grown(self._keys, self.num_codes)
        self._keys[first : self.num_codes] = keys
        if self.num_codes * _MAX_LOAD > len(self._table):
            self._make_table((self.num_codes * _MAX_LOAD).bit_length() + 1)
            first = 0
        self._insert(first)

    def _make_table(self, bits: int) -> None:
        self._shift = np.uint64(_HASH_BITS - bits)
        self._table = np.full(1 << bits, _EMPTY, np.intp)

    def _insert(self, first: int) -> None:
        """Enter the keys from code ``first`` on into the table, all at once; then repeat it for the keys whose place
        another key took.
        """
        codes = np.arange(first, self.num_codes)
        places = self._homes(self._keys[first : self.num_codes])
        mask = len(self._table) - 1
        while codes.size:
            is_free = self._table.take(places) == _EMPTY
            # If several keys write to one place, the last one stays.
            self._table[places[is_free]] = codes[is_free]
            is_left = self._table.take(places) != codes
            codes = codes[is_left]
            places = places[is_left] + 1 & mask


class Int64Codes(_OpenCodes):
    """Codes of integers; those that lie close together are looked up in a window."""

    __slots__ = ("_window",)
    _differ = staticmethod(np.not_equal)  # type: ignore[assignment]  # numpy's has more parameters
    _take = staticmethod(np.ndarray.take)  # type: ignore[assignment]  # as above

    def __init__(self) -> None:
        super().__init__(np.zeros(_MIN_KEYS, np.int64))
        self._window = KeyWindow()

    @property
    def keys(self) -> Int64Array:
        """The keys by code; a view, valid until the next ``add``."""
        return self._keys[: self.num_codes]

    def add(self, keys: Int64Array) -> CodeArray:
        """The code of each key, by the window if the keys lie close together; new keys get the next codes, in order."""
        places = self._window.places(keys, self._find) if len(keys) else None
        if places is None:
            return super().add(keys)
        codes: CodeArray = self._window.table.take(places)
        if codes.min() == _EMPTY:
            # Keys that were learned without the window, and new ones.
            missing = np.flatnonzero(codes == _EMPTY)
            codes[missing] = found = super().add(keys[missing])
            self._window.table[places[missing]] = found
        return codes

    @staticmethod
    def _hashes(keys: Int64Array) -> NDArray[np.uint64]:
        return keys.view(np.uint64) * _MULTIPLIER

    @staticmethod
    def _distinct(keys: Int64Array) -> Int64Array:
        _, positions = np.unique(keys, return_index=True)
        return keys[np.sort(positions)]


class TextCodes(_OpenCodes):
    """Codes of short texts."""

    __slots__ = ()
    _hashes = staticmethod(mixed)  # type: ignore[mutable-override]  # nobody assigns it
    _differ = staticmethod(differ)  # type: ignore[mutable-override]  # as above
    _take = staticmethod(take_packed16)  # type: ignore[mutable-override]  # as above

    def __init__(self) -> None:
        super().__init__(np.zeros((_MIN_KEYS, 2), np.uint64))

    def texts(self) -> list[str]:
        """The texts by code."""
        return texts_of(self._keys[: self.num_codes])

    @staticmethod
    def _distinct(keys: Packed16Array) -> Packed16Array:
        hashes = mixed(keys)
        order = hashes.argsort(kind="stable")
        in_order = hashes.take(order)
        is_first = np.ones(len(order), np.bool_)
        np.not_equal(in_order[1:], in_order[:-1], out=is_first[1:])
        repeated = np.flatnonzero(~is_first)
        # Two texts may share a hash: then the texts themselves are sorted.
        if differ(take_packed16(keys, order[repeated]), take_packed16(keys, order[repeated - 1])).any():
            _, positions = np.unique(keys.view(f"S{PACKED16.itemsize}")[:, 0], return_index=True)
        else:
            positions = order[is_first]
        return take_packed16(keys, np.sort(positions))


SlotArray = NDArray[np.intp]


_CANONICAL_NAN: Final = 0x7FF8 << 48
_UNKNOWN: Final = -1
_MIN_TEXTS: Final = 256  # fewer are faster in a dictionary; not measured closely
_FLOAT_FIELDS: Final = 2  # the exact key of a float has its type and its bits
_INSTANTS: Final = frozenset({datetime.datetime, datetime.date})


class KeyKind(Enum):
    """The kind of all keys of an index."""

    INT = "int"
    FLOAT = "float"
    OBJECT = "object"


class Slots(dict[Any, int]):
    """The slots of exact keys; a look-up of a new key gives it the next slot."""

    __slots__ = ()

    def __missing__(self, key: Any) -> int:
        self[key] = slot = len(self)
        return slot


class KeyIndex(ColumnVisitor[SlotArray | None]):
    """The slots of keys; grows, and never removes a key.

    ``allows_null``: keys come from a column (``ColumnKey``), whose instants and dates are numbers; else columns of
        instants are refused.
    """

    __slots__ = ("_allows_null", "_are_plain", "_kind", "_null_slot", "_numbers", "_objects", "_tables", "_texts")

    def __init__(self, *, allows_null: bool = False) -> None:
        self._allows_null = allows_null
        self._kind: KeyKind | None = None  # set by the first key
        self._are_plain = True
        self._objects = Slots()
        self._texts: TextCodes | None = None  # used instead of objects while all keys are short texts; made on demand
        self._numbers = Int64Codes()  # ints, instants in their unit, or the bits of floats
        self._null_slot: int | None = None  # for numbers
        # Code -> slot for each table, as far as it was known; a table disappears when its channel starts the next one.
        # Made on demand, because it cannot be pickled.
        self._tables: WeakKeyDictionary[NameTable, SlotArray] | None = None

    def __repr__(self) -> str:
        return f"<KeyIndex of {self.num_slots} keys>"

    def close(self) -> None:
        """Free most of the memory at once; the index must not be used afterwards."""
        del self._numbers

    @property
    def num_slots(self) -> int:
        """The number of keys."""
        num_texts = 0 if self._texts is None else self._texts.num_codes
        return len(self._objects) + num_texts + self._numbers.num_codes + (self._null_slot is not None)

    @property
    def are_plain(self) -> bool:
        """Whether keys that share a slot are bitwise equal, so that any of them may stand for the first one."""
        return self._are_plain and self._kind is not KeyKind.FLOAT

    def keys(self) -> list[Any]:
        """The exact key of each slot (``flowlet.keys.exact_keys.exact_key``)."""
        if self._kind is KeyKind.OBJECT:
            return list(self._objects) if self._texts is None else list[Any](self._texts.texts())
        keys: list[Any] = self._numbers.keys.tolist()
        if self._kind is KeyKind.FLOAT:
            keys = [exact_key(key) for key in self._numbers.keys.view(np.float64).tolist()]
        if self._null_slot is not None:
            keys.insert(self._null_slot, None)
        return keys

    def load(self, keys: list[Any]) -> bool:
        """Assign slots 0, 1, 2, ... to these distinct exact keys; False if they are not all of one kind."""
        assert not self.num_slots, "loaded before the first keys"
        plain = [key for key in keys if key is not None]
        kinds = set(map(type, plain))
        if keys == [None] and self._allows_null:
            self._null_slot = 0
            return True
        if kinds == {int}:
            values, self._kind = plain, KeyKind.INT
        elif kinds == {tuple} and all(len(key) == _FLOAT_FIELDS and key[0] is float for key in plain):
            values, self._kind = [bits - (bits >> 63 << 64) for _, bits in plain], KeyKind.FLOAT
        else:
            self._kind = KeyKind.OBJECT
            if kinds == {str} and len(plain) == len(keys) and self._try_texts(keys) is not None:
                return True
            self._objects.update(zip(keys, range(len(keys)), strict=True))
            self._are_plain = kinds == {str}
            return int not in kinds
        try:
            self._numbers.add(np.array(values, np.int64))
        except OverflowError:
            return False
        if len(plain) < len(keys):
            self._null_slot = keys.index(None)
        return True

    def slots(self, column: Column) -> SlotArray | None:
        """The slot of each key; None if the values are of another kind than the keys before, or cannot be keys."""
        return self.visit(column)

    def visit_coded(self, column: CodedColumn) -> SlotArray | None:
        """Look up each code in an array of slots that is kept for its table of names."""
        return self._of_codes(column.codes, column.names.names, self._table(column.names))

    def visit_constant(self, column: ConstantColumn) -> SlotArray | None:
        """Look up the one value."""
        slots = self._of_values([column.value])
        return None if slots is None else np.full(len(column), slots[0], np.intp)

    def visit_list(self, column: ListColumn) -> SlotArray | None:
        """Look up the values one by one, or as numbers or texts if they are all of one type."""
        return self._of_values(column.values, column.value_type)

    def _is_of(self, kind: KeyKind) -> bool:
        if self._kind is None:
            self._kind = kind
        return self._kind is kind

    # -- numbers

    def visit_any(self, column: Column) -> SlotArray | None:
        """Look up numbers as an array of 64 bits, other values one by one; instants only from a column of keys."""
        numbers = column.numbers()
        if numbers is None:
            return self._of_values(column.to_list())
        if numbers.kind.is_instant and not self._allows_null:
            return None
        if numbers.array.dtype == np.float64:
            bits = numbers.array.view(np.int64)
            is_nan = np.isnan(numbers.array)
            return self._of_wide(
                numbers, np.where(is_nan, _CANONICAL_NAN, bits) if is_nan.any() else bits, KeyKind.FLOAT
            )
        return self._of_wide(numbers, numbers.array, KeyKind.INT)

    def _of_wide(self, numbers: Numbers, keys: NDArray[np.int64], kind: KeyKind) -> SlotArray | None:
        if not self._is_of(kind):
            return None
        if numbers.is_valid is None:
            return self._past_null(self._numbers.add(keys))
        return self._with_nulls(keys, numbers.is_valid)

    def _with_nulls(self, keys: NDArray[np.int64], is_valid: NDArray[np.bool_]) -> SlotArray:
        num_before = self._numbers.num_codes
        slots = np.empty(len(keys), np.intp)
        codes = self._numbers.add(keys[is_valid])
        if self._null_slot is None:
            # The slot of the first null comes after those of the keys seen before it.
            seen = codes[: int(is_valid.argmin())]
            self._null_slot = max(num_before, int(seen.max(initial=-1)) + 1)
        slots[is_valid] = self._past_null(codes)
        slots[~is_valid] = self._null_slot
        return slots

    def _past_null(self, codes: SlotArray) -> SlotArray:
        if self._null_slot is not None:
            codes += codes >= self._null_slot
        return codes

    # -- other values

    def _of_values(self, values: list[Any], value_type: type | None = None) -> SlotArray | None:
        kind = value_type or exact_type(values)
        if kind is int:
            try:
                return self.visit_any(ArrayColumn(np.fromiter(values, np.int64, len(values))))
            except OverflowError:
                return None  # there would be keys of both kinds
        if kind is float:
            return self.visit_any(ArrayColumn(np.fromiter(values, np.float64, len(values))))
        kinds = set(map(type, values))
        if kinds == {type(None)} and self._allows_null and self._kind is not KeyKind.OBJECT:
            if self._null_slot is None:  # ``_kind`` stays: None does not tell the kind of the other keys
                self._null_slot = self._numbers.num_codes
            return np.full(len(values), self._null_slot, np.intp)
        are_numbers = int in kinds or (self._allows_null and not kinds.isdisjoint(_INSTANTS))
        if are_numbers or not self._are_objects():
            return None
        slots = self._try_texts(values) if kind is str else None
        if slots is not None:
            return slots
        if self._texts is not None:
            self._objects.update(zip(self._texts.texts(), range(self._texts.num_codes), strict=True))
            self._texts = None
        try:
            exact = exact_keys(values)
        except KeyTypeError:
            return None
        # Two datetimes without a time zone can be one key and differ in ``fold``.
        self._are_plain = self._are_plain and exact is values and datetime.datetime not in kinds
        return np.fromiter(map(self._objects.__getitem__, exact), np.intp, len(values))

    def _are_objects(self) -> bool:
        is_new = self._kind is None
        if not self._is_of(KeyKind.OBJECT):
            return False
        if is_new and self._null_slot is not None:  # the only key so far
            self._objects[exact_key(None)], self._null_slot = self._null_slot, None
        return True

    def visit_short_texts(self, column: ShortTextColumn) -> SlotArray | None:
        """Look up texts of up to 16 bytes by their packed form; by their values if the index has other objects."""
        if self._objects or not self._are_objects():
            return self._of_values(column.to_list(), str)
        if self._texts is None:
            self._texts = TextCodes()
        return self._texts.add(column.packed16)

    def _try_texts(self, values: list[str]) -> SlotArray | None:
        """The slots, if these texts and all keys before are short texts; None: the texts must become objects."""
        if self._objects or (self._texts is None and len(values) < _MIN_TEXTS):
            return None
        short = try_short_texts(values)
        return None if short is None else self.visit_short_texts(short)

    # -- codes

    def _table(self, names: NameTable) -> SlotArray:
        """The slot of each code of the table, -1 for codes that were not used so far."""
        if self._tables is None:
            self._tables = WeakKeyDictionary()
        remap = self._tables.get(names)
        if remap is not None and len(remap) == len(names):
            return remap
        known = _unknown(0) if remap is None else remap
        self._tables[names] = remap = np.concatenate((known, _unknown(len(names) - len(known))))
        return remap

    def _of_codes(self, codes: NDArray[Any], names: list[Any], remap: SlotArray) -> SlotArray | None:
        slots: SlotArray = remap.take(codes)
        if slots.min(initial=0) != _UNKNOWN:
            return slots
        # Only names that occur are keys: others may belong to records that a filter dropped.  In order of first sight,
        # as slots are given; there are few of them mostly.
        fresh = np.array([*dict.fromkeys(codes[slots == _UNKNOWN].tolist())], np.intp)
        added = self._of_values([names[code] for code in fresh.tolist()])
        if added is None:
            return None
        remap[fresh] = added
        return remap.take(codes)

    def visit_arrow(self, column: ArrowColumn) -> SlotArray | None:
        """Look up texts and dictionaries by their distinct names, other columns as ``visit_any`` does."""
        import pyarrow as pa

        array, kinds, kind = column.array, pa.types, column.array.type
        if kinds.is_timestamp(kind):
            if kind.unit == "ns":
                return None
            return self.visit_any(ArrowColumn(array.cast(pa.timestamp("us", kind.tz))))
        if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind):
            array = array.dictionary_encode()
            if not array.indices.null_count:
                # All names occur, in order of first sight: looking for the first row of each would cost half of the
                # time.
                added = self._of_values(array.dictionary.to_pylist())
                return None if added is None else added.take(array.indices.to_numpy())
        elif not kinds.is_dictionary(kind):
            return self.visit_any(column)
        names = array.dictionary.to_pylist()
        indices = array.indices
        if indices.null_count:
            indices = indices.cast(pa.int64()).fill_null(len(names))
            names.append(None)
        return self._of_codes(indices.to_numpy(zero_copy_only=False), names, _unknown(len(names)))


def _unknown(num_codes: int) -> SlotArray:
    return np.full(num_codes, _UNKNOWN, np.intp)
