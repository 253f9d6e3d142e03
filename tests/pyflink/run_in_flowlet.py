"""Runs a program for PyFlink in flowlet: unchanged, but for the name of the package that it imports.

Usage: ``python -m tests.pyflink.run_in_flowlet PROGRAM...`` prints what each prints.
"""

import contextlib
import io
import os
import re
import runpy
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Final
from unittest.mock import patch

from flowlet.common.flinks_options import IgnoredOptionWarning

PROGRAMS: Final = {file.stem: file for file in sorted(Path(__file__).parent.glob("programs/demo_*.py"))}
# "2> value" and "name:2> value": the number of the subtask that printed is left to chance.
_SUBTASK: Final = re.compile(r"^(?:\d+|([\w ]+):\d+)> ", re.MULTILINE)


def translated(source: str) -> str:
    """The program with flowlet's names for PyFlink's modules."""
    return re.sub(r"\bpyflink\b", "flowlet", source)


def run(program: Path) -> str:
    """Return the output of the program; all its tasks run in this process.  Raises the program's own errors."""
    printed = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="flowlet-program-") as folder:
        file = Path(folder, program.name)
        file.write_text(translated(program.read_text(encoding="utf-8")), encoding="utf-8")
        with (
            patch.dict(os.environ, FLOWLET_LOCAL="inprocess"),
            contextlib.redirect_stdout(printed),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", IgnoredOptionWarning)
            runpy.run_path(str(file), run_name="__main__")
    return printed.getvalue()


def comparable(printed: str) -> list[str]:
    """The lines in an order that does not depend on which operator or subtask printed first."""
    return sorted(_SUBTASK.sub(lambda match: f"{match[1]}> " if match[1] else "", printed).splitlines())


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(f"== {name}")
        print(run(PROGRAMS[Path(name).stem]), end="")
