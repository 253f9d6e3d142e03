"""``LatencyPolicy``: what a TaskManager does to make records fast, decided once from its goal and options.

Keeps a core from halting, so that threads wake up faster.

Sets the interpreter's switch interval by the load of the tasks.

Asks the kernel to run this process's threads soon after they wake up.

Finds task threads that want a core for themselves, and lowers their priority below that of all others.

Side:       shared.
Why:        the kernel lets a thread that is always busy keep the core for its time slice when another one wakes up, and
            a record then waits for some milliseconds.  Which tasks are busy shows only while they run.  Busy polling,
            ``--keep-awake`` and the switch interval depend on it, too (``TaskLoad``), even if no thread is lowered.  A
            look that comes late shows that a function keeps the interpreter's lock.
            An idle core halts, and in a virtual machine waking it needs the hypervisor: a single record pays for that
            several times (bench latency: p50 400 us, with ``KeepAwake`` 200).  On a machine of one's own ``idle=poll``
            does as much.
            Beside a busy task the loop, and any task with little work, get the interpreter after one switch interval,
            so a short one keeps records fast.  But two busy tasks would then pass it to and fro for nothing, each time
            to another core with a cold cache.  And a task whose functions keep the lock for seconds, in C code, gives
            the loop one interval between two calls: too short a one for a heartbeat.
Invariants: the thread of ``KeepAwake`` runs only while nothing else wants the core (SCHED_IDLE).  It takes the
            interpreter's lock only for a moment, about 20 times per second, because a thread that then waits for the
            lock waits for a thread of the lowest class.
            The switch interval is long only in three cases: while at least two tasks are working and no other does
            anything, for then only throughput counts; for a minute after the loop did not get the lock for half a
            second; and for the first two seconds of a task, whose first record may take long while the loop still
            deploys.  The first case does not hold for latency mode and for a user's choice.
            A task thread is lowered when it has used 30 % of a core between two looks, and raised when it has used less
            than 25 % in the next second.  A second, because others may keep a busy thread from its core for a while; if
            it were raised, it would disturb them until the next look.  It is raised at all, because a task may be busy
            only at first (it loads modules, it catches up).  Only task threads are changed.  Without the right to raise
            its priority (``RLIMIT_NICE``) a thread stays lowered.
Units:      nanoseconds of CPU time and of a monotonic clock.
Source:     ``sys.setswitchinterval``; one for all threads.  ``sched_setattr(2)``: since Linux 6.12 an ordinary thread
            may set the length of its time slices; when it wakes, it takes the core from a thread with longer ones.
            ``timerslack_ns`` in ``proc(5)``: by how much a wait may be prolonged (50 us by default), also the wait for
            the interpreter's lock.  Both need no privileges; an older kernel ignores them.  The rest is ours; the
            figures of each part are in docs/process-model.md.
"""

import contextlib
import ctypes
import hashlib
import os
import platform
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final, Self

