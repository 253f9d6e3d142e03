"""Converts the records that an operator emits into its declared type.

Records are converted, as in PyFlink, where they leave the Python functions that are chained to each other: at
exchanges, sinks and ``print``, and where an operator has several readers.  Between two chained functions a record is
not changed.

Hot path.  Records that a chain keeps by field, because their exact types are known, are checked by column: per chunk
and integer field the lowest and the highest value.  Other records are converted one by one (bench: wordcount).
Side:       pure.
Invariants: a record of its declared type is passed on as it is.
Source:     PyFlink: an operation's output coder; ``PythonOperatorChainingOptimizer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

from flowlet.columns import ArrayColumn, Column, Columns, ListColumn, Shape
from flowlet.common.typeinfo import (
    PickledBytesTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
    named_fields,
)
from flowlet.common.values.conversion import field_form, integer_limits
from flowlet.common.values.field_values import Convert, TypeMismatchError
from flowlet.errors import DeclaredTypeError
from flowlet.records import Chunk
from flowlet.typed.value_conversion import value_converter
from netstack.late import dataclass
from netstack.late import numpy as np


@dataclass(frozen=True, slots=True)
class DeclaredOutput:
    """The declared type of an operator's output; ``is_collected``: the user's program reads it."""

    type_info: TypeInformation
    is_collected: bool = False


class RecordConversion:
    """Converts the records of one output of an operator; any thread, as it keeps no part of a record.

    Args:
        output: the declared type.
        show: gives the text of a record for messages.
        operator: its name, for messages.
        subtask: its index, for messages.
    """

    def __init__(self, output: DeclaredOutput, show: Convert, operator: str, subtask: int) -> None:
        self.type_info = output.type_info
        # Of the fields of a tuple or row, or of the record itself.
        types = [each for _, each in named_fields(output.type_info)]
        self._limits = list(map(integer_limits, types))
        self._exact = [_exact(each, is_collected=output.is_collected) for each in types]
        self._are_rounded = [each == Types.FLOAT() for each in types]
        self._show = show
        self._operator = operator
        self._subtask = subtask
        self._is_collected = output.is_collected
        self._slow = value_converter(output.type_info, is_collected=output.is_collected)
        quick = value_converter(output.type_info, is_collected=output.is_collected, refuse=self._convert_or_refuse)
        self.convert: Convert = quick or _unchanged
        """The record in its declared type.

        Raises DeclaredTypeError, which names operator, record and field, if the record is of another type.
        """

    def __repr__(self) -> str:
        return f"<RecordConversion of {self._operator!r} to {self.type_info!r}>"

    def _convert_or_refuse(self, record: Any) -> Any:
        assert self._slow is not None, "there is a quick way only where there is a slow one"
        try:
            return self._slow(record)
        except TypeMismatchError as error:
            reason = f"{self.type_info!r}, {error}"
            raise DeclaredTypeError(self._operator, self._subtask, self._show(record), reason) from None

    # ---------------------------------------------------------------- by column

    def covers(self, kind: type, field_types: Sequence[type | None] | None, *, may_round: bool = False) -> bool:
        """Whether records of this shape need no conversion one by one, only ``first_misfit`` and ``rounded`` by column.

        Args:
            kind: the exact type of the record.
            field_types: of a tuple, the exact type of each field, None where it is not known; None for any other
                record.
            may_round: whether ``rounded`` may change fields, because no reader has seen them yet.
        """
        is_tuple = isinstance(self.type_info, TupleTypeInfo)
        if isinstance(self.type_info, RowTypeInfo) or (kind is tuple) is not is_tuple:
            return False
        if field_types is None:
            return not is_tuple and self._cover((kind,), may_round=may_round)
        return is_tuple and self._cover(field_types, may_round=may_round)

    def _cover(self, kinds: Sequence[type | None], *, may_round: bool) -> bool:
        return len(kinds) == len(self._exact) and all(
            exact is object or (exact is kind is not None and (may_round or not is_rounded))
            for exact, kind, is_rounded in zip(self._exact, kinds, self._are_rounded, strict=True)
        )

    def tests(self, fields: Sequence[str], record: str) -> list[str]:
        """Expressions that test whether the integers of a record of a covered shape are in range; by the variables of
        its fields.
        """
        limits = zip(self._limits, fields or [record], strict=True)
        return [f"{each[0]} <= {name} <= {each[1]}" for each, name in limits if each is not None]

    def first_misfit(self, fields: Sequence[Column]) -> int | None:
        """The first row of columns of a covered shape with an integer out of range; None: there is none."""
        found = [_first_out_of_range(column, limits) for column, limits in zip(fields, self._limits, strict=True)]
        return min((row for row in found if row is not None), default=None)

    def rounded(self, fields: Sequence[Column]) -> list[Column]:
        """The columns of a covered shape; columns of type FLOAT are rounded to 32 bits."""
        return [
            self._rounded(column) if is_rounded else column
            for column, is_rounded in zip(fields, self._are_rounded, strict=True)
        ]

    def _rounded(self, column: Column) -> Column:
        with np.errstate(over="ignore"):  # as in PyFlink it becomes infinite
            singles = np.array(column.as_list(), np.float64).astype(np.float32)
        if self._is_collected:
            return ListColumn([float(str(each)) for each in singles], float)
        return ArrayColumn(singles.astype(np.float64))

    # ---------------------------------------------------------------- whole chunks

    def converted(self, chunk: Chunk) -> Chunk:
        """The chunk with converted records; takes the given chunk over.

        Raises DeclaredTypeError for the first record of another type.
        """
        if self.convert is _unchanged:
            return chunk
        columns = chunk.columns
        if columns is not None and self._covers_columns(columns):
            row = self.first_misfit(columns.fields)
            if row is not None:
                self.convert(columns.slice(row, row + 1).to_list()[0])
            fields = tuple(self.rounded(columns.fields))
            if all(map(is_, fields, columns.fields)):
                return chunk
            return Chunk.of_columns(columns.with_fields(fields), chunk.timestamps)
        return Chunk(list(map(self.convert, chunk.records())), chunk.timestamps)

    def _covers_columns(self, columns: Columns) -> bool:
        kinds = [column.value_type for column in columns.fields]
        match columns.shape:
            case Shape.TUPLE:
                return self.covers(tuple, kinds, may_round=True)
            case Shape.SCALAR:
                return kinds[0] is not None and self.covers(kinds[0], None, may_round=True)
            case Shape.ROW if isinstance(self.type_info, RowTypeInfo):
                is_alike = list(columns.field_names) == self.type_info.get_field_names()
                return is_alike and self._cover(kinds, may_round=True)
            case _:
                return False


def _unchanged(record: Any) -> Any:
    return record


def _exact(declared: TypeInformation, *, is_collected: bool) -> type | None:
    """The class whose own instances need no conversion but rounding; ``object``: none does; None: there is no class."""
    form = field_form(declared)
    if form is None:
        return object if isinstance(declared, PickledBytesTypeInfo) else None
    is_other = is_collected and form.collected is not None and not form.changes
    return None if is_other else form.exact


def _first_out_of_range(column: Column, limits: tuple[float, float] | None) -> int | None:
    if limits is None or not len(column):
        return None
    low, high = limits
    array = column.as_array(np.dtype(np.int64))
    if array is not None:
        if low <= array.min() and array.max() <= high:
            return None
        return int(np.argmax((array < low) | (array > high)))
    values = column.as_list()
    if low <= min(values) and max(values) <= high:
        return None
    return next(index for index, value in enumerate(values) if not low <= value <= high)
