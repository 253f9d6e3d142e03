"""Source: Flink `TaskMailboxImplTest`, `Mail`, `MailOptionsImpl`, FLINK-14231."""

import sys
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from flowlet.errors import MailboxClosedError
from flowlet.mailbox import task_mailbox
from flowlet.mailbox.task_mailbox import MAX_PRIORITY, MIN_PRIORITY, Mail, MailboxState, MailOptions, TaskMailbox
from netstack.availability import AvailabilityFuture
from tests.flowlet.mailbox.boxes import drained, in_thread, mail, names, put_all, urgent, when_parked
from tests.waiting import PATIENCE_S


@pytest.fixture
def box() -> Iterator[TaskMailbox]:
    made = TaskMailbox()
    made.bind_to_current_thread()
    yield made
    made.check_invariants()
    assert made.statistics().num_rescued_wakeups == 0
    assert made._wakeup.locked(), "a wake-up is left over"


Put = Callable[..., object]


@pytest.fixture(params=["this thread", "another thread"])
def put(box: TaskMailbox, request: pytest.FixtureRequest) -> Put:
    """Puts mails, on the mailbox's thread or on another one."""
    if request.param == "this thread":
        return partial(put_all, box)
    return lambda *mails: in_thread(partial(put_all, box, *mails)).join()


@pytest.fixture
def _tiny_switch_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# ---------------------------------------------------------------- mails


def do_nothing() -> None:
    return


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
    ids=lambda value: getattr(value, "name", None),
)
def test_options_decide_what_yields_see(options: MailOptions, priority: int, is_urgent: bool) -> None:
    """A deferrable mail looks as if it had the lowest priority."""
    mail = Mail(do_nothing, 3, "a mail", options=options)

    assert (mail.priority, mail.is_urgent) == (priority, is_urgent)


def test_the_limits_of_priorities_are_flinks() -> None:
    assert (MIN_PRIORITY, MAX_PRIORITY) == (-1, 2_147_483_647)


def test_dropping_a_mail_tells_whoever_waits_for_it() -> None:
    """The action's waiting caller is told; an action without ``cancel`` has none."""

    class Cancellable:
        is_cancelled = False

        def __call__(self) -> None:
            return

        def cancel(self) -> None:
            self.is_cancelled = True

    action = Cancellable()

    assert Mail(action, 0, "somebody waits").try_cancel()
    assert action.is_cancelled
    assert not Mail(do_nothing, 0, "nobody waits").try_cancel()


# ---------------------------------------------------------------- the mailbox


def test_mails_come_out_in_the_order_in_which_they_were_put(box: TaskMailbox) -> None:
    """Ten mails come out first in, first out, and nothing after them."""
    mails = [mail(str(number)) for number in range(10)]
    put_all(box, *mails)

    assert [box.take() for _ in range(10)] == mails
    assert box.try_take() is None
    assert not box.has_mail


def test_an_urgent_mail_overtakes_a_thousand_others(box: TaskMailbox) -> None:
    put_all(box, *(mail(str(number)) for number in range(1_000)), urgent("first"))

    assert repr(box.take()) == "first"
    assert box.num_mails == 1_000


def test_a_take_sees_only_mails_of_its_priority_or_above(box: TaskMailbox) -> None:
    """C1, B2, D1, urgent A2: take(2) gives A and B, then take(1) gives C and D; the lowest priority sees all."""
    mails = [mail("C", 1), mail("B", 2), mail("D", 1), urgent("A", 2)]
    put_all(box, *mails)

    assert drained(box, 2) == "A B"
    assert drained(box, 1) == "C D"
    put_all(box, *mails)
    assert drained(box) == "A C B D"


def test_a_deferrable_mail_has_the_lowest_priority(box: TaskMailbox) -> None:
    """An operator that yields never runs it, the loop does."""
    box.put_threadsafe(mail("later", 5, MailOptions.DEFERRABLE))

    assert box.try_take(0) is None
    assert repr(box.try_take()) == "later"


def test_takes_from_batch_and_queue_mix(box: TaskMailbox) -> None:
    """0-2 in a batch, 3-5 behind it: every way to take goes on where the last one stopped."""
    mails = [mail(str(number)) for number in range(6)]
    put_all(box, *mails[:3])
    assert box.create_batch()
    put_all(box, *mails[3:])

    assert box.try_take_from_batch() is mails[0]
    assert box.try_take() is mails[1]
    assert box.take() is mails[2]
    assert box.try_take_from_batch() is None
    assert box.try_take() is mails[3]
    assert box.take() is mails[4]
    assert box.close() == [mails[5]]


