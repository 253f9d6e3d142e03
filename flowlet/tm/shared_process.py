"""The parts of a TaskManager's process that users' functions share, and their repair when a function has spoilt one.

Modules, standard streams, their descriptors and the limit of descriptors belong to the whole process.  A function that
spoils them would harm the tasks beside it and every later job, which could not tell why.

Side:       loop.  For ``python -m flowlet.tm`` only: a user's own process must not be changed.
Invariants: log lines and ``print`` go to duplicates of descriptors 1 and 2, so that they never go into a socket that
            got such a number after a function had closed it.  A descriptor that belongs to something else by now is not
            touched.
Rules:      modules and descriptors are mended before a deployment and when a task has ended, because a task may use
            them as it likes until then.  The limit of descriptors is mended at heartbeats, too: a task whose results
            wait for a connection, which the limit forbids, would never end.
Absent:     changes that may be on purpose: of ``sys.path``, ``os.environ``, the working folder; replaced streams.
"""

import errno
import faulthandler
import fcntl
import math
import os
import resource
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from io import TextIOWrapper
from types import ModuleType
from typing import Final, Self, TextIO

from netstack.log_lines import LogLines

_log = LogLines(__name__)

_ENGINE: Final = ("flowlet", "netstack")
_STANDARD: Final = (0, 1, 2)
_STREAMS: Final = {"stdout": 1, "stderr": 2}
_MAX_NAMES_TOLD: Final = 5
_SPOILT: Final = "what all tasks of this process share was spoilt"


class KeptModules:
    """The modules that were loaded before the first task, and the engine's own that were loaded since.

    Args:
        modules: the interpreter's table.
        is_users: whether a job has brought the module of that name, which may come and go.
    """

    def __init__(self, modules: dict[str, ModuleType], is_users: Callable[[str], bool]) -> None:
        self._modules = modules
        self._is_users = is_users
        self._kept = modules.copy()

    def __repr__(self) -> str:
        return f"<KeptModules {len(self._kept)}>"

    def mend(self) -> list[str]:
        """Put back modules that were removed or replaced, and report them; keep modules that the engine has loaded
        since.
        """
        now = self._modules.copy()  # other threads import meanwhile
        lost = {
            name: module
            for name, module in self._kept.items()
            if now.get(name) is not module and not self._is_users(name)
        }
        for name, module in lost.items():
            self._put_back(name, module, now.get(name))
        for name, module in now.items():
            if name.partition(".")[0] in _ENGINE:
                # Loaded late by a task: from now on it belongs to all of them.
                self._kept.setdefault(name, module)
        return [f"put back {len(lost)} modules that were removed or replaced: {_some_of(sorted(lost))}"] if lost else []

    def _put_back(self, name: str, module: ModuleType, other: ModuleType | None) -> None:
        self._modules[name] = module
        package, _, last = name.rpartition(".")
        parent = self._kept.get(package)
        # An import of the replacement has also made it an attribute of its package.
        if other is not None and isinstance(parent, ModuleType) and vars(parent).get(last) is other:
            setattr(parent, last, module)


class StandardDescriptors:
    """Duplicates of the descriptors 0 to 2, from which closed ones are opened again.  Life cycle: ``close`` it.

    Args:
        descriptors: their numbers; those that are closed now are left so.
    """

    def __init__(self, descriptors: Sequence[int] = _STANDARD) -> None:
        self._duplicates = {each: duplicate for each in descriptors if (duplicate := _duplicate(each)) is not None}
        self._foreign: set[int] = set()  # descriptors that belong to something else, and were reported

    def duplicate_of(self, descriptor: int) -> int | None:
        """Return the number of the duplicate, which executed programs do not inherit; None: the descriptor was closed
        from the beginning.
        """
        return self._duplicates.get(descriptor)

    def mend(self) -> list[str]:
        """Open closed descriptors again, and report them; report once the descriptors that belong to something else."""
        return [told for each in self._duplicates if (told := self._mend_one(each)) is not None]

    def _mend_one(self, descriptor: int) -> str | None:
        found, kept = _identity(descriptor), _identity(self._duplicates[descriptor])
        if found is None and kept is not None:
            # The lowest free number from this one on; dup2() could close what another thread opens just now.
            fresh = fcntl.fcntl(self._duplicates[descriptor], fcntl.F_DUPFD, descriptor)
            if fresh == descriptor:
                self._foreign.discard(descriptor)
                return f"opened standard descriptor {descriptor} again, which was closed"
            os.close(fresh)
        elif found == kept:
            self._foreign.discard(descriptor)
            return None
        # Told once: each task's end looks here.
        if descriptor in self._foreign:
            return None
        self._foreign.add(descriptor)
        return f"standard descriptor {descriptor} belongs to something else now; it stays so"

    def close(self) -> None:
        """Close the duplicates."""
        for each in self._duplicates.values():
            os.close(each)
        self._duplicates = {}


class DescriptorLimit:
    """The limit of file descriptors of the process."""

    def __init__(self) -> None:
        self._soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def mend(self) -> list[str]:
        """Raise a lowered limit as far as the hard limit allows, and report it."""
        # Asked each time: a function may have lowered either of them.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _lesser(self._soft, hard)
        if _lesser(soft, wanted) == wanted:
            return []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            return [f"could not raise the limit of file descriptors from {soft} to {wanted}: {error}"]
        short = "" if wanted == self._soft else f", not to {self._soft} as before: the hard limit was lowered, too"
        return [f"raised the limit of file descriptors from {soft} to {wanted}{short}"]


