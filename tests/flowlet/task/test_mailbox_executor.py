import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from flowlet.errors import MailboxClosedError, TaskCancelled
from flowlet.task.mailbox import MailOptions, TaskMailbox
from flowlet.task.mailbox_executor import MailboxExecutor
from flowlet.task.mailbox_processor import MailboxController, MailboxProcessor
from flowlet.task.task_timings import TaskTimings, WaitKind


def suspend(controller: MailboxController) -> None:
    controller.suspend_default_action(WaitKind.IDLE, "nothing in particular")


class Loop:
    def __init__(self) -> None:
        self.mailbox = TaskMailbox()
        self.mailbox.bind_to_current_thread()
        self.processor = MailboxProcessor(suspend, self.mailbox, TaskTimings())


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.mailbox.check_invariants()


def test_it_is_idle_exactly_while_the_loop_waits_without_a_mail(loop: Loop) -> None:
    """Not before the default action was suspended, not with a mail, not when quiesced."""
    executor = loop.processor.executor()
    seen = [executor.is_idle]

    loop.processor.run_mailbox_step()
    seen.append(executor.is_idle)
    executor.execute(lambda: None, "a mail")
    seen.append(executor.is_idle)
    loop.processor.run_mailbox_step()
    seen.append(executor.is_idle)
    loop.mailbox.quiesce()
    seen.append(executor.is_idle)

    assert seen == [False, True, False, True, False]


def test_an_action_runs_on_the_mailbox_thread(loop: Loop) -> None:
    ran_on: list[int] = []
    executor = loop.processor.executor()
    thread = threading.Thread(target=lambda: executor.execute(lambda: ran_on.append(threading.get_ident()), "who runs this"))
    thread.start()

    executor.yield_()
    thread.join()

    assert ran_on == [threading.get_ident()]
    assert loop.processor.num_mails_processed == 1


def test_a_deferrable_mail_runs_in_the_loop_but_in_no_operators_yield(loop: Loop) -> None:
    ran: list[str] = []
    loop.processor.executor(3).execute(lambda: ran.append("deferred"), "deferred", options=MailOptions.DEFERRABLE)

    assert not loop.processor.executor(3).try_yield()
    assert not loop.processor.executor(0).try_yield()
    loop.processor.run_mailbox_step()

    assert ran == ["deferred"]


def test_an_operator_yields_to_those_behind_it_only(loop: Loop) -> None:
    """Mails of an operator before it stay where they are: running them could deadlock."""
    ran: list[str] = []
    loop.processor.executor(1).execute(lambda: ran.append("before"), "of operator 1")
    loop.processor.executor(3).execute(lambda: ran.append("behind"), "of operator 3")

    assert loop.processor.executor(2).try_yield()
    assert not loop.processor.executor(2).try_yield()

    assert ran == ["behind"]


def test_trying_to_yield_says_whether_a_mail_ran(loop: Loop) -> None:
    executor = loop.processor.executor()
    executor.execute(lambda: None, "one")

    assert executor.try_yield()
    assert not executor.try_yield()


def test_a_submitted_command_gives_its_result_or_its_error(loop: Loop) -> None:
    """Its error is the future's business: the task goes on."""
    executor = loop.processor.executor()
    good = executor.submit(lambda: 6 * 7, "good")
    bad = executor.submit(lambda: 1 // 0, "bad")

    executor.yield_()
    executor.yield_()

    assert good.result(0) == 42
    assert isinstance(bad.exception(0), ZeroDivisionError)


def test_a_cancellation_inside_a_submitted_command_reaches_the_task_too(loop: Loop) -> None:
    def cancelled() -> None:
        raise TaskCancelled("enough")

    future = loop.processor.executor().submit(cancelled, "cancelled")

    with pytest.raises(TaskCancelled):
        loop.processor.run_mailbox_step()
    assert isinstance(future.exception(0), TaskCancelled)


def test_a_future_cancelled_before_its_turn_does_not_run(loop: Loop) -> None:
    ran: list[int] = []
    future = loop.processor.executor().submit(lambda: ran.append(1), "never")
    future.cancel()

    loop.processor.run_mailbox_step()

    assert ran == []


def test_closing_cancels_what_is_left(loop: Loop) -> None:
    """Afterwards neither putting nor yielding works."""
    executor = loop.processor.executor()
    left = executor.submit(lambda: None, "left")
    executor.execute(lambda: None, "nobody waits for this one")

    loop.processor.close()

    with pytest.raises(CancelledError):
        left.result(0)
    for use in (executor.yield_, executor.try_yield, lambda: executor.execute(lambda: None, "late")):
        with pytest.raises(MailboxClosedError):
            use()


def test_an_executor_without_a_loop_runs_mails_itself() -> None:
    mailbox = TaskMailbox()
    mailbox.bind_to_current_thread()
    executor = MailboxExecutor(mailbox)
    future = executor.submit(lambda: "done", "work")

    executor.yield_()

    assert future.result(0) == "done"
    assert not executor.is_idle
