"""Sets the interpreter's switch interval by the load of the tasks.

Why:        beside a busy task the loop, and any task with little work, get the interpreter after one interval, so a short one keeps records
            fast.  But two busy tasks would then pass it to and fro for nothing, each time to another core with a cold cache.
Side:       loop.
Invariants: the interval is long only while at least two tasks are working and no other does anything: then only throughput counts.
Source:     ``sys.setswitchinterval``; one for all threads.
"""

import sys
from collections.abc import Callable
from typing import Final

from flowlet.errors import ConfigError
from flowlet.tm.latency.busy_tasks import TaskLoad

# Beside a CPU-bound task thread the loop wakes 3-13 ms late with the interpreter's default, 5 ms, within 0.5 ms with 0.1 ms; less gains
# nothing.
DEFAULT_SWITCH_INTERVAL_MS: Final = 0.1
LATENCY_SWITCH_INTERVAL_MS: Final = 0.05  # bench latency, beside busy tasks: p50 340 -> 290 us; costs them some throughput
# The interpreter's default.  Word count with functions that are called, one TaskManager on two cores: 0.6 to 0.8 M words/s with 0.1 to 1
# ms, 1.1 with 2 ms, 0.9 to 1.2 with 5 ms; on one core 1.28 with 0.1 ms, 1.38 with 5 ms.
CROWDED_SWITCH_INTERVAL_MS: Final = 5.0
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
    """Adapts the switch interval of a process to its load; used unless the user has set one."""

    def __init__(self, set_interval_ms: Callable[[float], None] = apply_switch_interval) -> None:
        self._set_interval_ms = set_interval_ms
        self._is_long = False
        set_interval_ms(DEFAULT_SWITCH_INTERVAL_MS)

    def __repr__(self) -> str:
        return f"<SwitchInterval {'long' if self._is_long else 'short'}>"

    def follow(self, load: TaskLoad) -> None:
        """Change the interval if the load asks for it."""
        is_long = load.num_working >= _MIN_CROWD and not load.num_light
        if is_long is not self._is_long:
            self._is_long = is_long
            self._set_interval_ms(CROWDED_SWITCH_INTERVAL_MS if is_long else DEFAULT_SWITCH_INTERVAL_MS)
