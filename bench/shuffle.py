"""Keyed running sums of (key, int) tuples, half of them over TCP: 1,000 int keys, and 1,000,000 string keys.

Side:    any.
Job:     ``bench/jobs/pairs.py``; two TaskManager processes with one slot each, a source, a keyed sum and a sink in each
         of them.
Peers:   have our topology, data and proof; object reuse is on in Flink's program.
Rate:    tuples / (last record at the last sink - first poll of the first source), read inside the job.
"""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.jobs.pairs import FORMS, KEYS, NUM_PAIRS, SOURCES, Job, Keys
from bench.options import choices
from bench.peers.pairs import NAMES, contenders
from bench.report import Result
from bench.rounds import Contender, compare

# Figures without a line in the table of results are measured only on request.
JOBS: Final = (("int", "lambdas"), ("int", "sum"), ("str", "sum"))
QUICK_KEYS: Final = {"int": Keys("int", 100, 2000), "str": Keys("str", 20_000, 20_000)}
_QUICK_PAIRS: Final = 60_000
_CHECKED_PAIRS: Final = 400_000


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench shuffle", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--keys", type=choices(KEYS), default=tuple(KEYS), help="int, str, or both separated by a comma"
    )
    parser.add_argument("--forms", type=choices(FORMS), default=tuple(FORMS), help="which, separated by commas")
    parser.add_argument("--sources", type=choices(SOURCES), default=SOURCES, help="which, separated by commas")
    parser.add_argument("--pairs", type=int, default=NUM_PAIRS)
    return vars(parser.parse_args(arguments))


def run(
    num_runs: int,
    *,
    quick: bool = False,
    peers: frozenset[str] = frozenset(),
    keys: Sequence[str] = tuple(KEYS),
    forms: Sequence[str] = tuple(FORMS),
    sources: Sequence[str] = SOURCES,
    pairs: int = NUM_PAIRS,
) -> list[Result]:
    """Measure every kind of key by itself: all forms with all sources, and the peers, in turns."""
    results = []
    for kind in keys:
        size, table = (_QUICK_PAIRS, QUICK_KEYS[kind]) if quick else (pairs, KEYS[kind])
        wanted = [form for form in forms if (kind, form) in JOBS]
        jobs = [Job(form, source, table, size) for form in wanted for source in sources]
        results += _compare(jobs, num_runs, peers)
    return results


def _compare(jobs: Sequence[Job], num_runs: int, peers: frozenset[str]) -> list[Result]:
    for job in {job.form: job for job in jobs}.values():
        replace(job, num_pairs=min(job.num_pairs, _CHECKED_PAIRS), inspects_all=True).run()
    ours = [Contender(job.name, job.run, details={"num_pairs": job.num_pairs}) for job in jobs]
    if not ours:
        return []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flowlet-bench-")))
        others = contenders(stack, folder, jobs[0], NAMES if "all" in peers else peers)
        named = [replace(other, name=f"{other.name}, {jobs[0].keys.name}") for other in others]
        return compare([*ours, *named], num_runs, "tuples/s")
