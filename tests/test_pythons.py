"""The choice of interpreters for the quick tests; the interpreters are shell scripts that answer as Python would."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests import pythons
from tests.pythons import Interpreter, candidates, choose, probe, requirements_digest

QUICK = "-m pytest -m not slow and not long -q"


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def python(path: Path, *version: int, is_usual: bool = True) -> Path:
    return script(path, f"echo '{json.dumps([*version, is_usual])}'")


def test_commands_on_the_path_and_versions_of_pyenv_are_candidates(tmp_path: Path) -> None:
    """Candidates are found by the names that Python installs; what cannot be executed is none."""
    bin_folder, versions = tmp_path / "bin", tmp_path / ".pyenv" / "versions"
    expected = [
        python(bin_folder / "python3.12", 3, 12, 1),
        python(versions / "3.13.0" / "bin" / "python3.13", 3, 13, 0),
    ]
    for name in ("python3", "python3.12-config", "python3.13t", "python2.7"):
        python(bin_folder / name, 3, 12, 1)
    (bin_folder / "python3.14").write_text("not executable")
    path = os.pathsep.join([str(bin_folder), str(tmp_path / "missing"), str(bin_folder)])

    assert candidates({"PATH": path, "HOME": str(tmp_path)}) == expected
    assert candidates({"PATH": "", "HOME": "/", "PYENV_ROOT": str(tmp_path / ".pyenv")}) == expected[1:]


def test_an_interpreter_says_its_version() -> None:
    """The interpreter that runs the tests says its version, unless it cannot make virtual environments."""
    own = probe(Path(sys.executable))

    assert own is None or own == Interpreter(sys.version_info[:3], Path(sys.executable))


@pytest.mark.parametrize(
    "text",
    [
        "echo 'python3.13: command not found' >&2; exit 127",
        "echo '[3, 10, 9, true]'",
        "echo '[3, 14, 0, false]'",
        "exit 0",
    ],
    ids=["pyenv's command of a version that is not in use", "too old", "not a usual one", "says nothing"],
)
def test_what_cannot_run_the_tests_is_no_interpreter(text: str, tmp_path: Path) -> None:
    assert probe(script(tmp_path / "python3.13", text)) is None


def interpreter(*version: int, name: str = "a") -> Interpreter:
    major, minor, micro = version
    return Interpreter((major, minor, micro), Path(name))


FOUND = [
    interpreter(3, 13, 0),
    interpreter(3, 11, 9),
    interpreter(3, 12, 1),
    interpreter(3, 13, 2),
    interpreter(3, 13, 2, name="b"),
]


def test_one_interpreter_of_each_other_minor_version_is_chosen() -> None:
    """The newest of each minor version is chosen, and the first that was found of equal ones."""
    assert choose(FOUND, (3, 11)) == [interpreter(3, 12, 1), interpreter(3, 13, 2)]
    assert choose(FOUND, (3, 12)) == [interpreter(3, 11, 9), interpreter(3, 13, 2)]
    assert choose([], (3, 12)) == []


def test_an_environment_is_made_again_when_other_packages_are_wanted() -> None:
    """Other wanted packages renew the environment; a change in another part of the file does not."""
    document = (
        '[build-system]\nrequires = ["b"]\n[project]\ndependencies = ["{}"]\n[dependency-groups]\ntest = '
        '["{}"]\n[tool.{}]\n'
    )
    digest = requirements_digest(document.format("d", "t", "x").encode())

    assert requirements_digest(document.format("d", "t", "y").encode()) == digest
    assert requirements_digest(document.format("e", "t", "x").encode()) != digest
    assert requirements_digest(document.format("d", "u", "x").encode()) != digest


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the sources and, but for two tools of the shell, all of PATH."""
    (tmp_path / "pyproject.toml").write_text(
        "[build-system]\n[project]\ndependencies = []\n[dependency-groups]\ntest = []\n"
    )
    monkeypatch.setattr(pythons, "ROOT", tmp_path)
    for tool in ("mkdir", "chmod"):
        path = shutil.which(tool)
        assert path is not None
        (tmp_path / tool).symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    return tmp_path


def working(path: Path, tests: str = "exit 0") -> Path:
    """Make an interpreter of a far future whose virtual environments hold a script as well; it notes its calls."""
    inner = f'echo "$*" >> {path.parent}/asked; case "$*" in *pytest*) {tests};; esac'
    makes = f'mkdir -p "$4/bin"; printf "#!/bin/sh\\n%s\\n" \'{inner}\' > "$4/bin/python"; chmod 755 "$4/bin/python"'
    return script(path, f'case "$*" in *ensurepip*) echo "[3, 99, 0, true]";; *venv*) {makes};; esac')


def test_the_quick_tests_run_in_an_environment_that_is_made_once(only: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The environment has the package and the group ``test``; the tests get the caller's arguments of pytest."""
    working(only / "python3.99")

    assert pythons.main(["-q"]) == 0
    assert pythons.main(["--newest", "-q"]) == 0

    asked = [line.split(" install ")[-1] for line in (only / "asked").read_text().splitlines()]
    assert asked == ["--upgrade pip>=25.1", "--editable . --group test", QUICK, QUICK]
    out = capfd.readouterr().out
    assert out.count("setting up .venv-3.99") == 1
    assert "the quick tests on Python 3.99.0" in out


def test_tests_that_fail_are_a_failure(only: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Failing tests are a failure of ``--newest``, too."""
    working(only / "python3.99", tests="exit 1")

    assert pythons.main([]) == 1
    assert pythons.main(["--newest"]) == 1

    assert f"Python 3.99.0 ({only / 'python3.99'}): FAILED" in capfd.readouterr().err


BROKEN = 'case "$*" in *ensurepip*) echo "[3, 100, 0, true]";; *) echo "no such package"; exit 3;; esac'


def test_packages_that_cannot_be_installed_are_a_failure(only: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The failure has pip's words; the other interpreters are tested nevertheless, and the next call tries again."""
    script(only / "python3.100", BROKEN)
    working(only / "python3.99")

    assert pythons.main([]) == 1
    assert pythons.main([]) == 1

    out, err = capfd.readouterr()
    assert out.count("setting up .venv-3.100") == 2
    assert out.count("the quick tests on Python 3.99.0") == 2
    assert "no such package" in err


def test_the_newest_python_is_the_newest_that_can_be_set_up(only: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Packages that the machine cannot get are no failure, but the run says so."""
    script(only / "python3.100", BROKEN)

    assert pythons.main(["--newest"]) == 0
    alone = capfd.readouterr()
    working(only / "python3.99")
    assert pythons.main(["--newest"]) == 0
    together = capfd.readouterr()

    for captured in (alone, together):
        assert "no such package" in captured.err
        assert (
            f"Python 3.100.0 ({only / 'python3.100'}) cannot be set up: the quick tests do not run on it"
            in captured.err
        )
    assert "the quick tests on Python 3.99.0" in together.out


def test_an_older_python_is_not_the_newest(only: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One line says that there is none."""
    python(only / "python3.10", 3, 10, 0)
    script(only / "python3.11", 'case "$*" in *ensurepip*) echo "[3, 11, 0, true]";; *) exit 3;; esac')

    assert pythons.main(["--newest"]) == 0

    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"no Python newer than {own} on PATH or under pyenv" in capfd.readouterr().out
