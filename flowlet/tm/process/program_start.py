"""A TaskManager that a program has started begins: it imports what the program can import, logs what the program logs,
and ends with it.

The program writes a ``ProgramStart`` into a file; the child reads it before it imports anything else of ours.

Side:       shared.  The child's main thread, before it has others.
Invariants: modules of ours, of Python and of installed packages are imported before a folder of the program's joins the
            import path, because a module beside the program may have the name of one that only a TaskManager imports.
            A function gets the program's module of that name, as in the program itself.  The kernel ends the child and
            its own children when the program is gone: a thread of ours would need the interpreter's lock, which a
            function may hold for minutes.
Rules:      imports at the top only what every interpreter has loaded at its start, or the client imports, too.
"""

import fcntl
import gc
import json
import os
import signal
import socket
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

SERVER_BOOT: Final = (
    "import sys; sys.path[:0] = filter(None, sys.argv[1:2]); from flowlet.tm.process.program_start import "
    "begin_fork_server; control = begin_fork_server(); from flowlet.tm.taskmanager_process import serve; serve(control)"
)
"""The text of ``python -c`` for a process from which TaskManagers are forked (``flowlet.tm.taskmanager_process``).

Its arguments are the folder of our packages, the file of the ``ProgramStart``, and the descriptor of its socket to the
program.
"""

_ENGINE: Final = ("flowlet", "netstack")
_NOT_FILES: Final = (None, "built-in", "frozen")


class ProgramStart(NamedTuple):
    """The parts of the program's state that a child takes over.

    Args:
        import_path: of the program; without the interpreter's own entries if the child has another interpreter.
        arguments: ``sys.argv`` of the program.
        libraries: the entries of ``import_path`` that hold installed packages, or Python's own modules.
        is_whole: whether the path takes the place of the child's own one, or comes before it.
        loaded: the names without dots of the modules that the program has loaded.
        own: the names of modules that it has loaded from an entry that is none of ``libraries``.
        loggers: by name: level, the least level that its handlers take (None: it has none), whether it hands lines on.
        disabled: the level up to which ``logging.disable`` forbids lines.
        has_output: whether the program was started with a standard output; without one its functions have none, too.
    """

    import_path: list[str]
    libraries: list[str]
    is_whole: bool
    arguments: list[str]
    loaded: list[str]
    own: list[str]
    loggers: dict[str, tuple[int, int | None, bool]]
    disabled: int
    has_output: bool

    def to_json(self) -> str:
        """Write the content of the file."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> "ProgramStart":
        """Read the content of the file."""
        return cls(**json.loads(text))

    def first_path(self, initial: list[str]) -> list[str]:
        """Return the import path on which our modules are looked up; ``initial`` is the interpreter's own one."""
        rest = [each for each in self.import_path if each not in self.libraries]
        return [*self._interpreters(initial), *self.libraries, *rest]

    def last_path(self, initial: list[str]) -> list[str]:
        """Return the import path of the program's functions."""
        return [*self.import_path, *self._interpreters(initial)]

    def _interpreters(self, initial: list[str]) -> list[str]:
        return [] if self.is_whole else [each for each in initial if each not in self.import_path]

    def shadowed(self, modules: dict[str, ModuleType], path: list[str]) -> list[str]:
        """List the names of modules that are loaded, but that the program's functions find elsewhere on ``path``."""
        loaded, own = set(self.loaded), set(self.own)
        tops = {name.partition(".")[0] for name in list(modules)} - {"__main__", *_ENGINE}
        candidates = {name for name in tops if name in modules and (name not in loaded or name in own)}
        found = {name for name in candidates if _comes_from_elsewhere(name, modules[name], path)}
        return [name for name in list(modules) if name.partition(".")[0] in found]


def _comes_from_elsewhere(name: str, module: ModuleType, path: list[str]) -> bool:
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    found = None if origin in _NOT_FILES else PathFinder.find_spec(name, path)
    return found is not None and found.origin is not None and found.origin != origin


_started: ProgramStart | None = None
_initial_path: list[str] = []
_program_end: socket.socket | None = None
_status_fd: int | None = None


def begin_fork_server() -> socket.socket:
    """Prepare the imports of the process that forks a program's TaskManagers; returns its socket to the program."""
    root, file, control_fd = sys.argv[1:4]
    del sys.argv[1:4]
    if root:
        del sys.path[0]
    control = socket.socket(fileno=int(control_fd))
    control.set_inheritable(False)
    with open(file, encoding="ascii") as text:
        start = ProgramStart.from_json(text.read())
    _initial_path[:] = sys.path
    sys.path[:] = start.first_path(_initial_path)
    if root:
        _load_package("netstack", root)
    gc.disable()  # until everything is imported: nothing of that is garbage
    return control


def forked_from(file: Path, status_fd: int, program_end: socket.socket) -> None:
    """Begin in a forked process: its program has written ``file``, and has the other ends of the pipe and of the pair
    of sockets.
    """
    global _started, _status_fd, _program_end
    _started = ProgramStart.from_json(file.read_text(encoding="ascii"))
    _status_fd, _program_end = status_fd, program_end


def program_end() -> socket.socket | None:
    """Return the end of a pair of sockets whose other end the JobManager in the program has; None: this process was not
    forked.
    """
    return _program_end


def _load_package(name: str, root: str) -> None:
    """Import a package from ``root``, which stays off the import path: it may be the program's folder."""
    spec = PathFinder.find_spec(name, [root])
    if spec is None or spec.loader is None:
        return  # it is installed
    # Before it is executed, as the import system does: its modules import each other.
    sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def started_by() -> ProgramStart | None:
    """Return the state that this process took over from the program that started it; None: it is no
    child of a program.
    """
    return _started


def enter_program() -> None:
    """Give import path, arguments and output of the program to its functions; once everything of ours is imported."""
    if _started is None:
        return
    if not _started.has_output:
        sys.stdout = None  # as Python has it, whose print() then does nothing
    sys.argv[:] = _started.arguments
    sys.path[:] = _started.last_path(_initial_path)
    for name in _started.shadowed(sys.modules, sys.path):
        sys.modules.pop(name, None)  # our modules keep theirs


def tell_program(line: str) -> bool:
    """Write a line for the program that started this process, and for no person; False: there is no such program."""
    if _status_fd is None:
        return False
    try:
        # In one call: a line is whole, or not there.
        os.write(_status_fd, f"{line}\n".encode())
    except OSError:  # it does not listen any more, or a function has closed the descriptor
        return False
    return True


def end_with(life_fd: int) -> None:
    """Let the kernel kill this process and its group once no process has the other end of the pipe ``life_fd``."""
    os.set_inheritable(life_fd, False)  # noqa: FBT003 - Python's own signature
    leads_group = os.getpgrp() == os.getpid()
    fcntl.fcntl(life_fd, fcntl.F_SETOWN, -os.getpid() if leads_group else os.getpid())
    fcntl.fcntl(life_fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life_fd, fcntl.F_SETFL, fcntl.fcntl(life_fd, fcntl.F_GETFL) | fcntl.FASYNC | os.O_NONBLOCK)
    try:
        # Behind the request: an end of the program before it sends no signal.
        is_over = not os.read(life_fd, 1)  # the program has ended before the kernel was asked to watch
    except BlockingIOError:
        is_over = False
    if is_over:
        os.kill(os.getpid(), signal.SIGKILL)
