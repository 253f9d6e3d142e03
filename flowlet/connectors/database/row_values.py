"""``RowValues``: from records to the tuples that a driver takes.

Hot path, per chunk: C calls per column; a call per value only in columns with values that are not plain.

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
        converted: from any value to one that the driver takes; raises TypeError or ValueError if there is none.
        max_int: larger integers need a look; None: there is no such limit.
    """

    def __init__(self, names: Sequence[str], plain: Collection[type], converted: Callable[[Any], Any], max_int: int | None = None) -> None:
        self._names = tuple(names)
        self._known = set(names)
        self._plain = frozenset(plain)
        self._converted = converted
        self._max_int = max_int

    def of(self, records: Sequence[Any]) -> list[tuple[Any, ...]]:
        """A tuple for each record.  Raises RefusedRowError: a record is no row of these fields, or a value has no type of the database."""
        width = len(self._names)
        if set(map(type, records)) == {tuple} and set(map(len, records)) == {width}:
            rows: list[tuple[Any, ...]] = list(records)
        else:
            rows = [self._row_of(record) for record in records]
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        odd = [place for place, column in enumerate(columns) if not self._are_plain(column)]
        if not odd:
            return rows
        for place in odd:
            columns[place] = self._converted_column(self._names[place], columns[place], records)
        return list(zip(*columns, strict=True))

    def _are_plain(self, column: Sequence[Any]) -> bool:
        kinds = set(map(type, column))
        if not kinds <= self._plain:
            return False
        if self._max_int is None or int not in kinds:
            return True
        return kinds == {int} and max(column) <= self._max_int and min(column) >= ~self._max_int

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

    def _converted_column(self, name: str, column: Sequence[Any], records: Sequence[Any]) -> list[Any]:
        convert, values = self._converted, []
        for value, record in zip(column, records, strict=True):
            try:
                values.append(convert(value))
            except (TypeError, ValueError, OverflowError) as error:
                raise RefusedRowError(f"field {name!r} of the record {preview(record)} cannot be written: {error}") from error
        return values
