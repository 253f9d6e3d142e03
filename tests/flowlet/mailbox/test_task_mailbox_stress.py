"""Real threads that meet where a mailbox changes its state, under constant thread switches."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from flowlet.errors import MailboxClosedError, TaskCancelled
from flowlet.mailbox.mailbox_processor import MailboxExecutor, MailboxProcessor, TaskTimings
from flowlet.mailbox.task_mailbox import MIN_PRIORITY, Mail, TaskMailbox
from netstack.availability import AvailabilityFuture
from tests.flowlet.task.watchdog import tiny_switch_interval, watchdog
from tests.stress import num_rounds
from tests.waiting import PATIENCE_S, spin_tightly_until

pytestmark = pytest.mark.slow

NUM_ROUNDS = num_rounds(20_000)
NUM_PARKED_ROUNDS = min(NUM_ROUNDS, 5_000)  # each parks a thread, which costs tens of microseconds
ROUNDS_PER_THREAD = 1_000
FORCED_EVERY = 50  # so often each of the orders is forced; in between chance decides


@pytest.fixture(autouse=True)
def _under_pressure() -> Iterator[None]:
    with watchdog(), tiny_switch_interval():
        yield


def a_mail() -> Mail:
    return Mail(lambda: None, MIN_PRIORITY, "a mail")


def new_mailbox() -> TaskMailbox:
    mailbox = TaskMailbox()
    mailbox.bind_to_current_thread()
    return mailbox


@contextmanager
def other_thread(act: Callable[[], object]) -> Iterator[None]:
    """Run ``act`` on another thread, which has to end, without an error, by the end of the block."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert errors == []


class Progress:
    """The progress of two threads; each number is written by one of them."""

    def __init__(self) -> None:
        self.num_started = self.num_ended = self.num_cancels = 0


def end_by_close(mailbox: TaskMailbox) -> list[Mail]:
    return mailbox.close()


def end_by_quiesce(mailbox: TaskMailbox) -> list[Mail]:
    mailbox.quiesce()
    return mailbox.pending_mails()


