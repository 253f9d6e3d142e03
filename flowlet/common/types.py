"""``Row``: a record whose fields have positions, and optionally names.

Side:   pure.
Source: PyFlink ``pyflink.common.types``.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from flowlet.common.not_yet import java_only

__all__ = ["Row", "RowKind"]

_SLOTS = ("_fields", "_row_kind", "_values")


class RowKind(Enum):
    """The way in which a row changes a table."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    if not TYPE_CHECKING:  # which would take it for a member
        to_j_row_kind = java_only("the kind itself, or its name or value")

    def __str__(self) -> str:
        return ("+I", "-U", "+U", "-D")[self.value]

    def __reduce_ex__(self, protocol: object) -> tuple[type["RowKind"], tuple[int]]:
        # By value: before Python 3.11.4 an enum was pickled as a call of getattr, which the unpicklers here refuse.
        return RowKind, (self.value,)


_INSERT: Final = RowKind.INSERT


class MissingFieldError(KeyError, ValueError):
    """A row has no field of this name: a KeyError, as of a dict; PyFlink's is a ValueError."""


class Row:
    """An ordered, mutable record.

    ``Row("a", 1)`` has positions only; ``Row(name="a", age=1)`` also has names, in that order.  A row of strings makes
    rows with those names when it is called: ``Person = Row("name", "age"); Person("Alice", 11)``.  Two rows are equal
    if their kinds are, and their values by name, in any order; rows without names by position.
    """

    _fields: list[str] | None
    _values: list[Any]
    _row_kind: RowKind

    __slots__ = _SLOTS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs:
            if args:
                raise ValueError("a Row is made of positional values or of named values, not of both")
            self._fields = [*kwargs]
            self._values = [*kwargs.values()]
        else:
            self._fields = None
            self._values = [*args]
        self._row_kind = _INSERT

    @staticmethod
    def of_kind(row_kind: RowKind, *args: Any, **kwargs: Any) -> "Row":
        """Make a row of this kind; other arguments as for the constructor."""
        row = Row(*args, **kwargs)
        row.set_row_kind(row_kind)
        return row

    # PyFlink's signature has the flag positional.
    def as_dict(self, recursive: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002
        """Return the row as a dict by field name; ``recursive``: nested rows, too.

        Raises TypeError if the row has no field names.
        """
        if self._fields is None:
            raise TypeError(f"{self!r} has no field names, so it cannot become a dict")
        values = [_without_rows(value) for value in self._values] if recursive else self._values
        return dict(zip(self._fields, values, strict=True))

    def get_row_kind(self) -> RowKind:
        """Return how the row changes a table."""
        return self._row_kind

    def set_row_kind(self, row_kind: RowKind) -> None:
        """Set how the row changes a table."""
        self._row_kind = row_kind

    def set_field_names(self, field_names: list[str]) -> None:
        """Name the fields.  Raises ValueError if the numbers of names and fields differ."""
        if len(field_names) != len(self._values):
            raise ValueError(f"{len(field_names)} names for {len(self._values)} fields: {field_names!r}")
        self._fields = list(field_names)

    def get_fields_by_names(self, names: list[str]) -> list[Any]:
        """Return the values of these fields, in this order; of a row without names all values.

        Raises KeyError for a name that it has not.
        """
        if self._fields is None or self._fields == names:
            return self._values
        return [self[name] for name in names]

    def __contains__(self, item: object) -> bool:
        """Whether there is a field of this name; in a row without names, this value."""
        return item in (self._values if self._fields is None else self._fields)

    def __call__(self, *args: Any) -> "Row":
        """Make a row of these values; its names are this row's values.

        Raises ValueError if there are more values than names.
        """
        if len(args) > len(self._values):
            raise ValueError(f"{self!r} makes rows of {len(self._values)} values, got {len(args)}: {args!r}")
        return _restore(list(self._values), list(args), self._row_kind)

    def __getitem__(self, item: Any) -> Any:
        if type(item) is int:
            return self._values[item]
        try:
            return self._values[self._fields.index(item)]  # type: ignore[union-attr]  # what else there is comes below
        except (AttributeError, ValueError):
            return self._values[self._position(item)]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._values[self._position(key)] = value

    def __getattr__(self, item: str) -> Any:
        if item.startswith("_") or self._fields is None or item not in self._fields:
            raise AttributeError(f"{type(self).__name__} has no field {item!r}")
        return self._values[self._fields.index(item)]

    def __reduce__(self) -> "tuple[Callable[..., Row], tuple[list[str] | None, list[Any], RowKind]]":
        return _restore, (self._fields, self._values, self._row_kind)

    def __copy__(self) -> "Row":
        return _restore(self._fields, list(self._values), self._row_kind)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Row":
        row = _restore(self._fields, [], self._row_kind)
        memo[id(self)] = row  # before its values are copied: a row may contain itself
        row._values.extend([copy.deepcopy(value, memo) for value in self._values])
        return row

    def __repr__(self) -> str:
        if self._fields is None:
            return f"<Row({', '.join(map(repr, self._values))})>"
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(self._fields, self._values, strict=True))})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Row):
            return NotImplemented
        if self._row_kind is not other._row_kind:
            return False
        if self._fields == other._fields:
            return self._values == other._values
        if self._fields is None or other._fields is None or sorted(self._fields) != sorted(other._fields):
            return False
        return all(value == other[name] for name, value in zip(self._fields, self._values, strict=True))

    def __hash__(self) -> int:
        if self._fields is None:
            return hash(tuple(self._values))
        return hash(
            tuple(
                [self._values[position] for position in sorted(range(len(self._values)), key=self._fields.__getitem__)]
            )
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _position(self, item: Any) -> Any:
        if isinstance(item, int | slice):
            return item
        if self._fields is None or item not in self._fields:
            raise MissingFieldError(item)
        return self._fields.index(item)


def _restore(fields: list[str] | None, values: list[Any], row_kind: RowKind) -> Row:
    row = _new(Row)
    row._fields = fields
    row._values = values
    row._row_kind = row_kind
    return row


def rows_of(field_names: Sequence[str] | None, records: Iterable[Sequence[Any]]) -> list[Row]:
    """Make a row with these names for each record; None: without names."""
    new, kind, rows = _new, Row, []
    # Shared by all rows: nobody changes a list of names, ``set_field_names`` replaces it.
    names, insert = None if field_names is None else list(field_names), _INSERT
    for record in records:
        row = new(kind)
        row._fields = names
        row._values = [*record]
        row._row_kind = insert
        rows.append(row)
    return rows


def parts_of(rows: Sequence[Row]) -> tuple[tuple[str, ...] | None, list[list[Any]]] | None:
    """Return the names of all rows (None: they have positions only), and the values of each.

    Returns:
        None if names or numbers of values differ, or a row is no INSERT.
    """
    values = [row._values for row in rows]
    names = rows[0]._fields
    if [row._row_kind for row in rows].count(RowKind.INSERT) != len(rows) or [row._fields for row in rows].count(
        names
    ) != len(rows):
        return None
    if list(map(len, values)).count(len(values[0])) != len(values):
        return None
    return (None if names is None else tuple(names)), values


def alike_fields(values: Sequence[Any], names: tuple[str, ...]) -> list[list[Any]] | None:
    """Return the fields of rows that all have these names, or none, and change nothing; None if the
    rows are not alike.
    """
    parts = parts_of(values) if set(map(type, values)) == {Row} else None
    if parts is None or parts[0] not in (None, names) or len(parts[1][0]) != len(names):
        return None
    return parts[1]


class RowFieldsError(TypeError):
    """A record is no row of the declared fields: it lacks one, or has another one; the text names it."""


def fields_by_name(found: Sequence[str] | None, values: Sequence[Any], names: Sequence[str]) -> Sequence[Any]:
    """Return the values of a row in the order of the declared names.

    The one rule for a row that becomes a declared row: its names count if it has any, and must be the declared ones, in
    any order.  A row without names counts by position, and so does one with names where the type gives none (f0, f1,
    ...) and the row has none of these.

    Args:
        found: the names of the row's fields; None: it has none.
        values: of these fields.
        names: the declared ones, each once.

    Raises:
        RowFieldsError: the row lacks a field, or has another one.
    """
    if found is None or found == names:
        if len(values) == len(names):
            return values
        raise RowFieldsError(f"a row of {len(values)} fields, declared are {len(names)}: {', '.join(names)}")
    by_name = dict(zip(found, values, strict=True))
    missing = [name for name in names if name not in by_name]
    if not missing and len(found) == len(names):
        return [by_name[name] for name in names]
    if len(missing) == len(found) == len(names) and are_positions(names):
        return values
    if missing:
        raise RowFieldsError(f"a row without the field {missing[0]!r}, its fields are {', '.join(map(repr, found))}")
    strange = next((name for name in found if name not in names), None)
    if strange is None:
        raise RowFieldsError(f"a row that has a field twice: {', '.join(map(repr, found))}")
    raise RowFieldsError(
        f"a row with the field {strange!r}, which is not declared: declared are {', '.join(map(repr, names))}"
    )


def are_positions(names: Sequence[str]) -> bool:
    """Whether these are the default names, f0, f1, ..., of fields without names."""
    return list(names) == [f"f{index}" for index in range(len(names))]


def fields_of_record(record: Any, names: Sequence[str]) -> Sequence[Any]:
    """Return the fields of a row as ``fields_by_name`` does, of a tuple or list by position.

    Raises RowFieldsError: it has other fields.
    """
    if isinstance(record, Row):
        return fields_by_name(record._fields, record._values, names)
    if not isinstance(record, tuple | list):
        raise RowFieldsError(
            f"no row of the fields {', '.join(names)}, but a {type(record).__name__}: use rows or tuples"
        )
    return fields_by_name(None, record, names)


def fields_of_records(records: Sequence[Any], names: list[str]) -> Sequence[Sequence[Any]]:
    """Return the fields of each record as ``fields_of_record`` does; a tuple or list is returned itself, not copied.

    Raises RowFieldsError, without the record.
    """
    kinds = set(map(type, records))
    if kinds <= {tuple, list}:
        if set(map(len, records)) <= {len(names)}:
            return records
    elif kinds == {Row} and [row._fields for row in records].count(names) == len(records):
        values = [row._values for row in records]
        if set(map(len, values)) <= {len(names)}:
            return values
    return [fields_of_record(record, names) for record in records]


_new: Final = Row.__new__
restored_row: Final = _restore  # a row of these names (None: none), values and kind, which become its own


def field_names_of(row: Row) -> list[str] | None:
    """Return the names of a row's fields, in order; None if it has none.  Not a method, because a field may have any
    name.
    """
    return None if row._fields is None else list(row._fields)


def _without_rows(value: Any) -> Any:
    if isinstance(value, Row):
        return value.as_dict(recursive=True)
    if isinstance(value, list):
        return [_without_rows(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_rows(item) for key, item in value.items()}
    return value
