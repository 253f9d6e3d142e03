"""``python -m flowlet.jm`` and ``python -m flowlet.tm`` as forks of the process that has imported them: their lines,
their errors and their exit codes.

Users' programs are in ``tests/flowlet/client/programs.py``.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.forked_processes import ClusterStarter, Outcome, users_environment
from tests.waiting import PATIENCE_S

Start = Callable[..., "Command"]


class Command:
    """A process whose standard streams are pipes.

    Life cycle: a context manager; leaving it kills the process if it still runs.
    """

    def __init__(self, starter: ClusterStarter, module: str, *arguments: str, **variables: str) -> None:
        read_fd, write_fd = os.pipe()
        self.stderr = os.fdopen(read_fd, encoding="utf-8")
        command = [sys.executable, "-m", module, *arguments]
        with open(write_fd, "wb") as stderr:
            self.process = starter(
                command, stdout=subprocess.PIPE, stderr=stderr, env={**users_environment(), **variables}
            )
        assert self.process.stdout is not None
        self.stdout = TextIOWrapper(self.process.stdout, encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self.stdout.close()
        self.stderr.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def line(self) -> str:
        """The next line of its standard output."""
        return self.stdout.readline().rstrip("\n")

    def port(self) -> int:
        """The port at which it listens, which is the last number of its next line."""
        return int(self.line().rpartition(":")[2])

    def result(self) -> Outcome:
        """Wait for its end; return the exit code and what it has written since."""
        with ThreadPoolExecutor(1) as pool:  # a full pipe would hold it up
            out = pool.submit(self.stdout.read)
            errors = self.stderr.read()
        return self.process.wait(PATIENCE_S), out.result(), errors


@pytest.fixture(scope="module")
def cluster_starter(request: pytest.FixtureRequest) -> ClusterStarter:
    """The one that a session has, made before a test looks at what is there."""
    starter: ClusterStarter = request.getfixturevalue("_cluster_starter")
    return starter


@pytest.fixture
def start(cluster_starter: ClusterStarter, tmp_path: Path) -> Iterator[Start]:
    """Start commands whose secret is in ``tmp_path``; all have ended when the test is over."""
    with ExitStack() as started:

        def begin(module: str, *arguments: str, **variables: str) -> Command:
            options = (*arguments, "--secret-file", str(tmp_path / "secret"))
            return started.enter_context(Command(cluster_starter, module, *options, **variables))

        yield begin
