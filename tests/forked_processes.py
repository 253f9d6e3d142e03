"""Processes that begin with everything imported: the ends of a program cost milliseconds to look at, and a cluster does
not pay a second of imports for each of its processes.

Each is a fork of one child, which has imported the modules that it was told to, and runs ``python -m MODULE`` from
there: its own arguments, environment, working directory, standard streams and exit code, however it ends.  It differs
from an executed one in its parent, in its command line, and in that all forks of a server hash texts alike.
"""

import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from tests.waiting import PATIENCE_S

Outcome = tuple[int, str, str]  # exit code, standard output, standard error
_CLUSTER: Final = ("flowlet.jm", "flowlet.tm")
_MAX_REQUEST_BYTES: Final = 1 << 20
# A process is executed if one of these differs from the server's, which has read them, or if its coverage is measured.
_READ_AT_START: Final = ("NETSTACK_DEBUG", "PYTHONHASHSEED", "PYTHONDEVMODE", "PYTHONWARNINGS")


class ForkedProcess:
    """A process with the part of ``subprocess.Popen`` that tests use.

    Life cycle: ``wait`` or ``poll`` closes it once the process has ended, but for its pipes.
    """

    def __init__(self, args: Sequence[str], pid: int, exit_fd: int, stdin: IO[bytes] | None, stdout: IO[bytes] | None):
        self.args = args
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._exit_fd = exit_fd

    def __repr__(self) -> str:
        return f"<ForkedProcess {self.pid} {' '.join(self.args)} {self.returncode}>"

    def poll(self) -> int | None:
        """The exit code; None: it runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code.  Raises subprocess.TimeoutExpired."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._exit_fd], [], [], timeout_s)[0]:
            text = os.read(self._exit_fd, 64)
            os.close(self._exit_fd)
            self.returncode = int(text or b"-9")  # the server is gone, and its children with it
        return self.returncode


class ForkServer:
    """The child from which processes are forked.

    Threading: one thread.
    """

    def __init__(self, popen: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.pid = popen.pid
        self._popen = popen
        self._control = control

    def run(self, module: str, *arguments: str) -> Outcome:
        """Run ``python -m module arguments`` to its end and return its outcome."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self.start(["-m", module, *arguments], stdout=out.fileno(), stderr=err.fileno())
            try:
                code = process.wait(PATIENCE_S)
            finally:
                process.kill()
                process.wait()
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode())
        return code, texts[0], texts[1]

    def start(
        self,
        args: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ForkedProcess:
        """Start ``python ARGS``, where ARGS are ``-m``, a module and its arguments."""
        assert args[0] == "-m", f"runs modules, not {args}"
        with ExitStack() as theirs, ExitStack() as ours:
            exit_fd, their_exit = os.pipe()
            ours.callback(os.close, exit_fd)
            theirs.callback(os.close, their_exit)
            their_in, our_in = _input(stdin, ours, theirs)
            their_out, our_out = _output(stdout, ours, theirs)
            request = {
                "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
                "args": args[1:],
                "cwd": str(cwd or Path.cwd()),
                "env": users_environment() if env is None else dict(env),
            }
            socket.send_fds(self._control, [json.dumps(request).encode()], [their_in, their_out, stderr, their_exit])
            answer = self._control.recv(64)
            assert answer, "the fork server is gone; its standard error says why"
            ours.pop_all()
        return ForkedProcess(args, int(answer), exit_fd, our_in, our_out)


class ClusterStarter:
    """Starts what ``bench.cluster`` starts: JobManagers and TaskManagers as forks, all else as ``subprocess.Popen``
    does.
    """

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def __call__(
        self, args: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], **others: Any
    ) -> ForkedProcess | subprocess.Popen[bytes]:
        if tuple(args[:2]) != (sys.executable, "-m") or args[2] not in _CLUSTER or not can_fork(env):
            return subprocess.Popen(args, stderr=stderr, env=env, **others)
        command = list(args[1:])
        if "--parent-pid" in command:
            place = command.index("--parent-pid") + 1
            if command[place] == str(os.getpid()):
                command[place] = str(self._server.pid)
        return self._server.start(command, stderr=stderr.fileno(), env=env, **others)


