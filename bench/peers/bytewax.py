"""Bytewax' word count as a contender: two processes, one worker in each of them.

Side:  any.
Needs: ``.venv-bytewax`` (``make .venv-bytewax/installed``).
Rate:  from the first line at any source to the end of the last process's dataflow.  Fewer words than the others count,
       for it is slow.
"""

import json
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path
from typing import Final

from bench.cluster import Process
from bench.jobs.pipeline import Run
from bench.jobs.words import Job, make_lines
from bench.load import ForeignLoad
from bench.peers.flink import read_reports
from bench.peers.flink_cluster import ROOT, free_port
from bench.rounds import Contender

VENV: Final = ROOT / ".venv-bytewax"
NUM_WORDS: Final = 1_000_000
_SCRIPT: Final = Path(__file__).parent / "bytewax_job.py"
_NUM_PROCESSES: Final = 2
_JOB_TIMEOUT_S: Final = 300.0


def why_missing() -> str | None:
    """Return what is not installed; None if it can run."""
    return None if (VENV / "bin" / "python").exists() else "it is not installed: make .venv-bytewax/installed"


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Return the version of Bytewax."""
    folders = map(str, VENV.glob("lib/python3*/site-packages"))
    return {found.name: found.version for found in metadata.distributions(name="bytewax", path=list(folders))}


def contender(job: Job) -> Contender:
    """Return the word count in Bytewax."""
    num_words = min(job.num_words, NUM_WORDS)
    smaller = replace(job, num_words=num_words, made_words=min(job.made_words, num_words // 10))
    return Contender(
        "Bytewax", partial(run_once, smaller), is_peer=True, details={"num_words": num_words}, versions=versions()
    )


def run_once(job: Job) -> Run:
    """Run one dataflow in fresh processes and check it.

    Raises:
        ProcessError: it failed.
        WrongOutputError: the counts are wrong.
    """
    with tempfile.TemporaryDirectory(prefix="flowlet-bench-") as name:
        folder = Path(name)
        lines = folder / "lines.txt"
        lines.write_text("\n".join(make_lines(job.made_words)) + "\n", encoding="ascii")
        options = json.dumps({"count": job.num_words // 10, "lines": str(lines), "folder": name})
        addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(_NUM_PROCESSES))
        with ForeignLoad() as load, ExitStack() as stack:
            processes = [
                stack.enter_context(
                    Process(
                        [str(VENV / "bin" / "python"), "-P", str(_SCRIPT), str(number), addresses, options],
                        log=folder / f"{number}.log",
                    )
                )
                for number in range(_NUM_PROCESSES)
            ]
            for process in processes:
                process.expect_success(_JOB_TIMEOUT_S)
        reports = read_reports(folder, str)
    job.check_last(reports)
    return Run(job.num_words / reports.seconds, reports.seconds, load.cores)
