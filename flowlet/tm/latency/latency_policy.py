"""What a TaskManager does so that records are quick, decided once from its options: one goal, and what the user wants otherwise.

Side:   shared.  ``begin`` on the main thread of ``python -m flowlet.tm``, before any other thread starts.
Units:  microseconds, milliseconds, as the names say.
Source: ours; the figures of each part are in docs/process-model.md.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from flowlet.tm.latency.busy_tasks import BusyTasks
from flowlet.tm.latency.keep_awake import KeepAwake
from flowlet.tm.latency.quick_wakeups import ask_for_quick_wakeups
from flowlet.tm.latency.switch_interval import (
    DEFAULT_SWITCH_INTERVAL_MS,
    LATENCY_SWITCH_INTERVAL_MS,
    SwitchInterval,
    apply_switch_interval,
)

LATENCY_BUSY_POLL_US: Final = 2000  # so that a stream of 1,000 records per second finds the loop awake


class Goal(StrEnum):
    """What counts."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    """Single records, alone and beside busy tasks; costs throughput, and a core that is always at work."""


class TaskDriver(StrEnum):
    """What runs a task while data comes in; its own thread does everything else in any case."""

    THREAD = "thread"
    """Its own thread."""
    LOOP = "loop"
    """The loop, where the data arrives, if the task is light (``flowlet.task.light_task``)."""


@dataclass(frozen=True, slots=True)
class LatencyPolicy:
    """The parts.  Without arguments: nothing is done, as in a user's own process.

    ``keeps_awake``: the core never halts.  ``runs_light_tasks``: on the loop.  ``busy_poll_us``: how long the loop looks for more data
    before it sleeps; 0: not at all.  ``switch_interval_ms``: of the interpreter; None: nobody changes it.  ``follows_load``: the switch
    interval changes with what the tasks do.  ``has_quick_wakeups``: short time slices and exact timers.  ``lowers_busy_tasks``: their
    threads stand behind all others.
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
        """The policy for a goal, and for what the user asked for beside it (None: nothing)."""
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
            # A loop that runs light tasks waits for the interpreter in their place, which their threads do not show.
            follows_load=switch_interval_ms is None and not runs_light_tasks,
            # A loop that polls keeps the core from threads that wake up, unless time slices are short.
            has_quick_wakeups=is_latency or busy_poll_us > 0,
            lowers_busy_tasks=is_latency,
        )

    def begin(self) -> SwitchInterval | None:
        """Change this process; gives what changes its switch interval from now on, None if nothing does.

        Raises:
            ConfigError: the switch interval that was asked for is out of bounds.
        """
        found = None
        if self.follows_load:
            found = SwitchInterval()
        elif self.switch_interval_ms is not None:
            apply_switch_interval(self.switch_interval_ms)
        if self.has_quick_wakeups:
            ask_for_quick_wakeups()
        return found

    def keeper(self) -> AbstractContextManager[KeepAwake | None]:
        """What keeps the core awake inside its block."""
        return KeepAwake() if self.keeps_awake else nullcontext()

    def busy_tasks(self) -> BusyTasks | None:
        """What watches task threads; None: nobody wants to know what they do."""
        if self.lowers_busy_tasks:
            return BusyTasks()
        if self.follows_load or self.busy_poll_us:  # a loop that polls would be in their way
            return BusyTasks(set_niceness=lambda _native_id, _niceness: None)
        return None
