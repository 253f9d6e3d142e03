"""TaskManagers that are forked from a process which has imported what they need: the program's side of
``flowlet.tm.taskmanager_process``.

Side:       shared.
Invariants: a descriptor of a child stands for the process itself, so that no other process is signalled though ids are
            used again.  A server has one cluster or none.  The program keeps the server of a cluster that has ended for
            the next cluster (``KEPT_SERVER``), if that would start a server with equal surroundings, and for
            ``MAX_REST_S`` at most.  The server ends with this program, however this ends; a forked child of this
            program does not have it.
Units:      seconds.
Figure:     the CPU of a second ``execute()`` with parallelism 2 is 3.7 times that of ``import numpy`` with a new
            server, and 0.7 times with the kept one (``bench/startup.py``).
"""

import atexit
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from flowlet.client.children import (
    OutputForwarder,
    TaskManagerOptions,
    TaskManagerProcess,
    inherits_standard_error,
    is_readable,
)
from flowlet.client.python_interpreter import command_of_fork_server
from flowlet.errors import FlowletError
from flowlet.tm.process.program_start import ProgramStart
from netstack.late import dataclass
from netstack.loop.forks import ClosedInChildren

_ANSWER_BYTES: Final = 4096
_ANSWER_S: Final = 60.0  # a loaded machine; it takes 20 ms
_END_S: Final = 5.0  # it ends at once
_LOOK_INTERVAL_S: Final = 0.25  # a signal that came just before a wait is noticed this late
MAX_REST_S: Final = 10.0
"""How long a server waits for another cluster before it ends.

A program that runs job after job has the next one at once; one that has gone over to other work gets its memory back
(50 MB), and an ``os.wait()`` for all of its children returns.
"""
_REST_ANSWER_S: Final = 1.0  # a server that has nothing to do answers at once

# The lines of ``/proc/thread-self/status`` about what an executed process inherits.
_OF_USER: Final = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
_INHERITED: Final = frozenset((*_OF_USER, "Umask", "SigBlk", "SigIgn", "Cpus_allowed_list", "Mems_allowed_list"))


Surroundings = tuple[object, ...]
"""The part that a server has of the program that started it, and keeps: a program that has changed some of it needs
another server.

Standard error and the working directory are not among it: a server gets them anew from each cluster.  What the program
has loaded, its arguments and its loggers travel to each TaskManager.

It is never printed: the variables of the environment may hold secrets.
"""


