"""``min``, ``max``, ``min_by`` and ``max_by`` of keyed streams, as reductions.

Side:       pure.  Pickled with the job, called on the thread of one task.
Invariants: records are not changed; of equal ones the first stays.
Source:     PyFlink ``KeyedStream.min`` and the others.
"""

import copy
from typing import Any

from flowlet.common.types import Row
from flowlet.datastream.functions import ReduceFunction

__all__ = ["Extreme"]


class Extreme(ReduceFunction):
    """The smallest or largest field so far, in the first record of its key, or with ``keeps_record`` in the record that has it.

    Records are tuples, lists, rows, or values themselves (position 0).
    """

    def __init__(self, method: str, position: int | str, *, is_largest: bool, keeps_record: bool) -> None:
        self._method = method
        self._position = position
        self._is_largest = is_largest
        self._keeps_record = keeps_record

    def reduce(self, value1: Any, value2: Any) -> Any:
        """The record so far, or what takes its place."""
        so_far, field = self._field(value1), self._field(value2)
        if not (field > so_far if self._is_largest else field < so_far):
            return value1
        return value2 if self._keeps_record else self._with_field(value1, field)

    def _field(self, record: Any) -> Any:
        if not isinstance(record, tuple | list | Row):
            if self._position == 0:
                return record
            raise self._refused(record)
        try:
            return record[self._index(record)]
        except (IndexError, KeyError, TypeError, ValueError):
            raise self._refused(record) from None

    def _with_field(self, record: Any, field: Any) -> Any:
        if isinstance(record, list | Row):
            changed: Any = copy.copy(record)
            changed[self._index(record)] = field
            return changed
        if isinstance(record, tuple):
            fields = list(record)
            fields[self._index(record)] = field
            return tuple(fields) if type(record) is tuple else type(record)._make(fields)  # type: ignore[attr-defined]  # a named tuple
        return field

    def _index(self, record: Any) -> Any:
        if isinstance(record, tuple) and isinstance(self._position, str):
            return getattr(record, "_fields", ()).index(self._position)
        return self._position

    def _refused(self, record: Any) -> TypeError:
        return TypeError(f"{self._method}({self._position!r}) finds no such field in a {type(record).__name__}")
