"""``PostgresDriver``: PostgreSQL, with psycopg 3.

Side:   task.
Rules:  ``synchronous_commit`` is on where it was off: without it a crash of the server takes rows whose checkpoint is
        complete.  A server that does not answer is given up: ``connect_timeout``, keepalives and ``tcp_user_timeout``
        are set, unless the URL does.
Source: PostgreSQL's manual (libpq: connection strings; SQLSTATE codes); psycopg 3.
"""

import datetime
import decimal
import uuid
from typing import Any, ClassVar, Final

from flowlet.common.time import Instant
from flowlet.common.values.field_values import is_missing
from flowlet.connectors.database.database_driver import (
    HINTS,
    DatabaseDriver,
    MarkerStatements,
    Trouble,
    marker_statements,
)
from flowlet.connectors.database.row_values import DatabaseError
from flowlet.datastream.connectors.database_statement import DatabaseUrl, Statement, Style

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
    plain: ClassVar[frozenset[type]] = frozenset(
        {
            str,
            bytes,
            float,
            bool,
            int,
            type(None),
            decimal.Decimal,
            datetime.date,
            datetime.time,
            datetime.datetime,
            uuid.UUID,
        }
    )
    markers: ClassVar[MarkerStatements] = marker_statements(
        Style.FORMAT, "SELECT 1 FROM pg_catalog.pg_class WHERE oid = to_regclass(?) AND relkind IN ('r', 'p')"
    )

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
        return {"23505": HINTS["duplicate"], "42P01": HINTS["table"]}.get(getattr(error, "sqlstate", None) or "", "")
