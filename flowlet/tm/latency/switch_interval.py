"""How long a thread of this process waits before it asks for the interpreter, by what its tasks do.

Why:        beside a busy task the loop, and any task that has little to do, get the interpreter after one interval: a short one keeps
            records quick.  But two busy tasks then hand it to and fro for nothing, and on different cores each time with all they have in
            their caches.

Side:       loop.
Invariants: long only while at least two tasks are at work and no other one does anything: then nothing but throughput is at stake.
Units:      milliseconds.
Source:     ``sys.setswitchinterval``; one for all threads.
"""

import sys
from collections.abc import Callable
from typing import Final

from flowlet.errors import ConfigError
from flowlet.tm.latency.busy_tasks import TaskLoad

# Beside a CPU-bound task thread the loop wakes 3-13 ms late at the interpreter's own 5 ms, within 0.5 ms at 0.1 ms; less gains nothing.
DEFAULT_SWITCH_INTERVAL_MS: Final = 0.1
LATENCY_SWITCH_INTERVAL_MS: Final = 0.05  # bench latency, beside busy tasks: p50 340 -> 290 us; costs them some throughput
# The interpreter's own.  Word count with functions that are called, one TaskManager that may use two cores: 0.1 to 1 ms 0.6 to 0.8, 2 ms
# 1.1, 5 ms 0.9 to 1.2 M words/s; on one core 0.1 ms 1.28, 5 ms 1.38.
CROWDED_SWITCH_INTERVAL_MS: Final = 5.0
_MIN_CROWD: Final = 2
_MIN_SWITCH_INTERVAL_MS: Final = 0.001
_MAX_SWITCH_INTERVAL_MS: Final = 1000.0


def apply_switch_interval(interval_ms: float) -> None:
    """Let waiting threads ask for the interpreter after ``interval_ms``.

    Raises:
        ConfigError: the interval is out of range.
    """
    if not _MIN_SWITCH_INTERVAL_MS <= interval_ms <= _MAX_SWITCH_INTERVAL_MS:
        allowed = f"{_MIN_SWITCH_INTERVAL_MS} to {_MAX_SWITCH_INTERVAL_MS:.0f}"
        raise ConfigError(f"--switch-interval-ms is {interval_ms}, allowed is {allowed}")
    sys.setswitchinterval(interval_ms / 1000)


class SwitchInterval:
    """Follows the load of a process whose interval nobody has set.

    Args:
        set_interval_ms: of this process.
    """

    def __init__(self, set_interval_ms: Callable[[float], None] = apply_switch_interval) -> None:
        self._set_interval_ms = set_interval_ms
        self._is_long = False
        set_interval_ms(DEFAULT_SWITCH_INTERVAL_MS)

    def __repr__(self) -> str:
        return f"<SwitchInterval {'long' if self._is_long else 'short'}>"

    def follow(self, load: TaskLoad) -> None:
        """Change the interval if it should be another one now."""
        is_long = load.num_working >= _MIN_CROWD and not load.num_light
        if is_long is not self._is_long:
            self._is_long = is_long
            self._set_interval_ms(CROWDED_SWITCH_INTERVAL_MS if is_long else DEFAULT_SWITCH_INTERVAL_MS)
