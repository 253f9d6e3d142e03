"""Timers whose calls are mails, so that they run on the task thread.

Side:   shared.
Source: Flink ``BarrierAlignmentUtil.createRegisterTimerCallback``.
"""

from collections.abc import Callable

from flowlet.errors import MailboxClosedError
from flowlet.mailbox.mailbox_executor import MailboxExecutor
from flowlet.mailbox.task_mailbox import MailOptions
from netstack.timers import Timers


class MailboxTimers:
    """Hands each call that is due to a mailbox; it satisfies ``Timers``.

    Threading: ``call_later`` and the cancel that it returns on the task thread: after the cancel the call is not made, even if its mail is
    under way.
    """

    def __init__(self, timers: Timers, executor: MailboxExecutor, description: str) -> None:
        self._timers = timers
        self._executor = executor
        self._description = description

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Callable[[], None]:
        """Have ``call`` made once on the task thread; returns what cancels it."""
        is_cancelled = False

        def run() -> None:
            if not is_cancelled:
                call()

        def post() -> None:
            try:
                self._executor.execute(run, self._description, options=MailOptions.URGENT)
            except MailboxClosedError:
                return  # the task has ended, and with it what was timed

        cancel_timer = self._timers.call_later(delay_ms, post)

        def cancel() -> None:
            nonlocal is_cancelled
            is_cancelled = True
            cancel_timer()

        return cancel
