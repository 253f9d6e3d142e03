"""``SqliteDriver``: a file of SQLite, with the module of Python.

Side:   task.
Rules:  the journal mode is the user's: it belongs to the file.  ``synchronous`` is FULL: with less, a loss of power
        takes rows whose checkpoint is complete.
Source: SQLite's result codes; PEP 249.
"""

import datetime
import decimal
import math
import sqlite3
from collections.abc import Callable, Mapping
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
from flowlet.datastream.connectors.database_url import DatabaseUrl
from flowlet.datastream.connectors.placeholders import Statement, Style

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
    markers: ClassVar[MarkerStatements] = marker_statements(
        Style.QMARK, "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    )

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
            return HINTS["duplicate"]
        if "no such table" in str(error):
            return HINTS["table"]
        return _HINTS.get(code, "")


def _code(error: BaseException) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & _PRIMARY
