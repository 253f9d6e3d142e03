"""The loop of one task: mails first, then the default action.

Side:       task.  ``all_actions_completed``, ``suspend``, ``send_control_mail`` and ``Suspension.resume`` from any thread.
Invariants: ``_suspension is None`` exactly when the default action may run; a mail sees every effect of the mails before it; an exception
            out of a mail or of the default action leaves the loop unchanged.
Source:     Flink ``MailboxProcessor``, ``MailboxDefaultAction``, ``MailboxController``.  Flink turns its idle timer on and off around
            mails; here a wait begins when the thread parks and ends when it wakes, which measures the same.
"""

from collections.abc import Callable
from contextvars import Context, copy_context
from enum import Enum, auto
from functools import partial
from typing import NoReturn

from flowlet.errors import FlowletError, MailboxClosedError
from flowlet.mailbox.mail import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions
from flowlet.mailbox.mailbox_executor import MailboxExecutor
from flowlet.mailbox.mailbox_future import Signal
from flowlet.mailbox.mailbox_metrics import LatencyProbe
from flowlet.mailbox.stream_task_action_executor import IMMEDIATE, StreamTaskActionExecutor
from flowlet.mailbox.task_mailbox import MailboxState, TaskMailbox
from flowlet.mailbox.task_timings import TaskTimings, WaitKind

# Mails may post mails while the task ends.  More rounds than this: they post themselves for ever.  Not measured.
_MAX_DRAIN_ROUNDS = 1_000


class LoopState(Enum):
    """Whether the loop goes on."""

    RUNNING = auto()
    SUSPENDED = auto()  # left by ``suspend``; another ``run_mailbox_loop`` continues
    COMPLETED = auto()  # left by ``all_actions_completed``; for good


class Suspension:
    """The right to let a suspended default action run again."""

    __slots__ = ("_processor", "kind", "waiting_for")

    def __init__(self, processor: "MailboxProcessor", kind: WaitKind, waiting_for: str) -> None:
        self._processor = processor
        self.kind = kind
        self.waiting_for = waiting_for

    def __repr__(self) -> str:
        return f"<Suspension {self.kind.name} for {self.waiting_for}>"

    def resume(self) -> None:
        """Let the default action run again; any thread, any number of times, also after the mailbox was closed."""
        self._processor.resume(self)


class MailboxController:
    """What a default action may ask of the loop that runs it."""

    __slots__ = ("_processor",)

    def __init__(self, processor: "MailboxProcessor") -> None:
        self._processor = processor

    def all_actions_completed(self) -> None:
        """The default action is never to run again; the loop ends."""
        self._processor.all_actions_completed()

    def suspend_default_action(self, kind: WaitKind, waiting_for: str) -> Suspension:
        """Do not call the default action until the suspension is resumed; the wait is accounted to ``kind``.

        Raises:
            RuntimeError: called on another thread, or the default action is suspended already.
        """
        return self._processor.suspend_default_action(kind, waiting_for)

    def suspend_until(self, signal: Signal, kind: WaitKind, waiting_for: str) -> None:
        """As ``suspend_default_action``; the signal (a gate has data, a pool has buffers) resumes it, at once if it was given already.

        Raises:
            RuntimeError: as ``suspend_default_action``.
        """
        signal.add_done_callback(self._processor.suspend_default_action(kind, waiting_for).resume)


DefaultAction = Callable[[MailboxController], None]


