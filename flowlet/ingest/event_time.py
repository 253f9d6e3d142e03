"""Takes the timestamps of records from one of their columns.

Hot path: nothing per record if the column is an array.

Side:       pure.
Invariants: a record without a time is refused; a time is rounded down to milliseconds.
Units:      milliseconds since 1970 in UTC; a time without a zone is in UTC.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final

from flowlet.columns import Column, Columns
from flowlet.common.time import Instant
from flowlet.errors import SerdeError
from flowlet.records import Chunk
from flowlet.serde.type_serializer import preview
from netstack.late import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_MICROS_PER_MILLI: Final = 1000


class EventTimeColumn:
    """Gives records the time in their column, which is field ``position``.  Threading: any; it has no state."""

    __slots__ = ("name", "position")

    def __init__(self, name: str, position: int) -> None:
        self.name = name
        self.position = position

    def __repr__(self) -> str:
        return f"<EventTimeColumn {self.name!r}>"

    def stamped(self, chunk: Chunk) -> Chunk:
        """The same records with timestamps; do not use the given chunk any more.

        Raises:
            SerdeError: a record has no such column, or no time in it.
        """
        return chunk.with_timestamps(self._times(chunk)) if len(chunk) else chunk

    def _times(self, chunk: Chunk) -> NDArray[np.int64] | list[int]:
        columns = chunk.columns
        if columns is None:
            return self._of_values([self._value_of(record) for record in chunk.values])
        return self._of_column(self._column_of(columns))

    def _column_of(self, columns: Columns) -> Column:
        if self.position >= len(columns.fields):
            raise SerdeError(f"the records have {len(columns.fields)} fields, but no column {self.name!r}")
        return columns.fields[self.position]

    def _value_of(self, record: Any) -> Any:
        try:
            return record[self.position]
        except (TypeError, LookupError) as error:
            raise SerdeError(f"the record {preview(record)} has no column {self.name!r}") from error

    def _of_column(self, column: Column) -> NDArray[np.int64] | list[int]:
        numbers = column.numbers()
        is_exact = numbers is not None and numbers.is_valid is None and numbers.kind.arrow_type is None
        if numbers is None or not is_exact or numbers.array.dtype != np.int64:
            return self._of_values(column.to_list())
        return numbers.array // _MICROS_PER_MILLI if numbers.kind.is_instant else numbers.array.copy()

    def _of_values(self, values: list[Any]) -> list[int]:
        return [self._time_of(value) for value in values]

    def _time_of(self, value: Any) -> int:
        if type(value) is int and -(2**63) <= value < 2**63:
            return value
        if isinstance(value, Instant):
            return value.to_epoch_milli()
        if isinstance(value, datetime.datetime) and value.tzinfo is None:
            return (value - _EPOCH) // _MILLISECOND
        raise SerdeError(f"column {self.name!r} holds {preview(value)}, which is no time of a record")
