"""Numbers, truth values and instants in a numpy array.

Side: pure.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from flowlet.columns.column import Column, ColumnVisitor, IndexArray
from flowlet.columns.numbers import INSTANT, NumberKind, Numbers, wide
from netstack.late import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_T = TypeVar("_T")

# What ``tolist`` turns into int, float and bool; and instants in microseconds, which become datetimes (NaT: None).
# Native byte order.
_ORDER: Final = "<" if sys.byteorder == "little" else ">"
# As ``dtype.str`` has them.
_ARRAY_TYPES: Final = frozenset(
    ["|b1", "|i1", "|u1", *(_ORDER + each for each in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "M8[us]"))]
)


class ArrayColumn(Column):
    """Numbers, truth values or instants (microseconds) in a numpy array of one dimension.

    Ownership: nobody writes into the array any more.
    """

    __slots__ = ("array",)
    never_has_nulls: ClassVar[bool] = True

    def __init__(self, array: NDArray[Any]) -> None:
        assert array.ndim == 1, f"a column has one dimension, got shape {array.shape}"
        assert array.dtype.str in _ARRAY_TYPES, f"an array column of {array.dtype}"
        self.array = array

    def __repr__(self) -> str:
        return f"<ArrayColumn of {len(self)} {self.array.dtype}>"

    def __len__(self) -> int:
        return len(self.array)

    def to_list(self) -> list[Any]:
        """int, float, bool, or datetime."""
        values: list[Any] = self.array.tolist()
        return values

    def take(self, indices: IndexArray) -> ArrayColumn:
        """The values at these positions."""
        return ArrayColumn(self.array.take(indices))

    def slice(self, start: int, stop: int) -> ArrayColumn:
        """A part, in the same memory."""
        return ArrayColumn(self.array[start:stop])

    def accept(self, visitor: ColumnVisitor[_T]) -> _T:
        """See ``Column``."""
        return visitor.visit_array(self)

    @property
    def value_type(self) -> type | None:
        """Of integers."""
        return int if self.array.dtype.kind in "iu" else None

    def is_unchanging(self) -> bool:
        """All types are."""
        return True

    def as_array(self, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """The array, if it has this type."""
        return self.array if self.array.dtype == dtype else None

    def numbers(self) -> Numbers | None:
        """All but truth values, and integers beyond 63 bits."""
        if self.array.dtype == INSTANT:
            is_valid = ~np.isnat(self.array)
            return Numbers(self.array.view(np.int64), None if is_valid.all() else is_valid, NumberKind(is_instant=True))
        numbers = wide(self.array)
        return None if numbers is None else Numbers(numbers)

    def arrow_array(self) -> Any:
        """Of the same type; NaN stays NaN."""
        import pyarrow as pa  # takes longer than all of this package, and who has no Arrow column does not need it

        return pa.array(self.array, from_pandas=False)

    def concatenate(self, columns: Sequence[Column]) -> ArrayColumn | None:
        """See ``Column``."""
        arrays = [column.as_array(self.array.dtype) for column in columns]
        known = [array for array in arrays if array is not None]
        return ArrayColumn(np.concatenate(known)) if len(known) == len(arrays) else None
