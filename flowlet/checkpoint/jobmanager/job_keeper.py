"""``JobKeeper``: writes what happens to the jobs into the job store, in order, and says when it is there.

Side:       loop.
Invariants: the store is used on other threads only, and for each job by one at a time, in the order of the calls.  A
            callback is called once, on the loop, unless ``close`` comes first; without a store before the call returns.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from flowlet.checkpoint.jobmanager.job_store import ID_BLOCK, JobEnd, JobStore, RecoveredJob, StoredProgress
from flowlet.messages.control_messages import JobGraphMessage
from netstack.log_lines import LogLines
from netstack.loop.background_call import CallInBackground

log = LogLines(__name__)
Done = Callable[[str | None], None]
_MIN_RESERVE: Final = ID_BLOCK // 2


class JobKeeper:
    """Threading: the JobManager's loop.  A callback gets None, or why the store has not what it should have.

    ``store``: None: nothing is kept.
    """

    def __init__(self, store: JobStore | None, call_in_background: CallInBackground) -> None:
        self._store = store
        self._call_in_background = call_in_background
        self._queues: dict[str, deque[tuple[Callable[[], None], Done]]] = {}  # by job id; the first one is under way
        self._progress: dict[str, StoredProgress] = {}  # as the last write that was queued says
        self._ids_below: dict[str, int] = {}  # on disk
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<JobKeeper of {self._store!r}, writes for {len(self._queues)} jobs are under way>"

    @property
    def keeps_jobs(self) -> bool:
        """Whether there is a job store."""
        return self._store is not None

    def submitted(self, job: JobGraphMessage, done: Done) -> None:
        """Keep a new job."""
        self._progress[job.job_id] = StoredProgress()
        self._ids_below[job.job_id] = StoredProgress().ids_below
        self._enqueue(job.job_id, lambda store: store.put_job(job), done)

    def recovered(self, job: RecoveredJob) -> None:
        """Know a job that is in the store already; writes nothing."""
        completed = job.checkpoints[-1].checkpoint_id if job.checkpoints else -1
        ids_below = job.next_checkpoint_id + ID_BLOCK
        self._progress[job.job.job_id] = StoredProgress(job.attempt - 1, completed, ids_below, list(job.unrestorable))

    def run_begins(self, job_id: str, attempt: int, done: Done) -> None:
        """Keep the number of a run before it is deployed."""
        self._write_progress(job_id, msgspec.structs.replace(self._known(job_id), attempt=attempt), done)

    def checkpoint_completed(self, job_id: str, checkpoint_id: int, unrestorable: Sequence[int] = ()) -> None:
        """Keep that a checkpoint is complete, so that its loss is noticed."""
        known = self._known(job_id)
        progress = msgspec.structs.replace(known, completed_checkpoint=checkpoint_id, unrestorable=list(unrestorable))
        self._write_progress(job_id, progress, self._log_problem)

    def may_trigger(self, job_id: str, checkpoint_id: int) -> bool:
        """Whether a checkpoint may have this id: no later JobManager will use it again.  Reserves more ids in time."""
        progress = self._known(job_id)
        if checkpoint_id + _MIN_RESERVE >= progress.ids_below:
            ids_below = checkpoint_id + ID_BLOCK
            self._write_progress(job_id, msgspec.structs.replace(progress, ids_below=ids_below), self._log_problem)
        return checkpoint_id < self._ids_below.get(job_id, 0)

    def ended(self, job_id: str, end: Callable[[], JobEnd], done: Done) -> None:
        """Keep how a job ended instead of the job; if that fails, nothing of it.  ``end`` is called now, or never."""
        made = None if self._store is None else end()

        def put_end(store: JobStore) -> None:
            assert made is not None, "there is a store"
            try:
                store.put_end(job_id, made)
            except Exception:
                store.forget(job_id)  # it must not run again
                raise

        self._progress.pop(job_id, None)
        self._enqueue(job_id, put_end, done)

    def forget(self, job_id: str) -> None:
        """Keep nothing of a job."""
        self._ids_below.pop(job_id, None)
        self._enqueue(job_id, lambda store: store.forget(job_id), self._log_problem)

    def close(self) -> None:
        """Write nothing more than what is under way; no callback follows."""
        self._is_closed = True
        self._queues.clear()

    def _known(self, job_id: str) -> StoredProgress:
        return self._progress.setdefault(job_id, StoredProgress(ids_below=0))

    def _write_progress(self, job_id: str, progress: StoredProgress, done: Done) -> None:
        self._progress[job_id] = progress

        def written(problem: str | None) -> None:
            if problem is None:
                self._ids_below[job_id] = progress.ids_below
            done(problem)

        self._enqueue(job_id, lambda store: store.put_progress(job_id, progress), written)

    def _log_problem(self, problem: str | None) -> None:
        if problem is not None:
            log.warning("the job store does not take what it should keep", problem=problem)

    def _enqueue(self, job_id: str, write: Callable[[JobStore], None], done: Done) -> None:
        if self._is_closed:
            return
        store = self._store
        if store is None:
            done(None)
            return
        queue = self._queues.setdefault(job_id, deque())
        queue.append((partial(write, store), done))
        if len(queue) == 1:
            self._begin_next(job_id)

    def _begin_next(self, job_id: str) -> None:
        write, done = self._queues[job_id][0]
        self._call_in_background(
            write,
            lambda _: self._ended(job_id, done, None),
            lambda error: self._ended(job_id, done, str(error) or repr(error)),
            f"job store, {job_id}",
        )

    def _ended(self, job_id: str, done: Done, problem: str | None) -> None:
        if self._is_closed:
            return
        queue = self._queues[job_id]
        queue.popleft()
        if queue:
            self._begin_next(job_id)
        else:
            del self._queues[job_id]
        done(problem)