def test_a_batch_holds_only_what_was_there(box: TaskMailbox) -> None:
    """A mail put later waits for the next batch, so that mails that post mails do not starve the default action."""
    box.put_threadsafe(mail("one"))
    box.create_batch()
    box.put_threadsafe(mail("two"))

    assert repr(box.try_take_from_batch()) == "one"
    assert box.try_take_from_batch() is None
    assert box.has_mail
    assert box.create_batch()
    assert repr(box.try_take_from_batch()) == "two"
    assert not box.create_batch()


def test_priorities_look_through_the_batch_into_the_queue(box: TaskMailbox) -> None:
    """A1 in the batch, B2 in the queue: take(2) gives B, the batch still gives A."""
    box.put_threadsafe(mail("A", 1))
    box.create_batch()
    box.put_threadsafe(mail("B", 2))

    assert repr(box.take(2)) == "B"
    assert repr(box.try_take_from_batch()) == "A"


def test_urgent_mails_come_next_and_in_order_among_themselves(box: TaskMailbox, put: Put) -> None:
    """The golden order 1 A B C 2 3 D E F G 4 5 6 7, wherever the urgent mails come from."""
    put(*(mail(str(number)) for number in range(1, 6)))
    box.create_batch()
    order = [box.take()]
    put(urgent("A"), urgent("B"))
    order.append(box.take())
    put(urgent("C"))
    order += [box.try_take_from_batch() or mail("none") for _ in range(4)]
    put(urgent("D"), urgent("E"), mail("6"), urgent("F"), mail("7"))
    order += [box.take() for _ in range(2)]
    put(urgent("G"))
    order += [box.take() for _ in range(6)]

    assert names(order) == "1 A B C 2 3 D E F G 4 5 6 7"
    assert not box.has_mail


def test_a_single_urgent_mail_comes_next_in_every_way_to_take(box: TaskMailbox, put: Put) -> None:
    """Put before the batch, into it and after it: A 1 B 2 C 3 D 4."""
    put(mail("1"), mail("2"), urgent("A"))
    box.create_batch()
    order = [box.try_take_from_batch(), box.try_take_from_batch()]
    put(urgent("B"), mail("3"))
    order += [box.try_take_from_batch(), box.try_take_from_batch(), box.try_take_from_batch()]
    put(mail("4"), urgent("C"))
    order += [box.take(), box.take()]
    put(urgent("D"))
    order += [box.try_take(), box.try_take()]

    assert [repr(each) for each in order] == ["A", "1", "B", "2", "None", "C", "3", "D", "4"]


def test_an_urgent_mail_comes_between_two_of_a_batch(box: TaskMailbox) -> None:
    put_all(box, mail("1"), mail("2"))
    box.create_batch()
    assert repr(box.try_take_from_batch()) == "1"

    box.put_threadsafe(urgent("now"))

    assert repr(box.try_take_from_batch()) == "now"
    assert repr(box.try_take_from_batch()) == "2"


def test_draining_gives_everything_in_order(box: TaskMailbox) -> None:
    """Urgent, batch, queue; also deferrable ones (a drain that skipped those once lost data: FLINK-39481)."""
    box.put_threadsafe(mail("1"))
    box.create_batch()
    put_all(box, mail("2", 3), mail("3", 0, MailOptions.DEFERRABLE), urgent("0"))

    assert drained(box) == "0 1 2 3"
    assert box.num_mails == 0


def test_a_quiesced_mailbox_gives_but_does_not_take(box: TaskMailbox) -> None:
    box.put_threadsafe(mail("last"))
    box.quiesce()

    with pytest.raises(MailboxClosedError, match="QUIESCED"):
        box.put_threadsafe(mail("late"))
    assert not box.try_put_threadsafe(mail("late"))
    assert repr(box.try_take()) == "last"
    assert box.try_take() is None
    assert box.state is MailboxState.QUIESCED


def test_quiescing_on_condition_waits_for_the_mails(box: TaskMailbox) -> None:
    """A mail that was accepted keeps the mailbox open, so that it may post another one."""
    box.put_threadsafe(mail("one"))

    assert not box.try_quiesce()
    box.put_threadsafe(mail("two"))
    drained(box)
    assert box.try_quiesce()
    assert box.state is MailboxState.QUIESCED


@pytest.mark.parametrize("where", ["urgent", "batch", "queue"])
def test_a_mail_anywhere_keeps_the_mailbox_open(box: TaskMailbox, where: str) -> None:
    box.put_threadsafe(urgent("there") if where == "urgent" else mail("there"))
    if where == "batch":
        box.create_batch()

    assert not box.try_quiesce()
    assert box.state is MailboxState.OPEN


