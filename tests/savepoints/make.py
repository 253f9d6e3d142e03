"""Write the savepoints that ``test_savepoints.py`` restores: ``python -m tests.savepoints.make --into FOLDER [--only
NAME]``.

It is run with the flowlet whose format is to be kept, in a checkout of that revision: copy this folder there.
``--revision`` is written into each archive.  A savepoint is made once and never again: what it holds is what an older
flowlet has left on users' disks.
"""

import argparse
import platform
import tempfile
from pathlib import Path

from flowlet.state_reader import read_state
from tests.savepoints.archive import pack, path_of
from tests.savepoints.jobs import (
    JOBS,
    MAIN_PROGRAMS,
    at_work,
    described,
    names,
    run_main_program,
    run_to_its_end,
    run_to_the_savepoint,
)


def make(name: str, backend: str, into: Path, revision: str) -> None:
    job = JOBS[name]
    with tempfile.TemporaryDirectory() as scratch, at_work(Path(scratch)):
        whole = run_to_its_end(name, backend)
    with tempfile.TemporaryDirectory() as scratch, at_work(Path(scratch)):
        root = Path(scratch)
        path, first = run_to_the_savepoint(name, backend, root / "made")
        if whole and job.counts_first and not len(first) < len(whole):
            raise SystemExit(
                f"{name}: nothing is left to do behind the savepoint: {len(first)} of {len(whole)} results"
            )
        store(path_of(into, name, backend), root, revision, path, first if job.counts_first else [], whole)


def make_main_program(kind: str, into: Path, revision: str) -> None:
    """The archive of a program whose classes are its own."""
    with tempfile.TemporaryDirectory() as scratch:
        whole = run_main_program(kind, "whole", Path(scratch))
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        savepoint, first = run_main_program(kind, "make", root)
        with at_work(root):
            store(path_of(into, "main-program", kind), root, revision, root / savepoint, first, whole)


def store(archive: Path, root: Path, revision: str, savepoint: Path, first: list[str], whole: list[str]) -> None:
    """Pack a savepoint with the results before it and those of a whole run."""
    facts = {
        "revision": revision,
        "python": platform.python_version(),
        "savepoint": str(savepoint.relative_to(root)),
        "first": first,
        "whole": whole,
        "state": described(read_state(savepoint)),
    }
    (root / "secret").unlink()
    pack(archive, root, facts)
    print(f"{archive.name}: {archive.stat().st_size} bytes, {len(first)} of {len(whole)} results", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--revision", default="")
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    for name, backend in names():
        if arguments.only in ("", name):
            make(name, backend, arguments.into.absolute(), arguments.revision)
    for kind in MAIN_PROGRAMS:
        if arguments.only in ("", "main-program"):
            make_main_program(kind, arguments.into.absolute(), arguments.revision)


if __name__ == "__main__":
    main()
