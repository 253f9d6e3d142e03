"""Finds out how the jobs of a job store go on: with which run, from which checkpoint.

Side:   shared.  Blocking.
Rules:  a job goes on from its newest complete checkpoint.  Its client may have handed out all results before that one,
        so an older one, or none, would repeat them: if the newest one cannot be read, or one that the store knows of is
        gone (a mount that is missing), the job does not go on, and its entry stays.
Source: Flink ``DefaultCompletedCheckpointStoreUtils.retrieveCompletedCheckpoints``, which fails the recovery, too.
"""

from collections.abc import Callable
from typing import Protocol

from flowlet.errors import StorageError
from flowlet.jm.job_store.entries import JobProgress, RecoveredJob, Recovery, StoreContent, StoredJob
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.storage.manifest import CheckpointManifest
from netstack.log_lines import LogLines

log = LogLines(__name__)


class KnownCheckpoints(Protocol):
    """The part of ``CheckpointStorage`` that is needed here; blocking."""

    def complete_checkpoints(self) -> list[int]:
        """The ids of those with a manifest, the oldest first."""

    def read_manifest(self, checkpoint_id: int) -> CheckpointManifest:
        """A verified manifest."""


def recover(
    content: StoreContent,
    checkpoint_key: bytes,
    open_storage: Callable[[str, str, bytes], KnownCheckpoints] = CheckpointStorage,
) -> Recovery:
    """What a JobManager that starts begins with; what cannot go on is in ``problems``, and in the log."""
    jobs: list[RecoveredJob] = []
    problems = dict(content.problems)
    for stored in content.jobs:
        job_id = stored.job.job_id
        try:
            jobs.append(_recovered(stored, checkpoint_key, open_storage))
        except StorageError as error:
            problems[job_id] = str(error)
    for job_id, problem in problems.items():
        log.error("a job of the job store does not go on; its entry stays", job=job_id, problem=problem)
    return Recovery(jobs, content.ends, problems)


def _recovered(
    stored: StoredJob, key: bytes, open_storage: Callable[[str, str, bytes], KnownCheckpoints]
) -> RecoveredJob:
    job, progress = stored.job, stored.progress
    settings = job.settings.checkpoints
    manifests: list[CheckpointManifest] = []
    passed_over: list[int] = []
    if settings is not None and settings.is_periodic:
        storage = open_storage(settings.directory, job.job_id, key)
        manifests, passed_over = _manifests(storage, job.job_id, progress, may_fall_back=settings.restore_fallback)
    newest = manifests[-1].checkpoint_id if manifests else -1
    return RecoveredJob(
        job,
        progress.attempt + 1,
        manifests,
        max(progress.ids_below, newest + 1),
        [*progress.unrestorable, *passed_over],
    )


def _manifests(
    storage: KnownCheckpoints, job_id: str, progress: JobProgress, *, may_fall_back: bool
) -> tuple[list[CheckpointManifest], list[int]]:
    ids = [each for each in storage.complete_checkpoints() if each not in progress.unrestorable]
    if max(ids, default=-1) < progress.completed_checkpoint:
        raise StorageError(
            f"checkpoint {progress.completed_checkpoint} of job {job_id} was complete and is gone from {storage!r}: is "
            "a mount missing? "
            "Put it back and start the JobManager again"
        )
    manifests: list[CheckpointManifest] = []
    passed_over: list[int] = []
    for each in ids[:-1]:
        try:
            manifests.append(storage.read_manifest(each))
        except StorageError as error:
            log.warning(
                "an older checkpoint cannot be read; its files stay", job=job_id, checkpoint=each, problem=str(error)
            )
    for each in ids[-1:]:
        try:
            manifests.append(storage.read_manifest(each))
        except StorageError as error:
            if not (may_fall_back and manifests):
                raise
            passed_over.append(each)  # removed when a newer one is complete
            log.warning(
                "the newest checkpoint cannot be read, the job goes back to an older one",
                job=job_id,
                checkpoint=each,
                problem=str(error),
            )
    return manifests, passed_over
