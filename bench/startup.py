"""The time from the start of a Python process to the result of its first local job, and the job's cost in units of
``import numpy``.

Side:   any.
Jobs:   ``bench/jobs/trivial.py``: ten numbers through a map, collected by the program.  ``1 process``: parallelism 1,
        the cluster is inside the program; ``2 TaskManagers``: parallelism 2, they are child processes.
        ``bench/jobs/hello.py``: two words, printed.
Figure: seconds from the program's start until it has the result; when the process had ended is in the details.  For the
        ratios: CPU seconds of a command with all its descendants, and its wall seconds, each divided by those of
        ``python -c "import numpy"`` in that round; a second execution is a program with two less one with one.
Proof:  the result.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.cluster import Cluster
from bench.jobs.checked import WrongOutputError
from bench.load import ForeignLoad
from bench.peers import bytewax
from bench.report import Result
from bench.transport import orders

CASES: Final = {"1 process": 1, "2 TaskManagers": 2}
# An installed package is compiled; a checkout is compiled by its first program, unless that is switched off.
_UNSET: Final = ("FLOWLET_JOBMANAGER", "FLOWLET_LOCAL", "PYTHONDONTWRITEBYTECODE")
_ROOT: Final = Path(__file__).resolve().parent.parent
_TIMEOUT_S: Final = 60.0
_SQUARES: Final = [number * number for number in range(10)]
_UNIT: Final = "import numpy"
_HELLO: Final = ("-m", "bench.jobs.hello")
# The compared commands, as arguments of Python.
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    _UNIT: ("-c", "import numpy"),
    "import flowlet.datastream": ("-c", "import flowlet.datastream"),
    "import StreamExecutionEnvironment": ("-c", "from flowlet.datastream import StreamExecutionEnvironment"),
    "flowlet list": ("-m", "flowlet", "list"),
    "hello, parallelism 1": (*_HELLO, "1"),
    "hello twice, parallelism 1": (*_HELLO, "1", "2"),
    "hello, parallelism 2": (*_HELLO, "2"),
    "hello twice, parallelism 2": (*_HELLO, "2", "2"),
}
_BYTEWAX: Final = "Bytewax: hello"
# The cost of a second execution: the cost of two less the cost of one.
_DIFFERENCES: Final = {
    f"second execute(), parallelism {parallelism}": (
        f"hello twice, parallelism {parallelism}",
        f"hello, parallelism {parallelism}",
    )
    for parallelism in (1, 2)
}


@dataclass(frozen=True)
class Cost:
    """The cost of one command, with all its descendants."""

    cpu_s: float
    wall_s: float


def measure(parallelism: int) -> dict[str, Any]:
    """Run one program.

    Raises:
        WrongOutputError: its result is wrong.
    """
    command = [sys.executable, "-m", "bench.jobs.trivial", str(parallelism)]
    with ForeignLoad() as load:
        start_ns = time.monotonic_ns()
        done = subprocess.run(
            command, cwd=_ROOT, env=_variables(), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        end_ns = time.monotonic_ns()
    answer = json.loads(done.stdout) if done.returncode == 0 else {}
    if answer.get("squares") != _SQUARES:
        raise WrongOutputError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return {
        "seconds": (answer["monotonic_ns"] - start_ns) / 1e9,
        "seconds_to_exit": (end_ns - start_ns) / 1e9,
        "foreign_cores": load.cores,
    }


def measure_cost(command: list[str], variables: Mapping[str, str]) -> Cost:
    """Return the cost of a command until it and all descendants that it waited for have ended.

    Raises:
        WrongOutputError: it fails.
    """
    before, start_ns = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic_ns()
    done = subprocess.run(
        command, cwd=_ROOT, env=variables, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    wall_s, after = (time.monotonic_ns() - start_ns) / 1e9, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise WrongOutputError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall_s)


def run(num_runs: int) -> list[Result]:
    """Measure both programs in turns, after one run of each that fills the caches of the file system; then the
    ratios.
    """
    for parallelism in CASES.values():
        measure(parallelism)
    rounds = [{name: measure(CASES[name]) for name in order} for order in orders(list(CASES), num_runs)]
    results = []
    for name in CASES:
        samples = [samples[name] for samples in rounds]
        foreign = [sample["foreign_cores"] for sample in samples]
        results.append(
            Result(f"startup {name}", "s", [sample["seconds"] for sample in samples], {"samples": samples}, foreign)
        )
    return [*results, *ratios(num_runs)]


def ratios(num_runs: int) -> list[Result]:
    """Measure each command in units of ``import numpy``, in turns; Bytewax' smallest program beside them where it is
    installed.
    """
    commands = {name: [sys.executable, *arguments] for name, arguments in COMMANDS.items()}
    if bytewax.why_missing() is None:
        commands[_BYTEWAX] = [str(bytewax.VENV / "bin" / "python"), str(_ROOT / "bench" / "peers" / "bytewax_hello.py")]
    with (
        tempfile.TemporaryDirectory(prefix="flowlet-bench-") as folder,
        Cluster(Path(folder), num_task_managers=0) as cluster,
    ):
        variables = _variables() | cluster.environment
        commands["flowlet list"] += ["--jobmanager", cluster.address]
        for command in commands.values():
            measure_cost(command, variables)  # compiles modules, fills the caches of the file system
        found = []
        for order in orders(list(commands), num_runs):
            costs = {name: measure_cost(commands[name], variables) for name in order}
            found.append(
                costs | {name: _difference(costs[more], costs[less]) for name, (more, less) in _DIFFERENCES.items()}
            )
    names = [name for name in found[0] if not name.startswith("hello twice")]
    return [_result(name, found) for name in names]


def _result(name: str, rounds: list[dict[str, Cost]]) -> Result:
    cpu, wall = [each[name].cpu_s for each in rounds], [each[name].wall_s for each in rounds]
    if name == _UNIT:
        return Result(f"startup {name}", "CPU s", cpu, {"wall_s": wall})
    runs = [each[name].cpu_s / each[_UNIT].cpu_s for each in rounds]
    walls = [each[name].wall_s / each[_UNIT].wall_s for each in rounds]
    details = {"cpu_s": cpu, "wall_s": wall, "wall_ratios": walls, "wall_ratio": statistics.median(walls)}
    versions = bytewax.versions() if name == _BYTEWAX else {}
    return Result(f"startup {name}", f"x CPU of {_UNIT}", runs, details, versions=versions, is_peer=name == _BYTEWAX)


def _difference(more: Cost, less: Cost) -> Cost:
    return Cost(more.cpu_s - less.cpu_s, more.wall_s - less.wall_s)


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _UNSET}
