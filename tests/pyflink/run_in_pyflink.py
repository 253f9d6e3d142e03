"""Runs programs in PyFlink, one after the other in one process with one JVM, and keeps what each prints.

Side:  any; a script for the Python of ``.venv-flink``, which has no package of this repository.
Usage: ``python run_in_pyflink.py FOLDER PROGRAM...`` writes ``FOLDER/<name>.txt`` per program.
Why:   a JVM starts in several seconds.  It inherits standard output, so what a program printed is what the file behind
       it grew by.
"""

import os
import runpy
import sys
import traceback
from pathlib import Path


def run(program: Path, printed: Path) -> str:
    """Run one program; write its output, and that of its jobs, into the file ``printed``, with the error if it
    failed.
    """
    start = printed.stat().st_size
    try:
        runpy.run_path(str(program), run_name="__main__")
    except Exception as error:  # noqa: BLE001 - the next program runs, too
        traceback.print_exc()
        print(f"failed: {type(error).__name__}")
    sys.stdout.flush()
    with printed.open("rb") as file:
        file.seek(start)
        return file.read().decode()


def main(folder: Path, programs: list[Path]) -> None:
    # Flink's tasks start "python".
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    folder.mkdir(parents=True, exist_ok=True)
    printed = folder / "all.out"
    with printed.open("ab") as file:
        os.dup2(file.fileno(), 1)
    for program in programs:
        (folder / f"{program.stem}.txt").write_text(run(program, printed), encoding="utf-8")
        print(f"{program.stem} done", file=sys.stderr, flush=True)
    printed.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
