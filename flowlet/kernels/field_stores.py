"""The values of one field, one per slot.

Hot path, per chunk: numbers in arrays; all else in a list, which is read as a dictionary with slots as codes, without a
copy.
Side:       pure.
Invariants: reading returns exactly the stored values, with their types.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import ArrayColumn, CodedColumn, Column, ListColumn, NameTable
from flowlet.kernels.grouping import IndexArray

_MAX_NARROW_CODES = 1 << 16
_MIN_CAPACITY = 1_024


def grown(array: NDArray[Any], num_slots: int, filler: Any) -> NDArray[Any]:
    """The array with room for ``num_slots`` slots: itself, or a longer copy."""
    if num_slots <= len(array):
        return array
    longer = np.full(max(num_slots, 2 * len(array), _MIN_CAPACITY), filler, array.dtype)
    longer[: len(array)] = array
    return longer


class FieldStore(Protocol):
    """The values of one field by slot."""

    def append(self, column: Column) -> "FieldStore":
        """Add the values of the next slots; returns the store to use from now on."""

    def take(self, slots: NDArray[Any]) -> Column:
        """The values of these slots."""

    def take_either(self, column: Column, slots: IndexArray, sources: IndexArray) -> Column:
        """Per source, a row of the column if it is below the column's length, else the value of slot ``slots[source -
        length]``.
        """

    def replace(self, slots: IndexArray, column: Column) -> "FieldStore":
        """Replace the values of slots, each of which occurs once; returns the store to use from now on."""

    def column(self) -> Column:
        """All values; nobody changes it."""


class NumberStore:
    """Values of int64 or float64 (``dtype``), and ints of narrower types; ``is_replaced`` says whether values are
    replaced.
    """

    __slots__ = ("_array", "_is_replaced", "_size")

    def __init__(self, dtype: "np.dtype[Any]", *, is_replaced: bool) -> None:
        self._array = np.empty(0, dtype)
        self._is_replaced = is_replaced
        self._size = 0

    def append(self, column: Column) -> FieldStore:
        """See ``FieldStore``."""
        array = self._numbers(column)
        if array is None:
            return self._as_objects().append(column)
        self._array = grown(self._array, self._size + len(array), 0)
        self._array[self._size : self._size + len(array)] = array
        self._size += len(array)
        return self

    def take(self, slots: NDArray[Any]) -> Column:
        """See ``FieldStore``."""
        return ArrayColumn(self._array.take(slots))

    def take_either(self, column: Column, slots: IndexArray, sources: IndexArray) -> Column:
        """See ``FieldStore``."""
        array = self._numbers(column)
        if array is None:
            return _either(column, self.take(slots), sources)
        return ArrayColumn(np.concatenate((array, self._array.take(slots))).take(sources))

    def replace(self, slots: IndexArray, column: Column) -> FieldStore:
        """See ``FieldStore``."""
        array = self._numbers(column)
        if array is None:
            return self._as_objects().replace(slots, column)
        self._array[slots] = array
        return self

    def column(self) -> Column:
        """See ``FieldStore``."""
        return ArrayColumn(self._array[: self._size].copy())

    def _as_objects(self) -> FieldStore:
        store: FieldStore = ReplacedObjectStore() if self._is_replaced else ObjectStore()
        return store.append(self.column())

    def _numbers(self, column: Column) -> NDArray[Any] | None:
        numbers = column.numbers()
        if (
            numbers is None
            or numbers.is_valid is not None
            or numbers.kind.is_instant
            or numbers.array.dtype != self._array.dtype
        ):
            return None
        return numbers.array


class ObjectStore:
    """Any values, rarely replaced: what is read shares them with the store."""

    __slots__ = ("_table",)

    def __init__(self) -> None:
        self._table = NameTable()

    def append(self, column: Column) -> FieldStore:
        """See ``FieldStore``."""
        self._table.names.extend(column.to_list())
        return self

    def take(self, slots: NDArray[Any]) -> Column:
        """See ``FieldStore``."""
        return CodedColumn(slots.astype(np.uint16 if len(self._table) <= _MAX_NARROW_CODES else np.uint32), self._table)

    def take_either(self, column: Column, slots: IndexArray, sources: IndexArray) -> Column:
        """See ``FieldStore``."""
        return _either(column, self.take(slots), sources)

    def replace(self, slots: IndexArray, column: Column) -> FieldStore:
        """See ``FieldStore``; columns read before keep the old values."""
        return ReplacedObjectStore(self._table.names.copy()).replace(slots, column)

    def column(self) -> Column:
        """See ``FieldStore``."""
        return ListColumn(self._table.names.copy())


class ReplacedObjectStore:
    """Any values that are often replaced."""

    __slots__ = ("_values",)

    def __init__(self, values: list[Any] | None = None) -> None:
        self._values: list[Any] = [] if values is None else values

    def append(self, column: Column) -> FieldStore:
        """See ``FieldStore``."""
        self._values.extend(column.to_list())
        return self

    def take(self, slots: NDArray[Any]) -> Column:
        """See ``FieldStore``."""
        return ListColumn(list(map(self._values.__getitem__, slots.tolist())))

    def take_either(self, column: Column, slots: IndexArray, sources: IndexArray) -> Column:
        """See ``FieldStore``."""
        return _either(column, self.take(slots), sources)

    def replace(self, slots: IndexArray, column: Column) -> FieldStore:
        """See ``FieldStore``."""
        for slot, value in zip(slots.tolist(), column.to_list(), strict=True):
            self._values[slot] = value
        return self

    def column(self) -> Column:
        """See ``FieldStore``."""
        return ListColumn(self._values.copy())


def store_for(column: Column, *, is_replaced: bool) -> FieldStore:
    """An empty store that suits the column."""
    numbers = None if column.may_have_nulls else column.numbers()  # a later chunk may have nulls
    if numbers is None or numbers.is_valid is not None or numbers.kind.is_instant:
        return ReplacedObjectStore() if is_replaced else ObjectStore()
    return NumberStore(numbers.array.dtype, is_replaced=is_replaced)


def _either(column: Column, others: Column, sources: IndexArray) -> Column:
    values = column.to_list() + others.to_list()
    return ListColumn(list(map(values.__getitem__, sources.tolist())))
