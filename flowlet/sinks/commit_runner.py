"""``CommitRunner``: commits what is due, and tries again later what must be.

Side:       task.
Invariants: while records flow, a pause is a timer, and nothing waits.  Before the first and after the last record no
            timer fires: then ``commit_all`` returns when nothing is due any more.
Units:      pauses in milliseconds.
Source:     Flink ``CommitterOperator.commitAndEmitCheckpoints``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from flowlet.chain.preview import preview
from flowlet.chain.stream_operator import OperatorContext
from flowlet.datastream.connectors.base import Committer
from flowlet.errors import FlowletError
from flowlet.sinks.pending_commits import PendingCommits, PendingRequest
from flowlet.sinks.sink_calls import SinkCalls
from flowlet.timers.time_api import TimerHandle
from netstack.log_lines import LogLines

RETRY_PAUSE_MS: Final = 1_000  # Flink's of ``retry_later``
_log = LogLines(__name__)


class CommitRunner:
    """The commits of one operator of a subtask.

    Args:
        ctx: of the operator.
        calls: of the operator.
        committer: None: nothing is ever due.
        on_committed: gets what was committed, whenever nothing is due any more.
    """

    def __init__(
        self,
        ctx: OperatorContext,
        calls: SinkCalls,
        committer: Committer[Any] | None,
        on_committed: Callable[[Sequence[Any]], None] | None = None,
    ) -> None:
        self.commits = PendingCommits(ctx.subtask)
        self._ctx = ctx
        self._calls = calls
        self._committer = committer
        self._on_committed = on_committed
        self._committed: list[Any] = []  # that ``on_committed`` has not got yet
        self._timer: TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<CommitRunner of {self._ctx.operator_name!r}, {self.commits!r}>"

    def commit_or_retry_later(self) -> None:
        """Try to commit what is due; what must be tried again is, by a timer."""
        self._stop_timer()
        self._commit()
        if self.commits.has_due:
            clock = self._ctx.processing_time_service
            self._timer = clock.register_timer(clock.current_time_ms() + RETRY_PAUSE_MS, self._retry)

    def commit_all(self) -> None:
        """Commit what is due; waits between the attempts."""
        self._stop_timer()
        self._commit()
        while self.commits.has_due:
            self._ctx.pause(RETRY_PAUSE_MS)
            self._commit()

    def close(self) -> None:
        """Close the committer."""
        committer, self._committer = self._committer, None
        self._stop_timer()
        if committer is not None:
            self._calls.last_call("close()", committer.close)

    def _retry(self, _: int) -> None:
        self._timer = None
        self.commit_or_retry_later()

    def _commit(self) -> None:
        """Try once."""
        committer = self._committer
        if committer is not None and self.commits.has_due:
            self._calls.call("commit()", committer.commit, self.commits.begin())
            attempt = self.commits.settle()
            for each in attempt.lost:
                self._report_lost(each)
            if attempt.unknown is not None:
                self._calls.fail(_failure_of(attempt.unknown), "commit()")
            self._committed += [each.committable for each in attempt.committed]
        if self._on_committed is not None and not self.commits.has_due:
            committed, self._committed = self._committed, []
            self._on_committed(committed)

    def _report_lost(self, request: PendingRequest) -> None:
        self._ctx.counters.num_lost_committables += 1
        _log.error(
            "never committed",
            operator=self._ctx.operator_name,
            checkpoint=request.checkpoint_id,
            committable=preview(request.committable),
            error=str(request.error),
        )

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()


def _failure_of(request: PendingRequest) -> Exception:
    if request.error is not None:
        return request.error
    return FlowletError(
        f"{preview(request.committable)} was to be committed again after {request.num_retries - 1} retries"
    )
