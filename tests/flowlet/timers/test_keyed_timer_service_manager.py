"""Promises of ``KeyedTimerServiceManager``.

Source: Flink ``InternalTimeServiceManagerImplTest``, ``MailboxWatermarkProcessorTest``,
        ``UnalignedCheckpointsInterruptibleTimersTest``;
timers under backpressure must let barriers pass (FLINK-20217), and timers that are interrupted must not stall the
watermark.
"""

from collections.abc import Callable

import pytest

from flowlet.mailbox.mailbox_processor import MailboxExecutor
from flowlet.mailbox.task_mailbox import TaskMailbox
from flowlet.records import ACTIVE, IDLE, MAX_TIMESTAMP, MAX_WATERMARK, Watermark, WatermarkStatus
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService
from flowlet.timers.keyed_timer_service import KeyContext, KeyedTimerServiceManager, Timer, never

MAX_PARALLELISM = 128


class Operator:
    """Records timers and watermarks in the order in which they come."""

    def __init__(self, key_groups: range = range(MAX_PARALLELISM)) -> None:
        self.seen: list[int | str] = []
        self.keys = KeyContext()
        self.keys.current_key = "a"
        self.clock = TestProcessingTimeService()
        self.timers = KeyedTimerServiceManager(self.keys, self.clock, key_groups, MAX_PARALLELISM)
        self.react: Callable[[], object] = lambda: None

    def on_event_time(self, timer: Timer) -> None:
        self.seen.append(f"timer {timer.timestamp}")
        self.react()

    def on_processing_time(self, timer: Timer) -> None:
        self.seen.append(f"processing {timer.timestamp}")

    def emit_control(self, element: Watermark | WatermarkStatus) -> None:
        if isinstance(element, Watermark):
            self.seen.append(element.timestamp)
        else:
            self.seen.append("idle" if element.is_idle else "active")

    def register(self, *timestamps: int, name: str = "timers") -> None:
        service = self.timers.timer_service(name, self)
        for timestamp in timestamps:
            service.register_event_time_timer(None, timestamp)


def test_all_services_advance_together() -> None:
    """Each name has one service."""
    operator = Operator()
    assert operator.timers.timer_service("a", operator) is operator.timers.timer_service("a", operator)
    operator.register(5, 20, name="a")
    operator.register(7, name="b")

    operator.timers.try_advance_watermark(10, never)

    assert operator.seen == ["timer 5", "timer 7"]


def test_a_manager_without_services_is_always_done() -> None:
    operator = Operator()

    assert operator.timers.try_advance_watermark(5, lambda: True)
    assert operator.timers.snapshot() == {}


def test_snapshots_are_restored_by_name_and_key_group() -> None:
    """The restored manager may not have been asked for services yet, and the one between is never asked."""
    operator = Operator()
    operator.register(5, name="a")
    operator.register(7, name="b")
    through, restored = Operator(), Operator()

    through.timers.restore(operator.timers.snapshot())
    restored.timers.restore(through.timers.snapshot())
    restored.register(name="a")
    restored.timers.try_advance_watermark(10, never)
    assert restored.seen == ["timer 5"]
    restored.register(name="b")
    restored.timers.try_advance_watermark(10, never)

    assert restored.seen == ["timer 5", "timer 7"]
    assert restored.timers.snapshot() == {}


def test_the_timers_of_other_key_groups_stay_where_they_are() -> None:
    operator = Operator()
    operator.register(5)
    (group,) = operator.timers.snapshot()
    other = Operator(range(group + 1, MAX_PARALLELISM))

    other.timers.restore(operator.timers.snapshot())

    assert other.timers.snapshot() == {}


def test_timers_are_restored_before_services_are_made() -> None:
    operator = Operator()
    operator.register()

    with pytest.raises(RuntimeError, match="before the first timer_service"):
        operator.timers.restore({})


def test_closing_closes_every_service() -> None:
    operator = Operator()
    operator.timers.timer_service("a", operator).register_processing_time_timer(None, 5)

    operator.timers.close()

    assert operator.clock.num_timers == 0


class Progress:
    """A manager over a mailbox; interrupted while a mail waits that is not its own."""

    def __init__(self) -> None:
        self.operator = Operator()
        self.mailbox = TaskMailbox()
        self.mailbox.bind_to_current_thread()
        self.executor = MailboxExecutor(self.mailbox, priority=0)
        self.is_in_a_hurry = self.has_records_behind = False
        self.timers = self.operator.timers = KeyedTimerServiceManager(
            self.operator.keys,
            self.operator.clock,
            range(MAX_PARALLELISM),
            MAX_PARALLELISM,
            should_interrupt=lambda: self.is_in_a_hurry,
            executor=self.executor,
            has_records_behind=lambda: self.has_records_behind,
        )
        self.operator.register()  # so that there is a service

    def emit(self, watermark: Watermark) -> None:
        self.timers.pass_watermark(watermark, self.operator)

    def run_mail(self) -> bool:
        """Run the next mail as the task's loop does, which takes mails of every priority."""
        mail = self.mailbox.try_take()
        if mail is not None:
            mail.run()
        return mail is not None

    @property
    def seen(self) -> list[int | str]:
        return self.operator.seen


def interrupted(*timestamps: int) -> Progress:
    """Return a manager whose watermark 10 was interrupted behind the first of these timers."""
    progress = Progress()
    progress.operator.register(*timestamps)
    progress.is_in_a_hurry = True
    progress.emit(Watermark(10))
    return progress


