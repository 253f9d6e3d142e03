"""Source: Flink `MailboxExecutorImplTest`."""

import threading
from collections.abc import Iterator

import pytest

from flowlet.errors import MailboxClosedError, TaskCancelled
from flowlet.mailbox.mailbox_processor import MailboxExecutor, MailboxProcessor, TaskTimings, WaitKind
from flowlet.mailbox.task_mailbox import MAX_PRIORITY, Action, MailOptions, RunAction, TaskMailbox, run_directly
from netstack.availability import AvailabilityFuture
from tests.flowlet.mailbox.boxes import in_thread, when_parked


def suspend(controller: MailboxProcessor) -> None:
    controller.suspend_default_action(WaitKind.IDLE, "nothing in particular")


class Loop:
    def __init__(self, run_action: RunAction = run_directly) -> None:
        self.mailbox = TaskMailbox()
        self.mailbox.bind_to_current_thread()
        self.processor = MailboxProcessor(suspend, self.mailbox, TaskTimings(), run_action=run_action)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.mailbox.check_invariants()
    assert made.mailbox.statistics().num_rescued_wakeups == 0


def test_an_action_runs_on_the_mailbox_thread(loop: Loop) -> None:
    ran_on: list[int] = []
    executor = loop.processor.executor()
    thread = in_thread(lambda: executor.execute(lambda: ran_on.append(threading.get_ident()), "who runs this"))

    executor.yield_()
    thread.join()

    assert ran_on == [threading.get_ident()]
    assert loop.processor.num_mails_processed == 1


def test_an_operator_yields_to_those_behind_it_only(loop: Loop) -> None:
    """Mails of an operator before it stay where they are: running them could deadlock."""
    ran: list[str] = []
    loop.processor.executor(1).execute(lambda: ran.append("before"), "of operator 1")
    loop.processor.executor(3).execute(lambda: ran.append("behind"), "of operator 3")

    assert loop.processor.executor(2).try_yield()
    assert not loop.processor.executor(2).try_yield(), "no mail ran"

    assert ran == ["behind"]


class CancellableAction:
    """An action whose caller waits for its end."""

    is_cancelled = False

    def __call__(self) -> None:
        raise AssertionError("it was dropped")

    def cancel(self) -> None:
        self.is_cancelled = True


def test_closing_cancels_what_is_left(loop: Loop) -> None:
    """Afterwards neither putting nor yielding works."""
    executor = loop.processor.executor()
    left = CancellableAction()
    executor.execute(left, "left")
    executor.execute(lambda: None, "nobody waits for this one")

    loop.processor.close()

    assert left.is_cancelled
    for use in (executor.yield_, executor.try_yield, lambda: executor.execute(lambda: None, "late")):
        with pytest.raises(MailboxClosedError):
            use()


def test_an_executor_without_a_loop_runs_mails_itself() -> None:
    mailbox = TaskMailbox()
    mailbox.bind_to_current_thread()
    executor = MailboxExecutor(mailbox)
    ran: list[str] = []
    executor.execute(lambda: ran.append("done"), "work")

    executor.yield_()

    assert ran == ["done"]


def test_a_yield_waits_for_a_mail_of_another_thread(loop: Loop) -> None:
    ran: list[str] = []
    executor = loop.processor.executor()
    thread = when_parked(loop.mailbox, lambda: executor.execute(lambda: ran.append("mail"), "a mail"))

    executor.yield_()
    thread.join()

    assert ran == ["mail"]
    assert loop.mailbox.statistics().num_parks == 1


def test_a_mail_of_the_highest_priority_runs_inside_every_operators_yield(loop: Loop) -> None:
    """An operator that waits still hears of a completed checkpoint."""
    ran: list[str] = []
    loop.processor.executor(MAX_PRIORITY).execute(lambda: ran.append("checkpoint 7 is complete"), "notify")

    assert loop.processor.executor(3).try_yield()

    assert ran == ["checkpoint 7 is complete"]


@pytest.mark.parametrize("options", [MailOptions.DEFAULT, MailOptions.URGENT])
def test_a_mail_asks_long_work_to_pause(loop: Loop, options: MailOptions) -> None:
    """An ordinary mail does so, too: a checkpoint waits for one timer, not for thousands."""
    executor = loop.processor.executor(1)
    assert not executor.should_interrupt

    executor.execute(lambda: None, "a mail", options=options)
    assert executor.should_interrupt
    executor.yield_()
    assert not executor.should_interrupt


def test_a_mail_may_be_urgent(loop: Loop) -> None:
    order: list[int] = []
    executor = loop.processor.executor()
    executor.execute(lambda: order.append(1), "ordinary")
    executor.execute(lambda: order.append(2), "urgent", options=MailOptions.URGENT)

    executor.yield_()
    executor.yield_()

    assert order == [2, 1]


class TestYieldUntil:
    def test_mails_run_until_the_signal_is_given(self, loop: Loop) -> None:
        """Mails behind the signal stay, and so do mails of operators before this one."""
        ran: list[str] = []
        signal = AvailabilityFuture()
        loop.processor.executor(1).execute(lambda: ran.append("before"), "of operator 1")
        executor = loop.processor.executor(2)
        executor.execute(lambda: ran.append("one"), "one")
        executor.execute(signal.complete, "the signal")
        executor.execute(lambda: ran.append("behind"), "behind")

        executor.yield_until(signal)

        assert ran == ["one"]
        assert loop.mailbox.num_mails == 2

    def test_a_signal_of_another_thread_ends_it(self, loop: Loop) -> None:
        """A buffer came back, a gate has data: the thread sleeps until then."""
        signal = AvailabilityFuture()
        thread = when_parked(loop.mailbox, signal.complete)

        loop.processor.executor(2).yield_until(signal)

        thread.join()
        assert loop.mailbox.statistics().num_parks == 1

    def test_a_signal_that_was_given_runs_no_mail(self, loop: Loop) -> None:
        ran: list[str] = []
        signal = AvailabilityFuture()
        signal.complete()
        loop.processor.executor().execute(lambda: ran.append("mail"), "a mail")

        loop.processor.executor().yield_until(signal)

        assert ran == []

    def test_it_works_while_the_task_ends(self, loop: Loop) -> None:
        """A quiesced mailbox refuses mails; a wait that needed one would last for ever (FLINK-14231)."""
        signal = AvailabilityFuture()
        loop.mailbox.quiesce()
        thread = when_parked(loop.mailbox, signal.complete)

        loop.processor.executor().yield_until(signal)
        thread.join()

    def test_a_failing_mail_leaves_no_callback_behind(self, loop: Loop) -> None:
        signal = AvailabilityFuture()

        def fail() -> None:
            raise TaskCancelled("enough")

        loop.processor.executor().execute(fail, "cancel")
        with pytest.raises(TaskCancelled):
            loop.processor.executor().yield_until(signal)

        assert signal._callbacks == []


def test_mails_are_run_by_the_tasks_function_and_control_mails_are_not() -> None:
    """The task's function may wait for a lock, which a cancellation must get past."""
    held: list[str] = []

    def run(action: Action) -> None:
        held.append("begin")
        action()
        held.append("end")

    loop = Loop(run)
    loop.processor.executor().execute(lambda: held.append("ordinary"), "ordinary")
    loop.processor.send_control_mail(lambda: held.append("control"), "control")
    loop.processor.run_mailbox_step()
    loop.processor.run_mailbox_step()

    assert held == ["control", "begin", "ordinary", "end"]
