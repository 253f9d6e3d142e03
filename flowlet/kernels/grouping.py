"""The rows of a chunk by key, sorted once for every aggregation; the values of one field, one per slot; sums and
extremes per slot, in numpy arrays, and the running results per key and row.

Hot path, per chunk.  A stable sort of 16-bit codes is a radix sort, 5 to 10 ns per row.  numpy merges wider integers,
54 to 85 ns, so these are sorted by halves, or digits of 16 bits (``bench shuffle-columnar``).  Stored numbers are in
arrays; all else in a list, which is read as a dictionary with slots as codes, without a copy.  Exact sums of int64 are
one cumulative sum over all groups, 12 ns per row with the sort.  Operations that must run one after the other (on
floats, extremes) use ``accumulate``: long groups one by one, short groups many at once.

Side:       pure.
Invariants: ``order`` lists rows group by group, in the order of their codes; rows of one group keep their order.
            Reading a store returns exactly the stored values, with their types.  ``Int64Bound.fits`` may refuse sums
            that would fit; it never accepts one that does not.  A call that returns None, because the arrays cannot
            compute the result exactly, changed nothing.  Results equal those of a loop over the rows with a dictionary
            by key.  Floats are added in the order of their rows.
Units:      running results are in the order of ``Grouping.order``; there is one initial value per group.
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
    """The positions of integers of any width in rising order, a stable sort; None if they are in that order already."""
    if len(values) < 2 or bool((values[1:] >= values[:-1]).all()):
        return None
    if len(values) < _MIN_RADIX:
        return values.argsort(kind="stable")
    low, high = int(values.min()), int(values.max())
    # Modulo 2**64 the differences are right, whether the integers have signs or not.
    offsets = values.astype(np.int64, copy=False).view(np.uint64) - np.uint64(low & (1 << 64) - 1)
    return order_by_digits(offsets, -(-(high - low).bit_length() // _DIGIT_BITS))


def order_by_digits(values: NDArray[Any], num_digits: int) -> IndexArray:
    """The positions of unsigned integers in rising order of their lowest ``num_digits`` digits of 16 bits, a stable
    sort; at least one digit.
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
    """The rows of a chunk, grouped by the code of their key.

    ``order``: row numbers, sorted by code.  ``codes``: the codes that occur, ascending.  ``starts``, ``lengths``: of
        the run in ``order`` of each of ``codes``.
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
    # A slice, because there may be no rows.
    is_start[:1] = True
    np.not_equal(in_order[1:], in_order[:-1], out=is_start[1:])
    starts = is_start.nonzero()[0]
    return Grouping(order, in_order.take(starts).astype(np.intp), starts, np.diff(starts, append=len(codes)))


def first_rows(slots: NDArray[Any], first_slot: int, end_slot: int) -> IndexArray:
    """The first row of each slot from ``first_slot`` to before ``end_slot``; all these slots must occur."""
    rows = np.flatnonzero(slots >= first_slot)[::-1]
    first_row = np.empty(end_slot - first_slot, np.intp)
    # If several rows write to one slot, the last one stays; in reverse order that is the first.
    first_row[slots.take(rows) - first_slot] = rows
    return first_row


_MAX_NARROW_CODES = 1 << 16


class FieldStore:
    """The values of one field by slot: plain numbers in an array, all else in a list.

    Args:
        column: its values are not stored, but decide between array and list.
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
        """Replace the values of slots; each slot occurs once."""
        numbers = self._numbers(column)
        if self._array is None or numbers is None:
            values = self._objects()
            for slot, value in zip(slots.tolist(), column.to_list(), strict=True):
                values[slot] = value
        else:
            self._array[slots] = numbers

    def column(self) -> Column:
        """A copy of all values."""
        if self._array is None:
            return ListColumn(self._table.names.copy())
        return ArrayColumn(self._array[: self._size].copy())

    def _objects(self) -> list[Any]:
        """The list of values; numbers in the array move into it first."""
        if self._array is not None:
            self._table.names = self.column().to_list()
            self._array = None
        return self._table.names

    def _numbers(self, column: Column) -> NDArray[Any] | None:
        """The numbers of a column, if they can be stored beside the others."""
        numbers = None if self._array is None else _plain_numbers(column)
        return None if numbers is None or self._array is None or numbers.dtype != self._array.dtype else numbers


