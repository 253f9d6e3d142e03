"""One field of a record that may be a tuple, a list, a row or a number.

Hot path, where records are summed one by one.

Side:       task.
Invariants: records are not changed.
"""

import copy
from numbers import Number
from typing import Any

from flowlet.common.types import Row


def field_to_sum(record: Any, position: int | str) -> Any:
    """The number to sum."""
    if isinstance(record, tuple):
        value = record[_index(record, position)]
    elif isinstance(record, list | Row):
        value = record[position]  # type: ignore[index]  # a list says itself that it takes no str
    elif position == 0:
        value = record
    else:
        raise TypeError(f"sum({position!r}) needs tuples, lists or rows, got a value of type {type(record).__name__}")
    return checked_number(value, position)


def checked_number(value: Any, position: int | str) -> Any:
    """The value, which must be a number."""
    if not isinstance(value, Number):
        raise TypeError(f"sum({position!r}) adds numbers, got a value of type {type(value).__name__}")
    return value


def with_field(record: Any, position: int | str, total: Any) -> Any:
    """A copy of the record with the sum in its place."""
    if isinstance(record, tuple):
        index = _index(record, position)
        fields = list(record)
        fields[index] = total
        return tuple.__new__(type(record), fields)  # of a subclass, too: a named tuple takes its fields one by one
    if isinstance(record, list | Row):
        changed = copy.copy(record)
        changed[position] = total  # type: ignore[index]  # as above
        return changed
    return total


def _index(record: tuple[Any, ...], position: int | str) -> int:
    if isinstance(position, int):
        return position
    names = getattr(record, "_fields", ())
    if position not in names:
        raise TypeError(f"sum({position!r}) needs rows or named tuples with that field, got a {type(record).__name__}")
    return list(names).index(position)
