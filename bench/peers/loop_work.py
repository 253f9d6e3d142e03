"""A ``Work`` without any engine: as a plain Python loop, as a loop of calls, and by hand in two processes.

Side:  any.
Rate:  the loop alone: its records are made before.  It runs in a process of its own, as the engines do, which has
       nothing else to keep.
"""

import json
import sys
import tempfile
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from bench.cluster import Process
from bench.jobs import checked_work
from bench.jobs.checked import Reports, SinkReport
from bench.jobs.pipeline import Run
from bench.jobs.work import Work
from bench.load import ForeignLoad
from bench.peers import by_hand as by_hand_programs
from bench.peers import loop_of_calls
from bench.peers.flink_cluster import ROOT
from bench.rounds import Contender


class Form(Enum):
    """The forms that need no engine."""

    PLAIN = "plain loop, 1 process"
    CALLS = "loop of calls, 1 process"
    BY_HAND = "by hand, 2 processes"


_SCRIPT: Final = Path(__file__).parent / "loop_work_job.py"
_JOB_TIMEOUT_S: Final = 600.0


def contender(work: Work, form: Form = Form.PLAIN) -> Contender:
    """Return the work in one form."""
    details = {"num_records": work.num_records}
    return Contender(f"{work.name}, {form.value}", partial(run_once, work, form), is_peer=True, details=details)


def by_hand(work: Work) -> list[Contender]:
    """Return the contenders that show the cost of Python itself, of calling functions and of exchanging records, as far
    as there are such programs.
    """
    forms = [Form.CALLS] if loop_of_calls.can_call(work) else []
    return [
        contender(work, form) for form in [*forms, *([Form.BY_HAND] if by_hand_programs.is_there_for(work) else [])]
    ]


def run_once(work: Work, form: Form = Form.PLAIN) -> Run:
    """Run the work once and check it.

    Raises:
        ProcessError: it failed.
        WrongOutputError: another process gave other results.
    """
    checked_work.expected(work)  # computed now, not during the measured run
    command = [sys.executable, "-P", str(_SCRIPT), form.name, json.dumps(work.as_options())]
    with tempfile.TemporaryDirectory(prefix="flowlet-bench-") as name, ForeignLoad() as load:
        with Process(command, log=Path(name, "loop.log"), environment={"PYTHONPATH": str(ROOT)}) as process:
            process.expect_success(_JOB_TIMEOUT_S)
        told = json.loads(process.stdout)
    reports = Reports(told["start_ns"], (SinkReport(told["num_outputs"], told["end_ns"], told["numbers"]),))
    checked_work.check(work, reports)
    return Run(work.num_records / reports.seconds, reports.seconds, load.cores)
