"""Checkpoints behind fsspec: a file system of fsspec that stands for any, and an S3 server on this machine."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import msgspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from flowlet.common.paths import check_checkpoint_url
from flowlet.errors import StorageError
from flowlet.messages.job_messages import StateHandle, SubtaskEntry
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.storage.manifest import CheckpointManifest, manifest_key

JOB = "0123456789abcdef" * 2
KEY = manifest_key(b"secret")
LARGE = bytes(range(256)) * 100


class FolderFileSystem(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A file system that flowlet does not know: ``flowlettest:///path``."""

    protocol = ("flowlettest",)
    failure: Exception | None = None  # of the next move

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("flowlettest://")))

    def mv(self, path1: str, path2: str, **kwargs: object) -> None:
        failure, FolderFileSystem.failure = FolderFileSystem.failure, None
        if failure is not None:
            raise failure
        super().mv(path1, path2, **kwargs)


fsspec.register_implementation("flowlettest", FolderFileSystem, clobber=True)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    FolderFileSystem.failure = None
    yield f"flowlettest://{tmp_path}/checkpoints/"
    fsspec.config.conf.pop("flowlettest", None)


def storage_at(url: str) -> CheckpointStorage:
    return CheckpointStorage(url, JOB, KEY)


def completed(storage: CheckpointStorage, checkpoint_id: int) -> StateHandle:
    handle = storage.write_state(checkpoint_id, "state-a", LARGE)
    subtasks = [SubtaskEntry("v", 0, handle)]
    storage.write_manifest(CheckpointManifest(JOB, "a job", checkpoint_id, 1000, {"v": 1}, subtasks))
    return handle


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_a_checkpoint_comes_back_from_another_storage_object(url: str, tmp_path: Path) -> None:
    storage = storage_at(url)

    storage.check_writable()
    handle = completed(storage, 3)

    other = storage_at(url)
    assert other.read_manifest(3).subtasks[0].state == handle
    assert other.read_state(handle) == LARGE
    assert other.complete_checkpoints() == [3]
    assert tree(tmp_path / "checkpoints") == [JOB, f"{JOB}/chk-3", f"{JOB}/chk-3/_metadata", f"{JOB}/chk-3/state-a"]


def test_what_is_incomplete_goes_and_what_is_discarded_leaves_nothing(url: str, tmp_path: Path) -> None:
    storage = storage_at(url)
    storage.write_state(1, "late", LARGE)
    completed(storage, 2)
    storage.write_state(3, "early", LARGE)

    storage.discard_incomplete(before=3)
    assert sorted(os.listdir(tmp_path / "checkpoints" / JOB)) == ["chk-2", "chk-3"]
    storage.discard(2)
    storage.discard(3)
    storage.discard(4)

    assert tree(tmp_path / "checkpoints") == []


def test_a_write_that_fails_leaves_nothing(url: str, tmp_path: Path) -> None:
    storage = storage_at(url)
    FolderFileSystem.failure = OSError(28, "No space left on device")

    with pytest.raises(StorageError) as caught:
        storage.write_state(1, "state-a", LARGE)

    assert str(caught.value) == (
        f"checkpoint file flowlettest://{tmp_path}/checkpoints/{JOB}/chk-1/state-a cannot be written: the store is "
        "full; free space there, "
        "or set execution.checkpointing.dir to another place"
    )
    assert tree(tmp_path / "checkpoints") == [JOB, f"{JOB}/chk-1"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (LARGE[:100], "is cut off: it has 100 of"),
        (LARGE[:-1] + b"x", "its SHA-256 is wrong"),
        (LARGE * 2, "instead of at most"),
        (None, "is missing"),
    ],
)
def test_a_damaged_state_is_refused(url: str, tmp_path: Path, content: bytes | None, sentence: str) -> None:
    storage = storage_at(url)
    handle = completed(storage, 1)
    path = tmp_path / "checkpoints" / JOB / "chk-1" / "state-a"
    path.unlink()
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(StorageError, match=sentence) as caught:
        storage.read_state(handle)

    assert f"checkpoint file flowlettest://{path} " in str(caught.value)
    if content is None or len(content) != len(LARGE):
        with pytest.raises(StorageError, match=r"state-a (is missing|has .* bytes instead of)"):
            storage.read_manifest(1)


def test_a_handle_leads_nowhere_else(url: str) -> None:
    storage = storage_at(url)
    handle = completed(storage, 1)

    with pytest.raises(StorageError, match="is no file of a checkpoint"):
        storage.read_state(msgspec.structs.replace(handle, path="../../x"))


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("memory://x", "it is the memory of one process"),
        ("local:///x", "directories are named by their path"),
        ("https://host/x", "nothing can be written there"),
        ("filecache::s3://bucket/x", "other processes do not see what is in a cache"),
        ("s3::s3://bucket/x", "it is a chain of URLs"),
        ("s3:bucket/x", "a URL has the form s3://bucket/folder"),
        ("s3://", "a URL has the form s3://bucket/folder"),
        ("s3://bucket/x?versionId=1", "it has a query"),
        ("s3://bucket/../x", "'..' leads out of a folder"),
        ("s3://key:PASS@bucket/x", r"'s3://\.\.\.@bucket/x': it holds a password"),
    ],
)
def test_a_url_that_cannot_hold_checkpoints_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(StorageError, match=sentence) as caught:
        check_checkpoint_url(url)

    assert "PASS" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["s3://bucket", "s3://bucket/a/b", "gs://b/x", "abfs://container@account.dfs.core.windows.net/x", "hdfs://h:1/x"],
)
def test_other_urls_pass(url: str) -> None:
    check_checkpoint_url(url)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)

    with pytest.raises(StorageError) as caught:
        CheckpointStorage("gs://bucket/x", JOB)

    assert str(caught.value) == (
        "checkpoints cannot be kept in 'gs://bucket/x': gcsfs is not installed: install it for every process of the "
        "cluster "
        "(pip install gcsfs)"
    )


def test_an_unknown_scheme_is_said() -> None:
    with pytest.raises(StorageError, match="fsspec knows no storage with the scheme 'nosuch'; set exec"):
        CheckpointStorage("nosuch://bucket/x", JOB)


def test_a_folder_that_is_gone_is_missing(url: str, tmp_path: Path) -> None:
    storage = storage_at(url)
    handle = completed(storage, 1)
    shutil.rmtree(tmp_path / "checkpoints")

    assert storage.complete_checkpoints() == []
    with pytest.raises(StorageError, match="is missing: put the original back"):
        storage.read_state(handle)
