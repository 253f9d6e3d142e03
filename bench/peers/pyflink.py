"""PyFlink's word count as a contender, on the cluster of ``bench/peers/flink_cluster.py``.

Side:  any.
Modes: ``thread``: Python runs inside the TaskManager's JVM; ``process``: in processes beside it.
Rate:  from the first record at a sink on: the source already runs while the Python workers behind it still start.
       Fewer words than the others count, for it is slow; the rate does not depend on their number.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.cluster import Process
from bench.jobs.pipeline import Run
from bench.jobs.words import Job, make_lines
from bench.load import ForeignLoad
from bench.peers.flink import read_reports
from bench.peers.flink_cluster import VENV, FlinkCluster, versions
from bench.rounds import Contender

MODES: Final = ("thread", "process")
NUM_WORDS: Final = {"thread": 400_000, "process": 100_000}
_SCRIPT: Final = Path(__file__).parent / "pyflink_job.py"
_JOB_TIMEOUT_S: Final = 300.0


def contender(cluster: FlinkCluster, mode: str, job: Job) -> Contender:
    """Return the word count in one of PyFlink's modes."""
    num_words = min(job.num_words, NUM_WORDS[mode])
    smaller = replace(job, num_words=num_words, made_words=min(job.made_words, num_words // 10))
    run = partial(run_once, cluster, mode, smaller)
    state = ", ValueState in RocksDB" if job.is_in_rocksdb else ""
    return Contender(
        f"PyFlink, {mode} mode{state}", run, is_peer=True, details={"num_words": num_words}, versions=versions()
    )


def run_once(cluster: FlinkCluster, mode: str, job: Job) -> Run:
    """Run one job and check it.

    Raises:
        ProcessError: it failed.
        WrongOutputError: the counts are wrong.
    """
    keep = job.keep()
    with tempfile.TemporaryDirectory(prefix="flowlet-bench-") as name:
        folder = Path(name)
        lines = folder / "lines.txt"
        lines.write_text("\n".join(make_lines(job.made_words)) + "\n", encoding="ascii")
        options = {"mode": mode, "count": job.num_words // 10, "lines": str(lines), "folder": name}
        options |= {"keepFrom": keep.from_record, "keep": keep.num_records, "isInRocksdb": job.is_in_rocksdb}
        load = run_script(cluster, _SCRIPT, options, folder, _JOB_TIMEOUT_S)
        reports = read_reports(folder, str)
    job.check_last(reports)
    seconds = reports.seconds_from_first_output
    return Run(job.num_words / seconds, seconds, load.cores)


def run_script(
    cluster: FlinkCluster, script: Path, options: Mapping[str, Any], folder: Path, timeout_s: float
) -> ForeignLoad:
    """Run a program of PyFlink on the cluster; returns what else ran meanwhile.

    Raises:
        ProcessError: it failed.
    """
    command = [
        str(VENV / "bin" / "python"),
        "-P",
        str(script),
        str(cluster.rest_port),
        str(cluster.jar),
        json.dumps(options),
    ]
    environment = {**cluster.environment, "JVM_ARGS": " ".join(cluster.opens())}
    with ForeignLoad() as load, Process(command, log=folder / "pyflink.log", environment=environment) as process:
        process.expect_success(timeout_s)
    return load
