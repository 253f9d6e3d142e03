"""``MailedCall``."""

from flowlet.task.checkpoint_wiring import MailedCall
from tests.flowlet.checkpoint.task.doubles import Mailbox, ManualTimers


def test_a_call_that_is_due_is_a_mail() -> None:
    timers, mailbox, calls = ManualTimers(), Mailbox(), list[int]()
    MailedCall(timers.call_later, mailbox.executor, "test", 0.005, lambda: calls.append(1))

    timers.fire()
    assert calls == []
    mailbox.run()

    assert calls == [1]


def test_a_cancel_comes_in_time_even_if_the_mail_is_under_way() -> None:
    timers, mailbox, calls = ManualTimers(), Mailbox(), list[int]()
    timer = MailedCall(timers.call_later, mailbox.executor, "test", 0.005, lambda: calls.append(1))
    timers.fire()

    timer.cancel()
    mailbox.run()

    assert calls == []


def test_a_cancel_before_the_time_leaves_no_timer() -> None:
    timers, mailbox = ManualTimers(), Mailbox()

    MailedCall(timers.call_later, mailbox.executor, "test", 0.005, lambda: None).cancel()

    assert timers.armed == []


def test_a_task_that_has_ended_takes_no_notice() -> None:
    timers, mailbox = ManualTimers(), Mailbox()
    MailedCall(timers.call_later, mailbox.executor, "test", 0.005, lambda: None)
    mailbox.mailbox.quiesce()

    timers.fire()

    assert timers.armed == []