class MailboxProcessor:
    """Runs mails and the default action of one task, on one thread, or on another one in its place.

    Threading: the loop runs on the mailbox's thread; the four methods named in the module header may be called from any.

    Args:
        default_action: processes a bounded piece of input.
        mailbox: the task's.
        timings: learns when the thread waits, and for what.
        action_executor: runs the mails of this loop's executors; control mails it does not, so that no lock can hold up a cancellation.
    """

    def __init__(
        self,
        default_action: DefaultAction,
        mailbox: TaskMailbox,
        timings: TaskTimings,
        *,
        action_executor: StreamTaskActionExecutor = IMMEDIATE,
    ) -> None:
        self._default_action = default_action
        self._mailbox = mailbox
        self._timings = timings
        self._controller = MailboxController(self)
        self._state = LoopState.RUNNING  # Written by the mailbox thread.
        self._suspension: Suspension | None = None  # Written by the mailbox thread; read anywhere for display.
        self._num_mails = 0  # Written by the mailbox thread.
        self._context = Context()  # Written by the mailbox thread before it parks: its own, for who stands in for it.
        self._action_executor = action_executor
        self._waiting_probe: LatencyProbe | None = None  # Mailbox thread, once the loop runs: starts after the first ordinary mail.
        self._probe: LatencyProbe | None = None

    def __repr__(self) -> str:
        return f"<MailboxProcessor {self._state.name}, waiting for {self.waiting_for}, {self._mailbox!r}>"

    @property
    def waiting_for(self) -> str | None:
        """Why the default action does not run now, in words; None when it does.  Any thread."""
        suspension = self._suspension
        return None if suspension is None else suspension.waiting_for

    @property
    def num_mails_processed(self) -> int:
        """Mails run so far."""
        return self._num_mails

    @property
    def is_default_action_available(self) -> bool:
        """Whether the default action is not suspended."""
        return self._suspension is None

    @property
    def is_idle(self) -> bool:
        """Whether nothing can happen until another thread puts a mail."""
        return self._suspension is not None and not self._mailbox.has_mail and self._mailbox.state is MailboxState.OPEN

    def executor(self, priority: int = MIN_PRIORITY) -> MailboxExecutor:
        """An executor whose mails run in this loop."""
        return MailboxExecutor(
            self._mailbox, priority, is_idle=lambda: self.is_idle, run_mail=self._run_mail, action_executor=self._action_executor
        )

    def measure_latency(self, probe: LatencyProbe) -> None:
        """Have the probe started by the first ordinary mail, and closed with the loop; before the loop runs, once."""
        self._probe = self._waiting_probe = probe

    # -- the loop

    def run_mailbox_loop(self) -> None:
        """Run until all actions are completed or the loop is suspended; parks the thread while there is nothing to do.

        Raises:
            RuntimeError: called on another thread than the mailbox's.
            MailboxClosedError: the mailbox is not open.
        """
        self._enter()
        while self._state is LoopState.RUNNING:
            self._process_mails()
            if self._state is LoopState.RUNNING:
                self._default_action(self._controller)

    def run_mailbox_step(self) -> bool:
        """Run one mail, or else the default action once; False when there was neither.  For tests."""
        self._enter()
        self._mailbox.create_batch()
        mail = self._mailbox.try_take_from_batch()
        if mail is not None:
            self._run_mail(mail)
            return True
        if self._state is LoopState.RUNNING and self._suspension is None:
            self._default_action(self._controller)
            return True
        return False

    def _enter(self) -> None:
        self._mailbox.check_mailbox_thread()
        if self._mailbox.state is not MailboxState.OPEN:
            raise MailboxClosedError(f"the loop cannot run: {self._mailbox!r}")
        self._timings.end_wait()
        if self._state is LoopState.SUSPENDED:
            self._state = LoopState.RUNNING

    def _process_mails(self) -> None:
        self._process_batch()
        while self._suspension is not None and self._state is LoopState.RUNNING:
            mail = self._mailbox.try_take()
            if mail is None:
                mail = self._park(self._suspension.kind)
            self._run_mail(mail)

    def _process_batch(self) -> None:
        if not self._mailbox.create_batch():
            return
        while self._state is LoopState.RUNNING and (mail := self._mailbox.try_take_from_batch()) is not None:
            self._run_mail(mail)

    def _park(self, kind: WaitKind) -> Mail:
        self._timings.start_wait(kind)
        self._context = copy_context()
        try:
            return self._mailbox.take(is_lending=True)
        finally:
            self._timings.end_wait()

    def try_run_parked(self, suspension: Suspension, action: DefaultAction, now_ns: int) -> bool:
        """Any thread: instead of resuming ``suspension``, run ``action`` in the place of the thread that waits; False if it does not wait.

        ``action`` sees the context variables of that thread (decimal contexts, what its log lines name), and changes none of the caller's.
        The wait ends at ``now_ns``, which is taken note of only behind ``action``: what arrived waits for it already.
        ``action`` works as the default action does, and suspends it again if there is nothing left to do; if it does not, or raises,
        the mailbox's own thread goes on with the default action, or with the error.  It must not block, and takes no mails.
        """
        if self._suspension is not suspension or not self._mailbox.try_borrow():
            return False
        try:
            if self._suspension is suspension:  # it may have been another one a moment ago
                self._run_borrowed(action, now_ns)
        finally:
            self._mailbox.give_back()
        return True

    def _run_borrowed(self, action: DefaultAction, now_ns: int) -> None:
        self._suspension = None
        try:
            self._context.run(action, self._controller)
        except BaseException as error:  # noqa: BLE001 - it belongs to the task, whose own thread raises it
            self.send_control_mail(partial(_raise, error), "raise what was raised in its place")
            return
        finally:
            self._timings.end_wait(now_ns)
        if self._suspension is None:
            self.send_control_mail(_do_nothing, "go on with the default action")
        else:
            self._timings.start_wait(self._suspension.kind)

    def _run_mail(self, mail: Mail) -> None:
        self._num_mails += 1
        mail.run()
        if self._waiting_probe is not None and not mail.is_urgent:
            probe, self._waiting_probe = self._waiting_probe, None
            probe.start()

    # -- control

    def send_control_mail(self, action: Callable[[], object], description: str, *args: object) -> bool:
        """Have ``action`` run before all ordinary mails, also inside an operator's yield; False when the mailbox takes no more."""
        return self._mailbox.try_put_threadsafe(Mail(action, MAX_PRIORITY, description, *args, options=MailOptions.URGENT))

    def all_actions_completed(self) -> None:
        """End the loop for good, after the mails that are urgent already; any thread."""
        self.send_control_mail(self._complete, "all actions completed")

    def suspend(self) -> None:
        """Make ``run_mailbox_loop`` return; calling it again goes on.  Any thread."""
        self.send_control_mail(self._suspend, "suspend the loop")

    def _complete(self) -> None:
        self._state = LoopState.COMPLETED

    def _suspend(self) -> None:
        if self._state is LoopState.RUNNING:
            self._state = LoopState.SUSPENDED

    def suspend_default_action(self, kind: WaitKind, waiting_for: str) -> Suspension:
        """See ``MailboxController.suspend_default_action``."""
        self._mailbox.check_mailbox_thread()
        if self._suspension is not None:
            raise RuntimeError(f"the default action is suspended already: {self._suspension!r}")
        self._suspension = Suspension(self, kind, waiting_for)
        return self._suspension

    def resume(self, suspension: Suspension) -> None:
        """See ``Suspension.resume``; a suspension that is not the current one is ignored."""
        if self._suspension is not suspension:
            return  # set before the suspension is given out: whoever holds a current one sees it
        if self._mailbox.is_mailbox_thread:
            self._suspension = None
        else:
            self.send_control_mail(lambda: self.resume(suspension), "resume the default action")

    # -- ending

    def run_all_mails(self) -> None:
        """Run every mail that is there, and those that they post, until there is none.

        Raises:
            FlowletError: mails keep posting mails.
        """
        for _ in range(_MAX_DRAIN_ROUNDS):
            if not self._mailbox.create_batch():
                return
            while (mail := self._mailbox.try_take_from_batch()) is not None:
                self._run_mail(mail)
        raise FlowletError(f"after {_MAX_DRAIN_ROUNDS} rounds mails still post mails: {self._mailbox!r}")

    def quiesce_when_empty(self) -> None:
        """Run all mails, then take no more: a mail that was accepted, or that such a mail posts, has run.

        Raises:
            FlowletError: mails keep posting mails.
        """
        for _ in range(_MAX_DRAIN_ROUNDS):
            self.run_all_mails()
            if self._mailbox.try_quiesce():
                return
        raise FlowletError(f"after {_MAX_DRAIN_ROUNDS} rounds mails still arrive: {self._mailbox!r}")

    def close(self) -> None:
        """Close the mailbox and cancel the mails that are left."""
        if self._probe is not None:
            self._probe.close()
        for mail in self._mailbox.close():
            mail.try_cancel()


def _raise(error: BaseException) -> NoReturn:
    raise error


def _do_nothing() -> None:
    return
