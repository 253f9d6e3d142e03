"""How tests wait for what another thread, process or connection does.

Side:   any.
Units:  seconds.
Absent: fixed times.  Nobody may assume how long a machine that is busy with something else takes.
"""

import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 100.0  # a right program never uses it up, however slow the machine is; what hangs ends then
LONG_S: Final = 10 * PATIENCE_S  # for periods of the program that must not come to the rescue of a wake-up that was lost


def spin_until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait for a fact that another thread or process makes true; the others may run in between."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} never came true"
        time.sleep(0)


def spin_tightly_until(condition: Callable[[], object]) -> None:
    """As ``spin_until``, for races: the caller goes on within a moment, and gives the interpreter away only when it is taken."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the other thread never got there"