def _plain_numbers(column: Column) -> NDArray[Any] | None:
    """The numbers of a column without nulls; None: it has nulls, instants, or values that are no numbers."""
    numbers = column.numbers()
    is_plain = numbers is not None and numbers.is_valid is None and not numbers.kind.is_instant
    return numbers.array if numbers is not None and is_plain else None


_LIMIT: Final = 2**63 - 1
# Float sums of magnitudes are off by far less than this.
_SAFE_LIMIT: Final = float(2**63) * (1 - 2**-20)


class Int64Bound:
    """An upper bound for the magnitude of all running sums."""

    __slots__ = ("_bound",)

    def __init__(self, sums: NDArray[np.int64]) -> None:
        self._bound = magnitude(sums)

    def raise_to(self, largest: int) -> None:
        """Raise the bound for other sums, of at most this magnitude."""
        self._bound = max(self._bound, largest)

    def fits_loosely(self, values: NDArray[np.int64]) -> bool:
        """Whether their maximum alone shows that the values can be added; if so, they count as added."""
        return self._grows(magnitude(values) * len(values))

    def fits(self, grouping: Grouping, values: NDArray[np.int64], sums: NDArray[np.int64]) -> bool:
        """Whether the values can be added; if so, they count as added.

        ``values`` are in the order of the rows; ``sums`` are the sums of all keys before these rows, by code.
        """
        # The bound grew by the worst case of each chunk; the sums may be far below it, or may have fallen.
        self._bound = magnitude(sums)
        return self._grows(magnitude(values) * int(grouping.lengths.max())) or self._fit_closely(grouping, values, sums)

    def _grows(self, by: int) -> bool:
        if self._bound + by > _LIMIT:
            return False
        self._bound += by
        return True

    def _fit_closely(self, grouping: Grouping, values: NDArray[np.int64], sums: NDArray[np.int64]) -> bool:
        magnitudes = np.abs(values.astype(np.float64)).take(grouping.order)
        largest = np.add.reduceat(magnitudes, grouping.starts) + np.abs(sums[grouping.codes].astype(np.float64))
        if not (largest < _SAFE_LIMIT).all():
            return False
        self._bound = _LIMIT  # computed again before the next sum
        return True


def magnitude(values: NDArray[np.int64]) -> int:
    """The largest absolute value; 0 if there are no values."""
    if not len(values):
        return 0
    # Numbers of Python: no int64 holds the magnitude of its smallest number.
    return max(int(values.max()), -int(values.min()))


_NEGATIVE_ZERO_BITS: Final = -(2**63)
_NO_ROW: Final = -1
# For few slots, sorting the rows costs less than comparing all of them.  Not measured closely.
_MIN_ROWS_PER_SLOT: Final = 8


class Accumulator:
    """One number per slot, combined exactly.

    Args:
        dtype: int64 or float64.
        ufunc: combines two numbers.
        identity: combining it with a number gives that number.
    """

    def __init__(self, dtype: "np.dtype[Any]", ufunc: np.ufunc, identity: Any) -> None:
        self._is_int = dtype == np.int64
        self._ufunc = ufunc
        self.identity = identity
        self._results = np.empty(0, dtype)

    def takes(self, values: NDArray[Any]) -> bool:
        """Whether values of this dtype can be combined exactly."""
        return bool(values.dtype == self._results.dtype)

    def grow(self, num_slots: int) -> None:
        """Make room for ``num_slots`` slots; call before they are used."""
        self._results = grown(self._results, num_slots, self.identity)

    def advance(self, grouping: Grouping, values: NDArray[Any]) -> NDArray[Any] | None:
        """Combine all values; returns the result after each row, or None if it would not be exact."""
        results = accumulate(self._ufunc, grouping, grouping.sorted(values), self._results.take(grouping.codes))
        self._results[grouping.codes] = results.take(grouping.ends - 1)
        return results

    def advance_once(self, slots: NDArray[Any], values: NDArray[Any]) -> bool:
        """Combine all values without running results; False: the result would not be exact, and no value was added."""
        # Fast only for exactly these dtypes (hot-path measurements, 2).  Takes one value after the other, so sums of
        # floats are exact.
        with np.errstate(over="ignore", invalid="ignore"):
            self._ufunc.at(self._results, slots.astype(np.intp, copy=False), values)
        return True

    def at(self, slots: NDArray[Any]) -> NDArray[Any]:
        """The result of each of these slots."""
        return self._results.take(slots)

    def load(self, first: int, values: NDArray[Any]) -> None:
        """Take over these results, for slots ``first``, ``first`` + 1, ..., which are the last ones."""
        self.grow(first + len(values))
        self._results[first : first + len(values)] = values


