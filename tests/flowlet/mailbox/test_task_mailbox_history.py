"""Bugs that Flink's mailbox had, or has: none of them may be ours.

Source: FLINK-14231, 14304, 14544, 20217, 24846, 35051, 39481 (pull request 28608), 39898 (pull request 28483).
"""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from flowlet.errors import MailboxClosedError
from flowlet.mailbox.mailbox_processor import MailboxExecutor, MailboxProcessor, TaskTimings, WaitKind
from flowlet.mailbox.task_mailbox import MailOptions, TaskMailbox


class Task:
    """A loop whose default action ends after some rounds, or suspends itself."""

    def __init__(self) -> None:
        self.mailbox = TaskMailbox()
        self.mailbox.bind_to_current_thread()
        self.num_actions = 0
        self.max_actions: int | None = None
        self.on_action: Callable[[], None] = lambda: None
        self.processor = MailboxProcessor(self._act, self.mailbox, TaskTimings())
        self.ran: list[object] = []

    def _act(self, controller: MailboxProcessor) -> None:
        self.num_actions += 1
        self.on_action()
        if self.max_actions is None:
            controller.suspend_default_action(WaitKind.IDLE, "nothing")
        elif self.num_actions == self.max_actions:
            controller.all_actions_completed()

    def note(self, what: object, *, options: MailOptions = MailOptions.DEFAULT, priority: int = 0) -> None:
        self.processor.executor(priority).execute(partial(self.ran.append, what), "note %s", what, options=options)


@pytest.fixture
def task() -> Iterator[Task]:
    made = Task()
    yield made
    made.mailbox.check_invariants()


def test_hist_20217_thousands_of_timers_let_an_urgent_barrier_through(task: Task) -> None:
    """A mail with 10,000 timers looks for urgent mails and posts its rest: the barrier waits for one timer."""
    executor = task.processor.executor(1)
    fired: list[int] = []

    def fire(start: int) -> None:
        for number in range(start, 10_000):
            fired.append(number)
            if number == 4_000:
                barrier = partial(task.ran.append, ("barrier after", len(fired)))
                task.processor.executor().execute(barrier, "a barrier", options=MailOptions.URGENT)
            if executor.should_interrupt:
                executor.execute(partial(fire, number + 1), "the other timers", options=MailOptions.DEFERRABLE)
                return

    executor.execute(lambda: fire(0), "timers")
    task.processor.run_all_mails()

    assert task.ran == [("barrier after", 4_001)]
    assert fired == list(range(10_000))


@pytest.mark.parametrize("depth", range(1, 6))
def test_hist_39481_24846_the_end_runs_deferrable_mails_and_what_they_post(task: Task, depth: int) -> None:
    """Records that a deferred mail would have emitted are not lost when the task ends, however deep the mails nest."""
    executor = task.processor.executor(2)

    def post(level: int) -> None:
        task.ran.append(level)
        if level < depth:
            executor.execute(partial(post, level + 1), "level %d", level + 1, options=MailOptions.DEFERRABLE)

    executor.execute(partial(post, 1), "level 1", options=MailOptions.DEFERRABLE)
    task.processor.quiesce_when_empty()

    assert task.ran == list(range(1, depth + 1))


def test_hist_39481_an_operator_that_ends_runs_its_deferrable_mails(task: Task) -> None:
    """A yield alone does not see them: that was the bug; the task runs all mails before an operator finishes."""
    executor = task.processor.executor(2)
    task.note("deferred", options=MailOptions.DEFERRABLE, priority=2)

    assert not executor.try_yield()
    task.processor.run_all_mails()

    assert task.ran == ["deferred"]


def test_hist_39898_ordinary_mails_are_served_in_the_round_after_urgent_ones(task: Task) -> None:
    """Timers, which are ordinary mails, run although every round brings urgent mails."""
    served: list[int] = []

    def put_both() -> None:
        number = task.num_actions
        task.note("urgent", options=MailOptions.URGENT)
        task.processor.executor().execute(lambda: served.append(task.num_actions - number), "a timer")

    task.on_action = put_both
    task.max_actions = 50
    task.processor.run_mailbox_loop()

    # The mails of round n run before the action of round n + 1.
    assert served == [0] * 49
    assert task.ran == ["urgent"] * 50  # the end comes behind the urgent mail of the last round


def test_hist_39898_takes_that_find_only_urgent_mails_hold_no_ordinary_one_back(task: Task) -> None:
    """A yield for a high priority between two batches moves nothing to where the next batch does not look."""
    task.note("timer", priority=0)
    task.note("control", options=MailOptions.URGENT, priority=5)

    assert task.processor.executor(5).try_yield()
    assert not task.processor.executor(5).try_yield()
    task.processor.run_mailbox_step()

    assert task.ran == ["control", "timer"]


def test_hist_35051_urgent_mails_keep_their_order(task: Task) -> None:
    """A resume, a barrier, an end: not last in, first out."""
    task.note("ordinary")
    for number in range(5):
        task.note(number, options=MailOptions.URGENT)
    task.processor.run_mailbox_step()
    task.note("late", options=MailOptions.URGENT)

    task.processor.run_all_mails()

    assert task.ran == [0, 1, 2, 3, 4, "late", "ordinary"]


def test_hist_14304_a_mail_that_posts_itself_leaves_room_for_input(task: Task) -> None:
    executor: MailboxExecutor = task.processor.executor()

    def again() -> None:
        task.ran.append(task.num_actions)
        executor.execute(again, "again")

    executor.execute(again, "again")
    task.max_actions = 100
    task.processor.run_mailbox_loop()

    assert task.ran == list(range(100))


def test_hist_14544_a_cancel_after_the_end_changes_nothing(task: Task) -> None:
    """A late cancel is refused in silence; a late ordinary mail is refused with an error that its sender sees."""
    task.processor.quiesce_when_empty()

    assert not task.processor.send_control_mail(lambda: None, "cancel")
    with pytest.raises(MailboxClosedError):
        task.note("late")
    task.processor.close()
    assert not task.processor.send_control_mail(lambda: None, "cancel")
