"""The clock of a task, and timers that fire as mails.

Side:       shared.  A timer fires on the loop thread and puts a mail; everything else belongs to the task thread.
Invariants: a callback runs on the task thread, never after its timer was cancelled; a repeating timer has at most one mail in the mailbox,
            however slow the task is; after ``quiesce`` no mail is put any more; no callback runs under the lock.
Units:      processing time in milliseconds since the epoch, delays in milliseconds, the relative clock in nanoseconds.
Source:     Flink ``SystemProcessingTimeService``, ``ProcessingTimeServiceImpl``, ``ProcessingTimeServiceUtil``.
Absent:     a thread of its own: the loop of the process has all timers.  Delays run on a clock that is never set, so that a jump of the
            wall clock fires nothing early and holds nothing back that was registered before it.
"""

import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from flowlet.errors import MailboxClosedError
from flowlet.mailbox.mailbox_executor import MailboxExecutor
from netstack.availability import AvailabilityFuture
from netstack.timers import Cancellable, ScheduleTimer

ProcessingTimeCallback = Callable[[int], object]

_NS_PER_MS: Final = 1_000_000
# A loop need not be able to wait for the end of time: longer delays are waited for in pieces.
_MAX_SLICE_NS: Final = 24 * 3600 * 1_000_000_000


class ServiceState(Enum):
    """What a service still does."""

    ALIVE = auto()
    QUIESCED = auto()  # timers are taken and never fire
    SHUT_DOWN = auto()  # registering is an error


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // _NS_PER_MS


def delay_until_ms(timestamp_ms: int, now_ms: int) -> int:
    """How long to wait until the clock shows more than ``timestamp_ms``.

    One more than the difference: a timer for t means that t is over, as a watermark t does.
    """
    return max(timestamp_ms - now_ms, 0) + 1


class ScheduledCallback:
    """A timer, once or repeating, that can be called off.

    Threading: ``cancel`` and the properties on the task thread; the service does the rest.
    """

    __slots__ = ("_callback", "_deadline_ns", "_is_done", "_next_delay_ms", "_scheduled", "_service", "is_mailed", "timestamp_ms")

    def __init__(
        self,
        service: "SystemProcessingTimeService",
        callback: ProcessingTimeCallback,
        timestamp_ms: int,
        next_delay_ms: Callable[["ScheduledCallback"], int] | None,
    ) -> None:
        self._service = service
        self._callback = callback
        self._next_delay_ms = next_delay_ms  # None: fires once
        self._is_done = False  # Written by the task thread; the loop thread's stale read costs one mail that does nothing.
        self._deadline_ns = 0  # Written before it is handed to the loop.
        self._scheduled: Cancellable | None = None  # Written by whoever armed last.
        self.is_mailed = False  # Set by the loop thread before it puts the mail, cleared by the task thread when that runs.
        self.timestamp_ms = timestamp_ms  # What the callback is given the next time; written by the task thread.

    def __repr__(self) -> str:
        return f"<ScheduledCallback for {self.timestamp_ms}{', done' if self._is_done else ''}>"

    @property
    def is_done(self) -> bool:
        """Whether it will not fire (again)."""
        return self._is_done

    def cancel(self) -> None:
        """Do not fire (again), unless the callback is running."""
        self._is_done = True
        self._service.forget(self)
        if self._scheduled is not None:
            self._scheduled.cancel()

    def arm(self, delay_ms: int) -> None:
        """Put the mail after so long."""
        self._deadline_ns = self._service.clock_ns() + delay_ms * _NS_PER_MS
        self._schedule()

    def _schedule(self) -> None:
        remaining_ns = max(self._deadline_ns - self._service.clock_ns(), 0)
        self._scheduled = self._service.schedule_timer(min(remaining_ns, _MAX_SLICE_NS) / 1e9, self._on_loop)

    def _on_loop(self) -> None:
        """The wait is over; loop thread."""
        if self._is_done:
            return
        if self._deadline_ns <= self._service.clock_ns():
            self._service.put_mail(self)
            return
        # A piece of a long wait, or the loop rounds down.
        self._schedule()
        if self._is_done and self._scheduled is not None:
            self._scheduled.cancel()  # cancelled meanwhile: cancel() saw the timer before this one

    def run(self) -> None:
        """Call back, and wait for the next time if there is one; task thread."""
        self.is_mailed = False
        if self._is_done:
            return
        if self._next_delay_ms is None:
            self.cancel()
            self._callback(self.timestamp_ms)
            return
        self._callback(self.timestamp_ms)
        if self._service.state is not ServiceState.ALIVE:
            self.cancel()
        elif not self._is_done:
            self.arm(self._next_delay_ms(self))


class _TimerMail:
    """The mail of a timer; dropping it counts as running it."""

    __slots__ = ("_service", "_timer")

    def __init__(self, service: "SystemProcessingTimeService", timer: ScheduledCallback) -> None:
        self._service = service
        self._timer = timer

    def __call__(self) -> None:
        try:
            self._timer.run()
        except Exception as error:
            error.add_note(f"raised by a processing time timer for {self._timer.timestamp_ms}")
            raise
        finally:
            self._service.mail_ended()

    def cancel(self) -> None:
        self._service.mail_ended()


