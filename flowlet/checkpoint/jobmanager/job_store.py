"""``JobStore``: the jobs of one JobManager as files, and how they go on: with which run, from which checkpoint.

``JobKeeper``: writes what happens to the jobs into the job store, in order, and says when it is there.

Side:       shared.  Blocking: called on threads of its own, never on an event loop.  ``JobKeeper``: loop.
Invariants: a file that was put is on disk: written under a temporary name, fsynced, renamed, its directory fsynced
            (``LocalFiles``).  A file whose MAC is wrong is never returned.  One JobManager at a time uses a directory:
            it holds a lock, which ends with its process; a write that is under way at the ``close`` keeps it to its
            end, and none begins after it.  ``JobKeeper`` uses the store for each job on one thread at a
            time, in the order of the calls.  A callback is called once, on the loop, unless ``close`` comes first;
            without a store before the call returns.
Layout:     ``<directory>/<job id>/job``, ``.../progress`` and, once the job has ended, ``.../end`` in their place; each
            a ``SignedFile``, whose place is its kind and its job: it is good in its own place only.
Rules:      a job goes on from its newest complete checkpoint.  Its client may have handed out all results before that
            one, so an older one, or none, would repeat them: if the newest one cannot be read, or one that the store
            knows of is gone (a mount that is missing), the job does not go on, and its entry stays.
Source:     Flink ``FileSystemJobResultStore``, ``DefaultJobGraphStore``, ``CheckpointIDCounter``,
            ``DefaultCompletedCheckpointStoreUtils.retrieveCompletedCheckpoints``, which fails the recovery, too.
"""

import fcntl
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from flowlet.errors import ConfigError, StorageError
from flowlet.messages.job_messages import JobGraphMessage
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.storage.manifest import HEADER_BYTES, CheckpointManifest, SignedFile
from flowlet.storage.storage_files import FileWords, LocalFiles
from netstack.log_lines import LogLines
from netstack.loop.background_call import CallInBackground

ID_BLOCK = 100
"""So many ids of checkpoints are reserved at once: a write for each would hold up its trigger."""


class StoredProgress(msgspec.Struct, frozen=True):
    """The progress of a job that the store keeps.

    Args:
        attempt: the newest number of a run; it is kept before the run is deployed.
        completed_checkpoint: a complete one; newer ones may exist; -1: none is known.
        ids_below: no checkpoint with this id, or a higher one, was triggered.
        unrestorable: complete ones that no run could begin with, so that an older one was taken.
    """

    attempt: int = 0
    completed_checkpoint: int = -1
    ids_below: int = ID_BLOCK
    unrestorable: list[int] = []


class JobEnd(msgspec.Struct, frozen=True):
    """The end of a job: its status, and its document as JSON."""

    status: str
    document: bytes


class RecoveredJob(msgspec.Struct, frozen=True):
    """A job that goes on.

    Args:
        job: as it was submitted.
        attempt: the number of its next run, above all earlier ones.
        checkpoints: the complete ones, the oldest first; the next run begins with the last.
        next_checkpoint_id: above all ids that were ever triggered.
        unrestorable: newer complete ones that no run can begin with.
    """

    job: JobGraphMessage
    attempt: int
    checkpoints: Sequence[CheckpointManifest] = ()
    next_checkpoint_id: int = 1
    unrestorable: Sequence[int] = ()


class Recovery(msgspec.Struct, frozen=True):
    """The jobs that a JobManager begins with; ends by job id; and by job id, why a job does not go on."""

    jobs: Sequence[RecoveredJob] = ()
    ends: Mapping[str, JobEnd] = msgspec.field(default_factory=dict)
    problems: Mapping[str, str] = msgspec.field(default_factory=dict)


T = TypeVar("T")

_WORDS: Final = FileWords("job store file", "start the JobManager with another --job-store", "submit the job again")
_ENTRY: Final = SignedFile(
    "job store file",
    b"FLJS",
    (b"flowlet entries of the job store 1", b"flowlet id of the key of the job store 1"),
    "none of flowlet",
    "that one's secret file",
    "put the original back, or remove the directory of the job and submit it again",
)
job_store_key: Final = _ENTRY.key


def _place(kind: str, job_id: str) -> bytes:
    return f"{kind}\n{job_id}\n".encode()


_JOB, _PROGRESS, _END = "job", "progress", "end"
_LOCK: Final = "lock"
_JOB_ID: Final = re.compile(r"[0-9a-f]{32}")
_MAX_BYTES: Final = HEADER_BYTES + 128 * 1024 * 1024  # a submission has at most 64 MiB
_LOCK_PAUSE_S: Final = 0.05
_job_decoder: Final = msgspec.msgpack.Decoder(JobGraphMessage)
_progress_decoder: Final = msgspec.msgpack.Decoder(StoredProgress)
_end_decoder: Final = msgspec.msgpack.Decoder(JobEnd)