from flowlet.errors import ConfigError
from netstack.late import dataclass
from netstack.log_lines import LogLines

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
    """The load of a process's task threads between two looks.

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


@dataclass(eq=False)
class BusyTasks:
    """Watches task threads and changes their niceness.

    Threading: ``look`` on the loop's thread, ``watched`` on the thread to be watched.

    Args:
        set_niceness: of a thread, by its native id; raises OSError if that is not allowed.
        cpu_ns: the CPU time that a thread has used, by the id of its clock.
    """

    set_niceness: Callable[[int, int], None] = partial(os.setpriority, os.PRIO_PROCESS)
    clock_ns: Callable[[], int] = time.monotonic_ns
    cpu_ns: Callable[[int], int] = time.clock_gettime_ns

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[int, WatchedThread] = {}  # Guarded by _lock.
        self._looked_ns = self.clock_ns()  # Guarded by _lock.

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
                self._looked_ns = self.clock_ns()  # nobody looks while there is no task
            self._threads[native_id] = WatchedThread(native_id, cpu_clock, self.cpu_ns(cpu_clock), niceness)
        try:
            yield
        finally:
            with self._lock:
                del self._threads[native_id]

    def look(self) -> TaskLoad:
        """Lower threads that were busy since the last look, raise the others; return the load."""
        now_ns = self.clock_ns()
        with self._lock:  # watched() removes a thread before it ends, so the clocks of all threads here are valid
            elapsed_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
            threads = self._threads.values()
            for thread in threads if elapsed_ns > 0 else ():
                used_ns = self.cpu_ns(thread.cpu_clock)
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
            self.set_niceness(thread.native_id, LOW_NICENESS if is_busy else thread.niceness)
            thread.is_low = is_busy


# Rounds of SHA-1, about 0.4 us each: together about 50 ms without the interpreter's lock.  With fewer, every hundredth
# record would wait for the lock; with more, ``rest`` would take effect late.
_ROUNDS: Final = 125_000
_END_TIMEOUT_S: Final = 0.2


class KeepAwake:
    """A thread that is busy whenever its core has nothing else to do.

    Threading: the thread that creates it.  Life cycle: a context manager; the thread ends soon after the block.
    """

    def __init__(self) -> None:
        self._is_over = False  # Written by the creating thread, read by the new one.
        self._may_work = threading.Event()
        self._may_work.set()
        self._thread = threading.Thread(target=self._run, name="keep awake", daemon=True)

    def __repr__(self) -> str:
        return f"<KeepAwake {'on' if self._thread.is_alive() else 'off'}>"

    def __enter__(self) -> "KeepAwake":
        self._thread.start()
        return self

    def rest(self, *, is_crowded: bool) -> None:
        """Pause while another thread keeps the core awake (``is_crowded``), continue when none does; any thread; takes
        effect soon.

        Beside a busy thread this one would sometimes get the core for a time slice while that thread holds the
        interpreter's lock.
        """
        if is_crowded:
            self._may_work.clear()
        else:
            self._may_work.set()

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._may_work.set()
        # For its current round; if that takes longer, a daemon does not delay the end of the process.
        self._thread.join(_END_TIMEOUT_S)

    def _run(self) -> None:
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
        while not self._is_over:
            self._may_work.wait()  # waits for an idle process; ended by rest(), or the end of the process
            hashlib.pbkdf2_hmac("sha1", b"awake", b"", _ROUNDS)


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


@dataclass(eq=False)
class SwitchInterval:
    """Adapts the switch interval of a process to its load.

    Args:
        set_interval_ms: sets it.
        short_ms: the interval of a process that is not crowded.
        follows_crowd: whether it grows while several tasks are working; not if the user has set it.
    """

    set_interval_ms: Callable[[float], None] = apply_switch_interval
    short_ms: float = DEFAULT_SWITCH_INTERVAL_MS
    follows_crowd: bool = True
    # So many looks more the interval is longer.
    _num_first_looks: int = field(init=False, default=0)
    _num_starved_looks: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._interval_ms = self.short_ms
        self.set_interval_ms(self.short_ms)

    def __repr__(self) -> str:
        return f"<SwitchInterval of {self._interval_ms:g} ms>"

    def task_deployed(self) -> None:
        """Prepare for a task that is about to start."""
        self._num_first_looks = _FIRST_LOOKS
        self._set(max(self._interval_ms, FIRST_SWITCH_INTERVAL_MS))

    def follow(self, load: TaskLoad) -> None:
        """Change the interval if the load asks for it."""
        self._num_first_looks = max(0, self._num_first_looks - 1)
        self._num_starved_looks = _STARVED_LOOKS if load.is_starved else max(0, self._num_starved_looks - 1)
        interval_ms = self.short_ms
        if self._num_starved_looks:
            interval_ms = max(interval_ms, STARVED_SWITCH_INTERVAL_MS)
        elif self.follows_crowd and load.num_working >= _MIN_CROWD and not load.num_light:
            interval_ms = CROWDED_SWITCH_INTERVAL_MS
        elif self._num_first_looks:
            interval_ms = max(interval_ms, FIRST_SWITCH_INTERVAL_MS)
        self._set(interval_ms)

    def _set(self, interval_ms: float) -> None:
        if interval_ms != self._interval_ms:
            self._interval_ms = interval_ms
            self.set_interval_ms(interval_ms)


_log = LogLines(__name__)

SLICE_NS: Final = 100_000  # the kernel's minimum
_SLACK_NS: Final = 1  # the minimum: 0 would mean the default
_SLACK_FILE: Final = Path("/proc/self/timerslack_ns")  # of the main thread
_SYSCALLS: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}  # sched_setattr
# size, policy, flags, nice, priority, runtime, deadline, period (``struct sched_attr``, its first version).
_SCHED_ATTR: Final = struct.Struct("IIQiIQQQ")


def ask_for_quick_wakeups() -> list[str]:
    """Set short time slices and exact timers for this thread and threads that it starts; returns the settings that the
    kernel refused.
    """
    missing = []
    sharpen_timers = partial(_SLACK_FILE.write_text, f"{_SLACK_NS}", encoding="ascii")
    for name, ask in (("short time slices", _shorten_slices), ("exact timers", sharpen_timers)):
        try:
            ask()
        except OSError as error:
            missing.append(f"{name}: {error}")
    if missing:
        _log.info("the kernel does not offer everything that keeps latencies low", missing=missing)
    return missing


def _shorten_slices() -> None:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(f"sched_setattr has no known number on {platform.machine()}")
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, os.SCHED_OTHER, 0, niceness, 0, SLICE_NS, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), 0, attributes, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


LATENCY_BUSY_POLL_US: Final = 2000  # so that a stream of 1,000 records per second finds the loop awake


class TaskDriver(StrEnum):
    """The thread that runs a task when data arrives; all else runs on the task's own thread."""

    THREAD = "thread"
    """The task's own thread."""
    LOOP = "loop"
    """The loop thread, if the task is light (``flowlet.task.one_input_stream_task``)."""


