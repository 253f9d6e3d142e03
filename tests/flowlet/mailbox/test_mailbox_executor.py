"""Source: Flink `MailboxExecutorImplTest`."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError

import pytest

from flowlet.errors import FlowletError, MailboxClosedError, TaskCancelled
from flowlet.mailbox.mailbox_executor import MailboxExecutor
from flowlet.mailbox.mailbox_future import (
    IMMEDIATE,
    MailboxFuture,
    StreamTaskActionExecutor,
    SynchronizedActionExecutor,
)
from flowlet.mailbox.mailbox_processor import MailboxController, MailboxProcessor
from flowlet.mailbox.task_mailbox import MAX_PRIORITY, MailOptions, TaskMailbox
from flowlet.mailbox.task_timings import TaskTimings, WaitKind
from netstack.availability import AvailabilityFuture
from netstack.loop.eventloop import EventLoopThread
from tests.waiting import PATIENCE_S


def suspend(controller: MailboxController) -> None:
    controller.suspend_default_action(WaitKind.IDLE, "nothing in particular")


class Loop:
    def __init__(self, action_executor: StreamTaskActionExecutor = IMMEDIATE) -> None:
        self.mailbox = TaskMailbox()
        self.mailbox.bind_to_current_thread()
        self.processor = MailboxProcessor(suspend, self.mailbox, TaskTimings(), action_executor=action_executor)


@pytest.fixture(params=["immediate", "synchronized"])
def loop(request: pytest.FixtureRequest) -> Iterator[Loop]:
    """Every test runs with and without a lock around the mails."""
    made = Loop(IMMEDIATE if request.param == "immediate" else SynchronizedActionExecutor())
    yield made
    made.mailbox.check_invariants()
    assert made.mailbox.statistics().num_rescued_wakeups == 0


def when_parked(mailbox: TaskMailbox, act: Callable[[], object]) -> threading.Thread:
    """Another thread acts once the mailbox thread sleeps; the mailbox says so itself."""

    def wait_and_act() -> None:
        while "parked" not in repr(mailbox):
            pass
        act()

    thread = threading.Thread(target=wait_and_act)
    thread.start()
    return thread


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
    thread = threading.Thread(
        target=lambda: executor.execute(lambda: ran_on.append(threading.get_ident()), "who runs this")
    )
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


def test_a_yield_waits_for_a_mail_of_another_thread(loop: Loop) -> None:
    ran: list[str] = []
    executor = loop.processor.executor()
    thread = when_parked(loop.mailbox, lambda: executor.execute(lambda: ran.append("mail"), "a mail"))

    executor.yield_()
    thread.join()

    assert ran == ["mail"]
    assert loop.mailbox.statistics().num_parks == 1


def test_a_mail_of_the_highest_priority_runs_inside_every_operators_yield(loop: Loop) -> None:
    """So that an operator that waits still hears of a completed checkpoint."""
    ran: list[str] = []
    loop.processor.executor(MAX_PRIORITY).execute(lambda: ran.append("checkpoint 7 is complete"), "notify")

    assert loop.processor.executor(3).try_yield()

    assert ran == ["checkpoint 7 is complete"]


@pytest.mark.parametrize("options", [MailOptions.DEFAULT, MailOptions.URGENT])
def test_a_mail_asks_long_work_to_pause(loop: Loop, options: MailOptions) -> None:
    """An ordinary one, too: a checkpoint waits for one timer, not for thousands."""
    executor = loop.processor.executor(1)
    assert not executor.should_interrupt

    executor.execute(lambda: None, "a mail", options=options)
    assert executor.should_interrupt
    executor.yield_()
    assert not executor.should_interrupt


def test_a_submitted_command_may_be_urgent(loop: Loop) -> None:
    order: list[int] = []
    executor = loop.processor.executor()
    executor.execute(lambda: order.append(1), "ordinary")
    future = executor.submit(lambda: order.append(2), "urgent", options=MailOptions.URGENT)

    executor.yield_until(future)
    executor.yield_()

    assert order == [2, 1]


class TestYieldUntil:
    def test_mails_run_until_the_signal_is_given(self, loop: Loop) -> None:
        """Those behind it stay, as do those of operators before this one."""
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

    def test_what_another_thread_computes_is_awaited_between_mails(self, loop: Loop) -> None:
        """The task's side of a result that the loop brings."""
        future: MailboxFuture[str] = MailboxFuture()
        thread = when_parked(loop.mailbox, lambda: future.complete("buffers"))

        loop.processor.executor().yield_until(future)

        thread.join()
        assert future.result_nowait() == "buffers"

    def test_the_own_result_is_awaited_by_yielding_and_not_by_waiting(self, loop: Loop) -> None:
        executor = loop.processor.executor()
        future = executor.submit(lambda: "own", "own work")

        with pytest.raises(RuntimeError, match="mailbox thread"):
            future.result()
        executor.yield_until(future)

        assert future.result() == "own"


