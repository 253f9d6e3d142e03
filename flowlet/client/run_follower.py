"""Follows a job from run to run: tells a reader of new runs and of complete checkpoints.

Side:       loop (``follow_runs``); shared (``RunNews``).
Invariants: news are told in the order in which they happened; a new run is told once its channels are known; of several
            complete checkpoints of one run only the newest waits for the reader, so the news do not grow.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from flowlet.client.remote import JobEndedError, JobProgress, RunChannels
from flowlet.client.result_buffer import NO_CHECKPOINT, CheckpointCompleted
from flowlet.common.job_status import JobStatus

News = CheckpointCompleted | RunChannels


class ProgressSource(Protocol):
    """The JobManager, as far as a reader follows a job."""

    async def wait_channels(self, job_id: str, edge_id: str, after_attempt: int | None = None) -> RunChannels:
        """The channels of the first run after ``after_attempt``, once it is deployed.

        Raises JobEndedError: there will be none.
        """

    async def wait_progress(self, job_id: str, edge_id: str, attempt: int, after_checkpoint: int) -> JobProgress:
        """Where the job stands, once a newer checkpoint is complete or run ``attempt`` is over."""


class RunNews:
    """What the reader has not heard yet.  Threading: ``tell`` on the loop thread, ``take`` on the reader's."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: deque[News] = deque()  # Guarded by _lock.

    def __repr__(self) -> str:
        return f"<RunNews {len(self._waiting)} waiting>"

    def tell(self, news: News) -> None:
        """Add news, and wake the reader."""
        with self._lock:
            if (
                isinstance(news, CheckpointCompleted)
                and self._waiting
                and isinstance(self._waiting[-1], CheckpointCompleted)
            ):
                self._waiting.pop()
            self._waiting.append(news)
        self._wake()

    @property
    def has_any(self) -> bool:
        """Whether there are news."""
        with self._lock:
            return bool(self._waiting)

    def take(self) -> News | None:
        """The oldest news, or None."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None


async def follow_runs(
    source: ProgressSource, job_id: str, edge_id: str, run: RunChannels, tell: Callable[[News], None]
) -> None:
    """Tell what happens after the beginning of ``run``, until the job has ended.

    Raises:
        FlowletError: the JobManager cannot be asked.
    """
    attempt, completed = run.attempt, run.restored_checkpoint_id
    while True:
        progress = await source.wait_progress(job_id, edge_id, attempt, completed)
        if progress.attempt == attempt and progress.last_completed_checkpoint_id > completed:
            completed = progress.last_completed_checkpoint_id
            tell(CheckpointCompleted(completed))
        if progress.attempt == attempt and progress.state == JobStatus.RUNNING.name:
            continue
        try:
            run = await source.wait_channels(job_id, edge_id, after_attempt=attempt)
        except JobEndedError:
            return
        attempt, completed = run.attempt, max(NO_CHECKPOINT, run.restored_checkpoint_id)
        tell(run)
