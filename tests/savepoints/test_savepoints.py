"""Savepoints that older flowlets wrote, one per kind of state, source and sink, are read by this one: no record is
lost, none comes twice.

``make.py`` wrote them with the revision that each archive names; they are never made again.  A test that fails here
says that users cannot start from their savepoints any more: mend the reader, or say in docs/savepoints.md since when
which ones are refused.
"""

import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowlet.state_reader import read_state
from tests.savepoints.archive import STORED, path_of, unpack
from tests.savepoints.jobs import JOBS, MAIN_PROGRAMS, at_work, described, names, run_main_program, run_to_its_end

STORED_NAMES = names()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with at_work(tmp_path):
        yield tmp_path


def unpacked(name: str, backend: str, folder: Path) -> dict[str, Any]:
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")
    return unpack(path_of(STORED, name, backend), folder)


@pytest.mark.parametrize(("name", "backend"), STORED_NAMES)
def test_a_stored_savepoint_shows_what_it_showed(name: str, backend: str, folder: Path) -> None:
    """The state reader finds the operators, states, entries and timers that the flowlet that wrote the savepoint
    found.
    """
    facts = unpacked(name, backend, folder)

    shown = described(read_state(folder / facts["savepoint"]))

    assert shown == facts["state"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "backend"), STORED_NAMES)
def test_a_job_goes_on_from_a_stored_savepoint(name: str, backend: str, folder: Path) -> None:
    """The results of the restored job, with those in front of the savepoint, are those of a run that was never
    interrupted.
    """
    needs = JOBS[name].needs
    if needs is not None:
        pytest.importorskip(needs)
    facts = unpacked(name, backend, folder)
    if name == "database-sink":
        renew_markers()

    results = run_to_its_end(name, backend, folder / facts["savepoint"])

    assert Counter(results) + Counter(facts["first"]) == Counter(facts["whole"])


def renew_markers() -> None:
    """Renew the markers: they are kept for a month, and rows that have none are refused then; this database was in use
    until now.
    """
    with closing(sqlite3.connect("database.db")) as database, database:
        database.execute("UPDATE flowlet_commits SET committed_ms = ?", (int(time.time() * 1000),))


OTHER_WAYS = [  # another state back end, or another parallelism of the vertices where it is not fixed
    ("each-state", "rocksdb", "hashmap", 1),
    ("each-state", "hashmap", "rocksdb", 2),
    ("incremental", "rocksdb", "rocksdb", 2),
    ("each-key", "hashmap", "hashmap", 3),
    ("timers", "rocksdb", "hashmap", 2),
    ("time-windows", "hashmap", "hashmap", 2),
    ("session-windows", "hashmap", "rocksdb", 2),
    ("joins", "hashmap", "hashmap", 3),
    ("column-windows", "hashmap", "hashmap", 3),
    ("column-joins", "hashmap", "hashmap", 2),
    ("column-windows", "hashmap", "rocksdb", 2),
    ("column-joins", "hashmap", "rocksdb", 3),
]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("name", "backend", "other", "parallelism"), OTHER_WAYS)
def test_a_stored_savepoint_goes_on_elsewhere(
    name: str, backend: str, other: str, parallelism: int, folder: Path
) -> None:
    """A savepoint is restored in the other state back end, and in more subtasks."""
    if other == "rocksdb":
        pytest.importorskip("rocksdict")
    facts = unpack(path_of(STORED, name, backend), folder)

    results = run_to_its_end(name, other, folder / facts["savepoint"], parallelism)

    assert Counter(results) + Counter(facts["first"]) == Counter(facts["whole"])


def test_every_stored_archive_is_tested() -> None:
    """Each stored archive belongs to a program, and says who wrote it."""
    paths = {path_of(STORED, *each) for each in [*STORED_NAMES, *(("main-program", kind) for kind in MAIN_PROGRAMS)]}

    assert set(STORED.iterdir()) == paths
    assert set(JOBS) == {name for name, _ in STORED_NAMES}


def skip_other_pythons(facts: dict[str, Any]) -> None:
    written = tuple(map(int, facts["python"].split(".")[:2]))
    if sys.version_info[:2] != written:
        pytest.skip(
            f"definitions of classes hold bytecode of Python {written[0]}.{written[1]}, which wrote the savepoint"
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAIN_PROGRAMS)
def test_a_program_goes_on_from_a_stored_savepoint_with_its_own_classes(kind: str, tmp_path: Path) -> None:
    """Classes of a main module whose definitions state and records in flight hold become the classes of the program
    that runs.
    """
    facts = unpack(path_of(STORED, "main-program", kind), tmp_path)
    skip_other_pythons(facts)

    results = run_main_program(kind, "restore", tmp_path, str(tmp_path / facts["savepoint"]))

    assert Counter(results) + Counter(facts["first"]) == Counter(facts["whole"])


@pytest.mark.parametrize("kind", MAIN_PROGRAMS)
def test_a_stored_savepoint_of_a_main_program_shows_what_it_showed(kind: str, folder: Path) -> None:
    """The program is not needed: its classes come along."""
    facts = unpack(path_of(STORED, "main-program", kind), folder)
    skip_other_pythons(facts)

    shown = described(read_state(folder / facts["savepoint"]))

    assert shown == facts["state"]
