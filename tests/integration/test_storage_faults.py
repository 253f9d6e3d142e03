"""Real faults of the storage of checkpoints, with a real job on real processes: what its user reads, and that the job
goes on.
"""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bench.cluster import Cluster
from flowlet.errors import JobExecutionError, JobSubmissionError
from tests.integration.held_job import HeldJob, expected
from tests.integration.jobs import RESTARTING, cluster_fixture
from tests.waiting import PATIENCE_S, spin_until

pytestmark = pytest.mark.slow
DISK_BYTES = 4 * 1024 * 1024
GONE = "the file or its directory does not exist; was it removed, or is a mount missing? Put it back"
TOLERANT = {"execution.checkpointing.tolerable-failed-checkpoints": "1000000"}
FALLING_BACK = {
    "execution.checkpointing.num-retained": "2",
    "flowlet.checkpointing.restore-fallback": "true",
    **RESTARTING,
}


cluster = cluster_fixture(1, pins=False)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of its own with four megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"this user cannot mount a small disk: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fails_and_recovers(
    cluster: Cluster, job: HeldJob, break_it: Callable[[], object], mend_it: Callable[[], object]
) -> str:
    """The message of a checkpoint that fails between the two; the next one is complete, and the job ends right, without
    a restart.
    """
    job.wait_for_completed()
    break_it()
    failed = job.wait_for_failed()
    mend_it()
    job.wait_for_completed(after=failed["id"])

    found = job.let_go()

    assert found == expected()
    assert job.restarts() == 0
    logged = " ".join(process.stderr for process in (cluster.job_manager, *cluster.task_managers))
    assert "checkpoint failed" in logged
    message = str(failed["failure_message"])
    assert message.rpartition("StorageError: ")[2][:80] in logged
    return message


def test_a_full_disk_fails_checkpoints_until_there_is_room(cluster: Cluster, disk: Path, tmp_path: Path) -> None:
    def fill() -> None:
        with suppress(OSError), (disk / "others").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    with HeldJob(cluster, tmp_path / "go", disk, TOLERANT) as job:
        said = fails_and_recovers(cluster, job, fill, (disk / "others").unlink)

    assert f"checkpoint file {disk}/{job.job_id}/chk-" in said  # of a task, or the manifest: whichever comes first
    assert "cannot be written: the disk is full (" in said
    assert said.endswith("free space there, or set execution.checkpointing.dir to another directory")


@pytest.mark.long
def test_a_disk_that_becomes_read_only(cluster: Cluster, disk: Path, tmp_path: Path) -> None:
    def remount(how: str) -> Callable[[], object]:
        return lambda: subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)

    with HeldJob(cluster, tmp_path / "go", disk, TOLERANT) as job:
        said = fails_and_recovers(cluster, job, remount("ro"), remount("rw"))

    assert (
        "cannot be written: the file system is read-only; mount it for writing, or set execution.checkpointing.dir"
        in said
    )


def test_a_directory_that_the_user_may_not_write_to_any_more(cluster: Cluster, tmp_path: Path) -> None:
    """The test makes the directory immutable, which stops root, too: root may write wherever the modes say."""
    root = tmp_path / "checkpoints"

    def forbid() -> None:
        if os.geteuid():
            (root / job.job_id).chmod(0o555)
        elif subprocess.run(["chattr", "+i", str(root / job.job_id)], capture_output=True).returncode:
            pytest.skip("this file system knows no immutable directories, and this user is root")

    def allow() -> None:
        if os.geteuid():
            (root / job.job_id).chmod(0o755)
        else:
            subprocess.run(["chattr", "-i", str(root / job.job_id)], check=True)

    with HeldJob(cluster, tmp_path / "go", root, TOLERANT) as job:
        said = fails_and_recovers(cluster, job, forbid, allow)

    assert (
        f"cannot be written: user {os.geteuid()} has no permission; give it the permission (chown, chmod), or set"
        in said
    )


@pytest.mark.long
def test_a_directory_that_vanishes_and_comes_back(cluster: Cluster, tmp_path: Path) -> None:
    root, away = tmp_path / "checkpoints", tmp_path / "away"

    with HeldJob(cluster, tmp_path / "go", root, TOLERANT) as job:
        said = fails_and_recovers(cluster, job, lambda: root.rename(away), lambda: away.rename(root))

    assert f"cannot be written: {GONE}" in said


@pytest.mark.long
def test_without_tolerance_a_failed_checkpoint_restarts_the_job_from_the_last_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    """No failed checkpoint is tolerated by default, as in Flink."""
    root, away = tmp_path / "checkpoints", tmp_path / "away"
    restarts = {**RESTARTING, "restart-strategy.fixed-delay.attempts": "1000000"}

    with HeldJob(cluster, tmp_path / "go", root, restarts) as job:
        completed = job.wait_for_completed()
        root.rename(away)
        failed = job.wait_for_failed(after=completed)
        away.rename(root)
        job.wait_for_completed(after=failed["id"])

        found = job.let_go()

        assert found == expected()
        assert job.restarts() >= 1
        assert "StorageError: checkpoint file" in failed["failure_message"]


