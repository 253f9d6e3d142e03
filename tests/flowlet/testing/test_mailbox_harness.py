"""Source: Flink `MailboxStepper`."""

import pytest

from flowlet.errors import MailboxClosedError
from flowlet.mailbox.mailbox_processor import MailboxProcessor
from flowlet.mailbox.task_mailbox import MailOptions
from flowlet.testing.harness_environment import MailboxHarness


def test_a_step_runs_one_mail() -> None:
    """Urgent mails run first; waiting mails can be looked at without being run."""
    ran: list[int] = []
    with MailboxHarness() as harness:
        harness.executor().execute(lambda: ran.append(1), "mail %d", 1)
        harness.executor(2).execute(lambda: ran.append(2), "mail %d", 2, options=MailOptions.URGENT)
        assert harness.pending == ["mail 2", "mail 1"]

        assert harness.step()

        assert ran == [2]
        assert harness.pending == ["mail 1"]
        harness.run_until_idle()
        assert ran == [2, 1]


def test_it_runs_until_nothing_is_left_to_do() -> None:
    """The harness runs two mails and the default action, which suspends itself."""
    with MailboxHarness() as harness:
        executor = harness.executor()
        executor.execute(lambda: executor.execute(lambda: None, "second"), "first")

        assert harness.run_until_idle() == 3
        assert harness.run_until_idle() == 0


def test_a_default_action_of_the_tests_own_counts_as_steps() -> None:
    calls: list[int] = []

    def act(controller: MailboxProcessor) -> None:
        calls.append(1)
        if len(calls) == 5:
            controller.all_actions_completed()

    with MailboxHarness(act) as harness:
        harness.run_until_idle()

    assert len(calls) == 5


def test_work_without_end_is_an_error_of_the_test() -> None:
    with (
        MailboxHarness(lambda controller: None) as harness,
        pytest.raises(AssertionError, match="still not idle after 10 steps"),
    ):
        harness.run_until_idle(10)


def test_time_stands_still_unless_it_is_moved() -> None:
    with MailboxHarness() as harness:
        harness.clock.advance(5)

        assert harness.timings.snapshot().running_ns == 5


def test_mails_that_the_test_forgot_are_an_error() -> None:
    with pytest.raises(AssertionError, match="forgotten"), MailboxHarness() as harness:
        harness.executor().execute(lambda: None, "forgotten")


def test_an_error_of_the_test_is_not_hidden_by_mails_that_are_left() -> None:

    def use_and_fail() -> None:
        with MailboxHarness() as harness:
            harness.executor().execute(lambda: None, "left")
            raise ValueError("the test's own")

    with pytest.raises(ValueError, match="the test's own"):
        use_and_fail()


class Dropped:
    is_cancelled = False

    def __call__(self) -> None:
        raise AssertionError("it never runs")

    def cancel(self) -> None:
        self.is_cancelled = True


def test_closing_cancels_mails_and_refuses_more() -> None:
    harness = MailboxHarness()
    dropped = Dropped()
    harness.executor().execute(dropped, "never")

    harness.close()
    harness.close()

    assert dropped.is_cancelled
    assert "CLOSED" in repr(harness)
    with pytest.raises(MailboxClosedError):
        harness.executor().execute(lambda: None, "late")
