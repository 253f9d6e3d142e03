"""``WriteAheadWriter``: keeps rows until a checkpoint takes them.

Hot path, per chunk: one pickle of a list.  Single records are collected first.

Side:       task.
Invariants: the numbers of what a writer prepared are 0, 1, 2, ... without a gap, in the order of its records.
Source:     Flink ``GenericWriteAheadSink``.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from flowlet.connectors.write_ahead.committable_rows import CommittableRows, encoded_part
from flowlet.datastream.connectors.sink_writer import CommittingSinkWriter, SinkWriterContext

# Of records that come one by one; one pickle of so many costs little more than its rows.
_RECORDS_OF_A_PART: Final = 1_000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class WriteAheadWriter(CommittingSinkWriter[Any]):
    """The writer of one attempt of a subtask.

    Args:
        rows_of: from records to the rows that are kept.
        max_commit_bytes: when a transaction has so many bytes, the next one begins.
        now_ms: the time since 1970.
    """

    def __init__(
        self,
        rows_of: Callable[[Sequence[Any]], Sequence[Any]],
        max_commit_bytes: int,
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        self._rows_of = rows_of
        self._max_commit_bytes = max_commit_bytes
        self._now_ms = now_ms
        # Never derived from the subtask: with another parallelism, a former subtask's rows would take a new one's
        # marker for theirs.
        self._writer = secrets.token_hex(16)
        self._number = 0
        self._records: list[Any] = []  # came one by one
        self._parts: list[bytes] = []  # of the next transaction
        self._num_rows = self._num_bytes = 0  # in _parts
        self._prepared: list[CommittableRows] = []

    def __repr__(self) -> str:
        return f"<WriteAheadWriter {self._writer}-{self._number}, {self._num_rows} rows>"

    def write(self, value: Any, context: SinkWriterContext) -> None:
        """Keep one record."""
        self._records.append(value)
        if len(self._records) >= _RECORDS_OF_A_PART:
            self._keep_records()

    def write_all(self, values: Sequence[Any], context: SinkWriterContext) -> None:
        """Keep records."""
        if self._records or len(values) < _RECORDS_OF_A_PART:
            self._records += values
            if len(self._records) >= _RECORDS_OF_A_PART:
                self._keep_records()
        else:
            self._keep(values)

    def flush(self, *, end_of_input: bool) -> None:
        """Pickle what waits."""
        self._keep_records()

    def prepare_commit(self) -> Sequence[CommittableRows]:
        """The transactions since the last call."""
        self._keep_records()
        self._end_transaction()
        prepared, self._prepared = self._prepared, []
        return prepared

    def _keep_records(self) -> None:
        if self._records:
            records, self._records = self._records, []
            self._keep(records)

    def _keep(self, values: Sequence[Any]) -> None:
        part = encoded_part(self._rows_of(values))
        self._parts.append(part)
        self._num_rows += len(values)
        self._num_bytes += len(part)
        if self._num_bytes >= self._max_commit_bytes:
            self._end_transaction()

    def _end_transaction(self) -> None:
        if self._parts:
            rows = b"".join(self._parts)
            self._prepared.append(CommittableRows(self._writer, self._number, self._now_ms(), self._num_rows, rows))
            self._number += 1
            self._parts, self._num_rows, self._num_bytes = [], 0, 0
