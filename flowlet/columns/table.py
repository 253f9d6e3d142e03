"""Records whose fields are columns: made from a list, taken apart, joined.

Hot path: C code per column.  A few passes find the types in a list of records, 50-70 ns per record of two fields.

Side:       pure.
Invariants: every field has ``num_rows`` values; a table never changes; ``to_list`` gives new records with the exact
            values of the fields.  A joined table stands for the records of its parts, in their order.  A value is
            converted only if ``to_list`` gives exactly this value back.
Rules:      of a list of records, bool is not int; a subclass is not its base; ints beyond 64 bits and mixed types stay
            in lists; floats go through their bits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any, Final

from flowlet.columns.column import Column, IndexArray
from flowlet.columns.column_kinds import ArrayColumn, ConstantColumn, ListColumn, joined
from netstack.late import dataclass
from netstack.late import numpy as np


class Shape(Enum):
    """The kind of the records of a table."""

    SCALAR = "scalar"  # the value of the only field
    TUPLE = "tuple"  # an exact tuple of the fields
    ROW = "row"  # a Row with field names
    OBJECT = "object"  # an instance of a class with attributes of these names, or a dict with these keys
    KEYED = "keyed"  # the value of the first of two fields; the second field is the record's key


@dataclass(frozen=True, slots=True)
class Columns:
    """A table of records.

    ``field_names``: of a ROW or OBJECT, one for each field; else empty.  ``key_position``: the position of the field
        that is the key by which the records were sent, where that is known.  ``record_type``: the class of an OBJECT.
        ``maker``: makes the list of OBJECTs from a list for each field.  ``record_key``: of KEYED, the field of the
        record itself that is the key, if that is known.

    Tables of OBJECT and KEYED exist only between a chain and its record writer, which makes bytes of them.
    """

    num_rows: int
    fields: tuple[Column, ...]
    shape: Shape
    field_names: tuple[str, ...] = ()
    key_position: int | None = None
    record_type: Any = None
    maker: Callable[[Sequence[Sequence[Any]]], list[Any]] | None = None
    record_key: int | str | None = None

    def __post_init__(self) -> None:
        assert self.fields, "records without a field have no columns"
        assert all(len(column) == self.num_rows for column in self.fields), (
            f"columns of {self.num_rows} rows: {self.fields!r}"
        )
        assert self.shape is not Shape.SCALAR or len(self.fields) == 1, f"a scalar of {len(self.fields)} fields"
        assert len(self.field_names) == (len(self.fields) if self.shape in (Shape.ROW, Shape.OBJECT) else 0), (
            f"names {self.field_names} of a {self.shape}"
        )

    def __len__(self) -> int:
        return self.num_rows

    def to_list(self) -> list[Any]:
        """One Python object per record, in a list of the caller's own."""
        if self.shape is Shape.SCALAR or self.shape is Shape.KEYED:
            return self.fields[0].to_list()
        if self.shape is Shape.OBJECT:
            assert self.maker is not None, "objects come with their maker"
            return self.maker([column.to_list() for column in self.fields])
        tuples = list(zip(*[column.to_list() for column in self.fields], strict=True))
        if self.shape is Shape.TUPLE:
            return tuples
        from flowlet.common.types import rows_of  # flowlet.common itself needs records, and so this module

        return rows_of(self.field_names, tuples)

    def records(self) -> Iterator[Any]:
        """The records one by one; tuples are made when they are asked for, which takes 30 ns less for each than all at
        once (they stay in the cache).
        """
        if self.shape is not Shape.TUPLE:
            return iter(self.to_list())
        return zip(*self.fields, strict=True)

    def take(self, indices: IndexArray) -> Columns:
        """The records at these positions, in this order."""
        return self._with(tuple([column.take(indices) for column in self.fields]), self.key_position)

    def slice(self, start: int, stop: int) -> Columns:
        """The records from ``start`` to before ``stop``; positions beyond the end are left out."""
        return self._with(tuple([column.slice(start, stop) for column in self.fields]), self.key_position)

    def narrowed(self) -> Columns:
        """These records, at least one, with integers of 64 bits in as few bytes as they need."""
        return self._with(tuple([column.narrowed() for column in self.fields]), self.key_position)

    def widened(self) -> Columns:
        """These records with narrow integers widened to 64 bits, as arithmetic needs them."""
        fields = [column.widened() for column in self.fields]
        if all(wide is column for wide, column in zip(fields, self.fields, strict=True)):
            return self
        return self._with(tuple(fields), self.key_position)

    def position_of(self, field: int | str | None) -> int | None:
        """The position of a field (None: the record itself, if it is a scalar); None if there is no such field."""
        if field is None:
            return 0 if self.shape is Shape.SCALAR else None
        if isinstance(field, str):
            return self.field_names.index(field) if field in self.field_names else None
        if self.shape is Shape.SCALAR:
            return 0 if field == 0 else None
        return field % len(self.fields) if -len(self.fields) <= field < len(self.fields) else None

    def is_unchanging(self) -> bool:
        """Whether no value of any field can change."""
        return all(column.is_unchanging() for column in self.fields)

    def with_fields(self, fields: tuple[Column, ...]) -> Columns:
        """Records of this kind with other columns; the position of their key is unknown."""
        return self._with(fields, None)

    def with_field(self, position: int, column: Column) -> Columns:
        """These records with one field in another representation."""
        return self._with((*self.fields[:position], column, *self.fields[position + 1 :]), self.key_position)

    def with_key_position(self, key_position: int | None) -> Columns:
        """These records with this position of the key; None: it is unknown."""
        return self._with(self.fields, key_position)

    def _with(self, fields: tuple[Column, ...], key: int | None) -> Columns:
        return Columns(
            len(fields[0]), fields, self.shape, self.field_names, key, self.record_type, self.maker, self.record_key
        )


