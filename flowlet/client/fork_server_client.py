"""TaskManagers that are forked from a process which has imported what they need: the program's side of ``flowlet.tm.fork_server``.

Side:       shared.
Invariants: a descriptor of a child stands for the process itself, so that no other process is signalled though ids are used again.  The
            server ends with ``close``, or with this program, whatever ends that.
Units:      seconds.
"""

import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from flowlet.client.children import OutputForwarder, TaskManagerOptions, inherits_standard_error
from flowlet.client.python_interpreter import command_of_fork_server
from flowlet.errors import FlowletError
from netstack.forks import ClosedInChildren

_ANSWER_BYTES: Final = 4096
_ANSWER_S: Final = 60.0  # a loaded machine; it takes 20 ms
_END_S: Final = 5.0  # it ends at once
_LOOK_INTERVAL_S: Final = 0.25  # a signal that came just before a wait is noticed this late
_UNKNOWN_CODE: Final = -signal.SIGKILL  # if the server is gone, its children were killed or will be


class ForkedProcess:
    """One child.  Threading: one thread at a time."""

    def __init__(self, pid: int, end_fd: int, exit_fd: int, stdout_fd: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = open(stdout_fd, "rb", buffering=0)  # noqa: SIM115 - closed by its owner
        self._end_fd = end_fd
        self._exit_fd = exit_fd

    def __repr__(self) -> str:
        return f"<ForkedProcess {self.pid} {'running' if self.returncode is None else self.returncode}>"

    def end_event_fd(self) -> int:
        """A new descriptor, the caller's, that can be read once the process has ended."""
        return os.dup(self._end_fd)

    def terminate(self) -> None:
        """Ask it to stop."""
        self._send(signal.SIGTERM)

    def kill_group(self) -> None:
        """Kill it; the server kills what it leaves behind."""
        self._send(signal.SIGKILL)

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        if self.returncode is None and _is_readable(self._end_fd, 0):
            self._read_code()
        return self.returncode

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self._read_code() if self.returncode is None else self.returncode

    def _read_code(self) -> int:
        """The server tells it, for it waits for each child that has ended; nothing comes if the server is gone."""
        if self.returncode is None:
            text = b""
            while not text.endswith(b"\n") and (more := os.read(self._exit_fd, 64)):
                text += more
            self.returncode = int(text) if text else _UNKNOWN_CODE
            os.close(self._exit_fd)
            os.close(self._end_fd)
        return self.returncode

    def _send(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._end_fd, number)


class ForkServer:
    """Forks TaskManagers; a server that has died is replaced.

    Threading: one thread at a time.
    Life cycle: ``close`` it, after its children.

    Args:
        python: the interpreter; None: this one.
        program_file: with the ``ProgramStart`` of this program.
        forwarder: prints what the server prints while its interpreter starts.
        connect: is given this program's end of the pair through which a new child speaks to the JobManager.
    """

    def __init__(
        self, python: str | None, program_file: Path, forwarder: OutputForwarder, connect: Callable[[socket.socket], None]
    ) -> None:
        self._python = python
        self._program_file = program_file
        self._forwarder = forwarder
        self._connect = connect
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._in_children: ClosedInChildren | None = None
        self._start()

    def __repr__(self) -> str:
        return f"<ForkServer {None if self._process is None else self._process.pid}>"

    @property
    def pid(self) -> int | None:
        """Its process id; None after ``close``."""
        return None if self._process is None else self._process.pid

    def wait_ready(self, deadline: float) -> None:
        """Wait until it has imported everything; ``deadline`` on the monotonic clock.  Raises FlowletError: it did not start."""
        assert self._control is not None, "not closed"
        while not _is_readable(self._control.fileno(), min(_LOOK_INTERVAL_S, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise FlowletError("the process from which TaskManagers are forked was not ready in time")
        self._answer()

    def launch(self, options: TaskManagerOptions, life_fd: int, status_fd: int) -> ForkedProcess:
        """A new TaskManager.  Raises FlowletError: the server cannot fork, or does not answer."""
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._start()
            self.wait_ready(time.monotonic() + _ANSWER_S)
        assert self._control is not None, "just started"
        assert self._process is not None, "just started"
        with ExitStack() as theirs, ExitStack() as ours:
            stdout_fd, their_stdout = os.pipe()
            exit_fd, their_exit = os.pipe()
            for descriptor in (stdout_fd, exit_fd):
                ours.callback(os.close, descriptor)
            for descriptor in (their_stdout, their_exit):
                theirs.callback(os.close, descriptor)
            program_end, their_end = socket.socketpair()
            ours.callback(program_end.close)
            theirs.callback(their_end.close)
            if inherits_standard_error():
                stderr_fd = 2
            else:
                stderr_fd = os.open(os.devnull, os.O_WRONLY)
                theirs.callback(os.close, stderr_fd)
            order = {"program_file": str(options.program_file), "arguments": options.arguments(parent_pid=self._process.pid)}
            descriptors = [their_stdout, stderr_fd, life_fd, status_fd, their_end.fileno(), their_exit]
            try:
                socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
            except OSError as error:
                raise FlowletError(f"no TaskManager can be forked: {error}") from error
            pid, end_fd = self._answer()
            ours.pop_all()
        self._connect(program_end)
        return ForkedProcess(pid, end_fd, exit_fd, stdout_fd)

    def close(self) -> None:
        """End the server; idempotent."""
        self._end()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - an interpreter, and our own module
                command_of_fork_server(self._python, self._program_file, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if inherits_standard_error() else subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._control = ours
        self._in_children = ClosedInChildren(ours.fileno(), ours)
        assert self._process.stdout is not None, "stdout=PIPE"
        self._pipe = self._forwarder.add(self._process.stdout.fileno())

    def _answer(self) -> tuple[int, int]:
        """Id and descriptor of the child that the server has just forked; -1 where there is none."""
        assert self._control is not None, "not closed"
        if not _is_readable(self._control.fileno(), _ANSWER_S):
            raise FlowletError(f"the process from which TaskManagers are forked does not answer within {_ANSWER_S:g} s")
        try:
            text, descriptors, _, _ = socket.recv_fds(self._control, _ANSWER_BYTES, 1)
        except OSError as error:
            raise FlowletError(f"the process from which TaskManagers are forked is gone: {error}") from error
        if not text:
            how = self._how_it_ended()
            raise FlowletError(f"the process from which TaskManagers are forked ended {how}; its standard error may say more")
        answer = json.loads(text)
        return answer["pid"], descriptors[0] if descriptors else -1

    def _how_it_ended(self) -> str:
        assert self._process is not None, "it was started"
        try:
            return f"with exit code {self._process.wait(_END_S)}"
        except subprocess.TimeoutExpired:
            return "somehow"

    def _end(self) -> None:
        if self._process is None:
            return
        assert self._control is not None, "both are set together"
        assert self._in_children is not None, "both are set together"
        assert self._process.stdout is not None, "stdout=PIPE"
        self._in_children.release()
        self._control.close()  # the server ends
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()  # waits for the kernel to end a process that was killed; ended by it
        self._forwarder.remove(self._pipe)
        self._process.stdout.close()
        self._process = self._control = self._in_children = None


def _is_readable(descriptor: int, timeout_s: float) -> bool:
    looker = select.poll()
    looker.register(descriptor, select.POLLIN)
    return bool(looker.poll(timeout_s * 1000))
