"""Another Python interpreter for the TaskManagers that a program starts.

Side:       shared.
Rules:      it needs the same version of the language, because functions travel as bytecode.  It brings its own packages; of this
            interpreter's import path it gets the rest: the program's folder, and the engine if that is not installed there.
Source:     PyFlink ``StreamExecutionEnvironment.set_python_executable``.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from flowlet.errors import ConfigError

_CHECK_TIMEOUT_S: Final = 60.0
_CHECK: Final = "import sys; print(*sys.version_info[:2], sep='.', flush=True); import flowlet.tm.command"
_MAX_REASON_CHARS: Final = 300


def checked_interpreter(python: str) -> str:
    """Its path.  Raises ConfigError: it is no Python of this version that can run a TaskManager; says why."""
    found = shutil.which(os.path.expanduser(python))
    if found is None:
        raise ConfigError(f"set_python_executable({python!r}): there is no such program")
    try:
        ended = subprocess.run(  # noqa: S603 - the user has named it
            [found, "-P", "-c", _CHECK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CHECK_TIMEOUT_S,
            env=environment_of_other_python(),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"set_python_executable({python!r}): it cannot be started: {error}") from error
    version, wanted = ended.stdout.strip(), f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version and version != wanted:
        raise ConfigError(f"set_python_executable({python!r}): it is Python {version[:20]}, the program runs on {wanted}")
    if ended.returncode or not version:
        lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        raise ConfigError(f"set_python_executable({python!r}): it cannot run a TaskManager: {lines[-1][:_MAX_REASON_CHARS]}")
    return found


def environment_of_other_python() -> dict[str, str]:
    """Our environment, with what this program can import but for this interpreter's own library and packages."""
    own = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths = [entry or os.getcwd() for entry in sys.path]
    kept = [path for path in paths if not any(Path(path).is_relative_to(each) for each in own) and not path.endswith(".zip")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(kept))}
