"""A cluster of real processes on this machine, started the way a user would start it in terminals.

Side:  any.
Used by the bench cases and by the integration tests; every process is ended, at the latest by a kill, when the ``with``
block is left.
"""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0


class ProcessError(Exception):
    """A process did not do in time what was expected; the message has its output."""


class Process:
    """One child process whose output lines can be waited for; standard error goes to a file beside it.

    Threading: one thread.
    Life cycle: a context manager; leaving it ends the process.
    """

    # Starts one, like ``subprocess.Popen``.  Tests that need many processes replace it by a fork.
    starter: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen

    def __init__(
        self,
        args: Sequence[str],
        *,
        log: Path,
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self.args = list(args)
        self._log = log
        env = {key: value for key, value in os.environ.items() if key != "PYTHONASYNCIODEBUG"}
        with log.open("wb") as stderr:
            self._popen = type(self).starter(
                self.args, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, cwd=cwd, env=env | (environment or {})
            )
        self._text = b""
        self._searched = 0

    def __repr__(self) -> str:
        return f"<Process {self.pid} {' '.join(self.args[1:4])} returncode={self._popen.returncode}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._popen.poll() is None

    @property
    def stdout(self) -> str:
        """The part of its standard output that was read so far."""
        return self._text.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Everything on its standard error so far."""
        return self._log.read_text(errors="replace")

    def wait_for_line(self, pattern: str, timeout_s: float = START_TIMEOUT_S) -> re.Match[str]:
        """Read standard output until a line matches; each line is matched once.

        Raises:
            ProcessError: the process ended or the time is over before such a line.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            while (end := self._text.find(b"\n", self._searched)) >= 0:
                line = self._text[self._searched : end].decode(errors="replace")
                self._searched = end + 1
                if found := re.search(pattern, line):
                    return found
            if not self._read_more(deadline):
                raise ProcessError(
                    f"{self!r}: no line like {pattern!r}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr[-8000:]}"
                )

    def send(self, signal_number: int) -> None:
        """Send a signal; nothing happens if it has ended."""
        self._popen.send_signal(signal_number)

    def send_line(self, text: str) -> None:
        """Write a line to its standard input, which must be a pipe."""
        assert self._popen.stdin is not None, "started with stdin=PIPE"
        self._popen.stdin.write(f"{text}\n".encode())
        self._popen.stdin.flush()

    def close_stdin(self) -> None:
        """End its standard input, if that is a pipe; a second call does nothing."""
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def wait(self, timeout_s: float) -> int:
        """Read the rest of its output and return the exit code.

        Raises:
            ProcessError: it is still running after ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while self._read_more(deadline):
            pass
        try:
            return self._popen.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{self!r} runs after {timeout_s} s\n{self.stdout}\n{self.stderr[-8000:]}") from None

    def expect_success(self, timeout_s: float) -> None:
        """Wait for its end.

        Raises:
            ProcessError: it failed, or still runs after ``timeout_s``; the message has its output.
        """
        if code := self.wait(timeout_s):
            raise ProcessError(
                f"{self!r} ended with {code}\n--- stdout\n{self.stdout[-4000:]}\n--- stderr\n{self.stderr[-8000:]}"
            )

    def interrupt(self, timeout_s: float) -> int:
        """Send Ctrl-C, then wait for the exit code."""
        self.send(signal.SIGINT)
        return self.wait(timeout_s)

    def close(self) -> None:
        """End it: by SIGTERM, or by SIGKILL if that does not help."""
        self.close_stdin()
        if self.is_running:
            self._popen.terminate()
            try:
                self._popen.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._popen.kill()
        self._popen.wait()
        if self._popen.stdout is not None:
            self._popen.stdout.close()

    def _read_more(self, deadline: float) -> bool:
        """Append some output; False at its end or when the time is over."""
        if self._popen.stdout is None or self._popen.stdout.closed:
            return False
        readable, _, _ = select.select([self._popen.stdout], [], [], max(0.0, deadline - time.monotonic()))
        data = os.read(self._popen.stdout.fileno(), 65536) if readable else b""
        self._text += data
        return bool(data)


class Cluster:
    """One JobManager and some TaskManagers; ``address`` is what ``--jobmanager`` takes.

    Life cycle: a context manager; inside, every process has said that it is ready.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num_task_managers: int = 2,
        slots: int = 1,
        task_manager_options: Sequence[str] = (),
        job_manager_options: Sequence[str] = (),
        pins: bool = True,
    ) -> None:
        self._folder = folder
        self._pins = pins
        self._num_task_managers = num_task_managers
        self._slots = slots
        self._task_manager_options = task_manager_options
        self._job_manager_options = job_manager_options
        self._stack = ExitStack()
        self.secret_file = folder / "secret"
        self.task_managers: list[Process] = []
        self._num_job_managers = 0
        self.address = ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that a client of this cluster needs."""
        return {"FLOWLET_SECRET_FILE": str(self.secret_file)}

    def __enter__(self) -> Self:
        cores = sorted(os.sched_getaffinity(0))
        try:
            self.start_job_manager()
            for number in range(self._num_task_managers):
                pinned = self._pins and self._num_task_managers == len(cores)  # as an embedded cluster does
                self.start_task_manager(*(("--pin-cpu", str(cores[number])) if pinned else ()))
            for task_manager in self.task_managers:
                task_manager.wait_for_line(r"^TaskManager \S+ listening on \S+, registered at \S+$")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def start_job_manager(self) -> None:
        """Start the JobManager, at the address of the one before if there was one; returns when it listens."""
        port = self.address.rpartition(":")[2] or "0"
        self._num_job_managers += 1
        name = f"jm{self._num_job_managers}"
        self.job_manager = self.start("-m", "flowlet.jm", "--port", port, *self._job_manager_options, name=name)
        self.address = self.job_manager.wait_for_line(r"^JobManager listening on http://(\S+)$").group(1)

    def start_task_manager(self, *more_options: str) -> None:
        """Start one more TaskManager; its ready line is still to come."""
        options = [
            "--jobmanager",
            self.address,
            "--slots",
            str(self._slots),
            *self._task_manager_options,
            *more_options,
        ]
        self.task_managers.append(self.start("-m", "flowlet.tm", *options, name=f"tm{len(self.task_managers)}"))

    def start(self, *args: str, name: str) -> Process:
        """Start ``python ARGS`` in the environment of this cluster; it ends with the cluster."""
        process = Process([sys.executable, *args], log=self._folder / f"{name}.log", environment=self.environment)
        return self._stack.enter_context(process)
