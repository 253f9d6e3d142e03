"""The rows of a chunk by key, sorted once for every aggregation; and the values of one field, one per slot.

Hot path, per chunk.  A stable sort of 16-bit codes is a radix sort, 5 to 10 ns per row.  numpy merges wider integers,
54 to 85 ns, so these are sorted by halves, or digits of 16 bits (``bench shuffle-columnar``).  Stored numbers are in
arrays; all else in a list, which is read as a dictionary with slots as codes, without a copy.

Side:       pure.
Invariants: ``order`` lists rows group by group, in the order of their codes; rows of one group keep their order.
            Reading a store returns exactly the stored values, with their types.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import ArrayColumn, CodedColumn, Column, ListColumn, NameTable
from flowlet.keys.key_index import grown
from netstack.late import dataclass

IndexArray = NDArray[np.intp]

_DIGIT_BITS: Final = 16
_MIN_RADIX: Final = 1024  # fewer are sorted by comparisons; not measured closely


def stable_order(values: NDArray[Any]) -> IndexArray | None:
    """The places of integers of any width in rising order, equal ones in the order of their places; None if they are in
    it already.
    """
    if len(values) < 2 or bool((values[1:] >= values[:-1]).all()):
        return None
    if len(values) < _MIN_RADIX:
        return values.argsort(kind="stable")
    low, high = int(values.min()), int(values.max())
    # Modulo 2**64 the differences are right, whether the integers have signs or not.
    offsets = values.astype(np.int64, copy=False).view(np.uint64) - np.uint64(low & (1 << 64) - 1)
    return order_by_digits(offsets, -(-(high - low).bit_length() // _DIGIT_BITS))


def order_by_digits(values: NDArray[Any], num_digits: int) -> IndexArray:
    """The places of unsigned integers in rising order of their lowest ``num_digits`` digits of 16
    bits; at least one.
    """
    order: IndexArray = values.astype(np.uint16).argsort(kind="stable")
    for digit in range(1, num_digits):
        upper = (values >> values.dtype.type(digit * _DIGIT_BITS)).astype(np.uint16).take(order)
        order = order.take(upper.argsort(kind="stable"))
    return order


_MAX_HALF: Final = 1 << 16
# Counting reads and writes one place per possible code; with more codes per row than this, searching the borders is
# cheaper.  Not measured closely.
_MAX_CODES_PER_ROW: Final = 2


@dataclass(frozen=True, slots=True)
class Grouping:
    """Which rows belong to which key.

    ``order``: row numbers, sorted by code.  ``codes``: those that occur, ascending.  ``starts``, ``lengths``: of each
        code's run in
    ``order``.
    """

    order: IndexArray
    codes: IndexArray
    starts: IndexArray
    lengths: IndexArray

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def ends(self) -> IndexArray:
        """The end of each group, exclusive, as a position in ``order``."""
        return self.starts + self.lengths

    def sorted(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values group by group."""
        return values.take(self.order)

    def unsorted(self, values: NDArray[Any]) -> NDArray[Any]:
        """The inverse of ``sorted``."""
        rows = np.empty_like(values)
        rows[self.order] = values
        return rows

    def spread(self, of_groups: NDArray[Any]) -> NDArray[Any]:
        """One value per group, repeated for each of its rows, group by group."""
        return np.repeat(of_groups, self.lengths)


def group(codes: NDArray[Any], num_codes: int) -> Grouping:
    """Group rows by code; all codes are below ``num_codes``."""
    if num_codes <= _MAX_HALF:
        order = codes.astype(np.uint16, copy=False).argsort(kind="stable")
    else:
        order = order_by_digits(codes.astype(np.uint32, copy=False), 2)
    if num_codes <= max(_MAX_CODES_PER_ROW * len(codes), _MAX_CODES_PER_ROW):
        counts = np.bincount(codes, minlength=num_codes)
        present = counts.nonzero()[0]
        lengths = counts[present]
        return Grouping(order, present, lengths.cumsum() - lengths, lengths)
    in_order = codes.take(order)
    is_start = np.empty(len(codes), np.bool_)
    is_start[:1] = True
    np.not_equal(in_order[1:], in_order[:-1], out=is_start[1:])
    starts = is_start.nonzero()[0]
    return Grouping(order, in_order.take(starts).astype(np.intp), starts, np.diff(starts, append=len(codes)))


