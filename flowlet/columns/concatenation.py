"""Several tables as one, where their columns fit together.

Hot path: C code per column.

Side:       pure.
Invariants: the joined table stands for the records of its parts, in their order; no value is converted.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from flowlet.columns.column import ArrayColumn, CodedColumn, Column, ConstantColumn, ListColumn
from flowlet.columns.short_texts import ShortTextColumn
from flowlet.columns.table import Columns

_ARRAY_TYPE_OF: dict[type, "np.dtype[Any]"] = {int: np.dtype(np.int64), bool: np.dtype(np.bool_)}
_INT64 = np.iinfo(np.int64)


def try_concatenate(tables: Sequence[Columns]) -> Columns | None:
    """One table of all records; None if that needs another representation of some column.  There is at least one table."""
    first = tables[0]
    if len(tables) == 1:
        return first
    if any(_differ(table, first) for table in tables):
        return None
    if any(len(table.fields) != len(first.fields) for table in tables):
        return None
    fields: list[Column] = []
    for position in range(len(first.fields)):
        column = _try_concatenate([table.fields[position] for table in tables])
        if column is None:
            return None
        fields.append(column)
    return first.with_fields(tuple(fields)).with_key_position(first.key_position)


def _differ(table: Columns, other: Columns) -> bool:
    """Whether the records are of other kinds, or have other keys."""
    is_same = table.shape is other.shape and table.field_names == other.field_names and table.record_type is other.record_type
    return not is_same or table.key_position != other.key_position or table.record_key != other.record_key


def _try_concatenate(columns: list[Column]) -> Column | None:
    constant = _try_constant(columns)
    if constant is not None:
        return constant
    template = next((column for column in columns if not isinstance(column, ConstantColumn)), columns[0])
    match template:
        case ArrayColumn(array=array):
            arrays = [_as_array(column, array.dtype) for column in columns]
            known = [array for array in arrays if array is not None]
            return ArrayColumn(np.concatenate(known)) if len(known) == len(arrays) else None
        case CodedColumn(names=names):
            coded = [column for column in columns if isinstance(column, CodedColumn) and column.names is names]
            return CodedColumn(np.concatenate([column.codes for column in coded]), names) if len(coded) == len(columns) else None
        case ListColumn() | ConstantColumn():
            return _try_list(columns)
        case ShortTextColumn():
            short = [column.packed16 for column in columns if isinstance(column, ShortTextColumn)]
            return ShortTextColumn(np.concatenate(short)) if len(short) == len(columns) else None
        case _:
            return None


def _try_constant(columns: list[Column]) -> Column | None:
    first = columns[0]
    for column in columns:
        if not isinstance(column, ConstantColumn) or not isinstance(first, ConstantColumn) or not _is_same(column.value, first.value):
            return None
    assert isinstance(first, ConstantColumn), "so said the loop"
    return ConstantColumn(first.value, sum(map(len, columns)))


def _is_same(value: Any, other: Any) -> bool:
    """Equal is enough only where it means the same."""
    return value is other or (type(value) is type(other) and type(value) in (int, str, bool) and value == other)


def _as_array(column: Column, dtype: "np.dtype[Any]") -> Any:
    """The array of the column, if it has this type or can be given it as it is."""
    if isinstance(column, ArrayColumn) and column.array.dtype == dtype:
        return column.array
    # Not one comparison: numpy takes None for a name of float64.
    if isinstance(column, ConstantColumn) and type(column.value) in _ARRAY_TYPE_OF and _ARRAY_TYPE_OF[type(column.value)] == dtype:
        if type(column.value) is int and not _INT64.min <= column.value <= _INT64.max:
            return None
        return np.full(len(column), column.value, dtype)
    return None


def _try_list(columns: list[Column]) -> Column | None:
    types = {_value_type(column) for column in columns}
    if not all(isinstance(column, ListColumn | ConstantColumn) for column in columns):
        return None
    return ListColumn(list(chain.from_iterable([column.to_list() for column in columns])), types.pop() if len(types) == 1 else None)


def _value_type(column: Column) -> type | None:
    if isinstance(column, ConstantColumn):
        return type(column.value)
    return column.value_type if isinstance(column, ListColumn) else None
