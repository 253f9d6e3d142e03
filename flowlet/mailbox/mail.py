"""One letter for the mailbox thread, and how it is treated.

Side:       shared.  Made on any thread, run on the mailbox thread.
Invariants: a mail never changes; ``priority`` is what yields of operators see, ``sender_priority`` what the end of an operator sees.
Source:     Flink ``Mail``, ``MailOptionsImpl``.  ``WrappingRuntimeException`` has no counterpart: Python's errors need no wrapping.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from flowlet.mailbox.stream_task_action_executor import IMMEDIATE, StreamTaskActionExecutor

MIN_PRIORITY: Final = -1
MAX_PRIORITY: Final = 2**31 - 1


class MailOptions(Enum):
    """How a mail is treated: in order, invisible to the yields of operators, or ahead of all others."""

    DEFAULT = auto()
    DEFERRABLE = auto()
    URGENT = auto()


class Mail:
    """One action for the mailbox thread.

    ``priority`` does not order: a take for priority p sees only mails of priority >= p, so that an operator that yields never runs the
    mails of the operators before it.  A deferrable mail has the lowest priority whatever its sender's.

    Args:
        action: called without arguments on the mailbox thread; if it has a method ``cancel``, that is called when the mail is dropped.
        priority: index of the operator in the chain, or MIN_PRIORITY / MAX_PRIORITY.
        description: ``%`` format, expanded only when somebody looks.
        args: arguments of ``description``.
        options: one of ``MailOptions``.
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
        """Run the action; its exception is the caller's."""
        self._action_executor.call(self._action)

    def try_cancel(self) -> bool:
        """Tell whoever waits for the result that it will not come; False when nobody can wait for it."""
        cancel = getattr(self._action, "cancel", None)
        if cancel is None:
            return False
        cancel()
        return True
