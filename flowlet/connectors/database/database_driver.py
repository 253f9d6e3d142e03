"""Drivers of the databases that the JDBC sink writes to, and that of SQLite.

``SqliteDriver``: a file of SQLite, with the module of Python.

``PostgresDriver``: PostgreSQL, with psycopg 3.

Side:   task.
Source: PEP 249; Flink ``JdbcDialect``.  SQLite's result codes; PEP 249.  PostgreSQL's manual (libpq: connection
        strings; SQLSTATE codes); psycopg 3.
Rules:  the journal mode is the user's: it belongs to the file.  ``synchronous`` is FULL: with less, a loss of power
        takes rows whose checkpoint is complete.  ``synchronous_commit`` is on where it was off: without it a crash of
        the server takes rows whose checkpoint is complete.  A server that does not answer is given up:
        ``connect_timeout``, keepalives and ``tcp_user_timeout`` are set, unless the URL does.
"""

import datetime
import decimal
import math
import sqlite3
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, ClassVar, Final

from flowlet.common.time import Instant
from flowlet.common.values.field_values import is_missing
from flowlet.connectors.database.row_values import DatabaseError
from flowlet.connectors.database.statement import DatabaseUrl, Statement, Style

MARKER_TABLE: Final = "flowlet_commits"


class Trouble(Enum):
    """What an error of a driver means."""

    PASSES = auto()  # the same transaction may succeed later
    CONNECTION = auto()  # as above, on another connection
    STAYS = auto()


# Markers, by writer, of any database that knows ``ON CONFLICT``; ``DatabaseSession.run`` writes the placeholders.
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


class DatabaseDriver(ABC):
    """Opens connections to one database, and knows its ways.

    Attributes:
        style: how placeholders are written.
        plain: types of values that the driver takes as they are.
        max_int: the largest integer; None: there is none.
        holds_nan: whether a float that is no number stays one.
        find_table: gives no row if there is no table of a name.
    """

    style: ClassVar[Style]
    plain: ClassVar[frozenset[type]]
    max_int: ClassVar[int | None] = None
    holds_nan: ClassVar[bool] = True
    find_table: ClassVar[str]
    errors: tuple[type[Exception], ...]  # raised by the driver on purpose

    @abstractmethod
    def connect(self) -> Any:
        """A connection of PEP 249 that begins no transaction by itself.

        Raises:
            DatabaseError: the driver is not installed, or the database will never take us.
            Exception: one of ``errors``.
        """

    @abstractmethod
    def trouble(self, error: BaseException) -> Trouble:
        """What an error means."""

    @abstractmethod
    def check(self, connection: Any, statement: Statement) -> None:
        """Let the database look at a statement without running it.  Raises one of ``errors``: it will never run."""

    @abstractmethod
    def converted(self, value: Any) -> Any:
        """A value as one that the driver takes.  Raises TypeError or ValueError: there is none."""

    def begin(self) -> str:
        """The statement that begins a transaction."""
        return "BEGIN"

    def hint(self, error: BaseException) -> str:
        """What to do about an error, as the end of a sentence; empty: its text says all."""
        return ""


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
    """One file."""

    style = Style.QMARK
    # A bool is written as 0 or 1.
    plain: ClassVar[frozenset[type]] = frozenset({str, bytes, float, int, bool, type(None)})
    max_int: ClassVar[int | None] = _INT64 - 1
    holds_nan: ClassVar[bool] = False
    find_table = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"

    def __init__(self, url: DatabaseUrl) -> None:
        self.errors = (sqlite3.Error, OverflowError)
        self._url = url

    def connect(self) -> sqlite3.Connection:
        """Open the file; made if it does not exist."""
        connection = sqlite3.connect(self._url.path, timeout=self._url.busy_timeout_s, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def begin(self) -> str:
        """Take the lock for writing at once: two transactions that read first would refuse each other."""
        return "BEGIN IMMEDIATE"

    def trouble(self, error: BaseException) -> Trouble:
        """Another process writes: that passes."""
        return Trouble.PASSES if _code(error) in _BUSY else Trouble.STAYS

    def check(self, connection: Any, statement: Statement) -> None:
        """Let SQLite compile it."""
        connection.execute(f"EXPLAIN {statement.written(self.style)}", [None] * statement.num_fields).close()

    def converted(self, value: Any) -> Any:
        """Dates, times and decimals become texts, an ``Instant`` the milliseconds since 1970."""
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
        """By the result code."""
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
# What PREPARE may say and still be right later: types of parameters that it cannot guess.
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
    """One database of a server."""

    style = Style.FORMAT
    plain: ClassVar[frozenset[type]] = SqliteDriver.plain | {
        *(decimal.Decimal, datetime.date, datetime.time, datetime.datetime, uuid.UUID)
    }
    find_table = "SELECT 1 FROM pg_catalog.pg_class WHERE oid = to_regclass(?) AND relkind IN ('r', 'p')"

    def __init__(self, url: DatabaseUrl, user: str | None, password: str | None) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise DatabaseError(
                f"PostgreSQL needs psycopg, which this process does not have ({error}): install flowlet[postgres] for "
                "every TaskManager"
            ) from None
        self._psycopg = psycopg
        self._url = url
        given = {"user": user, "password": password}
        self._login: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        # The server ends a connection with an error of its own, and a broken one raises these.
        self.errors = (psycopg.Error, OverflowError, ValueError)

    def connect(self) -> Any:
        """Connect; a password that is neither in the options nor in the URL is libpq's to find:
        PGPASSWORD, ~/.pgpass.
        """
        psycopg = self._psycopg
        known = psycopg.conninfo.conninfo_to_dict(self._url.text)
        options = {name: value for name, value in _CONNECTION.items() if name not in known}
        connection = psycopg.connect(self._url.text, autocommit=True, **options, **self._login)
        try:
            if connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
                connection.execute("SET synchronous_commit TO on")
        except psycopg.Error:
            connection.close()
            raise
        return connection

    def trouble(self, error: BaseException) -> Trouble:
        """By SQLSTATE; an error without one is of the connection."""
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

    def check(self, connection: Any, statement: Statement) -> None:
        """Let the server parse it, as an unnamed prepared statement."""
        result = connection.pgconn.prepare(b"", statement.written(Style.DOLLAR).encode())
        if result.status != self._psycopg.pq.ExecStatus.FATAL_ERROR:
            return
        error = self._psycopg.errors.error_from_result(result)
        if error.sqlstate in _CHECKED_STATES:
            raise error

    def converted(self, value: Any) -> Any:
        """Lists become arrays, an ``Instant`` a point in time."""
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
        """By SQLSTATE."""
        return {"23505": _DUPLICATE, "42P01": _NO_TABLE}.get(getattr(error, "sqlstate", None) or "", "")
