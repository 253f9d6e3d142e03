"""How long a thread of this process waits before it asks for the interpreter, by what its tasks do.

Why:        beside a busy task the loop, and any task that has little to do, get the interpreter after one interval: a short one keeps
            records quick.  But two busy tasks then hand it to and fro for nothing, and on different cores each time with all they have in
            their caches.

Side:       loop.
Invariants: long only while at least two tasks are at work and no other one does anything: then nothing but throughput is at stake.
Units:      milliseconds.
Source:     ``sys.setswitchinterval``; one for all threads.
"""

from collections.abc import Callable
from typing import Final

from flowlet.tm.busy_tasks import TaskLoad
from flowlet.tm.process_model import DEFAULT_SWITCH_INTERVAL_MS, LATENCY_SWITCH_INTERVAL_MS, apply_switch_interval

# The interpreter's own.  Word count with functions that are called, one TaskManager that may use two cores: 0.1 to 1 ms 0.6 to 0.8, 2 ms
# 1.1, 5 ms 0.9 to 1.2 M words/s; on one core 0.1 ms 1.28, 5 ms 1.38.
CROWDED_SWITCH_INTERVAL_MS: Final = 5.0
_MIN_CROWD: Final = 2


def begin_switch_interval(
    asked_for_ms: float | None,
    *,
    is_latency_mode: bool,
    runs_light_tasks: bool,
    set_interval_ms: Callable[[float], None] = apply_switch_interval,
) -> "SwitchInterval | None":
    """Set the interval of this process; gives what changes it from now on, None if nothing does.

    Args:
        asked_for_ms: by the user; then it stays so.
        is_latency_mode: whether nothing else counts.
        runs_light_tasks: whether the loop does: it waits for the interpreter in their place, which their threads do not show.
        set_interval_ms: of this process.

    Raises:
        ConfigError: the interval that was asked for is out of bounds.
    """
    if asked_for_ms is None and not is_latency_mode and not runs_light_tasks:
        return SwitchInterval(set_interval_ms)
    default_ms = LATENCY_SWITCH_INTERVAL_MS if is_latency_mode else DEFAULT_SWITCH_INTERVAL_MS
    set_interval_ms(default_ms if asked_for_ms is None else asked_for_ms)
    return None


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
