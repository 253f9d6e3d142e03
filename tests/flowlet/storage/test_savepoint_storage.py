"""A savepoint has all of its files in one directory, wherever that is, and is read only by readers that know the
secret.
"""

import shutil
from pathlib import Path

import pytest

from flowlet.errors import StorageError
from flowlet.messages.job_messages import StateHandle, SubtaskEntry
from flowlet.storage.checkpoint_storage import CheckpointStorage, SavepointStorage, target_root
from flowlet.storage.manifest import CheckpointManifest, SourceEntry, manifest_key
from flowlet.storage.state_files import INLINE_BYTES

JOB = "0123456789abcdef" * 2
KEY = manifest_key(b"secret")
LARGE = bytes(range(256)) * 100
assert len(LARGE) > INLINE_BYTES


def written(target: Path, *, is_savepoint: bool = True) -> tuple[SavepointStorage, CheckpointManifest]:
    """Write a savepoint with a state in a file, one in the manifest, and a large source."""
    storage = SavepointStorage.create(str(target), JOB, KEY)
    states = [storage.write_state(3, "large", LARGE), storage.write_state(3, "small", b"small")]
    entries = [SubtaskEntry("v", index, state) for index, state in enumerate(states)]
    manifest = CheckpointManifest(
        JOB, "job", 3, 1000, {"v": 2}, entries, [SourceEntry("v", LARGE)], is_savepoint=is_savepoint
    )
    storage.write_manifest(manifest)
    return storage, manifest


def test_a_new_one_has_a_directory_of_its_own_that_names_the_job(tmp_path: Path) -> None:
    """The directory above is made, too."""
    first = SavepointStorage.create(str(tmp_path / "new" / "target"), JOB)
    second = SavepointStorage.create(str(tmp_path / "new" / "target"), JOB)

    names = sorted(path.name for path in (tmp_path / "new" / "target").iterdir())
    assert names == sorted(Path(each.location).name for each in (first, second))
    assert all(name.startswith(f"savepoint-{JOB[:6]}-") for name in names)
    assert list(Path(first.location).iterdir()) == []


def test_it_is_read_after_it_was_copied_under_another_name(tmp_path: Path) -> None:
    """The original may be gone."""
    storage, manifest = written(tmp_path)
    shutil.move(storage.location, tmp_path / "backup of Monday")

    moved = SavepointStorage(str(tmp_path / "backup of Monday"), KEY)

    assert moved.read_manifest() == manifest
    assert [moved.read_state(each.state) for each in manifest.subtasks if each.state is not None] == [LARGE, b"small"]


def test_a_directory_without_a_manifest_is_no_savepoint(tmp_path: Path) -> None:
    """A missing directory is none either; the message says what to name."""
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            StorageError,
            match=r"names no checkpoint or savepoint: there is no file _metadata in it; name the directory",
        ):
            SavepointStorage(str(place), KEY).read_manifest()


def test_a_link_to_it_may_be_named(tmp_path: Path) -> None:
    storage, manifest = written(tmp_path)
    (tmp_path / "latest").symlink_to(storage.location)

    assert SavepointStorage(str(tmp_path / "latest"), KEY).read_manifest() == manifest


def test_another_secret_reads_nothing(tmp_path: Path) -> None:
    storage, _ = written(tmp_path)

    with pytest.raises(StorageError, match="cluster with another secret"):
        SavepointStorage(storage.location, manifest_key(b"other")).read_manifest()
    with pytest.raises(StorageError, match="cannot be verified without the cluster's secret"):
        SavepointStorage(storage.location).read_manifest()


def test_a_file_that_is_missing_or_changed_is_named(tmp_path: Path) -> None:
    storage, manifest = written(tmp_path)
    handle = manifest.subtasks[0].state
    assert handle is not None
    file = Path(storage.location) / "large"

    file.write_bytes(LARGE[:-1] + b"x")
    with pytest.raises(StorageError, match="large was changed after it was written"):
        storage.read_state(handle)
    file.unlink()
    with pytest.raises(StorageError, match="large is missing"):
        storage.read_manifest()


@pytest.mark.parametrize("path", ["../other", "folder/name", ".hidden", ""])
def test_no_handle_leads_out_of_it(path: str, tmp_path: Path) -> None:
    storage, _ = written(tmp_path)

    with pytest.raises(StorageError, match="is no file of savepoint"):
        storage.read_state(StateHandle(1, b"", path=path))


def test_a_checkpoint_is_no_savepoint_and_the_other_way_round(tmp_path: Path) -> None:
    checkpoints = CheckpointStorage(str(tmp_path), JOB, KEY)
    checkpoints.write_manifest(CheckpointManifest(JOB, "job", 3, 1000, {}, []))
    storage, _ = written(tmp_path)

    with pytest.raises(StorageError, match="is a checkpoint, which was moved"):
        SavepointStorage(str(tmp_path / JOB / "chk-3"), KEY).read_manifest()
    shutil.copy(Path(storage.location) / "_metadata", tmp_path / JOB / "chk-3" / "_metadata")
    with pytest.raises(StorageError, match="is that of savepoint 3"):
        checkpoints.read_manifest(3)


def test_what_one_that_failed_has_left_is_removed(tmp_path: Path) -> None:
    storage, _ = written(tmp_path / "target")

    storage.discard()
    storage.discard()

    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("target", ["relative/path", "memory://here", "https://host/path", ""])
def test_a_target_that_nobody_else_could_read_is_refused(target: str) -> None:
    """The message asks for an absolute path."""
    with pytest.raises(StorageError, match=r"a savepoint cannot be written to .*: name an absolute path"):
        target_root(target)


def test_a_target_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")

    with pytest.raises(StorageError, match="cannot be written"):
        SavepointStorage.create(str(tmp_path / "file"), JOB)
