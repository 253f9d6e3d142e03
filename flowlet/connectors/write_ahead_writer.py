"""Rows that wait in the checkpoint for their transaction: ``WriteAheadWriter`` keeps them until a checkpoint takes
them, and ``WriteAheadCommitter`` writes the rows of complete checkpoints, each once.

Hot path, per chunk: one pickle of a list.  Single records are collected first.

Side:       task.
Invariants: the transactions of a writer have the numbers 0, 1, 2, ... without a gap, in the order of its records.  They
            are committed in the order of their numbers, whichever subtasks hold them now.  Without that, the marker of
            a later one would say that an earlier one is there, and its rows would be lost.
Format:     ``CommittableRows.rows`` has any number of parts, each a u32 size and so many bytes: the pickle of a list of
            rows (``record_pickle.dumps_value``).
Source:     Flink ``GenericWriteAheadSink``, its ``PendingCheckpoint``, which names a file (here the rows are state),
            and ``CheckpointCommitter``.
"""

import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, fields
from typing import Any, Final

from flowlet.datastream.connectors.base import CommitRequest, Committer, CommittingSinkWriter, SinkWriterContext
from flowlet.datastream.connectors.write_ahead_sink import CommitLaterError, WriteAheadTarget
from flowlet.errors import FlowletError, SerdeError
from flowlet.serde.pickles.record_pickle import dumps_value, has_class_table, is_of_another_program, loads_value
from netstack.late import dataclass
from netstack.loop.eventloop import wall_clock_ms

_SIZE: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class CommittableRows:
    """The rows of one transaction.

    Attributes:
        writer: the random id of the attempt that wrote them.
        number: which transaction of the writer it is, from 0.
        prepared_ms: when it was prepared, in ms since 1970.
        num_rows: for people.
        rows: see the header.

    Rows that another program prepared are read with the classes of the running one as soon as they are restored
    (``classes_found_by``).
    """

    writer: str
    number: int
    prepared_ms: int
    num_rows: int
    rows: bytes

    def __setstate__(self, state: list[Any]) -> None:
        """Take the fields; rows are written anew where they would bring classes of another program along."""
        for field, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, field.name, _with_running_classes(value) if field.name == "rows" else value)

    def __repr__(self) -> str:
        return f"<CommittableRows {self.writer}-{self.number}, {self.num_rows} rows>"


def encoded_part(rows: Sequence[Any]) -> bytes:
    """Encode rows as a part of ``CommittableRows.rows``.  Raises SerdeError: a row cannot be pickled."""
    data = dumps_value(list(rows))
    return b"".join((_SIZE.pack(len(data)), data))


def decoded_rows(data: bytes) -> list[Any]:
    """The rows of all parts, in order.

    Raises:
        SerdeError: the bytes are cut off.
        Exception: whatever rebuilding a row raises.
    """
    return [row for part in _parts(data) for row in loads_value(part)]


def _with_running_classes(data: bytes) -> bytes:
    if not is_of_another_program() or not any(map(has_class_table, _parts(data))):
        return data
    return b"".join([encoded_part(loads_value(part)) for part in _parts(data)])


