"""``DeclaredColumn``: checks, writes and reads columns of one declared type.

Hot path: C code per column.  Values without a column form go through their ``TypeSerializer`` one by one.

Side:       pure.
Invariants: whatever the bytes are, reading gives values of the declared type, or None, or raises.  Nothing is
            unpickled, imported or called by name.  The form of every part is known from the type, so nesting ends where
            the type ends.  Counts are checked against the bytes and the budget before anything is allocated.
Format:     ``column_format``; of its kinds, those that the type allows.
Raises:     reading corrupt bytes raises SerdeError, ValueError or struct.error; ``ElementDeserializer`` turns all into
            SerdeError.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import repeat
from types import NoneType
from typing import Any, ClassVar, Final

import numpy as np

from flowlet.columns import Column, ConstantColumn, ListColumn
from flowlet.common.typeinfo import TypeInformation
from flowlet.errors import SerdeError
from flowlet.serde.channel_dictionary import ChannelDictionary
from flowlet.serde.column_format import Kind, check_end, check_length, column_at, framed
from flowlet.serde.element_limits import CellBudget
from flowlet.serde.table_writer import CodeWriter, FieldEncoder
from flowlet.serde.type_serializer import ValueMismatchError, preview
from netstack.late import dataclass

_NONE: Final = frozenset({NoneType})


@dataclass(slots=True)
class Reading:
    """What the columns of one element share while they are read."""

    cells: CellBudget
    dictionary: ChannelDictionary


class DeclaredColumn(ABC):
    """The column form of one declared type.  Threading: any; it has no state.

    Args:
        type_info: the declared type.
    """

    __slots__ = ("type_info",)
    classes: ClassVar[tuple[type, ...]] = (object,)  # of the values; their subclasses fit, too
    refused: ClassVar[tuple[type, ...]] = ()  # subclasses that do not fit
    cells_each: int = 1
    is_known_by_class: bool = False  # whether the class of a value shows that it fits
    may_be_constant: bool = True  # whether a value costs nothing that grows with its size when it is used many times

    def __init__(self, type_info: TypeInformation) -> None:
        self.type_info = type_info

    def __repr__(self) -> str:
        return f"<DeclaredColumn of {self.type_info!r}>"

    # ---------------------------------------------------------------- checking

    def column_of(self, values: Sequence[Any]) -> Column:
        """A column of these values.  Raises ValueMismatchError: a value does not fit."""
        kinds = set(map(type, values))
        if NoneType not in kinds:
            return self._column(values, self._checked(values, kinds))
        present = [value for value in values if value is not None]
        if present:
            self._column(present, self._checked(present, kinds - _NONE))
        return ListColumn(list(values))

    def mismatch(self, value: Any) -> ValueMismatchError:
        """The error for a value that does not fit."""
        return ValueMismatchError(f"{preview(value)} is of type {type(value).__name__}, not {self.type_info!r}")

    def _checked(self, values: Sequence[Any], kinds: set[type]) -> set[type]:
        for kind in kinds:
            if not issubclass(kind, self.classes) or issubclass(kind, self.refused):
                raise self.mismatch(next(value for value in values if type(value) is kind))
        return kinds

    def _column(self, values: Sequence[Any], kinds: set[type]) -> Column:
        """A column of values whose classes fit.  Raises ValueMismatchError: a value does not."""
        return ListColumn(
            values if isinstance(values, list) else list(values), next(iter(kinds)) if len(kinds) == 1 else None
        )

    def takes_array(self, array: Any) -> bool:
        """Whether every number of an array fits.  Raises ValueMismatchError: one is out of range."""
        return False

    def takes_list_of(self, kind: type | None) -> bool:
        """Whether a list of values of this class needs no look at each value."""
        return self.is_known_by_class and kind in self.classes

    # ---------------------------------------------------------------- writing

    def encode(self, column: Column, cells: CellBudget, codes: CodeWriter | None = None) -> bytes:
        """At least one value as a column.  Raises ValueMismatchError: a value does not fit."""
        cells.take(self.cells_each * len(column))
        return column.accept(_Encoder(self, cells, codes))

    def encode_values(self, values: Sequence[Any], cells: CellBudget, kinds: set[type] | None = None) -> bytes:
        """As ``encode``, without counting the values themselves.  ``kinds``: their classes, if known."""
        kinds = set(map(type, values)) if kinds is None else kinds
        if NoneType not in kinds:
            return self._encode(values, self._checked(values, kinds), cells)
        present = [value for value in values if value is not None]
        if not present:
            return framed(Kind.NULLS)
        is_there = np.frombuffer(bytes(map(operator.is_not, values, repeat(None))), np.bool_)
        return framed(
            Kind.NULLS,
            np.packbits(is_there).tobytes(),
            self._encode(present, self._checked(present, kinds - _NONE), cells),
        )

    @abstractmethod
    def _encode(self, values: Sequence[Any], kinds: set[type], cells: CellBudget) -> bytes:
        """At least one value whose class fits."""

    # ---------------------------------------------------------------- reading

    def decode(self, view: memoryview, offset: int, num_values: int, reading: Reading) -> tuple[Column, int]:
        """Read the column at ``offset``; return it and the offset after it.

        Raises:
            SerdeError, ValueError, struct.error: the column is corrupt, or of another type.
        """
        kind, payload, end = column_at(view, offset)
        reading.cells.take(self.cells_each * num_values)
        if kind == Kind.NULLS:
            return self._nullable(payload, num_values, reading), end
        return self._present(kind, payload, num_values, reading), end

    def decode_list(self, view: memoryview, offset: int, num_values: int, reading: Reading) -> tuple[list[Any], int]:
        """As ``decode``, for parts of values."""
        column, end = self.decode(view, offset, num_values, reading)
        return column.to_list(), end

    def refusal(self, kind: int) -> SerdeError:
        """The error for a kind of column that the type does not have."""
        return SerdeError(f"a column of kind {kind}, which is no form of {self.type_info!r}")

    def _nullable(self, payload: memoryview, num_values: int, reading: Reading) -> Column:
        if not payload:
            return ConstantColumn(None, num_values)
        num_bytes = (num_values + 7) // 8
        if len(payload) < num_bytes:
            raise SerdeError(f"which of {num_values} values are there takes {num_bytes} bytes, found {len(payload)}")
        is_there = np.unpackbits(np.frombuffer(payload[:num_bytes], np.uint8), count=num_values)
        kind, inner, end = column_at(payload, num_bytes)
        check_end(end, payload)
        present = iter(self._present(kind, inner, int(is_there.sum()), reading).to_list())
        return ListColumn([next(present) if bit else None for bit in is_there.tolist()])

    def _present(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        if kind == Kind.CONSTANT and self.may_be_constant:
            kind, inner, end = column_at(payload, 0)
            check_end(end, payload)
            column = self._decode(kind, inner, 1, reading)
            check_length(kind, column, 1)
            return ConstantColumn(column.to_list()[0], num_values)
        if kind == Kind.ARROW:
            from flowlet.serde.declared.arrow_values import decode_arrow  # as above

            return decode_arrow(payload, num_values, self.type_info, reading.cells)
        column = self._decode(kind, payload, num_values, reading)
        check_length(kind, column, num_values)
        return column

    @abstractmethod
    def _decode(self, kind: int, payload: memoryview, num_values: int, reading: Reading) -> Column:
        """Read a column that is neither constant nor of Arrow, and holds no None.

        Raises ``refusal`` for a kind that is no form of it.
        """


class _Encoder(FieldEncoder):
    """Lists and constants by their declared type; arrays as everywhere."""

    __slots__ = ("_cells", "_declared")

    def __init__(self, declared: DeclaredColumn, cells: CellBudget, codes: CodeWriter | None) -> None:
        super().__init__(codes)
        self._declared = declared
        self._cells = cells

    def visit_any(self, column: Column) -> bytes:
        return self._declared.encode_values(column.as_list(), self._cells)

    def visit_list(self, column: ListColumn) -> bytes:
        kind = column.value_type
        return self._declared.encode_values(column.values, self._cells, None if kind is None else {kind})

    def visit_constant(self, column: ConstantColumn) -> bytes:
        if column.value is None or not self._declared.may_be_constant or len(column) == 1:
            return self.visit_any(column)
        return framed(Kind.CONSTANT, self._declared.encode_values([column.value], self._cells))
