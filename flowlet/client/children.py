"""TaskManagers as child processes of a user's program.

Side:       shared.
Invariants: a child lives in a session of its own, so that the terminal's Ctrl-C reaches the client first; it ends with its parent
            whatever happens (``--parent-pid``); what it prints appears on this program's standard output in whole lines.
Units:      seconds.
"""

import codecs
import errno
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flowlet.client.program.interrupts import Latch
from flowlet.client.python_interpreter import environment_of_other_python
from flowlet.errors import FlowletError
from netstack.log_lines import LogLines

_log = LogLines(__name__)

STOP_GRACE_S: Final = 5.0  # between SIGTERM and SIGKILL; a child promises 1.8 s, and on a busy machine it may not get the processor
_KILL_TIMEOUT_S: Final = 5.0  # for the kernel
_PRINT_TIMEOUT_S: Final = 5.0  # for the last words of all children
_READ_BYTES: Final = 64 * 1024
_MAX_READS_PER_PASS: Final = 64  # of one pipe, before the other ones are looked at
_MAX_LINE_CHARS: Final = 1024 * 1024  # a longer line is passed on in pieces


@dataclass(frozen=True, slots=True)
class TaskManagerOptions:
    """The command line of one child."""

    jobmanager: str  # host:port
    secret_file: Path
    num_slots: int
    log_level: str = "warning"
    pin_cpu: int | None = None
    network_memory_bytes: int | None = None
    python: str | None = None  # the interpreter; None: this one

    def arguments(self) -> list[str]:
        """The arguments after ``python -m flowlet.tm``."""
        arguments = ["--jobmanager", self.jobmanager, "--slots", str(self.num_slots), "--secret-file", str(self.secret_file)]
        arguments += ["--parent-pid", str(os.getpid()), "--log-level", self.log_level]
        if self.pin_cpu is not None:
            arguments += ["--pin-cpu", str(self.pin_cpu)]
        if self.network_memory_bytes is not None:
            arguments += ["--network-memory", str(self.network_memory_bytes)]
        return arguments


