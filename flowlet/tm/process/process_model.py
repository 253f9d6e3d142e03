"""Settings of a TaskManager's own process: garbage collector, core, scheduling of task threads, and the end with its
parent.

The end of a TaskManager's process: what a Python program does at its end, within a time, and nothing that outlives
it.

Side:       shared.  Called only by the main thread of ``python -m flowlet.tm``, because a user's own process must not
            be changed; task threads call ``apply_task_scheduling``.
Invariants: executors that a function has left open finish what was submitted to them, and exit functions run, for
            ``EXIT_WORK_S`` at most, or until the next signal.  Then the children and their children are killed, if they
            have not made a session of their own: a worker of a pool would keep the program's standard output open for
            ever.  Every setting is process-wide or inherited by later threads, so the core is pinned before any thread
            starts.
Rules:      the interpreter is not shut down: that would take long on a busy machine.
"""

import asyncio
import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NoReturn, assert_never

from flowlet.errors import ConfigError
from flowlet.rpc.early_signals import STOP_SIGNALS
from flowlet.tm.process.program_start import tell_program

EXIT_WORK_S: Final = 10.0  # a program would wait for ever; a person who stops a TaskManager will not
ENDING: Final = "ending"
"""The line that tells a program: the tasks have ended, and ``EXIT_WORK_S`` begin."""
_MAX_SWEEPS: Final = 20  # a process may fork while the others are looked up


def leave(code: int) -> NoReturn:
    """Run the exit functions of the program, then end."""
    tell_program(ENDING)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: end_now(code))
    watch = threading.Timer(EXIT_WORK_S, _give_up, (code,))
    watch.daemon = True  # nobody waits for it
    watch.start()
    with contextlib.suppress(SystemExit):  # of an exit function; an interpreter prints other errors of them, too
        _run_exit_functions()
    end_now(code)


def _run_exit_functions() -> None:
    """Do as ``Py_FinalizeEx``: end executors and join threads, then call ``atexit``'s functions, among them that of
    ``multiprocessing``.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # there is no public name; without it an executor drops its work
    except Exception:  # noqa: BLE001 - an executor's; the interpreter prints it, too, and goes on
        sys.excepthook(*sys.exc_info())
    atexit._run_exitfuncs()


def _give_up(code: int) -> None:
    threads = [each.name for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    detail = f"; these threads still run: {', '.join(threads[:5])}" if threads else ""
    text = (
        f"python -m flowlet.tm: what functions left to be done at the exit did not end within {EXIT_WORK_S:g} s, "
        f"and is lost{detail}\n"
    )
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))
    end_now(code)


def end_now(code: int) -> NoReturn:
    """End at once, without exit functions; printed text is written, and no child stays."""
    for stream in (sys.stdout, sys.stderr):
        # The reader is gone, the stream is closed, or there is none.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    try:
        kill_descendants()
    finally:
        os._exit(code)


def kill_descendants() -> None:
    """Kill each process that descends from this one and is of its session; those without a parent, too, if this process
    made the session.
    """
    for _ in range(_MAX_SWEEPS):
        victims = _descendants()
        if not victims:
            return
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _descendants() -> set[int]:
    own, session = os.getpid(), os.getsid(0)
    parents = {pid: parent for pid, parent, its_session in _processes() if its_session == session and pid != own}
    if session == own:
        return set(parents)
    found: set[int] = set()
    while more := {pid for pid, parent in parents.items() if parent == own or parent in found} - found:
        found |= more
    return found


def _processes() -> list[tuple[int, int, int]]:
    """List id, parent and session of each process that runs."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):  # it ended
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent, _group, session = file.read().rpartition(b")")[2].split()[:4]
            if state not in (b"Z", b"X"):
                found.append((int(name), int(parent), int(session)))
    return found


def keep_apart(numbers: Sequence[signal.Signals]) -> None:
    """Give these signals their default effect in every forked child from now on, and let the parent not hear of them.

    Otherwise ``multiprocessing.Process.terminate`` in a function would end the TaskManager instead of the child: the
    child inherits the handlers of the event loop, and the socket through which Python tells the loop the number of a
    signal.
    """
    masks: dict[int, set[signal.Signals | int]] = {}  # by thread that forks: its signal mask before

    def block() -> None:  # one that comes before ``forget`` waits for it
        masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop(threading.get_ident()))

    def forget() -> None:
        signal.set_wakeup_fd(-1)
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=forget)


# A chunk is a list of new tuples: with CPython's (700, 10, 10) the collector would run several times per chunk and find
# nothing.
DEFAULT_GC_THRESHOLD: Final = 50_000
_MAX_GC_THRESHOLD: Final = 2**31 - 1  # a C int
_OLDER_GC_THRESHOLDS: Final = (50, 100)
NUM_DESCRIPTORS: Final = 32  # of a TaskManager with its tasks; a small job has 26 at most, and peers need one each
_TASK_NICENESS: Final = 10  # the loop then gets the core when it wakes; tasks get a tenth of a core that both want


