"""``JobStore``: the jobs of one JobManager as files, and how they go on: with which run, from which checkpoint.

Side:       shared.  Blocking: called on threads of its own, never on an event loop.
Invariants: what was put is on disk: written under a temporary name, fsynced, renamed, its directory fsynced
            (``LocalFiles``).  Nothing is returned whose MAC is wrong.  One JobManager at a time uses a directory: it
            holds a lock, which ends with its process.
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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from flowlet.errors import ConfigError, StorageError
from flowlet.messages.control_messages import JobGraphMessage
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.storage.manifest import HEADER_BYTES, CheckpointManifest, SignedFile
from flowlet.storage.storage_files import FileWords, LocalFiles
from netstack.log_lines import LogLines

ID_BLOCK = 100
"""So many ids of checkpoints are reserved at once: a write for each would hold up its trigger."""


class StoredProgress(msgspec.Struct, frozen=True):
    """How far a job is.

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
    """How a job ended: its status, and its document as JSON."""

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
    """What a JobManager begins with: jobs, ends by job id, and by job id why a job does not go on."""

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
        self._lock_fd: int | None = None

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
        self._lock_fd = fd

    def close(self) -> None:
        """Let another JobManager have the directory; idempotent."""
        fd, self._lock_fd = self._lock_fd, None
        if fd is not None:
            os.close(fd)

    def put_job(self, job: JobGraphMessage) -> None:
        """Keep a submitted job.  Raises StorageError."""
        self._put(_JOB, job.job_id, job)

    def put_progress(self, job_id: str, progress: StoredProgress) -> None:
        """Keep how far a job is.  Raises StorageError."""
        self._put(_PROGRESS, job_id, progress)

    def put_end(self, job_id: str, end: JobEnd) -> None:
        """Keep how a job ended, and nothing else of it.  Raises StorageError: what was kept before is still kept."""
        self._put(_END, job_id, end)
        self._remove(job_id, _JOB)
        self._remove(job_id, _PROGRESS)

    def forget(self, job_id: str) -> None:
        """Keep nothing of a job.  Raises StorageError."""
        self._remove(job_id, _JOB)  # first: without it the rest is nothing
        self._files.remove_folder((job_id,))

    def load(self, checkpoint_key: bytes) -> Recovery:
        """Load the jobs for a JobManager that starts; a job that cannot go on stays where it is, and is in the log.

        ``checkpoint_key``: of the MAC of manifests.

        Raises StorageError: the directory cannot be read.
        """
        jobs: list[RecoveredJob] = []
        ends: dict[str, JobEnd] = {}
        problems: dict[str, str] = {}
        for job_id in sorted(each for each in self._files.names(()) if _JOB_ID.fullmatch(each)):
            try:
                end = self._get(_END, job_id, _end_decoder)
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

    def _remove(self, job_id: str, kind: str) -> None:
        self._files.remove((job_id,), kind)


log = LogLines(__name__)


def _recovered(job: JobGraphMessage, progress: StoredProgress, key: bytes) -> RecoveredJob:
    settings = job.settings.checkpoints
    manifests: list[CheckpointManifest] = []
    passed_over: list[int] = []
    if settings is not None and settings.is_periodic:
        storage = CheckpointStorage(settings.directory, job.job_id, key)
        manifests, passed_over = _manifests(storage, job.job_id, progress, may_fall_back=settings.restore_fallback)
    newest = manifests[-1].checkpoint_id if manifests else -1
    next_id = max(progress.ids_below, newest + 1)
    unrestorable = [*progress.unrestorable, *passed_over]
    return RecoveredJob(job, progress.attempt + 1, manifests, next_id, unrestorable)


def _manifests(
    storage: CheckpointStorage, job_id: str, progress: StoredProgress, *, may_fall_back: bool
) -> tuple[list[CheckpointManifest], list[int]]:
    ids = [each for each in storage.complete_checkpoints() if each not in progress.unrestorable]
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
                if not (may_fall_back and manifests):
                    raise
                what = "the newest checkpoint cannot be read, the job goes back to an older one"
                passed_over.append(each)  # removed when a newer one is complete
            log.warning(what, job=job_id, checkpoint=each, problem=str(error))
    return manifests, passed_over