def test_a_watermark_follows_its_timers() -> None:
    progress = Progress()
    progress.operator.register(5, 10, 15)

    progress.emit(Watermark(10))

    assert progress.seen == ["timer 5", "timer 10", 10]
    assert progress.mailbox.num_mails == 0


def test_a_mail_in_a_hurry_runs_between_two_timers() -> None:
    """A mail in a hurry, such as a barrier, runs before the rest of the timers, and the watermark comes last."""
    progress = Progress()
    progress.operator.register(5, 6, 7)

    def barrier() -> None:
        progress.is_in_a_hurry = False
        progress.seen.append("barrier")

    def barrier_arrives() -> None:
        if not progress.is_in_a_hurry and "barrier" not in progress.seen:
            progress.is_in_a_hurry = True
            progress.executor.execute(barrier, "barrier")

    progress.operator.react = barrier_arrives
    progress.emit(Watermark(10))
    while progress.run_mail():
        pass

    assert progress.seen == ["timer 5", "barrier", "timer 6", "timer 7", 10]


def test_interruptions_change_nothing_that_consumers_see() -> None:
    """The watermark comes behind its last timer, however often the rest was put off."""
    progress = interrupted(5, 6, 8)
    assert progress.seen == ["timer 5"]
    assert progress.run_mail()
    assert progress.seen == ["timer 5", "timer 6"]
    assert progress.run_mail()

    assert progress.seen == ["timer 5", "timer 6", "timer 8", 10]
    assert not progress.run_mail()


def test_a_watermark_that_comes_again_fires_what_was_set_up_to_it_in_between() -> None:
    """A watermark that comes again, or an older one, fires such timers, but is not passed on."""
    progress = Progress()
    progress.emit(Watermark(10))
    progress.operator.register(9)
    progress.emit(Watermark(10))
    progress.operator.register(8)
    progress.emit(Watermark(3))

    assert progress.seen == [10, "timer 9", "timer 8"]


def test_watermarks_that_come_meanwhile_are_reached_later_each_behind_its_timers() -> None:
    """The order is that without an interruption, with one mail for any number of watermarks."""
    progress = interrupted(5, 6, 18)

    progress.emit(Watermark(20))
    assert progress.mailbox.num_mails == 1
    progress.is_in_a_hurry = False
    assert progress.run_mail()

    assert progress.seen == ["timer 5", "timer 6", 10, "timer 18", 20]


def test_timers_of_a_watermark_between_the_records_of_one_call_all_fire() -> None:
    """The records behind it cannot wait for a mail, and must find the state as without an interruption."""
    progress = interrupted(5, 6, 18, 19)

    progress.has_records_behind = True
    progress.emit(Watermark(20))

    assert progress.seen == ["timer 5", "timer 6", 10, "timer 18", "timer 19", 20]
    while progress.run_mail():
        pass
    assert not progress.timers.is_interrupted


def test_the_rest_of_the_timers_is_not_run_by_the_yield_of_an_operator() -> None:
    """The mail is deferrable."""
    progress = interrupted(5, 6)

    assert not progress.executor.try_yield()
    assert progress.run_mail()


def test_the_last_watermark_lets_mails_pass_too() -> None:
    """The caller that finishes the operator waits for the rest of its timers."""
    progress = Progress()
    progress.operator.register(5, 6, MAX_TIMESTAMP)
    progress.is_in_a_hurry = True

    progress.emit(MAX_WATERMARK)
    assert progress.seen == ["timer 5"]
    assert progress.timers.is_interrupted

    while progress.timers.is_interrupted:
        assert progress.executor.try_yield() or progress.mailbox.num_mails
        while (mail := progress.mailbox.try_take()) is not None:
            mail.run()
    assert progress.seen[-2:] == [f"timer {MAX_TIMESTAMP}", MAX_TIMESTAMP]


def test_idleness_waits_for_the_watermarks_before_it() -> None:
    """Consumers drop the watermark of an input that is idle."""
    progress = interrupted(5, 6)

    progress.timers.pass_status(IDLE, progress.operator)
    assert progress.seen == ["timer 5"]
    assert progress.run_mail()

    assert progress.seen == ["timer 5", "timer 6", 10, "idle"]


def test_activity_takes_back_an_idleness_that_nobody_heard_of() -> None:
    progress = interrupted(5, 6)

    progress.timers.pass_status(IDLE, progress.operator)
    progress.timers.pass_status(ACTIVE, progress.operator)
    assert progress.run_mail()
    progress.timers.pass_status(IDLE, progress.operator)

    assert progress.seen == ["timer 5", "timer 6", 10, "idle"]


def test_an_operator_without_timers_passes_everything_on() -> None:
    operator = Operator()

    operator.timers.pass_watermark(Watermark(10), operator)
    operator.timers.pass_status(IDLE, operator)

    assert operator.seen == [10, "idle"]


@pytest.mark.parametrize("has_executor", [True, False])
def test_a_manager_lets_mails_pass_if_it_can_put_its_rest_off(has_executor: bool) -> None:  # a parameter of pytest
    progress, operator = Progress(), Operator()
    executor = progress.executor if has_executor else None
    operator.timers = KeyedTimerServiceManager(
        operator.keys,
        operator.clock,
        range(MAX_PARALLELISM),
        MAX_PARALLELISM,
        should_interrupt=lambda: True,
        executor=executor,
    )
    operator.register(5, 6)

    operator.timers.pass_watermark(Watermark(10), operator)
    operator.timers.pass_status(IDLE, operator)
    before = list(operator.seen)
    progress.run_mail()

    assert before == (["timer 5"] if has_executor else ["timer 5", "timer 6", 10, "idle"])
    assert operator.seen[-3:] == ["timer 6", 10, "idle"]