class TaskScheduling(StrEnum):
    """How the kernel schedules task threads; the loop's thread is unchanged."""

    NORMAL = "normal"
    """As any other thread.  Beside a CPU-bound task the loop waits up to 4 ms for the core."""
    NICE = "nice"
    """At nice +10."""
    IDLE = "idle"
    """SCHED_IDLE: a task runs only when nothing else wants the core.  Only for a process that owns its core: beside
    other work a task might not get the core while it holds the interpreter's lock, and would block its own loop."""


def check_free_descriptors(num_needed: int, purpose: str) -> None:
    """Check that this process has enough free file descriptors for ``purpose``: without them connections would fail one
    by one, for no visible reason.

    Raises:
        ConfigError: fewer than ``num_needed`` are free; says how many there are, and how many ``purpose`` needs.
    """
    limit = os.sysconf("SC_OPEN_MAX")  # RLIMIT_NOFILE; -1: there is none.  The module ``resource`` may be the program's
    try:
        num_open = len(os.listdir("/proc/self/fd")) - 1  # one is that of the listing
    except OSError:  # there is none for the listing
        num_open = limit
    if 0 <= limit < num_open + num_needed:
        raise ConfigError(
            f"this process may have {limit} file descriptors (RLIMIT_NOFILE), and {num_open} are open: {purpose} needs "
            f"{num_needed} more; raise the limit to {num_open + num_needed} at least, as with 'ulimit -n 1024'"
        )


def pin_to_cpu(cpu: int) -> None:
    """Pin this thread, and all that it starts later, to one core.

    Raises ConfigError: this process may not run on that core.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if cpu not in allowed:
        raise ConfigError(f"--pin-cpu is {cpu}, this process may run on {allowed}")
    os.sched_setaffinity(0, {cpu})


def apply_task_scheduling(scheduling: TaskScheduling) -> None:
    """Set the scheduling of the calling thread and of threads that it starts; only undoing it needs privileges."""
    match scheduling:
        case TaskScheduling.NORMAL:
            return
        case TaskScheduling.NICE:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _TASK_NICENESS)
        case TaskScheduling.IDLE:
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
        case _:
            assert_never(scheduling)


class GarbageCollectorTuning:
    """Exempts the objects of a deployment from garbage collection while tasks run.

    Life cycle: ``freeze`` or ``freeze_soon`` when the first task was deployed, ``thaw`` when the last one has ended, so
        that garbage does not pile up.

    Args:
        threshold: the collector runs when this many more objects were created than freed; 0: it never runs while there
            are tasks.

    Raises:
        ConfigError: the threshold is out of range.
    """

    def __init__(self, threshold: int = DEFAULT_GC_THRESHOLD) -> None:
        if not 0 <= threshold <= _MAX_GC_THRESHOLD:
            raise ConfigError(f"--gc-threshold is {threshold}, allowed is 0 (never) to {_MAX_GC_THRESHOLD}")
        self._thresholds = (threshold, *_OLDER_GC_THRESHOLDS)
        self._default_thresholds = gc.get_threshold()
        self._is_frozen = False
        self._freezing: asyncio.Handle | None = None  # the last ``freeze_soon``

    def __repr__(self) -> str:
        return f"<GarbageCollectorTuning {'frozen' if self._is_frozen else 'off'}>"

    def freeze_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Freeze after the deployments that the loop's pass takes in, unless ``thaw`` comes first: a task whose thread
        cannot be started ends in that pass.
        """
        self._freezing = loop.call_soon(self.freeze)

    def freeze(self) -> None:
        """Collect once, exempt all live objects from later collections, and set the threshold."""
        if self._is_frozen:
            return
        self._is_frozen = True
        gc.collect()  # before, because frozen garbage would never be freed
        gc.freeze()
        gc.set_threshold(*self._thresholds)

    def thaw(self) -> None:
        """Restore the interpreter's settings."""
        if self._freezing is not None:
            self._freezing.cancel()
            self._freezing = None
        if not self._is_frozen:
            return
        self._is_frozen = False
        gc.unfreeze()
        gc.set_threshold(*self._default_thresholds)


class ParentWatch:
    """Calls back once when the parent process ends.

    Threading: the loop's thread.  Life cycle: ``close`` it; after the callback that does nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, parent_pid: int, on_parent_death: Callable[[], None]) -> None:
        self._loop = loop
        self._parent_pid = parent_pid
        self._on_parent_death = on_parent_death
        self._fd: int | None = None
        with contextlib.suppress(ProcessLookupError):
            self._fd = os.pidfd_open(parent_pid)
            # The id may have been reused before.  If getppid still names it now, the descriptor is the parent's.
            if os.getppid() == parent_pid:
                loop.add_reader(self._fd, self._parent_died)
                return
        loop.call_soon(self._parent_died)

    def __repr__(self) -> str:
        return f"<ParentWatch of {self._parent_pid} {'over' if self._fd is None else 'on'}>"

    def _parent_died(self) -> None:
        self.close()
        self._on_parent_death()

    def close(self) -> None:
        """Stop watching."""
        if self._fd is None:
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = None