class SystemProcessingTimeService:
    """The clock and the timers of one operator.

    Threading: task thread, except ``current_time_ms`` and ``relative_time_ns`` (any), ``put_mail`` (loop thread).
    Life cycle: ALIVE -> QUIESCED -> SHUT_DOWN; ``shut_down`` from every state.

    Args:
        schedule_timer: runs a callable on the loop thread after so many seconds; may be called from any thread.
        executor: puts the mails, with the priority of the operator.
        now_ms: wall clock.
        clock_ns: a clock that is never set.
        paused_ns: how long the task could not read its input because its consumers were slow; taken off the relative clock.
    """

    def __init__(
        self,
        schedule_timer: ScheduleTimer,
        executor: MailboxExecutor,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        paused_ns: Callable[[], int] = lambda: 0,
    ) -> None:
        self.schedule_timer = schedule_timer
        self.clock_ns = clock_ns
        self._executor = executor
        self._now_ms = now_ms
        self._paused_ns = paused_ns
        self._lock = threading.Lock()
        self._state = ServiceState.ALIVE  # Guarded by _lock for writes, all by the task thread.
        self._num_mails = 0  # Guarded by _lock: mails put whose callback has not ended.
        self._quiesced = AvailabilityFuture()
        self._timers: set[ScheduledCallback] = set()  # Task thread only.

    def __repr__(self) -> str:
        return f"<SystemProcessingTimeService {self._state.name}, {len(self._timers)} timers, {self._num_mails} mails>"

    @property
    def state(self) -> ServiceState:
        """What the service still does."""
        return self._state

    @property
    def num_timers(self) -> int:
        """Timers that may still fire."""
        return len(self._timers)

    def current_time_ms(self) -> int:
        """Now, by the wall clock."""
        return self._now_ms()

    def relative_time_ns(self) -> int:
        """A clock for idleness: it is never set, and stands still while the consumers hold the task back."""
        return self.clock_ns() - self._paused_ns()

    def register_timer(self, timestamp_ms: int, callback: ProcessingTimeCallback) -> ScheduledCallback:
        """Have ``callback(timestamp_ms)`` called once the clock shows more than ``timestamp_ms``.

        Raises:
            RuntimeError: the service is shut down.
        """
        return self._start(ScheduledCallback(self, callback, timestamp_ms, None), delay_until_ms(timestamp_ms, self._now_ms()))

    def schedule_at_fixed_rate(self, callback: ProcessingTimeCallback, *, initial_delay_ms: int, period_ms: int) -> ScheduledCallback:
        """Have ``callback(t)`` called for t = now + initial delay, then every ``period_ms``; late calls follow each other at once.

        Raises:
            RuntimeError: the service is shut down.
        """
        _check_period(period_ms)

        def next_delay_ms(timer: ScheduledCallback) -> int:
            timer.timestamp_ms += period_ms
            return max(timer.timestamp_ms - self._now_ms(), 0)

        return self._start(ScheduledCallback(self, callback, self._now_ms() + initial_delay_ms, next_delay_ms), initial_delay_ms)

    def schedule_with_fixed_delay(self, callback: ProcessingTimeCallback, *, initial_delay_ms: int, period_ms: int) -> ScheduledCallback:
        """Have ``callback(t)`` called again and again, ``period_ms`` after the call before it has ended.

        Raises:
            RuntimeError: the service is shut down.
        """
        _check_period(period_ms)

        def next_delay_ms(timer: ScheduledCallback) -> int:
            timer.timestamp_ms = self._now_ms() + period_ms
            return period_ms

        return self._start(ScheduledCallback(self, callback, self._now_ms() + initial_delay_ms, next_delay_ms), initial_delay_ms)

    def _start(self, timer: ScheduledCallback, delay_ms: int) -> ScheduledCallback:
        if self._state is ServiceState.SHUT_DOWN:
            raise RuntimeError(f"no timer can be registered: {self!r}")
        if self._state is ServiceState.QUIESCED:
            timer.cancel()
        else:
            self._timers.add(timer)
            timer.arm(delay_ms)
        return timer

    def forget(self, timer: ScheduledCallback) -> None:
        """The timer fires no more."""
        self._timers.discard(timer)

    def put_mail(self, timer: ScheduledCallback) -> None:
        """Have a timer's callback run; loop thread."""
        with self._lock:
            if self._state is not ServiceState.ALIVE:
                return
            self._num_mails += 1
            timer.is_mailed = True
        try:
            self._executor.execute(_TimerMail(self, timer), "timer for %s", timer.timestamp_ms)
        except MailboxClosedError:
            self.mail_ended()  # the task has ended, and nobody waits for its timers

    def mail_ended(self) -> None:
        """A mail of this service ran or was dropped."""
        with self._lock:
            self._num_mails -= 1
            is_quiet = self._is_quiet_locked()
        if is_quiet:
            self._quiesced.complete()

    def _is_quiet_locked(self) -> bool:
        return self._state is not ServiceState.ALIVE and self._num_mails == 0

    def quiesce(self) -> AvailabilityFuture:
        """Let no timer fire any more; done once the callbacks of those that fired before have ended."""
        self._end(ServiceState.QUIESCED)
        return self._quiesced

    def shut_down(self) -> None:
        """As ``quiesce``, and registering is an error from now on."""
        self._end(ServiceState.SHUT_DOWN)

    def _end(self, state: ServiceState) -> None:
        with self._lock:
            if self._state is not ServiceState.SHUT_DOWN:
                self._state = state
            is_quiet = self._is_quiet_locked()
        for timer in list(self._timers):
            if not timer.is_mailed:
                timer.cancel()
        if is_quiet:
            self._quiesced.complete()


def _check_period(period_ms: int) -> None:
    if period_ms <= 0:
        raise ValueError(f"a repeating timer needs a period above 0 ms, got {period_ms}")
