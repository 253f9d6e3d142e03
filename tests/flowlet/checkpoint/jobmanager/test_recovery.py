"""A job goes on from its newest complete checkpoint, or not at all."""

from pathlib import Path

import msgspec
import pytest

from flowlet.checkpoint.jobmanager.job_store import JobStore, Recovery, StoredProgress, job_store_key
from flowlet.common.job_settings import CheckpointSettings, JobSettings
from flowlet.messages.control_messages import JobGraphMessage, SubtaskEntry
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.storage.manifest import (
    CheckpointManifest,
    manifest_key,
)
from tests.flowlet.jm.scripted_task_manager import JOB_ID, word_count

KEY = manifest_key(b"s" * 32)
OTHER_ID = "ab" * 16


def job_in(folder: Path) -> JobGraphMessage:
    settings = JobSettings(checkpoints=CheckpointSettings(interval_ms=1000, directory=str(folder)))
    return msgspec.structs.replace(word_count(), settings=settings)


def recovered(folder: Path, *jobs: tuple[JobGraphMessage, StoredProgress]) -> Recovery:
    """Return the jobs with which a JobManager begins that finds these in its store."""
    store = JobStore(folder / "jobs", job_store_key(b"s" * 32))
    for job, progress in jobs:
        store.put_job(job)
        store.put_progress(job.job_id, progress)
    return store.load(KEY)


def complete(folder: Path, *checkpoint_ids: int) -> None:
    storage = CheckpointStorage(str(folder), JOB_ID, KEY)
    for each in checkpoint_ids:
        storage.write_manifest(CheckpointManifest(JOB_ID, "a job", each, 1000, {}, []))


def test_a_job_goes_on_from_its_newest_checkpoint_with_new_numbers(tmp_path: Path) -> None:
    complete(tmp_path, 7, 12)

    (found,) = recovered(tmp_path, (job_in(tmp_path), StoredProgress(4, 7, 100))).jobs

    assert [each.checkpoint_id for each in found.checkpoints] == [7, 12]
    assert (found.attempt, found.next_checkpoint_id) == (5, 100)


def test_ids_of_checkpoints_lie_above_those_in_the_storage(tmp_path: Path) -> None:
    complete(tmp_path, 1000)

    (found,) = recovered(tmp_path, (job_in(tmp_path), StoredProgress(ids_below=100))).jobs

    assert found.next_checkpoint_id == 1001


def test_a_job_without_checkpoints_begins_anew(tmp_path: Path) -> None:
    found = recovered(tmp_path, (word_count(OTHER_ID), StoredProgress()), (job_in(tmp_path), StoredProgress()))

    assert [(each.attempt, list(each.checkpoints)) for each in found.jobs] == [(1, []), (1, [])]


def test_a_checkpoint_that_is_gone_stops_the_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A job whose checkpoint is gone, perhaps after a lost mount, is not started from nothing, as it would repeat its
    results.
    """
    other = word_count(OTHER_ID)

    found = recovered(tmp_path, (job_in(tmp_path), StoredProgress(completed_checkpoint=3)), (other, StoredProgress()))

    assert [each.job.job_id for each in found.jobs] == [OTHER_ID]
    assert "checkpoint 3" in found.problems[JOB_ID]
    assert str(tmp_path) in found.problems[JOB_ID]
    assert "is a mount missing?" in caplog.text


def test_a_newest_checkpoint_that_cannot_be_read_stops_the_job(tmp_path: Path) -> None:
    complete(tmp_path, 7, 12)
    file = tmp_path / JOB_ID / "chk-12" / "_metadata"
    file.write_bytes(file.read_bytes()[:-1])

    found = recovered(tmp_path, (job_in(tmp_path), StoredProgress()))

    assert (list(found.jobs), str(file) in found.problems[JOB_ID]) == ([], True)


def test_an_older_checkpoint_that_cannot_be_read_does_not_matter(tmp_path: Path) -> None:
    complete(tmp_path, 7, 12)
    (tmp_path / JOB_ID / "chk-7" / "_metadata").write_bytes(b"")

    (found,) = recovered(tmp_path, (job_in(tmp_path), StoredProgress())).jobs

    assert [each.checkpoint_id for each in found.checkpoints] == [12]


@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_a_fall_back_is_not_forgotten(tmp_path: Path, damage: str) -> None:
    """The job went on from 6, because the state in 7 could not be read; the next JobManager does not begin with 7
    either.
    """
    storage = CheckpointStorage(str(tmp_path), JOB_ID, KEY)
    for each in (6, 7):
        state = storage.write_state(each, "state", bytes(30_000))
        storage.write_manifest(CheckpointManifest(JOB_ID, "a job", each, 0, {"v": 1}, [SubtaskEntry("v", 0, state)]))
    file = tmp_path / JOB_ID / "chk-7" / "state"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"x" * 30_000)
    job = job_in(tmp_path)

    (found,) = recovered(tmp_path, (job, StoredProgress(1, 6, 100, [7]))).jobs

    assert [each.checkpoint_id for each in found.checkpoints] == [6]
    assert list(found.unrestorable) == [7]


@pytest.mark.parametrize("may_fall_back", [False, True])
def test_a_damaged_manifest_of_the_newest_is_passed_over_only_if_that_was_allowed(
    tmp_path: Path,
    may_fall_back: bool,
) -> None:
    complete(tmp_path, 6, 7)
    (tmp_path / JOB_ID / "chk-7" / "_metadata").write_bytes(b"no manifest")
    checkpoints = CheckpointSettings(1000, str(tmp_path), num_retained=2, restore_fallback=may_fall_back)
    job = msgspec.structs.replace(word_count(), settings=JobSettings(checkpoints=checkpoints))

    recovery = recovered(tmp_path, (job, StoredProgress(1, 7, 100)))

    if may_fall_back:
        (found,) = recovery.jobs
        assert ([each.checkpoint_id for each in found.checkpoints], list(found.unrestorable)) == ([6], [7])
    else:
        assert not recovery.jobs
        assert "chk-7/_metadata" in recovery.problems[JOB_ID]