class _Pipe:
    """What one child printed so far: the ready line, then lines to pass on.  Owned by the forwarder's thread but for ``is_ready``."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.ready_line: str | None = None  # Written by the forwarder before it sets ``is_ready``.
        self.is_ready = Latch()  # the first line came, or the pipe ended without one
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""

    def feed(self, data: bytes) -> str:
        """Take bytes (none: the end); returns the text to print now."""
        text = self._partial + self._decoder.decode(data, final=not data)
        end = len(text) if not data or len(text) > _MAX_LINE_CHARS else text.rfind("\n") + 1
        text, self._partial = text[:end], text[end:]
        if self.is_ready.is_open or not (text or not data):
            return text
        ready_line, _, text = text.partition("\n")
        self.ready_line = ready_line or None
        self.is_ready.open()
        return text


class OutputForwarder:
    """Prints on this program's standard output what the children print.

    Threading: one thread of its own, which calls ``on_failure``, once, when something cannot be printed; the methods on any other.
    Life cycle: ``close`` after the children ended.
    """

    def __init__(self, on_failure: Callable[[], None] = lambda: None) -> None:
        self._on_failure = on_failure
        # Why standard output takes nothing more.  Written once by the forwarder's thread, read anywhere.
        self.failure: Exception | None = None
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._new_pipes: list[_Pipe] = []  # Guarded by _lock.
        self._drains: list[Latch] = []  # Guarded by _lock.
        self._removals: list[tuple[_Pipe, Latch]] = []  # Guarded by _lock.
        self._is_closing = False  # Guarded by _lock.
        self._thread = threading.Thread(target=self._run, name="flowlet-stdout", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<OutputForwarder {'on' if self._thread.is_alive() else 'closed'}>"

    def add(self, fd: int) -> _Pipe:
        """Read from ``fd`` from now on; it stays the caller's, who closes it after ``remove`` or ``close``."""
        os.set_blocking(fd, False)
        pipe = _Pipe(fd)
        with self._lock:
            self._new_pipes.append(pipe)
        os.eventfd_write(self._wake_fd, 1)
        return pipe

    def remove(self, pipe: _Pipe, timeout_s: float = 1.0) -> bool:
        """Print what is still in the pipe, and read no more; False if that is not done in time: the pipe is read until ``close``."""
        removed = Latch()
        with self._lock:
            if self._is_closing:
                return False
            self._removals.append((pipe, removed))
        os.eventfd_write(self._wake_fd, 1)
        return removed.wait(timeout_s)

    def drain(self, timeout_s: float = 1.0) -> None:
        """Wait until everything that the children have written by now is printed."""
        drained = Latch()
        with self._lock:
            if self._is_closing:
                return
            self._drains.append(drained)
        os.eventfd_write(self._wake_fd, 1)
        drained.wait(timeout_s)

    def close(self) -> None:
        """Print what is still in the pipes, then end the thread; it is left behind if nobody takes what it prints."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join(_PRINT_TIMEOUT_S)
        if self._thread.is_alive():
            _log.warning("what the TaskManagers printed is not taken by the reader of standard output", timeout_s=_PRINT_TIMEOUT_S)
            return
        self._selector.close()
        os.close(self._wake_fd)

    # ---------------------------------------------------------------- the forwarder's thread

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():  # waits for what TaskManagers print; ended by close(), which wakes it
                if key.data is None:
                    os.eventfd_read(self._wake_fd)
                else:
                    self._forward(key.data)
            with self._lock:
                new, self._new_pipes = self._new_pipes, []
                drains, self._drains = self._drains, []
                removals, self._removals = self._removals, []
                is_closing = self._is_closing
            for pipe in new:
                self._selector.register(pipe.fd, selectors.EVENT_READ, pipe)
            for pipe, removed in removals:
                self._remove(pipe)
                removed.open()
            if not (drains or is_closing):
                continue
            for key in list(self._selector.get_map().values()):
                if key.data is not None:
                    self._forward(key.data)
            for drained in drains:
                drained.open()
            if is_closing:
                return

    def _remove(self, pipe: _Pipe) -> None:
        if pipe.fd not in self._selector.get_map():
            return  # it ended
        self._forward(pipe)
        if pipe.fd in self._selector.get_map():  # another process still has its other end
            self._selector.unregister(pipe.fd)
            self._print(pipe.feed(b""))

    def _forward(self, pipe: _Pipe) -> None:
        for _ in range(_MAX_READS_PER_PASS):
            try:
                data = os.read(pipe.fd, _READ_BYTES)
            except BlockingIOError:
                return
            self._print(pipe.feed(data))
            if not data:
                self._selector.unregister(pipe.fd)
                return

    def _print(self, text: str) -> None:
        if not text or self.failure is not None:
            return
        try:
            if sys.stdout is None:  # the program was started without one
                raise OSError(errno.EBADF, "it is closed")
            sys.stdout.write(text)
            sys.stdout.flush()
        except (OSError, ValueError) as error:
            # The disk is full, the reader left, as in ``program | head``, or the program closed its output.  Reading goes on, because a
            # full pipe would stop the children's tasks, which could then not end.
            self.failure = error
            self._on_failure()


class TaskManagerProcess:
    """One child.  Threading: one thread at a time."""

    def __init__(self, options: TaskManagerOptions, forwarder: OutputForwarder) -> None:
        python = options.python or sys.executable
        if not python:
            raise FlowletError("this Python does not know its own program file, so it cannot start TaskManagers; use in_process=True")
        environment = child_environment() if options.python is None else environment_of_other_python()
        command = [python, "-P", "-m", "flowlet.tm", *options.arguments()]
        self._process = subprocess.Popen(  # noqa: S603 - an interpreter, and our own module
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        assert self._process.stdout is not None, "stdout=PIPE"
        self._stdout = self._process.stdout
        self._pipe = forwarder.add(self._stdout.fileno())

    def __repr__(self) -> str:
        return f"<TaskManagerProcess {self.pid} {'running' if self._process.returncode is None else self._process.returncode}>"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def end_event_fd(self) -> int:
        """A new descriptor, the caller's, that can be read once the process has ended; call it before ``end`` says so."""
        return os.pidfd_open(self._process.pid)

    def end(self) -> str | None:
        """How it ended, in words; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if code >= 0:
            how = f"with exit code {code}"
        else:
            try:
                how = f"by {signal.Signals(-code).name}"
            except ValueError:  # a real-time signal
                how = f"by signal {-code}"
        return f"TaskManager process {self.pid} ended {how}; its standard error may say more"

    def wait_ready(self, deadline: float) -> str:
        """The line that it prints once it is registered; ``deadline`` on the monotonic clock.

        Raises:
            FlowletError: it ended before, or was not ready in time.
        """
        self._pipe.is_ready.wait(max(0.0, deadline - time.monotonic()))
        if self._pipe.ready_line is not None:
            return self._pipe.ready_line
        if not self._pipe.is_ready.is_open:
            raise FlowletError(f"TaskManager process {self.pid} was not ready in time")
        try:
            code = self._process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            raise FlowletError(f"TaskManager process {self.pid} closed its standard output before it was ready, and did not end") from None
        raise FlowletError(f"TaskManager process {self.pid} ended with exit code {code} before it was ready")

    def terminate(self) -> None:
        """Ask it to stop."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait_or_kill(self, deadline: float) -> None:
        """Wait for its end; kill it at the deadline (monotonic clock)."""
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _log.warning("a TaskManager did not stop and was killed", pid=self.pid)
            self._process.kill()
            self._wait_killed()

    def _wait_killed(self) -> None:
        try:
            self._process.wait(_KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _log.warning("a TaskManager that was killed is still there", pid=self.pid, timeout_s=_KILL_TIMEOUT_S)

    def close_output(self) -> None:
        """Give the pipe back; after the forwarder was closed."""
        self._stdout.close()

    def remove_output(self, forwarder: OutputForwarder) -> bool:
        """Pass on its last words and give the pipe back; False: the forwarder still has it, so ``close_output`` after its end."""
        if not forwarder.remove(self._pipe):
            return False
        self._stdout.close()
        return True


def stop_all(children: Sequence[TaskManagerProcess], forwarder: OutputForwarder) -> None:
    """End every child within ``STOP_GRACE_S``, pass on their last words, and free the pipes."""
    for child in children:
        child.terminate()
    deadline = time.monotonic() + STOP_GRACE_S
    for child in children:
        child.wait_or_kill(deadline)
    forwarder.close()
    for child in children:
        child.close_output()


def child_environment() -> dict[str, str]:
    """Our environment, with everything that this program can import importable in a child, in the same order."""
    paths = [entry or os.getcwd() for entry in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
