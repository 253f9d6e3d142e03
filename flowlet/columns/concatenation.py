"""Several tables as one, where their columns fit together.

Hot path: C code per column.

Side:       pure.
Invariants: the joined table stands for the records of its parts, in their order; no value is converted.
"""

from collections.abc import Callable, Sequence

from flowlet.columns.column import Column
from flowlet.columns.list_column import joined
from flowlet.columns.table import Columns


def try_concatenate(tables: Sequence[Columns]) -> Columns | None:
    """One table of all records; None if that needs another representation of some column.

    There is at least one table.
    """
    return _concatenated(tables, _try_concatenate)


def concatenated(tables: Sequence[Columns]) -> Columns | None:
    """As ``try_concatenate``, but columns that do not fit together become lists; None only if the records are of other
    kinds.
    """
    return _concatenated(tables, lambda columns: _try_concatenate(columns) or joined(columns))


def _concatenated(tables: Sequence[Columns], join: Callable[[list[Column]], Column | None]) -> Columns | None:
    first = tables[0]
    if len(tables) == 1:
        return first
    if any(_differ(table, first) for table in tables):
        return None
    if any(len(table.fields) != len(first.fields) for table in tables):
        return None
    fields: list[Column] = []
    for position in range(len(first.fields)):
        column = join([table.fields[position] for table in tables])
        if column is None:
            return None
        fields.append(column)
    return first.with_fields(tuple(fields)).with_key_position(first.key_position)


def _differ(table: Columns, other: Columns) -> bool:
    """Whether the records are of other kinds, or have other keys."""
    is_same = (
        table.shape is other.shape and table.field_names == other.field_names and table.record_type is other.record_type
    )
    return not is_same or table.key_position != other.key_position or table.record_key != other.record_key


def _try_concatenate(columns: list[Column]) -> Column | None:
    template = next((column for column in columns if not column.is_constant), columns[0])
    return template.concatenate(columns)
