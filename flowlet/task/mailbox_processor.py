"""The loop of one task: mails first, then the default action.

Side:       task.  ``all_actions_completed``, ``suspend``, ``send_control_mail`` and ``Suspension.resume`` from any thread.
Invariants: ``_suspension is None`` exactly when the default action may run; a mail sees every effect of the mails before it; an exception
            out of a mail or of the default action leaves the loop unchanged.
Source:     Flink ``MailboxProcessor``, ``MailboxDefaultAction``, ``MailboxController``.
Absent:     mailbox latency measurement.
"""

from collections.abc import Callable
from enum import Enum, auto

from flowlet.errors import FlowletError, MailboxClosedError
from flowlet.task.mailbox import MAX_PRIORITY, MIN_PRIORITY, Mail, MailboxState, MailOptions, TaskMailbox
from flowlet.task.mailbox_executor import MailboxExecutor
from flowlet.task.task_timings import TaskTimings, WaitKind

# Mails may post mails while the task ends.  More rounds than this: they post themselves for ever.  Not measured.
_MAX_DRAIN_ROUNDS = 1_000


class LoopState(Enum):
    """Whether the loop goes on."""

    RUNNING = auto()
    SUSPENDED = auto()  # left by ``suspend``; another ``run_mailbox_loop`` continues
    COMPLETED = auto()  # left by ``all_actions_completed``; for good


class SliceResult(Enum):
    """Why ``run_slice`` returned."""

    MORE = auto()  # the budget was used up
    WOULD_PARK = auto()  # the default action is suspended and there is no mail
    ENDED = auto()  # the loop was suspended or completed


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


DefaultAction = Callable[[MailboxController], None]


class MailboxProcessor:
    """Runs mails and the default action of one task, on one thread or in slices of one.

    Threading: the loop runs on the mailbox's thread; the four methods named in the module header may be called from any.
    """

    def __init__(self, default_action: DefaultAction, mailbox: TaskMailbox, timings: TaskTimings) -> None:
        self._default_action = default_action
        self._mailbox = mailbox
        self._timings = timings
        self._controller = MailboxController(self)
        self._state = LoopState.RUNNING  # Written by the mailbox thread.
        self._suspension: Suspension | None = None  # Written by the mailbox thread; read anywhere for display.
        self._num_mails = 0  # Written by the mailbox thread.

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
        return MailboxExecutor(self._mailbox, priority, is_idle=lambda: self.is_idle, run_mail=self._run_mail)

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

    def run_slice(self, budget_ns: int) -> SliceResult:
        """As ``run_mailbox_loop``, but never parks and returns once the budget is used up (one mail or action may exceed it)."""
        self._enter()
        deadline_ns = self._timings.now_ns() + budget_ns
        while self._state is LoopState.RUNNING:
            self._process_batch()
            if self._state is not LoopState.RUNNING:
                break
            if self._suspension is None:
                self._default_action(self._controller)
            elif not self._mailbox.has_mail:
                self._timings.start_wait(self._suspension.kind)
                return SliceResult.WOULD_PARK
            if self._timings.now_ns() >= deadline_ns:
                return SliceResult.MORE
        return SliceResult.ENDED

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
        try:
            return self._mailbox.take()
        finally:
            self._timings.end_wait()

    def _run_mail(self, mail: Mail) -> None:
        self._num_mails += 1
        mail.run()

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
        for mail in self._mailbox.close():
            mail.try_cancel()
