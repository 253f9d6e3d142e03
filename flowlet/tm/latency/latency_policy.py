"""``LatencyPolicy``: what a TaskManager does to make records fast, decided once from its goal and options.

Asks the kernel to run this process's threads soon after they wake up.

Side:   shared.  On the main thread of ``python -m flowlet.tm``, before any other thread starts: threads inherit it.
Source: ``sched_setattr(2)``: since Linux 6.12 an ordinary thread may set the length of its time slices; when it wakes,
        it takes the core from a thread with longer ones.  ``timerslack_ns`` in ``proc(5)``: by how much a wait may be
        prolonged (50 us by default), also the wait for the interpreter's lock.  Both need no privileges; an older
        kernel ignores them.  ours; the figures of each part are in docs/process-model.md.
"""

import ctypes
import os
import platform
import struct
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from flowlet.tm.latency.busy_tasks import BusyTasks
from flowlet.tm.latency.keep_awake import KeepAwake
from flowlet.tm.latency.switch_interval import (
    DEFAULT_SWITCH_INTERVAL_MS,
    LATENCY_SWITCH_INTERVAL_MS,
    SwitchInterval,
    apply_switch_interval,
)
from netstack.late import dataclass
from netstack.log_lines import LogLines

_log = LogLines(__name__)

SLICE_NS: Final = 100_000  # the kernel's minimum
_SLACK_NS: Final = 1  # the minimum: 0 would mean the default
_SLACK_FILE: Final = Path("/proc/self/timerslack_ns")  # of the main thread
_SYSCALLS: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}  # sched_setattr
# size, policy, flags, nice, priority, runtime, deadline, period (``struct sched_attr``, its first version).
_SCHED_ATTR: Final = struct.Struct("IIQiIQQQ")


def ask_for_quick_wakeups() -> list[str]:
    """Set short time slices and exact timers for this thread and those that it starts; return what
    the kernel refused.
    """
    missing = []
    for name, ask in (("short time slices", _shorten_slices), ("exact timers", _sharpen_timers)):
        try:
            ask()
        except OSError as error:
            missing.append(f"{name}: {error}")
    if missing:
        _log.info("the kernel does not offer everything that keeps latencies low", missing=missing)
    return missing


def _sharpen_timers() -> None:
    _SLACK_FILE.write_text(f"{_SLACK_NS}", encoding="ascii")


def _shorten_slices() -> None:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(f"sched_setattr has no known number on {platform.machine()}")
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, niceness, 0, SLICE_NS, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), 0, attributes, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


LATENCY_BUSY_POLL_US: Final = 2000  # so that a stream of 1,000 records per second finds the loop awake


class Goal(StrEnum):
    """What a TaskManager is optimized for."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    """Single records, alone and beside busy tasks; costs throughput, and a core that is always busy."""


class TaskDriver(StrEnum):
    """Which thread runs a task when data arrives; all else runs on the task's own thread."""

    THREAD = "thread"
    """The task's own thread."""
    LOOP = "loop"
    """The loop thread, if the task is light (``flowlet.task.light_task``)."""


@dataclass(frozen=True, slots=True)
class LatencyPolicy:
    """The measures taken; by default none, as in a user's own process.

    ``keeps_awake``: the core never halts.  ``runs_light_tasks``: on the loop thread.  ``busy_poll_us``: how long the
        loop polls for more
    data before it sleeps; 0: not at all.  ``switch_interval_ms``: of the interpreter, unless a function keeps its lock;
    None: unchanged.
    ``follows_load``: the switch interval grows while several tasks are working.  ``has_quick_wakeups``: short time
        slices and exact timers.
    ``lowers_busy_tasks``: their threads get the lowest priority.
    """

    keeps_awake: bool = False
    runs_light_tasks: bool = False
    busy_poll_us: int = 0
    switch_interval_ms: float | None = None
    follows_load: bool = False
    has_quick_wakeups: bool = False
    lowers_busy_tasks: bool = False

    @classmethod
    def of(
        cls,
        goal: Goal,
        *,
        keeps_awake: bool = False,
        task_driver: TaskDriver = TaskDriver.THREAD,
        busy_poll_us: int | None = None,
        switch_interval_ms: float | None = None,
    ) -> Self:
        """The policy for a goal and the options that the user set; None: not set."""
        is_latency = goal is Goal.LATENCY
        runs_light_tasks = is_latency or task_driver is TaskDriver.LOOP
        default_interval_ms = LATENCY_SWITCH_INTERVAL_MS if is_latency else DEFAULT_SWITCH_INTERVAL_MS
        if busy_poll_us is None:
            busy_poll_us = LATENCY_BUSY_POLL_US if is_latency else 0
        return cls(
            keeps_awake=keeps_awake or is_latency,
            runs_light_tasks=runs_light_tasks,
            busy_poll_us=busy_poll_us,
            switch_interval_ms=default_interval_ms if switch_interval_ms is None else switch_interval_ms,
            # The loop waits for the interpreter in place of light tasks, so the CPU time of their threads does not show
            # the load.
            follows_load=switch_interval_ms is None and not runs_light_tasks,
            # A polling loop would keep the core from threads that wake up, unless time slices are short.
            has_quick_wakeups=is_latency or busy_poll_us > 0,
            lowers_busy_tasks=is_latency,
        )

    def begin(self) -> SwitchInterval | None:
        """Apply the policy to this process; return what keeps changing the switch interval, or None if it stays as it
        is.

        Raises:
            ConfigError: the switch interval is out of range.
        """
        found = None
        if self.switch_interval_ms is not None:
            found = SwitchInterval(apply_switch_interval, self.switch_interval_ms, follows_crowd=self.follows_load)
        if self.has_quick_wakeups:
            ask_for_quick_wakeups()
        return found

    def keeper(self) -> AbstractContextManager[KeepAwake | None]:
        """A context manager that keeps the core awake; entering it gives None if the policy does not want that."""
        return KeepAwake() if self.keeps_awake else nullcontext()

    def busy_tasks(self) -> BusyTasks | None:
        """The watcher of task threads; None if no measure needs it."""
        if self.lowers_busy_tasks:
            return BusyTasks()
        # The switch interval grows when the loop does not get the interpreter's lock, and a polling loop must stop
        # while tasks are busy.
        if self.follows_load or self.switch_interval_ms is not None or self.busy_poll_us:
            return BusyTasks(set_niceness=lambda _native_id, _niceness: None)
        return None