class SumAccumulator(Accumulator):
    """Exact sums of int64; sums of float64 in the order of the rows.  ``dtype`` is one of the two."""

    def __init__(self, dtype: "np.dtype[Any]") -> None:
        # Not 0.0, because 0.0 + -0.0 is 0.0.
        super().__init__(dtype, np.add, 0 if dtype == np.int64 else -0.0)
        self._bound = Int64Bound(self._results)

    def advance(self, grouping: Grouping, values: NDArray[Any]) -> NDArray[Any] | None:
        """Add all values; returns the sum after each row, or None if an integer sum might not fit 64 bits."""
        if not self._is_int:
            return super().advance(grouping, values)
        if not self._bound.fits_loosely(values) and not self._bound.fits(grouping, values, self._results):
            return None
        initial = self._results.take(grouping.codes)
        results, self._results[grouping.codes] = running_sums(grouping, values, initial)
        return results

    def advance_once(self, slots: NDArray[Any], values: NDArray[Any]) -> bool:
        """Add all values without running sums; False if an integer sum might not fit 64 bits."""
        return (not self._is_int or self._bound.fits_loosely(values)) and super().advance_once(slots, values)

    def load(self, first: int, values: NDArray[Any]) -> None:
        """Take over these sums, and raise the bound for them."""
        super().load(first, values)
        if self._is_int:
            self._bound.raise_to(magnitude(values))


class ExtremeAccumulator(Accumulator):
    """The smallest or largest int64 or float64; refuses floats without a total order (NaN, -0.0).

    ``dtype`` is one of the two; ``is_largest`` says which extreme.
    """

    def __init__(self, dtype: "np.dtype[Any]", *, is_largest: bool) -> None:
        limits = (-(2**63), 2**63 - 1) if dtype == np.int64 else (-np.inf, np.inf)
        super().__init__(dtype, np.maximum if is_largest else np.minimum, limits[not is_largest])

    def takes(self, values: NDArray[Any]) -> bool:
        """Whether the values are of the right dtype, and floats have a total order: no NaN, no -0.0."""
        if self._is_int or not super().takes(values):
            return super().takes(values)
        return not (np.isnan(values).any() or (values.view(np.int64) == _NEGATIVE_ZERO_BITS).any())


class LastRows:
    """Finds the last row of each key; keeps its scratch memory."""

    __slots__ = ("_scratch",)

    def __init__(self) -> None:
        self._scratch = np.empty(0, np.int64)

    def of(self, slots: NDArray[Any], num_slots: int) -> IndexArray:
        """The last row of each key, in the order of the rows."""
        rows = np.arange(len(slots))
        if num_slots > len(self._scratch):
            # Never cleared: each call reads only places that it wrote.  Twice as many, so that a slow growth of keys
            # does not ask for new memory at each chunk.
            self._scratch = np.empty(2 * num_slots, np.int64)
        if num_slots * _MIN_ROWS_PER_SLOT <= len(slots):
            return self._of_few(slots, rows, num_slots)
        # If several rows write to one slot, the last row stays.
        self._scratch[slots] = rows
        is_last: NDArray[np.bool_] = self._scratch.take(slots) == rows
        return is_last.nonzero()[0]

    def _of_few(self, slots: NDArray[Any], rows: IndexArray, num_slots: int) -> IndexArray:
        """The last row of each key, found by a scan of the slots instead of the rows: for few slots."""
        last = self._scratch[:num_slots]
        last.fill(_NO_ROW)
        last[slots] = rows
        found: IndexArray = last[last != _NO_ROW]
        found.sort()
        return found


