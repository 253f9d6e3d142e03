"""Many programs, one after the other, on one cluster.

Side:       shared.
"""

import faulthandler
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from flowlet.testing.mini_cluster import MiniCluster
from tests.differential import engine
from tests.differential.comparison import Run, difference, shrunk
from tests.differential.programs import random_program

_SEEDS_PER_PART = 50
_MAX_PROGRAM_S = 120.0  # usually 0.06 s; a busy machine needs more


@contextmanager
def local_cluster() -> Iterator[Run]:
    """Yield a function that runs programs; its one TaskManager is in this process."""
    with MiniCluster(num_task_managers=1) as cluster:
        yield lambda program: engine.run(program, cluster)


def differing(seeds: Iterable[int], run: Run) -> dict[int, str]:
    """Return what differed, by the seed of the program, where one does something else than it should."""
    problems = {seed: _difference(seed, run) for seed in seeds}
    return {seed: problem for seed, problem in problems.items() if problem is not None}


def _difference(seed: int, run: Run) -> str | None:
    program = random_program(seed)
    try:
        return difference(program, run(program))
    except Exception as error:
        error.add_note(f"seed {seed}:\n{program}")
        raise


def differing_of(seeds: range, num_processes: int) -> Iterator[tuple[int, dict[int, str]]]:
    """Run the programs in several processes; yield, again and again, how many more were run and what differed in
    them, by seed.
    """
    parts = [seeds[start : start + _SEEDS_PER_PART] for start in range(0, len(seeds), _SEEDS_PER_PART)]
    # Spawned: a fork would take over the locks that threads hold.
    with ProcessPoolExecutor(num_processes, multiprocessing.get_context("spawn")) as processes:
        for part, found in zip(parts, processes.map(_differing_alone, parts), strict=True):
            yield len(part), found


def _differing_alone(seeds: range) -> dict[int, str]:
    found: dict[int, str] = {}
    with local_cluster() as run:
        for seed in seeds:
            watch = threading.Timer(_MAX_PROGRAM_S, _give_up, (seed,))
            watch.start()
            try:
                found |= differing([seed], run)
            finally:
                watch.cancel()
    return found


def _give_up(seed: int) -> None:
    """Show a job that hangs, and end this process: it cannot be ended from outside."""
    print(f"seed {seed}: the job has not ended within {_MAX_PROGRAM_S:.0f} s\n{random_program(seed)}", file=sys.stderr)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(3)


def report(seed: int, first: str, run: Run) -> str:
    """Return a program that differs, as small as it can be; if the difference does not come again, the first one."""
    program = random_program(seed)
    again = f"seed {seed}; again: make differential PROGRAMS=1 SEED={seed}"
    if difference(program, run(program)) is None:
        return f"{again}\n\n{program}\n\nIt differed once, and the second time it did not:\n\n{first}"
    smallest, problem = shrunk(program, run)
    return f"{again}\n\n{smallest}\n\n{problem}"
