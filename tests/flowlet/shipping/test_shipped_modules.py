"""Modules that came with a job are imported from memory, one version at a time."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlet.messages.program_bundle import ModuleSource, pack_modules
from flowlet.serde.deploy_blobs import DeploymentError
from flowlet.shipping.job_file_cache import JobPaths
from flowlet.shipping.program_modules import ShippedCode

RULES = "rules_of_shipping"


def rules(text: str) -> dict[str, ModuleSource]:
    return {RULES: ModuleSource("/home/ann/rules.py", text.encode())}


@pytest.fixture
def shipped() -> Iterator[ShippedCode]:
    modules = before, _ = set(sys.modules), ShippedCode()
    yield modules[1]
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not modules[1]]
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_package_is_imported_from_what_the_job_brought(shipped: ShippedCode) -> None:
    modules = {
        "pack_of_shipping": ModuleSource("", b"", is_package=True),
        "pack_of_shipping.inner": ModuleSource("/home/ann/pack/inner.py", b"from . import other\nVALUE = other.VALUE"),
        "pack_of_shipping.other": ModuleSource("/home/ann/pack/other.py", "VALUE = 'ä'".encode()),
    }
    with shipped.in_use(JobPaths(), modules, "job"):
        inner = importlib.import_module("pack_of_shipping.inner")
    assert inner.VALUE == "ä"
    assert inner.__file__ == "/home/ann/pack/inner.py"


def test_a_traceback_shows_the_lines_of_a_shipped_module(shipped: ShippedCode) -> None:
    with shipped.in_use(JobPaths(), rules("def check():\n    raise ValueError('no')  # the user's line\n"), "job"):
        module = importlib.import_module(RULES)
    with pytest.raises(ValueError, match="no") as raised:
        module.check()
    text = "".join(traceback.format_exception(raised.value))
    assert 'File "/home/ann/rules.py", line 2, in check' in text
    assert "raise ValueError('no')  # the user's line" in text


def test_the_next_job_gets_its_own_version(shipped: ShippedCode) -> None:
    for version in (1, 2):
        with shipped.in_use(JobPaths(), rules(f"VERSION = {version}"), f"job {version}"):
            assert version == importlib.import_module(RULES).VERSION


def test_the_same_version_is_imported_once(shipped: ShippedCode) -> None:
    found = []
    for _ in range(2):
        with shipped.in_use(JobPaths(), rules("VERSION = 1"), "job"):
            found.append(importlib.import_module(RULES))
    assert found[0] is found[1]


def test_a_version_in_use_is_not_replaced_and_the_error_names_the_job(shipped: ShippedCode) -> None:
    with shipped.in_use(JobPaths(), rules("VERSION = 1"), "first"):
        module = importlib.import_module(RULES)
        refusal = pytest.raises(
            DeploymentError, match=rf"module '{RULES}' differs from that of job 'first', .*: cancel it or wait"
        )
        with refusal, shipped.in_use(JobPaths(), rules("VERSION = 2"), "second"):
            pytest.fail("it must not run")
        with shipped.in_use(JobPaths(), rules("VERSION = 1"), "third"):
            assert importlib.import_module(RULES) is module
    with shipped.in_use(JobPaths(), rules("VERSION = 2"), "second"):
        assert importlib.import_module(RULES).VERSION == 2


def test_a_refused_job_changes_nothing(shipped: ShippedCode) -> None:
    """The module in use stays, and another one that the job brought is not there."""
    other = {"other_of_shipping": ModuleSource("", b"VERSION = 2")}
    with shipped.in_use(JobPaths(), rules("VERSION = 1"), "first"):
        with pytest.raises(DeploymentError), shipped.in_use(JobPaths(), other | rules("VERSION = 2"), "second"):
            pass
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("other_of_shipping")


@pytest.mark.parametrize("is_same", [True, False], ids=["the same", "another"])
def test_a_file_that_is_here_counts_as_a_version(
    shipped: ShippedCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_same: bool
) -> None:
    (tmp_path / f"{RULES}.py").write_text("VERSION = 1")
    monkeypatch.syspath_prepend(tmp_path)
    here = importlib.import_module(RULES)
    with shipped.in_use(JobPaths(), rules("VERSION = 1" if is_same else "VERSION = 2"), "job"):
        assert (importlib.import_module(RULES) is here) == is_same
        assert (1 if is_same else 2) == importlib.import_module(RULES).VERSION


def test_modules_of_the_programs_own_process_stay(
    shipped: ShippedCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster may run inside the program: the very file is one version, however it was loaded."""
    file = tmp_path / f"{RULES}.py"
    file.write_text("VERSION = 1")
    monkeypatch.syspath_prepend(tmp_path)
    here = importlib.import_module(RULES)
    file.write_text("VERSION = 2")
    with shipped.in_use(JobPaths(), {RULES: ModuleSource(str(file), b"VERSION = 2")}, "job"):
        assert importlib.import_module(RULES) is here


