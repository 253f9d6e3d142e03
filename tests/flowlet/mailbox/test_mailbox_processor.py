"""Source: Flink `TaskMailboxProcessorTest`, `MailboxProcessor`."""

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from flowlet.errors import FlowletError, MailboxClosedError
from flowlet.mailbox.mailbox_processor import LONG_NS, MailboxProcessor, Suspension, TaskTimings, WaitKind
from flowlet.mailbox.task_mailbox import Action, MailboxState, RunAction, TaskMailbox, run_directly
from netstack.availability import AvailabilityFuture
from tests.flowlet.mailbox.boxes import Clock, in_thread, when_parked
from tests.waiting import PATIENCE_S


class Loop:
    """A processor on the test's own thread, whose default action counts and may be replaced."""

    def __init__(self, run_action: RunAction = run_directly) -> None:
        self.clock = Clock()
        self.timings = TaskTimings(self.clock)
        self.timings.mark_start()
        self.mailbox = TaskMailbox()
        self.mailbox.bind_to_current_thread()
        self.num_actions = 0
        self.action: Callable[[MailboxProcessor], None] = lambda controller: None
        self.num_long = 0
        self.processor = MailboxProcessor(
            self._run_action, self.mailbox, self.timings, run_action=run_action, after_long=self._note_long
        )
        self.suspension: Suspension | None = None

    def _run_action(self, controller: MailboxProcessor) -> None:
        self.num_actions += 1
        self.action(controller)

    def _note_long(self) -> None:
        self.num_long += 1

    def suspend(self, controller: MailboxProcessor) -> None:
        self.suspension = controller.suspend_default_action(WaitKind.IDLE, "the test")

    def resume(self) -> None:
        assert self.suspension is not None
        self.suspension.resume()

    def execute(self, action: Callable[[], object]) -> None:
        self.processor.executor().execute(action, "a mail")

    def end_after(self, num_actions: int) -> None:
        def end(controller: MailboxProcessor) -> None:
            if self.num_actions == num_actions:
                controller.all_actions_completed()

        self.action = end


def run_under_lock() -> RunAction:
    lock = threading.RLock()

    def run(action: Action) -> None:
        with lock:
            action()

    return run


@pytest.fixture(params=["immediate", "synchronized"])
def loop(request: pytest.FixtureRequest) -> Iterator[Loop]:
    """Provide a loop, with and without a lock around the mails."""
    made = Loop(run_directly if request.param == "immediate" else run_under_lock())
    yield made
    made.mailbox.check_invariants()
    assert made.mailbox.statistics().num_rescued_wakeups == 0


def test_the_default_action_runs_until_all_actions_are_completed(loop: Loop) -> None:
    """The default action runs exactly three times; another run returns at once, mails or not."""
    loop.end_after(3)
    loop.processor.run_mailbox_loop()
    assert loop.num_actions == 3
    ran: list[int] = []
    loop.execute(lambda: ran.append(1))

    loop.processor.run_mailbox_loop()

    assert loop.num_actions == 3
    assert ran == []


def test_mails_come_before_the_default_action(loop: Loop) -> None:
    order: list[str] = []
    loop.execute(lambda: order.append("mail"))

    def note_and_end(controller: MailboxProcessor) -> None:
        order.append("action")
        controller.all_actions_completed()

    loop.action = note_and_end
    loop.processor.run_mailbox_loop()

    assert order == ["mail", "action"]


def test_an_error_of_a_mail_leaves_the_loop_unchanged(loop: Loop) -> None:
    error = ValueError("from a mail")

    def fail() -> None:
        raise error

    loop.execute(fail)
    with pytest.raises(ValueError, match="from a mail") as caught:
        loop.processor.run_mailbox_loop()

    assert caught.value is error
    assert loop.num_actions == 0


def test_an_error_of_the_default_action_leaves_the_loop(loop: Loop) -> None:
    def fail(controller: MailboxProcessor) -> None:
        raise ValueError("from the action")

    loop.action = fail
    with pytest.raises(ValueError, match="from the action"):
        loop.processor.run_mailbox_loop()


def test_a_mail_resumes_the_suspended_default_action(loop: Loop) -> None:
    """Suspended at 3, resumed by a mail, 6 in the end."""

    def act(controller: MailboxProcessor) -> None:
        if loop.num_actions == 3:
            loop.suspend(controller)
            loop.execute(loop.resume)
        elif loop.num_actions == 6:
            controller.all_actions_completed()

    loop.action = act
    loop.processor.run_mailbox_loop()

    assert loop.num_actions == 6


