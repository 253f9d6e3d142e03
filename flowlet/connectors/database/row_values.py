"""``RowValues``: from records to the tuples that a driver takes.

Hot path, per record: one tuple, and a look at the type of each value.

Side:   pure.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from flowlet.chain.preview import preview
from flowlet.common.types import Row
from flowlet.connectors.database.database_errors import RefusedRowError


class RowValues:
    """Converts the records of one sink.

    Args:
        names: of the fields, in the order of the statement; a ``Row`` with these names may have them in another order.
        plain: types of values that need no conversion.
        converted: converts any other value; raises TypeError or ValueError if it cannot.
    """

    def __init__(self, names: Sequence[str], plain: Collection[type], converted: Callable[[Any], Any]) -> None:
        self._names = tuple(names)
        self._known = set(names)
        self._plain = frozenset(plain)
        self._converted = converted

    def of(self, records: Sequence[Any]) -> list[tuple[Any, ...]]:
        """A tuple for each record.  Raises RefusedRowError: a record is no row of these fields, or a value has no type of the database."""
        width = len(self._names)
        if set(map(type, records)) == {tuple} and set(map(len, records)) == {width}:
            rows: list[tuple[Any, ...]] = list(records)
        else:
            rows = [self._row_of(record) for record in records]
        if {type(value) for row in rows for value in row} <= self._plain:
            return rows
        return [self._converted_row(row, record) for row, record in zip(rows, records, strict=True)]

    def _row_of(self, record: Any) -> tuple[Any, ...]:
        width = len(self._names)
        if not isinstance(record, Row | tuple | list):
            raise RefusedRowError(
                f"the record {preview(record)} is no row of the fields {', '.join(self._names)}: give the sink rows or tuples"
            )
        if len(record) != width:
            raise RefusedRowError(f"the record {preview(record)} has {len(record)} fields, the type of the sink has {width}")
        return self._by_name(record) if isinstance(record, Row) else tuple(record)

    def _by_name(self, row: Row) -> tuple[Any, ...]:
        try:
            fields = row.as_dict()
        except TypeError:  # it has no names
            return tuple(row)
        return tuple(fields[name] for name in self._names) if fields.keys() == self._known else tuple(row)

    def _converted_row(self, row: tuple[Any, ...], record: Any) -> tuple[Any, ...]:
        plain, convert = self._plain, self._converted
        values = []
        for name, value in zip(self._names, row, strict=True):
            try:
                values.append(value if type(value) in plain else convert(value))
            except (TypeError, ValueError, OverflowError) as error:
                raise RefusedRowError(f"field {name!r} of the record {preview(record)} cannot be written: {error}") from error
        return tuple(values)