def test_a_new_module_renews_those_that_refer_to_it(shipped: ShippedCode) -> None:
    """The module that did not change must not hold on to the old version of the one that did."""
    user = {"user_of_shipping": ModuleSource("", f"import {RULES}\nVERSION = {RULES}.VERSION".encode())}
    for version in (1, 2):
        with shipped.in_use(JobPaths(), user | rules(f"VERSION = {version}"), "job"):
            assert version == importlib.import_module("user_of_shipping").VERSION


def test_the_tasks_of_a_job_share_the_modules_that_they_read(shipped: ShippedCode, tmp_path: Path) -> None:
    """Each would hold the program once more otherwise."""
    for name in ("one", "other"):
        (tmp_path / name).write_bytes(pack_modules(rules(f"NAME = {name!r}")))

    first, second = shipped.read(tmp_path / "one"), shipped.read(tmp_path / "one")
    other = shipped.read(tmp_path / "other")

    assert first is second
    assert first == rules("NAME = 'one'")
    assert other == rules("NAME = 'other'")


def test_a_file_that_has_no_modules_is_an_error(shipped: ShippedCode, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"VERSION = 1")
    with pytest.raises(DeploymentError, match="the modules of the job are not readable"):
        shipped.read(tmp_path / "file")


# -------------------------------------------------------------------- folders on the import path


NAME = "a_module_of_this_test"


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
    shipped: ShippedCode, tmp_path: Path
) -> None:
    one, before = folder_with(tmp_path / "one", "VERSION = 1"), list(sys.path)

    with shipped.in_use(JobPaths((one,)), {}, "job"):
        assert imported() == 1
        with shipped.in_use(JobPaths((one,)), {}, "job"):
            assert sys.path == [str(one), *before]
        assert sys.path == [str(one), *before]
    assert sys.path == before
    assert shipped.brings(f"{NAME}.inner")


def test_a_job_whose_working_directory_is_gone_changes_nothing_of_the_process(
    shipped: ShippedCode, tmp_path: Path
) -> None:
    one, before = folder_with(tmp_path / "one", "VERSION = 1"), list(sys.path)
    shipped.owns_process = True

    with (
        pytest.raises(FileNotFoundError),
        shipped.in_use(JobPaths((one,), working_directory=tmp_path / "gone"), {}, "job"),
    ):
        pytest.fail("it is in use")

    assert (sys.path, shipped in sys.meta_path) == (before, False)
    with shipped.in_use(JobPaths((one,)), {}, "other"):
        assert imported() == 1
    assert sys.path == before


