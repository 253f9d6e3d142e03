"""``MailboxTimers``: timers whose calls are mails, so that they run on the task thread.

Side:   shared.
Source: Flink ``BarrierAlignmentUtil.createRegisterTimerCallback``.
"""

from collections.abc import Callable

from flowlet.errors import MailboxClosedError
from flowlet.mailbox.mailbox_executor import MailboxExecutor
from flowlet.mailbox.task_mailbox import MailOptions
from netstack.timers import Timers


class MailboxTimers:
    """Implements ``Timers``.

    Threading: ``call_later`` and the returned cancel on the task thread; after the cancel the call is not made, even if
               its mail is queued.
    """

    def __init__(self, timers: Timers, executor: MailboxExecutor, description: str) -> None:
        self._timers = timers
        self._executor = executor
        self._description = description

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Callable[[], None]:
        """Make ``call`` once, on the task thread; return a function that cancels it."""
        is_cancelled = False

        def run() -> None:
            if not is_cancelled:
                call()

        def post() -> None:
            try:
                self._executor.execute(run, self._description, options=MailOptions.URGENT)
            except MailboxClosedError:
                return  # the task has ended

        cancel_timer = self._timers.call_later(delay_ms, post)

        def cancel() -> None:
            nonlocal is_cancelled
            is_cancelled = True
            cancel_timer()

        return cancel