def test_a_closed_mailbox_does_nothing(box: TaskMailbox) -> None:
    left = mail("left")
    box.put_threadsafe(left)

    assert box.close() == [left]
    assert box.close() == []
    for refused in (lambda: box.put_threadsafe(mail("late")), box.take, box.try_take, box.try_take_from_batch):
        with pytest.raises(MailboxClosedError):
            refused()
    box.quiesce()
    assert box.state is MailboxState.CLOSED


def test_only_the_mailbox_thread_takes(box: TaskMailbox) -> None:
    """Other threads may put mails; every other call raises there."""
    errors: list[str] = []

    def try_all() -> None:
        for use in (
            box.take,
            box.try_take,
            box.create_batch,
            box.try_take_from_batch,
            box.quiesce,
            box.close,
            box.bind_to_current_thread,
        ):
            try:
                use()
            except RuntimeError as error:
                errors.append(str(error))

    in_thread(try_all).join()

    assert len(errors) == 7
    assert box.state is MailboxState.OPEN


@pytest.mark.parametrize("end", [TaskMailbox.close, TaskMailbox.quiesce])
def test_putters_learn_of_the_end(box: TaskMailbox, end: Callable[[TaskMailbox], object]) -> None:
    """Eight threads that put for ever all get the error; no mail that was accepted is lost."""
    num_accepted = [0] * 8

    def put_until_refused(index: int) -> None:
        try:
            while True:
                box.put_threadsafe(mail("x"))
                num_accepted[index] += 1
        except MailboxClosedError:
            pass

    threads = [in_thread(partial(put_until_refused, index)) for index in range(8)]
    taken = [box.take() for _ in range(100)]
    left = end(box)
    for thread in threads:
        thread.join(PATIENCE_S)

    num_left = len(left) if isinstance(left, list) else box.num_mails
    assert not any(thread.is_alive() for thread in threads)
    assert sum(num_accepted) == len(taken) + num_left


def test_a_take_sleeps_until_a_mail_comes(box: TaskMailbox) -> None:
    """The take wakes for the mail, parked once."""
    thread = when_parked(box, lambda: box.put_threadsafe(mail("hello")))

    assert repr(box.take()) == "hello"

    thread.join()
    assert box.statistics().num_parks == 1


def test_a_mail_that_the_taker_cannot_see_does_not_wake_it(box: TaskMailbox) -> None:
    """Priority 0 does not end a take(1); priority 1 does."""
    still_parked: list[bool] = []

    def put_both() -> None:
        box.put_threadsafe(mail("low", 0))
        still_parked.append("parked" in repr(box))
        box.put_threadsafe(mail("high", 1))

    thread = when_parked(box, put_both)
    taken = box.take(1)
    thread.join()

    assert repr(taken) == "high"
    assert still_parked == [True]
    assert drained(box) == "low"


def test_a_put_between_look_and_park_is_not_missed(box: TaskMailbox) -> None:
    """The forced interleaving: the mail comes after the take found nothing and before it parks."""
    looked = box.try_take

    def look_then_put(priority: int = MIN_PRIORITY) -> Mail | None:
        found = looked(priority)
        if box.num_mails == 0 and found is None:
            box.put_threadsafe(mail("just in time"))
        return found

    box.try_take = look_then_put  # type: ignore[method-assign]  # the seam of the interleaving

    assert repr(box.take()) == "just in time"
    assert box.statistics().num_parks == 0


def test_a_put_that_meets_an_interrupted_park_leaves_no_second_wakeup(box: TaskMailbox) -> None:
    """The forced interleaving: Ctrl-C leaves the park while a put ends it.

    The mail stays, and the next park really sleeps.
    """
    real = box._wakeup

    class InterruptedWakeup:
        def acquire(self, timeout: float = -1) -> bool:
            if timeout < 0:
                return real.acquire(timeout=PATIENCE_S)
            in_thread(lambda: box.put_threadsafe(mail("late"))).join()
            raise KeyboardInterrupt

        def release(self) -> None:
            real.release()

        def locked(self) -> bool:
            return real.locked()

    box._wakeup = InterruptedWakeup()  # type: ignore[assignment]  # the seam of the interleaving
    with pytest.raises(KeyboardInterrupt):
        box.take()

    assert real.locked()
    assert repr(box.take()) == "late"