class FreeDescriptors:
    """Tells once when no file descriptor is left: then libuv accepts and closes connections, or leaves them waiting,
    without a word.
    """

    def __init__(self, duplicate: Callable[[], int] = lambda: os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)) -> None:
        self._duplicate = duplicate
        self._is_short = False

    def __repr__(self) -> str:
        return f"<FreeDescriptors {'none' if self._is_short else 'some'}>"

    def look(self) -> list[str]:
        """Look whether a descriptor is left; return what is wrong, unless it was told already."""
        was_short = self._is_short
        self._is_short = False
        try:
            # By a try: the limit counts descriptors of libraries, too, which no table of ours has.
            os.close(self._duplicate())
        except OSError as error:
            self._is_short = error.errno in (errno.EMFILE, errno.ENFILE)
        is_news = self._is_short and not was_short
        return ["no file descriptors are left: connections to this TaskManager fail"] if is_news else []


class SharedProcess(ExitStack):
    """Mends the parts of the process that tasks have spoilt.

    Threading: one thread, the loop's.  Life cycle: a context manager.

    Args:
        is_users_module: whether a job has brought the module of that name.
    """

    def __init__(self, is_users_module: Callable[[str], bool]) -> None:
        super().__init__()
        self._is_users_module = is_users_module
        self._table = sys.modules
        self._modules: KeptModules | None = None  # until the first task is deployed
        self._opened_as: dict[str, tuple[int, str, str]] = {}  # by the name of the stream
        self._limit = DescriptorLimit()
        self._free = FreeDescriptors()
        self._descriptors = StandardDescriptors()
        self.callback(self._descriptors.close)

    def __enter__(self) -> Self:
        for name, descriptor in _STREAMS.items():
            if (stream := self._opened(name, descriptor)) is not None:
                self.callback(self._restore, name, getattr(sys, name))
                setattr(sys, name, stream)
        return self

    def before_deployment(self, job: str, task: str) -> None:
        """Mend the process before a task is deployed."""
        # Only now: what the process itself imports late must be among the modules that are kept.
        if self._modules is None:
            self._modules = KeptModules(sys.modules, self._is_users_module)
        self._mend("before the deployment of this task", job=job, task=task)

    def after_task(self, job: str, task: str) -> None:
        """Mend the process after a task, whose end was not reported yet."""
        self._mend("at the end of this task", job=job, task=task)

    def at_heartbeat(self, jobs: Collection[str]) -> None:
        """Mend the process when a heartbeat is sent; tasks of ``jobs`` run."""
        mended = self._limit.mend() + self._free.look()
        if mended:
            _log.warning(f"{_SPOILT} while tasks ran", jobs=sorted(jobs), mended="; ".join(mended))

    def _mend(self, moment: str, **task: str) -> None:
        mended = []
        # First: the modules below are mended in the table that imports use.
        if sys.modules is not self._table:
            sys.modules = self._table
            mended.append("put back sys.modules, which was replaced")
        if self._modules is not None:
            mended += self._modules.mend()
        mended += self._limit.mend()
        try:
            mended += self._descriptors.mend() + self._mend_streams()
        except OSError as error:  # the report of a task waits behind this
            mended.append(f"could not open the standard descriptors again: {error}")
        if mended:
            _log.warning(f"{_SPOILT}, as seen {moment}", **task, mended="; ".join(mended))

    def _opened(self, name: str, descriptor: int) -> TextIO | None:
        """Make a stream that writes to the duplicate of its descriptor; None: ``sys`` has another one than the
        interpreter's own.
        """
        before, duplicate = getattr(sys, name), self._descriptors.duplicate_of(descriptor)
        if not isinstance(before, TextIOWrapper) or before is not getattr(sys, f"__{name}__") or duplicate is None:
            return None
        before.flush()
        self._opened_as[name] = duplicate, before.encoding, before.errors or "strict"
        return _StandardStream(*self._opened_as[name])

    def _restore(self, name: str, before: TextIO) -> None:
        # The reader is gone, or a function has closed or replaced it.
        with suppress(OSError, ValueError, AttributeError):
            getattr(sys, name).flush()
        setattr(sys, name, before)
        if name == "stderr" and faulthandler.is_enabled():
            faulthandler.enable()  # not on a descriptor that is closed now

    def _mend_streams(self) -> list[str]:
        """Open ``sys.stdout`` and ``sys.stderr`` again where they were closed; a stream that a function has put in
        their place stays.
        """
        closed = [name for name in self._opened_as if getattr(getattr(sys, name, None), "closed", True)]
        for name in closed:
            setattr(sys, name, _StandardStream(*self._opened_as[name]))
        return [f"opened sys.{name} again, which was closed" for name in closed]


class _StandardStream(TextIOWrapper):
    """``sys.stdout`` or ``sys.stderr``, written line by line; closing it only writes the waiting text."""

    def __init__(self, descriptor: int, encoding: str, errors: str) -> None:
        # line_buffering: a user's print() shall appear when it happens, also through a pipe.
        super().__init__(open(descriptor, "wb", closefd=False), encoding, errors, line_buffering=True)  # noqa: SIM115 - see close()

    def close(self) -> None:
        """Write the waiting text, and stay open for the other tasks."""
        # A user's ``sys.stdout.close()`` would take the stream from all tasks of this process.
        self.flush()


def _duplicate(descriptor: int) -> int | None:
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(_STANDARD) + 1)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return None


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Return the numbers that tell the descriptor's file from others; None: the descriptor is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _lesser(one: int, other: int) -> int:
    """Return the smaller of two limits; either may be infinite, which is -1."""
    return min(one, other, key=lambda each: math.inf if each == resource.RLIM_INFINITY else each)


def _some_of(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMES_TOLD]) + (", ..." if len(names) > _MAX_NAMES_TOLD else "")
