"""pip installs what a job needs, from the packages that came with it."""

import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from flowlet.shipping.requirements_installer import RequirementsError, install, loaded_versions
from tests.flowlet.shipping.wheels import make_wheel

pytestmark = pytest.mark.slow  # pip takes a second to start


def not_cancelled() -> None:
    pass


def test_packages_are_installed_into_the_folder_with_what_they_need(tmp_path: Path) -> None:
    make_wheel(tmp_path / "packages", "outer", "1.0", {"outer.py": "import inner"}, needs="inner")
    make_wheel(tmp_path / "packages", "inner", "3.0", {"inner.py": ""})
    (tmp_path / "requirements.txt").write_text("outer==1.0\n")

    install(tmp_path / "requirements.txt", tmp_path / "packages", tmp_path / "folder", {"numpy": "1.0"}, not_cancelled)

    assert {path.name for path in (tmp_path / "folder").glob("*.py")} == {"outer.py", "inner.py"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "packages", "requirements.txt"]


def test_a_package_that_is_not_there_is_told_in_the_words_of_pip(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "requirements.txt").write_text("nowhere-to-be-found\n")

    with pytest.raises(RequirementsError, match=r"pip ended with exit code 1: .*No matching distribution found for nowhere-to-be-found"):
        install(tmp_path / "requirements.txt", tmp_path / "packages", tmp_path / "folder", {}, not_cancelled)


def test_a_version_that_differs_from_the_loaded_one_is_a_conflict(tmp_path: Path) -> None:
    make_wheel(tmp_path / "packages", "inner", "3.0", {"inner.py": ""})
    (tmp_path / "requirements.txt").write_text("inner==3.0\n")

    with pytest.raises(RequirementsError, match=r"The user requested \(constraint\) inner==2.0"):
        install(tmp_path / "requirements.txt", tmp_path / "packages", tmp_path / "folder", {"inner": "2.0"}, not_cancelled)


def test_a_cancelled_task_ends_pip(tmp_path: Path) -> None:
    class CancelledError(Exception):
        pass

    def cancelled() -> None:
        raise CancelledError

    (tmp_path / "requirements.txt").write_text("")

    with pytest.raises(CancelledError):
        install(tmp_path / "requirements.txt", None, tmp_path / "folder", {}, cancelled)


def test_versions_of_loaded_packages_are_known_and_those_of_other_folders_are_not(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    helper = ModuleType("msgspec")
    helper.__file__ = str(tmp_path / "helper.py")

    assert loaded_versions(sys.modules)["msgspec"] == metadata.version("msgspec")
    assert "msgspec" not in loaded_versions({"msgspec": helper})
