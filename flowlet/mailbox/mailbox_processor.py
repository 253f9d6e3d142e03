"""The loop of one task: mails first, then the default action.

Measures how long mails wait, how many run, and how many are queued.

Side:       task.
Invariants: at most one measuring mail or one timer is pending, so they do not pile up in a stuck task.  A reader gets
            one consistent tuple, which a single attribute store replaces.  the default action may run exactly when
            ``_suspension`` is None.  A mail sees all effects of the mails before it.  An error of a mail or of the
            default action leaves the loop unchanged.
Units:      nanoseconds of a monotonic clock inside; milliseconds and mails per second outside.
Source:     Flink ``MailboxMetricsController`` (one measuring mail per second, a histogram of the last 60),
            ``MeterView`` for ``mailboxMailsPerSecond``, ``mailboxLatencyMs``, ``mailboxQueueSize``.  No thread updates
            meters here: measuring mails take the samples, and a reader adds the time since the last one.  Flink
            ``MailboxProcessor``, ``MailboxDefaultAction``, ``MailboxController``.  Flink stops its idle timer around
            mails; here a wait lasts from the park of the thread to its wake-up, which measures the same.
"""

from collections.abc import Callable
from contextvars import Context, copy_context
from enum import Enum, auto
from functools import partial
from typing import NoReturn

from flowlet.errors import FlowletError, MailboxClosedError
from flowlet.mailbox.mailbox_executor import MailboxExecutor
from flowlet.mailbox.mailbox_future import IMMEDIATE, Signal, StreamTaskActionExecutor
from flowlet.mailbox.task_mailbox import MAX_PRIORITY, MIN_PRIORITY, Mail, MailboxState, MailOptions, TaskMailbox
from flowlet.mailbox.task_timings import LONG_NS, TaskTimings, WaitKind
from netstack.late import dataclass
from netstack.loop.forks import end_stranded_child
from netstack.loop.loop_timers import Cancellable, ScheduleTimer

# Flink's ``MailboxMetricsController``: one value per second, 60 values.
MEASUREMENT_INTERVAL_MS = 1_000
NUM_SAMPLES = 60
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_METER_WINDOW_NS = 60 * _NS_PER_S  # as Flink's ``MeterView``


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """How long the last measuring mails waited, in milliseconds; zeros if there were none."""

    count: int
    min_ms: float
    max_ms: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class MailboxMetrics:
    """Flink's ``mailboxMailsPerSecond``, ``mailboxLatencyMs`` and ``mailboxQueueSize`` of one task."""

    mails_per_second: float
    latency: LatencyHistogram
    queue_size: int


def histogram_of(latencies_ns: tuple[int, ...]) -> LatencyHistogram:
    """Summarise nanoseconds; a percentile p is the smallest value that at least p percent of the
    values do not exceed.
    """
    if not latencies_ns:
        return LatencyHistogram(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    ordered = sorted(latencies_ns)

    def percentile_ms(percent: int) -> float:
        return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] / _NS_PER_MS

    mean_ms = sum(ordered) / len(ordered) / _NS_PER_MS
    return LatencyHistogram(
        count=len(ordered),
        min_ms=ordered[0] / _NS_PER_MS,
        max_ms=ordered[-1] / _NS_PER_MS,
        mean_ms=mean_ms,
        p50_ms=percentile_ms(50),
        p95_ms=percentile_ms(95),
        p99_ms=percentile_ms(99),
    )


