"""A flowlet cluster of processes on this machine, as started by hand in terminals."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class RunningCluster:
    """The address of the JobManager, and the file with the secret."""

    jobmanager: str
    secret_file: Path


@contextmanager
def local_cluster(folder: Path, num_task_managers: int) -> Iterator[RunningCluster]:
    """Start a JobManager and some TaskManagers with one slot each; they end with the ``with`` block, and leave their
    logs in ``folder``.
    """
    secret_file = folder / "secret"
    with ExitStack() as stack:

        def start(name: str, *args: str) -> subprocess.Popen[str]:
            log = stack.enter_context((folder / f"{name}.log").open("w"))
            environment = os.environ | {"FLOWLET_SECRET_FILE": str(secret_file)}
            process = subprocess.Popen(
                [sys.executable, "-m", *args], stdout=subprocess.PIPE, stderr=log, env=environment, text=True
            )
            stack.callback(_stop, process)
            return process

        jobmanager = _ready(start("jobmanager", "flowlet.jm", "--port", "0"), r"JobManager listening on http://(\S+)")
        task_managers = [
            start(f"taskmanager-{number}", "flowlet.tm", "--jobmanager", jobmanager)
            for number in range(num_task_managers)
        ]
        for process in task_managers:
            _ready(process, r"TaskManager (\S+) listening on \S+, registered at")
        yield RunningCluster(jobmanager, secret_file)


def _ready(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stdout is not None, "it is a pipe"
    for line in process.stdout:
        if found := re.match(pattern, line):
            return found.group(1)
    raise RuntimeError(f"{process.args!r} ended before it was ready; see its log")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