def test_a_job_that_brings_nothing_changes_nothing_of_the_process(
    shipped: ShippedCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks of the job may start at once on many threads."""
    monkeypatch.setattr(importlib, "invalidate_caches", lambda: pytest.fail("called"))

    with shipped.in_use(JobPaths(), {}, "job"):
        assert shipped not in sys.meta_path


def test_a_folder_may_follow_sources_that_took_over_a_module_of_another_folder(
    shipped: ShippedCode, tmp_path: Path
) -> None:
    """The module of the first job stays loaded, because the second job brings an equal one."""
    one, other = folder_with(tmp_path / "one", "VERSION = 1"), folder_with(tmp_path / "other", "VERSION = 2")
    with shipped.in_use(JobPaths((one,)), {}, "first"):
        assert imported() == 1
    with shipped.in_use(JobPaths(), {NAME: ModuleSource(f"{NAME}.py", b"VERSION = 1")}, "second"):
        assert imported() == 1

    with shipped.in_use(JobPaths((other,)), {}, "third"):
        assert imported() == 2


def test_a_module_that_replaces_itself_by_an_object_may_be_used_by_two_tasks(
    shipped: ShippedCode, tmp_path: Path
) -> None:
    """The object has a file, and no other attribute of a module."""
    text = "import sys\nclass Settings:\n    __file__ = __file__\n    VERSION = 1\nsys.modules[__name__] = Settings()"
    one = folder_with(tmp_path / "one", text)

    with shipped.in_use(JobPaths((one,)), {}, "job"):
        assert imported() == 1
        with shipped.in_use(JobPaths((one,)), {}, "job"):
            assert imported() == 1


def test_two_tasks_may_forget_what_the_finders_know_at_once(
    shipped: ShippedCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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

    with shipped.in_use(JobPaths((one,)), {}, "job"):
        assert imported() == 1
    assert len(calls) == 2


def test_a_source_never_replaces_a_module_in_the_folder_of_another_job_that_runs(
    shipped: ShippedCode, tmp_path: Path
) -> None:
    one = folder_with(tmp_path / "one", "VERSION = 1")
    source = {NAME: ModuleSource("/elsewhere.py", b"VERSION = 2")}

    with shipped.in_use(JobPaths((one,)), {}, "job"):
        assert imported() == 1
        reason = f"module '{NAME}' differs from that of job 'job', which runs in the same TaskManager"
        with pytest.raises(DeploymentError, match=reason):
            shipped.in_use(JobPaths(), source, "second job").__enter__()
    with shipped.in_use(JobPaths(), source, "second job"):
        assert imported() == 2


def test_the_first_folder_counts_and_packages_come_last(shipped: ShippedCode, tmp_path: Path) -> None:
    one, two = folder_with(tmp_path / "one", "VERSION = 1"), folder_with(tmp_path / "two", "VERSION = 2")

    with shipped.in_use(JobPaths((one,), packages=two), {}, "job"):
        assert imported() == 1
        assert sys.path[:2] == [str(one), str(two)]


def test_the_next_job_brings_another_version_of_a_package(shipped: ShippedCode, tmp_path: Path) -> None:
    one = folder_with(tmp_path / "one", "VERSION = 1", package=True)
    two = folder_with(tmp_path / "two", "VERSION = 2", package=True)

    with shipped.in_use(JobPaths((one,)), {}, "job"):
        assert (imported(), imported(f"{NAME}.inner")) == (1, 1)
    with shipped.in_use(JobPaths((two,)), {}, "job"):
        assert (imported(), imported(f"{NAME}.inner")) == (2, 2)


def test_a_job_with_another_version_beside_a_running_one_is_refused(shipped: ShippedCode, tmp_path: Path) -> None:
    one, two = folder_with(tmp_path / "one", "VERSION = 1"), folder_with(tmp_path / "two", "VERSION = 2")

    with shipped.in_use(JobPaths((one,)), {}, "first"):
        before = list(sys.path)
        with pytest.raises(DeploymentError, match=f"the job's module '{NAME}' differs from that of job 'first'"):
            shipped.in_use(JobPaths((two,)), {}, "second").__enter__()
        assert sys.path == before
        assert imported() == 1


def test_a_file_that_would_hide_a_loaded_module_is_refused_unless_it_is_the_same(
    shipped: ShippedCode, tmp_path: Path
) -> None:
    source = folder_with(tmp_path / "source", "VERSION = 1")
    sys.path.insert(0, str(source))
    try:
        imported()
    finally:
        sys.path.remove(str(source))
    same, other = folder_with(tmp_path / "same", "VERSION = 1"), folder_with(tmp_path / "other", "VERSION = 2")

    with shipped.in_use(JobPaths((same,)), {}, "job"):
        assert imported() == 1
    reason = f"the job ships a module '{NAME}', and this TaskManager has loaded another one of that name"
    with pytest.raises(DeploymentError, match=reason):
        shipped.in_use(JobPaths((other,)), {}, "job").__enter__()
    with shipped.in_use(JobPaths(packages=other), {}, "job"):
        assert imported() == 1, "what is loaded stays: pip got its version"


def test_a_module_that_came_as_source_makes_room_for_a_file_and_comes_before_it(
    shipped: ShippedCode, tmp_path: Path
) -> None:
    source = {NAME: ModuleSource("/elsewhere.py", b"VERSION = 0")}
    one = folder_with(tmp_path / "one", "VERSION = 1")

    with shipped.in_use(JobPaths(), source, "first"):
        assert imported() == 0
        with pytest.raises(DeploymentError, match=f"the job's module '{NAME}' differs from that of job 'first'"):
            shipped.in_use(JobPaths((one,)), {}, "second").__enter__()
        with shipped.in_use(JobPaths((one,)), source, "first"):
            assert imported() == 0
    with shipped.in_use(JobPaths((one,)), {}, "second"):
        assert imported() == 1


def test_archives_set_the_working_directory_while_a_task_needs_them(shipped: ShippedCode, tmp_path: Path) -> None:
    shipped.owns_process = True
    before, (one, two) = os.getcwd(), (tmp_path / "one", tmp_path / "two")
    one.mkdir()
    two.mkdir()

    with shipped.in_use(JobPaths(working_directory=one), {}, "first"):
        assert os.getcwd() == str(one)
        with shipped.in_use(JobPaths(working_directory=one), {}, "first"):
            pass
        assert os.getcwd() == str(one)
        reason = "job 'first', which runs in the same TaskManager, has archives of its own"
        with pytest.raises(DeploymentError, match=reason):
            shipped.in_use(JobPaths(working_directory=two), {}, "second").__enter__()
    assert os.getcwd() == before
    with shipped.in_use(JobPaths(working_directory=two), {}, "second"):
        assert os.getcwd() == str(two)
    assert os.getcwd() == before


def test_the_working_directory_of_a_users_process_stays(shipped: ShippedCode, tmp_path: Path) -> None:
    before = os.getcwd()

    with pytest.raises(DeploymentError, match="archives set the working directory, which belongs to the program here"):
        shipped.in_use(JobPaths(working_directory=tmp_path), {}, "job").__enter__()
    assert os.getcwd() == before


def test_a_folder_that_a_job_brings_twice_is_there_until_its_last_task_has_ended(
    shipped: ShippedCode, tmp_path: Path
) -> None:
    """Two files of one content lie in one folder."""
    one, before = folder_with(tmp_path / "one", "VERSION = 1"), list(sys.path)
    paths = JobPaths((one, one), packages=one)

    with shipped.in_use(paths, {}, "job"):
        with shipped.in_use(paths, {}, "job"):
            pass
        assert sys.path == [str(one), *before]
    assert sys.path == before
