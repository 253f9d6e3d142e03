"""One mail for the mailbox thread, and how it is treated.

Side:       shared.  Made on any thread, run on the mailbox thread.
Invariants: a mail never changes.  ``priority`` decides which yields of operators see it; ``sender_priority`` decides at
            the end of an operator.
Source:     Flink ``Mail``, ``MailOptionsImpl``; without ``WrappingRuntimeException``, because Python's errors need no
            wrapping.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from flowlet.mailbox.stream_task_action_executor import IMMEDIATE, StreamTaskActionExecutor

MIN_PRIORITY: Final = -1
MAX_PRIORITY: Final = 2**31 - 1


class MailOptions(Enum):
    """DEFAULT: run in order.  DEFERRABLE: hidden from the yields of operators.  URGENT: before all other mails."""

    DEFAULT = auto()
    DEFERRABLE = auto()
    URGENT = auto()


class Mail:
    """An action for the mailbox thread.

    ``priority`` does not order mails: a take for priority p sees only mails of priority >= p, so an operator that
    yields never runs mails of the operators before it.  A deferrable mail always has the lowest priority.

    Args:
        action: called without arguments on the mailbox thread.  If it has a method ``cancel``, that is called when the
            mail is dropped.
        priority: index of the operator in the chain, or MIN_PRIORITY or MAX_PRIORITY.
        description: a ``%`` format, expanded with ``args`` only on demand.
        args: for ``description``.
        options: how the mail is treated.
        action_executor: runs the action.
    """

    __slots__ = ("_action", "_action_executor", "_args", "_description", "is_urgent", "priority", "sender_priority")

    def __init__(
        self,
        action: Callable[[], object],
        priority: int,
        description: str,
        *args: object,
        options: MailOptions = MailOptions.DEFAULT,
        action_executor: StreamTaskActionExecutor = IMMEDIATE,
    ) -> None:
        self._action = action
        self._action_executor = action_executor
        self._description = description
        self._args = args
        self.sender_priority = priority
        self.priority = MIN_PRIORITY if options is MailOptions.DEFERRABLE else priority
        self.is_urgent = options is MailOptions.URGENT

    def __repr__(self) -> str:
        return self._description % self._args if self._args else self._description

    def run(self) -> None:
        """Run the action; raises what it raises."""
        self._action_executor.call(self._action)

    def try_cancel(self) -> bool:
        """Cancel the action, so that nobody waits for its result; False if it cannot be cancelled."""
        cancel = getattr(self._action, "cancel", None)
        if cancel is None:
            return False
        cancel()
        return True
