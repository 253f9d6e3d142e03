"""How long threads waited for the buffers of one pool.

Side:   shared.
Units:  nanoseconds of ``time.perf_counter_ns``.
Source: Flink ``TimerGauge``, as ``hardBackPressuredTimeMsPerSecond`` uses it; here several threads may wait at once.
"""

import threading
import time
from typing import Protocol


class BlockingObserver(Protocol):
    """Wants to know while a thread is parked for want of a buffer.  Called on that thread, outside every lock."""

    def mark_start(self) -> None:
        """It parks."""

    def mark_end(self) -> None:
        """It goes on, with a buffer or with an error."""


class BlockedTime:
    """Adds up the waits of all threads.

    Threading: guarded by the lock of the pool, which the caller holds.
    """

    __slots__ = ("_since_ns", "_total_ns")

    def __init__(self) -> None:
        self._total_ns = 0  # of the waits that are over
        self._since_ns: dict[int, int] = {}  # thread id -> when it parked

    @property
    def num_waiting(self) -> int:
        """How many threads wait now; read bare, one moment stale is fine."""
        return len(self._since_ns)

    def begin_locked(self) -> None:
        """The calling thread waits from now on."""
        self._since_ns[threading.get_ident()] = time.perf_counter_ns()

    def end_locked(self) -> None:
        """The calling thread goes on."""
        self._total_ns += time.perf_counter_ns() - self._since_ns.pop(threading.get_ident())

    def total_ns_locked(self) -> int:
        """The sum so far, the present waits included."""
        now = time.perf_counter_ns()
        return self._total_ns + sum(now - since for since in self._since_ns.values())