@pytest.mark.parametrize(("end", "num_mailboxes"), [(end_by_close, NUM_ROUNDS), (end_by_quiesce, NUM_PARKED_ROUNDS)])
def test_the_end_of_a_mailbox_against_puts_loses_no_mail(
    end: Callable[[TaskMailbox], list[Mail]], num_mailboxes: int
) -> None:
    """A mail that was accepted was taken or is given back, in many mailboxes; and no wake-up is lost."""
    num_contended = 0
    mail = a_mail()
    for _ in range(num_mailboxes // ROUNDS_PER_THREAD):
        mailboxes = [new_mailbox() for _ in range(ROUNDS_PER_THREAD)]
        num_accepted, num_returned = [0] * ROUNDS_PER_THREAD, [0] * ROUNDS_PER_THREAD

        def put_until_refused(mailboxes: list[TaskMailbox] = mailboxes, num_accepted: list[int] = num_accepted) -> None:
            for index, mailbox in enumerate(mailboxes):
                while mailbox.try_put_threadsafe(mail):
                    num_accepted[index] += 1

        with other_thread(put_until_refused):
            for index, mailbox in enumerate(mailboxes):
                # In turn: wait for a mail (both threads are at one mailbox then), look for one, end at once.
                taken = mailbox.take() if index % 8 == 0 else mailbox.try_take() if index % 8 == 1 else None
                num_returned[index] = len(end(mailbox)) + (taken is not None)

        assert num_accepted == num_returned
        num_contended += sum(number > 0 for number in num_accepted)
        for mailbox in mailboxes:
            mailbox.check_invariants()
            assert mailbox.statistics().num_rescued_wakeups == 0

    assert num_contended >= num_mailboxes // 8


def test_a_cancellation_against_the_natural_end_gives_one_of_the_two() -> None:
    """Many loops: the end or the cancellation, never a third error out of a mailbox that is closed (FLINK-14544)."""
    num_cancelled = 0

    def cancelled() -> None:
        raise TaskCancelled("by the other thread")

    def default_action(num_actions: int) -> Callable[[MailboxProcessor], None]:
        rest = iter(range(num_actions))

        def act(controller: MailboxProcessor) -> None:
            if next(rest, None) is None:
                controller.all_actions_completed()

        return act

    for _ in range(NUM_ROUNDS // ROUNDS_PER_THREAD):
        processors = [
            MailboxProcessor(default_action(index % 8), new_mailbox(), TaskTimings())
            for index in range(ROUNDS_PER_THREAD)
        ]
        accepted = [False] * ROUNDS_PER_THREAD
        progress = Progress()

        def cancel_each(
            processors: list[MailboxProcessor] = processors, accepted: list[bool] = accepted, at: Progress = progress
        ) -> None:
            for index, processor in enumerate(processors):
                if index % FORCED_EVERY == 1:  # cancelled after its end
                    spin_tightly_until(lambda: at.num_ended > index)  # noqa: B023 - called at once
                elif index % FORCED_EVERY:
                    spin_tightly_until(lambda: at.num_started > index)  # noqa: B023
                accepted[index] = processor.send_control_mail(cancelled, "cancel")
                at.num_cancels += 1

        was_cancelled = [False] * ROUNDS_PER_THREAD
        with other_thread(cancel_each):
            for index, processor in enumerate(processors):
                if index % FORCED_EVERY == 0:  # cancelled before it begins
                    spin_tightly_until(lambda: progress.num_cancels > index)  # noqa: B023
                progress.num_started += 1
                try:
                    processor.run_mailbox_loop()
                    processor.quiesce_when_empty()
                except TaskCancelled:
                    was_cancelled[index] = True
                finally:
                    processor.close()
                    progress.num_ended += 1

        # Accepted means that it ends the task, refused that the task ended by itself.
        assert accepted == was_cancelled
        num_cancelled += sum(was_cancelled)

    assert NUM_ROUNDS // FORCED_EVERY <= num_cancelled <= NUM_ROUNDS - NUM_ROUNDS // FORCED_EVERY


class AskedMail:
    """An action whose sender waits for its end."""

    def __init__(self) -> None:
        self.outcome: Future[str] = Future()

    def __call__(self) -> None:
        self.outcome.set_result("value")

    def cancel(self) -> None:
        self.outcome.set_result("dropped")


def test_whoever_waits_for_a_mail_hears_of_its_end() -> None:
    """A thread waits for a result while the task yields once and closes: value, dropped or refused."""
    outcomes: dict[str, int] = {}
    mailboxes = [new_mailbox() for _ in range(NUM_PARKED_ROUNDS)]

    def ask_each() -> None:
        for mailbox in mailboxes:
            try:
                asked = AskedMail()
                MailboxExecutor(mailbox).execute(asked, "work")
                outcome = asked.outcome.result(PATIENCE_S)
            except MailboxClosedError:
                outcome = "refused"
            outcomes[outcome] = outcomes.get(outcome, 0) + 1

    with other_thread(ask_each):
        for index, mailbox in enumerate(mailboxes):
            executor = MailboxExecutor(mailbox)
            if index % 2:
                executor.yield_()
            else:
                executor.try_yield()
            for mail in mailbox.close():
                mail.try_cancel()

    assert sum(outcomes.values()) == NUM_PARKED_ROUNDS
    assert outcomes["value"] >= NUM_PARKED_ROUNDS // 2


def test_a_signal_against_a_park_is_never_missed() -> None:
    """Many signals and mails from another thread while this one goes to sleep."""
    mailbox = new_mailbox()
    executor = MailboxExecutor(mailbox)
    signals = [AvailabilityFuture() for _ in range(NUM_PARKED_ROUNDS)]
    position, num_parks = [-1], [0]  # how often it had slept before it came to this position

    def signal_each() -> None:
        for index, signal in enumerate(signals):
            spin_tightly_until(lambda: position[0] >= index)  # noqa: B023 - called at once
            if index % FORCED_EVERY == 0:  # when it sleeps already
                spin_tightly_until(lambda: mailbox.statistics().num_parks > num_parks[0])
            if index % 3 == 0:
                mailbox.put_threadsafe(a_mail())
            signal.complete()

    with other_thread(signal_each):
        for index, signal in enumerate(signals):
            num_parks[0] = mailbox.statistics().num_parks
            position[0] = index
            executor.yield_until(signal)

    statistics = mailbox.statistics()
    assert statistics.num_rescued_wakeups == 0
    assert statistics.num_parks >= NUM_PARKED_ROUNDS // FORCED_EVERY
    assert mailbox._wakeup.locked()
