"""Processes that begin with everything imported: the ends of a program cost milliseconds to look at, and a cluster does
not pay a second of imports for each of its processes.

Each is a fork of one child, which has imported the modules that it was told to, and runs ``python -m MODULE``, ``python
-c TEXT`` or ``python FILE`` from there: its own arguments, environment, working directory, standard streams and exit
code, however it ends.  It differs from an executed one in its parent, in its command line, in the modules that are
loaded when it begins and in their filters of warnings, and in that all forks of a server hash texts alike.  One with
``has_server`` has a child and a socket from its start.

The process from which a program forks its TaskManagers may be such a fork, too: that of a forked program was forked
from it before it ran a line, so it is its child and has nothing of it (``has_server``); one for this process is a child
of the server (``forked_servers``).
"""

import gc
import importlib
import io
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
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any, Final, NoReturn, Self

from flowlet.tm.process.program_start import SERVER_BOOT
from tests.waiting import PATIENCE_S

Outcome = tuple[int, str, str]  # exit code, standard output, standard error
_CLUSTER: Final = ("flowlet.jm", "flowlet.tm")
_PYTHON: Final = sys.executable
_MAX_REQUEST_BYTES: Final = 1 << 20
_MAX_DESCRIPTORS: Final = 5  # standard input, output and error, that of the exit code, and the one for the process
# A process is executed if one of these differs from the server's, which has read them, or if its coverage is measured.
_READ_AT_START: Final = (
    "NETSTACK_DEBUG",
    "PYTHONDEVMODE",
    "PYTHONHASHSEED",
    "PYTHONIOENCODING",
    "PYTHONUNBUFFERED",
    "PYTHONWARNINGS",
    "TZ",
)


class ForkedProcess:
    """A process with the part of ``subprocess.Popen`` that tests use.

    Life cycle: ``wait`` or ``poll`` closes it once the process has ended, but for its pipes.
    """

    def __init__(self, args: Sequence[str], pid: int, exit_fd: int, *pipes: IO[Any] | None):
        self.args = args
        self.pid = pid
        self.stdin, self.stdout, self.stderr = pipes
        self.returncode: int | None = None
        self._exit_fd = exit_fd

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.pid} {' '.join(self.args)} {self.returncode}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self.wait()

    def poll(self) -> int | None:
        """The exit code; None: it runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code.  Raises subprocess.TimeoutExpired."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Close its input; the rest of its output and of its errors.  Raises subprocess.TimeoutExpired."""
        if self.stdin is not None:
            with suppress(BrokenPipeError):
                self.stdin.close()
        pool = ThreadPoolExecutor(2)
        outputs = [pool.submit(pipe.read) for pipe in (self.stdout, self.stderr) if pipe is not None]
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            self.wait(timeout)
            # A process that it has left behind may keep them open.
            out, err = (each.result(deadline and max(0.0, deadline - time.monotonic())) for each in outputs)
        except TimeoutError:
            self.kill()
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            pool.shutdown(wait=False)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._exit_fd], [], [], timeout_s)[0]:
            self.returncode = self._code()
            os.close(self._exit_fd)
        return self.returncode

    def _code(self) -> int:
        return int(os.read(self._exit_fd, 64) or b"-9")  # the server is gone, and its children with it


class _OwnChild(ForkedProcess):
    """One that this process has forked; the descriptor is the kernel's, of the process."""

    def _code(self) -> int:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # the program has waited for it
            return 0


