"""Sums by key in tumbling windows of event time: called functions and columns, beside Flink's Java.

Side:   any.
Work:   ``bench/jobs/window_sums.py``: windows of 5 s with 250,000 records, for 1,000 keys and for 10.  ``friendly``:
        int keys, in order; ``twin``: text keys, up to 3 s behind the latest.
Ways:   ``reduce``: a lambda is called for each record; ``aggregate``: ``add`` of a class is; ``columns``:
        ``from_arrow``, and ``agg(total=("amount", "sum"))``.  Records and batches are made before the clock starts and
        looked up.
Rate:   records / (last record at the last sink - first poll of the first source).  Columns get ten times as many, Java
        three times.
Peers:  Flink's Java with ``reduce``, which makes the records in its source; PyFlink in thread mode (parallelism 2; not
        for twins); the plain loop (always).  Parallelism 1 is one TaskManager with one slot; the two task threads of
        Flink's slot may use two cores.
Proof:  in every run the sum of every window of every key is that of the plain loop; for columns that of NumPy.
Profile: ``--profile`` as of ``bench programs``, for ``reduce`` and ``aggregate``.
"""

import argparse
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import profile_parts
from bench.jobs import checked_work, window_sum_columns
from bench.jobs.pipeline import Deployment, Run
from bench.jobs.window_sum_columns import Rows
from bench.jobs.work import Input, Work
from bench.load import ForeignLoad
from bench.options import choices
from bench.peers import flink, flink_cluster, loop_work, pyflink_work
from bench.peers.flink_cluster import FlinkCluster
from bench.peers.words import is_there
from bench.programs import FORMS, add_work_options, profiled
from bench.report import Result
from bench.rounds import Contender, compare

NUM_RECORDS: Final = 1_000_000
QUICK_RECORDS: Final = 4_000
NUM_PYFLINK_RECORDS: Final = 40_000
_PYFLINK_PARALLELISM: Final = 2  # of ``pyflink_work_job.py``
KEYS: Final = ("1000", "10")
_PROGRAMS: Final = {"reduce": "reduced", "aggregate": "aggregated"}
WAYS: Final = (*_PROGRAMS, "columns")
_MORE_COLUMNS: Final = 10
_MORE_JAVA: Final = 3
_MAKERS: Final = {"friendly": "ordered", "twin": "delayed"}
PEERS: Final = ("flink", "pyflink")


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench windows", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", type=choices(WAYS), default=WAYS, help="which ways, separated by commas")
    parser.add_argument("--keys", type=choices(KEYS), default=KEYS, help="how many, separated by commas")
    add_work_options(parser)
    parser.add_argument("--events", type=int, default=NUM_RECORDS, help="records of a run; an even number")
    return vars(parser.parse_args(arguments))


def run(
    num_runs: int,
    *,
    quick: bool = False,
    peers: frozenset[str] = frozenset(),
    only: Sequence[str] = WAYS,
    keys: Sequence[str] = KEYS,
    forms: Sequence[str] = FORMS,
    taskmanagers: Sequence[int] = (1, 2),
    events: int = NUM_RECORDS,
    profile: bool = False,
) -> list[Result]:
    """Measure every number of keys, form and parallelism, with all contenders in turns."""
    if profile and (missing := profile_parts.why_missing()):
        raise SystemExit(f"--profile: {missing}")
    num_records = QUICK_RECORDS if quick else events
    names = set(PEERS) if "all" in peers else peers
    results: list[Result] = []
    with ExitStack() as stack:
        has_flink = bool(names & set(PEERS)) and is_there("Flink", flink_cluster.why_missing())
        cluster = pyflink_work.start_cluster(stack) if has_flink else None
        for form in forms:
            for num_keys in map(int, keys):
                for number in taskmanagers:
                    contenders = [*ours(form, num_keys, number, num_records, only)]
                    contenders.append(loop_work.contender(work_of("reduce", form, num_keys, num_records)))
                    contenders += (
                        [] if cluster is None else of_flink(cluster, form, num_keys, number, num_records, names)
                    )
                    results += compare(contenders, num_runs, "records/s")
                if profile:
                    results += [
                        part
                        for way in only
                        if way in _PROGRAMS
                        for part in profiled(work_of(way, form, num_keys, num_records))
                    ]
    return results


def work_of(way: str, form: str, num_keys: int, num_records: int) -> Work:
    """Return one way with called functions."""
    is_twin = form == "twin"
    return Work(
        name_of(way, form, num_keys),
        _PROGRAMS[way] + ("_twin" if is_twin else ""),
        (Input(f"bench.jobs.window_sums:{_MAKERS[form]}_{num_keys}", num_records, num_records),),
        streams="bench.jobs.window_sums",
        loops="bench.peers.window_sum_loops",
        flows="",
    )


def name_of(way: str, form: str, num_keys: int) -> str:
    """Return the name of the figure."""
    return f"windows {way}, {num_keys:,} keys{', twin' if form == 'twin' else ''}"


def ours(form: str, num_keys: int, number: int, num_records: int, ways: Sequence[str]) -> Iterator[Contender]:
    """Yield the ways on ``number`` TaskManagers."""
    deployment = Deployment(number)
    for way in ways:
        name = f"{name_of(way, form, num_keys)}, {number} TaskManager{'s' if number > 1 else ''}"
        if way == "columns":
            rows = Rows(num_keys, num_records * _MORE_COLUMNS, form == "twin")
            yield Contender(
                name, partial(window_sum_columns.run, rows, deployment), details={"num_records": rows.num_rows}
            )
        else:
            work = work_of(way, form, num_keys, num_records)
            yield Contender(name, partial(checked_work.run, work, deployment), details={"num_records": num_records})


def of_flink(
    cluster: FlinkCluster, form: str, num_keys: int, number: int, num_records: int, names: Collection[str]
) -> list[Contender]:
    """Return the contenders of Flink: Java; PyFlink, too, in its parallelism and without the twin."""
    found = []
    if "flink" in names:
        rows = Rows(num_keys, num_records * _MORE_JAVA, form == "twin")
        details = {"num_records": rows.num_rows, "parallelism": number}
        name = f"{name_of('reduce', form, num_keys)}, {flink.NAME}, parallelism {number}"
        found.append(replace(flink.contender(partial(in_java, cluster, rows, number), details=details), name=name))
    if "pyflink" in names and number == _PYFLINK_PARALLELISM and form != "twin":
        work = work_of("reduce", form, num_keys, min(num_records, NUM_PYFLINK_RECORDS))
        found.append(pyflink_work.contender(cluster, work))
    return found


def in_java(cluster: FlinkCluster, rows: Rows, parallelism: int) -> Run:
    """Run one job of ``Windows.java`` and check it.

    Raises:
        FlinkError: it failed.
        WrongOutputError: its output is wrong.
    """
    window_sum_columns.expected(rows)  # computed now, not during the measured run
    with tempfile.TemporaryDirectory(prefix="flowlet-bench-") as name:
        options = {"parallelism": parallelism, "count": rows.num_rows, "keys": rows.num_keys, "folder": name}
        with ForeignLoad() as load:
            cluster.run("windows", {**options, "form": "twin" if rows.is_twin else "friendly"})
        reports = flink.read_reports(Path(name), str)
    window_sum_columns.check(rows, reports)
    return Run(rows.num_rows / reports.seconds, reports.seconds, load.cores)
