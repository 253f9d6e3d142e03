"""Directories of databases: the rests of killed processes are removed, directories in use stay."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowlet.errors import FlowletError
from flowlet.storage.state_files import WorkingDirectory

PROGRAM = """
import sys
from flowlet.storage.state_files import WorkingDirectory
directory = WorkingDirectory(sys.argv[1], purpose="rocksdb", advice="go")
(directory.path() / "file").write_text("x")
print(directory.path(), flush=True)
sys.stdin.read()
"""


def test_a_directory_goes_with_its_files(tmp_path: Path) -> None:
    directory = WorkingDirectory(str(tmp_path), purpose="rocksdb", advice="set state.backend.rocksdb.localdir")
    (directory.path() / "file").write_text("x")
    base = directory.path().parent

    directory.close()
    directory.close()

    assert list(base.iterdir()) == []


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        paths = []
        for child in children:
            assert child.stdout is not None
            paths.append(Path(child.stdout.readline().strip()))
        children[0].send_signal(signal.SIGKILL)
        children[0].wait(30)

        own = WorkingDirectory(str(tmp_path), purpose="rocksdb", advice="set state.backend.rocksdb.localdir")
        own.path()
        own.close()

        assert not paths[0].exists()
        assert (paths[1] / "file").exists()
        assert len(list(paths[1].parent.iterdir())) == 2, "the directory of the living one, and its lock"
    finally:
        for child in children:
            child.kill()
            child.communicate(timeout=30)


def test_a_directory_of_another_form_is_refused(tmp_path: Path) -> None:
    base = tmp_path / f"flowlet-rocksdb-{os.geteuid()}"
    base.mkdir()
    base.chmod(0o777)

    with pytest.raises(
        FlowletError, match=r"belongs to this user alone; make it writable, or set state\.backend\.rocksdb\.localdir"
    ):
        WorkingDirectory(str(tmp_path), purpose="rocksdb", advice="set state.backend.rocksdb.localdir").path()


def test_a_directory_that_is_asked_for_after_the_end_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = WorkingDirectory(purpose="files", advice="go")
    first = directory.path()
    assert directory.path() == first

    directory.close()
    directory.close()

    with pytest.raises(FlowletError, match="the directory for files was removed"):
        directory.path()
    assert list(first.parent.iterdir()) == []


def test_what_is_written_while_its_directory_is_removed_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writing thread cannot be held back; without its lock the directory would stay for ever."""
    directory = WorkingDirectory(str(tmp_path), purpose="rocksdb", advice="go")
    path = directory.path()
    remove = shutil.rmtree

    def remove_too_early(path: Path, *, ignore_errors: bool) -> None:
        remove(path, ignore_errors=ignore_errors)
        path.mkdir()
        (path / "late").write_text("x")

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", remove_too_early)
        directory.close()
    assert (path / "late").exists()

    other = WorkingDirectory(str(tmp_path), purpose="rocksdb", advice="go")
    other.path()
    other.close()

    assert list(path.parent.iterdir()) == []