class ForkServer:
    """The child from which processes are forked.

    Threading: any thread.
    """

    def __init__(self, popen: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.pid = popen.pid
        self._popen = popen
        self._control = control
        self._ordering = threading.Lock()  # the answers come in turn

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
        text: bool = False,
        has_server: bool = False,
    ) -> ForkedProcess:
        """Start ``python ARGS``, where ARGS are ``-m`` and a module, ``-c`` and a text, or a file; and arguments.

        ``has_server``: the first process from which it forks TaskManagers is forked, too.
        """
        request = {"args": list(args), "cwd": str(cwd or Path.cwd()), "has_server": has_server}
        request["env"] = users_environment() if env is None else dict(env)
        with ExitStack() as theirs, ExitStack() as ours:
            exit_fd, their_exit = os.pipe()
            ours.callback(os.close, exit_fd)
            theirs.callback(os.close, their_exit)
            their_in, our_in = _input(stdin, ours, theirs)
            their_out, our_out = _output(stdout, ours, theirs)
            their_err, our_err = _output(stderr, ours, theirs)
            pid = self._order(request, [their_in, their_out, their_err, their_exit])
            ours.pop_all()
        pipes: list[IO[Any] | None] = [our_in, our_out, our_err]
        if text:
            pipes = [None if pipe is None else io.TextIOWrapper(pipe) for pipe in pipes]
        return ForkedProcess(args, pid, exit_fd, *pipes)

    def start_server(self, args: Sequence[str], stderr: int | None, control_fd: int) -> ForkedProcess:
        """Start the process from which this one forks TaskManagers: ``python ARGS``, in a session of its own."""
        with ExitStack() as theirs:
            exit_fd, their_exit = os.pipe()
            theirs.callback(os.close, their_exit)
            pid, out = _order_server(self._order, args, stderr, control_fd, their_exit)
        return ForkedProcess(args, pid, exit_fd, None, out, None)

    def _order(self, request: dict[str, Any], descriptors: list[int]) -> int:
        request["limits"] = resource.getrlimit(resource.RLIMIT_NOFILE)
        with self._ordering:
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            answer = self._control.recv(64)
        assert answer, "the fork server is gone; its standard error says why"
        return int(answer)


class _Subprocess:
    """The module ``subprocess``, for what starts the process from which TaskManagers are forked: forks that one, as
    long as ``start`` does so; all else is executed.
    """

    def __init__(self, start: Callable[[Sequence[str], int | None, int], ForkedProcess | None]) -> None:
        self._start = start

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(self, args: Sequence[str], **others: Any) -> Any:
        process = None
        # The flags of this process, such as -B with PYTHONDONTWRITEBYTECODE, are those of its forks.
        flags = importlib.import_module("flowlet.client.python_interpreter").interpreter_flags()
        command = [_PYTHON, *flags, "-P"]
        if args[: len(command)] == command and args[len(command) + 1] == SERVER_BOOT:
            process = self._start(args[len(command) :], others["stderr"], *others["pass_fds"])
        return process or subprocess.Popen(args, **others)


@contextmanager
def forked_servers(server: ForkServer) -> Iterator[None]:
    """Meanwhile the processes from which this one forks TaskManagers are forks of ``server``."""
    client = importlib.import_module("flowlet.client.fork_server_client")  # here: it knows when this process exits

    def start(args: Sequence[str], stderr: int | None, control_fd: int) -> ForkedProcess | None:
        return server.start_server(args, stderr, control_fd) if can_fork(os.environ) else None

    client.__dict__["subprocess"] = _Subprocess(start)
    try:
        yield
    finally:
        client.KEPT_SERVER.close()
        client.__dict__["subprocess"] = subprocess


class ClusterStarter:
    """Starts what ``bench.cluster`` starts: JobManagers, TaskManagers and files of programs as forks, all else as
    ``subprocess.Popen`` does.
    """

    def __init__(self, server: ForkServer) -> None:
        self.server = server

    def __call__(
        self, args: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], **others: Any
    ) -> ForkedProcess | subprocess.Popen[bytes]:
        command = list(args[1:])
        is_known = command[0].endswith(".py") or (command[0] == "-m" and command[1] in _CLUSTER)
        if args[0] != sys.executable or not is_known or not can_fork(env):
            return subprocess.Popen(args, stderr=stderr, env=env, **others)
        if "--parent-pid" in command:
            place = command.index("--parent-pid") + 1
            if command[place] == str(os.getpid()):
                command[place] = str(self.server.pid)
        return self.server.start(command, stderr=stderr.fileno(), env=env, has_server=command[0] != "-m", **others)


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
            data, descriptors, _, _ = socket.recv_fds(control, _MAX_REQUEST_BYTES, _MAX_DESCRIPTORS)
            if not data:
                break
            pid = os.fork()
            if pid == 0:
                control.close()
                for each, (_, exit_fd) in children.items():
                    os.close(each)
                    os.close(exit_fd)
                _run(json.loads(data), *descriptors)
            for each in descriptors[:3] + descriptors[4:]:
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


