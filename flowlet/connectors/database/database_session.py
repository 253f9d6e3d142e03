"""``DatabaseSession``: transactions over a connection that is opened when it is needed, and again after it was lost.

Side:       task.  All calls on one thread.
Invariants: between two calls no transaction is open.
Rules:      errors of a driver are translated here, once: ``DatabaseUnavailableError`` if a later attempt may succeed,
            else a ``DatabaseError`` that says what to do.
"""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from flowlet.connectors.database.database_driver import DatabaseDriver, Trouble
from flowlet.connectors.database.row_values import (
    DatabaseError,
    DatabaseUnavailableError,
    RefusedRowError,
    without_password,
)
from flowlet.connectors.database.statement import Statement
from flowlet.serde.type_serializer import preview

T = TypeVar("T")


class DatabaseSession:
    """One connection at a time to one database.

    Args:
        driver: opens connections.
        statement: what is run for each row.
        url: for messages, without a password.
        password: hidden in messages of the driver.
    """

    def __init__(self, driver: DatabaseDriver, statement: Statement, url: str, password: str | None) -> None:
        self._driver = driver
        self._statement = statement
        self._sql = statement.written(driver.style)
        self._url = url
        self._password = password
        self._connection: Any = None

    def __repr__(self) -> str:
        return f"<DatabaseSession to {self._url}, {'closed' if self._connection is None else 'connected'}>"

    def check(self) -> None:
        """Let the database look at the statement.

        Raises:
            DatabaseError: it cannot be run, for example because there is no such table.
            DatabaseUnavailableError: the database cannot be asked.
        """
        self._guarded(lambda: self._driver.check(self._connected(), self._statement))

    def transaction(self, work: Callable[[Any], T]) -> T:
        """Call ``work`` with a cursor, in a transaction.

        Raises:
            DatabaseUnavailableError: the transaction failed, or it is not known whether it happened.
            DatabaseError: it was refused, and nothing was changed.
        """
        return self._guarded(lambda: self._transaction(work))

    def run(self, cursor: Any, sql: str, *arguments: object) -> Any:
        """Run a statement of ours, with ``?`` as placeholders, in the transaction of ``cursor``; gives the cursor."""
        return cursor.execute(sql.replace("?", self._driver.style.value), arguments)

    def insert(self, cursor: Any, rows: list[tuple[Any, ...]]) -> None:
        """Run the statement for each row, in the transaction of ``cursor``.

        Raises one of the driver's errors, or RefusedRowError.
        """
        try:
            cursor.executemany(self._sql, rows)
        except self._driver.errors as error:
            if self._driver.trouble(error) is not Trouble.STAYS:
                raise
            raise _BatchRefusedError(rows, error) from error

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection = self._connection
        self._connection = None
        if connection is not None:
            try:
                connection.close()
            except self._driver.errors:
                return  # it is gone anyway

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = self._driver.connect()
        return self._connection

    def _transaction(self, work: Callable[[Any], T]) -> T:
        with contextlib.closing(self._connected().cursor()) as cursor:
            cursor.execute(self._driver.begin())
            try:
                result = work(cursor)
                cursor.execute("COMMIT")
            except BaseException:
                self._roll_back(cursor)
                raise
            return result

    def _roll_back(self, cursor: Any) -> None:
        try:
            cursor.execute("ROLLBACK")
        except self._driver.errors:
            self.close()  # with the connection goes the transaction

    def _guarded(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except _BatchRefusedError as refused:
            raise self._refusal(refused.rows, refused.error) from refused.error
        except self._driver.errors as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> DatabaseError | DatabaseUnavailableError:
        trouble = self._driver.trouble(error)
        if trouble is Trouble.CONNECTION:
            self.close()
        kind = DatabaseError if trouble is Trouble.STAYS else DatabaseUnavailableError
        return kind(f"database {self._url}: {self._reason(error)}")

    def _reason(self, error: Exception) -> str:
        hint = self._driver.hint(error)
        return without_password(str(error) or type(error).__name__, self._password) + (f"; {hint}" if hint else "")

    def _refusal(self, rows: list[tuple[Any, ...]], error: Exception) -> DatabaseError | DatabaseUnavailableError:
        """Which row of a batch it was: they are tried one by one, and rolled back."""
        found: list[tuple[tuple[Any, ...], Exception]] = []

        def search_and_undo(cursor: Any) -> None:
            for row in rows:
                try:
                    cursor.execute(self._sql, row)
                except self._driver.errors as its_error:
                    found.append((row, its_error))
                    break
            raise _UndoError

        with contextlib.suppress(_UndoError, *self._driver.errors):
            self._transaction(search_and_undo)
        if not found or self._driver.trouble(found[0][1]) is not Trouble.STAYS:
            return self._translated(error)
        row, its_error = found[0]
        return RefusedRowError(f"database {self._url} refused the row {preview(row)}: {self._reason(its_error)}")


class _UndoError(Exception):
    """Rolls a transaction back."""


class _BatchRefusedError(Exception):
    """One of some rows cannot be written."""

    def __init__(self, rows: list[tuple[Any, ...]], error: Exception) -> None:
        super().__init__()
        self.rows = rows
        self.error = error
