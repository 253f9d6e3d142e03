"""Users' programs as processes: their output, and their ends."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

import psutil

from bench.cluster import Process
from flowlet.client.embedded import write_secret
from flowlet.client.remote import ClusterClient, RemoteTarget
from tests.forked_processes import ClusterStarter, can_fork
from tests.waiting import PATIENCE_S

_LOG_LINE = re.compile(r'"level": "warning"|\[warning ')
REPOSITORY = Path(__file__).resolve().parents[3]


class Fork(Enum):
    """The part of a program's processes that begins with everything imported."""

    NOTHING = "all are executed"
    PROGRAM = "the program itself"
    WITH_SERVER = "the program, and the process from which it forks TaskManagers"


def variables_of(target: RemoteTarget, folder: Path) -> dict[str, str]:
    """Return the variables with which programs find a cluster; its secret lies in the folder then."""
    assert target.secret is not None
    secret = write_secret(folder / "secret", target.secret)
    return {"FLOWLET_JOBMANAGER": f"{target.host}:{target.port}", "FLOWLET_SECRET_FILE": str(secret)}


@contextmanager
def silent_job_manager(folder: Path) -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """A port that takes connections and answers nothing, and the variables with which programs find
    it, and a secret.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        host, port = server.getsockname()
        yield server, variables_of(RemoteTarget(host, port, secret=bytes(32)), folder)


@contextmanager
def job_manager(folder: Path) -> Iterator[tuple["Program", ClusterClient, dict[str, str]]]:
    """A JobManager without TaskManagers as a process, a client of it, and the variables with which programs find it."""
    secret_file = folder / "secret"
    options = ("--port", "0", "--secret-file", str(secret_file), "--log-level", "error")
    with running("-m", "flowlet.jm", *options, fork=Fork.PROGRAM) as program:
        assert program.process.stdout is not None
        address = program.process.stdout.readline().strip().rpartition("/")[2]
        client = RemoteTarget("127.0.0.1", int(address.rpartition(":")[2]), secret_file).open(1)
        yield program, client, {"FLOWLET_JOBMANAGER": address, "FLOWLET_SECRET_FILE": str(secret_file)}
        client.close()


class Program:
    """A running one.  Its children are part of what it must clean up."""

    def __init__(self, process: Any) -> None:
        self.process = process  # of ``subprocess``, or one that does the same

    def wait_for_output(self, text: str) -> None:
        assert self.process.stdout is not None
        _wait_for_line(self.process.stdout, text)

    def wait_for_error(self, text: str) -> None:
        assert self.process.stderr is not None
        _wait_for_line(self.process.stderr, text)

    def answer(self) -> None:
        """Let a ``sys.stdin.readline()`` return."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def interrupted(self) -> tuple[int, list[str]]:
        """Interrupt it; return its exit code and the lines of its errors."""
        self.interrupt()
        code, _, errors = self.end()
        return code, errors

    def end(self) -> tuple[int, str, list[str]]:
        """Wait for it and its children: exit code, what it printed since, the lines of its errors.

        Without log lines: on a busy machine a process may give up on another one, or lose its connection, and warns of
            that.
        """
        children = []
        with suppress(psutil.NoSuchProcess):  # it has just ended
            children = psutil.Process(self.process.pid).children(recursive=True)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []
        return self.process.returncode, out, [line for line in err.splitlines() if not _LOG_LINE.search(line)]


def _wait_for_line(lines: Iterator[str], text: str) -> None:
    for line in lines:
        if text in line:
            return
    raise AssertionError(f"it ended without {text!r}")


@contextmanager
def running(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    fork: Fork = Fork.NOTHING,
) -> Iterator[Program]:
    """``python ARGUMENTS`` in a folder, with Ctrl-C as in a terminal; killed at the end if it still runs.

    ``fork``: what of it is a fork of a process that has imported what it needs, where this is no part of what is
        tested.
    """
    # Without asyncio's debug mode, which is on in tests: its lines about slow callbacks are no business of the
    # program's standard error.
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONASYNCIODEBUG", "PYTHONPATH")}
    paths = {"PYTHONPATH": os.pathsep.join([*filter(None, [(environment or {}).get("PYTHONPATH")]), str(REPOSITORY)])}
    env = {**inherited, **(environment or {}), **paths}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process: Any
    starter = Process.starter
    has_no_flags = arguments[0] in ("-c", "-m") or arguments[0].endswith(".py")
    if isinstance(starter, ClusterStarter) and fork != Fork.NOTHING and has_no_flags and can_fork(env):
        has_server = fork == Fork.WITH_SERVER
        process = starter.server.start(arguments, **pipes, text=True, cwd=folder, env=env, has_server=has_server)
    else:
        process = subprocess.Popen([sys.executable, *arguments], **pipes, text=True, cwd=folder, env=env)
    with process:
        try:
            yield Program(process)
        finally:
            if process.poll() is None:
                process.kill()


class Programs:
    """The output of programs; each runs once, for all tests of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._printed: dict[tuple[str, ...], list[str]] = {}

    def lines(self, text: str, *arguments: str) -> list[str]:
        """Return the lines that ``program.py`` prints; it ends without an error."""
        if (text, *arguments) not in self._printed:
            folder = self._folder / str(len(self._printed))
            folder.mkdir(exist_ok=True)
            (folder / "program.py").write_text(text)
            with running(*arguments, folder=folder, fork=Fork.WITH_SERVER) as program:
                code, out, errors = program.end()
            assert code == 0, "\n".join(errors)
            self._printed[text, *arguments] = out.splitlines()
        return self._printed[text, *arguments]
