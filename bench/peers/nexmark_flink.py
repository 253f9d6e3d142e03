"""NEXMark's queries 0, 1 and 2 in Flink's Java, as contenders.

Side:   any.
Events: a file of lines, which every source reads and parses before the clock starts.
Rules:  all operators of a query are in one chain, and object reuse is on.  Every query is warmed up until its rate
        stops rising.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from bench.jobs import checked_work
from bench.jobs.nexmark_events import as_text
from bench.jobs.pipeline import Run
from bench.jobs.work import Work
from bench.load import ForeignLoad
from bench.peers.flink import NAME, read_reports
from bench.peers.flink_cluster import FlinkCluster, versions
from bench.rounds import Contender

QUERIES: Final = ("q0", "q1", "q2")
_MORE: Final = 3  # times as many events as ours: a run should take a second


def contenders(cluster: FlinkCluster, work: Work) -> Sequence[Contender]:
    """Return one contender if Java has the query, else none."""
    if work.program not in QUERIES:
        return ()
    (events,) = work.inputs
    longer = replace(work, inputs=(replace(events, num_records=events.num_records * _MORE),))
    details = {"num_records": longer.num_records}
    run = partial(run_once, cluster, longer)
    return [Contender(f"{work.name}, {NAME}", run, is_peer=True, warms_up=True, details=details, versions=versions())]


def run_once(cluster: FlinkCluster, work: Work) -> Run:
    """Run one job and check it.

    Raises:
        FlinkError: it failed.
        WrongOutputError: its results differ from those of the plain loop.
    """
    checked_work.expected(work)  # computed now, not during the measured run
    (events,) = work.inputs
    with tempfile.TemporaryDirectory(prefix="flowlet-bench-") as name:
        folder = Path(name)
        file = folder / "events.txt"
        file.write_text("\n".join(map(as_text, events.ready())) + "\n", encoding="utf-8")
        options = {"parallelism": 2, "count": events.num_records, "events": file, "folder": folder}
        with ForeignLoad() as load:
            cluster.run(f"nexmark-{work.program}", options)
        reports = read_reports(folder, str)
    checked_work.check(work, reports)
    return Run(work.num_records / reports.seconds, reports.seconds, load.cores)
