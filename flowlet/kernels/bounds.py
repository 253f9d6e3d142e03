"""Tells in advance whether sums stay within 64 bits.

Side:       pure.
Invariants: ``fits`` may refuse sums that would fit; it never accepts one that does not.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowlet.kernels.grouping import Grouping

_LIMIT: Final = 2**63 - 1
# Float sums of magnitudes are off by far less than this.
_SAFE_LIMIT: Final = float(2**63) * (1 - 2**-20)


class Int64Bound:
    """An upper bound for the magnitude of all running sums."""

    __slots__ = ("_bound",)

    def __init__(self, sums: NDArray[np.int64]) -> None:
        self._bound = magnitude(sums)

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