Int64Array = NDArray[np.int64]
# Groups of at least this length get a call each (1 us); shorter ones share one, as a matrix that is at least half full.
# Not measured closely.
_LONG_GROUP: Final = 64  # a power of two
_FROM_STATE: Final = -1


def running_sums(grouping: Grouping, values: Int64Array, initial: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The sum after each row, and after the last row of each group.

    ``values`` are in the order of the rows; ``initial`` are the sums of the groups before these rows.
    """
    sums: Int64Array = values.take(grouping.order)
    # One sum across all groups: the total before each group is subtracted again, modulo 2**64 if it overflowed.
    sums.cumsum(out=sums)
    last = sums.take(grouping.ends - 1)
    offsets = initial.copy()
    offsets[1:] -= last[:-1]
    sums += grouping.spread(offsets)
    return sums, last + offsets


def accumulate(ufunc: np.ufunc, grouping: Grouping, in_order: NDArray[Any], initial: NDArray[Any]) -> NDArray[Any]:
    """Apply ``ufunc`` to the result so far and the next value, one after the other within each group.

    ``in_order`` are the values, group by group, and are overwritten.  ``initial`` are the results of the groups before
    these rows, of equal type.
    """
    starts, lengths = grouping.starts, grouping.lengths
    # As Python's floats, these become infinite or NaN without a warning.
    with np.errstate(over="ignore", invalid="ignore"):
        in_order[starts] = ufunc(initial, in_order[starts])
        is_long = lengths >= _LONG_GROUP
        for start, end in zip(starts[is_long].tolist(), grouping.ends[is_long].tolist(), strict=True):
            run = in_order[start:end]
            ufunc.accumulate(run, out=run)
        shortest = 2
        while shortest < _LONG_GROUP:
            chosen = ((lengths >= shortest) & (lengths < 2 * shortest)).nonzero()[0]
            if chosen.size:
                _accumulate_short(ufunc, in_order, starts[chosen], lengths[chosen])
            shortest *= 2
    return in_order


def _accumulate_short(ufunc: np.ufunc, in_order: NDArray[Any], starts: IndexArray, lengths: IndexArray) -> None:
    """Process groups of similar lengths as columns of a matrix, padded with each group's last row."""
    steps = np.arange(int(lengths.max()))
    places = starts + np.minimum(steps[:, np.newaxis], lengths - 1)
    matrix = in_order.take(places)
    ufunc.accumulate(matrix, axis=0, out=matrix)
    # Results in the padding are not used.
    is_inside = steps[:, np.newaxis] < lengths
    in_order[places[is_inside]] = matrix[is_inside]


def new_extremes(
    grouping: Grouping,
    in_order: NDArray[Any],
    running: NDArray[Any],
    initial: NDArray[Any],
    *,
    is_new: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Whether each value becomes its group's extreme; of equal values the first one stays.

    Args:
        grouping: of the rows.
        in_order: the values, group by group.
        running: the extreme after each row.
        initial: the extreme of each group before these rows.
        is_new: whether the group has no rows before these.
    """
    changes = np.empty(len(in_order), np.bool_)
    np.not_equal(running[1:], running[:-1], out=changes[1:])
    starts = grouping.starts
    changes[starts] = is_new | (in_order[starts] != initial) & (running[starts] == in_order[starts])
    return changes


def rows_of_extremes(grouping: Grouping, changes: NDArray[np.bool_]) -> IndexArray:
    """The row of each extreme so far, group by group; -1 if it is older than these rows."""
    places = np.where(changes, np.arange(len(changes)), 0)
    # A mark at the start of each group keeps out the extreme of the group before it.
    places[grouping.starts] = grouping.starts
    np.maximum.accumulate(places, out=places)
    rows: IndexArray = grouping.order.take(places)
    rows[~changes.take(places)] = _FROM_STATE
    return rows
