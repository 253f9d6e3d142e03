"""Keyed state of users: words counted in a ``ValueState`` beside a called reduction, and what snapshots of many keys
take.

Side:     any.
Words:    the job of ``bench wordcount`` with its forms ``called``, ``state``, ``state-list`` and ``sum``, and
          ``called``, ``sum`` and ``state`` in RocksDB, in turns; ratios within one round.  Peer: PyFlink, which counts
          in a ``ValueState`` in RocksDB, too (``--peers=pyflink``).
Rows:     what ``sum`` and ``reduce`` take per record in each back end, of a hot set of keys and of many
          (``bench/jobs/aggregated_rows.py``).
Snapshot: in this process, nothing else runs in it (``bench/jobs/keyed_states.py``).  ``sync``: how long the task stands
          still, for the second snapshot of a state; the first one, which lists all keys, is in the details.  ``async``:
          the work of the snapshot pool, up to rows by key group.  ``restore``: from the bytes of a file to a state that
          can be used.
Backends: the heap, and RocksDB (full snapshots).
"""

import argparse
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Final

from bench.jobs import aggregated_rows
from bench.jobs.keyed_states import BACKENDS, KEYS, VALUES, Content, SnapshotTimes, measure
from bench.jobs.pipeline import TWO_TASK_MANAGERS
from bench.jobs.words import MADE_WORDS, NUM_WORDS, QUICK_WORDS, Job
from bench.options import choices
from bench.peers import pyflink
from bench.peers.flink_cluster import FlinkCluster, why_missing
from bench.peers.words import is_there
from bench.report import Result
from bench.rounds import Contender, compare, tell
from bench.wordcount import check_everything

PARTS: Final = ("words", "rows", "snapshots")
FORMS: Final = ("state", "state-list")
NUM_KEYS: Final = 1_000_000
QUICK_KEYS: Final = 2_000
NUM_ROWS: Final = 400_000


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench state", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--parts", type=choices(PARTS), default=PARTS, help="which, separated by commas")
    parser.add_argument(
        "--backend", choices=tuple(BACKENDS), default="heap", help="where the state of the snapshots is kept"
    )
    parser.add_argument("--keys", type=int, default=NUM_KEYS, help="of the state whose snapshot is taken")
    parser.add_argument("--words", type=int, default=NUM_WORDS)
    return vars(parser.parse_args(arguments))


def run(
    num_runs: int,
    *,
    quick: bool = False,
    peers: frozenset[str] = frozenset(),
    parts: Sequence[str] = PARTS,
    backend: str = "heap",
    keys: int = NUM_KEYS,
    words: int = NUM_WORDS,
) -> list[Result]:
    """Measure all parts."""
    results = []
    if "words" in parts:
        job = Job(num_words=QUICK_WORDS if quick else words, made_words=QUICK_WORDS // 4 if quick else MADE_WORDS)
        results += count_words(num_runs, job, has_pyflink=bool({"all", "pyflink"} & peers))
    if "rows" in parts:
        for form in aggregated_rows.FORMS:
            for num_keys in (aggregated_rows.HOT_KEYS, keys):
                results += aggregate(aggregated_rows.Rows(form, num_keys, QUICK_KEYS if quick else NUM_ROWS), num_runs)
    if "snapshots" in parts:
        for content in [Content(key, value, QUICK_KEYS if quick else keys) for key in KEYS for value in VALUES]:
            results += snapshots(content, backend, num_runs)
    return results


def count_words(num_runs: int, sizes: Job, *, has_pyflink: bool) -> list[Result]:
    """Measure each form beside ``called`` on the heap, and PyFlink."""
    jobs = [replace(sizes, form=form) for form in ("called", *FORMS)]
    jobs.append(replace(sizes, form="sum"))
    jobs += [replace(sizes, form=form, is_in_rocksdb=True) for form in ("called", "sum", "state")]
    for job in jobs[1:]:
        check_everything(job)
    contenders = [
        Contender(
            job.name,
            partial(job.run, TWO_TASK_MANAGERS),
            is_peer=job == jobs[0],
            details={"num_words": job.num_words},
        )
        for job in jobs
    ]
    with ExitStack() as stack:
        if has_pyflink and is_there("Flink", why_missing()):
            cluster = stack.enter_context(FlinkCluster())
            contenders += [pyflink.contender(cluster, mode, jobs[-1]) for mode in pyflink.MODES]
        return compare(contenders, num_runs, "words/s")


def aggregate(rows: aggregated_rows.Rows, num_runs: int) -> list[Result]:
    """Measure one form on the heap and in RocksDB, in turns."""
    rates: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for _ in range(num_runs):
        for backend, found in rates.items():
            found.append(aggregated_rows.rate(rows, backend))
    name = f"{rows.form} of {rows.num_keys} keys"
    ratio = statistics.median(rates["rocksdb"]) / statistics.median(rates["heap"])
    tell(
        f"{name}: "
        + ", ".join(f"{backend} {max(found):,.0f}/s" for backend, found in rates.items())
        + f" ({ratio:.2f})"
    )
    details = {"num_records": rows.num_records}
    return [Result(f"{name}, {backend}", "records/CPU s", found, details) for backend, found in rates.items()]


def snapshots(content: Content, backend: str, num_runs: int) -> list[Result]:
    """Return the figures of one state."""
    runs = [measure(content, BACKENDS[backend]) for _ in range(num_runs)]
    name = f"state {backend}, {content.num_keys} {content.keys} keys, {content.values}"
    details = {"runs": [asdict(each) for each in runs], "num_keys": content.num_keys}
    for each in runs:
        tell(f"{name}: {_text(each, content.num_keys)}")
    return [
        Result(f"{name}: sync", "ms", [each.sync_ms for each in runs], details),
        Result(f"{name}: async", "ms", [each.async_ms for each in runs], details),
        Result(f"{name}: restore", "ms", [each.restore_ms for each in runs], details),
        Result(f"{name}: size", "bytes/key", [each.num_bytes / content.num_keys for each in runs], details),
    ]


def _text(times: SnapshotTimes, num_keys: int) -> str:
    return (
        f"sync {times.sync_ms:.2f} ms (first {times.first_sync_ms:.2f} ms), async {times.async_ms:.0f} ms, "
        f"{times.num_bytes / num_keys:.0f} bytes per key, restore {times.restore_ms:.0f} ms"
    )
