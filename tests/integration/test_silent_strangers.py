"""Connections that say nothing leave a process with few descriptors enough of them for its work."""

import os
import resource
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from bench.cluster import Process
from netstack.transport.socket_options import within_descriptors

pytestmark = pytest.mark.slow

NUM_STRANGERS = 400
PATIENCE_S = 60.0
PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
from flowlet.common import Types
from flowlet.testing import MiniCluster

with MiniCluster(num_task_managers=1) as cluster:
    print("port", cluster.target.port, flush=True)
    sys.stdin.readline()
    for number in range(3):
        with cluster.environment().from_collection([number], Types.LONG()).map(lambda each: 2 * each).execute_and_collect() as results:
            print("found", list(results), flush=True)
"""  # noqa: E501


@pytest.mark.parametrize("num_descriptors", [160, pytest.param(256, marks=pytest.mark.long)])
def test_jobs_run_while_silent_strangers_wait(tmp_path: Path, num_descriptors: int) -> None:
    """At least half of the descriptors are for the work, whatever the limit of strangers is."""
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH", "")]))}
    arguments = [sys.executable, "-c", PROGRAM, str(num_descriptors)]

    with (
        ExitStack() as stack,
        Process(arguments, log=tmp_path / "log", environment=environment, stdin=subprocess.PIPE) as program,
    ):
        port = int(program.wait_for_line(r"^port (\d+)$").group(1))
        for _ in range(NUM_STRANGERS):
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port))))
        program.send_line("go on")

        program.expect_success(PATIENCE_S)

    assert [line for line in program.stdout.splitlines() if line.startswith("found")] == [
        "found [0]",
        "found [2]",
        "found [4]",
    ]


@pytest.mark.parametrize(("soft", "max_strangers"), [(128, 32), (1024, 64), (resource.RLIM_INFINITY, 64), (2, 1)])
def test_each_of_two_doors_takes_a_quarter_at_most(
    monkeypatch: pytest.MonkeyPatch, soft: int, max_strangers: int
) -> None:
    """The data port obeys the rule of the JobManager's port; its own limit is 64."""
    monkeypatch.setattr(os, "sysconf", lambda _: soft)

    assert within_descriptors(64) == max_strangers
