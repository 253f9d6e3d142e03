"""Maps a column of keys to the slots of their state.

Hot path.  Dictionary codes are looked up in an array per table of names; integers and short texts in a hash table in
numpy; Arrow's texts once per distinct one; all else in a dictionary (``bench shuffle``, ``bench shuffle-columnar``).
Side:       pure.
Invariants: slots are 0, 1, 2, ... in the order in which keys were first seen.  Two keys share a slot exactly if they
            are the same key (``flowlet.keys.exact_keys``).  All keys of an index are of one kind; a column of another
            kind is refused.
"""

import datetime
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
from flowlet.columns.inspection import exact_type
from flowlet.columns.numbers import Numbers
from flowlet.columns.short_text_column import try_short_texts
from flowlet.errors import KeyTypeError
from flowlet.kernels.key_codes import Int64Codes, TextCodes
from flowlet.keys.exact_keys import exact_key, exact_keys

SlotArray = NDArray[np.intp]


_CANONICAL_NAN: Final = 0x7FF8 << 48
_UNKNOWN: Final = -1
_MIN_TEXTS: Final = 256  # fewer are faster in a dictionary; not measured closely
_FLOAT_FIELDS: Final = 2  # the exact key of a float has its type and its bits
_INSTANTS: Final = frozenset({datetime.datetime, datetime.date})


class KeyKind(Enum):
    """What kind all keys of an index are."""

    INT = "int"
    FLOAT = "float"
    OBJECT = "object"


class Slots(dict[Any, int]):
    """Exact key -> slot; a new key gets the next one."""

    __slots__ = ()

    def __missing__(self, key: Any) -> int:
        self[key] = slot = len(self)
        return slot


