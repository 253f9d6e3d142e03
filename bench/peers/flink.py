"""Apache Flink's Java DataStream API as a contender; see ``bench/peers/flink`` for the programs.

Side:  any.
Rules: topology, data and proof are ours.  Flink is warmed up until its rate stops rising.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from bench.jobs.checked import Keep, Reports, SinkReport
from bench.jobs.pipeline import Run
from bench.load import ForeignLoad
from bench.peers.flink_cluster import FlinkCluster, versions
from bench.rounds import Contender

NAME: Final = "Flink (Java)"


def run_job(
    cluster: FlinkCluster,
    work: str,
    options: Mapping[str, object],
    *,
    num_records: int,
    keep: Keep,
    key: Callable[[str], object],
    check: Callable[[Reports], None],
) -> Run:
    """Run a job of ``Driver.java`` once and check it.

    Args:
        cluster: where.
        work: the first word of the driver's line.
        options: the others.
        num_records: the number that the rate counts.
        keep: the outputs that the sinks keep.
        key: a key from its text.
        check: raises if the output is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="flowlet-bench-") as name:
        folder = Path(name)
        sinks = {"folder": folder, "keepFrom": keep.from_record, "keep": keep.num_records}
        with ForeignLoad() as load:
            cluster.run(work, {"parallelism": 2, **options, **sinks})
        reports = read_reports(folder, key)
    check(reports)
    return Run(num_records / reports.seconds, reports.seconds, load.cores)


def read_reports(folder: Path, key: Callable[[str], object]) -> Reports:
    """Return the reports that ``NumberedSource`` and ``CheckedSink`` wrote."""
    starts = [int(file.read_text(encoding="ascii")) for file in folder.glob("start-*")]
    return Reports(min(starts), tuple(_sink_report(file, key) for file in sorted(folder.glob("sink-*"))))


def _sink_report(file: Path, key: Callable[[str], object]) -> SinkReport:
    head, *lines = file.read_text(encoding="utf-8").splitlines()
    num_records, first_ns, end_ns = map(int, head.split("\t"))
    pairs = (line.split("\t") for line in lines)
    return SinkReport(num_records, end_ns, {key(text): int(value) for text, value in pairs}, first_ns=first_ns)


def contender(run: Callable[[], Run], *, details: Mapping[str, object] | None = None) -> Contender:
    """Return the contender that runs a job of Flink's."""
    return Contender(NAME, run, is_peer=True, warms_up=True, details=dict(details or {}), versions=versions())
