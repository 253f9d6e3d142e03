"""The choice of the tests that lie beside changed files."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.changed import ROOT, beside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("tests/flowlet/io", "tests/netstack/gate"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("tests/flowlet/io/test_a.py", "tests/flowlet/test_records.py", "tests/test_waits.py"):
        (tmp_path / file).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        (["flowlet/io/a.py"], ["tests/flowlet/io"]),
        (["flowlet/io/deeper/a.py"], ["tests/flowlet/io"]),
        (["netstack/gate/a.py", "flowlet/io/a.py"], ["tests/flowlet/io", "tests/netstack/gate"]),
        (["flowlet/records.py", "flowlet/former.py"], ["tests/flowlet/test_records.py"]),
        (["tests/flowlet/io/test_a.py"], ["tests/flowlet/io/test_a.py"]),
        (["tests/flowlet/io/doubles.py", "tests/flowlet/io/test_a.py"], ["tests/flowlet/io"]),
        (["tests/flowlet/io/test_gone.py", "README.md", "tests/test_waits.py"], ["tests/test_waits.py"]),
    ],
)
def test_the_folder_that_mirrors_a_package_is_run_and_a_test_that_changed(
    root: Path, changed: list[str], tests: list[str]
) -> None:
    assert beside(changed, root) == tests


@pytest.mark.parametrize("changed", [[], ["docs/batch.md"], ["flowlet/io/a.py", "tests/waiting.py"]])
def test_all_run_if_nothing_has_changed_or_what_all_need(root: Path, changed: list[str]) -> None:
    assert beside(changed, root) == []


@pytest.mark.slow  # two more processes that import the tests' tools
@pytest.mark.parametrize(("test", "status"), [("test_that_is_fine", 0), ("test_that_fails", 1)])
def test_no_test_begins_once_the_time_is_over_and_only_a_failure_fails(tmp_path: Path, test: str, status: int) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(
        f"def {test}():\n    assert {not status}\n\n\ndef test_for_which_no_time_is_left():\n    assert False\n"
    )
    options = ["-q", "-p", "tests.conftest", "-n", "1", "--stop-after=0"]
    command = [sys.executable, "-m", "pytest", *options, str(tests)]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == status, done.stdout
    assert "make test runs the other tests" in done.stdout
    assert "test_for_which_no_time_is_left" not in done.stdout
