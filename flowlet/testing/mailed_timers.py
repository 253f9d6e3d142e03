"""A manual clock whose timers come as mails, as in a task.

Side:       any.
Invariants: a callback runs inside a mail of its operator, never inside the call that registers it or that moves the clock, and not after
            its timer was called off.
Units:      milliseconds.
Source:     Flink ``TestProcessingTimeService`` behind ``ProcessingTimeServiceImpl``.
"""

from collections.abc import Callable

from flowlet.mailbox.mailbox_executor import MailboxExecutor
from flowlet.testing.manual_processing_time_service import ManualTimer, TestProcessingTimeService

TimerCallback = Callable[[int], object]


class MailedTimer:
    """A timer that can be called off, also while its mail waits."""

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
        """Do not fire (again)."""
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
            # After the call, as the real one: a long jump of the clock is one late call, not one for each period.
            self._timer = self._clock.register_timer(self._clock.current_time_ms() + self._period_ms, self._put_mail)


class MailedProcessingTimeService:
    """The clock of an operator in a harness.

    Args:
        clock: fires when the test moves it.
        executor: puts the mails, with the priority of the operator.
    """

    def __init__(self, clock: TestProcessingTimeService, executor: MailboxExecutor) -> None:
        self._clock = clock
        self._executor = executor

    def __repr__(self) -> str:
        return f"<MailedProcessingTimeService on {self._clock!r}>"

    def current_time_ms(self) -> int:
        """Now."""
        return self._clock.current_time_ms()

    def relative_time_ns(self) -> int:
        """Now; the consumers of a harness hold nobody back."""
        return self._clock.relative_time_ns()

    def register_timer(self, timestamp_ms: int, callback: TimerCallback) -> MailedTimer:
        """Have ``callback(timestamp_ms)`` called by a mail once the clock is moved to ``timestamp_ms`` or further."""
        return MailedTimer(self._clock, self._executor, callback, timestamp_ms)

    def schedule_with_fixed_delay(self, callback: TimerCallback, *, initial_delay_ms: int, period_ms: int) -> MailedTimer:
        """Have ``callback(t)`` called again and again, ``period_ms`` after the call before it."""
        first_ms = self._clock.current_time_ms() + initial_delay_ms
        return MailedTimer(self._clock, self._executor, callback, first_ms, period_ms)
