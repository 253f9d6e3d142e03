"""Any values, in a list.

Side: pure.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar, TypeVar

from flowlet.columns.column import Column, ColumnVisitor, IndexArray
from flowlet.columns.unchanging import UNCHANGING, are_unchanging

_T = TypeVar("_T")


class ListColumn(Column):
    """Any values, in a list.

    Ownership: nobody changes the list any more.

    Args:
        values: the values.
        value_type: their exact type, if it is known that they all have it; saves others a look.
    """

    __slots__ = ("_value_type", "values")

    has_objects: ClassVar[bool] = True

    def __init__(self, values: list[Any], value_type: type | None = None) -> None:
        self.values = values
        self._value_type = value_type

    def __repr__(self) -> str:
        return f"<ListColumn of {len(self)} {'values' if self._value_type is None else self._value_type.__name__}>"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def value_type(self) -> type | None:
        """See ``Column``."""
        return self._value_type

    def to_list(self) -> list[Any]:
        """The very objects."""
        return self.values.copy()

    def as_list(self) -> list[Any]:
        """The very list."""
        return self.values

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def take(self, indices: IndexArray) -> "ListColumn":
        """The values at these positions.  20 ns per value; by an array of objects it takes more than 100."""
        values = self.values
        return ListColumn([values[index] for index in indices.tolist()], self._value_type)

    def slice(self, start: int, stop: int) -> "ListColumn":
        """A part, in a list of its own."""
        return ListColumn(self.values[start:stop], self._value_type)

    def accept(self, visitor: ColumnVisitor[_T]) -> _T:
        """See ``Column``."""
        return visitor.visit_list(self)

    def is_unchanging(self) -> bool:
        """One look at each value, where their type is not known."""
        return self._value_type in UNCHANGING or are_unchanging(self.values)

    def concatenate(self, columns: Sequence[Column]) -> "ListColumn | None":
        """See ``Column``."""
        return (
            joined(columns) if all(isinstance(column, ListColumn) or column.is_constant for column in columns) else None
        )


def joined(columns: Sequence[Column]) -> ListColumn:
    """The values of columns of any kind."""
    types = {column.value_type for column in columns}
    return ListColumn(list(chain.from_iterable(columns)), types.pop() if len(types) == 1 else None)
