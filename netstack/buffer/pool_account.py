"""Where a local pool stands with the network pool, and who waits for its buffers.

Side:   shared.  ``ParkedThreads`` is guarded by the lock of the local pool.
Units:  segments; times in nanoseconds of ``time.perf_counter_ns``.
Source: Flink ``BufferListener``.  Its ``LocalBufferPool.requestMemorySegmentBlocking`` waits for a future; the time is
        that of its ``TimerGauge`` for ``hardBackPressuredTimeMsPerSecond``.  Here several threads may wait at once.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum, unique
from typing import Final, Protocol

from netstack.buffer.network_buffer import NetworkBuffer


@unique
class AccountState(Enum):
    """Where a local pool stands with the network pool.

    ``WAITING``: it found no segment although it is below its size, so it stands in line for the next one::

        OPEN <-- it found nothing, it got one --> WAITING
          `------ the pool is destroyed ------> CLOSED <-----'
    """

    OPEN = "open"
    WAITING = "waiting"
    CLOSED = "closed"


class BufferListener(Protocol):
    """Waits for a buffer of a pool that has none.

    Called on the thread that recycles or destroys, outside every lock.

    One implementer: ``BufferManager`` imports this module, which therefore cannot import it.
    """

    def notify_buffer_available(self, buffer: NetworkBuffer) -> bool:
        """One buffer is free: True takes it over, False leaves it to the next listener.

        The listener is out of the line either way.
        """

    def notify_buffer_destroyed(self) -> None:
        """The pool was destroyed; no buffer will come."""


PARK_SLICE_S: Final = 1.0  # a parked thread looks around this often, even if a wake-up were lost


class BlockingObserver(Protocol):
    """Wants to know while a thread is parked for want of a buffer.  Called on that thread, outside every lock."""

    def mark_start(self) -> None:
        """It parks."""

    def mark_end(self) -> None:
        """It goes on, with a buffer or with an error."""


class ParkedThreads:
    """Who is parked, in the order of arrival, and for how long.

    Threading: guarded by the lock of the pool: ``*_locked`` and ``line`` need it, ``begin``, ``wait`` and ``end`` take
        it and are the waiting thread's.
    """

    __slots__ = ("_lock", "_since_ns", "_total_ns", "line", "observer")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        # A thread waits for its own lock; whoever takes it out of the line releases it.
        self.line: deque[threading.Lock] = deque()
        self.observer: BlockingObserver | None = None  # Written by the owner of the pool before its first request.
        self._total_ns = 0  # of the waits that are over
        self._since_ns: dict[int, int] = {}  # thread id -> when it parked

    def begin(self) -> threading.Lock:
        """The calling thread has to wait; returns what it stands in the line with."""
        gate = threading.Lock()
        gate.acquire()  # no wait: the lock is new
        if self.observer is not None:
            self.observer.mark_start()
        with self._lock:
            self._since_ns[threading.get_ident()] = time.perf_counter_ns()
        return gate

    def wait(self, gate: threading.Lock) -> None:
        """Park until the thread is taken out of the line, or for a slice."""
        # waits for a free buffer of the task's pool; ended by a consumer that reads, or by cancel
        if gate.acquire(timeout=PARK_SLICE_S):
            return
        with self._lock:
            if gate in self.line:
                self.line.remove(gate)
                return
        gate.acquire()  # waits for the thread that took this one out of the line; ended by its next statement

    def end(self) -> None:
        """The calling thread goes on."""
        with self._lock:
            self._total_ns += time.perf_counter_ns() - self._since_ns.pop(threading.get_ident())
        if self.observer is not None:
            self.observer.mark_end()

    def wake_more_locked(self, num_before: int, num_free: int, wakeups: list[Callable[[], object]]) -> None:
        """Let as many of the ``num_before`` threads go on as there are free segments."""
        while self.line and num_before - len(self.line) < num_free:
            wakeups.append(self.line.popleft().release)

    def wake_all_locked(self) -> list[Callable[[], object]]:
        """Let everybody go on."""
        wakeups: list[Callable[[], object]] = [gate.release for gate in self.line]
        self.line.clear()
        return wakeups

    def total_ns_locked(self) -> int:
        """How long threads waited so far, the present waits included."""
        now = time.perf_counter_ns()
        return self._total_ns + sum(now - since for since in self._since_ns.values())
