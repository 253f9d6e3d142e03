"""``DatabaseWriter``: writes rows in batches, at least once.

``DatabaseTarget``: rows and their marker in one transaction, exactly once.

``RowValues``: converts records to the tuples that a driver takes.

Hot path, per chunk: rows are collected, with C calls per column, and a call per value only in columns with values that
are not plain; per batch: one ``executemany`` in a transaction.

``writer_of`` and ``target_of``: make the objects that a task runs from the options of a sink; loaded by name.

Side:       task.
Invariants: the marker of a writer is a row of the table ``flowlet_commits``; it is raised by one, from the number
            before, in the transaction of the rows.  So if two processes commit one batch of rows, the second one finds
            the marker raised and changes nothing.  After ``flush`` the database has all rows.  Rows keep their order.
Source:     Flink ``JdbcOutputFormat``, ``GenericJdbcSinkFunction``.
"""

import contextlib
import datetime
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import InitVar
from functools import partial
from typing import Any, Final, assert_never

from flowlet.common.typeinfo import InstantTypeInfo, TypeInformation
from flowlet.common.types import RowFieldsError, fields_of_record, fields_of_records
from flowlet.common.values.conversion import field_form, integer_limits
from flowlet.common.values.field_values import is_missing
from flowlet.connectors.database.database_driver import (
    DatabaseDriver,
    DatabaseError,
    DatabaseUnavailableError,
    PostgresDriver,
    RefusedRowError,
    SqliteDriver,
)
from flowlet.connectors.database.statement import DatabaseKind, DatabaseStatement, JdbcExecutionOptions
from flowlet.datastream.connectors.base import SinkWriter, SinkWriterContext, WriterInitContext
from flowlet.datastream.connectors.write_ahead_sink import WriteAheadTarget
from flowlet.serde.type_serializer import preview
from netstack.late import dataclass
from netstack.loop.eventloop import wall_clock_ms

MARKER_TABLE: Final = "flowlet_commits"
# Markers, by writer, of any database that knows ``ON CONFLICT``; ``DatabaseDriver.run`` writes the placeholders.
CREATE_MARKERS: Final = (
    f"CREATE TABLE IF NOT EXISTS {MARKER_TABLE} "
    "(writer VARCHAR(64) PRIMARY KEY, number BIGINT NOT NULL, committed_ms BIGINT NOT NULL)"
)
SELECT_MARKER: Final = f"SELECT number FROM {MARKER_TABLE} WHERE writer = ?"  # noqa: S608  # no text of users
# Writer, time in ms since 1970; the number is 0.  Changes no row if the writer has a marker.
INSERT_MARKER: Final = (
    f"INSERT INTO {MARKER_TABLE} (writer, number, committed_ms) VALUES (?, 0, ?) "  # noqa: S608
    "ON CONFLICT (writer) DO NOTHING"
)
# Number, time, writer, the number before.
RAISE_MARKER: Final = f"UPDATE {MARKER_TABLE} SET number = ?, committed_ms = ? WHERE writer = ? AND number = ?"  # noqa: S608
FORGET_MARKERS: Final = f"DELETE FROM {MARKER_TABLE} WHERE committed_ms < ?"  # noqa: S608


