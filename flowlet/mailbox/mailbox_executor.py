"""Runs work of operators and other threads on the task thread.

Side:   shared for ``execute`` and ``submit``, task for methods that run mails.
Source: Flink ``MailboxExecutor``, ``MailboxExecutorImpl``; MailboxClosedError in place of
        ``RejectedExecutionException``.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from flowlet.errors import FlowletError
from flowlet.mailbox.mailbox_future import IMMEDIATE, MailboxFuture, Signal, StreamTaskActionExecutor
from flowlet.mailbox.task_mailbox import MIN_PRIORITY, Mail, MailOptions, TaskMailbox

# While an operator ends, mails may post mails.  After this many rounds they seem to do so for ever.  Not measured.
_MAX_LAST_ROUNDS = 1_000

T = TypeVar("T")


class _FutureAction(Generic[T]):
    """The action of a mail; its result, error or cancellation goes into ``future``."""

    __slots__ = ("_command", "future")

    def __init__(self, command: Callable[[], T], future: MailboxFuture[T]) -> None:
        self._command = command
        self.future = future

    def __call__(self) -> None:
        if not self.future.try_start():
            return
        try:
            result = self._command()
        except BaseException as error:
            self.future.fail(error)
            if not isinstance(error, Exception):
                raise  # a cancellation also concerns the task itself
        else:
            self.future.complete(result)

    def cancel(self) -> None:
        self.future.cancel()


class MailboxExecutor:
    """Puts mails of one priority into a task's mailbox.

    Threading: ``execute`` and ``submit`` from any thread, all other methods on the mailbox thread.

    Raises: ``execute`` and ``submit`` raise MailboxClosedError if the mailbox is quiesced or closed, methods that run
        mails if it is closed.
    """

    def __init__(
        self,
        mailbox: TaskMailbox,
        priority: int = MIN_PRIORITY,
        *,
        is_idle: Callable[[], bool] = lambda: False,
        run_mail: Callable[[Mail], None] = Mail.run,
        action_executor: StreamTaskActionExecutor = IMMEDIATE,
    ) -> None:
        self._mailbox = mailbox
        self._priority = priority
        self._is_idle = is_idle
        self._run_mail = run_mail
        self._action_executor = action_executor

    def __repr__(self) -> str:
        return f"<MailboxExecutor of priority {self._priority} for {self._mailbox!r}>"

    @property
    def is_idle(self) -> bool:
        """Whether the default action is suspended and no mail waits."""
        return self._is_idle()

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
        mail = Mail(action, self._priority, description, *args, options=options, action_executor=self._action_executor)
        self._mailbox.put_threadsafe(mail)

    def submit(
        self, command: Callable[[], T], description: str, *args: object, options: MailOptions = MailOptions.DEFAULT
    ) -> MailboxFuture[T]:
        """As ``execute``, but its result or error goes into the future, which is cancelled if the task ends first.

        A coroutine awaits the future, another thread calls ``result``, the mailbox thread calls ``yield_until`` with
        it.
        """
        action = _FutureAction(command, MailboxFuture(lambda: self._mailbox.is_mailbox_thread))
        self.execute(action, description, *args, options=options)
        return action.future

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

    def yield_until(self, signal: Signal) -> None:
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

    def run_last_mails(self) -> None:
        """Run all mails of at least this executor's priority, also deferrable ones and those that they post; for the
        end of an operator.

        Raises:
            FlowletError: mails keep posting mails.
        """
        for _ in range(_MAX_LAST_ROUNDS):
            for _ in range(max(1, self._mailbox.num_mails)):
                mail = self._mailbox.try_take_of_sender(self._priority)
                if mail is None:
                    return
                self._run_mail(mail)
        raise FlowletError(
            f"an operator cannot end: its mails still post mails after {_MAX_LAST_ROUNDS} rounds; {self._mailbox!r}"
        )