@dataclass(frozen=True, slots=True)
class LatencyPolicy:
    """The measures taken; by default none, as in a user's own process.

    ``keeps_awake``: the core never halts.
    ``runs_light_tasks``: on the loop thread.
    ``busy_poll_us``: how long the loop polls for more data before it sleeps; 0: not at all.
    ``switch_interval_ms``: of the interpreter, unless a function keeps its lock; None: unchanged.
    ``follows_load``: the switch interval grows while several tasks are working.
    ``has_quick_wakeups``: short time slices and exact timers.
    ``lowers_busy_tasks``: their threads get the lowest priority.
    """

    keeps_awake: bool = False
    runs_light_tasks: bool = False
    busy_poll_us: int = 0
    switch_interval_ms: float | None = None
    follows_load: bool = False
    has_quick_wakeups: bool = False
    lowers_busy_tasks: bool = False

    @classmethod
    def of(
        cls,
        *,
        latency_mode: bool = False,
        keeps_awake: bool = False,
        task_driver: TaskDriver = TaskDriver.THREAD,
        busy_poll_us: int | None = None,
        switch_interval_ms: float | None = None,
    ) -> Self:
        """Make the policy for the options that the user set; None: not set.

        ``latency_mode``: single records shall be fast, alone and beside busy tasks; costs throughput, and a core that
            is always busy.
        """
        runs_light_tasks = latency_mode or task_driver is TaskDriver.LOOP
        default_interval_ms = LATENCY_SWITCH_INTERVAL_MS if latency_mode else DEFAULT_SWITCH_INTERVAL_MS
        if busy_poll_us is None:
            busy_poll_us = LATENCY_BUSY_POLL_US if latency_mode else 0
        return cls(
            keeps_awake=keeps_awake or latency_mode,
            runs_light_tasks=runs_light_tasks,
            busy_poll_us=busy_poll_us,
            switch_interval_ms=default_interval_ms if switch_interval_ms is None else switch_interval_ms,
            # The loop waits for the interpreter in place of light tasks, so the CPU time of their threads does not show
            # the load.
            follows_load=switch_interval_ms is None and not runs_light_tasks,
            # A polling loop would keep the core from threads that wake up, unless time slices are short.
            has_quick_wakeups=latency_mode or busy_poll_us > 0,
            lowers_busy_tasks=latency_mode,
        )

    def begin(self) -> SwitchInterval | None:
        """Apply the policy to this process; return the object that keeps changing the switch interval, or None if it
        stays as it is.

        Raises:
            ConfigError: the switch interval is out of range.
        """
        found = None
        if self.switch_interval_ms is not None:
            found = SwitchInterval(apply_switch_interval, self.switch_interval_ms, follows_crowd=self.follows_load)
        if self.has_quick_wakeups:
            ask_for_quick_wakeups()
        return found

    def keeper(self) -> AbstractContextManager[KeepAwake | None]:
        """Make a context manager that keeps the core awake; entering it gives None if the policy does not want that."""
        return KeepAwake() if self.keeps_awake else nullcontext()

    def busy_tasks(self) -> BusyTasks | None:
        """Make the watcher of task threads; None if no measure needs it."""
        if self.lowers_busy_tasks:
            return BusyTasks()
        # The switch interval grows when the loop does not get the interpreter's lock, and a polling loop must stop
        # while tasks are busy.
        if self.follows_load or self.switch_interval_ms is not None or self.busy_poll_us:
            return BusyTasks(set_niceness=lambda _native_id, _niceness: None)
        return None
