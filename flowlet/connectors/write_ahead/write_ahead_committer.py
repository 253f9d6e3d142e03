"""``WriteAheadCommitter``: writes the rows of complete checkpoints, each once.

Side:       task.
Invariants: a writer's transactions are committed in the order of their numbers, whichever subtasks hold them now.
            Without that, the marker of a later one would say that an earlier one is there, and its rows would be lost.
Source:     Flink ``GenericWriteAheadSink.notifyCheckpointComplete``, ``CheckpointCommitter``.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from flowlet.connectors.write_ahead.committable_rows import CommittableRows, decoded_rows
from flowlet.datastream.connectors.committer import CommitRequest, Committer
from flowlet.datastream.connectors.write_ahead_sink import CommitLaterError, WriteAheadTarget
from flowlet.errors import FlowletError

_FORGET_INTERVAL_MS: Final = 3_600_000
_CLOCK_MARGIN_MS: Final = 86_400_000  # markers are kept for a day longer: the clocks of machines differ
# After a change of the parallelism the transactions of one writer are at several subtasks, which start at about the
# same time.  A subtask that waits in vain fails, and the restart goes on from what the others have committed.  As many
# as a sink operator allows, 1 s apart.
_MAX_WAITS_FOR_PREDECESSOR: Final = 10


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class WriteAheadCommitter(Committer[CommittableRows]):
    """The committer of one attempt of a subtask.

    Args:
        target: closed with the committer.
        marker_retention_ms: how long markers are kept.
        max_retries: of one transaction.
        now_ms: the time since 1970.
    """

    def __init__(
        self,
        target: WriteAheadTarget,
        *,
        marker_retention_ms: int,
        max_retries: int,
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        self._target = target
        self._marker_retention_ms = marker_retention_ms
        self._max_retries = max_retries
        self._now_ms = now_ms
        # By writer, as far as known; a process believed dead may have raised it meanwhile.
        self._committed: dict[str, int] = {}
        self._forgot_ms: int | None = None

    def __repr__(self) -> str:
        return f"<WriteAheadCommitter to {self._target!r}>"

    def commit(self, requests: Sequence[CommitRequest[Any]]) -> None:
        """Write what is not written yet.

        Raises:
            FlowletError: nothing tells whether some rows were written.
            Exception: whatever the target raises, except CommitLaterError.
        """
        delayed: set[str] = set()  # writers of which one transaction has to wait, and so the later ones
        for request in requests:
            rows: CommittableRows = request.get_committable()
            if rows.writer in delayed:
                request.retry_later()
                continue
            try:
                is_settled = self._settle(request, rows)
            except CommitLaterError as error:
                self._committed.pop(rows.writer, None)  # the outcome may be unknown: the target has to be asked
                is_settled = request.get_number_of_retries() >= self._max_retries
                if is_settled:
                    request.signal_failed_with_unknown_reason(error)
                    return
                request.retry_later()
            if not is_settled:
                delayed.add(rows.writer)
        self._forget()

    def close(self) -> None:
        """Close the target."""
        self._target.close()

    def _settle(self, request: CommitRequest[Any], rows: CommittableRows) -> bool:
        """Commit rows if it is their turn; whether it is known that they are in the target."""
        marker = self._committed.get(rows.writer)
        if marker is None or marker < rows.number - 1:
            marker = self._committed[rows.writer] = self._target.committed(rows.writer)
        if marker >= rows.number:
            request.signal_already_committed()
            return True
        self._check_age(rows, marker)
        if marker < rows.number - 1:
            _check_waits(rows, marker, request.get_number_of_retries())
            request.retry_later()
            return False
        self._target.commit(rows.writer, rows.number, decoded_rows(rows.rows))
        self._committed[rows.writer] = rows.number
        return True

    def _check_age(self, rows: CommittableRows, marker: int) -> None:
        age_ms = self._now_ms() - rows.prepared_ms
        if marker < 0 and age_ms > self._marker_retention_ms:
            raise FlowletError(
                f"{rows.num_rows} rows were prepared {_days(age_ms)} days ago, and the target keeps markers for "
                f"{_days(self._marker_retention_ms)} days: nothing tells whether they were written (writer "
                f"{rows.writer}, transaction "
                f"{rows.number}); start from a newer checkpoint, or keep markers for longer if none was removed yet"
            )

    def _forget(self) -> None:
        now_ms = self._now_ms()
        if self._forgot_ms is not None and now_ms - self._forgot_ms < _FORGET_INTERVAL_MS:
            return
        self._forgot_ms = now_ms
        try:
            self._target.forget_before(now_ms - self._marker_retention_ms - _CLOCK_MARGIN_MS)
        except CommitLaterError:
            return  # old markers do no harm


def _check_waits(rows: CommittableRows, marker: int, num_waits: int) -> None:
    if num_waits >= _MAX_WAITS_FOR_PREDECESSOR:
        raise FlowletError(
            f"transaction {rows.number} of writer {rows.writer} ({rows.num_rows} rows) follows number "
            f"{rows.number - 1}, but the marker "
            f"in the target is {marker}, and stayed so: were markers removed, or does another subtask fail to commit?"
        )


def _days(duration_ms: int) -> str:
    return f"{duration_ms / 86_400_000:.3g}"
