"""Values as codes of a table that they share with other columns, and the tables.

Side: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from flowlet.columns.column import UNCHANGING, Column, ColumnVisitor, IndexArray
from flowlet.columns.column_kinds import ListColumn
from netstack.late import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NameTable:
    """The values that dictionary codes stand for: code ``n`` is ``names[n]``.  It only grows.

    The object is the identity of one generation of one dictionary: who keeps something per code keeps it per table
    (weakly, if need be), and looks at its length for what came in since.

    Ownership: who made the table appends to ``names``; everybody else only looks.
    """

    __slots__ = ("__weakref__", "_objects", "_typed", "names")

    def __init__(self, names: list[Any] | None = None) -> None:
        self.names: list[Any] = [] if names is None else names
        self._objects = (_objects([]), 0)  # the names for numpy, with room for others, and how many are there
        self._typed: tuple[int, frozenset[type]] = (0, frozenset())  # of so many names, the first ones

    def __repr__(self) -> str:
        return f"<NameTable of {len(self.names)} values>"

    def __len__(self) -> int:
        return len(self.names)

    @property
    def types(self) -> frozenset[type]:
        """The exact types of the values."""
        # Of two threads that ask at the same time each finds all, whichever keeps what it found.
        num_typed, types = self._typed
        num_names = len(self.names)
        if num_typed < num_names:
            types = types.union(map(type, self.names[num_typed:num_names]))
            self._typed = num_names, types
        return types

    def values_of(self, codes: NDArray[Any]) -> list[Any]:
        """The value that each code stands for.

        One numpy ``take`` of objects: 7 ns per code, a loop in C over a list 25.
        """
        objects, num_objects = self._objects  # of two threads that ask at the same time each finds enough of them
        if num_objects < len(self.names):
            objects = self._grown(objects, num_objects)
        values: list[Any] = objects.take(codes).tolist()
        return values

    def _grown(self, objects: NDArray[np.object_], num_objects: int) -> NDArray[np.object_]:
        """The names so far; to make room for one doubles it, so that each name is copied twice at most, however few
        come at once.
        """
        new = _objects(self.names[num_objects:])
        size = num_objects + len(new)
        if size > len(objects):
            grown = np.empty(max(size, 2 * len(objects)), np.object_)
            grown[:num_objects] = objects[:num_objects]
            objects = grown
        objects[num_objects:size] = new
        self._objects = objects, size
        return objects


def _objects(values: list[Any]) -> NDArray[np.object_]:
    """An array of the very objects, whatever they are (``np.array`` would look into sequences)."""
    return np.fromiter(values, np.object_, len(values))


_T = TypeVar("_T")


class CodedColumn(Column):
    """Values as codes of a table that they share with other columns.

    Args:
        codes: uint16 or uint32, each less than the table's length.
        names: what they stand for.
    """

    __slots__ = ("codes", "names")

    def __init__(self, codes: NDArray[Any], names: NameTable) -> None:
        assert codes.dtype in (np.uint16, np.uint32), f"codes of type {codes.dtype}"
        self.codes = codes
        self.names = names

    def __repr__(self) -> str:
        return f"<CodedColumn of {len(self)} {self.codes.dtype} codes of {self.names!r}>"

    def __len__(self) -> int:
        return len(self.codes)

    def to_list(self) -> list[Any]:
        """The table's objects."""
        return self.names.values_of(self.codes)

    def take(self, indices: IndexArray) -> CodedColumn:
        """The values at these positions, in the same table."""
        return CodedColumn(self.codes.take(indices), self.names)

    def slice(self, start: int, stop: int) -> CodedColumn:
        """A part, in the same memory and table."""
        return CodedColumn(self.codes[start:stop], self.names)

    def accept(self, visitor: ColumnVisitor[_T]) -> _T:
        """See ``Column``."""
        return visitor.visit_coded(self)

    @property
    def value_type(self) -> type | None:
        """That of all values of the table."""
        types = self.names.types
        return next(iter(types)) if len(types) == 1 else None

    def is_unchanging(self) -> bool:
        """By the types of all values of the table."""
        return self.names.types <= UNCHANGING

    def concatenate(self, columns: Sequence[Column]) -> CodedColumn | None:
        """Of one table only."""
        coded = [column for column in columns if isinstance(column, CodedColumn) and column.names is self.names]
        if len(coded) < len(columns):
            return None
        return CodedColumn(np.concatenate([column.codes for column in coded]), self.names)

    def detached(self) -> ListColumn:
        """The values in a list."""
        return ListColumn(self.to_list())
