"""The rows of a chunk by key: sorted once, used by every aggregation.

A stable order of integers, by radix sorts of 16 bits.

Hot path, per block: numpy sorts 16-bit integers by radix, 10 ns per row, and merges wider ones, 85 ns (1.7 million
rows).

Hot path.  A stable sort of 16-bit codes is a radix sort, 5 ns per row.  numpy merges wider integers, 54 ns, so these
are sorted by halves (``bench shuffle-columnar``).

Side:       pure.
Invariants: ``order`` lists rows group by group, in the order of their codes; rows of one group keep their order.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
