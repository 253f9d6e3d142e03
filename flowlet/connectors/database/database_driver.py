"""Drivers of the databases that the JDBC sink writes to, and transactions over them (``DatabaseDriver``).

``SqliteDriver``: a file of SQLite, with the module of Python.

``PostgresDriver``: PostgreSQL, with psycopg 3.

The errors of databases, in sentences that say what to do.

Side:   task.  All calls on one thread.
Invariants: between two calls no transaction is open.
Source: PEP 249; Flink ``JdbcDialect``.  SQLite's result codes; PEP 249.  PostgreSQL's manual (libpq: connection
        strings; SQLSTATE codes); psycopg 3.
Rules:  the journal mode is the user's: it belongs to the file.  ``synchronous`` is FULL: with less, a loss of power
        loses rows whose checkpoint is complete.  ``synchronous_commit`` is set on where it was off: without it a crash
        of the server loses rows whose checkpoint is complete.  A server that does not answer is given up:
        ``connect_timeout``, keepalives and ``tcp_user_timeout`` are set, unless the URL does.  Errors of a driver are
        translated here, once: ``DatabaseUnavailableError`` if a later attempt may succeed, else a ``DatabaseError``
        that says what to do.  No message shows a password.
"""

import contextlib
import datetime
import decimal
import math
import sqlite3
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, ClassVar, Final, TypeVar

from flowlet.common.time import Instant
from flowlet.common.values.field_values import is_missing
from flowlet.connectors.database.statement import DatabaseStatement, Style
from flowlet.datastream.connectors.write_ahead_sink import CommitLaterError
from flowlet.errors import FlowletError
from flowlet.serde.type_serializer import preview


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


class Trouble(Enum):
    """The meaning of an error of a driver: which attempt may still succeed."""

    PASSES = auto()  # the transaction may succeed later
    CONNECTION = auto()  # the transaction may succeed later, on another connection
    STAYS = auto()  # no later attempt will succeed


T = TypeVar("T")


