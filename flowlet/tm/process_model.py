"""What a TaskManager does to its own process: garbage collector, core, task threads, and ending with its parent.

Side:       shared.  Called by the main thread of ``python -m flowlet.tm`` alone: a user's own process is never changed; task threads
            call ``apply_task_scheduling``.
Units:      as the names say.
Invariants: every setting is process-wide or inherited by threads that start later, so the core is pinned before any thread starts.
"""

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Final, assert_never

from flowlet.errors import ConfigError

# Chunks are lists of fresh tuples: with CPython's (700, 10, 10) the collector would run several times per chunk and find nothing.
DEFAULT_GC_THRESHOLD: Final = 50_000
_MAX_GC_THRESHOLD: Final = 2**31 - 1  # a C int
_OLDER_GC_THRESHOLDS: Final = (50, 100)
_TASK_NICENESS: Final = 10  # the kernel then gives the loop the core when it wakes, and the tasks a tenth of it when both want it


class TaskScheduling(StrEnum):
    """How the kernel treats task threads beside the loop's thread, which stays as it is."""

    NORMAL = "normal"
    """As any other thread.  Beside a CPU-bound task the loop waits up to 4 ms for the core."""
    NICE = "nice"
    """At nice +10."""
    IDLE = "idle"
    """SCHED_IDLE: a task runs only when nothing else wants the core.  For a process that owns its core: a task that holds the
    interpreter's lock beside other normal work there would hold up its own loop."""


def pin_to_cpu(cpu: int) -> None:
    """Keep this thread, and all that it starts later, on one core.

    Raises:
        ConfigError: this process may not run on that core.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if cpu not in allowed:
        raise ConfigError(f"--pin-cpu is {cpu}, this process may run on {allowed}")
    os.sched_setaffinity(0, {cpu})


def apply_task_scheduling(scheduling: TaskScheduling) -> None:
    """Set the class of the calling thread, and of the threads that it starts; needs no privileges, and cannot be taken back without."""
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
    """Keeps what a deployment built out of the collector's sight while tasks run.

    Life cycle: ``freeze`` when the first task was deployed, ``thaw`` when the last one ended, so that nothing piles up over many jobs.

    Args:
        threshold: so many more objects were made than freed before the collector runs; 0: it never runs while there are tasks.

    Raises:
        ConfigError: the collector does not take this threshold.
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
        """Collect once, exempt all that is alive from later collections, and collect rarely."""
        if self._is_frozen:
            return
        self._is_frozen = True
        gc.collect()  # garbage that is frozen would never be freed
        gc.freeze()
        gc.set_threshold(*self._thresholds)

    def thaw(self) -> None:
        """Back to how the interpreter started."""
        if not self._is_frozen:
            return
        self._is_frozen = False
        gc.unfreeze()
        gc.set_threshold(*self._default_thresholds)


class ParentWatch:
    """Calls back once when the parent process ends.

    Threading: the loop's thread alone.  Life cycle: ``close`` it; after the callback that does nothing.

    A process id can be used again: the descriptor is opened first and then ``getppid`` must still name the same process, which proves
    that the descriptor is the parent's.
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
