"""Values as codes of a table that they share with other columns.

Side: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from flowlet.columns.column import Column, ColumnVisitor, IndexArray
from flowlet.columns.list_column import ListColumn
from flowlet.columns.name_table import NameTable
from flowlet.columns.unchanging import UNCHANGING
from netstack.late import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

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

    def is_unchanging(self) -> bool:
        """By the types of all values of the table."""
        return self.names.types <= UNCHANGING

    def concatenate(self, columns: Sequence[Column]) -> CodedColumn | None:
        """Of one table only."""
        coded = [column for column in columns if isinstance(column, CodedColumn) and column.names is self.names]
        return (
            CodedColumn(np.concatenate([column.codes for column in coded]), self.names)
            if len(coded) == len(columns)
            else None
        )

    def detached(self) -> ListColumn:
        """The values in a list."""
        return ListColumn(self.to_list())
