"""The quick tests on the other Python versions of this machine: ``python -m tests.pythons [--newest] [arguments
of pytest]``.

Interpreters are the commands ``python3.N`` on PATH and the versions of pyenv, from 3.11 on: one of each minor version
but the one that runs this module. Each gets a virtual environment beside the sources (``.venv-3.13``, git-ignored) with
the package and the tools of the tests, without the extras: tests that need PySpark skip themselves there. It is made
when it is first needed, and again when pyproject.toml asks for other packages.

``--newest``: only the newest one that is newer than this one and can be set up. A machine may have none, or no way to
its packages: that is printed, and it is no failure. Without the option an environment that cannot be set up is one.

Absent: pre-releases, other implementations than CPython, and builds without the interpreter's lock: nothing was
        measured there.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
OLDEST: Final = (3, 11)
QUICK: Final = ("-m", "not slow and not long")
_PROBE_TIMEOUT_S: Final = 30.0  # a start takes 0.05 s; a command of this name may be anything
_PIP: Final = ("-m", "pip", "--disable-pip-version-check", "--quiet", "install")
# An interpreter without venv or pip's wheel ends with an error, as Debian's does without python3-venv.
_PROBE: Final = """
import ensurepip, json, platform, sys, sysconfig, venv
is_usual = platform.python_implementation() == "CPython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
print(json.dumps([*sys.version_info[:3], is_usual and sys.version_info.releaselevel == "final"]))
"""


class SetupError(Exception):
    """A virtual environment could not be made; the text is the output of the command that failed."""


@dataclass(frozen=True, order=True, slots=True)
class Interpreter:
    version: tuple[int, int, int]
    path: Path

    @property
    def minor(self) -> tuple[int, int]:
        return self.version[:2]

    def __str__(self) -> str:
        return f"Python {'.'.join(map(str, self.version))} ({self.path})"


def candidates(environment: Mapping[str, str]) -> list[Path]:
    """The commands that may be interpreters, by their names: those on PATH first."""
    folders = [Path(folder) for folder in environment.get("PATH", "").split(os.pathsep) if folder]
    pyenv = Path(environment.get("PYENV_ROOT") or Path(environment.get("HOME", "/")) / ".pyenv")
    folders += sorted(pyenv.glob("versions/*/bin"))
    found = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("python3.*"))]
    return [
        path for path in dict.fromkeys(found) if re.fullmatch(r"python3\.\d+", path.name) and os.access(path, os.X_OK)
    ]


def probe(path: Path) -> Interpreter | None:
    """Return the version of an interpreter; None if the tests do not run on it, or if it is pyenv's command for a
    version that it does not use now.
    """
    command = [str(path), "-I", "-c", _PROBE]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
        major, minor, micro, is_usual = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return Interpreter((major, minor, micro), path) if is_usual and (major, minor) >= OLDEST else None


def choose(found: Iterable[Interpreter], own: tuple[int, int]) -> list[Interpreter]:
    """The newest one of each minor version but ``own``, the oldest version first."""
    by_minor: dict[tuple[int, int], Interpreter] = {}
    for interpreter in found:
        known = by_minor.get(interpreter.minor)
        if interpreter.minor != own and (known is None or known.version < interpreter.version):
            by_minor[interpreter.minor] = interpreter
    return sorted(by_minor.values())


def prepare(interpreter: Interpreter) -> Path:
    """The interpreter of its virtual environment, which is made if it is missing or out of date.

    Raises:
        SetupError: a package could not be installed.
    """
    folder = ROOT / f".venv-{interpreter.minor[0]}.{interpreter.minor[1]}"
    python, stamp = folder / "bin" / "python", folder / "ready"
    wanted = f"{interpreter.version} {ROOT} {requirements_digest((ROOT / 'pyproject.toml').read_bytes())}"
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"setting up {folder.name} with {interpreter} (only needed once)", flush=True)
        _run(interpreter.path, "-m", "venv", "--clear", folder)
        _run(python, *_PIP, "--upgrade", "pip>=25.1")  # the first version that knows --group
        _run(python, *_PIP, "--editable", ".", "--group", "test")
        stamp.write_text(wanted)
    return python


def requirements_digest(pyproject: bytes) -> str:
    """Return a text that changes when other packages are to be installed."""
    document = tomllib.loads(pyproject.decode())
    wanted = [document["project"]["dependencies"], document["dependency-groups"]["test"], document["build-system"]]
    return hashlib.sha256(json.dumps(wanted).encode()).hexdigest()


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        text = "\n".join(line for line in done.stdout.splitlines() if not line.startswith("WARNING"))
        raise SetupError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{text}")


def run_tests(interpreter: Interpreter, python: Path, arguments: Sequence[str]) -> bool:
    """Whether the quick tests pass with ``python``, the command of the interpreter's virtual environment.

    Jobs have asyncio's debug mode here, which ``make test`` leaves out.
    """
    environment = {**os.environ, "FLOWLET_TESTS_DEBUG_JOBS": "1"}
    print(f"the quick tests on {interpreter}", flush=True)
    command = [str(python), "-m", "pytest", *QUICK, *arguments]
    has_passed = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0
    if not has_passed:
        print(f"{interpreter}: FAILED", file=sys.stderr, flush=True)
    return has_passed


def run_on_all(chosen: Sequence[Interpreter], arguments: Sequence[str]) -> bool:
    """Whether each could be set up, and passes."""
    results = []
    for interpreter in chosen:
        python = _try_prepare(interpreter)
        results.append(python is not None and run_tests(interpreter, python, arguments))
    return all(results)


def run_on_newest(chosen: Sequence[Interpreter], arguments: Sequence[str]) -> bool:
    """Whether the newest one that could be set up passes; True if none could."""
    for interpreter in reversed(chosen):
        if (python := _try_prepare(interpreter)) is not None:
            return run_tests(interpreter, python, arguments)
    return True


def _try_prepare(interpreter: Interpreter) -> Path | None:
    try:
        return prepare(interpreter)
    except SetupError as error:
        print(f"{error}\n{interpreter} cannot be set up: the quick tests do not run on it", file=sys.stderr, flush=True)
        return None


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 if all passed that had to."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.pythons", description=__doc__.partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument(
        "--newest", action="store_true", help="only the newest one that is newer than this one and can be set up"
    )
    options, for_pytest = parser.parse_known_args(arguments)
    own = sys.version_info[:2]
    chosen = choose([interpreter for path in candidates(os.environ) if (interpreter := probe(path)) is not None], own)
    if options.newest:
        chosen = [interpreter for interpreter in chosen if interpreter.minor > own]
    if not chosen:
        which = "newer than" if options.newest else "but"
        print(
            f"no Python {which} {own[0]}.{own[1]} on PATH or under pyenv: there is nothing else to run the quick tests "
            "on"
        )
    run_on = run_on_newest if options.newest else run_on_all
    return 0 if run_on(chosen, for_pytest) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