class DatabaseDriver(ABC):
    """Transactions over one connection at a time, which is opened when it is needed, and again after it was lost.

    A subclass knows one kind of database.

    Args:
        statement: the statement that is run for each row, with its database.

    Attributes:
        style: how placeholders are written.
        plain: types of values that the driver takes as they are.
        max_int: the largest integer; None: there is none.
        holds_nan: whether a float that is no number stays one.
        begin: the statement that begins a transaction.
        find_table: gives no row if there is no table of a name.
    """

    style: ClassVar[Style]
    plain: ClassVar[frozenset[type]]
    max_int: ClassVar[int | None] = None
    holds_nan: ClassVar[bool] = True
    begin: ClassVar[str] = "BEGIN"
    find_table: ClassVar[str]
    errors: tuple[type[Exception], ...]  # raised by the driver on purpose

    def __init__(self, statement: DatabaseStatement) -> None:
        self._database = statement.connection.database
        self._password = statement.connection.get_password()  # hidden in messages of the driver
        self._statement = statement.parsed
        self._sql = statement.parsed.written(self.style)
        self._connection: Any = None

    def __repr__(self) -> str:
        state = "closed" if self._connection is None else "connected"
        return f"<{type(self).__name__} to {self._database.text}, {state}>"

    # -- what a kind of database says

    @abstractmethod
    def connect(self) -> Any:
        """A connection of PEP 249 that begins no transaction by itself.

        Raises:
            DatabaseError: the driver is not installed, or the database will never take us.
            Exception: one of ``errors``.
        """

    @abstractmethod
    def trouble(self, error: BaseException) -> Trouble:
        """The meaning of an error."""

    @abstractmethod
    def look_at_statement(self, connection: Any) -> None:
        """Let the database look at the statement without running it.  Raises one of ``errors``: it will never run."""

    @abstractmethod
    def converted(self, value: Any) -> Any:
        """The value that the driver takes for a value.  Raises TypeError or ValueError: there is none."""

    def hint(self, error: BaseException) -> str:
        """The advice about an error, as the end of a sentence; empty: the error's text says all."""
        return ""

    # -- transactions

    def check(self) -> None:
        """Let the database look at the statement.

        Raises:
            DatabaseError: it cannot be run, for example because there is no such table.
            DatabaseUnavailableError: the database cannot be asked.
        """
        self._guarded(lambda: self.look_at_statement(self._connected()))

    def transaction(self, work: Callable[[Any], T]) -> T:
        """Call ``work`` with a cursor, in a transaction.

        Raises:
            DatabaseUnavailableError: the transaction failed, or it is not known whether it happened.
            DatabaseError: the transaction was refused, and the database is unchanged.
        """
        return self._guarded(lambda: self._transaction(work))

    def run(self, cursor: Any, sql: str, *arguments: object) -> Any:
        """Run a statement of ours, with ``?`` as placeholders, in the transaction of ``cursor``; gives the cursor."""
        return cursor.execute(sql.replace("?", self.style.value), arguments)

    def insert(self, cursor: Any, rows: list[tuple[Any, ...]]) -> None:
        """Run the statement for each row, in the transaction of ``cursor``.

        Raises one of the driver's errors, or RefusedRowError.
        """
        try:
            cursor.executemany(self._sql, rows)
        except self.errors as error:
            if self.trouble(error) is not Trouble.STAYS:
                raise
            raise _BatchRefusedError(rows, error) from error

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            with contextlib.suppress(*self.errors):  # it is gone anyway
                connection.close()

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    def _transaction(self, work: Callable[[Any], T]) -> T:
        with contextlib.closing(self._connected().cursor()) as cursor:
            cursor.execute(self.begin)
            try:
                result = work(cursor)
                cursor.execute("COMMIT")
            except BaseException:
                try:
                    cursor.execute("ROLLBACK")
                except self.errors:
                    self.close()  # with the connection goes the transaction
                raise
            return result

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except _BatchRefusedError as refused:
            raise self._refusal(refused.rows, refused.error) from refused.error
        except self.errors as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> DatabaseError | DatabaseUnavailableError:
        trouble = self.trouble(error)
        if trouble is Trouble.CONNECTION:
            self.close()
        kind = DatabaseError if trouble is Trouble.STAYS else DatabaseUnavailableError
        return kind(f"database {self._database.text}: {self._reason(error)}")

    def _reason(self, error: Exception) -> str:
        hint = self.hint(error)
        return without_password(str(error) or type(error).__name__, self._password) + (f"; {hint}" if hint else "")

    def _refusal(self, rows: list[tuple[Any, ...]], error: Exception) -> DatabaseError | DatabaseUnavailableError:
        """Find the row of a batch that the database refuses: try them one by one, and roll back."""
        found: list[tuple[tuple[Any, ...], Exception]] = []

        def search_and_undo(cursor: Any) -> None:
            for row in rows:
                try:
                    cursor.execute(self._sql, row)
                except self.errors as its_error:
                    found.append((row, its_error))
                    break
            raise _UndoError

        with contextlib.suppress(_UndoError, *self.errors):
            self._transaction(search_and_undo)
        if not found or self.trouble(found[0][1]) is not Trouble.STAYS:
            return self._translated(error)
        row, its_error = found[0]
        return RefusedRowError(
            f"database {self._database.text} refused the row {preview(row)}: {self._reason(its_error)}"
        )


class _UndoError(Exception):
    """Rolls a transaction back."""


class _BatchRefusedError(Exception):
    """A row of a batch cannot be written."""

    def __init__(self, rows: list[tuple[Any, ...]], error: Exception) -> None:
        super().__init__()
        self.rows = rows
        self.error = error


_NO_TABLE: Final = "create it first: the sink creates no tables but its own"
_DUPLICATE: Final = (
    "after a restart rows come again: use an upsert (INSERT ... ON CONFLICT ... DO UPDATE), or exactly_once_sink()"
)


_PRIMARY: Final = 0xFF  # extended result codes have more bits
_BUSY: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_INT64: Final = 1 << 63
_DECIMAL_DIGITS: Final = 15  # that a column of numbers keeps (SQLite: "Datatypes", type affinity)
_MAX_EXPONENT: Final = 307  # of its numbers of 64 bits


