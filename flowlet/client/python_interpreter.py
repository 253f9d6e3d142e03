"""The Python interpreter of the TaskManagers that a program starts: this one or another, with the program's import path
and its flags.

Side:       shared.
Invariants: a child searches the folders that the program searches, in this order, whatever they are called: the import
            path travels in a file, not in ``PYTHONPATH``, which would be split at each ":".
Rules:      another interpreter must have this version of the language, because functions travel as bytecode.  It brings
            its own packages; of this interpreter's import path it gets the rest: the program's folder, and the engine
            if that is not installed there.
Source:     PyFlink ``StreamExecutionEnvironment.set_python_executable``; the flags as in ``multiprocessing``.
"""

import logging
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

import flowlet
from flowlet.errors import ConfigError, FlowletError
from flowlet.logs import program_loggers
from flowlet.tm.process.program_start import SERVER_BOOT, ProgramStart

_CHECK_TIMEOUT_S: Final = 60.0
_CHECK: Final = (
    "import sys; sys.path[:0] = filter(None, sys.argv[1:]); print(*sys.version_info[:2], sep='.', "
    "flush=True); import flowlet.tm.command"
)
# By the name in ``sys.flags``.  Those that come from variables are given again, which does no harm.
_FLAGS: Final = {
    "debug": "d",
    "dont_write_bytecode": "B",
    "no_site": "S",
    "no_user_site": "s",
    "ignore_environment": "E",
    "isolated": "I",
    "verbose": "v",
    "bytes_warning": "b",
    "quiet": "q",
    "optimize": "O",
}
_MAX_REASON_CHARS: Final = 300


def checked_interpreter(python: str) -> str:
    """Return the interpreter's path.  Raises ConfigError: it is no Python of this version that can run a TaskManager;
    names the reason.
    """
    found = shutil.which(os.path.expanduser(python))
    if found is None:
        raise ConfigError(f"set_python_executable({python!r}): there is no such program")
    try:
        ended = subprocess.run(  # noqa: S603 - the user has named it
            [found, *interpreter_flags(), "-P", "-c", _CHECK, _engine_folder(is_other=True)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"set_python_executable({python!r}): it cannot be started: {error}") from error
    version, wanted = ended.stdout.strip(), f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version and version != wanted:
        raise ConfigError(
            f"set_python_executable({python!r}): it is Python {version[:20]}, the program runs on {wanted}"
        )
    if ended.returncode or not version:
        lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        raise ConfigError(
            f"set_python_executable({python!r}): it cannot run a TaskManager: {lines[-1][:_MAX_REASON_CHARS]}"
        )
    return found


def command_of_fork_server(python: str | None, program_file: Path, control_fd: int) -> list[str]:
    """Make the command line of the process from which TaskManagers are forked.

    Args:
        python: the interpreter; None: that of this process.
        program_file: with the ``ProgramStart``.
        control_fd: the descriptor of its socket to the program.

    Raises:
        FlowletError: this interpreter does not know its own program file.
    """
    executable = python or sys.executable
    if not executable:
        raise FlowletError(
            "this Python does not know its own program file, so it cannot start TaskManagers; use in_process=True"
        )
    engine_folder = _engine_folder(is_other=python is not None)
    command = [executable, *interpreter_flags(), "-P", "-c", SERVER_BOOT]
    return [*command, engine_folder, str(program_file), str(control_fd)]


def interpreter_flags() -> list[str]:
    """List the options with which this interpreter was started, without the program."""
    flags = [
        f"-{letter * int(getattr(sys.flags, name))}" for name, letter in _FLAGS.items() if getattr(sys.flags, name)
    ]
    flags += [f"-W{each}" for each in sys.warnoptions]
    return flags + [f"-X{name}" if value is True else f"-X{name}={value}" for name, value in sys._xoptions.items()]


def program_start(python: str | None) -> ProgramStart:
    """Describe the start of a child as this program was started; ``python``: its interpreter, None is this one."""
    paths = list(dict.fromkeys(_absolute(each) for each in _texts(sys.path)))  # an import leaves others out, too
    if python is not None:
        own = _interpreters_folders()
        paths = [
            each
            for each in paths
            if not any(Path(each).is_relative_to(folder) for folder in own) and not _is_standard_archive(each)
        ]
    libraries = [each for each in paths if _holds_libraries(each)]
    program_folders = set(paths) - set(libraries)
    modules = {name: module for name, module in list(sys.modules.items()) if "." not in name}
    return ProgramStart(
        paths,
        libraries,
        is_whole=python is None,
        arguments=_texts(sys.argv),
        loaded=sorted(modules),
        own=sorted(name for name, module in modules.items() if _entry_of(module) in program_folders),
        loggers=program_loggers(),
        disabled=logging.root.manager.disable,
        has_output=sys.stdout is not None,
    )


def _texts(entries: Sequence[object]) -> list[str]:
    """Return the entries that are text: a program may put anything there."""
    return [each for each in entries if isinstance(each, str)]


def _absolute(entry: str) -> str:
    try:
        return os.path.abspath(entry)
    except FileNotFoundError:  # the working directory was removed
        return entry


def _interpreters_folders() -> list[Path]:
    return [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def _is_standard_archive(path: str) -> bool:
    """Whether ``path`` is the archive that may hold Python's own modules."""
    return os.path.basename(path) == f"python{sys.version_info[0]}{sys.version_info[1]}.zip"


def _holds_libraries(path: str) -> bool:
    """Whether ``path`` holds Python's own modules or installed packages: the person who put them there wants them to be
    found under their names.
    """
    if (
        _is_standard_archive(path)
        or path.endswith(".egg")
        or any(Path(path).is_relative_to(each) for each in _interpreters_folders())
    ):
        return True
    try:
        return any(each.endswith((".dist-info", ".egg-info")) for each in os.listdir(path))
    except OSError:
        return False


def _entry_of(module: ModuleType) -> str | None:
    """Return the entry of the import path from which a module without dots has come."""
    if not issubclass(type(module), ModuleType):
        return None
    # A lazy module would import itself, or raise, if it was asked.
    attributes = object.__getattribute__(module, "__dict__")
    file = attributes.get("__file__")
    if not isinstance(file, str):
        return None
    folder = os.path.dirname(os.path.abspath(file))
    return os.path.dirname(folder) if "__path__" in attributes else folder


def _engine_folder(*, is_other: bool) -> str:
    """Return the folder of our packages; another interpreter that may have installed them gets none of this one's."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(flowlet.__file__)))
    is_installed = any(Path(folder) == each for each in _interpreters_folders())
    return "" if is_other and is_installed else folder
