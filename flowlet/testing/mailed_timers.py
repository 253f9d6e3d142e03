"""Timers of a manual clock whose callbacks run as mails, as in a task.

Side:       any.
Invariants: a callback runs in a mail of its operator, never in the call that registers it or moves the clock, and never
            after ``cancel``.
Source:     Flink ``TestProcessingTimeService`` behind ``ProcessingTimeServiceImpl``.
"""

from collections.abc import Callable

from flowlet.mailbox.mailbox_executor import MailboxExecutor
from flowlet.testing.manual_processing_time_service import ManualTimer, TestProcessingTimeService

TimerCallback = Callable[[int], object]


class MailedTimer:
    """A timer that can be cancelled even while its mail is pending."""

    __slots__ = ("_callback", "_clock", "_executor", "_is_done", "_period_ms", "_timer")

    def __init__(
        self,
        clock: TestProcessingTimeService,
        executor: MailboxExecutor,
        callback: TimerCallback,
        timestamp_ms: int,
        period_ms: int | None = None,
    ) -> None:
        self._clock = clock
        self._executor = executor
        self._callback = callback
        self._period_ms = period_ms  # None: fires once
        self._is_done = False
        self._timer: ManualTimer = clock.register_timer(timestamp_ms, self._put_mail)

    def cancel(self) -> None:
        """Prevent further calls."""
        self._is_done = True
        self._timer.cancel()

    def _put_mail(self, timestamp_ms: int) -> None:
        self._executor.execute(lambda: self._run(timestamp_ms), "timer for %s", timestamp_ms)

    def _run(self, timestamp_ms: int) -> None:
        if self._is_done:
            return
        self._callback(timestamp_ms)
        if self._period_ms is None:
            self._is_done = True
        elif not self._is_done:
            # From the end of the call, as the real service: after a long jump of the clock there is one late call, not
            # one per period.
            self._timer = self._clock.register_timer(self._clock.current_time_ms() + self._period_ms, self._put_mail)


class MailedProcessingTimeService:
    """The clock of an operator in a harness; ``executor`` puts the mails, with the operator's priority."""

    def __init__(self, clock: TestProcessingTimeService, executor: MailboxExecutor) -> None:
        self._clock = clock
        self._executor = executor

    def __repr__(self) -> str:
        return f"<MailedProcessingTimeService on {self._clock!r}>"

    def current_time_ms(self) -> int:
        """The time of the manual clock."""
        return self._clock.current_time_ms()

    def relative_time_ns(self) -> int:
        """The time of the manual clock; in a harness no backpressure is subtracted."""
        return self._clock.relative_time_ns()

    def register_timer(self, timestamp_ms: int, callback: TimerCallback) -> MailedTimer:
        """Call ``callback(timestamp_ms)`` in a mail once the clock has reached ``timestamp_ms``."""
        return MailedTimer(self._clock, self._executor, callback, timestamp_ms)

    def schedule_with_fixed_delay(
        self, callback: TimerCallback, *, initial_delay_ms: int, period_ms: int
    ) -> MailedTimer:
        """Call ``callback(t)`` repeatedly, ``period_ms`` after the end of the previous call."""
        first_ms = self._clock.current_time_ms() + initial_delay_ms
        return MailedTimer(self._clock, self._executor, callback, first_ms, period_ms)
