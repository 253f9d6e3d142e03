"""A ``Work`` in Bytewax as a contender: one worker in each of its processes.

Side:  any.
Needs: ``.venv-bytewax`` (``make .venv-bytewax/installed``).
Rate:  from the first record at any source to the end of the last sink.
"""

import json
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from bench.cluster import Process
from bench.jobs import checked_work
from bench.jobs.pipeline import Run
from bench.jobs.work import Work
from bench.load import ForeignLoad
from bench.peers.bytewax import VENV, versions
from bench.peers.flink import read_reports
from bench.peers.flink_cluster import ROOT, free_port
from bench.rounds import Contender

_SCRIPT: Final = Path(__file__).parent / "bytewax_work_job.py"
_JOB_TIMEOUT_S: Final = 600.0


def contender(work: Work, num_processes: int) -> Contender:
    """Return the work in ``num_processes`` processes."""
    name = f"{work.name}, Bytewax, {num_processes} process{'es' if num_processes > 1 else ''}"
    details = {"num_records": work.num_records}
    return Contender(name, partial(run_once, work, num_processes), is_peer=True, details=details, versions=versions())


def run_once(work: Work, num_processes: int) -> Run:
    """Run one dataflow in fresh processes and check it.

    Raises:
        ProcessError: it failed.
        WrongOutputError: its results differ from those of the plain loop.
    """
    checked_work.expected(work)  # computed now, not during the measured run
    with tempfile.TemporaryDirectory(prefix="flowlet-bench-") as name:
        folder = Path(name)
        options = json.dumps({"work": work.as_options(), "folder": name})
        addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(num_processes)) if num_processes > 1 else ""
        with ForeignLoad() as load, ExitStack() as stack:
            processes = [
                stack.enter_context(
                    Process(
                        [str(VENV / "bin" / "python"), "-P", str(_SCRIPT), str(number), addresses, options],
                        log=folder / f"{number}.log",
                        environment={"PYTHONPATH": str(ROOT)},
                    )
                )
                for number in range(num_processes)
            ]
            for process in processes:
                process.expect_success(_JOB_TIMEOUT_S)
        reports = read_reports(folder, str)
    checked_work.check(work, reports)
    return Run(work.num_records / reports.seconds, reports.seconds, load.cores)
