"""Installs the requirements of a job with pip, into a folder of their own.

Side:       shared.  Blocking; a task's thread.
Rules:      packages that this process has loaded keep their version: pip gets them as constraints, because one process
            has one version of a module.  If the job brought packages, pip asks no index.
Source:     PyFlink ``pyflink_worker_pip_install_requirements``, which makes a prefix for each worker.
"""

import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from flowlet.errors import FlowletError

if TYPE_CHECKING:
    from importlib import metadata

_MAX_INSTALL_S: Final = 900.0
_LOOK_INTERVAL_S: Final = 0.25  # how late a cancelled task ends pip
_KILL_TIMEOUT_S: Final = 5.0
_LAST_LINES: Final = 12
_MAX_LINE_CHARS: Final = 300


class RequirementsError(FlowletError):
    """pip could not install what the job needs; the message has its last words."""


def loaded_versions(
    modules: Mapping[str, ModuleType], installed: "Iterable[metadata.Distribution] | None" = None
) -> dict[str, str]:
    """The versions of installed packages of which a module is loaded, by name.

    Args:
        modules: the interpreter's table.
        installed: the packages to look at; None: those where this Python keeps packages.
    """
    if installed is None:
        from importlib import metadata  # here, as few jobs have requirements

        installed = metadata.distributions(path=[sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    loaded = {file for module in list(modules.values()) if isinstance(file := getattr(module, "__file__", None), str)}
    found = {}
    for distribution in installed:
        names = {file.parts[0] for file in distribution.files or () if file.suffix in (".py", ".so")}
        tops = {name.partition(".")[0] for name in names} & set(modules)
        folder = str(distribution.locate_file(""))
        if any(_is_from(modules[top], folder, loaded) for top in tops):
            found[distribution.metadata["Name"]] = distribution.version
    return dict(sorted(found.items()))


def _is_from(module: ModuleType, folder: str, loaded: set[str]) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file in loaded and file.startswith(f"{folder.rstrip('/')}/")


def install(
    requirements: Path,
    packages: Path | None,
    folder: Path,
    constraints: Mapping[str, str],
    check_cancelled: Callable[[], None],
) -> None:
    """Install what the file ``requirements`` names into the new folder ``folder``.

    Args:
        requirements: in pip's format.
        packages: a folder with all that is needed; None: from pip's index.
        folder: is made.
        constraints: versions of packages that must not differ.
        check_cancelled: called a few times a second; what it raises ends pip.

    Raises:
        RequirementsError: pip is missing, failed, or took too long.
    """
    listed = folder.with_name(f"{folder.name}.constraints")
    listed.write_text("".join(f"{name}=={version}\n" for name, version in constraints.items()))
    command = [
        sys.executable,
        "-I",
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-input",
        "--progress-bar",
        "off",
        "--no-cache-dir",
    ]
    command += ["--target", str(folder), "--requirement", str(requirements), "--constraint", str(listed)]
    if packages is not None:
        command += ["--no-index", "--find-links", str(packages)]
    log = folder.with_name(f"{folder.name}.log")
    try:
        with log.open("wb") as output:
            code = _run(command, output.fileno(), check_cancelled)
        if code:
            raise RequirementsError(
                f"the job's requirements could not be installed: pip ended with exit code {code}: {_last_words(log)}"
            )
        folder.mkdir(exist_ok=True)  # pip makes none for an empty list
    finally:
        listed.unlink(missing_ok=True)
        log.unlink(missing_ok=True)


def _run(command: list[str], output: int, check_cancelled: Callable[[], None]) -> int:
    # Its own session: a Ctrl-C at the terminal is for the program.
    process = subprocess.Popen(  # noqa: S603 - our own interpreter; the file is the user's
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        env={**os.environ, "PIP_NO_COLOR": "1"},
    )
    deadline_s = time.monotonic() + _MAX_INSTALL_S
    try:
        while True:
            check_cancelled()
            try:
                # waits for pip; ended by its end, the deadline, or a cancellation
                return process.wait(_LOOK_INTERVAL_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline_s:
                    raise RequirementsError(
                        f"the job's requirements were not installed within {_MAX_INSTALL_S:g} s"
                    ) from None
    finally:
        if process.returncode is None:
            # With what pip has started, such as a compiler: the session is its own.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(_KILL_TIMEOUT_S)


def _last_words(log: Path) -> str:
    lines = [line.strip()[:_MAX_LINE_CHARS] for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return " / ".join(lines[-_LAST_LINES:]) or "it said nothing"
