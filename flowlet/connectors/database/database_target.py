"""``DatabaseTarget``: rows and their marker in one transaction, exactly once.

Side:       task.
Invariants: the marker of a writer is a row of the table ``flowlet_commits``; it is raised by one, from the number
            before, in the transaction of the rows.  So of two processes that commit the same rows one finds that there
            is nothing left to do.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from flowlet.connectors.database.database_driver import MARKER_TABLE, DatabaseDriver
from flowlet.connectors.database.database_errors import DatabaseError, DatabaseUnavailableError
from flowlet.connectors.database.database_session import DatabaseSession
from flowlet.datastream.connectors.write_ahead_sink import WriteAheadTarget


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class DatabaseTarget(WriteAheadTarget):
    """The target of one attempt of a subtask.

    Args:
        session: closed with the target.
        driver: that of the session.
        batch_size: a transaction runs the statement for so many rows at a time.
        now_ms: the time since 1970.
    """

    def __init__(
        self, session: DatabaseSession, driver: DatabaseDriver, batch_size: int, now_ms: Callable[[], int] = _now_ms
    ) -> None:
        self._session = session
        self._markers = driver.markers
        self._batch_size = max(1, batch_size)
        self._now_ms = now_ms
        self._has_table = False

    def __repr__(self) -> str:
        return f"<DatabaseTarget of {self._session!r}>"

    def prepare(self) -> None:
        """Find out before the first record what would make every commit fail; a database that is away now is no reason.

        Raises:
            DatabaseError: the statement cannot be run, or the table of markers cannot be made.
        """
        with contextlib.suppress(DatabaseUnavailableError):
            self._session.check()
            self._make_table()

    def committed(self, writer: str) -> int:
        """The marker of a writer; -1 if there is none."""
        self._make_table()
        return self._session.transaction(lambda cursor: self._marker(cursor, writer))

    def commit(self, writer: str, number: int, rows: Sequence[Any]) -> None:
        """Write the rows and raise the marker, unless it is raised already."""
        self._make_table()
        self._session.transaction(lambda cursor: self._commit(cursor, writer, number, rows))

    def forget_before(self, time_ms: int) -> None:
        """Remove old markers."""
        self._make_table()
        self._session.transaction(lambda cursor: cursor.execute(self._markers.forget, (time_ms,)) and None)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _marker(self, cursor: Any, writer: str) -> int:
        found = cursor.execute(self._markers.select, (writer,)).fetchone()
        return -1 if found is None else int(found[0])

    def _commit(self, cursor: Any, writer: str, number: int, rows: Sequence[Any]) -> None:
        if number == 0:
            cursor.execute(self._markers.insert, (writer, self._now_ms()))
        else:
            cursor.execute(self._markers.update, (number, self._now_ms(), writer, number - 1))
        if cursor.rowcount == 1:
            for start in range(0, len(rows), self._batch_size):
                self._session.insert(cursor, list(rows[start : start + self._batch_size]))
            return
        marker = self._marker(cursor, writer)
        if marker < number:
            raise DatabaseError(
                f"the marker of writer {writer} in {MARKER_TABLE} is {marker}, and number {number} is to be committed"
            )

    def _make_table(self) -> None:
        """Create the table of markers if it is missing; without a look first, a user who may not create tables would be
        refused.
        """
        if self._has_table:
            return
        if not self._session.transaction(self._table_exists):
            try:
                self._session.transaction(lambda cursor: cursor.execute(self._markers.create) and None)
            except DatabaseError as error:
                # Another subtask may have created it at the same moment, which PostgreSQL reports as a duplicate.
                if not self._session.transaction(self._table_exists):
                    raise DatabaseError(
                        f"{error}; exactly_once_sink() needs this table: {self._markers.create}"
                    ) from error
        self._has_table = True

    def _table_exists(self, cursor: Any) -> bool:
        return cursor.execute(self._markers.find, (MARKER_TABLE,)).fetchone() is not None
