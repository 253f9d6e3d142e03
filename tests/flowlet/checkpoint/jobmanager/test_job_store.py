"""A stored entry is read as it was put, or refused with its file's name; one JobManager at a time has the store."""

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from flowlet.checkpoint.jobmanager.job_store import (
    ID_BLOCK,
    JobEnd,
    JobStore,
    RecoveredJob,
    StoredProgress,
    job_store_key,
)
from flowlet.errors import ConfigError, StorageError
from tests.flowlet.jm.scripted_task_manager import JOB_ID, word_count

KEY = job_store_key(b"s" * 32)
OTHER_ID = "ab" * 16
PROGRESS = StoredProgress(attempt=3, completed_checkpoint=17, ids_below=200)


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return JobStore(tmp_path / "jobs", KEY)


def test_jobs_and_their_progress_come_back(store: JobStore) -> None:
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
    store.put_end(JOB_ID, JobEnd("FINISHED", b"{}"))

    content = store.load(b"")

    assert (content.jobs, content.ends, content.problems) == ([], {JOB_ID: JobEnd("FINISHED", b"{}")}, {})
    assert [path.name for path in (tmp_path / "jobs" / JOB_ID).iterdir()] == ["end"]


def test_a_job_that_ended_while_its_entry_was_removed_has_ended(store: JobStore) -> None:
    """A job whose end is stored has ended, even if a kill between the two steps of ``put_end`` left its entry."""
    store.put_end(JOB_ID, JobEnd("FAILED", b"{}"))
    store.put_job(word_count())

    content = store.load(b"")

    assert (content.jobs, list(content.ends)) == ([], [JOB_ID])


def test_nothing_is_left_of_a_forgotten_job(store: JobStore, tmp_path: Path) -> None:
    store.put_job(word_count())
    store.put_end(JOB_ID, JobEnd("CANCELED", b"{}"))

    store.forget(JOB_ID)
    store.forget(OTHER_ID)

    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_store_that_was_never_used_is_empty(store: JobStore) -> None:
    assert store.load(b"").jobs == []


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
    """A person who can write there, but does not know the secret, could otherwise give a job the code or progress of
    another one.
    """
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


def test_a_store_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match=r"job store .*/file/jobs: Not a directory"):
        JobStore(tmp_path / "file" / "jobs", KEY).lock(0)


def test_the_lock_is_on_a_file_of_the_store(store: JobStore, tmp_path: Path) -> None:
    store.lock(0)

    with (tmp_path / "jobs" / "lock").open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    store.close()
