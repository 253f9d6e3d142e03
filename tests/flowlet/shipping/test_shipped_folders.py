"""Folders of modules on the import path, one version of a name at a time."""

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlet.messages.program_bundle import ModuleSource
from flowlet.serde.deploy_blobs import DeploymentError
from flowlet.shipping.job_file_cache import JobPaths
from flowlet.shipping.program_modules import ShippedCode

NAME = "a_module_of_this_test"


@pytest.fixture
def code() -> Iterator[ShippedCode]:
    """Provide shipped code on the real import path: modules that a test imported are unloaded, and the finder goes with
    the test.
    """
    found = ShippedCode()
    yield found
    if found in sys.meta_path:
        sys.meta_path.remove(found)
    for name in [each for each in sys.modules if each.partition(".")[0] == NAME]:
        del sys.modules[name]


def folder_with(path: Path, text: str, *, package: bool = False) -> Path:
    path.mkdir()
    if package:
        (path / NAME).mkdir()
        (path / NAME / "__init__.py").write_text(text)
        (path / NAME / "inner.py").write_text(text)
    else:
        (path / f"{NAME}.py").write_text(text)
    return path


def imported(name: str = NAME) -> object:
    return importlib.import_module(name).VERSION


def test_a_module_is_found_while_a_task_needs_it_and_the_path_is_as_before_afterwards(
    code: ShippedCode, tmp_path: Path
) -> None:
    one, before = folder_with(tmp_path / "one", "VERSION = 1"), list(sys.path)

    with code.in_use(JobPaths((one,)), {}, "job"):
        assert imported() == 1
        with code.in_use(JobPaths((one,)), {}, "job"):
            assert sys.path == [str(one), *before]
        assert sys.path == [str(one), *before]
    assert sys.path == before
    assert code.brings(f"{NAME}.inner")


def test_a_job_whose_working_directory_is_gone_changes_nothing_of_the_process(
    code: ShippedCode, tmp_path: Path
) -> None:
    one, before = folder_with(tmp_path / "one", "VERSION = 1"), list(sys.path)
    code.owns_process = True

    with (
        pytest.raises(FileNotFoundError),
        code.in_use(JobPaths((one,), working_directory=tmp_path / "gone"), {}, "job"),
    ):
        pytest.fail("it is in use")

    assert (sys.path, code in sys.meta_path) == (before, False)
    with code.in_use(JobPaths((one,)), {}, "other"):
        assert imported() == 1
    assert sys.path == before