def try_concatenate(tables: Sequence[Columns]) -> Columns | None:
    """One table of all records; None if that needs another representation of some column.

    There is at least one table.
    """
    return _concatenated(tables, _try_concatenate)


def concatenated(tables: Sequence[Columns]) -> Columns | None:
    """One table of all records; columns that do not fit together become lists.  None only if the tables have records of
    several kinds.

    There is at least one table.
    """
    return _concatenated(tables, lambda columns: _try_concatenate(columns) or joined(columns))


def _concatenated(tables: Sequence[Columns], join: Callable[[list[Column]], Column | None]) -> Columns | None:
    first = tables[0]
    if len(tables) == 1:
        return first
    if len(set(map(_KIND_OF_RECORDS, tables))) > 1 or len({len(table.fields) for table in tables}) > 1:
        return None
    fields: list[Column] = []
    for position in range(len(first.fields)):
        column = join([table.fields[position] for table in tables])
        if column is None:
            return None
        fields.append(column)
    return first.with_fields(tuple(fields)).with_key_position(first.key_position)


_KIND_OF_RECORDS: Final = attrgetter("shape", "field_names", "record_type", "key_position", "record_key")
"""Gives the kind of a table's records and its key: equal for tables that can be joined."""


def _try_concatenate(columns: list[Column]) -> Column | None:
    template = next((column for column in columns if not column.is_constant), columns[0])
    return template.concatenate(columns)


# Equal values of one of these types cannot be told apart, so one value stands for all that equal it.
_CONSTANT_TYPES = frozenset({int, str, bool, bytes})
_SCALARS = frozenset({int, str, float, bool})
_MIN_NUMBER_TUPLES: Final = 256  # fewer are quicker without numpy, whose calls take 15 us


def columns_of(values: list[Any]) -> Columns | None:
    """The records as columns: tuples of one length by field; values that are all str, int, float or bool as one column.

    Returns:
        None where the list is the better form: no records, mixed types, other types, empty tuples.
    """
    kind = exact_type(values)
    if kind is tuple:
        numbers = None
        if len(values) >= _MIN_NUMBER_TUPLES:
            from flowlet.columns.number_tuples import try_number_columns  # here, because it needs numpy at its import

            numbers = try_number_columns(values)
        if numbers is not None:
            return Columns(len(values), tuple(numbers), Shape.TUPLE)
        fields = try_transpose(values)
        return Columns(len(values), tuple(map(column_of, fields)), Shape.TUPLE) if fields else None
    if kind in _SCALARS:
        return Columns(len(values), (column_of(values),), Shape.SCALAR)
    return None


def column_of(values: Sequence[Any], value_type: type | None = None) -> Column:
    """The values, of any types, as the column that fits them; ``value_type``: the exact type of all, if it is known."""
    kind = value_type or exact_type(values)
    if kind in _CONSTANT_TYPES and is_constant(values):
        return ConstantColumn(values[0], len(values))
    if kind is int:
        try:
            # 10 ns per value; np.array or np.fromiter take twice that.
            return ArrayColumn(np.frombuffer(struct.pack(f"={len(values)}q", *values), np.int64))
        except struct.error:  # beyond 64 bits
            return ListColumn(list(values), int)
    if kind is float:
        return ArrayColumn(np.frombuffer(struct.pack(f"={len(values)}d", *values), np.float64))
    if kind is bool:
        return ArrayColumn(np.frombuffer(bytes(values), np.bool_))
    return ListColumn(list(values), kind)


def try_transpose(records: Sequence[tuple[Any, ...]]) -> list[Sequence[Any]] | None:
    """The fields of tuples, at least one tuple; None if the tuples have different lengths.

    One or two fields in comprehensions take 11 and 23 ns per record, ``zip`` 36 and 37.
    """
    try:
        match len(records[0]):
            case 1:
                return [[first for (first,) in records]]
            case 2:
                return [[first for first, _ in records], [record[1] for record in records]]
            case _:
                return list(zip(*records, strict=True))
    except ValueError:
        return None


def exact_type(values: Sequence[Any]) -> type | None:
    """The exact type of all values; None if they have several, or there is no value."""
    if not values:
        return None
    types = list(map(type, values))
    return types[0] if types.count(types[0]) == len(types) else None


def is_constant(values: Sequence[Any]) -> bool:
    """Whether all values equal the first one.  There is at least one."""
    first = values[0]
    # The last value tells most columns apart at once.
    return bool(values[-1] == first) and values.count(first) == len(values)
