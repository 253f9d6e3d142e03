"""Runs work of operators and other threads on the task thread.

Side:   shared for ``execute``, task for methods that run mails.
Source: Flink ``MailboxExecutor``, ``MailboxExecutorImpl``; MailboxClosedError in place of
        ``RejectedExecutionException``.
"""

from collections.abc import Callable

from flowlet.mailbox.task_mailbox import MIN_PRIORITY, Mail, MailOptions, RunAction, TaskMailbox, run_directly
from netstack.availability import AvailabilityFuture


class MailboxExecutor:
    """Puts mails of one priority into a task's mailbox.

    Threading: ``execute`` from any thread, all other methods on the mailbox thread.

    Raises: ``execute`` raises MailboxClosedError if the mailbox is quiesced or closed, methods that run mails if it is
        closed.
    """

    def __init__(
        self,
        mailbox: TaskMailbox,
        priority: int = MIN_PRIORITY,
        *,
        run_mail: Callable[[Mail], None] = Mail.run,
        run_action: RunAction = run_directly,
    ) -> None:
        self._mailbox = mailbox
        self._priority = priority
        self._run_mail = run_mail
        self._run_action = run_action

    def __repr__(self) -> str:
        return f"<MailboxExecutor of priority {self._priority} for {self._mailbox!r}>"

    @property
    def should_interrupt(self) -> bool:
        """Whether a mail waits: then long work in one mail, such as many timers, should post its rest as a mail
        (FLINK-20217).
        """
        return self._mailbox.has_mail

    def execute(
        self, action: Callable[[], object], description: str, *args: object, options: MailOptions = MailOptions.DEFAULT
    ) -> None:
        """Run ``action`` on the mailbox thread; if it raises, the task fails."""
        mail = Mail(action, self._priority, description, *args, options=options, run_action=self._run_action)
        self._mailbox.put_threadsafe(mail)

    def yield_(self) -> None:
        """Wait for a mail of at least this executor's priority, and run it."""
        self._run_mail(self._mailbox.take(self._priority))

    def try_yield(self) -> bool:
        """Run one mail of at least this executor's priority; False if there is none."""
        mail = self._mailbox.try_take(self._priority)
        if mail is None:
            return False
        self._run_mail(mail)
        return True

    def yield_until(self, signal: AvailabilityFuture) -> None:
        """Run mails of at least this executor's priority until the signal is done; sleeps while there are none.

        Works on a quiesced mailbox, too: the signal wakes the task without a mail (FLINK-14231).
        """
        if signal.is_done:
            return
        wake = self._mailbox.wake_threadsafe
        signal.add_done_callback(wake)
        try:
            while (mail := self._mailbox.take_until(signal, self._priority)) is not None:
                self._run_mail(mail)
        finally:
            signal.remove_done_callback(wake)
