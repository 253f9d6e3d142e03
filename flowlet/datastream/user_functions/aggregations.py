"""The built-in aggregations of keyed streams, as reductions: ``sum``, ``min``, ``max``, ``min_by`` and ``max_by``.

Side:       pure.  Pickled with the job, called on the thread of one task; on columns the operator computes equal
            results without calling them.
Invariants: records are not changed; of equal records the first one stays.
Source:     PyFlink ``KeyedStream.min`` and its relatives.
"""

import copy
from collections.abc import Sequence
from numbers import Number
from typing import Any

from flowlet.common.checks import check_number
from flowlet.common.typeinfo import TupleTypeInfo, TypeInformation
from flowlet.common.types import Row
from flowlet.datastream.user_functions.record_functions import MapFunction, ReduceFunction
from flowlet.errors import JobGraphError


def with_field(record: Any, position: Any, value: Any) -> Any:
    """A copy of the record with the value in the field at a position or of a name; the value itself, if the record has
    no fields.
    """
    if isinstance(record, list | Row):
        changed: Any = copy.copy(record)
        changed[position] = value
        return changed
    if isinstance(record, tuple):
        fields = list(record)
        fields[_index(record, position)] = value
        # Also for subclasses: the constructor of a named tuple takes single fields.
        return tuple.__new__(type(record), fields)
    return value


def _index(record: Any, position: Any) -> Any:
    if isinstance(record, tuple) and isinstance(position, str):
        return getattr(record, "_fields", ()).index(position)
    return position


class Aggregation(ReduceFunction):
    """An aggregation of one field of tuples, lists or rows, or of plain values (position 0).

    ``position``: the position or name of the field.  ``method``: the method of ``KeyedStream``; by both an operator
    computes the aggregation on columns.  ``sum``, ``min`` and ``max`` put the result so far into the key's first
    record; ``min_by`` and ``max_by`` keep the record with the lowest or highest field.  ``skips_nulls``: skip records
    with None in the field, as columns do; otherwise they fail the job.
    """

    def __init__(self, method: str, position: int | str, *, skips_nulls: bool = False) -> None:
        self.method = method
        self.position = position
        self.skips_nulls = skips_nulls
        self.is_sum = method == "sum"
        self.is_largest = method.startswith("max")
        self.keeps_record = method.endswith("_by")

    def reduce(self, value1: Any, value2: Any) -> Any:
        """The record so far (``value1``), or the record that replaces it."""
        if self.is_sum:
            return self.added(value1, value2)
        so_far, field = self._field(value1), self._field(value2)
        if self.skips_nulls and field is None:
            return value1
        is_null = self.skips_nulls and so_far is None
        if not is_null and not (field > so_far if self.is_largest else field < so_far):
            return value1
        return value2 if self.keeps_record else with_field(value1, self.position, field)

    def added(self, so_far: Any, record: Any) -> Any:
        """The record so far with the sum of both fields."""
        addend = self.number(record)
        total = self.number(so_far)
        if addend is None:
            return so_far
        return with_field(so_far, self.position, addend if total is None else total + addend)

    def number(self, record: Any) -> Any:
        """The number to sum; None, if nulls are skipped.

        Raises TypeError: it is no number, or the record is of a type without such a field.  If another record lacks the
        field, its own error passes.
        """
        if isinstance(record, tuple | list | Row):
            is_named = isinstance(record, tuple) and isinstance(self.position, str)
            if is_named and self.position not in getattr(record, "_fields", ()):
                raise TypeError(
                    f"sum({self.position!r}) needs rows or named tuples with that field, got a {type(record).__name__}"
                )
            value = record[_index(record, self.position)]
        elif self.position == 0:
            value = record
        else:
            raise TypeError(
                f"sum({self.position!r}) needs tuples, lists or rows, got a value of type {type(record).__name__}"
            )
        if not isinstance(value, Number) and not (self.skips_nulls and value is None):
            raise TypeError(f"sum({self.position!r}) adds numbers, got a value of type {type(value).__name__}")
        return value

    def _field(self, record: Any) -> Any:
        if not isinstance(record, tuple | list | Row):
            if self.position == 0:
                return record
            raise self._refused(record)
        try:
            return record[_index(record, self.position)]
        except (IndexError, KeyError, TypeError, ValueError):
            raise self._refused(record) from None

    def _refused(self, record: Any) -> TypeError:
        return TypeError(f"{self.method}({self.position!r}): a {type(record).__name__} has no such field")


class Projection(MapFunction):
    """Makes a tuple of the fields at some positions."""

    def __init__(self, positions: Sequence[int]) -> None:
        self._positions = tuple(positions)

    def map(self, value: Any) -> tuple[Any, ...]:
        """The tuple of these fields."""
        return tuple([value[position] for position in self._positions])


def projected_type(type_info: TypeInformation, positions: Sequence[Any]) -> TupleTypeInfo:
    """The type of the tuples that ``project`` makes.

    Raises JobGraphError: the records are no tuples, or have no such field.
    """
    if not isinstance(type_info, TupleTypeInfo):
        raise JobGraphError(
            f"Only Tuple DataStreams can be projected: declare a type such as Types.TUPLE([...]), this is {type_info!r}"
        )
    types = type_info.get_field_types()
    if not positions:
        raise JobGraphError("project() needs the position of at least one field")
    for position in positions:
        check_number(position, 0, f"project() needs positions from 0 to {len(types) - 1}", at_most=len(types) - 1)
    return TupleTypeInfo([types[position] for position in positions])
