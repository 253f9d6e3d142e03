"""Hands functions from any thread to an event loop, at once or after a delay.

Delayed calls: users ask for a ``ScheduleTimer``.  A loop's ``call_later`` is one for its own thread, ``LoopTimer`` for
any thread; ``LoopTimers`` are for the manager of partitions, whose users may bring others.
``RunningTimer`` and ``running_timeout`` are for waits of a loop that may stand still.

Side:       shared.  ``execute_threadsafe`` and ``submit`` from any thread.
Invariants: an accepted function is executed exactly once, in the order of acceptance, on the loop thread.  A producer
            wakes the loop only when no wakeup is pending.  One pass executes at most 256 functions before the loop
            serves its sockets.  The wakeup descriptor is closed only when no producer is about to write to it.  A
            delayed call is made at most once, on the loop thread, and never after its cancellation was handled there.
Units:      delays in seconds.
Source:     Netty ``SingleThreadEventExecutor`` (``wakeup`` only for an idle executor).  An eventfd with ``add_reader``
            costs 12 us per wakeup, ``call_soon_threadsafe`` 19 us, which is the fallback where there is no eventfd.
"""

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol, TypeVar, TypeVarTuple

from netstack.errors import LocalProtocolError, ResourceBrokenError, ResourceClosedError
from netstack.flow.heartbeats import Silence
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.forks import forget_in_children, keep_in_children, serving_thread

