"""Detects that a producer waits too long, for credit or for the job.

Asks the JobManager whether a gate still reads where its producer sends to.

Side:       loop.
Invariants: one report per wait, and a question every ``NO_CREDIT_QUESTION_S`` of it.
Why:        a gate that grants no credit may be slow, which may last for hours, or its job may be gone from where the
            producer looks.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from flowlet.ingest.description import GateDescription
from flowlet.ingest.errors import (
    GateAccessError,
    GateEndedError,
    GateError,
    GateLostError,
    GateNotFoundError,
    GateUnreachableError,
)
from flowlet.ingest.lookup import describe_gate, secret_of
from flowlet.rpc.requests import RpcStatusError
from netstack.log_lines import LogLines

WARN_AFTER_S: Final = 10.0
NO_CREDIT_QUESTION_S: Final = 10.0  # of the JobManager, which knows what became of the gate's TaskManager
CREDIT: Final = "credit: the gate's job does not read"


class StallWatch:
    """Observes the buffer pool of one writer (``mark_start``, ``mark_end``).

    Threading: the writing thread marks, the loop thread reads.  Each field has one writer, and a stale value only
               delays a report.
    """

    __slots__ = ("_asked_s", "_clock", "_reported_since_s", "_since_s", "awaited")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since_s: float | None = None  # Written by the writing thread.
        self._asked_s = clock()  # the last question.  Written by the loop thread.
        # What the current wait is for, in words.  Written by the writing thread, before ``_since_s``.
        self.awaited = CREDIT
        # Start of the last wait that was reported.  Written by the loop thread.
        self._reported_since_s: float | None = None

    def __repr__(self) -> str:
        return f"<StallWatch {'idle' if self._since_s is None else f'waits since {self._since_s:.1f}'}>"

    def mark_start(self, awaited: str = CREDIT) -> None:
        """The writer starts to wait; buffer pools call it without an argument."""
        self.awaited = awaited
        self._since_s = self._clock()

    def mark_end(self) -> None:
        """The writer continues."""
        self._since_s = None

    def overdue_s(self) -> float | None:
        """How long the current wait has lasted, if that is too long and was not reported before."""
        since_s = self._since_s
        if since_s is None or since_s == self._reported_since_s:
            return None
        waited_s = self._clock() - since_s
        if waited_s < WARN_AFTER_S:
            return None
        self._reported_since_s = since_s
        return waited_s

    def is_question_due(self) -> bool:
        """Whether the JobManager shall be asked about the current wait, now or again; a question counts as asked."""
        since_s, now_s = self._since_s, self._clock()
        if since_s is None or now_s - max(since_s, self._asked_s) < NO_CREDIT_QUESTION_S:
            return False
        self._asked_s = now_s
        return True


_log = LogLines(__name__)
_TASKS_TIMEOUT_S: Final = 4.0  # the question is asked again
_TIMEOUT_S: Final = 60.0


async def why_in_vain(description: GateDescription, secret_file: Path | None = None) -> GateError | None:
    """Why waiting for credit is in vain; None: the gate's tasks run where the description says, or nobody can tell.

    Without the cluster's secret nobody can; then only heartbeats and the end of the connection tell.
    """
    try:
        secret = await asyncio.to_thread(secret_of, secret_file)
        now = await describe_gate(
            description.name, description.jobmanager, _TIMEOUT_S, secret, tasks_timeout_s=_TASKS_TIMEOUT_S
        )
    except (GateAccessError, GateUnreachableError) as error:
        _log.info("the JobManager cannot be asked why a gate grants no credit", gate=str(description), error=str(error))
        return None
    except GateNotFoundError as error:
        # Else its tasks do not all run at the moment.
        return error if isinstance(error.__cause__, RpcStatusError) else None
    except GateEndedError as error:
        return error
    if now.job_id != description.job_id:
        return GateEndedError(f"{description} has ended: its name belongs to job {now.job_name!r} ({now.job_id}) now")
    for subtask, (before, after) in enumerate(zip(description.endpoints, now.endpoints, strict=False)):
        if before != after:
            return GateLostError(
                f"subtask {subtask} of {description} runs on the TaskManager at {after.host}:{after.port} now, not at "
                f"{before.host}:{before.port}: push the partition again with a new attempt"
            )
    return None