def first_rows(slots: NDArray[Any], first_slot: int, end_slot: int) -> IndexArray:
    """The first row of each slot from ``first_slot`` to ``end_slot``; all of them are there."""
    rows = np.flatnonzero(slots >= first_slot)[::-1]
    first_row = np.empty(end_slot - first_slot, np.intp)
    # If several rows write to one slot, the last one stays; in reverse order that is the first.
    first_row[slots.take(rows) - first_slot] = rows
    return first_row


_MAX_NARROW_CODES = 1 << 16


class FieldStore:
    """The values of one field by slot: plain numbers in an array, all else in a list.

    Args:
        column: says what is stored.
        is_replaced: whether values are replaced; else columns share the list, as a dictionary with slots as codes.
    """

    __slots__ = ("_array", "_is_replaced", "_size", "_table")

    def __init__(self, column: Column, *, is_replaced: bool) -> None:
        numbers = None if column.may_have_nulls else _plain_numbers(column)  # a later chunk may have nulls
        self._array = None if numbers is None else np.empty(0, numbers.dtype)  # None: the values are in the table
        self._size = 0  # of the array
        self._table = NameTable()
        self._is_replaced = is_replaced

    def append(self, column: Column) -> None:
        """Add the values of the next slots."""
        numbers = self._numbers(column)
        if self._array is None or numbers is None:
            self._objects().extend(column.to_list())
            return
        self._array = grown(self._array, self._size + len(numbers), 0)
        self._array[self._size : self._size + len(numbers)] = numbers
        self._size += len(numbers)

    def take(self, slots: NDArray[Any]) -> Column:
        """The values of these slots."""
        if self._array is not None:
            return ArrayColumn(self._array.take(slots))
        if self._is_replaced:
            return ListColumn(list(map(self._table.names.__getitem__, slots.tolist())))
        return CodedColumn(slots.astype(np.uint16 if len(self._table) <= _MAX_NARROW_CODES else np.uint32), self._table)

    def take_either(self, column: Column, slots: IndexArray, sources: IndexArray) -> Column:
        """Per source, a row of the column if it is below the column's length, else the value of slot ``slots[source -
        length]``.
        """
        numbers = self._numbers(column)
        if self._array is None or numbers is None:
            values = column.to_list() + self.take(slots).to_list()
            return ListColumn(list(map(values.__getitem__, sources.tolist())))
        return ArrayColumn(np.concatenate((numbers, self._array.take(slots))).take(sources))

    def replace(self, slots: IndexArray, column: Column) -> None:
        """Replace the values of slots, each of which occurs once."""
        numbers = self._numbers(column)
        if self._array is None or numbers is None:
            values = self._objects()
            for slot, value in zip(slots.tolist(), column.to_list(), strict=True):
                values[slot] = value
        else:
            self._array[slots] = numbers

    def column(self) -> Column:
        """All values; nobody changes it."""
        if self._array is None:
            return ListColumn(self._table.names.copy())
        return ArrayColumn(self._array[: self._size].copy())

    def _objects(self) -> list[Any]:
        """The list, into which the numbers go if there are any."""
        if self._array is not None:
            self._table.names = self.column().to_list()
            self._array = None
        return self._table.names

    def _numbers(self, column: Column) -> NDArray[Any] | None:
        """The numbers of a column, if they can be stored beside the others."""
        numbers = None if self._array is None else _plain_numbers(column)
        return None if numbers is None or self._array is None or numbers.dtype != self._array.dtype else numbers


def _plain_numbers(column: Column) -> NDArray[Any] | None:
    """The numbers of a column without nulls; None: it has others, or instants."""
    numbers = column.numbers()
    is_plain = numbers is not None and numbers.is_valid is None and not numbers.kind.is_instant
    return numbers.array if numbers is not None and is_plain else None
