"""Runs the programs in PyFlink and in flowlet and compares their output.

Usage: ``python -m tests.pyflink.side_by_side [--write] [NAME...]``; ``--write`` keeps PyFlink's output as the golden
       files.
Needs: ``.venv-flink`` (``make .venv-flink/installed``) and a Java runtime; some 5 s of each core per program.
"""

import argparse
import difflib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.pyflink.run_in_flowlet import PROGRAMS, comparable, run

HERE: Final = Path(__file__).parent
PYTHON: Final = HERE.parent.parent / ".venv-flink" / "bin" / "python"
_TIMEOUT_S: Final = 120.0  # per program


def run_in_pyflink(names: list[str]) -> dict[str, str]:
    """Return the output of each program in PyFlink; one JVM runs them all."""
    with tempfile.TemporaryDirectory(prefix="flowlet-pyflink-") as folder:
        command = [str(PYTHON), "-P", str(HERE / "run_in_pyflink.py"), folder, *(str(PROGRAMS[name]) for name in names)]
        subprocess.run(command, check=True, cwd=folder, timeout=_TIMEOUT_S * len(names))
        return {name: Path(folder, f"{name}.txt").read_text(encoding="utf-8") for name in names}


def differences(name: str, theirs: str) -> list[str]:
    """Return the lines that differ: lines of PyFlink with ``-``, ours with ``+``, or the error."""
    try:
        ours = run(PROGRAMS[name])
    except Exception as error:  # noqa: BLE001 - the next program runs, too
        return [f"{type(error).__name__}: {error}"]
    return list(difflib.unified_diff(comparable(theirs), comparable(ours), "PyFlink", "flowlet", lineterm="", n=0))


def main(arguments: list[str]) -> int:
    """Run and compare; 1 if a program prints something else."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.pyflink.side_by_side", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs (default: all)")
    parser.add_argument("--write", action="store_true", help="keep PyFlink's output as the golden files")
    options = parser.parse_args(arguments)
    names = options.names or list(PROGRAMS)
    if unknown := sorted(set(names) - PROGRAMS.keys()):
        parser.error(f"no such programs: {', '.join(unknown)}")
    if not PYTHON.exists():
        parser.error("PyFlink is not installed: make .venv-flink/installed")
    failed = 0
    for name, theirs in run_in_pyflink(names).items():
        if options.write:
            (HERE / "golden" / f"{name}.txt").write_text(theirs, encoding="utf-8")
        found = differences(name, theirs)
        print(f"{name}: {'differs' if found else 'equal'}", *found, sep="\n    ")
        failed += bool(found)
    print(f"{len(names) - failed} of {len(names)} programs print what PyFlink prints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
