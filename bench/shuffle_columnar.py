"""Keyed running sums of (int64, int64) rows in record batches, half of them over TCP.

Side:    any.
Job:     ``bench/jobs/columns.py``; two TaskManager processes with one slot each, a source, a keyed sum and a sink in
         each of them; network buffers of 32 KiB.
Peers:   get our rows as single records: Flink's DataStream API has no columns.
Rate:    input rows / (last record at the last sink - first poll of the first source), read inside the job.
"""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.jobs.columns import FORMS, KEYS, NUM_ROWS, SOURCES, Job
from bench.jobs.pairs import Keys
from bench.options import choices
from bench.peers.pairs import NAMES, contenders
from bench.report import Result
from bench.rounds import Contender, compare

_QUICK_ROWS: Final = 400_000
_QUICK_KEYS: Final = Keys("int", 100, 2048)
_CHECKED_ROWS: Final = 400_000


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench shuffle-columnar", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--forms", type=choices(FORMS), default=tuple(FORMS), help="which, separated by commas")
    parser.add_argument("--sources", type=choices(SOURCES), default=SOURCES, help="which, separated by commas")
    parser.add_argument("--rows", type=int, default=NUM_ROWS)
    return vars(parser.parse_args(arguments))


def run(
    num_runs: int,
    *,
    quick: bool = False,
    peers: frozenset[str] = frozenset(),
    forms: Sequence[str] = tuple(FORMS),
    sources: Sequence[str] = SOURCES,
    rows: int = NUM_ROWS,
) -> list[Result]:
    """Measure every form with every source, and the peers, in turns."""
    size, keys = (_QUICK_ROWS, _QUICK_KEYS) if quick else (rows, KEYS)
    jobs = [Job(form, source, keys, size) for form in forms for source in sources]
    for job in {job.form: job for job in jobs}.values():
        replace(job, num_rows=min(size, _CHECKED_ROWS), inspects_all=True).run()
    ours = [Contender(job.name, job.run, details={"num_rows": job.num_rows}) for job in jobs]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flowlet-bench-")))
        others = contenders(stack, folder, jobs[0].as_pairs, NAMES if "all" in peers else peers)
        return compare([*ours, *others], num_runs, "rows/s")
