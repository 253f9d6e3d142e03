"""Another thread stands in for a parked mailbox thread: one at a time, and never beside a mail."""

import decimal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from flowlet.errors import TaskCancelled
from flowlet.mailbox.mailbox_processor import MailboxProcessor, Suspension, TaskTimings, WaitKind
from flowlet.mailbox.task_mailbox import MIN_PRIORITY, Mail, TaskMailbox
from tests.flowlet.task.local_tasks import Clock
from tests.flowlet.task.watchdog import tiny_switch_interval, watchdog
from tests.stress import Opponent, num_rounds
from tests.waiting import spin_tightly_until

NUM_ROUNDS = num_rounds(5_000)


@pytest.fixture(autouse=True)
def _watched() -> Iterator[None]:
    with watchdog():
        yield


class ParkedTask:
    """A mailbox loop on a thread of its own, whose default action suspends itself each time."""

    def __init__(self, timings: TaskTimings | None = None) -> None:
        self.mailbox = TaskMailbox()
        self.processor = MailboxProcessor(self._run_action, self.mailbox, timings or TaskTimings())
        self.suspension: Suspension | None = None
        self.threads: list[int] = []  # of each default action
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.mailbox.bind_to_current_thread()
        try:
            self.processor.run_mailbox_loop()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def _run_action(self, controller: MailboxProcessor) -> None:
        self.threads.append(threading.get_ident())
        self.suspend(controller)

    def suspend(self, controller: MailboxProcessor) -> None:
        self.suspension = controller.suspend_default_action(WaitKind.IDLE, "the test")

    def wait_until_parked(self) -> None:
        spin_tightly_until(lambda: self.mailbox._parked_for is not None)

    def try_run(self, action: Callable[[MailboxProcessor], None]) -> bool:
        assert self.suspension is not None
        return self.processor.try_run_parked(self.suspension, action, time.monotonic_ns())


@contextmanager
def parked_task(task: ParkedTask | None = None) -> Iterator[ParkedTask]:
    task = ParkedTask() if task is None else task
    task.thread.start()
    task.wait_until_parked()
    yield task
    task.processor.all_actions_completed()
    task.thread.join()


def a_mail(action: Callable[[], object] = lambda: None) -> Mail:
    return Mail(action, MIN_PRIORITY, "a mail")


# ---------------------------------------------------------------- the mailbox


def test_whoever_stands_in_is_the_mailbox_thread_and_nobody_else_is() -> None:
    with parked_task() as task:
        assert not task.mailbox.is_mailbox_thread

        assert task.mailbox.try_borrow()
        assert task.mailbox.is_mailbox_thread
        assert not task.mailbox.try_borrow(), "one at a time"

        task.mailbox.give_back()
        assert not task.mailbox.is_mailbox_thread
        assert task.mailbox.try_borrow(), "it is still parked"
        task.mailbox.give_back()


def test_a_mail_wakes_the_thread_only_when_nobody_stands_in_for_it() -> None:
    """A mail that comes meanwhile is run after the return, one that comes after it at once."""
    ran_on: list[int] = []
    mail = a_mail(lambda: ran_on.append(threading.get_ident()))
    with parked_task() as task:
        assert task.mailbox.try_borrow()
        task.mailbox.put_threadsafe(mail)
        assert task.mailbox.num_mails == 1
        assert task.mailbox._wakeup.locked(), "nobody wakes it"

        task.mailbox.give_back()
        spin_tightly_until(lambda: bool(ran_on))

        task.wait_until_parked()
        assert task.mailbox.try_borrow()
        task.mailbox.give_back()
        task.mailbox.put_threadsafe(mail)
        spin_tightly_until(lambda: len(ran_on) == 2)

    assert ran_on == [task.thread.ident] * 2


def test_a_thread_that_works_or_does_not_lend_is_left_alone() -> None:
    """One that waits inside an operator, for that operator's mails: whatever ran now would run inside a record."""
    mailbox, borrowed_from_itself = TaskMailbox(), list[bool]()

    def wait() -> None:
        mailbox.bind_to_current_thread()
        borrowed_from_itself.append(mailbox.try_borrow())
        mailbox.take()

    thread = threading.Thread(target=wait)
    thread.start()
    spin_tightly_until(lambda: mailbox._parked_for is not None)

    assert not mailbox.try_borrow()

    mailbox.put_threadsafe(a_mail())
    thread.join()
    assert borrowed_from_itself == [False]


# ---------------------------------------------------------------- the loop


