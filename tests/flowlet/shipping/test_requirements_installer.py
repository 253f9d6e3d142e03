"""pip installs the requirements of a job, from the packages that came with it."""

import os
import select
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from flowlet.shipping.job_file_cache import RequirementsError, install, loaded_versions
from tests.flowlet.shipping.wheels import make_wheel

pytestmark = pytest.mark.slow  # pip takes a second to start


class CancelledError(Exception):
    pass


def installed(folder: Path, requirements: str, loaded: dict[str, str], *, is_cancelled: bool = False) -> Path:
    """Install from the packages of a folder; return where."""

    def check() -> None:
        if is_cancelled:
            raise CancelledError

    (folder / "requirements.txt").write_text(requirements)
    install(folder / "requirements.txt", folder / "packages", folder / "folder", loaded, check)
    return folder / "folder"


def test_packages_are_installed_into_the_folder_with_what_they_need(tmp_path: Path) -> None:
    make_wheel(tmp_path / "packages", "outer", "1.0", {"outer.py": "import inner"}, needs="inner")
    make_wheel(tmp_path / "packages", "inner", "3.0", {"inner.py": ""})

    found = installed(tmp_path, "outer==1.0\n", {"numpy": "1.0"})

    assert {path.name for path in found.glob("*.py")} == {"outer.py", "inner.py"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "packages", "requirements.txt"]


def test_a_package_that_is_not_there_is_told_in_the_words_of_pip(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()

    reason = r"pip ended with exit code 1: .*No matching distribution found for nowhere-to-be-found"
    with pytest.raises(RequirementsError, match=reason):
        installed(tmp_path, "nowhere-to-be-found\n", {})


def test_a_version_that_differs_from_the_loaded_one_is_a_conflict(tmp_path: Path) -> None:
    make_wheel(tmp_path / "packages", "inner", "3.0", {"inner.py": ""})

    with pytest.raises(RequirementsError, match=r"The user requested \(constraint\) inner==2.0"):
        installed(tmp_path, "inner==3.0\n", {"inner": "2.0"})


def test_a_cancelled_task_ends_pip(tmp_path: Path) -> None:
    with pytest.raises(CancelledError):
        installed(tmp_path, "", {}, is_cancelled=True)


def test_a_cancelled_task_ends_what_pip_has_started_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler is such a process; here it is a program that writes a line into a pipe and stays."""
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "pip").write_text(f"#!/bin/sh\n(echo; exec sleep 20) > {tmp_path}/pipe &\nwait\n")
    (tmp_path / "pip").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "pip"))

    def cancelled() -> None:
        if select.select([pipe], [], [], 0)[0] and os.read(pipe, 1):
            raise CancelledError

    with pytest.raises(CancelledError):
        install(tmp_path / "requirements.txt", None, tmp_path / "folder", {}, cancelled)

    assert select.select([pipe], [], [], 10)[0], "the writer has ended"
    assert not os.read(pipe, 1)
    os.close(pipe)


def test_versions_of_loaded_packages_are_known_and_those_of_other_folders_are_not(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    helper = ModuleType("msgspec")
    helper.__file__ = str(tmp_path / "helper.py")

    assert loaded_versions({"msgspec": msgspec})["msgspec"] == metadata.version("msgspec")
    assert "msgspec" not in loaded_versions({"msgspec": helper}, [metadata.distribution("msgspec")])
