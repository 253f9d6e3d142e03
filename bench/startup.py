"""From the start of a Python process to the result of its first local job.

Side:   any.
Job:    ``bench/jobs/trivial.py``: ten numbers through a map, collected by the program.  ``1 process``: parallelism 1, the cluster is inside
        the program; ``2 TaskManagers``: parallelism 2, they are child processes.
Figure: seconds from the program's start until it has the result; when the process had ended is in the details.
Proof:  the result.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from bench.jobs.checked import WrongOutputError
from bench.load import ForeignLoad
from bench.report import Result
from bench.transport import orders

CASES: Final = {"1 process": 1, "2 TaskManagers": 2}
# An installed package is compiled; a checkout is by its first program, unless it was told not to.
_UNSET: Final = ("FLOWLET_JOBMANAGER", "FLOWLET_LOCAL", "PYTHONDONTWRITEBYTECODE")
_ROOT: Final = Path(__file__).resolve().parent.parent
_TIMEOUT_S: Final = 60.0
_SQUARES: Final = [number * number for number in range(10)]


def measure(parallelism: int) -> dict[str, Any]:
    """One program.

    Raises:
        WrongOutputError: it found something else.
    """
    command = [sys.executable, "-m", "bench.jobs.trivial", str(parallelism)]
    variables = {name: value for name, value in os.environ.items() if name not in _UNSET}
    with ForeignLoad() as load:
        start_ns = time.monotonic_ns()
        done = subprocess.run(command, cwd=_ROOT, env=variables, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        end_ns = time.monotonic_ns()
    answer = json.loads(done.stdout) if done.returncode == 0 else {}
    if answer.get("squares") != _SQUARES:
        raise WrongOutputError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return {
        "seconds": (answer["monotonic_ns"] - start_ns) / 1e9,
        "seconds_to_exit": (end_ns - start_ns) / 1e9,
        "foreign_cores": load.cores,
    }


def run(num_runs: int) -> list[Result]:
    """Both programs in turns, after one run of each that fills the caches of the file system."""
    for parallelism in CASES.values():
        measure(parallelism)
    rounds = [{name: measure(CASES[name]) for name in order} for order in orders(list(CASES), num_runs)]
    results = []
    for name in CASES:
        samples = [samples[name] for samples in rounds]
        foreign = [sample["foreign_cores"] for sample in samples]
        results.append(Result(f"startup {name}", "s", [sample["seconds"] for sample in samples], {"samples": samples}, foreign))
    return results