def test_the_network_loop_awaits_the_result_of_a_mail(loop: Loop) -> None:
    """The other direction: a coroutine posts, the task runs, the coroutine gets the result or hears that the task
    ended.
    """
    network = EventLoopThread.start("network")
    executor = loop.processor.executor()

    async def ask() -> tuple[int, int]:
        result = await executor.submit(lambda: threading.get_ident(), "which thread is this")
        return result, threading.get_ident()

    async def ask_in_vain() -> str:
        try:
            return await executor.submit(lambda: "never", "too late")
        except CancelledError:
            return "dropped"

    answer = network.submit(ask())
    executor.yield_()
    ran_on, asked_on = answer.result(PATIENCE_S)
    in_vain = network.submit(ask_in_vain())
    when_there(loop.mailbox)
    loop.processor.close()

    assert (ran_on, asked_on == threading.get_ident()) == (threading.get_ident(), False)
    assert in_vain.result(PATIENCE_S) == "dropped"
    network.close()


def when_there(mailbox: TaskMailbox) -> None:
    """Return once there is a mail."""
    while not mailbox.has_mail:
        pass


class TestLastMails:
    def test_an_operator_that_ends_loses_none_of_its_mails(self, loop: Loop) -> None:
        """Deferrable ones too, and those that they post; the mails of operators before it come later (FLINK-39481)."""
        ran: list[str] = []
        mine, before = loop.processor.executor(2), loop.processor.executor(1)

        def post() -> None:
            ran.append("deferred")
            mine.execute(lambda: ran.append("posted by it"), "again", options=MailOptions.DEFERRABLE)

        before.execute(lambda: ran.append("before"), "before")
        mine.execute(post, "deferred", options=MailOptions.DEFERRABLE)
        mine.execute(lambda: ran.append("plain"), "plain")
        assert mine.try_yield()
        mine.run_last_mails()

        assert ran == ["plain", "deferred", "posted by it"]
        assert loop.mailbox.num_mails == 1
        assert loop.processor.num_mails_processed == 3

    def test_mails_that_post_themselves_for_ever_are_an_error(self, loop: Loop) -> None:
        executor = loop.processor.executor(1)

        def again() -> None:
            executor.execute(again, "again")

        again()
        with pytest.raises(FlowletError, match="still post mails"):
            executor.run_last_mails()


def test_mails_of_a_synchronized_task_run_under_its_lock_and_control_mails_do_not() -> None:
    """A source's thread holds the lock while it emits: a cancellation must get past it."""
    held: list[tuple[str, bool]] = []
    executor = SynchronizedActionExecutor()
    loop = Loop(executor)

    def look(name: str) -> None:
        held.append((name, executor.mutex._is_owned()))  # type: ignore[attr-defined]  # an RLock knows its owner

    loop.processor.executor().execute(lambda: look("ordinary"), "ordinary")
    loop.processor.send_control_mail(lambda: look("control"), "control")
    loop.processor.run_mailbox_step()
    loop.processor.run_mailbox_step()

    assert held == [("control", False), ("ordinary", True)]