def test_mails_run_while_the_default_action_is_suspended(loop: Loop) -> None:
    ran: list[int] = []

    def act(controller: MailboxProcessor) -> None:
        loop.suspend(controller)
        for number in range(5):
            loop.execute(partial(ran.append, number))
        loop.execute(lambda: controller.all_actions_completed())

    loop.action = act
    loop.processor.run_mailbox_loop()

    assert ran == [0, 1, 2, 3, 4]
    assert loop.num_actions == 1


def test_resuming_from_another_thread_goes_through_an_urgent_mail(loop: Loop) -> None:
    """The urgent mail overtakes queued ones, and no work is done on the other thread."""
    loop.action = loop.suspend
    loop.processor.run_mailbox_step()
    for _ in range(1_000):
        loop.execute(lambda: None)

    in_thread(loop.resume).join()

    assert loop.processor.waiting_for is not None
    loop.processor.run_mailbox_step()
    assert loop.processor.waiting_for is None
    assert loop.mailbox.num_mails == 1_000


def test_a_stale_resume_does_nothing(loop: Loop) -> None:
    """The current suspension alone counts, whichever thread resumes the old one."""
    loop.action = loop.suspend
    loop.processor.run_mailbox_step()
    stale = loop.suspension
    assert stale is not None
    stale.resume()
    loop.processor.run_mailbox_step()

    stale.resume()
    assert loop.processor.waiting_for is not None
    in_thread(stale.resume).join()

    assert not loop.mailbox.has_mail
    assert not loop.processor.run_mailbox_step()
    assert loop.num_actions == 2


def test_resuming_after_the_end_is_ignored(loop: Loop) -> None:
    loop.action = loop.suspend
    loop.processor.run_mailbox_step()
    loop.processor.close()

    in_thread(loop.resume).join()
    loop.resume()

    assert loop.mailbox.state is MailboxState.CLOSED


def test_suspending_twice_is_refused(loop: Loop) -> None:
    def act(controller: MailboxProcessor) -> None:
        loop.suspend(controller)
        loop.suspend(controller)

    loop.action = act
    with pytest.raises(RuntimeError, match="suspended already"):
        loop.processor.run_mailbox_loop()


def test_only_the_mailbox_thread_suspends_and_runs(loop: Loop) -> None:
    errors: list[str] = []

    def try_both() -> None:
        for use in (lambda: loop.processor.suspend_default_action(WaitKind.IDLE, "x"), loop.processor.run_mailbox_loop):
            try:
                use()
            except RuntimeError as error:
                errors.append(str(error))

    in_thread(try_both).join()

    assert len(errors) == 2


def test_a_loop_needs_an_open_mailbox(loop: Loop) -> None:
    loop.processor.quiesce_when_empty()

    with pytest.raises(MailboxClosedError):
        loop.processor.run_mailbox_loop()


def suspend_until(controller: MailboxProcessor, signal: AvailabilityFuture, kind: WaitKind, waiting_for: str) -> None:
    signal.add_done_callback(controller.suspend_default_action(kind, waiting_for).resume)


class TestSuspendUntil:
    """The default action waits for a gate or a pool."""

    def test_the_signal_resumes_the_default_action(self, loop: Loop) -> None:
        signal = AvailabilityFuture()

        def act(controller: MailboxProcessor) -> None:
            if loop.num_actions == 1:
                suspend_until(controller, signal, WaitKind.BACK_PRESSURED, "a free buffer")
                loop.execute(signal.complete)
            else:
                controller.all_actions_completed()

        loop.action = act
        loop.processor.run_mailbox_loop()

        assert loop.num_actions == 2

    def test_a_signal_that_was_given_resumes_at_once(self, loop: Loop) -> None:
        """Level triggered: a signal between the look and the suspension is not missed."""
        signal = AvailabilityFuture()
        signal.complete()
        loop.action = lambda controller: suspend_until(controller, signal, WaitKind.IDLE, "data")

        loop.processor.run_mailbox_step()

        assert loop.processor.waiting_for is None

    def test_the_network_thread_resumes_a_parked_task(self, loop: Loop) -> None:
        """The thread resumes it by an urgent mail, which says when the task woke up in its statistics."""
        signal = AvailabilityFuture()

        def act(controller: MailboxProcessor) -> None:
            if loop.num_actions == 1:
                suspend_until(controller, signal, WaitKind.IDLE, "data")
            else:
                controller.all_actions_completed()

        loop.action = act
        thread = when_parked(loop.mailbox, signal.complete)
        loop.processor.run_mailbox_loop()
        thread.join()

        assert (loop.num_actions, loop.mailbox.statistics().num_parks) == (2, 1)


