"""Settings of a TaskManager's own process: garbage collector, core, scheduling of task threads, and the end with its
parent.

Side:       shared.  Called only by the main thread of ``python -m flowlet.tm``, because a user's own process must not
            be changed; task threads call ``apply_task_scheduling``.
Invariants: every setting is process-wide or inherited by later threads, so the core is pinned before any thread starts.
"""

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Final, assert_never

from flowlet.errors import ConfigError

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
    """Refuse what this process has not enough file descriptors for: without them connections fail one by one, and
    nobody could say why.

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
            f"{num_needed} more; "
            f"raise the limit to {num_open + num_needed} at least, as with 'ulimit -n 1024'"
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
    """Set the scheduling of the calling thread and of those that it starts; needs privileges only to undo."""
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
    """Exempts what a deployment built from garbage collection while tasks run.

    Life cycle: ``freeze`` when the first task was deployed, ``thaw`` when the last one has ended, so that garbage does
        not pile up.

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

    def __repr__(self) -> str:
        return f"<GarbageCollectorTuning {'frozen' if self._is_frozen else 'off'}>"

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
        try:
            self._fd = os.pidfd_open(parent_pid)
        except ProcessLookupError:
            loop.call_soon(on_parent_death)
            # The id may have been reused before pidfd_open.  If getppid still names it now, the descriptor is the
            # parent's.
            return
        if os.getppid() != parent_pid:
            self.close()
            loop.call_soon(on_parent_death)
            return
        loop.add_reader(self._fd, self._parent_died)

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