def _run(request: dict[str, Any], stdin: int, stdout: int, stderr: int, exit_fd: int, *passed: int) -> NoReturn:
    """Be the process that was ordered.  ``passed``: the descriptor that the last argument names."""
    os.close(exit_fd)
    for number, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["limits"]))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["args"]
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [str(Path.cwd()), *(each for each in path if each and each not in sys.path)]
    if passed:
        sys.argv[-1] = str(passed[0])
        with suppress(PermissionError):  # it has one
            os.setsid()
    if request.get("has_server"):
        _fork_server_of_program()
    if sys.argv[0] == "-m":
        _run_module()
    _run_main(has_safe_path=bool(passed))


def _fork_server_of_program() -> None:
    """Fork the process from which this program, which has not begun yet, will fork TaskManagers."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        os.setsid()
        data, descriptors, _, _ = socket.recv_fds(theirs, _MAX_REQUEST_BYTES, _MAX_DESCRIPTORS)
        if not data:
            os._exit(0)  # the program has ended
        theirs.close()
        _run(json.loads(data), *descriptors)
    theirs.close()
    orders = [ours]

    def order(request: dict[str, Any], descriptors: list[int]) -> int:
        with orders.pop() as control:
            request["limits"] = resource.getrlimit(resource.RLIMIT_NOFILE)
            socket.send_fds(control, [json.dumps(request).encode()], descriptors)
        return pid

    def start(args: Sequence[str], stderr: int | None, control_fd: int) -> ForkedProcess | None:
        if not orders:
            return None
        nothing = os.open(os.devnull, os.O_RDONLY)
        _, out = _order_server(order, args, stderr, control_fd, nothing)
        os.close(nothing)
        return _OwnChild(args, pid, os.pidfd_open(pid), None, out, None)

    importlib.import_module("flowlet.client.fork_server_client").__dict__["subprocess"] = _Subprocess(start)


def _order_server(
    order: Callable[[dict[str, Any], list[int]], int],
    args: Sequence[str],
    stderr: int | None,
    control_fd: int,
    exit_fd: int,
) -> tuple[int, IO[bytes]]:
    """Order the process from which this one forks TaskManagers; its id and its output."""
    with ExitStack() as theirs, ExitStack() as ours:
        nothing, _ = _input(subprocess.DEVNULL, ours, theirs)
        their_out, out = _output(subprocess.PIPE, ours, theirs)
        assert out is not None, "PIPE"
        request = {"args": list(args), "cwd": str(Path.cwd()), "env": dict(os.environ)}
        errors = nothing if stderr == subprocess.DEVNULL else 2
        pid = order(request, [nothing, their_out, errors, exit_fd, control_fd])
        ours.pop_all()
    return pid, out


def _run_module() -> NoReturn:
    """Run a module as the interpreter does, which then ends this process as any other."""
    del sys.argv[0]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
        raise SystemExit(1) from None
    raise SystemExit(0)


def _run_main(*, has_safe_path: bool) -> NoReturn:
    """Run a file or a text as the interpreter does, which then ends this process as any other."""
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    if sys.argv[0] == "-c":
        name, text = "<string>", sys.argv.pop(1)
        sys.path[0] = ""
    else:
        name = os.path.abspath(sys.argv[0])
        text = Path(name).read_text(encoding="utf-8")
        sys.path[0] = os.path.dirname(os.path.realpath(name))
        main.__file__ = name
    if has_safe_path:
        del sys.path[0]
    main.__dict__["__builtins__"] = __builtins__
    try:
        exec(compile(text, name, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        assert trace is not None, "it was raised"
        sys.excepthook(type(error), error.with_traceback(trace.tb_next), trace.tb_next)
        if isinstance(error, KeyboardInterrupt):
            sys.excepthook = lambda *_: None  # it was told
            raise
        raise SystemExit(1) from None
    raise SystemExit(0)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()  # the pages of imported modules stay shared
    _serve(socket.socket(fileno=int(sys.argv[1])))
