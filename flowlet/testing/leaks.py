"""What code under test left behind in this process.

Side:       any.
Absent:     memory; what other threads of the program take and give back meanwhile is not told apart.
"""

import gc
import os
import threading
import time
from dataclasses import dataclass
from typing import Final

_GRACE_S: Final = 1.0  # threads on their way out may take this long; nothing waits when none is left
_PAUSE_S: Final = 0.002
_DESCRIPTORS: Final = "/proc/self/fd"


@dataclass(frozen=True, slots=True)
class ProcessResources:
    """Threads and file descriptors at one moment.

    Example::

        before = ProcessResources.now()
        ...
        assert not before.left_behind()
    """

    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[str, str]]

    @staticmethod
    def now() -> "ProcessResources":
        """Those of this process; descriptors where the system shows them (Linux)."""
        return ProcessResources(frozenset(threading.enumerate()), frozenset(_descriptors()))

    def left_behind(self) -> list[str]:
        """What there is now and was not then, in words; waits a moment for threads that are just going away."""
        if self._more_now():
            gc.collect()
        deadline = time.monotonic() + _GRACE_S
        while frozenset(threading.enumerate()) - self.threads and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        return self._more_now()

    def _more_now(self) -> list[str]:
        now = ProcessResources.now()
        threads = [f"the thread {thread.name!r}" for thread in now.threads - self.threads]
        return sorted(threads) + sorted(f"the descriptor {number} of {target}" for number, target in now.descriptors - self.descriptors)


def _descriptors() -> list[tuple[str, str]]:
    found = []
    try:
        numbers = os.listdir(_DESCRIPTORS)
    except OSError:
        return []
    for number in numbers:
        try:
            found.append((number, os.readlink(f"{_DESCRIPTORS}/{number}")))
        except OSError:  # the descriptor of the listing itself
            continue
    return found
