"""Modules that came with a job are imported from memory, one version at a time."""

import importlib
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