@pytest.mark.long
def test_what_an_aborted_checkpoint_left_goes_when_a_later_one_is_complete(cluster: Cluster, tmp_path: Path) -> None:
    """A checkpoint that fails while its directory is away leaves files until a later one is complete: it expired, or
    its last write found no directory.
    """
    root, away = tmp_path / "checkpoints", tmp_path / "away"
    options = {"execution.checkpointing.timeout": "3 s", **TOLERANT}

    with HeldJob(cluster, tmp_path / "go", root, options, reads=False) as job:
        left = root / job.job_id / "chk-1"
        spin_until(
            lambda: left.is_dir() and any(not each.name.startswith(".") for each in left.iterdir()),
            "the file of the first one",
        )
        root.rename(away)
        failed = job.wait_for_failed()
        away.rename(root)
        assert left.is_dir()

        job.read()
        job.wait_for_completed(after=failed["id"])
        spin_until(lambda: not left.exists(), "the removal of the leftovers")
        found = job.let_go()

    assert found == expected()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("{}/file", "checkpoint file .* a part of its path is a file or a symbolic link"),
        ("/proc/none", "checkpoint file /proc/none/.* cannot be written: "),
        ("nosuch://bucket/x", "checkpoints cannot be kept in 'nosuch://bucket/x': fsspec knows no"),
    ],
)
def test_a_place_that_cannot_be_used_refuses_the_job(cluster: Cluster, tmp_path: Path, url: str, sentence: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(JobSubmissionError, match=f"the JobManager cannot keep checkpoints: {sentence}"):
        HeldJob(cluster, tmp_path / "go", url.format(tmp_path))


# ---------------------------------------------------------------- restore


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = [
    (cut, r"is cut off: it has 1000 of \d+ bytes; put the original back, or restore another checkpoint"),
    (
        flip,
        "was changed after it was written: its SHA-256 is wrong; put the original back, or restore another checkpoint",
    ),
    (Path.unlink, f"cannot be read: {re.escape(GONE)}"),
]


def kill_and_damage(cluster: Cluster, job: HeldJob, root: Path, damage: Callable[[Path], object]) -> int:
    """Kill a TaskManager, and damage the checkpoint that is restored next; then start a new TaskManager.

    No checkpoint follows the kill, so the newest one is restored.
    """
    (task_manager,) = cluster.task_managers
    task_manager.send(signal.SIGKILL)
    task_manager.wait(PATIENCE_S)
    newest = max(int(each["id"]) for each in job.checkpoints() if each["status"] == "COMPLETED")
    (file,) = [each for each in (root / job.job_id / f"chk-{newest}").iterdir() if not each.name.startswith(("_", "."))]
    damage(file)
    spare = cluster.start("-m", "flowlet.tm", "--jobmanager", cluster.address, "--slots", "1", name="spare")
    spare.wait_for_line(r"^TaskManager \S+ listening on \S+, registered at \S+$")
    return newest


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES, ids=["cut", "flipped", "missing"])
def test_a_damaged_newest_checkpoint_ends_the_job_with_the_name_of_the_file(
    cluster: Cluster, tmp_path: Path, damage: Callable[[Path], object], sentence: str
) -> None:
    root = tmp_path / "checkpoints"
    with HeldJob(cluster, tmp_path / "go", root, RESTARTING) as job:
        job.wait_for_completed()
        newest = kill_and_damage(cluster, job, root, damage)

        with pytest.raises(
            JobExecutionError, match=rf"checkpoint {newest} .*checkpoint file \S+/chk-{newest}/\S+ {sentence}"
        ):
            job.let_go()


@pytest.mark.parametrize("damage", [flip, Path.unlink], ids=["flipped", "missing"])
def test_with_fall_back_the_job_goes_on_from_the_checkpoint_before(
    cluster: Cluster, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    root = tmp_path / "checkpoints"
    with HeldJob(cluster, tmp_path / "go", root, FALLING_BACK) as job:
        job.wait_for_completed(after=job.wait_for_completed())
        newest = kill_and_damage(cluster, job, root, damage)
        job.wait_for_completed(after=newest)

        found = job.let_go()

        assert found == expected()
        assert "a checkpoint cannot be restored, the job goes back to an older one" in cluster.job_manager.stderr


@pytest.mark.long
def test_with_fall_back_and_no_good_checkpoint_the_job_ends(cluster: Cluster, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"

    def damage_all(path: Path) -> None:
        for each in path.parent.parent.glob("chk-*/*"):
            if not each.name.startswith("_"):
                flip(each)

    with HeldJob(cluster, tmp_path / "go", root, FALLING_BACK) as job:
        job.wait_for_completed(after=job.wait_for_completed())
        newest = kill_and_damage(cluster, job, root, damage_all)

        with pytest.raises(JobExecutionError, match=rf"chk-{newest - 1}/\S+ was changed after it was written"):
            job.let_go()
