"""Tests of ``flowlet.checkpoint.jobmanager.job_store``: a stored entry is read as it was put, or refused with its
file's name; one JobManager at a time has the store; a job goes on from its newest complete checkpoint, or not at all.
"""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from flowlet.checkpoint.jobmanager.job_store import (
    ID_BLOCK,
    JobEnd,
    JobKeeper,
    JobStore,
    RecoveredJob,
    Recovery,
    StoredProgress,
    job_store_key,
)
from flowlet.common.job_settings import CheckpointSettings, JobSettings
from flowlet.errors import ConfigError, StorageError
from flowlet.messages.job_messages import JobGraphMessage, SubtaskEntry
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.storage.manifest import CheckpointManifest, manifest_key
from flowlet.storage.storage_files import LocalFiles
from tests.flowlet.checkpoint.jobmanager.background import Background
from tests.flowlet.jm.scripted_task_manager import JOB_ID, word_count

KEY, MANIFEST_KEY = job_store_key(b"s" * 32), manifest_key(b"s" * 32)
OTHER_ID = "ab" * 16
PROGRESS = StoredProgress(attempt=3, completed_checkpoint=17, ids_below=200)
END = JobEnd("FINISHED", b"{}")


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path / "jobs", KEY)


def test_jobs_and_their_progress_come_back(store: JobStore) -> None:
    assert store.load(b"").jobs == [], "it was never used"

    store.put_job(word_count())
    store.put_job(word_count(OTHER_ID))
    store.put_progress(JOB_ID, PROGRESS)

    content = store.load(b"")

    assert content.jobs == [
        RecoveredJob(word_count(), 4, [], 200, []),
        RecoveredJob(word_count(OTHER_ID), 1, [], ID_BLOCK, []),
    ]
    assert (content.ends, content.problems) == ({}, {})


def test_an_end_takes_the_place_of_the_job(store: JobStore, tmp_path: Path) -> None:
    store.put_job(word_count())
    store.put_progress(JOB_ID, PROGRESS)
    store.put_end(JOB_ID, END)

    content = store.load(b"")

    assert (content.jobs, content.ends, content.problems) == ([], {JOB_ID: END}, {})
    assert [path.name for path in (tmp_path / "jobs" / JOB_ID).iterdir()] == ["end"]


def test_a_job_that_ended_while_its_entry_was_removed_has_ended(store: JobStore) -> None:
    """A job whose end is stored has ended, even if a kill between the two steps of ``put_end`` left its entry."""
    store.put_end(JOB_ID, END)
    store.put_job(word_count())

    content = store.load(b"")

    assert (content.jobs, list(content.ends)) == ([], [JOB_ID])


def test_nothing_is_left_of_a_forgotten_job(store: JobStore, tmp_path: Path) -> None:
    store.put_job(word_count())
    store.put_end(JOB_ID, END)

    store.forget(JOB_ID)
    store.forget(OTHER_ID)

    assert list((tmp_path / "jobs").iterdir()) == []


def test_files_are_for_this_user_alone(store: JobStore, tmp_path: Path) -> None:
    """Stored jobs hold code and options of users, so only the user who owns the files may read them."""
    store.put_job(word_count())

    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "jobs").rglob("*")} == {0}


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a flipped bit of the content": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "its MAC is wrong"),
    "a flipped bit of the MAC": (lambda data: data[:30] + bytes([data[30] ^ 1]) + data[31:], "its MAC is wrong"),
    "the end is cut off": (lambda data: data[:-1], "is cut off"),
    "the header is cut off": (lambda data: data[:10], "is cut off after 10 bytes"),
    "an empty file": (lambda _: b"", "is cut off after 0 bytes"),
    "another file": (lambda _: b"hello, world" * 10, "is none of flowlet"),
    "a newer version": (lambda data: data[:4] + b"\0\2" + data[6:], "has version 2"),
    "more behind the end": (lambda data: data + b"x", "its MAC is wrong"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_named_and_kept_and_the_others_are_read(
    damage: str, store: JobStore, tmp_path: Path
) -> None:
    store.put_job(word_count())
    store.put_job(word_count(OTHER_ID))
    file = tmp_path / "jobs" / JOB_ID / "job"
    change, words = DAMAGES[damage]
    damaged = change(file.read_bytes())
    file.write_bytes(damaged)

    content = store.load(b"")

    assert [each.job.job_id for each in content.jobs] == [OTHER_ID]
    assert str(file) in content.problems[JOB_ID]
    assert words in content.problems[JOB_ID]
    assert file.read_bytes() == damaged


def test_damaged_progress_stops_its_job(store: JobStore, tmp_path: Path) -> None:
    """A run without its number could have the number of an earlier one."""
    store.put_job(word_count())
    store.put_progress(JOB_ID, PROGRESS)
    file = tmp_path / "jobs" / JOB_ID / "progress"
    file.write_bytes(file.read_bytes()[:-1])

    content = store.load(b"")

    assert (content.jobs, list(content.problems)) == ([], [JOB_ID])


def test_an_entry_of_another_cluster_is_refused(store: JobStore, tmp_path: Path) -> None:
    JobStore(tmp_path / "jobs", job_store_key(b"t" * 32)).put_job(word_count())

    assert "of a cluster with another secret" in store.load(b"").problems[JOB_ID]


@pytest.mark.parametrize("copy", ["to another job", "to another kind"])
def test_an_entry_is_good_in_its_own_place_only(copy: str, store: JobStore, tmp_path: Path) -> None:
    """Who can write there, but does not know the secret, could otherwise give a job another one's code."""
    store.put_job(word_count())
    store.put_job(word_count(OTHER_ID))
    content = (tmp_path / "jobs" / OTHER_ID / "job").read_bytes()
    (tmp_path / "jobs" / JOB_ID / ("job" if copy == "to another job" else "progress")).write_bytes(content)

    assert "its MAC is wrong" in store.load(b"").problems[JOB_ID]


def test_what_cannot_be_written_is_an_error_in_words_about_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StorageError, match=r"job store file .*/file/.*/job cannot be written: .*--job-store") as caught:
        JobStore(tmp_path / "file", KEY).put_job(word_count())
    assert "checkpoint" not in str(caught.value)


