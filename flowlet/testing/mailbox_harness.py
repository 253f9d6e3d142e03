"""A task's mailbox loop on the test's own thread, one step at a time.

Side:       any.
Invariants: nothing runs and no time passes unless the test says so; the loop never parks the thread.
Units:      nanoseconds of the manual clock.
Source:     Flink ``MailboxStepper`` and the mailbox parts of ``StreamTaskMailboxTestHarness``.
Absent:     operators and their inputs: see the operator harnesses.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from flowlet.mailbox.mailbox_executor import MailboxExecutor
from flowlet.mailbox.mailbox_future import Signal
from flowlet.mailbox.mailbox_processor import DefaultAction, MailboxController, MailboxProcessor
from flowlet.mailbox.stream_task_action_executor import IMMEDIATE, StreamTaskActionExecutor
from flowlet.mailbox.task_mailbox import MIN_PRIORITY, Mail, TaskMailbox
from flowlet.mailbox.task_timings import TaskTimings, WaitKind
from netstack.testing.embedded_event_loop import ManualClock

_MAX_STEPS: Final = 100_000  # only a mail that posts itself for ever needs more


def suspend(controller: MailboxController) -> None:
    """A default action without input, for tests of mails."""
    controller.suspend_default_action(WaitKind.IDLE, "the test")


def wait_for_ever() -> None:
    """Raise, because the operator waits for a mail and the test has said nothing about it."""
    raise AssertionError("the operator waits for a mail, but nothing in the test puts one")


class SteppedMailbox(TaskMailbox):
    """A mailbox whose thread never sleeps: instead it calls ``when_parked`` until the wait is over.

    ``when_parked`` must put a mail, end the wait in another way, or raise.
    """

    def __init__(self, when_parked: Callable[[], None] = wait_for_ever) -> None:
        super().__init__("harness")
        self.when_parked = when_parked

    def take(self, priority: int = MIN_PRIORITY, *, is_lending: bool = False) -> Mail:
        """As ``TaskMailbox.take``."""
        while (mail := self.try_take(priority)) is None:
            self.when_parked()
        return mail

    def take_until(self, signal: Signal, priority: int = MIN_PRIORITY) -> Mail | None:
        """As ``TaskMailbox.take_until``."""
        while not signal.is_done:
            if (mail := self.try_take(priority)) is not None:
                return mail
            self.when_parked()
        return None


class MailboxHarness:
    """A mailbox, its loop and a clock.

    Example::

        with MailboxHarness() as harness:
            thing = Thing(harness.executor(priority=1))
            thing.start()
            assert harness.pending == ["start the thing"]
            harness.run_until_idle()

    Threading: the thread that created it; other threads may put mails.
    Life cycle: usable at once, until ``close``, or in ``with``, which fails if mails are pending at its end.

    Args:
        default_action: called by ``step`` when there is no mail; by default it suspends itself.
        when_parked: called when code under test waits for a mail; by default an error.
    """

    def __init__(
        self,
        default_action: DefaultAction = suspend,
        *,
        action_executor: StreamTaskActionExecutor = IMMEDIATE,
        when_parked: Callable[[], None] = wait_for_ever,
    ) -> None:
        self.clock = ManualClock()
        self.timings = TaskTimings(self.clock.now_ns)
        self.timings.mark_start()
        self.mailbox = SteppedMailbox(when_parked)
        self.mailbox.bind_to_current_thread()
        self.processor = MailboxProcessor(default_action, self.mailbox, self.timings, action_executor=action_executor)

    def __repr__(self) -> str:
        return f"<MailboxHarness {self.processor!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        left = self.pending
        self.close()
        if error is None and left:
            raise AssertionError(f"the test ended before these mails ran: {left}")

    def executor(self, priority: int = MIN_PRIORITY) -> MailboxExecutor:
        """An executor whose mails run in this loop."""
        return self.processor.executor(priority)

    @property
    def pending(self) -> list[str]:
        """The pending mails as text, in the order in which they would run."""
        return [repr(mail) for mail in self.mailbox.pending_mails()]

    def step(self) -> bool:
        """Run one mail, or else the default action once; False if there was neither.

        Raises:
            BaseException: from the mail or the default action.
        """
        return self.processor.run_mailbox_step()

    def run_until_idle(self, max_steps: int = _MAX_STEPS) -> int:
        """Step until there is nothing to do; return the number of steps.

        Raises:
            AssertionError: there is something to do after ``max_steps``.
            BaseException: as ``step``.
        """
        for number in range(max_steps):
            if not self.step():
                return number
        raise AssertionError(f"still not idle after {max_steps} steps, pending: {self.pending[:10]}")

    def close(self) -> None:
        """Close the mailbox, which cancels the futures of pending mails; idempotent."""
        self.processor.close()
