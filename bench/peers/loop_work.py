"""A ``Work`` as a plain Python loop: one process, one core, no engine.

Side:  any.
Rate:  the loop alone: its records are made before.  It runs in a process of its own, as the engines do, which has nothing else to keep.
"""

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from bench.cluster import Process
from bench.jobs import checked_work
from bench.jobs.checked import Reports, SinkReport
from bench.jobs.pipeline import Run
from bench.jobs.work import Work
from bench.load import ForeignLoad
from bench.peers.flink_cluster import ROOT
from bench.rounds import Contender

_SCRIPT: Final = Path(__file__).parent / "loop_work_job.py"
_JOB_TIMEOUT_S: Final = 600.0


def contender(work: Work) -> Contender:
    """The work in one loop."""
    details = {"num_records": work.num_records}
    return Contender(f"{work.name}, plain loop, 1 process", partial(run_once, work), is_peer=True, details=details)


def run_once(work: Work) -> Run:
    """Once, checked.

    Raises:
        ProcessError: it failed.
        WrongOutputError: another process gave something else.
    """
    checked_work.expected(work)  # not while others are measured
    command = [sys.executable, "-P", str(_SCRIPT), json.dumps(work.as_options())]
    with tempfile.TemporaryDirectory(prefix="flowlet-bench-") as name, ForeignLoad() as load:
        with Process(command, log=Path(name, "loop.log"), environment={"PYTHONPATH": str(ROOT)}) as process:
            process.expect_success(_JOB_TIMEOUT_S)
        told = json.loads(process.stdout)
    reports = Reports(told["start_ns"], (SinkReport(told["num_outputs"], told["end_ns"], told["numbers"]),))
    checked_work.check(work, reports)
    return Run(work.num_records / reports.seconds, reports.seconds, load.cores)
