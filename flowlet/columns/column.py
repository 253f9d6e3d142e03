"""One field of many records, in the representation that costs least.

Hot path: C code per column, nothing per value.

Side:       pure.
Invariants: ``to_list`` gives the exact Python values that the column stands for, a new list each time; columns never
            change, and share memory with the parts that ``slice`` makes of them.
Units:      positions count from 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from netstack.late import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from flowlet.columns.array_column import ArrayColumn
    from flowlet.columns.arrow_column import ArrowColumn
    from flowlet.columns.coded_column import CodedColumn
    from flowlet.columns.constant_column import ConstantColumn
    from flowlet.columns.list_column import ListColumn
    from flowlet.columns.numbers import Numbers
    from flowlet.columns.offset_column import OffsetColumn
    from flowlet.columns.short_text_column import ShortTextColumn

    IndexArray = NDArray[np.intp]
    MaskArray = NDArray[np.bool_]
else:
    IndexArray = MaskArray = Any  # for annotations: numpy is imported late

_T = TypeVar("_T")


class Column(ABC):
    """The values of one field; a subclass for each representation.

    Who needs something of the representation writes a ``ColumnVisitor`` and asks nobody for a class.
    """

    __slots__ = ()

    is_constant: ClassVar[bool] = False  # whether it is one value many times
    has_objects: ClassVar[bool] = False  # whether it holds Python objects, not arrays
    may_have_nulls: ClassVar[bool] = False  # whether numbers of the same representation may have nulls among them
    never_has_nulls: ClassVar[bool] = False  # whether no value of any kind can be null

    @abstractmethod
    def __len__(self) -> int:
        """How many values there are."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_list())

    @abstractmethod
    def to_list(self) -> list[Any]:
        """The values as Python objects, in a list of the caller's own."""

    @abstractmethod
    def take(self, indices: IndexArray) -> Column:
        """The values at these positions, in this order."""

    @abstractmethod
    def slice(self, start: int, stop: int) -> Column:
        """The values from ``start`` up to ``stop``; what is beyond the end is left out."""

    @abstractmethod
    def accept(self, visitor: ColumnVisitor[_T]) -> _T:
        """Call the visitor's method for this representation."""

    @abstractmethod
    def is_unchanging(self) -> bool:
        """Whether no value can change (``unchanging.is_unchanging``)."""

    @property
    def value_type(self) -> type | None:
        """The exact type of all values, where it is known without a look at them."""
        return None

    def as_list(self) -> list[Any]:
        """The values in a list that nobody changes."""
        return self.to_list()

    def as_array(self, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """The values in an array of this type that nobody changes; None if that is not what they are."""
        return None

    def numbers(self) -> Numbers | None:
        """The ints, floats or instants, for arithmetic; None where there is anything else."""
        return None

    def arrow_array(self) -> Any:
        """The values as a ``pyarrow.Array`` without a look at each; None if that is not possible."""
        return None

    def concatenate(self, columns: Sequence[Column]) -> Column | None:
        """All values of these columns as one of this representation; None if they do not fit, or are not quicker
        together.

        Args:
            columns: this one is among them; those before it ``is_constant``.
        """
        return None

    def detached(self) -> Column:
        """The same values without a table that grows on."""
        return self

    def widened(self) -> Column:
        """The same values, narrow integers with 64 bits again."""
        return self


class ColumnVisitor(ABC, Generic[_T]):
    """What to do with a column, by its representation: ``column.accept(visitor)``.

    A representation for which there is no method of its own is left to ``visit_any``.
    """

    __slots__ = ()

    @abstractmethod
    def visit_any(self, column: Column) -> _T:
        """What works with every column, by its values."""

    def visit_array(self, column: ArrayColumn) -> _T:
        """Numbers, truth values or instants in a numpy array."""
        return self.visit_any(column)

    def visit_list(self, column: ListColumn) -> _T:
        """Python objects in a list."""
        return self.visit_any(column)

    def visit_constant(self, column: ConstantColumn) -> _T:
        """One value many times."""
        return self.visit_any(column)

    def visit_coded(self, column: CodedColumn) -> _T:
        """Codes of a dictionary."""
        return self.visit_any(column)

    def visit_arrow(self, column: ArrowColumn) -> _T:
        """An Arrow array."""
        return self.visit_any(column)

    def visit_short_texts(self, column: ShortTextColumn) -> _T:
        """Texts in 16 bytes each."""
        return self.visit_any(column)

    def visit_offsets(self, column: OffsetColumn) -> _T:
        """Integers above a base."""
        return self.visit_any(column)
