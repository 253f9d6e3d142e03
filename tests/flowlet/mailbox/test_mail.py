"""Source: Flink `Mail`, `MailOptionsImpl`."""

import pytest

from flowlet.mailbox.task_mailbox import MAX_PRIORITY, MIN_PRIORITY, Mail, MailOptions


def do_nothing() -> None:
    return


class Cancellable:
    def __init__(self) -> None:
        self.is_cancelled = False

    def __call__(self) -> None:
        return

    def cancel(self) -> None:
        self.is_cancelled = True


def test_running_a_mail_runs_its_action() -> None:
    ran: list[int] = []

    Mail(lambda: ran.append(1), 0, "append").run()

    assert ran == [1]


def test_an_error_of_the_action_is_the_callers() -> None:
    """The error is passed on unchanged: nothing is wrapped."""
    error = ValueError("of the action")

    def fail() -> None:
        raise error

    with pytest.raises(ValueError, match="of the action") as caught:
        Mail(fail, 0, "fail").run()

    assert caught.value is error


def test_a_mail_shows_its_expanded_description() -> None:
    assert repr(Mail(do_nothing, 0, "timer %d of %s", 7, "window")) == "timer 7 of window"
    assert repr(Mail(do_nothing, 0, "100 %")) == "100 %"


def test_the_description_is_expanded_only_when_somebody_looks() -> None:
    class Expensive:
        def __str__(self) -> str:
            raise AssertionError("nobody looked")

    Mail(do_nothing, 0, "for %s", Expensive()).run()


@pytest.mark.parametrize(
    ("options", "priority", "is_urgent"),
    [(MailOptions.DEFAULT, 3, False), (MailOptions.DEFERRABLE, MIN_PRIORITY, False), (MailOptions.URGENT, 3, True)],
)
def test_options_decide_what_yields_see(options: MailOptions, priority: int, is_urgent: bool) -> None:
    """A deferrable mail looks as if it had the lowest priority."""
    mail = Mail(do_nothing, 3, "a mail", options=options)

    assert (mail.priority, mail.is_urgent) == (priority, is_urgent)


def test_the_limits_of_priorities_are_flinks() -> None:
    assert (MIN_PRIORITY, MAX_PRIORITY) == (-1, 2_147_483_647)


def test_dropping_a_mail_tells_whoever_waits_for_it() -> None:
    """The action's waiting caller is told; an action without ``cancel`` has none."""
    action = Cancellable()

    assert Mail(action, 0, "somebody waits").try_cancel()
    assert action.is_cancelled
    assert not Mail(do_nothing, 0, "nobody waits").try_cancel()
