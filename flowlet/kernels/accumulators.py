"""Sums and extremes per slot, in numpy arrays.

Hot path, per chunk (see ``running``).
Side:       pure.
Invariants: a call that returns None, because the arrays cannot compute the result exactly, changed nothing.
Units:      running results are in the order of the grouping.
"""

from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from flowlet.kernels.bounds import Int64Bound
from flowlet.kernels.field_stores import grown
from flowlet.kernels.grouping import Grouping, IndexArray
from flowlet.kernels.running import accumulate, running_sums

_NEGATIVE_ZERO_BITS: Final = -(2**63)
_NO_ROW: Final = -1
# For few slots, sorting the rows costs less than comparing all of them.  Not measured closely.
_MIN_ROWS_PER_SLOT: Final = 8


class Accumulator(Protocol):
    """One number per slot."""

    identity: Any  # combined with any number, it gives that number

    def takes(self, values: NDArray[Any]) -> bool:
        """Whether values of this dtype can be combined exactly."""

    def grow(self, num_slots: int) -> None:
        """Make room for ``num_slots`` slots; call before they are used."""

    def advance(self, grouping: Grouping, values: NDArray[Any]) -> NDArray[Any] | None:
        """Combine all values; returns the result after each row, or None if it would not be exact."""

    def advance_once(self, slots: NDArray[Any], values: NDArray[Any]) -> bool:
        """Combine all values without running results; False if the result would not be exact."""

    def at(self, slots: NDArray[Any]) -> NDArray[Any]:
        """The result of each of these slots."""

    def load(self, values: NDArray[Any]) -> None:
        """Start with these results, for slots 0, 1, 2, ..."""


class SumAccumulator:
    """Exact sums of int64; sums of float64 in the order of the rows.  ``dtype`` is one of the two."""

    def __init__(self, dtype: "np.dtype[Any]") -> None:
        self._is_int = dtype == np.int64
        # Not 0.0, because 0.0 + -0.0 is 0.0.
        self.identity: Any = 0 if self._is_int else -0.0
        self._sums = np.empty(0, dtype)
        self._bound = Int64Bound(self._sums)

    def takes(self, values: NDArray[Any]) -> bool:
        """See ``Accumulator``."""
        return bool(values.dtype == self._sums.dtype)

    def grow(self, num_slots: int) -> None:
        """See ``Accumulator``."""
        self._sums = grown(self._sums, num_slots, self.identity)

    def advance(self, grouping: Grouping, values: NDArray[Any]) -> NDArray[Any] | None:
        """See ``Accumulator``."""
        initial = self._sums.take(grouping.codes)
        if not self._is_int:
            results = accumulate(np.add, grouping, grouping.sorted(values), initial)
            self._sums[grouping.codes] = results.take(grouping.ends - 1)
            return results
        if not self._bound.fits_loosely(values) and not self._bound.fits(grouping, values, self._sums):
            return None
        results, self._sums[grouping.codes] = running_sums(grouping, values, initial)
        return results

    def advance_once(self, slots: NDArray[Any], values: NDArray[Any]) -> bool:
        """See ``Accumulator``."""
        if self._is_int and not self._bound.fits_loosely(values):
            return False
        # Fast only for exactly these dtypes (hot-path measurements, 2).  Adds one value after the other, so floats are
        # exact.
        with np.errstate(over="ignore", invalid="ignore"):
            np.add.at(self._sums, slots.astype(np.intp, copy=False), values)
        return True

    def at(self, slots: NDArray[Any]) -> NDArray[Any]:
        """See ``Accumulator``."""
        return self._sums.take(slots)

    def load(self, values: NDArray[Any]) -> None:
        """See ``Accumulator``."""
        self._sums = values.copy()
        self._bound = Int64Bound(self._sums if self._is_int else np.empty(0, np.int64))


class ExtremeAccumulator:
    """The smallest or largest int64 or float64; refuses floats without a total order (NaN, -0.0).

    ``dtype`` is one of the two; ``is_largest`` says which extreme.
    """

    def __init__(self, dtype: "np.dtype[Any]", *, is_largest: bool) -> None:
        self._is_int = dtype == np.int64
        self._ufunc = np.maximum if is_largest else np.minimum
        limits = (-(2**63), 2**63 - 1) if self._is_int else (-np.inf, np.inf)
        self.identity: Any = limits[not is_largest]
        self._extremes = np.empty(0, dtype)

    def takes(self, values: NDArray[Any]) -> bool:
        """See ``Accumulator``."""
        if values.dtype != self._extremes.dtype:
            return False
        return self._is_int or not (np.isnan(values).any() or (values.view(np.int64) == _NEGATIVE_ZERO_BITS).any())

    def grow(self, num_slots: int) -> None:
        """See ``Accumulator``."""
        self._extremes = grown(self._extremes, num_slots, self.identity)

    def advance(self, grouping: Grouping, values: NDArray[Any]) -> NDArray[Any] | None:
        """See ``Accumulator``."""
        results = accumulate(self._ufunc, grouping, grouping.sorted(values), self._extremes.take(grouping.codes))
        self._extremes[grouping.codes] = results.take(grouping.ends - 1)
        return results

    def advance_once(self, slots: NDArray[Any], values: NDArray[Any]) -> bool:
        """See ``Accumulator``."""
        self._ufunc.at(self._extremes, slots.astype(np.intp, copy=False), values)
        return True

    def at(self, slots: NDArray[Any]) -> NDArray[Any]:
        """See ``Accumulator``."""
        return self._extremes.take(slots)

    def load(self, values: NDArray[Any]) -> None:
        """See ``Accumulator``."""
        self._extremes = values.copy()


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
