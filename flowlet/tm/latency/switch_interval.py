"""Sets the interpreter's switch interval by the load of the tasks.

Why:        beside a busy task the loop, and any task with little work, get the interpreter after one interval, so a
            short one keeps records fast.  But two busy tasks would then pass it to and fro for nothing, each time to
            another core with a cold cache.  And a task whose functions keep the lock for seconds, in C code, gives the
            loop one interval between two calls: too short a one for a heartbeat.
Side:       loop.
Invariants: the interval is long only while at least two tasks are working and no other does anything: then only
            throughput counts; or for a minute after the loop did not get the lock for half a second; or for the first
            two seconds of a task, whose first record may take long while the loop still deploys.  Only the first does
            not hold for latency mode and for a user's choice.
Source:     ``sys.setswitchinterval``; one for all threads.
"""

import sys
from collections.abc import Callable
from typing import Final

from flowlet.errors import ConfigError
from flowlet.tm.latency.busy_tasks import TaskLoad

# Beside a CPU-bound task thread the loop wakes 3-13 ms late with the interpreter's default, 5 ms, within 0.5 ms with
# 0.1 ms; less gains nothing.
DEFAULT_SWITCH_INTERVAL_MS: Final = 0.1
# Bench latency, beside busy tasks: p50 340 -> 290 us; costs them some throughput.
LATENCY_SWITCH_INTERVAL_MS: Final = 0.05
# The interpreter's default.  Word count with functions that are called, one TaskManager on two cores: 0.6 to 0.8 M
# words/s with 0.1 to 1 ms, 1.1 with 2 ms, 0.9 to 1.2 with 5 ms; on one core 1.28 with 0.1 ms, 1.38 with 5 ms.
CROWDED_SWITCH_INTERVAL_MS: Final = 5.0
# In a slice of this length the loop sends a heartbeat and reads what waits, also on a busy machine.  A task that calls
# a C function of 15 s again and again, with 0.1 ms: no heartbeat for 50 s and more.
STARVED_SWITCH_INTERVAL_MS: Final = 20.0
FIRST_SWITCH_INTERVAL_MS: Final = 1.0
_STARVED_LOOKS: Final = 600  # a minute of looks
_FIRST_LOOKS: Final = 20  # two seconds
_MIN_CROWD: Final = 2
_MIN_SWITCH_INTERVAL_MS: Final = 0.001
_MAX_SWITCH_INTERVAL_MS: Final = 1000.0


def apply_switch_interval(interval_ms: float) -> None:
    """Set the switch interval of this process.  Raises ConfigError: the interval is out of range."""
    if not _MIN_SWITCH_INTERVAL_MS <= interval_ms <= _MAX_SWITCH_INTERVAL_MS:
        allowed = f"{_MIN_SWITCH_INTERVAL_MS} to {_MAX_SWITCH_INTERVAL_MS:.0f}"
        raise ConfigError(f"--switch-interval-ms is {interval_ms}, allowed is {allowed}")
    sys.setswitchinterval(interval_ms / 1000)


class SwitchInterval:
    """Adapts the switch interval of a process to its load.

    Args:
        set_interval_ms: sets it.
        short_ms: the interval of a process that is not crowded.
        follows_crowd: whether it grows while several tasks are working; not if the user has set it.
    """

    def __init__(
        self,
        set_interval_ms: Callable[[float], None] = apply_switch_interval,
        short_ms: float = DEFAULT_SWITCH_INTERVAL_MS,
        *,
        follows_crowd: bool = True,
    ) -> None:
        self._set_interval_ms = set_interval_ms
        self._short_ms = self._interval_ms = short_ms
        self._follows_crowd = follows_crowd
        self._num_first_looks = self._num_starved_looks = 0  # so many looks more the interval is longer
        set_interval_ms(short_ms)

    def __repr__(self) -> str:
        return f"<SwitchInterval of {self._interval_ms:g} ms>"

    def task_deployed(self) -> None:
        """A task is about to start."""
        self._num_first_looks = _FIRST_LOOKS
        self._set(max(self._interval_ms, FIRST_SWITCH_INTERVAL_MS))

    def follow(self, load: TaskLoad) -> None:
        """Change the interval if the load asks for it."""
        self._num_first_looks = max(0, self._num_first_looks - 1)
        self._num_starved_looks = _STARVED_LOOKS if load.is_starved else max(0, self._num_starved_looks - 1)
        interval_ms = self._short_ms
        if self._num_starved_looks:
            interval_ms = max(interval_ms, STARVED_SWITCH_INTERVAL_MS)
        elif self._follows_crowd and load.num_working >= _MIN_CROWD and not load.num_light:
            interval_ms = CROWDED_SWITCH_INTERVAL_MS
        elif self._num_first_looks:
            interval_ms = max(interval_ms, FIRST_SWITCH_INTERVAL_MS)
        self._set(interval_ms)

    def _set(self, interval_ms: float) -> None:
        if interval_ms != self._interval_ms:
            self._interval_ms = interval_ms
            self._set_interval_ms(interval_ms)