def surroundings_of(python: str | None, start: ProgramStart) -> Surroundings:
    """Read the surroundings of the calling thread, which is about to start a server with the interpreter ``python``.

    From the kernel: user, groups, umask, signals, capabilities, processors, limits, priority, cgroup, namespaces.
    """
    status = _text_of("/proc/thread-self/status").splitlines()
    root = os.stat("/")
    return (
        command_of_fork_server(python, Path(), -1),  # interpreter, its flags, filters of warnings
        dict(os.environ),
        start.import_path,
        start.libraries,
        *(line for line in status if line.partition(":")[0] in _INHERITED),
        *(_text_of(f"/proc/self/{name}") for name in ("limits", "cgroup", "oom_score_adj")),
        *_namespaces(),
        (root.st_dev, root.st_ino),
        (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
    )


def _text_of(file: str) -> str:
    """Read the kernel's answer; empty where it has no such file."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _namespaces() -> list[str]:
    folder = "/proc/self/ns"
    try:
        return [os.readlink(f"{folder}/{name}") for name in sorted(os.listdir(folder))]
    except OSError:  # a kernel without them, or one that does not show them
        return []


class ServerProcess:
    """A process from which TaskManagers are forked.  Threading: one thread at a time."""

    def __init__(self, surroundings: Surroundings, python: str | None, program_file: Path) -> None:
        self.surroundings = surroundings
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - an interpreter, and our own module
                command_of_fork_server(python, program_file, theirs.fileno()),
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
        self._num_open = 1  # orders without an answer; it says by itself when it is ready
        assert self._process.stdout is not None, "stdout=PIPE"
        self.stdout_fd = os.dup(self._process.stdout.fileno())
        self._process.stdout.close()
        self._in_children = ClosedInChildren(ours.fileno(), self)
        self._output_in_children = ClosedInChildren(self.stdout_fd, self)

    def __repr__(self) -> str:
        return (
            f"<ServerProcess {self.pid} {'running' if self._process.returncode is None else self._process.returncode}>"
        )

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether the server is gone, or the program has closed the socket to it, as programs do that close all open
        descriptors.
        """
        return self._process.poll() is not None or not self._in_children.is_intact

    def begin(self) -> None:
        """Give the server to another cluster: it answers when it has this program's standard error and working
        directory.

        Raises OSError.
        """
        with ExitStack() as opened:
            directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, directory)
            self.order({"kind": "begin"}, [_standard_error(opened), directory])

    def rest(self, max_s: float) -> bool:
        """Let the server wait so long for another cluster; False: it cannot, because something of the
        last one is left.
        """
        if self._num_open or self.has_ended():
            return False
        try:
            self.order({"kind": "rest", "max_s": max_s}, [])
            return self.waits_for_us(_REST_ANSWER_S) and self.answer()[0]["children"] == 0
        except (OSError, FlowletError):
            return False

    def order(self, order: dict[str, Any], descriptors: list[int]) -> None:
        """Send an order, which the server answers.  Raises OSError: it is gone."""
        socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
        self._num_open += 1

    def waits_for_us(self, timeout_s: float) -> bool:
        """Whether there is an answer of the server, or its end, within the time."""
        return is_readable(self._control.fileno(), timeout_s)

    def answer(self) -> tuple[dict[str, Any], int]:
        """Return the server's next answer, and a descriptor in it, -1 where there is none.  Raises FlowletError: there
        will be none.
        """
        if not self.waits_for_us(_ANSWER_S):
            raise FlowletError(f"the process from which TaskManagers are forked does not answer within {_ANSWER_S:g} s")
        try:
            text, descriptors, _, _ = socket.recv_fds(self._control, _ANSWER_BYTES, 1)
        except OSError as error:
            raise FlowletError(f"the process from which TaskManagers are forked is gone: {error}") from error
        if not text:
            how = "somehow"
            with suppress(subprocess.TimeoutExpired):
                how = f"with exit code {self._process.wait(_END_S)}"
            raise FlowletError(
                f"the process from which TaskManagers are forked ended {how}; its standard error may say more"
            )
        self._num_open -= 1
        return json.loads(text), descriptors[0] if descriptors else -1

    def end(self) -> None:
        """End the server, and wait for it; closes ``stdout_fd``, which nobody may read any more."""
        if self._in_children.is_intact:
            self._control.close()  # it ends
        else:
            self._control.detach()  # the number is another file's by now
        if self._output_in_children.is_intact:
            os.close(self.stdout_fd)
        self._in_children.release()
        self._output_in_children.release()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()  # waits for the kernel to end a process that was killed; ended by it


class ServerKeeper:
    """Keeps the server of a cluster that has ended for the next one; there is one keeper in a program, ``KEPT_SERVER``.

    Threading: any.
    Life cycle: what it keeps ends with ``close``, with the program, or by itself after ``max_rest_s``.
    """

    def __init__(self) -> None:
        self.max_rest_s = MAX_REST_S
        # One at most.  Any thread; each step is one ``append`` or ``pop``, which are atomic.
        self._resting: list[ServerProcess] = []
        self._is_over = False  # Written at the program's exit, on its main thread; read anywhere.

    def __repr__(self) -> str:
        return f"<ServerKeeper of {self._resting}>"

    def take(self, surroundings: Surroundings) -> ServerProcess | None:
        """Take a server with these surroundings, which has begun for its new cluster; None: there is none, and no other
        one is kept.
        """
        try:
            server = self._resting.pop()
        except IndexError:
            return None
        if server.surroundings == surroundings and not server.has_ended():
            with suppress(OSError):  # it has just ended, or the working directory was removed
                server.begin()
                return server
        server.end()
        return None

    def give(self, server: ServerProcess) -> None:
        """Keep a server that has no cluster any more, or end it."""
        if self._is_over or not server.rest(self.max_rest_s):
            server.end()
            return
        self._resting.append(server)
        while len(self._resting) > 1:  # two clusters have ended at once
            with suppress(IndexError):
                self._resting.pop(0).end()

    def close(self) -> None:
        """End the kept server, and wait for it; the keeper may be used again afterwards."""
        while self._resting:
            with suppress(IndexError):
                self._resting.pop().end()

    def close_for_good(self) -> None:
        """End the kept server like ``close``, and keep none from now on: the program ends."""
        self._is_over = True
        self.close()

    def forget(self) -> None:
        """Forget the server: this process is a forked child of the program that has it."""
        self._resting.clear()


KEPT_SERVER: Final = ServerKeeper()
# After each cluster, which registers later: exit functions run in reverse order.
atexit.register(KEPT_SERVER.close_for_good)
os.register_at_fork(after_in_child=KEPT_SERVER.forget)


