"""How operators and other threads get work done on the task thread.

Side:   shared for ``execute`` and ``submit``, task for ``yield_`` and ``try_yield``.
Source: Flink ``MailboxExecutor``, ``MailboxExecutorImpl``.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from flowlet.task.mailbox import MIN_PRIORITY, Mail, MailOptions, TaskMailbox

T = TypeVar("T")


class _FutureAction(Generic[T]):
    """A mail's action whose result, or whose being dropped, ends up in a future."""

    __slots__ = ("_command", "future")

    def __init__(self, command: Callable[[], T]) -> None:
        self._command = command
        self.future: Future[T] = Future()

    def __call__(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._command()
        except BaseException as error:
            self.future.set_exception(error)
            if not isinstance(error, Exception):
                raise  # a cancellation is the task's own business as well
        else:
            self.future.set_result(result)

    def cancel(self) -> None:
        self.future.cancel()


class MailboxExecutor:
    """Puts mails of one priority into a task's mailbox.

    Threading: ``execute`` and ``submit`` from any thread; ``yield_``, ``try_yield`` and ``is_idle`` on the mailbox thread.
    """

    def __init__(
        self,
        mailbox: TaskMailbox,
        priority: int = MIN_PRIORITY,
        *,
        is_idle: Callable[[], bool] = lambda: False,
        run_mail: Callable[[Mail], None] = Mail.run,
    ) -> None:
        self._mailbox = mailbox
        self._priority = priority
        self._is_idle = is_idle
        self._run_mail = run_mail

    def __repr__(self) -> str:
        return f"<MailboxExecutor of priority {self._priority} for {self._mailbox!r}>"

    @property
    def is_idle(self) -> bool:
        """Whether the task waits and has no mail."""
        return self._is_idle()

    def execute(self, action: Callable[[], object], description: str, *args: object, options: MailOptions = MailOptions.DEFAULT) -> None:
        """Have ``action`` run on the mailbox thread; an exception out of it fails the task.

        Raises:
            MailboxClosedError: the task takes no more mails.
        """
        self._mailbox.put_threadsafe(Mail(action, self._priority, description, *args, options=options))

    def submit(self, command: Callable[[], T], description: str, *args: object) -> Future[T]:
        """As ``execute``; result or exception goes into the future, which is cancelled if the task ends before.

        Raises:
            MailboxClosedError: the task takes no more mails.
        """
        action = _FutureAction(command)
        self.execute(action, description, *args)
        return action.future

    def yield_(self) -> None:
        """Run one mail of at least this executor's priority; waits for one.

        Raises:
            MailboxClosedError: the mailbox is closed.
        """
        self._run_mail(self._mailbox.take(self._priority))

    def try_yield(self) -> bool:
        """Run one mail of at least this executor's priority; False when there is none.

        Raises:
            MailboxClosedError: the mailbox is closed.
        """
        mail = self._mailbox.try_take(self._priority)
        if mail is None:
            return False
        self._run_mail(mail)
        return True
