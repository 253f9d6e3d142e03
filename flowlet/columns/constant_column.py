"""One value many times.

Side: pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from flowlet.columns.column import Column, ColumnVisitor, IndexArray
from flowlet.columns.list_column import joined
from flowlet.columns.numbers import INT64_MAX, INT64_MIN, Numbers
from flowlet.columns.unchanging import is_unchanging
from netstack.late import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_T = TypeVar("_T")
_ARRAY_TYPE_OF: Final[dict[type, str]] = {int: "int64", bool: "bool"}


class ConstantColumn(Column):
    """One value many times; all records share it."""

    __slots__ = ("_num_values", "value")

    is_constant: ClassVar[bool] = True

    def __init__(self, value: Any, num_values: int) -> None:
        self.value = value
        self._num_values = num_values

    def __repr__(self) -> str:
        return f"<ConstantColumn of {self._num_values} times {self.value!r:.40}>"

    def __len__(self) -> int:
        return self._num_values

    @property
    def value_type(self) -> type:
        """The type of the value."""
        return type(self.value)

    def to_list(self) -> list[Any]:
        """The very object, each time."""
        return [self.value] * self._num_values

    def __iter__(self) -> Iterator[Any]:
        return repeat(self.value, self._num_values)

    def take(self, indices: IndexArray) -> ConstantColumn:
        """As many times as there are positions."""
        return ConstantColumn(self.value, len(indices))

    def slice(self, start: int, stop: int) -> ConstantColumn:
        """A part."""
        return ConstantColumn(self.value, len(range(self._num_values)[start:stop]))

    def accept(self, visitor: ColumnVisitor[_T]) -> _T:
        """See ``Column``."""
        return visitor.visit_constant(self)

    def is_unchanging(self) -> bool:
        """Whether the value is."""
        return is_unchanging(self.value)

    def as_array(self, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """Of ints within 64 bits, and of truth values."""
        kind = type(self.value)
        # Not one comparison: numpy takes None for a name of float64.
        if (
            kind not in _ARRAY_TYPE_OF
            or _ARRAY_TYPE_OF[kind] != dtype
            or (kind is int and not self._is_within_64_bits())
        ):
            return None
        return np.full(self._num_values, self.value, dtype)

    def numbers(self) -> Numbers | None:
        """Of ints within 64 bits, and of floats."""
        if type(self.value) is int and self._is_within_64_bits():
            return Numbers(np.full(self._num_values, self.value, np.int64))
        return Numbers(np.full(self._num_values, self.value)) if type(self.value) is float else None

    def concatenate(self, columns: Sequence[Column]) -> Column:
        """The same value more times, or a list of all."""
        constants = [column for column in columns if isinstance(column, ConstantColumn)]
        assert len(constants) == len(columns), "a constant column is asked if all are constant"
        if all(_is_same(column.value, self.value) for column in constants):
            return ConstantColumn(self.value, sum(map(len, columns)))
        return joined(columns)

    def _is_within_64_bits(self) -> bool:
        return bool(INT64_MIN <= self.value <= INT64_MAX)


def _is_same(value: Any, other: Any) -> bool:
    """Equal is enough only where it means the same."""
    return value is other or (type(value) is type(other) and type(value) in (int, str, bool) and value == other)