@dataclass(eq=False, repr=False)
class ForkServer:
    """Forks the TaskManagers of one cluster; a server that has died is replaced.

    Threading: one thread at a time.
    Life cycle: ``close`` it, after its children.

    Args:
        python: the interpreter; None: this one.
        program_file: with the ``ProgramStart`` of this program.
        forwarder: prints what the server prints while its interpreter starts.
        connect: is given this program's end of the pair through which a new child speaks to the JobManager.
    """

    python: str | None
    program_file: Path
    forwarder: OutputForwarder
    connect: Callable[[socket.socket], None]
    _server: ServerProcess | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        start = ProgramStart.from_json(self.program_file.read_text(encoding="ascii"))
        self._surroundings = surroundings_of(self.python, start)
        server = KEPT_SERVER.take(self._surroundings)
        self._was_kept = server is not None
        self._have(server)

    def __repr__(self) -> str:
        return f"<ForkServer {self.pid}>"

    @property
    def pid(self) -> int | None:
        """The server's process id; None after ``close``."""
        return None if self._server is None else self._server.pid

    def wait_ready(self, deadline: float) -> None:
        """Wait until the server has imported everything; ``deadline`` on the monotonic clock.

        Raises FlowletError: it did not start.
        """
        assert self._server is not None, "not closed"
        while not self._server.waits_for_us(min(_LOOK_INTERVAL_S, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                raise FlowletError("the process from which TaskManagers are forked was not ready in time")
        try:
            self._server.answer()
        except FlowletError:
            if not self._was_kept:
                raise
            self._replace(deadline)  # its rest was over just when it was asked

    def launch(self, options: TaskManagerOptions) -> TaskManagerProcess:
        """Fork a new TaskManager.  Raises FlowletError: the server cannot fork, or does not answer."""
        if self._server is None or self._server.has_ended():
            self._replace(time.monotonic() + _ANSWER_S)
        server = self._server
        assert server is not None, "just started"
        with ExitStack() as theirs, ExitStack() as ours:
            stdout_fd, their_stdout = _pipe(ours, theirs)
            exit_fd, their_exit = _pipe(ours, theirs)
            status_fd, their_status = _pipe(ours, theirs)
            their_life, life_fd = _pipe(theirs, ours)
            program_end, their_end = socket.socketpair()
            ours.callback(program_end.close)
            theirs.callback(their_end.close)
            stderr_fd = _standard_error(theirs)
            arguments = options.arguments(server.pid)
            order = {"kind": "fork", "program_file": str(options.program_file), "arguments": arguments}
            descriptors = [their_stdout, stderr_fd, their_life, their_status, their_end.fileno(), their_exit]
            try:
                server.order(order, descriptors)
            except OSError as error:
                raise FlowletError(f"no TaskManager can be forked: {error}") from error
            answer, end_fd = server.answer()
            # The kernel leaves the child's descriptor out if this program has no room for it.  The child, if there is
            # one, ends with the pipes that are closed here.
            if end_fd < 0:
                reason = answer.get("error", "this program has too many open files; raise the limit (ulimit -n)")
                raise FlowletError(f"no TaskManager can be forked: {reason}")
            self.connect(program_end)
            ours.pop_all()
        return TaskManagerProcess(answer["pid"], end_fd, exit_fd, stdout_fd, status_fd, life_fd, self.forwarder)

    def close(self) -> None:
        """Let the next cluster have the server, or end it; idempotent."""
        if self._server is None:
            return
        server, self._server = self._server, None
        if self.forwarder.remove(self._pipe) or self.forwarder.has_ended():
            KEPT_SERVER.give(server)
        else:  # the forwarder still reads from it
            server.end()

    def _have(self, server: ServerProcess | None = None) -> None:
        """Fork from this server; None: from a new one."""
        self._server = server or ServerProcess(self._surroundings, self.python, self.program_file)
        self._pipe = self.forwarder.add(self._server.stdout_fd)

    def _replace(self, deadline: float) -> None:
        """Start a new server in place of one that has ended."""
        if self._server is not None:
            self.forwarder.remove(self._pipe)
            self._server.end()
        self._was_kept = False
        self._have()
        self.wait_ready(deadline)


def _pipe(reads: ExitStack, writes: ExitStack) -> tuple[int, int]:
    """Make a pipe and return its ends, which ``reads`` and ``writes`` close."""
    read_fd, write_fd = os.pipe()
    reads.callback(os.close, read_fd)
    writes.callback(os.close, write_fd)
    return read_fd, write_fd


def _standard_error(opened: ExitStack) -> int:
    """Return the standard error of a child: this program's, or none if that has none, which ``opened`` closes."""
    if inherits_standard_error():
        return 2
    descriptor = os.open(os.devnull, os.O_WRONLY)
    opened.callback(os.close, descriptor)
    return descriptor