class DatabaseTarget(WriteAheadTarget):
    """The target of one attempt of a subtask; checks the statement before the first record.

    Raises DatabaseError: the statement cannot be run, or the table of markers cannot be made.

    Args:
        driver: closed with the target.
        batch_size: a transaction runs the statement for so many rows at a time.
        now_ms: the time since 1970.
    """

    def __init__(self, driver: DatabaseDriver, batch_size: int, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._driver = driver
        self._batch_size = max(1, batch_size)
        self._now_ms = now_ms
        self._has_table = False
        try:
            with contextlib.suppress(DatabaseUnavailableError):  # no reason to fail: commits come later
                driver.check()
                self._make_table()
        except BaseException:
            driver.close()
            raise

    def __repr__(self) -> str:
        return f"<DatabaseTarget of {self._driver!r}>"

    def committed(self, writer: str) -> int:
        """The marker of a writer; -1 if there is none."""
        self._make_table()
        return self._driver.transaction(lambda cursor: self._marker(cursor, writer))

    def commit(self, writer: str, number: int, rows: Sequence[Any]) -> None:
        """Write the rows and raise the marker, unless it is raised already."""
        self._make_table()
        self._driver.transaction(lambda cursor: self._commit(cursor, writer, number, rows))

    def forget_before(self, time_ms: int) -> None:
        """Remove old markers."""
        self._make_table()
        self._driver.transaction(lambda cursor: self._driver.run(cursor, FORGET_MARKERS, time_ms))

    def close(self) -> None:
        """Close the connection."""
        self._driver.close()

    def _marker(self, cursor: Any, writer: str) -> int:
        found = self._driver.run(cursor, SELECT_MARKER, writer).fetchone()
        return -1 if found is None else int(found[0])

    def _commit(self, cursor: Any, writer: str, number: int, rows: Sequence[Any]) -> None:
        if number == 0:
            self._driver.run(cursor, INSERT_MARKER, writer, self._now_ms())
        else:
            self._driver.run(cursor, RAISE_MARKER, number, self._now_ms(), writer, number - 1)
        if cursor.rowcount == 1:
            for start in range(0, len(rows), self._batch_size):
                self._driver.insert(cursor, list(rows[start : start + self._batch_size]))
            return
        marker = self._marker(cursor, writer)
        if marker < number:
            raise DatabaseError(
                f"the marker of writer {writer} in {MARKER_TABLE} is {marker}, and number {number} is to be committed"
            )

    def _make_table(self) -> None:
        """Create the table of markers if it is missing.

        It looks first, because the database would refuse a user who may not create tables, even if the table exists.
        """
        if self._has_table:
            return
        if not self._driver.transaction(self._table_exists):
            try:
                self._driver.transaction(lambda cursor: self._driver.run(cursor, CREATE_MARKERS))
            except DatabaseError as error:
                # Another subtask may have created it just now, which PostgreSQL reports as a duplicate.
                if not self._driver.transaction(self._table_exists):
                    raise DatabaseError(f"{error}; exactly_once_sink() needs this table: {CREATE_MARKERS}") from error
        self._has_table = True

    def _table_exists(self, cursor: Any) -> bool:
        return self._driver.run(cursor, self._driver.find_table, MARKER_TABLE).fetchone() is not None


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

    def __init__(self, names: Sequence[str], driver: DatabaseDriver, types: Sequence[TypeInformation] = ()) -> None:
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


_TIMES: Final = frozenset({"date32", "time64[us]", "timestamp[us]"})  # Arrow's names


def _time_check(type_info: TypeInformation) -> Callable[[Any], None] | None:
    """A function that refuses dates and times which the declared type does not hold; None: it is another type."""
    if isinstance(type_info, InstantTypeInfo):
        return _check_point
    form = field_form(type_info)
    if form is None or form.arrow not in _TIMES:
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


_FIRST_PAUSE_S: Final = 1.0  # Flink waits 1 s, 2 s, 3 s, ...


def pause_unless_cancelled(
    check_cancelled: Callable[[], None], duration_s: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait so many seconds; ``check_cancelled``, called ten times a second, ends the wait if it raises."""
    num_slices = max(1, round(duration_s * 10))
    for _ in range(num_slices):
        check_cancelled()
        sleep(duration_s / num_slices)
    check_cancelled()


@dataclass(eq=False, repr=False)
class DatabaseWriter(SinkWriter[Any]):
    """The writer of one subtask.

    Args:
        driver: closed with the writer.
        values: converts records to rows.
        options: size and interval of batches, retries.
        clock: with ``current_time_ms`` and ``register_timer``; only used if there is an interval.
        pause: waits so many seconds before it tries again.
    """

    _driver: DatabaseDriver
    _values: RowValues
    options: InitVar[JdbcExecutionOptions]
    _clock: Any
    _pause: Callable[[float], None] = time.sleep

    def __post_init__(self, options: JdbcExecutionOptions) -> None:
        self._batch_size = max(1, options.get_batch_size())
        self._interval_ms = options.get_batch_interval_ms()
        self._max_retries = options.get_max_retries()
        self._rows: list[tuple[Any, ...]] = []
        self._timer: Any = None
        try:
            self._retried(self._driver.check)
        except BaseException:
            self._driver.close()
            raise

    def __repr__(self) -> str:
        return f"<DatabaseWriter of {self._driver!r}, {len(self._rows)} rows wait>"

    def write(self, value: Any, context: SinkWriterContext) -> None:
        """Take one record."""
        self.write_all([value], context)

    def write_all(self, values: Sequence[Any], context: SinkWriterContext) -> None:
        """Take records, and write full batches."""
        self._rows += self._values.of(values)
        while len(self._rows) >= self._batch_size:
            self._write_batch()
        if self._rows and self._interval_ms > 0 and self._timer is None:
            self._timer = self._clock.register_timer(
                self._clock.current_time_ms() + self._interval_ms, self._interval_passed
            )

    def flush(self, *, end_of_input: bool) -> None:
        """Write the rows that wait."""
        while self._rows:
            self._write_batch()

    def close(self) -> None:
        """Close the connection; rows that wait are dropped, for the last checkpoint does not count them as written."""
        self._stop_timer()
        self._driver.close()

    def _interval_passed(self, _: int) -> None:
        self._timer = None
        self.flush(end_of_input=False)

    def _stop_timer(self) -> None:
        timer = self._timer
        self._timer = None
        if timer is not None:
            timer.cancel()

    def _write_batch(self) -> None:
        batch = self._rows[: self._batch_size]
        self._retried(lambda: self._driver.transaction(lambda cursor: self._driver.insert(cursor, batch)))
        del self._rows[: self._batch_size]  # not before: a retry needs the rows
        if not self._rows:
            self._stop_timer()

    def _retried(self, call: Callable[[], None]) -> None:
        for attempt in range(self._max_retries + 1):
            try:
                return call()
            except DatabaseUnavailableError as error:
                if attempt == self._max_retries:
                    raise DatabaseError(f"{error}; tried {attempt + 1} times") from error
            self._pause(_FIRST_PAUSE_S * (attempt + 1))
        return None


def driver_of(statement: DatabaseStatement) -> DatabaseDriver:
    """The driver.  Raises DatabaseError: it is not installed."""
    match statement.connection.database.kind:
        case DatabaseKind.SQLITE:
            return SqliteDriver(statement)
        case DatabaseKind.POSTGRESQL:
            return PostgresDriver(statement)
        case _ as unknown:
            assert_never(unknown)


def row_values_of(statement: DatabaseStatement) -> RowValues:
    """The converter from records to rows.  Raises DatabaseError: the driver is not installed."""
    return RowValues(statement.field_names, driver_of(statement), statement.field_types)


def writer_of(statement: DatabaseStatement, context: WriterInitContext) -> DatabaseWriter:
    """The writer of one subtask.

    Raises DatabaseError: the database will never run the statement, or cannot be reached.
    """
    clock = context.get_processing_time_service() if statement.execution.get_batch_interval_ms() > 0 else None
    pause = partial(pause_unless_cancelled, context.check_cancelled)
    return DatabaseWriter(driver_of(statement), row_values_of(statement), statement.execution, clock, pause)


def target_of(statement: DatabaseStatement) -> DatabaseTarget:
    """The target of one attempt of a subtask.  Raises DatabaseError: the database will never run the statement."""
    return DatabaseTarget(driver_of(statement), statement.execution.get_batch_size())