def _decimal_text(value: decimal.Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"SQLite has no number for the decimal {value}")
    digits = "".join(map(str, value.as_tuple().digits)).strip("0")
    if len(digits) > _DECIMAL_DIGITS or (value and abs(value.adjusted()) > _MAX_EXPONENT):
        raise ValueError(
            f"a column of numbers of SQLite keeps {_DECIMAL_DIGITS} digits of the decimal {value}: write str() of it "
            "into a column TEXT"
        )
    return str(value)


def _milliseconds(value: Instant) -> int:
    if value.nanos % 1_000_000:
        raise ValueError(f"{value!r} has a fraction of a millisecond, which would be lost: round it in map()")
    return value.to_epoch_milli()


_TEXTS: Final[Mapping[type, Callable[[Any], Any]]] = {
    datetime.datetime: lambda value: value.isoformat(" "),
    datetime.date: datetime.date.isoformat,
    datetime.time: datetime.time.isoformat,
    decimal.Decimal: _decimal_text,
    Instant: _milliseconds,
    bytearray: bytes,
}
_HINTS: Final = {
    sqlite3.SQLITE_CANTOPEN: "does the folder exist on the machine of this TaskManager, and may its user write there?",
    sqlite3.SQLITE_READONLY: "give the user of the TaskManager the permission to write the file and its folder",
    sqlite3.SQLITE_FULL: "the disk is full: free space there",
    sqlite3.SQLITE_NOTADB: "the file is no database of SQLite",
}


class SqliteDriver(DatabaseDriver):
    """The driver of one file of SQLite."""

    style = Style.QMARK
    # A bool is written as 0 or 1.
    plain: ClassVar[frozenset[type]] = frozenset({str, bytes, float, int, bool, type(None)})
    max_int: ClassVar[int | None] = _INT64 - 1
    holds_nan: ClassVar[bool] = False
    # Takes the lock for writing at once: two transactions that read first would refuse each other.
    begin = "BEGIN IMMEDIATE"
    find_table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"

    errors: tuple[type[Exception], ...] = (sqlite3.Error, OverflowError)

    def connect(self) -> sqlite3.Connection:
        """Open the file, or make it."""
        # None: Python's module begins no transactions by itself; ``_transaction`` does.
        connection = sqlite3.connect(self._database.path, timeout=self._database.busy_timeout_s, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def trouble(self, error: BaseException) -> Trouble:
        """The meaning of an error: only a lock of another writer passes."""
        return Trouble.PASSES if _code(error) in _BUSY else Trouble.STAYS

    def look_at_statement(self, connection: Any) -> None:
        """Let SQLite compile it."""
        connection.execute(f"EXPLAIN {self._sql}", [None] * self._statement.num_fields).close()

    def converted(self, value: Any) -> Any:
        """The value for SQLite: dates, times and decimals as texts, an ``Instant`` as the milliseconds since 1970."""
        if isinstance(value, float) and math.isnan(value):
            raise ValueError("SQLite has no NaN, it would become NULL: use None")
        if type(value) in self.plain and type(value) is not int:
            return value
        if isinstance(value, int):
            if -_INT64 <= value < _INT64:
                return value
            raise ValueError("SQLite has integers of 64 bits")
        convert = next((_TEXTS[kind] for kind in type(value).__mro__ if kind in _TEXTS), None)
        if convert is None or is_missing(value):
            raise TypeError(f"SQLite has no column for a {type(value).__name__}")
        return convert(value)

    def hint(self, error: BaseException) -> str:
        """The advice that belongs to the result code."""
        code = _code(error)
        if code == sqlite3.SQLITE_CONSTRAINT and "UNIQUE" in str(error):
            return _DUPLICATE
        if "no such table" in str(error):
            return _NO_TABLE
        return _HINTS.get(code, "")


def _code(error: BaseException) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & _PRIMARY


# Not measured: a lost network is noticed after about half a minute.
_CONNECTION: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "application_name": "flowlet",
}
# Begin of SQLSTATEs: connection lost; not enough resources (too many connections); the operator stopped it.
_CONNECTION_STATES: Final = ("08", "53", "57")
_RETRY_STATES: Final = ("40001", "40P01", "55P03")  # serialization failure, deadlock, lock not available
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FULL_DISK: Final = "53100"
# Errors of PREPARE that stay.  Others may be about types of parameters that it cannot guess, and pass with the values.
# Table, column, syntax, function, schema, parameter.
_CHECKED_STATES: Final = ("42P01", "42703", "42601", "42883", "3F000", "42P02")
_NEVER: Final = (
    "password authentication failed",
    "does not exist",
    "no password supplied",
    "pg_hba.conf",
    "no such file",
)


