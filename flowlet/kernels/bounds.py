"""Whether sums stay within 64 bits, known before they are made.

Side:       pure.
Invariants: ``fits`` may say no where the sums would fit, never yes where one does not.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowlet.kernels.grouping import Grouping

_LIMIT: Final = 2**63 - 1
# Sums of magnitudes as floats are off by far less than this.
_SAFE_LIMIT: Final = float(2**63) * (1 - 2**-20)


class Int64Bound:
    """No running sum is larger than this, in magnitude."""

    __slots__ = ("_bound",)

    def __init__(self, sums: NDArray[np.int64]) -> None:
        self._bound = magnitude(sums)

    def fits_loosely(self, values: NDArray[np.int64]) -> bool:
        """Whether the values can be added, as far as a glance at them tells; if so, they are expected to be."""
        return self._grows(magnitude(values) * len(values))

    def fits(self, grouping: Grouping, values: NDArray[np.int64], sums: NDArray[np.int64]) -> bool:
        """Whether the values can be added; if so, they are expected to be.

        Args:
            grouping: of the rows.
            values: in the order of the rows.
            sums: of all keys before, by code.
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
        self._bound = _LIMIT  # looked at anew before the next sum
        return True


def magnitude(values: NDArray[np.int64]) -> int:
    """The largest absolute value; 0 for none."""
    if not len(values):
        return 0
    return max(int(values.max()), -int(values.min()))