class LatencyProbe:
    """Posts a mail to itself at intervals and measures how long it waits.

    Threading: ``start`` and ``close`` on the mailbox thread, ``metrics`` on any.
    Life cycle: ``start`` once -> ``close`` in every state, any number of times.

    Args:
        mailbox: the mailbox to measure.
        num_mails_processed: returns how many mails the task has run.
        schedule_timer: calls a function after a delay in seconds, on any thread.
        clock_ns: monotonic.
        interval_ms: from the end of one measurement to the next.
    """

    def __init__(
        self,
        mailbox: TaskMailbox,
        num_mails_processed: Callable[[], int],
        schedule_timer: ScheduleTimer,
        clock_ns: Callable[[], int],
        *,
        interval_ms: int = MEASUREMENT_INTERVAL_MS,
    ) -> None:
        if interval_ms <= 0:
            raise ValueError(f"a mailbox is measured at intervals above 0 ms, not {interval_ms}")
        self._mailbox = mailbox
        self._num_mails_processed = num_mails_processed
        self._schedule_timer = schedule_timer
        self._clock_ns = clock_ns
        self._interval_s = interval_ms / 1_000
        self._latencies_ns: tuple[int, ...] = ()  # Written by the mailbox thread; replaced, never changed.
        # (time, mails so far), oldest first.  Written by the mailbox thread; replaced, never changed.
        self._samples: tuple[tuple[int, int], ...] = ((clock_ns(), num_mails_processed()),)
        self._timer: Cancellable | None = None  # Written by the mailbox thread.
        self._is_closed = False  # Written by the mailbox thread; a timer that misses it posts a mail that does nothing.

    def __repr__(self) -> str:
        return f"<LatencyProbe {len(self._latencies_ns)} samples, {'closed' if self._is_closed else 'open'}>"

    def start(self) -> None:
        """Post the first measuring mail."""
        self._post()

    def close(self) -> None:
        """Stop measuring."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _post(self) -> None:
        posted_ns = self._clock_ns()
        # The mailbox refuses the mail when the task ends; then nobody needs the measurement.
        self._mailbox.try_put_threadsafe(
            Mail(lambda: self._measure(posted_ns), MIN_PRIORITY, "measure the mailbox's latency")
        )

    def _measure(self, posted_ns: int) -> None:
        if self._is_closed:
            return
        now_ns = self._clock_ns()
        self._latencies_ns = (*self._latencies_ns, now_ns - posted_ns)[-NUM_SAMPLES:]
        self._samples = self._recent(now_ns, (*self._samples, (now_ns, self._num_mails_processed())))
        self._timer = self._schedule_timer(self._interval_s, self._post)

    def _recent(self, now_ns: int, samples: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """The samples of the last minute, at least one."""
        return tuple(sample for sample in samples[:-1] if now_ns - sample[0] <= _METER_WINDOW_NS) + samples[-1:]

    def metrics(self) -> MailboxMetrics:
        """The present values; any thread."""
        return MailboxMetrics(self._mails_per_second(), histogram_of(self._latencies_ns), self._mailbox.num_mails)

    def _mails_per_second(self) -> float:
        now_ns = self._clock_ns()
        since_ns, num_before = self._recent(now_ns, self._samples)[0]
        elapsed_ns = now_ns - since_ns
        return 0.0 if elapsed_ns <= 0 else (self._num_mails_processed() - num_before) * _NS_PER_S / elapsed_ns


# While a task ends, mails may post mails.  After this many rounds they seem to do so for ever.  Not measured.
_MAX_DRAIN_ROUNDS = 1_000


class LoopState(Enum):
    """Whether the loop runs."""

    RUNNING = auto()
    SUSPENDED = auto()  # left by ``suspend``; the next ``run_mailbox_loop`` continues
    COMPLETED = auto()  # left by ``all_actions_completed``, for good


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
        self._processor.resume(self)


class MailboxController:
    """What a default action may tell the loop that runs it."""

    __slots__ = ("_processor",)

    def __init__(self, processor: "MailboxProcessor") -> None:
        self._processor = processor

    def all_actions_completed(self) -> None:
        """End the loop: the default action never runs again."""
        self._processor.all_actions_completed()

    def suspend_default_action(self, kind: WaitKind, waiting_for: str) -> Suspension:
        """Do not call the default action until the suspension is resumed; the wait counts as ``kind``.

        Raises:
            RuntimeError: called on another thread, or the default action is suspended already.
        """
        return self._processor.suspend_default_action(kind, waiting_for)

    def suspend_until(self, signal: Signal, kind: WaitKind, waiting_for: str) -> None:
        """As ``suspend_default_action``; the signal (a gate has data, a pool has buffers) resumes it, at once if it is
        done already.
        """
        signal.add_done_callback(self._processor.suspend_default_action(kind, waiting_for).resume)


DefaultAction = Callable[[MailboxController], None]


class MailboxProcessor:
    """Runs mails and the default action of one task, on its thread or on one that stands in for it.

    Threading: the loop runs on the mailbox's thread; any thread may call the four methods named in the module header.

    Args:
        default_action: processes a bounded piece of input.
        mailbox: the task's.
        timings: records when the thread waits, and for what.
        action_executor: runs the mails of this loop's executors.  It does not run control mails, so no lock can delay a
            cancellation.
        after_long: called after a mail or a default action that took more than ``LONG_NS``.
    """

    def __init__(
        self,
        default_action: DefaultAction,
        mailbox: TaskMailbox,
        timings: TaskTimings,
        *,
        action_executor: StreamTaskActionExecutor = IMMEDIATE,
        after_long: Callable[[], None] = lambda: None,
    ) -> None:
        self._default_action = default_action
        self._mailbox = mailbox
        self._timings = timings
        self._controller = MailboxController(self)
        self._state = LoopState.RUNNING  # Written by the mailbox thread.
        self._suspension: Suspension | None = None  # Written by the mailbox thread; read anywhere for display.
        self._num_mails = 0  # Written by the mailbox thread.
        # Written by the mailbox thread before it parks: its context variables, for a thread that stands in.
        self._context = Context()
        self._action_executor = action_executor
        self._after_long = after_long
        # Mailbox thread once the loop runs; starts after the first ordinary mail.
        self._waiting_probe: LatencyProbe | None = None
        self._probe: LatencyProbe | None = None

    def __repr__(self) -> str:
        return f"<MailboxProcessor {self._state.name}, waiting for {self.waiting_for}, {self._mailbox!r}>"

    @property
    def waiting_for(self) -> str | None:
        """What the suspended default action waits for, in words; None if it is not suspended.  Any thread."""
        suspension = self._suspension
        return None if suspension is None else suspension.waiting_for

    @property
    def num_mails_processed(self) -> int:
        """Mails run so far."""
        return self._num_mails

    @property
    def is_default_action_available(self) -> bool:
        """Whether the default action is not suspended."""
        return self._suspension is None

    @property
    def is_idle(self) -> bool:
        """Whether nothing can happen until another thread puts a mail."""
        return self._suspension is not None and not self._mailbox.has_mail and self._mailbox.state is MailboxState.OPEN

    def executor(self, priority: int = MIN_PRIORITY) -> MailboxExecutor:
        """An executor that puts mails for this loop."""
        return MailboxExecutor(
            self._mailbox,
            priority,
            is_idle=lambda: self.is_idle,
            run_mail=self._run_mail,
            action_executor=self._action_executor,
        )

    def measure_latency(self, probe: LatencyProbe) -> None:
        """Start the probe after the first ordinary mail, and close it with the loop; call once,
        before the loop runs.
        """
        self._probe = self._waiting_probe = probe

    # -- the loop

    def run_mailbox_loop(self) -> None:
        """Run until all actions are completed or the loop is suspended; parks the thread while there is no work.

        Raises:
            RuntimeError: called on another thread than the mailbox's.
            MailboxClosedError: the mailbox is not open.
        """
        self._enter()
        interrupts, now_ns = self._mailbox.interrupts, self._timings.now_ns
        while self._state is LoopState.RUNNING:
            self._process_mails()
            if self._state is LoopState.RUNNING:
                if interrupts:
                    self._mailbox.clear_interrupts()
                began_ns = now_ns()
                self._default_action(self._controller)
                end_stranded_child()
                if now_ns() - began_ns > LONG_NS:
                    self._after_long()

    def run_mailbox_step(self) -> bool:
        """Run one mail, or else the default action once; False if there was neither.  For tests."""
        self._enter()
        self._mailbox.create_batch()
        mail = self._mailbox.try_take_from_batch()
        if mail is not None:
            self._run_mail(mail)
            return True
        if self._state is LoopState.RUNNING and self._suspension is None:
            self._mailbox.clear_interrupts()
            self._default_action(self._controller)
            return True
        return False

    def _enter(self) -> None:
        self._mailbox.check_mailbox_thread()
        if self._mailbox.state is not MailboxState.OPEN:
            raise MailboxClosedError(f"the loop cannot run, because its mailbox is not open: {self._mailbox!r}")
        self._timings.end_wait()
        if self._state is LoopState.SUSPENDED:
            self._state = LoopState.RUNNING

    def _process_mails(self) -> None:
        self._process_batch()
        while self._suspension is not None and self._state is LoopState.RUNNING:
            mail = self._mailbox.try_take()
            if mail is None:
                mail = self._park(self._suspension.kind)
            self._run_mail(mail)

    def _process_batch(self) -> None:
        if not self._mailbox.create_batch():
            return
        while self._state is LoopState.RUNNING and (mail := self._mailbox.try_take_from_batch()) is not None:
            self._run_mail(mail)

    def _park(self, kind: WaitKind) -> Mail:
        self._timings.start_wait(kind)
        self._context = copy_context()
        try:
            return self._mailbox.take(is_lending=True)
        finally:
            self._timings.end_wait()

    def try_run_parked(self, suspension: Suspension, action: DefaultAction, now_ns: int) -> bool:
        """Run ``action`` on the calling thread in the place of the waiting mailbox thread, instead of resuming
        ``suspension``.  Any thread.

        Returns False if the mailbox thread does not wait.  ``action`` sees the context variables of that thread
        (decimal contexts, log fields), and changes none of the caller's.  The wait ends at ``now_ns``, which is noted
        only after ``action``, so that the arrived data need not wait.  Like the default action, ``action`` suspends it
        again when there is no more work.  If it does not, or raises, the mailbox thread goes on with the default
        action, or with the error.  It must not block, and takes no mails.
        """
        if self._suspension is not suspension or not self._mailbox.try_borrow():
            return False
        try:
            if self._suspension is suspension:  # it may have changed before try_borrow
                self._run_borrowed(action, now_ns)
        finally:
            self._mailbox.give_back()
        return True

    def _run_borrowed(self, action: DefaultAction, now_ns: int) -> None:
        self._suspension = None
        try:
            self._context.run(action, self._controller)
        except BaseException as error:  # noqa: BLE001 - the error is the task's: the mailbox thread raises it
            self.send_control_mail(partial(_raise, error), "raise what was raised in its place")
            return
        finally:
            self._timings.end_wait(now_ns)
        if self._suspension is None:
            self.send_control_mail(_do_nothing, "go on with the default action")
        else:
            self._timings.start_wait(self._suspension.kind)

    def _run_mail(self, mail: Mail) -> None:
        self._num_mails += 1
        began_ns = self._timings.now_ns()
        mail.run()
        end_stranded_child()
        if self._timings.now_ns() - began_ns > LONG_NS:
            self._after_long()
        if self._waiting_probe is not None and not mail.is_urgent:
            probe, self._waiting_probe = self._waiting_probe, None
            probe.start()

    # -- control

    def send_control_mail(self, action: Callable[[], object], description: str, *args: object) -> bool:
        """Run ``action`` before all ordinary mails, even inside an operator's yield; False if the mailbox accepts no
        more mails.
        """
        return self._mailbox.try_put_threadsafe(
            Mail(action, MAX_PRIORITY, description, *args, options=MailOptions.URGENT)
        )

    def all_actions_completed(self) -> None:
        """End the loop for good, after the urgent mails that wait already; any thread."""
        self.send_control_mail(self._complete, "all actions completed")

    def suspend(self) -> None:
        """Make ``run_mailbox_loop`` return; the next call continues.  Any thread."""
        self.send_control_mail(self._suspend, "suspend the loop")

    def _complete(self) -> None:
        self._state = LoopState.COMPLETED

    def _suspend(self) -> None:
        if self._state is LoopState.RUNNING:
            self._state = LoopState.SUSPENDED

    def suspend_default_action(self, kind: WaitKind, waiting_for: str) -> Suspension:
        """See ``MailboxController.suspend_default_action``."""
        self._mailbox.check_mailbox_thread()
        if self._suspension is not None:
            raise RuntimeError(f"the default action is suspended already: {self._suspension!r}")
        self._suspension = Suspension(self, kind, waiting_for)
        return self._suspension

    def resume(self, suspension: Suspension) -> None:
        """See ``Suspension.resume``; ignores a suspension that is not the current one."""
        if self._suspension is not suspension:
            return  # outdated: the current one is stored before it is given out
        if self._mailbox.is_mailbox_thread:
            self._suspension = None
        else:
            self.send_control_mail(lambda: self.resume(suspension), "resume the default action")

    # -- ending

    def run_all_mails(self) -> None:
        """Run all mails, and those that they post, until there are none.

        Raises FlowletError if mails keep posting mails.
        """
        for _ in range(_MAX_DRAIN_ROUNDS):
            if not self._mailbox.create_batch():
                return
            while (mail := self._mailbox.try_take_from_batch()) is not None:
                self._run_mail(mail)
        raise FlowletError(
            f"the task cannot end: mails still post mails after {_MAX_DRAIN_ROUNDS} rounds; {self._mailbox!r}"
        )

    def quiesce_when_empty(self) -> None:
        """Run all mails, then accept no more: every accepted mail has run, and those that they posted.

        Raises:
            FlowletError: mails keep posting mails.
        """
        for _ in range(_MAX_DRAIN_ROUNDS):
            self.run_all_mails()
            if self._mailbox.try_quiesce():
                return
        raise FlowletError(
            f"the task cannot end: mails still arrive after {_MAX_DRAIN_ROUNDS} rounds; {self._mailbox!r}"
        )

    def close(self) -> None:
        """Close the mailbox and cancel the remaining mails."""
        if self._probe is not None:
            self._probe.close()
        for mail in self._mailbox.close():
            mail.try_cancel()


def _raise(error: BaseException) -> NoReturn:
    raise error


def _do_nothing() -> None:
    return
