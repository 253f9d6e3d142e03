"""The clock of a task, and timers that fire as mails.

Side:       shared.  A timer fires on the loop thread and puts a mail; all other code runs on the task thread.
Invariants: a callback runs on the task thread, never after its timer was cancelled, never under the lock.  A repeating
            timer has at most one mail in the mailbox, however slow the task is.  After ``quiesce`` no mail is put.
Units:      processing time in milliseconds since the epoch, delays in milliseconds, the relative clock in nanoseconds.
Source:     Flink ``SystemProcessingTimeService``, ``ProcessingTimeServiceImpl``, ``ProcessingTimeServiceUtil``, without
            a thread of its own: the loop of the process runs all timers.  Delays use a monotonic clock, as Flink's do:
            the time until a timestamp is taken from the wall clock when the timer is registered, and a later step of
            the wall clock does not move the timer.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import field
from enum import Enum, auto
from typing import Final

from flowlet.errors import MailboxClosedError
from flowlet.mailbox.mailbox_processor import MailboxExecutor
from netstack.availability import AvailabilityFuture
from netstack.late import dataclass
from netstack.loop.eventloop import Cancellable, ScheduleTimer, wall_clock_ms

ProcessingTimeCallback = Callable[[int], object]

_NS_PER_MS: Final = 1_000_000
# A loop need not support waits of any length: longer waits are split.
_MAX_SLICE_NS: Final = 24 * 3600 * 1_000_000_000


class ServiceState(Enum):
    """The state of a service: whether it accepts timers, and fires them."""

    ALIVE = auto()
    QUIESCED = auto()  # timers are accepted but never fire
    SHUT_DOWN = auto()  # to register a timer is an error


def delay_until_ms(timestamp_ms: int, now_ms: int) -> int:
    """How long to wait until the clock shows more than ``timestamp_ms``: the difference plus 1.

    A timer for t fires when t is over, as a watermark t means that t is over.
    """
    return max(timestamp_ms - now_ms, 0) + 1


@dataclass(slots=True, eq=False)
class ScheduledCallback:
    """A timer, single or repeating, that can be cancelled.

    Threading: ``cancel`` and the properties on the task thread; the service calls all other methods.
    """

    service: "SystemProcessingTimeService"
    callback: ProcessingTimeCallback
    timestamp_ms: int  # argument of the next callback; written by the task thread
    period_ms: int | None = None  # from the end of a call to the next one; None: fires once
    # Written by the task thread; a stale read on the loop thread costs one mail that does nothing.
    is_done: bool = field(init=False, default=False)
    # Set by the loop thread before it puts the mail; cleared by the task thread when the mail runs.
    is_mailed: bool = field(init=False, default=False)
    _deadline_ns: int = field(init=False, default=0)  # Written before the timer is handed to the loop.
    # Written by the thread that scheduled last.
    _scheduled: Cancellable | None = field(init=False, default=None)

    def __repr__(self) -> str:
        return f"<ScheduledCallback for {self.timestamp_ms}{', done' if self.is_done else ''}>"

    def cancel(self) -> None:
        """Cancel the timer: it does not fire (again), unless the callback is running already."""
        # Before the loop's timer is cancelled: if it fires just now, its mail finds this mark.
        self.is_done = True
        self.service.timers.discard(self)
        if self._scheduled is not None:
            self._scheduled.cancel()

    def arm(self, delay_ms: int) -> None:
        """Put the mail after this delay."""
        # By the monotonic clock: a wall clock that is set meanwhile does not move it.
        self._deadline_ns = self.service.clock_ns() + delay_ms * _NS_PER_MS
        self._schedule()

    def _schedule(self) -> None:
        # From the deadline anew: the slices' errors do not add up.
        remaining_ns = max(self._deadline_ns - self.service.clock_ns(), 0)
        self._scheduled = self.service.schedule_timer(min(remaining_ns, _MAX_SLICE_NS) / 1e9, self._on_loop)

    def _on_loop(self) -> None:
        """Put the mail, or wait for the rest of a split wait; loop thread, when a wait is over."""
        if self.is_done:
            return
        if self._deadline_ns <= self.service.clock_ns():
            self.service.put_mail(self)
            return
        # One part of a split wait is over, or the loop woke up slightly early.
        self._schedule()
        if self.is_done and self._scheduled is not None:
            self._scheduled.cancel()  # cancel() ran meanwhile, and saw only the timer before this one

    def run(self) -> None:
        """Call the callback, then schedule the next call if the timer repeats; task thread."""
        # First: the loop sets it again as soon as the next call is due, perhaps before this one ends.
        self.is_mailed = False
        if self.is_done:
            return
        if self.period_ms is None:
            # Before the call: a callback that raises must not leave its timer behind.
            self.cancel()
            self.callback(self.timestamp_ms)
            return
        self.callback(self.timestamp_ms)
        # The callback, or a mail that it yielded to, may have ended the service.
        if self.service.state is not ServiceState.ALIVE:
            self.cancel()
        elif not self.is_done:
            self.timestamp_ms = self.service.current_time_ms() + self.period_ms
            self.arm(self.period_ms)


@dataclass(frozen=True, slots=True)
class _TimerMail:
    """The mail of a timer.  A dropped mail counts as run, so that ``quiesce`` completes."""

    timer: ScheduledCallback

    def __call__(self) -> None:
        try:
            self.timer.run()
        except Exception as error:
            error.add_note(f"raised by a processing time timer for {self.timer.timestamp_ms}")
            raise
        finally:
            self.timer.service.mail_ended()

    def cancel(self) -> None:
        self.timer.service.mail_ended()


@dataclass(eq=False)
class SystemProcessingTimeService:
    """The clock and the timers of one operator.

    Threading: task thread, except ``current_time_ms`` and ``relative_time_ns`` (any), ``put_mail`` (loop thread).
    Life cycle: ALIVE -> QUIESCED -> SHUT_DOWN; ``shut_down`` from every state.  Registering a timer after that raises
        RuntimeError.

    Args:
        schedule_timer: calls a function on the loop thread after a delay in seconds; may be called from any thread.
        executor: puts mails with the operator's priority.
        now_ms: the wall clock.
        clock_ns: a monotonic clock.
        paused_ns: how long consumers have held the task back so far; subtracted from the relative clock.
    """

    schedule_timer: ScheduleTimer
    executor: MailboxExecutor
    now_ms: Callable[[], int] = wall_clock_ms
    clock_ns: Callable[[], int] = time.monotonic_ns
    paused_ns: Callable[[], int] = lambda: 0
    # Guarded by _lock for writes, all of them by the task thread.
    state: ServiceState = field(init=False, default=ServiceState.ALIVE)
    # Task thread only: the timers that may still fire.
    timers: set[ScheduledCallback] = field(init=False, default_factory=set)
    _num_mails: int = field(init=False, default=0)  # Guarded by _lock: mails that were put and have not ended.
    _quiesced: AvailabilityFuture = field(init=False, default_factory=AvailabilityFuture)

    def __post_init__(self) -> None:
        """Make the lock."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<SystemProcessingTimeService {self.state.name}, {len(self.timers)} timers, {self._num_mails} mails>"

    @property
    def num_timers(self) -> int:
        """The number of timers that may still fire."""
        return len(self.timers)

    def current_time_ms(self) -> int:
        """The time of the wall clock."""
        return self.now_ms()

    def relative_time_ns(self) -> int:
        """A monotonic clock that stands still while consumers hold the task back; for idleness."""
        return self.clock_ns() - self.paused_ns()

    def register_timer(self, timestamp_ms: int, callback: ProcessingTimeCallback) -> ScheduledCallback:
        """Call ``callback(timestamp_ms)`` once the clock shows more than ``timestamp_ms``."""
        return self._start(ScheduledCallback(self, callback, timestamp_ms), delay_until_ms(timestamp_ms, self.now_ms()))

    def schedule_with_fixed_delay(
        self, callback: ProcessingTimeCallback, *, initial_delay_ms: int, period_ms: int
    ) -> ScheduledCallback:
        """Call ``callback(now)`` repeatedly, each time ``period_ms`` after the end of the last call."""
        if period_ms <= 0:
            raise ValueError(f"a repeating timer needs a period above 0 ms, got {period_ms}")
        return self._start(
            ScheduledCallback(self, callback, self.now_ms() + initial_delay_ms, period_ms), initial_delay_ms
        )

    def _start(self, timer: ScheduledCallback, delay_ms: int) -> ScheduledCallback:
        if self.state is ServiceState.SHUT_DOWN:
            raise RuntimeError(f"no timer can be registered after the shutdown: {self!r}")
        # No error: an operator that finishes may still register timers, which do not fire.
        if self.state is ServiceState.QUIESCED:
            timer.cancel()
        else:
            self.timers.add(timer)
            timer.arm(delay_ms)
        return timer

    def put_mail(self, timer: ScheduledCallback) -> None:
        """Put a timer's mail; loop thread."""
        with self._lock:
            if self.state is not ServiceState.ALIVE:
                return
            # In the lock round that looked at the state: ``quiesce`` either counts this mail, or finds that none comes.
            self._num_mails += 1
            timer.is_mailed = True
        try:
            self.executor.execute(_TimerMail(timer), "timer for %s", timer.timestamp_ms)
        except MailboxClosedError:
            self.mail_ended()  # the task has ended: its timers no longer matter

    def mail_ended(self) -> None:
        """Note that a mail ran or was dropped."""
        with self._lock:
            self._num_mails -= 1
            is_quiet = self._is_quiet_locked()
        # Behind the lock: the future's callbacks may use the service.
        if is_quiet:
            self._quiesced.complete()

    def _is_quiet_locked(self) -> bool:
        return self.state is not ServiceState.ALIVE and self._num_mails == 0

    def quiesce(self) -> AvailabilityFuture:
        """Fire no more timers; the future is done when the callbacks of timers that fired before have ended."""
        self._end(ServiceState.QUIESCED)
        return self._quiesced

    def shut_down(self) -> None:
        """Fire no more timers; from now on registering a timer is an error."""
        self._end(ServiceState.SHUT_DOWN)

    def _end(self, state: ServiceState) -> None:
        with self._lock:
            if self.state is not ServiceState.SHUT_DOWN:
                self.state = state
            is_quiet = self._is_quiet_locked()
        # A copy: each cancelled timer leaves the set.  A timer whose mail waits still runs, as Flink's does.
        for timer in list(self.timers):
            if not timer.is_mailed:
                timer.cancel()
        if is_quiet:
            self._quiesced.complete()