def _input(stdin: int, ours: ExitStack, theirs: ExitStack) -> tuple[int, IO[bytes] | None]:
    if stdin == subprocess.PIPE:
        read_fd, write_fd = os.pipe()
        theirs.callback(os.close, read_fd)
        return read_fd, ours.enter_context(os.fdopen(write_fd, "wb"))
    descriptor = os.open(os.devnull, os.O_RDONLY)
    theirs.callback(os.close, descriptor)
    return descriptor, None


def _output(stdout: int, ours: ExitStack, theirs: ExitStack) -> tuple[int, IO[bytes] | None]:
    if stdout != subprocess.PIPE:
        return stdout, None
    read_fd, write_fd = os.pipe()
    theirs.callback(os.close, write_fd)
    return write_fd, ours.enter_context(os.fdopen(read_fd, "rb"))


def users_environment() -> dict[str, str]:
    """Return the environment without asyncio's debug mode, which logs each step that takes long on a busy machine,
    among the lines that a test reads.
    """
    return {key: value for key, value in os.environ.items() if key != "PYTHONASYNCIODEBUG"}


def can_fork(env: Mapping[str, str]) -> bool:
    """Whether a process in this environment may be forked from a server that this process has started."""
    path = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    return (
        "COVERAGE_PROCESS_START" not in env
        and set(path) <= set(sys.path)
        and all(env.get(key) == os.environ.get(key) for key in _READ_AT_START)
    )


@contextmanager
def fork_server(*imported: str) -> Iterator[ForkServer]:
    """Start a child that has imported these modules; not the ones that it shall run."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            command = [sys.executable, "-m", "tests.forked_processes", str(theirs.fileno()), *imported]
            popen = subprocess.Popen(command, env=users_environment(), pass_fds=[theirs.fileno()])
        with popen:
            try:
                yield ForkServer(popen, ours)
            finally:
                ours.close()  # it ends, and its children with it


def _serve(control: socket.socket) -> None:
    """Fork until the other end is closed; then end what still runs."""
    children: dict[int, tuple[int, int]] = {}  # of each process's descriptor: its id, where its exit code goes
    while True:
        readable, _, _ = select.select([control.fileno(), *children], [], [])
        for descriptor in children.keys() & readable:
            _reap(descriptor, *children.pop(descriptor))
        if control.fileno() in readable:
            data, descriptors, _, _ = socket.recv_fds(control, _MAX_REQUEST_BYTES, 4)
            if not data:
                break
            pid = os.fork()
            if pid == 0:
                control.close()
                for each, (_, exit_fd) in children.items():
                    os.close(each)
                    os.close(exit_fd)
                _run(json.loads(data), *descriptors)
            for each in descriptors[:3]:
                os.close(each)
            children[os.pidfd_open(pid)] = pid, descriptors[3]
            control.send(str(pid).encode())
    for descriptor, (pid, exit_fd) in children.items():
        os.kill(pid, signal.SIGKILL)
        _reap(descriptor, pid, exit_fd)


def _reap(descriptor: int, pid: int, exit_fd: int) -> None:
    os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(BrokenPipeError):  # nobody waits for it
        os.write(exit_fd, str(code).encode())
    os.close(exit_fd)


def _run(request: dict[str, Any], stdin: int, stdout: int, stderr: int, exit_fd: int) -> None:
    code = 1
    try:
        os.close(exit_fd)
        for number, descriptor in enumerate((stdin, stdout, stderr)):
            os.dup2(descriptor, number)
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["limits"]))
        os.chdir(request["cwd"])
        sys.path[0] = request["cwd"]
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = request["args"]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()  # the pages of imported modules stay shared
    _serve(socket.socket(fileno=int(sys.argv[1])))