def test_one_jobmanager_at_a_time_has_the_store(store: JobStore, tmp_path: Path) -> None:
    other = JobStore(tmp_path / "jobs", KEY)
    store.lock(0)

    with pytest.raises(ConfigError, match="another JobManager uses it"):
        other.lock(0)

    store.close()
    other.lock(0)
    other.close()


def test_a_write_that_is_under_way_keeps_the_lock_and_none_begins_after_the_close(
    store: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next JobManager would read the progress before it, and the late rename replace the newer one: ids of
    checkpoints would be used again.
    """
    other = JobStore(tmp_path / "jobs", KEY)
    locked: list[bool] = []
    write = LocalFiles.write

    def write_late(files: LocalFiles, *entry: Any) -> None:
        store.close()
        with pytest.raises(ConfigError, match="another JobManager uses it"):
            other.lock(0)
        write(files, *entry)
        locked.append(True)

    store.lock(0)
    store.put_job(word_count())
    monkeypatch.setattr(LocalFiles, "write", write_late)

    store.put_progress(JOB_ID, PROGRESS)
    with pytest.raises(StorageError, match="closed"):
        store.put_progress(JOB_ID, StoredProgress())
    other.lock(0)

    assert (locked, [job.attempt for job in other.load(b"").jobs]) == ([True], [PROGRESS.attempt + 1])
    other.close()


def test_a_store_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match=r"job store .*/file/jobs: Not a directory"):
        JobStore(tmp_path / "file" / "jobs", KEY).lock(0)


def test_the_lock_is_on_a_file_of_the_store(store: JobStore, tmp_path: Path) -> None:
    store.lock(0)

    with (tmp_path / "jobs" / "lock").open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    store.close()


# ---------------------------------------------------------------- recovery


def job_in(folder: Path, **settings: Any) -> JobGraphMessage:
    checkpoints = CheckpointSettings(interval_ms=1000, directory=str(folder), **settings)
    return structs.replace(word_count(), settings=JobSettings(checkpoints=checkpoints))


def recovered(folder: Path, *jobs: tuple[JobGraphMessage, StoredProgress]) -> Recovery:
    """Return the jobs with which a JobManager begins that finds these in its store."""
    store = JobStore(folder / "jobs", job_store_key(b"s" * 32))
    for job, progress in jobs:
        store.put_job(job)
        store.put_progress(job.job_id, progress)
    return store.load(MANIFEST_KEY)


def complete(folder: Path, *checkpoint_ids: int) -> None:
    storage = CheckpointStorage(str(folder), JOB_ID, MANIFEST_KEY)
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
    """A job whose checkpoint is gone, perhaps with a mount, does not start from nothing: it would repeat results."""
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
    """The job went on from 6, for the state in 7 could not be read; the next JobManager begins with 6, too."""
    storage = CheckpointStorage(str(tmp_path), JOB_ID, MANIFEST_KEY)
    for each in (6, 7):
        state = storage.write_state(each, "state", bytes(30_000))
        storage.write_manifest(CheckpointManifest(JOB_ID, "a job", each, 0, {"v": 1}, [SubtaskEntry("v", 0, state)]))
    file = tmp_path / JOB_ID / "chk-7" / "state"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"x" * 30_000)

    (found,) = recovered(tmp_path, (job_in(tmp_path), StoredProgress(1, 6, 100, [7]))).jobs

    assert [each.checkpoint_id for each in found.checkpoints] == [6]
    assert list(found.unrestorable) == [7]


@pytest.mark.parametrize("may_fall_back", [False, True])
def test_a_damaged_manifest_of_the_newest_is_passed_over_only_if_that_was_allowed(
    tmp_path: Path, may_fall_back: bool
) -> None:
    complete(tmp_path, 6, 7)
    (tmp_path / JOB_ID / "chk-7" / "_metadata").write_bytes(b"no manifest")
    job = job_in(tmp_path, num_retained=2, restore_fallback=may_fall_back)

    recovery = recovered(tmp_path, (job, StoredProgress(1, 7, 100)))

    if may_fall_back:
        (found,) = recovery.jobs
        assert ([each.checkpoint_id for each in found.checkpoints], list(found.unrestorable)) == ([6], [7])
    else:
        assert not recovery.jobs
        assert "chk-7/_metadata" in recovery.problems[JOB_ID]


# ---------------------------------------------------------------- the order of the writes


class Rig(JobStore):
    """A store that takes notes, and threads that run when the test says so."""

    def __init__(self) -> None:
        self.written: list[object] = []
        self.told: list[object] = []
        self.problem: StorageError | None = None
        self.background = Background()
        self.keeper = JobKeeper(self, self.background)

    def put_job(self, job: JobGraphMessage) -> None:
        self._write(("job", job.job_id))

    def put_progress(self, job_id: str, progress: StoredProgress) -> None:
        self._write(progress)

    def put_end(self, job_id: str, end: JobEnd) -> None:
        self._write(end)

    def forget(self, job_id: str) -> None:
        self.written.append(("forgotten", job_id))

    def _write(self, what: object) -> None:
        if self.problem is not None:
            raise self.problem
        self.written.append(what)


def submitted() -> Rig:
    """Return a keeper that a job was submitted to."""
    rig = Rig()
    rig.keeper.submitted(word_count(), rig.told.append)
    return rig


def test_the_writes_of_a_job_follow_each_other() -> None:
    rig = submitted()
    rig.keeper.run_begins(JOB_ID, 1, rig.told.append)
    rig.keeper.ended(JOB_ID, lambda: END, rig.told.append)
    at_once = len(rig.background.waiting)
    rig.background.end_all()

    assert at_once == 1
    assert rig.written == [("job", JOB_ID), StoredProgress(attempt=1), END]
    assert rig.told == [None, None, None]


def test_the_writes_of_two_jobs_do_not_wait_for_each_other() -> None:
    rig = submitted()
    rig.keeper.submitted(word_count(OTHER_ID), rig.told.append)

    assert len(rig.background.waiting) == 2


def test_a_callback_gets_the_problem_and_the_next_write_follows() -> None:
    rig = Rig()
    rig.problem = StorageError("the disk is full")
    rig.keeper.submitted(word_count(), rig.told.append)
    rig.keeper.run_begins(JOB_ID, 1, rig.told.append)
    rig.background.end_one()
    rig.problem = None
    rig.background.end_all()

    assert rig.told == ["the disk is full", None]


def test_an_end_that_cannot_be_kept_takes_the_job_away() -> None:
    """A JobManager that finds the job would run it again."""
    rig = Rig()
    rig.problem = StorageError("the disk is full")
    rig.keeper.ended(JOB_ID, lambda: END, rig.told.append)
    rig.background.end_all()

    assert (rig.written, rig.told) == ([("forgotten", JOB_ID)], ["the disk is full"])


def test_a_complete_checkpoint_is_kept_beside_the_number_of_the_run() -> None:
    rig = submitted()
    rig.keeper.run_begins(JOB_ID, 2, rig.told.append)
    rig.keeper.checkpoint_completed(JOB_ID, 5)
    rig.background.end_all()

    assert rig.written[-1] == StoredProgress(attempt=2, completed_checkpoint=5)


def test_no_id_is_used_before_it_is_reserved() -> None:
    rig = submitted()
    rig.background.end_all()

    first, last, beyond = (rig.keeper.may_trigger(JOB_ID, each) for each in (1, ID_BLOCK - 1, ID_BLOCK))
    rig.background.end_all()

    assert (first, last, beyond) == (True, True, False)
    assert rig.keeper.may_trigger(JOB_ID, ID_BLOCK)
    assert all(not isinstance(each, StoredProgress) or each.ids_below > ID_BLOCK for each in rig.written)


def test_a_recovered_job_goes_on_with_what_is_known() -> None:
    rig = Rig()
    rig.keeper.recovered(RecoveredJob(word_count(), 3, [], 200))
    before = rig.keeper.may_trigger(JOB_ID, 200)
    rig.keeper.run_begins(JOB_ID, 3, rig.told.append)
    rig.background.end_all()

    assert (before, rig.keeper.may_trigger(JOB_ID, 200)) == (False, True)
    assert rig.written == [StoredProgress(3, -1, 200 + ID_BLOCK)]


def test_after_the_close_nothing_is_written_or_told() -> None:
    rig = submitted()
    rig.keeper.run_begins(JOB_ID, 1, rig.told.append)
    rig.keeper.close()
    rig.keeper.forget(JOB_ID)
    rig.background.end_all()

    assert (rig.written, rig.told) == ([("job", JOB_ID)], [])