def test_a_mail_without_a_wakeup_is_found_and_counted(box: TaskMailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The safety net: were a wake-up ever lost, the next look finds the mail, and the count tells on it."""
    monkeypatch.setattr(task_mailbox, "_PARK_SLICE_S", 0.001)
    thread = when_parked(box, lambda: box._queue.append(mail("unannounced")))

    assert repr(box.take()) == "unannounced"

    thread.join()
    assert box.statistics().num_rescued_wakeups == 1
    box._num_rescued_wakeups = 0


# ---------------------------------------------------------------- the wait for a signal


def waking(box: TaskMailbox) -> AvailabilityFuture:
    """Return a signal that wakes the mailbox's thread."""
    signal = AvailabilityFuture()
    signal.add_done_callback(box.wake_threadsafe)
    return signal


def test_a_signal_that_was_given_ends_the_taking(box: TaskMailbox) -> None:
    """The signal counts although a mail waits."""
    signal = AvailabilityFuture()
    box.put_threadsafe(mail("1"))
    box.put_threadsafe(mail("2"))

    assert repr(box.take_until(signal)) == "1"
    signal.complete()

    assert box.take_until(signal) is None
    assert drained(box) == "2"


def test_a_mail_wakes_it_too(box: TaskMailbox) -> None:
    signal = waking(box)
    thread = when_parked(box, lambda: box.put_threadsafe(mail("hello", 2)))

    assert repr(box.take_until(signal, 1)) == "hello"
    thread.join()


def test_a_signal_between_look_and_park_is_not_missed(box: TaskMailbox) -> None:
    """The forced interleaving: it comes when nothing was found and the thread does not sleep yet."""
    signal = waking(box)
    look = box.try_take

    def look_then_signal(priority: int = MIN_PRIORITY) -> Mail | None:
        found = look(priority)
        signal.complete()
        return found

    box.try_take = look_then_signal  # type: ignore[method-assign]  # the seam of the interleaving

    assert box.take_until(signal) is None
    assert box.statistics().num_parks == 0


def test_a_closed_mailbox_gives_nothing(box: TaskMailbox) -> None:
    box.close()

    with pytest.raises(MailboxClosedError):
        box.take_until(AvailabilityFuture())


def test_a_wake_up_without_a_reason_is_slept_over(box: TaskMailbox) -> None:
    """A waiting thread looks again, and goes on waiting."""

    def wake_then_put() -> None:
        box.wake_threadsafe()
        while box.statistics().num_parks < 2:
            pass
        box.put_threadsafe(mail("at last"))

    thread = when_parked(box, wake_then_put)

    assert repr(box.take()) == "at last"
    thread.join()


def test_waking_nobody_leaves_nothing_behind(box: TaskMailbox) -> None:
    """The next park really sleeps, whether the wake-up came before the first park or after one."""
    box.wake_threadsafe()
    thread = when_parked(box, lambda: box.put_threadsafe(mail("hello")))
    box.take()
    thread.join()

    box.wake_threadsafe()

    assert box._wakeup.locked()


def test_a_signal_without_a_wakeup_is_found_and_counted(box: TaskMailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The safety net finds a signal that did not wake the mailbox."""
    monkeypatch.setattr(task_mailbox, "_PARK_SLICE_S", 0.001)
    signal = AvailabilityFuture()
    thread = when_parked(box, signal.complete)

    assert box.take_until(signal) is None

    thread.join()
    assert box.statistics().num_rescued_wakeups == 1
    box._num_rescued_wakeups = 0


# ---------------------------------------------------------------- stress


@pytest.mark.slow
@pytest.mark.usefixtures("_tiny_switch_interval")
@pytest.mark.parametrize("polls", [False, True])
def test_ten_writers_and_one_reader_lose_nothing(box: TaskMailbox, polls: bool) -> None:
    """10 x 1,000 mails, some urgent, under constant thread switches: each arrives once, in its writer's order."""

    def write(writer: int) -> None:
        for number in range(1_000):
            box.put_threadsafe(mail(f"{writer} {number}"))

    threads = [in_thread(partial(write, writer)) for writer in range(10)]
    taken: list[tuple[int, int]] = []
    while len(taken) < 10_000:
        found = box.try_take() if polls else box.take()
        if found is not None:
            writer, number = map(int, repr(found).split())
            taken.append((writer, number))
    for thread in threads:
        thread.join(PATIENCE_S)

    assert sorted(taken) == [(writer, number) for writer in range(10) for number in range(1_000)]
    for writer in range(10):
        assert [number for who, number in taken if who == writer] == list(range(1_000))


@pytest.mark.slow
@pytest.mark.usefixtures("_tiny_switch_interval")
def test_no_wakeup_is_lost_in_ping_pong(box: TaskMailbox) -> None:
    """20,000 times: put, wake, answer.  A lost wake-up would be counted as rescued (and take a second)."""
    other = TaskMailbox("other")
    rounds = 20_000

    def answer() -> None:
        other.bind_to_current_thread()
        for _ in range(rounds):
            box.put_threadsafe(other.take())

    thread = in_thread(answer)
    for number in range(rounds):
        other.put_threadsafe(mail(str(number)))
        box.take()
    thread.join(PATIENCE_S)

    assert box.statistics().num_put == rounds
    assert other.statistics().num_rescued_wakeups == 0