class SlotIndex(ColumnVisitor[SlotArray | None]):
    """Key -> slot; grows, and never removes a key.

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
        return f"<SlotIndex of {self.num_slots} keys>"

    def close(self) -> None:
        """Let its memory go at once; nothing is called afterwards."""
        self._numbers.close()

    @property
    def num_slots(self) -> int:
        """The number of keys."""
        num_texts = 0 if self._texts is None else self._texts.num_codes
        return len(self._objects) + num_texts + self._numbers.num_codes + (self._null_slot is not None)

    @property
    def are_plain(self) -> bool:
        """Whether keys with the same slot are bitwise equal, so that any of them may stand for the first one."""
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
        """The slot of each key; None if they are of another kind than the keys before, or cannot be keys."""
        return column.accept(self)

    def visit_any(self, column: Column) -> SlotArray | None:
        """By numbers, if they are; else by values."""
        return self._of_numbers(column)

    def visit_coded(self, column: CodedColumn) -> SlotArray | None:
        """By what is known of each code of the table."""
        return self._of_codes(column.codes, column.names.names, self._table(column.names))

    def visit_constant(self, column: ConstantColumn) -> SlotArray | None:
        """One look at the value."""
        slots = self._of_values([column.value])
        return None if slots is None else np.full(len(column), slots[0], np.intp)

    def visit_short_texts(self, column: ShortTextColumn) -> SlotArray | None:
        """By their bytes."""
        return self._of_texts(column)

    def visit_list(self, column: ListColumn) -> SlotArray | None:
        """By values."""
        return self._of_values(column.values, column.value_type)

    def visit_arrow(self, column: ArrowColumn) -> SlotArray | None:
        """Texts once per distinct one."""
        return self._of_arrow(column.array)

    def _is_of(self, kind: KeyKind) -> bool:
        if self._kind is None:
            self._kind = kind
        return self._kind is kind

    # -- numbers

    def _of_numbers(self, column: Column) -> SlotArray | None:
        numbers = column.numbers()
        if numbers is None:
            return self._of_values(column.to_list())
        if numbers.kind.is_instant and not self._allows_null:
            return None
        if numbers.array.dtype == np.float64:
            return self._of_wide(numbers, _float_bits(numbers.array), KeyKind.FLOAT)
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

    def _of_nulls(self, num_keys: int) -> SlotArray:
        """Of a chunk without another key, which does not tell of what kind the others are."""
        if self._null_slot is None:
            self._null_slot = self._numbers.num_codes
        return np.full(num_keys, self._null_slot, np.intp)

    def _past_null(self, codes: SlotArray) -> SlotArray:
        if self._null_slot is not None:
            codes += codes >= self._null_slot
        return codes

    # -- anything else

    def _of_values(self, values: list[Any], value_type: type | None = None) -> SlotArray | None:
        kind = value_type or exact_type(values)
        if kind is int:
            try:
                return self._of_numbers(ArrayColumn(np.fromiter(values, np.int64, len(values))))
            except OverflowError:
                return None  # there would be keys of both kinds
        if kind is float:
            return self._of_numbers(ArrayColumn(np.fromiter(values, np.float64, len(values))))
        kinds = set(map(type, values))
        if kinds == {type(None)} and self._allows_null and self._kind is not KeyKind.OBJECT:
            return self._of_nulls(len(values))
        are_numbers = int in kinds or (self._allows_null and not kinds.isdisjoint(_INSTANTS))
        if are_numbers or not self._are_objects():
            return None
        slots = self._try_texts(values) if kind is str else None
        if slots is not None:
            return slots
        self._leave_texts()
        try:
            exact = exact_keys(values)
        except KeyTypeError:
            return None
        # Two datetimes without a time zone can be the same key and differ in ``fold``.
        self._are_plain = self._are_plain and exact is values and datetime.datetime not in kinds
        return np.fromiter(map(self._objects.__getitem__, exact), np.intp, len(values))

    def _are_objects(self) -> bool:
        is_new = self._kind is None
        if not self._is_of(KeyKind.OBJECT):
            return False
        if is_new and self._null_slot is not None:  # the only key so far
            self._objects[exact_key(None)], self._null_slot = self._null_slot, None
        return True

    def _of_texts(self, column: ShortTextColumn) -> SlotArray | None:
        if self._objects or not self._are_objects():
            return self._of_values(column.to_list(), str)
        if self._texts is None:
            self._texts = TextCodes()
        return self._texts.add(column.packed16)

    def _try_texts(self, values: list[str]) -> SlotArray | None:
        """The slots if all texts, now and before, are short; None: they must become objects."""
        if self._objects or (self._texts is None and len(values) < _MIN_TEXTS):
            return None
        short = try_short_texts(values)
        return None if short is None else self._of_texts(short)

    def _leave_texts(self) -> None:
        if self._texts is not None:
            self._objects.update(zip(self._texts.texts(), range(self._texts.num_codes), strict=True))
            self._texts = None

    # -- codes

    def _table(self, names: NameTable) -> SlotArray:
        """Code -> slot, -1 for codes not used so far; as long as the table."""
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
        # Only names that occur are keys: others may belong to records that a filter dropped.
        fresh = _firsts(codes[slots == _UNKNOWN])
        added = self._of_values([names[code] for code in fresh.tolist()])
        if added is None:
            return None
        remap[fresh] = added
        return remap.take(codes)

    def _of_arrow(self, array: Any) -> SlotArray | None:
        import pyarrow as pa

        kinds, kind = pa.types, array.type
        if kinds.is_timestamp(kind):
            if kind.unit == "ns":
                return None
            return self._of_numbers(ArrowColumn(array.cast(pa.timestamp("us", kind.tz))))
        if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind):
            array = array.dictionary_encode()
            if not array.indices.null_count:
                # All names occur, in order of first sight: looking for the first row of each would cost half of the
                # time.
                added = self._of_values(array.dictionary.to_pylist())
                return None if added is None else added.take(array.indices.to_numpy())
        elif not kinds.is_dictionary(kind):
            return self._of_numbers(ArrowColumn(array))
        names = array.dictionary.to_pylist()
        indices = array.indices
        if indices.null_count:
            indices = indices.cast(pa.int64()).fill_null(len(names))
            names.append(None)
        return self._of_codes(indices.to_numpy(zero_copy_only=False), names, _unknown(len(names)))


def _unknown(num_codes: int) -> SlotArray:
    return np.full(num_codes, _UNKNOWN, np.intp)


def _firsts(codes: NDArray[Any]) -> NDArray[np.intp]:
    """The distinct codes in order of first sight; usually few."""
    return np.array([*dict.fromkeys(codes.tolist())], np.intp)


def _float_bits(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The bits of floats, the same for every NaN."""
    bits: NDArray[np.int64] = values.view(np.int64)
    is_nan = np.isnan(values)
    return np.where(is_nan, _CANONICAL_NAN, bits) if is_nan.any() else bits