class PostgresDriver(DatabaseDriver):
    """The driver of one database of a PostgreSQL server."""

    style = Style.FORMAT
    plain: ClassVar[frozenset[type]] = SqliteDriver.plain | {
        *(decimal.Decimal, datetime.date, datetime.time, datetime.datetime, uuid.UUID)
    }
    find_table = "SELECT 1 FROM pg_catalog.pg_class WHERE oid = to_regclass(?) AND relkind IN ('r', 'p')"

    def __init__(self, statement: DatabaseStatement) -> None:
        super().__init__(statement)
        try:
            import psycopg
        except ImportError as error:
            raise DatabaseError(
                f"PostgreSQL needs psycopg, which this process does not have ({error}): install flowlet[postgres] for "
                "every TaskManager"
            ) from None
        self._psycopg = psycopg
        given = {"user": statement.connection.get_user_name(), "password": self._password}
        self._login: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        # The server ends a connection with an error of its own, and a broken one raises these.
        self.errors = (psycopg.Error, OverflowError, ValueError)

    def connect(self) -> Any:
        """Connect; libpq finds a password that is neither in the options nor in the URL: PGPASSWORD, ~/.pgpass."""
        psycopg = self._psycopg
        known = psycopg.conninfo.conninfo_to_dict(self._database.text)
        options = {name: value for name, value in _CONNECTION.items() if name not in known}
        # autocommit: psycopg begins no transactions by itself; ``_transaction`` does.
        connection = psycopg.connect(self._database.text, autocommit=True, **options, **self._login)
        try:
            if connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
                connection.execute("SET synchronous_commit TO on")
        except psycopg.Error:
            connection.close()
            raise
        return connection

    def trouble(self, error: BaseException) -> Trouble:
        """The meaning of an error by its SQLSTATE; an error without one concerns the connection."""
        psycopg = self._psycopg
        if not isinstance(error, psycopg.Error):
            return Trouble.STAYS
        state = error.sqlstate
        if state is None:
            is_final = any(each in str(error) for each in _NEVER)
            return (
                Trouble.CONNECTION
                if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not is_final
                else Trouble.STAYS
            )
        if state in _RETRY_STATES:
            return Trouble.PASSES
        return Trouble.CONNECTION if state.startswith(_CONNECTION_STATES) and state != _FULL_DISK else Trouble.STAYS

    def look_at_statement(self, connection: Any) -> None:
        """Let the server parse it, as an unnamed prepared statement."""
        result = connection.pgconn.prepare(b"", self._statement.written(Style.DOLLAR).encode())
        if result.status != self._psycopg.pq.ExecStatus.FATAL_ERROR:
            return
        error = self._psycopg.errors.error_from_result(result)
        if error.sqlstate in _CHECKED_STATES:
            raise error

    def converted(self, value: Any) -> Any:
        """The value for PostgreSQL: a list as an array, an ``Instant`` as a point in time."""
        if type(value) in self.plain:
            return value
        match value:
            case Instant():
                micros, rest = divmod(value.nanos, 1000)
                if rest:
                    raise ValueError(
                        f"{value!r} has a fraction of a microsecond, which would be lost: round it in map()"
                    )
                return _EPOCH + datetime.timedelta(seconds=value.seconds, microseconds=micros)
            case list():
                return [each if each is None or type(each) in self.plain else self.converted(each) for each in value]
            case bytearray():
                return bytes(value)
            case _ if is_missing(value) or bool(getattr(value, "nanosecond", False)):
                raise TypeError(f"there is no value of PostgreSQL for {value!r} of type {type(value).__name__}")
            case _ if any(kind in self.plain for kind in type(value).__mro__):
                return value
            case _:
                raise TypeError(f"there is no type of PostgreSQL for a {type(value).__name__}")

    def hint(self, error: BaseException) -> str:
        """The advice that belongs to the SQLSTATE."""
        return {"23505": _DUPLICATE, "42P01": _NO_TABLE}.get(getattr(error, "sqlstate", None) or "", "")
