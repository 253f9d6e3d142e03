"""Sums and extremes per slot, in numpy arrays.

Tells in advance whether sums stay within 64 bits.

Hot path, per chunk (see ``running``).

Running results per key and row: sum, count, minimum and maximum, and the row that has them.

Hot path.  Exact sums of int64 are one cumulative sum over all groups, 12 ns per row with the sort.  Operations that
must run one after the other (on floats, extremes) use ``accumulate``: long groups one by one, short groups many at
once.

Side:       pure.
Invariants: ``fits`` may refuse sums that would fit; it never accepts one that does not.  a call that returns None,
            because the arrays cannot compute the result exactly, changed nothing.  results equal those of a loop over
            the rows with a dictionary by key.  Integers stay within 64 bits (``Int64Bound`` checks that first).  Floats
            are added in the order of their rows.
Units:      running results are in the order of the grouping.  results are in the order of ``Grouping.order``; there is
            one initial value per group.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.kernels.grouping import Grouping, IndexArray
from flowlet.keys.key_index import grown

_LIMIT: Final = 2**63 - 1
# Float sums of magnitudes are off by far less than this.
_SAFE_LIMIT: Final = float(2**63) * (1 - 2**-20)


class Int64Bound:
    """An upper bound for the magnitude of all running sums."""

    __slots__ = ("_bound",)

    def __init__(self, sums: NDArray[np.int64]) -> None:
        self._bound = magnitude(sums)

    def raise_to(self, largest: int) -> None:
        """There are other sums, of at most this magnitude."""
        self._bound = max(self._bound, largest)

    def fits_loosely(self, values: NDArray[np.int64]) -> bool:
        """Whether the values surely can be added, from their maximum alone; if so, they count as added."""
        return self._grows(magnitude(values) * len(values))

    def fits(self, grouping: Grouping, values: NDArray[np.int64], sums: NDArray[np.int64]) -> bool:
        """Whether the values can be added; if so, they count as added.

        ``values`` are in the order of the rows; ``sums`` are those of all keys before, by code.
        """
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
        identity: combined with any number, it gives that number.
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
        """Combine all values without running results; False if the result would not be exact."""
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
        """See ``Accumulator``."""
        if not self._is_int:
            return super().advance(grouping, values)
        if not self._bound.fits_loosely(values) and not self._bound.fits(grouping, values, self._results):
            return None
        initial = self._results.take(grouping.codes)
        results, self._results[grouping.codes] = running_sums(grouping, values, initial)
        return results

    def advance_once(self, slots: NDArray[Any], values: NDArray[Any]) -> bool:
        """See ``Accumulator``."""
        return (not self._is_int or self._bound.fits_loosely(values)) and super().advance_once(slots, values)

    def load(self, first: int, values: NDArray[Any]) -> None:
        """See ``Accumulator``."""
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
        """See ``Accumulator``."""
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
            self._scratch = np.empty(2 * num_slots, np.int64)
        if num_slots * _MIN_ROWS_PER_SLOT <= len(slots):
            return self._of_few(slots, rows, num_slots)
        # If several rows write to one slot, the last row stays.
        self._scratch[slots] = rows
        is_last: NDArray[np.bool_] = self._scratch.take(slots) == rows
        return is_last.nonzero()[0]

    def _of_few(self, slots: NDArray[Any], rows: IndexArray, num_slots: int) -> IndexArray:
        """As ``of``, but scans the slots instead of the rows."""
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

    ``values`` are in the order of the rows; ``initial`` are the sums before them.
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

    ``in_order`` are the values, group by group, and are overwritten.  ``initial`` are the results before them, of the
    same type.
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
        initial: the extreme of each group before them.
        is_new: whether the group has no rows before them.
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