def test_completing_a_suspended_loop_from_another_thread_wakes_it(loop: Loop) -> None:
    """The parked thread returns from the loop."""
    loop.action = loop.suspend
    thread = when_parked(loop.mailbox, loop.processor.all_actions_completed)
    loop.processor.run_mailbox_loop()
    thread.join()

    assert loop.num_actions == 1


def test_parked_time_counts_and_the_time_of_mails_does_not(loop: Loop) -> None:
    """A task that is parked for 42 ms and runs a mail for 44 ms is idle for 42 ms."""

    def work() -> None:
        loop.clock.advance_ms(44)
        loop.resume()

    def post() -> None:
        loop.clock.advance_ms(42)
        loop.execute(work)

    def act(controller: MailboxProcessor) -> None:
        if loop.num_actions == 1:
            loop.suspend(controller)
        else:
            controller.all_actions_completed()

    loop.action = act
    thread = when_parked(loop.mailbox, post)
    loop.processor.run_mailbox_loop()
    thread.join()

    snapshot = loop.timings.snapshot()
    assert (snapshot.running_ns, snapshot.idle_ns, snapshot.soft_back_pressured_ns) == (86_000_000, 42_000_000, 0)


def test_a_suspension_says_what_it_waits_for(loop: Loop) -> None:
    loop.action = loop.suspend
    assert loop.processor.waiting_for is None

    loop.processor.run_mailbox_step()

    assert loop.processor.waiting_for == "the test"
    assert "the test" in repr(loop.processor)
    loop.resume()
    assert loop.processor.waiting_for is None


def test_a_step_runs_one_mail_or_one_default_action_or_nothing(loop: Loop) -> None:
    ran: list[int] = []
    loop.action = loop.suspend
    for number in range(2):
        loop.execute(partial(ran.append, number))

    results = [loop.processor.run_mailbox_step() for _ in range(4)]

    assert results == [True, True, True, False]
    assert ran == [0, 1]
    assert loop.num_actions == 1


class TestEnding:
    def test_a_mail_that_arrives_after_the_last_round_still_runs(self, loop: Loop) -> None:
        """The forced interleaving: it comes between the last look and the quiescing."""
        ran: list[int] = []
        try_quiesce = loop.mailbox.try_quiesce

        def post_first() -> bool:
            if not ran:
                loop.execute(lambda: ran.append(1))
            return try_quiesce()

        loop.mailbox.try_quiesce = post_first  # type: ignore[method-assign]  # the seam of the interleaving
        loop.processor.quiesce_when_empty()

        assert ran == [1]
        assert loop.mailbox.state is MailboxState.QUIESCED

    def test_mails_that_post_themselves_for_ever_are_an_error(self, loop: Loop) -> None:
        def again() -> None:
            loop.execute(again)

        loop.execute(again)
        with pytest.raises(FlowletError, match="still post mails"):
            loop.processor.quiesce_when_empty()

    def test_a_control_mail_after_the_end_is_no_error(self, loop: Loop) -> None:
        """A cancel that comes too late must not replace the result (FLINK-14544)."""
        loop.processor.close()

        assert not loop.processor.send_control_mail(lambda: None, "cancel")
        loop.processor.all_actions_completed()


@pytest.mark.slow
def test_ten_thousand_suspensions_with_a_concurrent_unblocker_all_end(loop: Loop) -> None:
    """Suspend here, resume there, under constant thread switches: no wake-up is lost, none comes twice."""
    rounds = 10_000
    pending: list[Suspension] = []
    is_over = threading.Event()

    def unblock() -> None:
        while not is_over.is_set():
            if pending:
                pending.pop().resume()

    def act(controller: MailboxProcessor) -> None:
        if loop.num_actions > rounds:
            controller.all_actions_completed()
        else:
            pending.append(controller.suspend_default_action(WaitKind.IDLE, "the unblocker"))

    loop.action = act
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = in_thread(unblock)
    try:
        loop.processor.run_mailbox_loop()
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join(PATIENCE_S)

    assert loop.num_actions == rounds + 1
    assert loop.processor.num_mails_processed == rounds + 1  # one per resume, and the end


def test_after_each_call_of_more_than_a_second_others_have_their_turn(loop: Loop) -> None:
    """The call may be a mail or the default action, and may have kept the interpreter's lock."""
    durations_ns = [LONG_NS, LONG_NS + 1, 2 * LONG_NS, 0]

    def act(controller: MailboxProcessor) -> None:
        loop.clock.advance(durations_ns[loop.num_actions - 1])
        if loop.num_actions == len(durations_ns):
            controller.all_actions_completed()

    loop.action = act
    loop.execute(lambda: loop.clock.advance(3 * LONG_NS))
    loop.execute(lambda: loop.clock.advance(LONG_NS))

    loop.processor.run_mailbox_loop()

    assert loop.num_long == 3
