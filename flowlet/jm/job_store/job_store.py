"""``JobStore``: the jobs of one JobManager as files.

Side:       shared.  Blocking: called on threads of its own, never on an event loop.
Invariants: what was put is on disk: written under a temporary name, fsynced, renamed, its directory fsynced
            (``LocalFiles``).  Nothing is returned whose MAC is wrong.  One JobManager at a time uses a directory: it
            holds a lock, which ends with its process.
Layout:     ``<directory>/<job id>/job``, ``.../progress`` and, once the job has ended, ``.../end`` in their place.
Source:     Flink ``FileSystemJobResultStore``, ``DefaultJobGraphStore``.
"""

import fcntl
import os
import re
import time
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from flowlet.errors import ConfigError, StorageError
from flowlet.jm.job_store.entries import JobEnd, JobProgress, StoreContent, StoredJob
from flowlet.jm.job_store.entry_codec import HEADER_BYTES, decode_entry, encode_entry
from flowlet.rpc.control_messages import JobGraphMessage
from flowlet.storage.local_files import LocalFiles

T = TypeVar("T")

_JOB, _PROGRESS, _END = "job", "progress", "end"
_LOCK: Final = "lock"
_JOB_ID: Final = re.compile(r"[0-9a-f]{32}")
_MAX_BYTES: Final = HEADER_BYTES + 128 * 1024 * 1024  # a submission has at most 64 MiB
_LOCK_PAUSE_S: Final = 0.05
_job_decoder: Final = msgspec.msgpack.Decoder(JobGraphMessage)
_progress_decoder: Final = msgspec.msgpack.Decoder(JobProgress)
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
        self._files = LocalFiles(directory)
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

    def put_progress(self, job_id: str, progress: JobProgress) -> None:
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
        try:
            self._files.remove_folder((job_id,))
        except StorageError as error:
            raise _of_the_store(error) from error

    def load(self) -> StoreContent:
        """Everything in the store; what cannot be used stays where it is.

        Raises StorageError: the directory cannot be read.
        """
        jobs: list[StoredJob] = []
        ends: dict[str, JobEnd] = {}
        problems: dict[str, str] = {}
        try:
            names = self._files.names(())
        except StorageError as error:
            raise _of_the_store(error) from error
        for job_id in sorted(each for each in names if _JOB_ID.fullmatch(each)):
            try:
                end = self._get(_END, job_id, _end_decoder)
                job = None if end is not None else self._get(_JOB, job_id, _job_decoder)
                if end is not None:
                    ends[job_id] = end
                elif job is not None:
                    jobs.append(StoredJob(job, self._get(_PROGRESS, job_id, _progress_decoder) or JobProgress()))
            except StorageError as error:
                problems[job_id] = str(error)
        return StoreContent(jobs, ends, problems)

    def _put(self, kind: str, job_id: str, entry: object) -> None:
        assert _JOB_ID.fullmatch(job_id), "check_job_graph() has checked it"
        try:
            self._files.write((job_id,), kind, encode_entry(entry, kind, job_id, self._key))
        except StorageError as error:
            raise _of_the_store(error) from error

    def _get(self, kind: str, job_id: str, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
        try:
            if self._files.size((job_id,), kind) is None:
                return None
            data = self._files.read((job_id,), kind, _MAX_BYTES)
        except StorageError as error:
            raise _of_the_store(error) from error
        return decode_entry(data, decoder, kind, job_id, self._key, self._files.location((job_id,), kind))

    def _remove(self, job_id: str, kind: str) -> None:
        try:
            self._files.remove((job_id,), kind)
        except StorageError as error:
            raise _of_the_store(error) from error


def _of_the_store(error: StorageError) -> StorageError:
    """The same error, whose text is about a checkpoint, in words about the job store."""
    text = str(error).replace("checkpoint file", "job store file", 1)
    text = text.replace(
        "set execution.checkpointing.dir to another directory", "start the JobManager with another --job-store"
    )
    return StorageError(text.replace("restore another checkpoint", "submit the job again"))
