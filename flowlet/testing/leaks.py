"""``ProcessResources``: finds threads and file descriptors that code under test left behind.

Side:       any.
Absent:     memory.  Threads and descriptors of other code that runs meanwhile are reported, too.
"""

import gc
import os
import threading
import time
from typing import Final

from netstack.late import dataclass

_GRACE_S: Final = 1.0  # how long threads may take to end; there is no wait if none is left
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
        """The present ones; descriptors only if the system shows them (Linux)."""
        return ProcessResources(frozenset(threading.enumerate()), frozenset(_descriptors()))

    def left_behind(self) -> list[str]:
        """What exists now and did not then, in words; waits a moment for threads that are ending."""
        if self._more_now():
            gc.collect()
        deadline = time.monotonic() + _GRACE_S
        while frozenset(threading.enumerate()) - self.threads and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        return self._more_now()

    def _more_now(self) -> list[str]:
        now = ProcessResources.now()
        threads = [f"the thread {thread.name!r}" for thread in now.threads - self.threads]
        return sorted(threads) + sorted(
            f"the descriptor {number} of {target}" for number, target in now.descriptors - self.descriptors
        )


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