def test_the_action_sees_the_contexts_of_the_thread_and_leaves_those_of_the_caller_alone() -> None:
    """A setting that a function made when it was opened, such as the precision of decimals, holds wherever it runs; the
    loop's own setting stays.
    """
    precision = decimal.getcontext().prec
    found: list[int] = []

    class PreciseTask(ParkedTask):
        def _run(self) -> None:
            decimal.getcontext().prec = 77
            super()._run()

    def action(controller: MailboxProcessor) -> None:
        found.append(decimal.getcontext().prec)
        decimal.getcontext().prec = 78
        task.suspend(controller)

    with parked_task(PreciseTask()) as task:
        assert task.try_run(action)
        assert task.try_run(action)

    assert found == [77, 78]
    assert decimal.getcontext().prec == precision


def test_the_action_runs_in_place_and_the_thread_sleeps_on() -> None:
    with parked_task() as task:
        first = task.suspension
        ran_on: list[int] = []

        def action(controller: MailboxProcessor) -> None:
            ran_on.append(threading.get_ident())
            task.suspend(controller)

        assert task.try_run(action)

        assert ran_on == [threading.get_ident()]
        assert task.suspension is not first
        assert task.mailbox._parked_for is not None
        assert task.threads == [task.thread.ident], "its own thread did not run again"
        task.mailbox.check_invariants()


def test_an_action_that_does_not_suspend_hands_over_to_the_thread() -> None:
    with parked_task() as task:
        assert task.try_run(lambda controller: None)

        spin_tightly_until(lambda: len(task.threads) == 2)
        task.wait_until_parked()

    assert task.threads == [task.thread.ident] * 2


def test_an_error_is_raised_on_the_tasks_own_thread() -> None:
    error = ValueError("of a user's function")

    def fail(controller: MailboxProcessor) -> None:
        raise error

    with parked_task() as task:
        assert task.try_run(fail)
        task.thread.join()

    assert task.error is error


def test_a_stale_suspension_runs_nothing() -> None:
    with parked_task() as task:
        stale = task.suspension
        assert task.try_run(task.suspend)
        assert stale is not None

        ran = task.processor.try_run_parked(stale, lambda controller: pytest.fail("it ran"), 0)

        assert not ran
        task.mailbox.check_invariants()


def test_a_cancellation_comes_when_the_action_is_over() -> None:
    """Control mails are put at any time; none is lost, and none runs in the middle."""

    def cancel() -> None:
        raise TaskCancelled("cancelled")

    with parked_task() as task:

        def action(controller: MailboxProcessor) -> None:
            task.processor.send_control_mail(cancel, "cancel")
            assert task.error is None
            task.suspend(controller)

        assert task.try_run(action)
        task.thread.join()

    assert isinstance(task.error, TaskCancelled)


def test_time_in_place_is_not_idle_time() -> None:
    clock = Clock()
    timings = TaskTimings(clock)
    timings.mark_start()

    def work(controller: MailboxProcessor) -> None:
        clock.now_ns += 300
        task.suspend(controller)

    with parked_task(ParkedTask(timings)) as task:
        clock.now_ns += 1_000
        assert task.suspension is not None
        assert task.processor.try_run_parked(task.suspension, work, clock.now_ns)
        clock.now_ns += 1_000

        assert timings.snapshot().idle_ns == 2_000
        assert timings.snapshot().busy_ns == 300


@pytest.mark.slow
def test_mails_and_work_in_place_never_meet() -> None:
    """A thread puts mails while another one works in the place of the parked one, in every order."""
    num_inside = 0
    num_mails = 0
    violations: list[str] = []

    def inside() -> None:
        nonlocal num_inside
        num_inside += 1
        if num_inside != 1:
            violations.append(f"{num_inside} threads inside")
        num_inside -= 1

    def mail() -> None:
        nonlocal num_mails
        inside()
        num_mails += 1

    with tiny_switch_interval(), parked_task() as task:

        def action(controller: MailboxProcessor) -> None:
            inside()
            task.suspend(controller)

        with Opponent.acting(lambda _round: task.mailbox.put_threadsafe(a_mail(mail))) as opponent:
            num_in_place = 0
            for round_ in range(NUM_ROUNDS):
                opponent.begin()
                num_in_place += task.try_run(action)
                opponent.wait()
                spin_tightly_until(lambda expected=round_ + 1: num_mails == expected)  # type: ignore[misc]  # a lambda with a default

    assert violations == []
    assert num_in_place > 0
    assert task.mailbox.statistics().num_rescued_wakeups == 0
    assert task.error is None