def _parts(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    position = 0
    while position < len(data):
        end = position + _SIZE.size
        if end <= len(data):
            size = _SIZE.unpack_from(data, position)[0]
            position = end
            end += size
        if end > len(data):
            raise SerdeError(f"rows that wait for a commit are cut off: {len(data)} bytes, a part ends at {end}")
        yield view[position:end]
        position = end


# Of records that come one by one; one pickle of so many costs little more than its rows.
_RECORDS_OF_A_PART: Final = 1_000


@dataclass(eq=False, repr=False)
class WriteAheadWriter(CommittingSinkWriter[Any]):
    """The writer of one attempt of a subtask.

    Args:
        rows_of: converts records to the rows that are kept.
        max_commit_bytes: when a transaction has so many bytes, the next one begins.
        now_ms: the time since 1970.
    """

    _rows_of: Callable[[Sequence[Any]], Sequence[Any]]
    _max_commit_bytes: int
    now_ms: Callable[[], int] = wall_clock_ms

    def __post_init__(self) -> None:
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
        self.write_all((value,), context)

    def write_all(self, values: Sequence[Any], context: SinkWriterContext) -> None:
        """Keep records."""
        if self._records or len(values) < _RECORDS_OF_A_PART:
            self._records += values
            if len(self._records) >= _RECORDS_OF_A_PART:
                self._keep_records()
        else:
            self._keep(values)

    def flush(self, *, end_of_input: bool) -> None:
        """Pickle the records that wait."""
        self._keep_records()

    def prepare_commit(self) -> Sequence[CommittableRows]:
        """The transactions since the last call."""
        self._keep_records()
        self._end_transaction()
        prepared = self._prepared
        self._prepared = []
        return prepared

    def _keep_records(self) -> None:
        if self._records:
            records = self._records
            self._records = []
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
            self._prepared.append(CommittableRows(self._writer, self._number, self.now_ms(), self._num_rows, rows))
            self._number += 1
            self._parts = []
            self._num_rows = 0
            self._num_bytes = 0


_FORGET_INTERVAL_MS: Final = 3_600_000
_CLOCK_MARGIN_MS: Final = 86_400_000  # markers are kept for a day longer: the clocks of machines differ
# After a change of the parallelism the transactions of one writer are at several subtasks, which start at about the
# same time.  A subtask that waits in vain fails, and the restart finds the transactions that the others have committed.
# As many waits as a sink operator allows retries, 1 s apart.
_MAX_WAITS_FOR_PREDECESSOR: Final = 10


@dataclass(eq=False, repr=False)
class WriteAheadCommitter(Committer[CommittableRows]):
    """The committer of one attempt of a subtask.

    Args:
        target: closed with the committer.
        marker_retention_ms: how long markers are kept.
        max_retries: of one transaction.
        now_ms: the time since 1970.
    """

    _target: WriteAheadTarget
    _: KW_ONLY
    marker_retention_ms: int
    max_retries: int
    now_ms: Callable[[], int] = wall_clock_ms

    def __post_init__(self) -> None:
        # By writer, as far as known; a process believed dead may have raised it meanwhile.
        self._committed: dict[str, int] = {}
        self._forgot_ms: int | None = None

    def __repr__(self) -> str:
        return f"<WriteAheadCommitter to {self._target!r}>"

    def commit(self, requests: Sequence[CommitRequest[Any]]) -> None:
        """Write the rows that are not written yet.

        Raises:
            FlowletError: it is not known whether some rows were written.
            Exception: whatever the target raises, except CommitLaterError.
        """
        delayed: set[str] = set()  # writers of which one transaction has to wait, and so the later ones
        for request in requests:
            rows: CommittableRows = request.get_committable()
            if rows.writer in delayed:
                request.retry_later()
                continue
            try:
                if self._settle(request, rows):
                    continue
            except CommitLaterError as error:
                self._committed.pop(rows.writer, None)  # the outcome may be unknown: the target has to be asked
                if request.get_number_of_retries() >= self.max_retries:
                    request.signal_failed_with_unknown_reason(error)
                    return
            request.retry_later()
            delayed.add(rows.writer)
        self._forget()

    def close(self) -> None:
        """Close the target."""
        self._target.close()

    def _settle(self, request: CommitRequest[Any], rows: CommittableRows) -> bool:
        """Commit rows if their predecessors are committed; return whether they are known to be in the target."""
        marker = self._committed.get(rows.writer)
        if marker is None or marker < rows.number - 1:
            marker = self._committed[rows.writer] = self._target.committed(rows.writer)
        if marker >= rows.number:
            request.signal_already_committed()
            return True
        self._check_age(rows, marker)
        if marker < rows.number - 1:
            if request.get_number_of_retries() >= _MAX_WAITS_FOR_PREDECESSOR:
                raise FlowletError(
                    f"transaction {rows.number} of writer {rows.writer} ({rows.num_rows} rows) follows number "
                    f"{rows.number - 1}, but the marker in the target is {marker}, and stayed so: were markers "
                    "removed, or does another subtask fail to commit?"
                )
            return False
        self._target.commit(rows.writer, rows.number, decoded_rows(rows.rows))
        self._committed[rows.writer] = rows.number
        return True

    def _check_age(self, rows: CommittableRows, marker: int) -> None:
        age_ms = self.now_ms() - rows.prepared_ms
        if marker < 0 and age_ms > self.marker_retention_ms:
            raise FlowletError(
                f"{rows.num_rows} rows were prepared {_days(age_ms)} days ago, and the target keeps markers for "
                f"{_days(self.marker_retention_ms)} days: nothing tells whether they were written (writer "
                f"{rows.writer}, transaction "
                f"{rows.number}); start from a newer checkpoint, or keep markers for longer if none was removed yet"
            )

    def _forget(self) -> None:
        now_ms = self.now_ms()
        if self._forgot_ms is not None and now_ms - self._forgot_ms < _FORGET_INTERVAL_MS:
            return
        self._forgot_ms = now_ms
        try:
            self._target.forget_before(now_ms - self.marker_retention_ms - _CLOCK_MARGIN_MS)
        except CommitLaterError:
            return  # old markers do no harm


def _days(duration_ms: int) -> str:
    return f"{duration_ms / 86_400_000:.3g}"
