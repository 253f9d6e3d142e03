"""The ways to wait beyond a plain take.

Source: Flink `TaskMailboxImplTest`, FLINK-14231.
"""

import threading
from collections.abc import Callable, Iterator

import pytest

from flowlet.errors import MailboxClosedError
from flowlet.mailbox import task_mailbox
from flowlet.mailbox.task_mailbox import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions, TaskMailbox
from netstack.availability import AvailabilityFuture


def mail(name: str, priority: int = MIN_PRIORITY, options: MailOptions = MailOptions.DEFAULT) -> Mail:
    return Mail(lambda: None, priority, name, options=options)


def urgent(name: str) -> Mail:
    return mail(name, MAX_PRIORITY, MailOptions.URGENT)


def names(mails: list[Mail]) -> str:
    return " ".join(map(repr, mails))


def drained(box: TaskMailbox) -> list[Mail]:
    return list(iter(box.try_take, None))


def in_thread(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def when_parked(box: TaskMailbox, act: Callable[[], object]) -> threading.Thread:
    """Another thread acts once the mailbox thread sleeps; the mailbox says so itself."""

    def wait_and_act() -> None:
        while "parked" not in repr(box):
            pass
        act()

    return in_thread(wait_and_act)


@pytest.fixture
def box() -> Iterator[TaskMailbox]:
    made = TaskMailbox()
    made.bind_to_current_thread()
    yield made
    made.check_invariants()
    assert made.statistics().num_rescued_wakeups == 0
    assert made._wakeup.locked(), "a wake-up is left over"


class TestTakeUntil:
    def test_a_signal_that_was_given_ends_the_taking(self, box: TaskMailbox) -> None:
        """The signal counts although a mail waits."""
        signal = AvailabilityFuture()
        box.put_threadsafe(mail("1"))
        box.put_threadsafe(mail("2"))

        assert repr(box.take_until(signal)) == "1"
        signal.complete()

        assert box.take_until(signal) is None
        assert names(drained(box)) == "2"

    def test_a_signal_wakes_the_parked_thread(self, box: TaskMailbox) -> None:
        signal = AvailabilityFuture()
        signal.add_done_callback(box.wake_threadsafe)
        thread = when_parked(box, signal.complete)

        assert box.take_until(signal) is None

        thread.join()
        assert box.statistics().num_parks == 1

    def test_a_mail_wakes_it_too(self, box: TaskMailbox) -> None:
        signal = AvailabilityFuture()
        signal.add_done_callback(box.wake_threadsafe)
        thread = when_parked(box, lambda: box.put_threadsafe(mail("hello", 2)))

        assert repr(box.take_until(signal, 1)) == "hello"
        thread.join()

    def test_a_signal_between_look_and_park_is_not_missed(self, box: TaskMailbox) -> None:
        """The forced interleaving: it comes when nothing was found and the thread does not sleep yet."""
        signal = AvailabilityFuture()
        signal.add_done_callback(box.wake_threadsafe)
        look = box.try_take

        def look_then_signal(priority: int = MIN_PRIORITY) -> Mail | None:
            found = look(priority)
            signal.complete()
            return found

        box.try_take = look_then_signal  # type: ignore[method-assign]  # the seam of the interleaving

        assert box.take_until(signal) is None
        assert box.statistics().num_parks == 0

    def test_a_signal_works_on_a_quiesced_mailbox(self, box: TaskMailbox) -> None:
        """A mail that said so would be refused, and the thread would sleep for ever (FLINK-14231)."""
        signal = AvailabilityFuture()
        signal.add_done_callback(box.wake_threadsafe)
        box.quiesce()
        thread = when_parked(box, signal.complete)

        assert box.take_until(signal) is None
        thread.join()

    def test_a_closed_mailbox_gives_nothing(self, box: TaskMailbox) -> None:
        box.close()

        with pytest.raises(MailboxClosedError):
            box.take_until(AvailabilityFuture())

    def test_a_wake_up_without_a_reason_is_slept_over(self, box: TaskMailbox) -> None:
        """A waiting thread looks again, and goes on waiting."""

        def wake_then_put() -> None:
            box.wake_threadsafe()
            while box.statistics().num_parks < 2:
                pass
            box.put_threadsafe(mail("at last"))

        thread = when_parked(box, wake_then_put)

        assert repr(box.take()) == "at last"
        thread.join()

    def test_waking_nobody_leaves_nothing_behind(self, box: TaskMailbox) -> None:
        """The next park really sleeps, whether the wake-up came before the first park or after one."""
        box.wake_threadsafe()
        thread = when_parked(box, lambda: box.put_threadsafe(mail("hello")))
        box.take()
        thread.join()

        box.wake_threadsafe()

        assert box._wakeup.locked()

    def test_a_signal_without_a_wakeup_is_found_and_counted(
        self, box: TaskMailbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The safety net finds a signal that did not wake the mailbox."""
        monkeypatch.setattr(task_mailbox, "_PARK_SLICE_S", 0.001)
        signal = AvailabilityFuture()
        thread = when_parked(box, signal.complete)

        assert box.take_until(signal) is None

        thread.join()
        assert box.statistics().num_rescued_wakeups == 1
        box._num_rescued_wakeups = 0