def test_a_job_that_brings_nothing_changes_nothing_of_the_process(
    code: ShippedCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks of the job may start at once on many threads."""
    monkeypatch.setattr(importlib, "invalidate_caches", lambda: pytest.fail("called"))

    with code.in_use(JobPaths(), {}, "job"):
        assert code not in sys.meta_path


def test_a_folder_may_follow_sources_that_took_over_a_module_of_another_folder(
    code: ShippedCode, tmp_path: Path
) -> None:
    """The module of the first job stays loaded, because the second job brings an equal one."""
    one, other = folder_with(tmp_path / "one", "VERSION = 1"), folder_with(tmp_path / "other", "VERSION = 2")
    with code.in_use(JobPaths((one,)), {}, "first"):
        assert imported() == 1
    with code.in_use(JobPaths(), {NAME: ModuleSource(f"{NAME}.py", b"VERSION = 1")}, "second"):
        assert imported() == 1

    with code.in_use(JobPaths((other,)), {}, "third"):
        assert imported() == 2


def test_a_module_that_replaces_itself_by_an_object_may_be_used_by_two_tasks(code: ShippedCode, tmp_path: Path) -> None:
    """The object has a file, and no other attribute of a module."""
    text = "import sys\nclass Settings:\n    __file__ = __file__\n    VERSION = 1\nsys.modules[__name__] = Settings()"
    one = folder_with(tmp_path / "one", text)

    with code.in_use(JobPaths((one,)), {}, "job"):
        assert imported() == 1
        with code.in_use(JobPaths((one,)), {}, "job"):
            assert imported() == 1


def test_two_tasks_may_forget_what_the_finders_know_at_once(
    code: ShippedCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython raises KeyError where another thread has removed an entry first."""
    one = folder_with(tmp_path / "one", "VERSION = 1")
    forget, calls = importlib.invalidate_caches, []

    def raced() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("python311.zip")
        forget()

    monkeypatch.setattr(importlib, "invalidate_caches", raced)

    with code.in_use(JobPaths((one,)), {}, "job"):
        assert imported() == 1
    assert len(calls) == 2


def test_a_source_never_replaces_a_module_in_the_folder_of_another_job_that_runs(
    code: ShippedCode, tmp_path: Path
) -> None:
    one = folder_with(tmp_path / "one", "VERSION = 1")
    source = {NAME: ModuleSource("/elsewhere.py", b"VERSION = 2")}

    with code.in_use(JobPaths((one,)), {}, "job"):
        assert imported() == 1
        with pytest.raises(
            DeploymentError, match=f"module '{NAME}' differs from that of job 'job', which runs in the same TaskManager"
        ):
            code.in_use(JobPaths(), source, "second job").__enter__()
    with code.in_use(JobPaths(), source, "second job"):
        assert imported() == 2


def test_the_first_folder_counts_and_packages_come_last(code: ShippedCode, tmp_path: Path) -> None:
    one, two = folder_with(tmp_path / "one", "VERSION = 1"), folder_with(tmp_path / "two", "VERSION = 2")

    with code.in_use(JobPaths((one,), packages=two), {}, "job"):
        assert imported() == 1
        assert sys.path[:2] == [str(one), str(two)]


def test_the_next_job_brings_another_version_of_a_package(code: ShippedCode, tmp_path: Path) -> None:
    one = folder_with(tmp_path / "one", "VERSION = 1", package=True)
    two = folder_with(tmp_path / "two", "VERSION = 2", package=True)

    with code.in_use(JobPaths((one,)), {}, "job"):
        assert (imported(), imported(f"{NAME}.inner")) == (1, 1)
    with code.in_use(JobPaths((two,)), {}, "job"):
        assert (imported(), imported(f"{NAME}.inner")) == (2, 2)


def test_a_job_with_another_version_beside_a_running_one_is_refused(code: ShippedCode, tmp_path: Path) -> None:
    one, two = folder_with(tmp_path / "one", "VERSION = 1"), folder_with(tmp_path / "two", "VERSION = 2")

    with code.in_use(JobPaths((one,)), {}, "first"):
        before = list(sys.path)
        with pytest.raises(DeploymentError, match=f"the job's module '{NAME}' differs from that of job 'first'"):
            code.in_use(JobPaths((two,)), {}, "second").__enter__()
        assert sys.path == before
        assert imported() == 1


def test_a_file_that_would_hide_a_loaded_module_is_refused_unless_it_is_the_same(
    code: ShippedCode, tmp_path: Path
) -> None:
    source = folder_with(tmp_path / "source", "VERSION = 1")
    sys.path.insert(0, str(source))
    try:
        imported()
    finally:
        sys.path.remove(str(source))
    same, other = folder_with(tmp_path / "same", "VERSION = 1"), folder_with(tmp_path / "other", "VERSION = 2")

    with code.in_use(JobPaths((same,)), {}, "job"):
        assert imported() == 1
    with pytest.raises(
        DeploymentError,
        match=f"the job ships a module '{NAME}', and this TaskManager has loaded another one of that name",
    ):
        code.in_use(JobPaths((other,)), {}, "job").__enter__()
    with code.in_use(JobPaths(packages=other), {}, "job"):
        assert imported() == 1, "what is loaded stays: pip got its version"


def test_a_module_that_came_as_source_makes_room_for_a_file_and_comes_before_it(
    code: ShippedCode, tmp_path: Path
) -> None:
    source = {NAME: ModuleSource("/elsewhere.py", b"VERSION = 0")}
    one = folder_with(tmp_path / "one", "VERSION = 1")

    with code.in_use(JobPaths(), source, "first"):
        assert imported() == 0
        with pytest.raises(DeploymentError, match=f"the job's module '{NAME}' differs from that of job 'first'"):
            code.in_use(JobPaths((one,)), {}, "second").__enter__()
        with code.in_use(JobPaths((one,)), source, "first"):
            assert imported() == 0
    with code.in_use(JobPaths((one,)), {}, "second"):
        assert imported() == 1


def test_archives_set_the_working_directory_while_a_task_needs_them(code: ShippedCode, tmp_path: Path) -> None:
    code.owns_process = True
    before, (one, two) = os.getcwd(), (tmp_path / "one", tmp_path / "two")
    one.mkdir()
    two.mkdir()

    with code.in_use(JobPaths(working_directory=one), {}, "first"):
        assert os.getcwd() == str(one)
        with code.in_use(JobPaths(working_directory=one), {}, "first"):
            pass
        assert os.getcwd() == str(one)
        with pytest.raises(
            DeploymentError, match="job 'first', which runs in the same TaskManager, has archives of its own"
        ):
            code.in_use(JobPaths(working_directory=two), {}, "second").__enter__()
    assert os.getcwd() == before
    with code.in_use(JobPaths(working_directory=two), {}, "second"):
        assert os.getcwd() == str(two)
    assert os.getcwd() == before


def test_the_working_directory_of_a_users_process_stays(code: ShippedCode, tmp_path: Path) -> None:
    before = os.getcwd()

    with pytest.raises(DeploymentError, match="archives set the working directory, which belongs to the program here"):
        code.in_use(JobPaths(working_directory=tmp_path), {}, "job").__enter__()
    assert os.getcwd() == before


def test_a_folder_that_a_job_brings_twice_is_there_until_its_last_task_has_ended(
    code: ShippedCode, tmp_path: Path
) -> None:
    """Two files of one content lie in one folder."""
    one, before = folder_with(tmp_path / "one", "VERSION = 1"), list(sys.path)
    paths = JobPaths((one, one), packages=one)

    with code.in_use(paths, {}, "job"):
        with code.in_use(paths, {}, "job"):
            pass
        assert sys.path == [str(one), *before]
    assert sys.path == before