class JobStore:
    """The store in one directory.

    Threading: any thread, but the calls for one job one after the other.
    Life cycle: ``lock`` before everything else, ``close`` at the end.

    Args:
        directory: absolute; made by ``lock``.
        key: ``job_store_key`` of the cluster's secret.
    """

    def __init__(self, directory: Path, key: bytes) -> None:
        self._directory = directory
        self._files = LocalFiles(directory, _WORDS)
        self._key = key
        self._mutex = threading.Lock()
        # All guarded by _mutex.
        self._lock_fd: int | None = None
        self._num_writes = 0  # under way
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<JobStore {self._directory}{'' if self._lock_fd is None else ' locked'}>"

    def lock(self, timeout_s: float) -> None:
        """Take the directory for this process.

        Raises:
            ConfigError: it cannot be made or written, or another JobManager has held it for ``timeout_s``.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ConfigError(
                f"job store {self._directory}: {error.strerror or error}; give this user a directory of its own"
            ) from error
        while True:
            try:
                # The kernel's lock: it ends with the process, however that ends.
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if not isinstance(error, BlockingIOError) or time.monotonic() >= deadline_s:
                    os.close(fd)
                    why = (
                        "another JobManager uses it; end that one, or wait for its end, or name another directory "
                        f"({error.strerror})"
                    )
                    raise ConfigError(f"job store {self._directory}: {why}") from error
            time.sleep(_LOCK_PAUSE_S)  # the former JobManager may be about to end
        with self._mutex:
            self._lock_fd = fd
            self._is_closed = False

    def close(self) -> None:
        """Begin no more writes, and let another JobManager have the directory when the last one has ended; idempotent.

        Does not wait: a file server may hold a write up.
        """
        with self._mutex:
            self._is_closed = True
            self._unlock_if_idle_locked()

    def _unlock_if_idle_locked(self) -> None:
        if self._is_closed and not self._num_writes and self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Keep the directory locked for the block: the next JobManager would read what a late rename then replaces."""
        with self._mutex:
            if self._is_closed:
                raise StorageError(f"job store {self._directory}: it was closed before this write began")
            self._num_writes += 1
        try:
            yield
        finally:
            with self._mutex:
                self._num_writes -= 1
                self._unlock_if_idle_locked()

    def put_job(self, job: JobGraphMessage) -> None:
        """Keep a submitted job.  Raises StorageError."""
        with self._writing():
            self._put(_JOB, job.job_id, job)

    def put_progress(self, job_id: str, progress: StoredProgress) -> None:
        """Keep the progress of a job.  Raises StorageError."""
        with self._writing():
            self._put(_PROGRESS, job_id, progress)

    def put_end(self, job_id: str, end: JobEnd) -> None:
        """Keep the end of a job, and nothing else of it.  Raises StorageError: the former files are still there."""
        with self._writing():
            self._put(_END, job_id, end)  # first: if this process ends now, ``load`` finds both, and takes the end
            self._files.remove((job_id,), _JOB)
            self._files.remove((job_id,), _PROGRESS)

    def forget(self, job_id: str) -> None:
        """Keep nothing of a job.  Raises StorageError."""
        with self._writing():
            self._files.remove((job_id,), _JOB)  # first: without it the rest is nothing
            self._files.remove_folder((job_id,))

    def load(self, checkpoint_key: bytes) -> Recovery:
        """Load the jobs for a JobManager that starts; a job that cannot go on stays in the store, and is named in the
        log.

        ``checkpoint_key``: of the MAC of manifests.

        Raises StorageError: the directory cannot be read.
        """
        jobs: list[RecoveredJob] = []
        ends: dict[str, JobEnd] = {}
        problems: dict[str, str] = {}
        for job_id in sorted(each for each in self._files.names(()) if _JOB_ID.fullmatch(each)):
            try:
                # The end first: see ``put_end``.
                end = self._get(_END, job_id, _end_decoder)
                # A process that ended between two steps of ``put_end`` has left both.
                job = None if end is not None else self._get(_JOB, job_id, _job_decoder)
                if end is not None:
                    ends[job_id] = end
                elif job is not None:
                    progress = self._get(_PROGRESS, job_id, _progress_decoder) or StoredProgress()
                    jobs.append(_recovered(job, progress, checkpoint_key))
            except StorageError as error:
                problems[job_id] = str(error)
                log.error("a job of the job store does not go on; its entry stays", job=job_id, problem=str(error))
        return Recovery(jobs, ends, problems)

    def _put(self, kind: str, job_id: str, entry: object) -> None:
        assert _JOB_ID.fullmatch(job_id), "check_job_graph() has checked it"
        self._files.write((job_id,), kind, _ENTRY.encode(entry, self._key, _place(kind, job_id)))

    def _get(self, kind: str, job_id: str, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
        if self._files.size((job_id,), kind) is None:
            return None
        data = self._files.read((job_id,), kind, _MAX_BYTES)
        path = self._files.location((job_id,), kind)
        return _ENTRY.decode(data, decoder, self._key, path, _place(kind, job_id))


log = LogLines(__name__)


def _recovered(job: JobGraphMessage, progress: StoredProgress, key: bytes) -> RecoveredJob:
    settings = job.settings.checkpoints
    manifests: list[CheckpointManifest] = []
    passed_over: list[int] = []
    if settings is not None and settings.is_periodic:
        storage = CheckpointStorage(settings.directory, job.job_id, key)
        manifests, passed_over = _manifests(storage, job.job_id, progress, may_fall_back=settings.restore_fallback)
    newest = manifests[-1].checkpoint_id if manifests else -1
    # Above all that were reserved: files of a trigger that nobody heard of may lie there.
    next_id = max(progress.ids_below, newest + 1)
    unrestorable = [*progress.unrestorable, *passed_over]
    return RecoveredJob(job, progress.attempt + 1, manifests, next_id, unrestorable)


def _manifests(
    storage: CheckpointStorage, job_id: str, progress: StoredProgress, *, may_fall_back: bool
) -> tuple[list[CheckpointManifest], list[int]]:
    ids = [each for each in storage.complete_checkpoints() if each not in progress.unrestorable]
    # An empty directory would look like a job without checkpoints: it would begin anew, and repeat all results.
    if max(ids, default=-1) < progress.completed_checkpoint:
        raise StorageError(
            f"checkpoint {progress.completed_checkpoint} of job {job_id} was complete and is gone from {storage!r}: is "
            "a mount missing? Put it back and start the JobManager again"
        )
    manifests: list[CheckpointManifest] = []
    passed_over: list[int] = []
    for each in ids:
        try:
            manifests.append(storage.read_manifest(each))
        except StorageError as error:
            what = "an older checkpoint cannot be read; its files stay"
            if each == ids[-1]:
                # Only the newest matters: without leave the job does not go back behind results that were handed out.
                if not (may_fall_back and manifests):
                    raise
                what = "the newest checkpoint cannot be read, the job goes back to an older one"
                passed_over.append(each)  # removed when a newer one is complete
            log.warning(what, job=job_id, checkpoint=each, problem=str(error))
    return manifests, passed_over


Done = Callable[[str | None], None]
_MIN_RESERVE: Final = ID_BLOCK // 2


class JobKeeper:
    """Writes the jobs of a JobManager into its store.  A callback gets None, or the reason why a write failed.

    Threading: the JobManager's loop.  ``store`` None: nothing is kept.
    """

    def __init__(self, store: JobStore | None, call_in_background: CallInBackground) -> None:
        self._store = store
        self._call_in_background = call_in_background
        self._queues: dict[str, deque[tuple[Callable[[], None], Done]]] = {}  # by job id; the first one is under way
        self._progress: dict[str, StoredProgress] = {}  # as in the last write that was queued
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
        """Take over a job that is in the store already; writes nothing."""
        completed = job.checkpoints[-1].checkpoint_id if job.checkpoints else -1
        ids_below = job.next_checkpoint_id + ID_BLOCK  # reserved by the write of ``run_begins``, before any trigger
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
        # Half a block is left while the write is under way.
        if checkpoint_id + _MIN_RESERVE >= progress.ids_below:
            ids_below = checkpoint_id + ID_BLOCK
            self._write_progress(job_id, msgspec.structs.replace(progress, ids_below=ids_below), self._log_problem)
        # What is on the disk counts: a write that is queued may fail.
        return checkpoint_id < self._ids_below.get(job_id, 0)

    def ended(self, job_id: str, end: Callable[[], JobEnd], done: Done) -> None:
        """Keep the end of a job in place of the job; if that fails, nothing of it.  ``end`` is called now, or never."""
        made = None if self._store is None else end()

        def put_end(store: JobStore) -> None:
            assert made is not None, "there is a store"
            try:
                store.put_end(job_id, made)
            except Exception:
                # Without the end the entry would say that the job runs.
                store.forget(job_id)  # it must not run again
                raise

        self._progress.pop(job_id, None)
        self._enqueue(job_id, put_end, done)

    def forget(self, job_id: str) -> None:
        """Keep nothing of a job."""
        self._ids_below.pop(job_id, None)
        self._enqueue(job_id, lambda store: store.forget(job_id), self._log_problem)

    def close(self) -> None:
        """Write nothing more than the writes that are under way; no callback follows."""
        self._is_closed = True
        self._queues.clear()

    def _known(self, job_id: str) -> StoredProgress:
        return self._progress.setdefault(job_id, StoredProgress(ids_below=0))

    def _write_progress(self, job_id: str, progress: StoredProgress, done: Done) -> None:
        # At once: the next write builds on this one, though it is still queued.
        self._progress[job_id] = progress

        def written(problem: str | None) -> None:
            if problem is None:
                # Only now: ids that are not on the disk could be used a second time by the next JobManager.
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
        # Before this call returns: callers need no second way for a JobManager without a store.
        if store is None:
            done(None)
            return
        queue = self._queues.setdefault(job_id, deque())
        queue.append((partial(write, store), done))
        # Else the write before it begins this one when it ends: two writes of one job may not cross.
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
        # A callback would start a job that the next JobManager goes on with.
        if self._is_closed:
            return
        queue = self._queues[job_id]
        queue.popleft()
        if queue:
            self._begin_next(job_id)
        else:
            del self._queues[job_id]
        done(problem)  # last: it may queue another write