_log = LogLines(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_BATCH = 256  # not measured; Netty looks at the clock every 64 tasks
_START_TIMEOUT_S = 30.0  # a machine that starts no thread within this time is broken
_NUM_CALLS_TOLD = 3  # innermost calls that an error about a blocked thread names


@dataclass(frozen=True, slots=True)
class EventLoopStatistics:
    """Counters of one ``EventLoopThread``."""

    num_executed: int
    num_wakeups: int
    num_queued: int


class EventLoopThread:
    """An event loop and the queue of functions that other threads hand to it.

    Threading: ``execute_threadsafe``, ``submit``, ``is_current_thread`` and ``statistics`` from any thread; see
               ``close``.
    Life cycle: ``adopt`` or ``start``, then ``close``.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self._lock = threading.Lock()
        # Appended under _lock, popped by the loop thread.
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        # Set under _lock.  The loop thread clears it before it drains: clearing it afterwards would lose a wakeup.
        self._is_armed = False
        self._is_closed = False  # Guarded by _lock.
        self._is_detached = False  # Guarded by _lock: the loop no longer watches the wakeup descriptor.
        self._num_waking = 0  # Guarded by _lock: producers between arming and having written to the wakeup descriptor.
        # Loop thread only: the functions of ``after_batch`` for the current pass; None between passes.
        self._after_batch: dict[Callable[[], None], None] | None = None
        self._num_executed = 0  # Written by the loop thread; read anywhere, one pass stale is fine.
        self._num_wakeups = 0  # Guarded by _lock.
        self._thread_id: int | None = None  # Written once, before the loop runs its first function.
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        # Written before the first producer comes and when it is closed; None: no eventfd.
        self._wakeup_fd: int | None = None

    @classmethod
    def adopt(cls, loop: asyncio.AbstractEventLoop, name: str) -> "EventLoopThread":
        """Wrap the loop that runs on the current thread.

        Raises:
            LocalProtocolError: ``loop`` does not run on this thread.
        """
        if asyncio.get_running_loop() is not loop:
            raise LocalProtocolError(f"the loop adopted as {name!r} does not run on this thread")
        adopted = cls(loop, name)
        adopted._thread_id = threading.get_ident()
        keep_in_children(loop)
        adopted._watch()
        return adopted

    @classmethod
    def start(cls, name: str, *, use_uvloop: bool = True) -> "EventLoopThread":
        """Run a loop on a new daemon thread: uvloop's if wanted and available, else asyncio's."""
        started = cls(_new_loop(use_uvloop=use_uvloop), name)
        keep_in_children(started.loop)
        started._watch()
        is_running = threading.Event()
        started._thread = threading.Thread(target=started._run, args=(is_running,), name=name, daemon=True)
        started._thread.start()
        if not is_running.wait(_START_TIMEOUT_S):
            raise ResourceBrokenError(
                f"the thread of the event loop {name!r} did not run within {_START_TIMEOUT_S:g} s"
            )
        return started

    def __repr__(self) -> str:
        return f"<EventLoopThread {self.name!r} {'closed' if self._is_closed else 'open'}, {len(self._queue)} queued>"

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that runs the loop; there is no loop here."""
        return os.getpid() != self._pid

    def is_current_thread(self) -> bool:
        """Whether the caller is on the loop thread."""
        return threading.get_ident() == self._thread_id

    def execute_threadsafe(self, function: Callable[[*Ts], None], *args: *Ts) -> None:
        """Run ``function(*args)`` on the loop thread, after all functions accepted before; any thread, the loop's
        included.

        An exception of ``function`` goes to the loop's exception handler.

        Raises:
            ResourceClosedError: ``close`` was called.
        """
        with self._lock:
            if self._is_closed:
                raise ResourceClosedError(f"the event loop {self.name!r} was closed")
            self._queue.append((function, args))
            if self._is_armed:
                return
            self._is_armed = True
            self._num_wakeups += 1
            self._num_waking += 1  # Until it is 0 again the descriptor stays open: its number might mean another file.
        try:
            if threading.get_ident() == self._thread_id:
                self.loop.call_soon(self._run_batch)
            elif self._wakeup_fd is not None:
                os.eventfd_write(self._wakeup_fd, 1)
            else:
                # RuntimeError: the loop was closed meanwhile, after it executed all accepted functions.
                with contextlib.suppress(RuntimeError):
                    self.loop.call_soon_threadsafe(self._run_batch)
        finally:
            with self._lock:
                self._num_waking -= 1
                orphan = self._take_orphan_fd_locked()
            if orphan is not None:
                os.close(orphan)

    def after_batch(self, function: Callable[[], None]) -> None:
        """Run ``function`` once at the end of the current pass, or at once between passes; loop thread.

        Functions of one pass thus share a single write or wake-up, without another turn of the loop.
        """
        if self._after_batch is None:
            function()
        else:
            self._after_batch[function] = None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Run a coroutine on the loop; costs tens of microseconds, so never per record or buffer.

        Raises:
            ResourceClosedError: ``close`` was called; the coroutine was closed.
        """
        # Under the lock: the task must exist before ``close`` stops the loop, or nothing would cancel it.
        with self._lock:
            if not self._is_closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        coroutine.close()
        raise ResourceClosedError(f"the event loop {self.name!r} was closed")

    def close(self, timeout_s: float = 5.0) -> None:
        """Accept nothing more and execute the accepted functions; a second call does nothing.

        An adopted loop continues; call it on the loop thread.  A started loop is stopped, its tasks are cancelled, and
        its thread has ended on return; call it on another thread.

        Raises:
            LocalProtocolError: called on the wrong thread.
            ResourceBrokenError: the thread did not end within ``timeout_s``, because something blocks the loop.
        """
        if self.is_current_thread() is not (self._thread is None):
            raise LocalProtocolError(f"the event loop {self.name!r} was closed from the wrong thread")
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._thread is None:
            self._drain_and_detach()
            forget_in_children(self.loop)
            return
        self.loop.call_soon_threadsafe(self._stop)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            place = _place_of(self._thread)
            raise ResourceBrokenError(
                f"the event loop {self.name!r} did not stop within {timeout_s:g} s: something blocks it, {place}"
            )

    def statistics(self) -> EventLoopStatistics:
        """Return the counters since the start."""
        return EventLoopStatistics(self._num_executed, self._num_wakeups, len(self._queue))

    # ---------------------------------------------------------------- waking

    def _watch(self) -> None:
        if hasattr(os, "eventfd"):
            self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self.loop.add_reader(self._wakeup_fd, self._on_wakeup)

    def _on_wakeup(self) -> None:
        assert self._wakeup_fd is not None, "only the descriptor calls this"
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup_fd)
        self._run_batch()

    # ---------------------------------------------------------------- loop thread

    def _run_batch(self) -> None:
        """Execute at most ``MAX_BATCH`` queued functions; schedule another pass for the rest, after the loop's other
        work.
        """
        self._is_armed = False
        queue = self._queue
        budget = min(len(queue), MAX_BATCH)  # Functions that come during the pass wait for the next one.
        last: dict[Callable[[], None], None] = {}
        self._after_batch = last
        try:
            while budget and queue:  # the function may close this loop, which drains the queue
                budget -= 1
                function, args = queue.popleft()
                self._execute(function, args)
        finally:
            self._after_batch = None
            for once in last:
                self._execute(once, ())
            # If a producer armed meanwhile, its wakeup brings the next pass.
            if queue and not self._is_armed and not self._is_closed:
                self._is_armed = True
                self.loop.call_soon(self._run_batch)

    def _execute(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._num_executed += 1
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001 - the top of the loop
            self.loop.call_exception_handler(
                {"message": f"{function!r} handed to the event loop {self.name!r} failed", "exception": error}
            )

    def _drain_and_detach(self) -> None:
        """Execute all queued functions and close the wakeup descriptor; nothing can be added any more."""
        while self._queue:
            function, args = self._queue.popleft()
            self._execute(function, args)
        if self._wakeup_fd is not None:
            self.loop.remove_reader(self._wakeup_fd)
        with self._lock:
            self._is_detached = True
            orphan = self._take_orphan_fd_locked()
        if orphan is not None:
            os.close(orphan)

    def _take_orphan_fd_locked(self) -> int | None:
        """Return the wakeup descriptor if the caller must close it (the loop thread at the end, or the last producer in
        a wakeup), else None.
        """
        if not self._is_detached or self._num_waking:
            return None
        orphan, self._wakeup_fd = self._wakeup_fd, None
        return orphan

    def _run(self, is_running: threading.Event) -> None:
        self._thread_id = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(is_running.set)
        try:
            with serving_thread(self.loop):
                self.loop.run_forever()
        finally:
            try:
                # The runner ends the tasks, the executor and the loop.  It gives the errors of the tasks to the loop's
                # exception handler, which logs them.  From Python 3.12 on it waits 300 s at most for the executor's
                # threads.
                with asyncio.Runner(loop_factory=lambda: self.loop):
                    pass
            except (OSError, RuntimeError) as error:  # libuv has a handle that is open, or a callback came meanwhile
                # The runner closes the loop even if a step before that has failed.
                if self.loop.is_closed():
                    what = "the event loop of a thread is closed, but a step before that has failed"
                else:
                    what = (
                        "the event loop of a thread that has ended could not be closed; its connections stay open "
                        "until the process ends"
                    )
                _log.warning(what, loop=self.name, error=f"{type(error).__name__}: {error}")
            forget_in_children(self.loop)

    def _stop(self) -> None:
        self._drain_and_detach()
        self.loop.stop()


def _place_of(thread: threading.Thread) -> str:
    """Write the calls that a thread is in, innermost last."""
    frame = sys._current_frames().get(thread.ident or 0)
    stack = traceback.extract_stack(frame)[-_NUM_CALLS_TOLD:] if frame else []
    calls = " > ".join(f"{call.name} ({call.filename}:{call.lineno})" for call in stack)
    return f"in {calls}" if calls else "just now"


def _new_loop(*, use_uvloop: bool) -> asyncio.AbstractEventLoop:
    if use_uvloop and sys.platform != "win32":
        from netstack.loop.uv_loop import UvLoop

        return UvLoop()
    return asyncio.new_event_loop()


def wall_clock_ms() -> int:
    """Return the milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Cancellable(Protocol):
    """A scheduled call."""

    def cancel(self) -> object:
        """Do not make the call; without effect after it was made."""


class Timers(Protocol):
    """Makes delayed calls: an event loop, ``LoopTimers``, or a manual clock in tests."""

    def call_later(self, delay_s: float, call: Callable[[], None], /) -> Cancellable:
        """Make ``call`` once after ``delay_s``, on the timers' thread; each implementation tells which threads may
        cancel it.
        """


ScheduleTimer = Callable[[float, Callable[[], None]], Cancellable]
"""``call_later`` alone, as tasks and checkpoints have it."""


class LoopClock(Protocol):
    """The clock of an event loop, and its calls at a given time; in seconds."""

    def time(self) -> float:
        """Return the time now."""

    def call_at(self, when: float, callback: Callable[[], object], /) -> asyncio.TimerHandle:
        """Call ``callback`` at a time."""


class RunningTimer:
    """One delayed call on a loop; time in which the loop stood still does not count (``Silence``).

    A function of the user may keep the interpreter's lock.  Then the awaited bytes lie in a socket, or their sender
    stood still, too.

    Threading: the loop.
    """

    __slots__ = ("_call", "_handle", "_loop", "_silence")

    def __init__(self, loop: LoopClock, delay_s: float, call: Callable[[], object]) -> None:
        self._loop = loop
        self._call = call
        self._silence = Silence(delay_s, loop.time())
        self._look_later()

    def __repr__(self) -> str:
        return f"<RunningTimer, {self._silence!r}>"

    def cancel(self) -> None:
        """Do not make the call; without effect after it was made."""
        self._handle.cancel()

    def _look_later(self) -> None:
        self._handle = self._loop.call_at(self._loop.time() + self._silence.next_look_s, self._look)

    def _look(self) -> None:
        if self._silence.look(self._loop.time()):
            self._call()
        else:
            self._look_later()


@contextlib.asynccontextmanager
async def running_timeout(timeout_s: float | None) -> AsyncIterator[None]:
    """Limit a block like ``asyncio.timeout``, but time in which the loop stood still does not count; None: no limit.

    Raises:
        TimeoutError: at the end of the block.
    """
    async with asyncio.timeout(None) as timeout:
        if timeout_s is None:
            yield
            return
        loop = asyncio.get_running_loop()
        timer = RunningTimer(loop, timeout_s, lambda: timeout.reschedule(loop.time()))
        try:
            yield
        finally:
            timer.cancel()


class LoopTimer:
    """One call after a delay, on the loop thread.

    Threading: created and cancelled on any thread; ``cancel`` does not wait for a call that has begun.
    Ownership: lets go of the callback, whose owner usually holds this timer, once it was called or cancelled.
    """

    __slots__ = ("_callback", "_handle", "_loop")

    def __init__(self, loop: EventLoopThread, delay_s: float, callback: Callable[[], None]) -> None:
        self._loop = loop
        # None: it was called or cancelled.  Cleared by any thread; read by the loop thread.
        self._callback: Callable[[], None] | None = callback
        self._handle: asyncio.TimerHandle | None = None  # Loop thread only.
        with contextlib.suppress(ResourceClosedError):  # the loop has ended: no call is made
            loop.execute_threadsafe(self._arm, delay_s)

    def _arm(self, delay_s: float) -> None:
        # It may have been cancelled while the hop was on its way.
        if self._callback is not None:
            self._handle = self._loop.loop.call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._handle = None
        callback = self._callback
        self._callback = None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        """Prevent the call if it has not begun."""
        # Before the hop: a timer that fires until the loop gets there finds no call.
        self._callback = None
        with contextlib.suppress(ResourceClosedError):  # the loop has ended, and its timers with it
            self._loop.execute_threadsafe(self._disarm)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


@dataclass(frozen=True, slots=True)
class LoopTimers:
    """``Timers`` of the loop behind an ``EventLoopThread``; any thread."""

    loop: EventLoopThread

    def call_later(self, delay_s: float, call: Callable[[], None], /) -> LoopTimer:
        """Make ``call`` on the loop thread after ``delay_s``; any thread may cancel it."""
        return LoopTimer(self.loop, delay_s, call)
