"""Finds task threads that want a core for themselves, and lowers their priority below that of all others.

Why:        the kernel lets a thread that is always busy keep the core for its time slice when another one wakes up, and
            a record then waits for some milliseconds.  Which tasks are busy shows only while they run.  Busy polling,
            ``--keep-awake`` and the switch interval depend on it, too (``TaskLoad``), even if no thread is lowered.  A
            look that comes late shows that a function keeps the interpreter's lock.
Side:       loop, except ``watched``, which is entered on task threads.
Invariants: a thread is lowered when it has used 30 % of a core between two looks, and raised when it has used less than
            25 % in the next second.  A second, because others may keep a busy thread from its core for a while; if it
            were raised, it would disturb them until the next look.  It is raised at all, because a task may be busy
            only at first (it loads modules, it catches up).  Only task threads are changed.  Without the right to raise
            its priority (``RLIMIT_NICE``) a thread stays lowered.
Units:      nanoseconds of CPU time and of a monotonic clock.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Final

from netstack.late import dataclass
from netstack.loop.loop_timers import ScheduleTimer

LOOK_INTERVAL_S: Final = 0.1  # not measured; a task that becomes busy disturbs the others for so long
# At this niceness threads that wake get the core, and the task gets a seventieth of a core that another thread wants,
# too.  Bench latency, beside busy tasks: ten levels below the others give p99 1.8 ms, more than ten 0.4 ms.
LOW_NICENESS: Final = 19
_BUSY_SHARE: Final = 0.3
# bench latency, beside busy tasks: with 10 % a source of 1,000 records/s, once lowered, stayed so in every third run:
# p99 3 to 4 ms.
_CALM_SHARE: Final = 0.25
_WORKING_SHARE: Final = 0.2  # a task that gets 1,000 single records per second uses less; not measured closely
_CALM_LOOKS: Final = 10  # a second
# No switch interval and no collection of garbage keeps the loop from a look for so long; not measured.
_STALL_NS: Final = 500_000_000
_NS_PER_S: Final = 1_000_000_000


@dataclass(slots=True)
class WatchedThread:
    """One task thread."""

    native_id: int
    cpu_clock: int
    used_ns: int  # CPU time at the last look
    niceness: int  # before it was lowered
    is_busy: bool = False
    share: float = 0.0  # of a core, between the last two looks
    # The latest ones since it became busy.
    shares: deque[float] = field(default_factory=lambda: deque(maxlen=_CALM_LOOKS))
    is_low: bool = False  # stays True for a calm thread that may not be raised


@dataclass(frozen=True, slots=True)
class TaskLoad:
    """What the task threads of a process did between two looks.

    Args:
        is_crowded: whether a task is busy.
        num_working: how many used a fifth of a core or more; several tasks that want one core share it.
        num_light: how many others used any CPU time.
        is_starved: the loop got the interpreter's lock late: a function keeps it, in C code.
    """

    is_crowded: bool = False
    num_working: int = 0
    num_light: int = 0
    is_starved: bool = False


class BusyTasks:
    """Watches task threads and changes their niceness.

    Threading: ``look`` on the loop's thread, ``watched`` on the thread to be watched.

    Args:
        set_niceness: of a thread, by its native id; raises OSError if that is not allowed.
        cpu_ns: the CPU time that a thread has used, by the id of its clock.
    """

    def __init__(
        self,
        set_niceness: Callable[[int, int], None] = lambda native_id, niceness: os.setpriority(
            os.PRIO_PROCESS, native_id, niceness
        ),
        clock_ns: Callable[[], int] = time.monotonic_ns,
        cpu_ns: Callable[[int], int] = time.clock_gettime_ns,
    ) -> None:
        self._cpu_ns = cpu_ns
        self._set_niceness = set_niceness
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._threads: dict[int, WatchedThread] = {}  # Guarded by _lock.
        self._looked_ns = clock_ns()  # Guarded by _lock.

    def __repr__(self) -> str:
        with self._lock:
            threads = list(self._threads.values())
        return f"<BusyTasks {sum(thread.is_low for thread in threads)} of {len(threads)} threads are low>"

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the calling thread inside the block."""
        native_id, cpu_clock = threading.get_native_id(), time.pthread_getcpuclockid(threading.get_ident())
        niceness = os.getpriority(os.PRIO_PROCESS, native_id)
        with self._lock:
            if not self._threads:
                self._looked_ns = self._clock_ns()  # nobody looks while there is no task
            self._threads[native_id] = WatchedThread(native_id, cpu_clock, self._cpu_ns(cpu_clock), niceness)
        try:
            yield
        finally:
            with self._lock:
                del self._threads[native_id]

    def look(self) -> TaskLoad:
        """Lower threads that were busy since the last look, raise those that were not; return the load."""
        now_ns = self._clock_ns()
        with self._lock:  # watched() removes a thread before it ends, so the clocks of all threads here are valid
            elapsed_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
            threads = self._threads.values()
            for thread in threads if elapsed_ns > 0 else ():
                used_ns = self._cpu_ns(thread.cpu_clock)
                thread.share, thread.used_ns = (used_ns - thread.used_ns) / elapsed_ns, used_ns
                self._judge_locked(thread)
            num_working = sum(thread.share >= _WORKING_SHARE for thread in threads)
            num_light = sum(thread.share > 0 for thread in threads) - num_working
            is_starved = bool(threads) and elapsed_ns > _STALL_NS
            return TaskLoad(any(thread.is_busy for thread in threads), num_working, num_light, is_starved)

    def _judge_locked(self, thread: WatchedThread) -> None:
        shares = thread.shares
        if thread.is_busy:
            shares.append(thread.share)
            is_busy = len(shares) < _CALM_LOOKS or sum(shares) >= _CALM_SHARE * _CALM_LOOKS
        else:
            shares.clear()
            is_busy = thread.share >= _BUSY_SHARE
        thread.is_busy = is_busy
        if is_busy == thread.is_low:
            return
        with contextlib.suppress(OSError):
            self._set_niceness(thread.native_id, LOW_NICENESS if is_busy else thread.niceness)
            thread.is_low = is_busy


class PeriodicLoadCheck:
    """Calls ``check`` every ``LOOK_INTERVAL_S`` seconds, on the loop, until ``close``."""

    def __init__(self, call_later: ScheduleTimer, check: Callable[[], None]) -> None:
        self._call_later = call_later
        self._check = check
        self._is_closed = False
        self._arm()

    def __repr__(self) -> str:
        return f"<PeriodicLoadCheck {'closed' if self._is_closed else 'open'}>"

    def close(self) -> None:
        """Make no further check."""
        self._is_closed = True

    def _arm(self) -> None:
        self._call_later(LOOK_INTERVAL_S, self._fire)

    def _fire(self) -> None:
        if not self._is_closed:
            self._check()
            self._arm()
