"""The loop of one task: mails first, then the default action; executors, which run work of operators and other threads
on the task's thread; and how long the task was idle, back-pressured and busy (``TaskTimings``).

``TimerGauge``: how many milliseconds of each second an activity took lately.

Lock order: ``TimerGauge._lock`` is a leaf.

Side:       task; ``MailboxExecutor.execute`` is shared.
Invariants: the default action may run exactly when ``_suspension`` is None.  A mail sees all effects of the mails
            before it.  An error of a mail or of the default action leaves the loop unchanged.  0 <= value <= 1000; the
            accumulated time never falls.  ``value`` counts a measurement in progress up to the last ``update``, the
            accumulated time up to now.  idle + soft back pressure + hard back pressure + busy = time since the start;
            sums never fall.
Units:      nanoseconds of a monotonic clock inside; for readers the unit is in the name, else milliseconds; rates in
            milliseconds per second.
Source:     Flink ``MailboxProcessor``, ``MailboxDefaultAction``, ``MailboxController``; ``MailboxExecutor``,
            ``MailboxExecutorImpl``, with MailboxClosedError in place of ``RejectedExecutionException``.  Flink stops
            its idle timer around mails; here a wait lasts from the park of the thread to its wake-up, which gives equal
            times.  Flink ``TimerGauge`` (5 s between updates, a window of 60 s).  Flink ``TaskIOMetricGroup``
            (idleTimeMsPerSecond, softBackPressuredTimeMsPerSecond, hardBackPressuredTimeMsPerSecond,
            busyTimeMsPerSecond, maxSoftBackPressureTimeMs, maxHardBackPressureTimeMs, isBackPressured), ``TimerGauge``.
            Soft: the task waits for buffers in its mailbox, where it runs mails.  Hard: it waits inside a write, where
            it cannot.
Absent:     the time spent on changelogs.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import field
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NoReturn

from flowlet.errors import FlowletError, MailboxClosedError
from flowlet.mailbox.task_mailbox import (
    MAX_PRIORITY,
    MIN_PRIORITY,
    Mail,
    MailboxState,
    MailOptions,
    RunAction,
    TaskMailbox,
    run_directly,
)
from netstack.availability import AvailabilityFuture
from netstack.late import dataclass
from netstack.loop.forks import end_stranded_child

UPDATE_INTERVAL_S: Final = 5  # Flink View.UPDATE_INTERVAL_SECONDS
DEFAULT_WINDOW_S: Final = 60
_MS_PER_S: Final = 1_000
_NS_PER_MS: Final = 1_000_000


class TimerGauge:
    """A stopwatch whose value is the measured share of the last ``window_s`` seconds, which are rounded down to update
    intervals, at least one.

    Threading: ``mark_start`` and ``mark_end`` on one thread; ``update``, once per ``UPDATE_INTERVAL_S``, and the rest
               on any.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns, *, window_s: int = DEFAULT_WINDOW_S) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        # Guarded by _lock; value, maximum and start are read without it: one update stale is fine.
        self._slots: deque[int] = deque(maxlen=max(1, window_s // UPDATE_INTERVAL_S))  # nanoseconds of each interval
        self._interval_ns = 0  # measured in the present interval
        self.ended_ns = 0  # all measurements that have ended; read on the thread that marks, too
        self._max_ns = 0  # the longest measurement that touched the present interval
        self._start_ns: int | None = None  # start of the measurement in progress
        self._counted_to_ns = 0  # how far that measurement is counted
        self.value = 0
        """Milliseconds per second, as of the last update."""
        self.max_single_measurement_ms = 0
        """The longest measurement that touched the last whole interval, from its beginning."""

    def __repr__(self) -> str:
        return f"<TimerGauge {self.value} ms/s, {'measuring' if self.is_measuring else 'at rest'}>"

    @property
    def is_measuring(self) -> bool:
        """Whether a measurement is in progress."""
        return self._start_ns is not None

    def accumulated_ns(self, now_ns: int | None = None) -> int:
        """All measurements so far, up to ``now_ns``."""
        with self._lock:
            if self._start_ns is None:
                return self.ended_ns
            now_ns = self._clock_ns() if now_ns is None else now_ns
            return self.ended_ns + max(0, now_ns - self._counted_to_ns)

    def mark_start(self) -> None:
        """Start a measurement; does nothing while one is in progress."""
        with self._lock:
            if self._start_ns is None:
                self._start_ns = self._counted_to_ns = self._clock_ns()

    def mark_end(self, now_ns: int | None = None) -> None:
        """End the measurement now, or as of ``now_ns``; does nothing if none is in progress."""
        start_ns = self._start_ns
        if start_ns is None:
            return  # without the lock: only the calling thread changes it
        with self._lock:
            self._count_locked(start_ns, now_ns)
            self._start_ns = None

    def update(self) -> None:
        """End the present interval: compute the value of the window that ends now."""
        with self._lock:
            if self._start_ns is not None:
                self._count_locked(self._start_ns)
            self._slots.append(self._interval_ns)
            window_s = UPDATE_INTERVAL_S * len(self._slots)
            self.value = min(_MS_PER_S, sum(self._slots) // _NS_PER_MS // window_s)
            self.max_single_measurement_ms = self._max_ns // _NS_PER_MS
            self._interval_ns = self._max_ns = 0

    def _count_locked(self, start_ns: int, now_ns: int | None = None) -> None:
        now_ns = self._clock_ns() if now_ns is None else now_ns
        # An ``update`` on another thread may have counted beyond the moment at which the wait ended.
        elapsed_ns = max(0, now_ns - self._counted_to_ns)
        self._interval_ns += elapsed_ns
        self.ended_ns += elapsed_ns
        self._max_ns = max(self._max_ns, now_ns - start_ns)
        self._counted_to_ns = max(self._counted_to_ns, now_ns)


_UPDATE_INTERVAL_NS = UPDATE_INTERVAL_S * 1_000_000_000
# More intervals than any window holds: earlier ones no longer count.
_MAX_UPDATES = 12


class WaitKind(Enum):
    """Why a task is parked: it lacks input, or buffers for its output, or waits for its own work on another thread,
    such as asynchronous calls.
    """

    IDLE = auto()
    BACK_PRESSURED = auto()
    BUSY = auto()  # counts as work: this task itself holds others up


@dataclass(frozen=True, slots=True)
class TimingsSnapshot:
    """Sums since the task started; ``running_ns`` includes all others."""

    running_ns: int
    idle_ns: int
    soft_back_pressured_ns: int
    hard_back_pressured_ns: int = 0

    @property
    def back_pressured_ns(self) -> int:
        """Soft and hard back pressure together."""
        return self.soft_back_pressured_ns + self.hard_back_pressured_ns

    @property
    def busy_ns(self) -> int:
        """The time that the task neither waited nor was back-pressured."""
        return max(0, self.running_ns - self.idle_ns - self.back_pressured_ns)


# After a longer call, which may have kept the interpreter's lock, the task waits for the loop to do its due work.
# Several heartbeats fit into the time after which a TaskManager counts as lost (50 s), and an alarm per buffer timeout
# is no reason to wait.  Not measured.
LONG_NS: Final = 1_000_000_000


class TaskTimings:
    """The stopwatches of one task; ``now_ns`` is their clock.

    Threading: the task thread marks; any thread calls ``snapshot`` and ``rates``.  ``hard_back_pressure`` is marked by
               the thread that waits for a buffer on the task's behalf (``LocalBufferPool.observe_blocking``).
    """

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.now_ns = clock_ns
        self._start_ns: int | None = None  # Written by the task thread, once.
        self._end_ns: int | None = None  # Written by the task thread, once.
        self._idle = TimerGauge(clock_ns)
        self._soft_back_pressure = TimerGauge(clock_ns)
        self.hard_back_pressure = TimerGauge(clock_ns)
        self._lock = threading.Lock()
        self._updated_ns = clock_ns()  # Guarded by _lock.

    def mark_start(self) -> None:
        """Note that the task starts to run."""
        now_ns = self._start_ns = self.now_ns()
        with self._lock:
            self._updated_ns = now_ns

    def mark_end(self) -> None:
        """Note that the task has ended: the sums no longer change."""
        self.end_wait()
        self.hard_back_pressure.mark_end()
        if self._end_ns is None:
            self._end_ns = self.now_ns()

    def start_wait(self, kind: WaitKind) -> None:
        """Note that the task is about to park; ends a wait in progress."""
        if kind is WaitKind.IDLE:
            self._soft_back_pressure.mark_end()
            self._idle.mark_start()
        elif kind is WaitKind.BACK_PRESSURED:
            self._idle.mark_end()
            self._soft_back_pressure.mark_start()
        else:
            self.end_wait()

    def end_wait(self, now_ns: int | None = None) -> None:
        """Note that the task works again, since ``now_ns`` if that is given; does nothing if it did not wait."""
        self._idle.mark_end(now_ns)
        self._soft_back_pressure.mark_end(now_ns)

    def working_ns(self) -> int:
        """The clock without the time in which the task waited for buffers inside writes; task thread."""
        now_ns = self.now_ns()
        return now_ns - self.hard_back_pressure.accumulated_ns(now_ns)

    def cpu_ns(self) -> int:
        """The CPU time of the calling thread; with a test's clock ``working_ns`` instead."""
        return time.thread_time_ns() if self.now_ns is time.monotonic_ns else self.working_ns()

    def snapshot(self) -> TimingsSnapshot:
        """The sums up to now, including a wait in progress; zeros before the start."""
        start_ns = self._start_ns
        if start_ns is None:
            return TimingsSnapshot(0, 0, 0)
        now_ns = self.now_ns() if self._end_ns is None else self._end_ns
        return TimingsSnapshot(
            now_ns - start_ns,
            self._idle.accumulated_ns(now_ns),
            self._soft_back_pressure.accumulated_ns(now_ns),
            self.hard_back_pressure.accumulated_ns(now_ns),
        )

    def rates(self) -> dict[str, Any]:
        """The rates of the last minute, in milliseconds per second, and the longest waits of the last 5 seconds, in
        milliseconds, as fields of ``TaskMetrics``.  Busy is the rest of the second; 0 while the task does not run.

        The call closes the 5 s intervals that have ended since the last one, so call it more often than that.
        """
        now_ns = self.now_ns()
        with self._lock:
            # Claimed under the lock: of two threads that ask at once, one closes an interval.
            num_due = max(0, now_ns - self._updated_ns) // _UPDATE_INTERVAL_NS
            self._updated_ns += num_due * _UPDATE_INTERVAL_NS
        for _ in range(min(num_due, _MAX_UPDATES)):
            for gauge in (self._idle, self._soft_back_pressure, self.hard_back_pressure):
                gauge.update()
        idle, soft, hard = self._idle.value, self._soft_back_pressure.value, self.hard_back_pressure.value
        is_running = self._start_ns is not None and self._end_ns is None
        return {
            "idle_ms_per_second": idle,
            "busy_ms_per_second": max(0, _MS_PER_S - idle - soft - hard) if is_running else 0,
            "soft_back_pressured_ms_per_second": soft,
            "hard_back_pressured_ms_per_second": hard,
            "max_soft_back_pressure_ms": self._soft_back_pressure.max_single_measurement_ms,
            "max_hard_back_pressure_ms": self.hard_back_pressure.max_single_measurement_ms,
            "is_back_pressured": self._soft_back_pressure.is_measuring or self.hard_back_pressure.is_measuring,
        }


# While a task ends, mails may post mails.  After this many rounds the task fails, as they seem to have no end.  Not
# measured.
_MAX_DRAIN_ROUNDS = 1_000


@dataclass(eq=False)
class MailboxExecutor:
    """Puts mails of one priority into a task's mailbox.

    Threading: ``execute`` from any thread, all other methods on the mailbox thread.

    Raises: ``execute`` raises MailboxClosedError if the mailbox is quiesced or closed, methods that run mails if it is
        closed.
    """

    mailbox: TaskMailbox
    priority: int = MIN_PRIORITY
    run_mail: Callable[[Mail], None] = Mail.run
    run_action: RunAction = run_directly

    def __repr__(self) -> str:
        return f"<MailboxExecutor of priority {self.priority} for {self.mailbox!r}>"

    @property
    def should_interrupt(self) -> bool:
        """Whether a mail waits, so that long work in one mail, such as many timers, should post its rest as a mail
        (FLINK-20217).
        """
        return self.mailbox.has_mail

    def execute(
        self, action: Callable[[], object], description: str, *args: object, options: MailOptions = MailOptions.DEFAULT
    ) -> None:
        """Run ``action`` on the mailbox thread; if it raises, the task fails."""
        mail = Mail(action, self.priority, description, *args, options=options, run_action=self.run_action)
        self.mailbox.put_threadsafe(mail)

    def yield_(self) -> None:
        """Wait for a mail of at least this executor's priority, and run it."""
        self.run_mail(self.mailbox.take(self.priority))

    def try_yield(self) -> bool:
        """Run one mail of at least this executor's priority; False if there is none."""
        mail = self.mailbox.try_take(self.priority)
        if mail is None:
            return False
        self.run_mail(mail)
        return True

    def yield_until(self, signal: AvailabilityFuture) -> None:
        """Run mails of at least this executor's priority until the signal is done; sleeps while there are none.

        Works on a quiesced mailbox, too: the signal wakes the task without a mail (FLINK-14231).
        """
        if signal.is_done:
            return
        wake = self.mailbox.wake_threadsafe
        # Before the first look: a signal that is done between a look and the wait then wakes the thread.
        signal.add_done_callback(wake)
        try:
            while (mail := self.mailbox.take_until(signal, self.priority)) is not None:
                self.run_mail(mail)
        finally:
            signal.remove_done_callback(wake)


class Suspension:
    """Lets a suspended default action run again."""

    __slots__ = ("_processor", "kind", "waiting_for")

    def __init__(self, processor: "MailboxProcessor", kind: WaitKind, waiting_for: str) -> None:
        self._processor = processor
        self.kind = kind
        self.waiting_for = waiting_for

    def __repr__(self) -> str:
        return f"<Suspension {self.kind.name} for {self.waiting_for}>"

    def resume(self) -> None:
        """Let the default action run again; any thread, any number of times, even after the mailbox was closed."""
        processor = self._processor
        if processor._suspension is not self:
            return  # outdated: the current one is stored before it is given out
        if processor.mailbox.is_mailbox_thread:
            processor._suspension = None
        else:
            processor.send_control_mail(self.resume, "resume the default action")


DefaultAction = Callable[["MailboxProcessor"], None]


@dataclass(eq=False)
class MailboxProcessor:
    """Runs mails and the default action of one task, on its thread or on a thread that stands in for it.

    Threading: the loop runs on the mailbox's thread; any thread may call ``send_control_mail``,
        ``all_actions_completed`` and ``try_run_parked``, and read ``waiting_for``.

    Args:
        default_action: processes a bounded piece of input.
        mailbox: the task's.
        timings: records when the thread waits, and for what.
        run_action: runs the actions of the mails of this loop's executors, but not control mails, so that it cannot
            delay a cancellation.
        after_long: called after a mail or a default action that took more than ``LONG_NS``.
    """

    default_action: DefaultAction
    mailbox: TaskMailbox
    timings: TaskTimings
    run_action: RunAction = run_directly
    after_long: Callable[[], None] = lambda: None
    num_mails_processed: int = field(init=False, default=0)  # Written by the mailbox thread.
    _is_completed: bool = field(init=False, default=False)  # Written by the mailbox thread.
    # Written by the mailbox thread; read anywhere for display.
    _suspension: Suspension | None = field(init=False, default=None)
    # Written by the mailbox thread before it parks: its context variables, for a thread that stands in.
    _context: Context = field(init=False, default_factory=Context)

    def __repr__(self) -> str:
        state = "COMPLETED" if self._is_completed else "RUNNING"
        return f"<MailboxProcessor {state}, waiting for {self.waiting_for}, {self.mailbox!r}>"

    @property
    def waiting_for(self) -> str | None:
        """The reason why the default action is suspended, in words; None if it is not suspended.  Any thread."""
        suspension = self._suspension
        return None if suspension is None else suspension.waiting_for

    def executor(self, priority: int = MIN_PRIORITY) -> MailboxExecutor:
        """An executor that puts mails for this loop."""
        return MailboxExecutor(self.mailbox, priority, run_mail=self._run_mail, run_action=self.run_action)

    # -- the loop

    def run_mailbox_loop(self) -> None:
        """Run until all actions are completed; parks the thread while there is no work.

        Raises:
            RuntimeError: called on another thread than the mailbox's.
            MailboxClosedError: the mailbox is not open.
        """
        self._enter()
        mailbox, timings = self.mailbox, self.timings
        interrupts, now_ns = mailbox.interrupts, timings.now_ns
        while not self._is_completed:
            if mailbox.create_batch():
                while (mail := mailbox.try_take_from_batch()) is not None:
                    self._run_mail(mail)
                    if self._is_completed:
                        break
            while self._suspension is not None and not self._is_completed:
                mail = mailbox.try_take()
                if mail is None:
                    timings.start_wait(self._suspension.kind)
                    self._context = copy_context()
                    try:
                        mail = mailbox.take(is_lending=True)
                    finally:
                        timings.end_wait()
                self._run_mail(mail)
            if not self._is_completed:
                if interrupts:  # without the lock: clear_interrupts looks again under it
                    mailbox.clear_interrupts()
                began_ns = now_ns()
                self.default_action(self)
                end_stranded_child()
                if now_ns() - began_ns > LONG_NS:
                    self.after_long()

    def run_mailbox_step(self) -> bool:
        """Run one mail, or else the default action once; False if there was neither.  For tests."""
        self._enter()
        self.mailbox.create_batch()
        mail = self.mailbox.try_take_from_batch()
        if mail is not None:
            self._run_mail(mail)
            return True
        if not self._is_completed and self._suspension is None:
            self.mailbox.clear_interrupts()
            self.default_action(self)
            return True
        return False

    def _enter(self) -> None:
        self.mailbox.check_mailbox_thread()
        if self.mailbox.state is not MailboxState.OPEN:
            raise MailboxClosedError(f"the loop cannot run, because its mailbox is not open: {self.mailbox!r}")
        self.timings.end_wait()

    def try_run_parked(self, suspension: Suspension, action: DefaultAction, now_ns: int) -> bool:
        """Run ``action`` on the calling thread in the place of the waiting mailbox thread, instead of resuming
        ``suspension``.  Any thread.

        Returns False if the mailbox thread does not wait.  ``action`` sees the context variables of that thread
        (decimal contexts, log fields), and changes none of the caller's.  The wait ends at ``now_ns``, which is noted
        only after ``action``, so that the arrived data need not wait.  ``action`` must suspend the default action again
        when there is no more work.  If it does not, or raises, the mailbox thread goes on with the default action, or
        with the error.  ``action`` must not block, and takes no mails.
        """
        if self._suspension is not suspension or not self.mailbox.try_borrow():
            return False
        try:
            if self._suspension is suspension:  # it may have changed before try_borrow
                self._run_borrowed(action, now_ns)
        finally:
            self.mailbox.give_back()
        return True

    def _run_borrowed(self, action: DefaultAction, now_ns: int) -> None:
        self._suspension = None
        try:
            self._context.run(action, self)
        except BaseException as error:  # noqa: BLE001 - the error is the task's: the mailbox thread raises it
            self.send_control_mail(partial(_raise, error), "raise what was raised in its place")
            return
        finally:
            self.timings.end_wait(now_ns)
        if self._suspension is None:
            self.send_control_mail(lambda: None, "go on with the default action")
        else:
            self.timings.start_wait(self._suspension.kind)

    def _run_mail(self, mail: Mail) -> None:
        self.num_mails_processed += 1
        began_ns = self.timings.now_ns()
        mail.run()
        end_stranded_child()
        if self.timings.now_ns() - began_ns > LONG_NS:
            self.after_long()

    # -- control

    def send_control_mail(self, action: Callable[[], object], description: str, *args: object) -> bool:
        """Run ``action`` before all ordinary mails, even inside an operator's yield; False if the mailbox accepts no
        more mails.
        """
        return self.mailbox.try_put_threadsafe(
            Mail(action, MAX_PRIORITY, description, *args, options=MailOptions.URGENT)
        )

    def all_actions_completed(self) -> None:
        """End the loop for good, after the urgent mails that wait already; any thread."""
        self.send_control_mail(self._complete, "all actions completed")

    def _complete(self) -> None:
        self._is_completed = True

    def suspend_default_action(self, kind: WaitKind, waiting_for: str) -> Suspension:
        """Do not call the default action until the suspension is resumed; the wait counts as ``kind``.

        Raises:
            RuntimeError: called on another thread, or the default action is suspended already.
        """
        self.mailbox.check_mailbox_thread()
        if self._suspension is not None:
            raise RuntimeError(f"the default action is suspended already: {self._suspension!r}")
        self._suspension = Suspension(self, kind, waiting_for)
        return self._suspension

    # -- ending

    def run_all_mails(self) -> None:
        """Run all mails, and those that they post, until there are none.

        Raises FlowletError if mails keep posting mails.
        """
        for _ in range(_MAX_DRAIN_ROUNDS):
            if not self.mailbox.create_batch():
                return
            while (mail := self.mailbox.try_take_from_batch()) is not None:
                self._run_mail(mail)
        raise FlowletError(
            f"the task cannot end: mails still post mails after {_MAX_DRAIN_ROUNDS} rounds; {self.mailbox!r}"
        )

    def quiesce_when_empty(self) -> None:
        """Run all mails, and those that they post, then accept no more: every accepted mail has run.

        Raises:
            FlowletError: mails keep posting mails.
        """
        for _ in range(_MAX_DRAIN_ROUNDS):
            # Its last look and the quiesce are two steps; a mail that comes between them begins another round.
            self.run_all_mails()
            # A mail may have come since the last look: then it has to run first.
            if self.mailbox.try_quiesce():
                return
        raise FlowletError(
            f"the task cannot end: mails still arrive after {_MAX_DRAIN_ROUNDS} rounds; {self.mailbox!r}"
        )

    def close(self) -> None:
        """Close the mailbox and cancel the remaining mails."""
        # A thread may wait for the result of one: it must learn that none comes.
        for mail in self.mailbox.close():
            mail.try_cancel()


def _raise(error: BaseException) -> NoReturn:
    raise error
