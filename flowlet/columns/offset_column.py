"""Integers of 64 bits in as few bytes as will do.

Hot path: C code per column.

Side:       pure.
Invariants: a narrow column stands for exactly the values of the array that it was made of.
Source:     frame of reference (Goldstein, Ramakrishnan, Shaft: Compressing Relations and Indexes, 1998), as column
            stores have it: what counts upwards, instants above all, has small offsets from its smallest value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from flowlet.columns.array_column import ArrayColumn
from flowlet.columns.column import Column, ColumnVisitor, IndexArray
from flowlet.columns.constant_column import ConstantColumn
from netstack.late import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_T = TypeVar("_T")

# With fewer values a base costs more bytes than it saves.
MIN_BASED: Final = 16
_INT64_BYTES: Final = 8
_BITS_PER_BYTE: Final = 8


class OffsetColumn(Column):
    """Integers, as what each is above a base.

    Args:
        base: one of them, or 0.
        offsets: of one, two or four bytes; unsigned if the base is not 0.  Nobody writes into it any more.
    """

    __slots__ = ("base", "offsets")
    never_has_nulls: ClassVar[bool] = True

    def __init__(self, base: int, offsets: NDArray[Any]) -> None:
        self.base = base
        self.offsets = offsets

    def __repr__(self) -> str:
        return f"<OffsetColumn of {len(self)} {self.offsets.dtype} above {self.base}>"

    def __len__(self) -> int:
        return len(self.offsets)

    def to_array(self) -> NDArray[np.int64]:
        """The values, in an array of the caller's own."""
        values = self.offsets.astype(np.int64)
        if self.base:
            values += self.base
        return values

    def to_list(self) -> list[int]:
        """The values."""
        values: list[int] = self.to_array().tolist()
        return values

    def take(self, indices: IndexArray) -> OffsetColumn:
        """The values at these positions."""
        return OffsetColumn(self.base, self.offsets.take(indices))

    def slice(self, start: int, stop: int) -> OffsetColumn:
        """A part, in the same memory."""
        return OffsetColumn(self.base, self.offsets[start:stop])

    def accept(self, visitor: ColumnVisitor[_T]) -> _T:
        """See ``Column``."""
        return visitor.visit_offsets(self)

    def is_unchanging(self) -> bool:
        """Integers are."""
        return True

    def widened(self) -> ArrayColumn:
        """See ``Column``."""
        return ArrayColumn(self.to_array())


def narrowed(array: NDArray[np.int64]) -> ArrayColumn | ConstantColumn | OffsetColumn:
    """A column with the values of the array, of which there is at least one."""
    low, high = int(array.min()), int(array.max())
    if low == high and len(array) > 1:
        return ConstantColumn(low, len(array))
    size = _bytes_for(max(high, ~low).bit_length() + 1)
    based_size = _bytes_for((high - low).bit_length())
    if based_size < size and len(array) >= MIN_BASED:
        return _above(low, array, based_size)
    return ArrayColumn(array) if size == _INT64_BYTES else OffsetColumn(0, array.astype(f"i{size}"))


def _above(base: int, array: NDArray[np.int64], size: int) -> OffsetColumn:
    # Without its upper bits first: below 2**bits, a difference is the same modulo 2**bits.
    offsets = array.astype(f"u{size}")
    offsets -= offsets.dtype.type(base % (1 << _BITS_PER_BYTE * size))
    return OffsetColumn(base, offsets)


def _bytes_for(num_bits: int) -> int:
    return next(size for size in (1, 2, 4, 8) if num_bits <= _BITS_PER_BYTE * size)
