"""``RowValues``: from records to the tuples that a driver takes.

What goes wrong with a database, in sentences that say what to do.

Hot path, per chunk: C calls per column; a call per value only in columns with values that are not plain.

Side:  pure.
Rules: no message shows a password.
"""

import datetime
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowlet.common.typeinfo import InstantTypeInfo, TypeInformation, integer_limits
from flowlet.common.types import RowFieldsError, fields_of_record, fields_of_records
from flowlet.common.values.field_values import field_form, is_missing, is_time
from flowlet.datastream.connectors.write_ahead_sink import CommitLaterError
from flowlet.errors import FlowletError
from flowlet.serde.type_serializer import preview

if TYPE_CHECKING:
    from flowlet.connectors.database.database_driver import DatabaseDriver


class DatabaseError(FlowletError):
    """The database refused something, and will refuse it again."""


class DatabaseUnavailableError(CommitLaterError):
    """The database cannot be reached, is busy, or ended the connection; whether the last transaction happened may be
    unknown.
    """


class RefusedRowError(DatabaseError):
    """A row cannot be written; the message shows it."""


def without_password(text: str, password: str | None) -> str:
    """A text of a driver, on one line, in which the password is hidden."""
    line = " ".join(text.split())
    return line.replace(password, "***") if password else line


_WHOLE: Final = frozenset({int, type(None)})
_REALS: Final = frozenset({float, int, type(None)})


class RowValues:
    """Converts the records of one sink.

    Args:
        names: of the fields, in the order of the statement; a ``Row`` with these names may have them in another order.
        driver: says which values need no conversion, and converts the others.
        types: the declared types of the fields, of which integers, dates, times and points in time are checked; none:
            unknown.
    """

    def __init__(self, names: Sequence[str], driver: "DatabaseDriver", types: Sequence[TypeInformation] = ()) -> None:
        self._names = list(names)
        self._plain = driver.plain
        self._converted = driver.converted
        everywhere = None if driver.max_int is None else (~driver.max_int, driver.max_int)
        self._limits = [integer_limits(each) or everywhere for each in types] or [everywhere] * len(self._names)
        self._checks = [_time_check(each) for each in types] or [None] * len(self._names)
        self._holds_nan = driver.holds_nan

    def of(self, records: Sequence[Any]) -> list[tuple[Any, ...]]:
        """A tuple for each record.

        Raises RefusedRowError: a record is no row of these fields, or a value has no type of the database.
        """
        width = len(self._names)
        if set(map(type, records)) == {tuple} and set(map(len, records)) == {width}:
            rows: list[tuple[Any, ...]] = list(records)
        else:
            try:
                rows = list(map(tuple, fields_of_records(records, self._names)))
            except RowFieldsError as error:
                raise self._first_refusal(records, error) from None
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        odd = [place for place, column in enumerate(columns) if not self._are_plain(place, column)]
        if not odd:
            return rows
        for place in odd:
            columns[place] = self._converted_column(place, columns[place], records)
        return list(zip(*columns, strict=True))

    def _are_plain(self, place: int, column: Sequence[Any]) -> bool:
        kinds = set(map(type, column))
        if not kinds <= self._plain or self._checks[place] is not None:
            return False
        if (
            float in kinds
            and not self._holds_nan
            and not (kinds <= _REALS and not any(map(math.isnan, filter(None, column))))
        ):
            return False
        limits = self._limits[place]
        if limits is None or int not in kinds:
            return True
        if not kinds <= _WHOLE:
            return False
        present = column if len(kinds) == 1 else [each for each in column if each is not None]
        return bool(max(present) <= limits[1] and min(present) >= limits[0])

    def _first_refusal(self, records: Sequence[Any], error: RowFieldsError) -> RefusedRowError:
        for record in records:
            try:
                fields_of_record(record, self._names)
            except RowFieldsError as its_error:
                return RefusedRowError(f"the record {preview(record)} is {its_error}")
        raise error

    def _converted_column(self, place: int, column: Sequence[Any], records: Sequence[Any]) -> list[Any]:
        convert = self._converted
        check = self._checks[place]
        limits = self._limits[place]
        values = []
        for value, record in zip(column, records, strict=True):
            try:
                if check is not None:
                    check(value)
                converted = convert(value)
                if (
                    limits is not None
                    and type(converted) is int
                    and type(value) is int
                    and not limits[0] <= value <= limits[1]
                ):
                    raise ValueError(f"{value} does not fit into its declared type, from {limits[0]} to {limits[1]}")
                values.append(converted)
            except (TypeError, ValueError, OverflowError) as error:
                name = self._names[place]
                raise RefusedRowError(
                    f"field {name!r} of the record {preview(record)} cannot be written: {error}"
                ) from error
        return values


def _time_check(type_info: TypeInformation) -> Callable[[Any], None] | None:
    """The function that refuses a date or time which the declared type does not hold; None: it is no type of dates and
    times.
    """
    if isinstance(type_info, InstantTypeInfo):
        return _check_point
    form = field_form(type_info) if is_time(type_info) else None
    if form is None:
        return None

    def check(value: Any) -> None:
        if isinstance(value, datetime.datetime | datetime.time) and value.tzinfo is not None:
            raise ValueError(
                f"{value.isoformat()} has a time zone, which {type_info!r} does not have: declare the field as INSTANT"
            )
        if isinstance(value, datetime.datetime) and not is_missing(value):
            form.checked(value)

    return check


def _check_point(value: Any) -> None:
    if isinstance(value, datetime.datetime) and value.tzinfo is None and not is_missing(value):
        raise ValueError(f"{value.isoformat()} has no time zone, so that it is no point in time")
