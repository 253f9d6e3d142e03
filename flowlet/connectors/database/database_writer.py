"""``DatabaseWriter``: writes rows in batches, at least once.

Hot path, per chunk: rows are collected; per batch: one ``executemany`` in a transaction.

Side:       task.
Invariants: after ``flush`` the database has all rows.  Rows keep their order.
Source:     Flink ``JdbcOutputFormat``, ``GenericJdbcSinkFunction``.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from flowlet.connectors.database.database_errors import DatabaseError, DatabaseUnavailableError
from flowlet.connectors.database.database_session import DatabaseSession
from flowlet.connectors.database.row_values import RowValues
from flowlet.datastream.connectors.jdbc import JdbcExecutionOptions
from flowlet.datastream.connectors.sink_writer import SinkWriter, SinkWriterContext

_FIRST_PAUSE_S: Final = 1.0  # Flink waits 1 s, 2 s, 3 s, ...


def pause_unless_cancelled(
    check_cancelled: Callable[[], None], duration_s: float, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait so many seconds; ``check_cancelled``, which is called ten times a second, ends the wait
    with what it raises.
    """
    num_slices = max(1, round(duration_s * 10))
    for _ in range(num_slices):
        check_cancelled()
        sleep(duration_s / num_slices)
    check_cancelled()


class DatabaseWriter(SinkWriter[Any]):
    """The writer of one subtask.

    Args:
        session: closed with the writer.
        values: from records to rows.
        options: size and interval of batches, retries.
        clock: with ``current_time_ms`` and ``register_timer``; only used if there is an interval.
        pause: waits so many seconds before it tries again.
    """

    def __init__(
        self,
        session: DatabaseSession,
        values: RowValues,
        options: JdbcExecutionOptions,
        clock: Any,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._session = session
        self._values = values
        self._batch_size = max(1, options.get_batch_size())
        self._interval_ms = options.get_batch_interval_ms()
        self._max_retries = options.get_max_retries()
        self._clock = clock
        self._pause = pause
        self._rows: list[tuple[Any, ...]] = []
        self._timer: Any = None
        try:
            self._retried(session.check)
        except BaseException:
            session.close()
            raise

    def __repr__(self) -> str:
        return f"<DatabaseWriter of {self._session!r}, {len(self._rows)} rows wait>"

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
        """Write what waits."""
        while self._rows:
            self._write_batch()

    def close(self) -> None:
        """Close the connection; rows that wait are dropped, for the last checkpoint does not count them as written."""
        self._stop_timer()
        self._session.close()

    def _interval_passed(self, _: int) -> None:
        self._timer = None
        self.flush(end_of_input=False)

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _write_batch(self) -> None:
        batch = self._rows[: self._batch_size]
        self._retried(lambda: self._session.transaction(lambda cursor: self._session.insert(cursor, batch)))
        del self._rows[: self._batch_size]
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
