"""Promises of ``SystemProcessingTimeService``.

Source: Flink ``SystemProcessingTimeServiceTest``, ``ProcessingTimeServiceImplTest``.
"""

import sys
import threading
import time

import pytest

from flowlet.mailbox.mailbox_processor import MailboxExecutor
from flowlet.mailbox.task_mailbox import Mail, TaskMailbox
from flowlet.timers.system_processing_time_service import ServiceState, SystemProcessingTimeService, delay_until_ms
from netstack.loop.eventloop import wall_clock_ms
from tests.flowlet.task.scripted_loop import ScriptedLoop
from tests.waiting import PATIENCE_S

Service = SystemProcessingTimeService


@pytest.fixture
def loop() -> ScriptedLoop:
    return ScriptedLoop()


@pytest.fixture
def service(loop: ScriptedLoop) -> Service:
    return SystemProcessingTimeService(loop.schedule_timer, loop.executor, now_ms=loop.now_ms, clock_ns=loop.clock_ns)


def test_a_timer_fires_as_a_mail_once_its_time_is_over(loop: ScriptedLoop, service: Service) -> None:
    """The mail comes one millisecond after the timer's time, like a watermark."""
    fired: list[int] = []
    service.register_timer(10, fired.append)

    loop.advance(10)
    assert loop.run_mails() == 0
    loop.advance(1)
    assert fired == []
    assert loop.run_mails() == 1

    assert fired == [10]
    assert service.num_timers == 0


@pytest.mark.parametrize(("timestamp", "now", "delay"), [(10, 4, 7), (4, 4, 1), (3, 4, 1), (-5, 4, 1)])
def test_the_wait_until_a_timestamp_is_over(timestamp: int, now: int, delay: int) -> None:
    assert delay_until_ms(timestamp, now) == delay


def test_a_timer_for_the_past_fires_soon(loop: ScriptedLoop, service: Service) -> None:
    loop.advance(100)
    fired: list[int] = []
    service.register_timer(5, fired.append)

    loop.pass_time(1)

    assert fired == [5]


def test_a_cancelled_timer_leaves_nothing_on_the_loop(loop: ScriptedLoop, service: Service) -> None:
    fired: list[int] = []
    timer = service.register_timer(5, fired.append)

    timer.cancel()
    assert timer.is_done
    assert loop.num_timers == 0
    loop.pass_time(10)

    assert fired == []


def test_a_timer_can_be_cancelled_while_its_mail_waits(loop: ScriptedLoop, service: Service) -> None:
    fired: list[int] = []
    timer = service.register_timer(5, fired.append)
    loop.advance(6)

    timer.cancel()
    assert loop.run_mails() == 1

    assert fired == []


def test_fixed_delay_waits_after_each_call(loop: ScriptedLoop, service: Service) -> None:
    """A call that came late moves all that follow."""
    fired: list[tuple[int, int]] = []
    service.schedule_with_fixed_delay(lambda t: fired.append((t, loop.now_ms())), initial_delay_ms=0, period_ms=10)

    loop.pass_time(1)
    loop.advance(50)
    loop.run_mails()
    loop.pass_time(10)

    assert fired == [(0, 1), (11, 51), (61, 61)]


def test_a_repeating_timer_may_cancel_itself(loop: ScriptedLoop, service: Service) -> None:
    fired: list[int] = []

    def callback(timestamp: int) -> None:
        fired.append(timestamp)
        timer.cancel()

    timer = service.schedule_with_fixed_delay(callback, initial_delay_ms=1, period_ms=1)
    loop.pass_time(10)

    assert fired == [1]
    assert loop.num_timers == 0


@pytest.mark.parametrize("period", [0, -1])
def test_a_period_is_positive(service: Service, period: int) -> None:
    with pytest.raises(ValueError, match="above 0 ms"):
        service.schedule_with_fixed_delay(print, initial_delay_ms=0, period_ms=period)


def test_after_quiesce_timers_are_taken_and_never_fire(loop: ScriptedLoop, service: Service) -> None:
    fired: list[int] = []
    service.register_timer(5, fired.append)

    assert service.quiesce().is_done
    assert service.register_timer(6, fired.append).is_done
    assert loop.num_timers == 0
    loop.pass_time(10)

    assert fired == []
    assert service.state is ServiceState.QUIESCED


def test_quiesce_is_done_when_the_mails_that_were_put_have_run(loop: ScriptedLoop, service: Service) -> None:
    """The mails do run, because the timer had fired before."""
    fired: list[int] = []
    service.register_timer(5, fired.append)
    loop.advance(6)

    quiesced = service.quiesce()
    assert not quiesced.is_done
    loop.run_mails()

    assert fired == [5]
    assert quiesced.is_done


def test_quiesce_inside_a_callback_is_done_when_the_callback_has_ended(loop: ScriptedLoop, service: Service) -> None:
    seen: list[bool] = []
    service.register_timer(5, lambda _: seen.append(service.quiesce().is_done))

    loop.pass_time(10)

    assert seen == [False]
    assert service.quiesce().is_done


def test_a_repeating_timer_ends_with_the_service(loop: ScriptedLoop, service: Service) -> None:
    """The mail of the timer may be on its way."""
    fired: list[int] = []
    service.schedule_with_fixed_delay(fired.append, initial_delay_ms=5, period_ms=5)
    loop.advance(5)

    quiesced = service.quiesce()
    loop.run_mails()
    loop.pass_time(20)

    assert fired == [5]
    assert quiesced.is_done
    assert service.num_timers == 0
    assert loop.num_timers == 0


def test_after_shut_down_registering_is_an_error(loop: ScriptedLoop, service: Service) -> None:
    timer = service.register_timer(5, print)

    service.shut_down()
    service.quiesce()

    assert timer.is_done
    assert service.state is ServiceState.SHUT_DOWN
    with pytest.raises(RuntimeError, match="no timer can be registered"):
        service.register_timer(6, print)
    with pytest.raises(RuntimeError, match="no timer can be registered"):
        service.schedule_with_fixed_delay(print, initial_delay_ms=0, period_ms=1)


def test_timers_that_fire_after_the_mailbox_was_closed_are_dropped(loop: ScriptedLoop, service: Service) -> None:
    """No error is raised on the loop, and no caller waits for the dropped timers."""
    service.register_timer(5, print)
    loop.mailbox.close()

    loop.advance(10)

    assert service.quiesce().is_done


def test_a_mail_that_is_dropped_counts_as_run(loop: ScriptedLoop, service: Service) -> None:
    service.register_timer(5, print)
    loop.advance(10)
    quiesced = service.quiesce()

    for mail in loop.mailbox.close():
        mail.try_cancel()

    assert quiesced.is_done


def test_the_error_of_a_callback_says_where_it_comes_from(loop: ScriptedLoop, service: Service) -> None:
    """The error is the mail's, and so the task's; a repeating timer does not go on."""

    def fail(timestamp: int) -> None:
        raise ValueError("broken")

    service.schedule_with_fixed_delay(fail, initial_delay_ms=5, period_ms=5)
    loop.advance(5)

    with pytest.raises(ValueError, match="broken") as caught:
        loop.run_mails()

    assert caught.value.__notes__ == ["raised by a processing time timer for 5"]
    loop.pass_time(20)
    assert service.quiesce().is_done


def test_a_jump_of_the_wall_clock_moves_no_timer(loop: ScriptedLoop, service: Service) -> None:
    """The wall clock jumps an hour on and a day back."""
    fired: list[int] = []
    service.register_timer(100, fired.append)

    loop.wall_offset_ms = 3_600_000
    loop.pass_time(50)
    assert fired == []
    loop.wall_offset_ms = -86_400_000
    loop.pass_time(51)

    assert fired == [100]


def test_a_timer_at_the_end_of_time_waits_in_pieces(loop: ScriptedLoop, service: Service) -> None:
    """A loop need not know such long waits; and a cancel finds the current piece."""
    day_ms = 24 * 3600 * 1000
    timer = service.register_timer(2**63 - 1, print)

    loop.advance(10 * day_ms)
    assert loop.num_timers == 1
    assert loop.timers[0].due_ns - loop.now_ns <= day_ms * 1_000_000
    timer.cancel()

    assert loop.num_timers == 0


def test_a_timer_that_is_cancelled_while_the_loop_arms_it_again_leaves_nothing_behind(
    loop: ScriptedLoop, service: Service
) -> None:
    timer = service.register_timer(2**63 - 1, print)
    piece = loop.timers.pop()
    schedule = service.schedule_timer

    def schedule_late(delay_s: float, action: object) -> object:
        timer.cancel()
        return schedule(delay_s, action)  # type: ignore[arg-type]

    service.schedule_timer = schedule_late  # type: ignore[assignment]
    piece.action()

    assert loop.num_timers == 0
    piece.action()
    assert loop.num_timers == 0


def test_the_relative_clock_stands_still_under_backpressure(loop: ScriptedLoop) -> None:
    paused_ns = 0
    service = SystemProcessingTimeService(
        loop.schedule_timer, loop.executor, clock_ns=loop.clock_ns, paused_ns=lambda: paused_ns
    )

    loop.advance(5)
    paused_ns = 3_000_000

    assert service.relative_time_ns() == 2_000_000


def test_the_wall_clock_counts_milliseconds_since_the_epoch() -> None:
    before = time.time()
    assert int(before * 1000) <= wall_clock_ms() <= int(time.time() * 1000) + 1


@pytest.mark.slow
def test_timers_that_fire_and_are_cancelled_at_once_from_two_threads_never_run_twice_nor_after_a_cancel() -> None:
    """A loop thread that fires while the task thread cancels, quiesces and runs mails."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for round_number in range(2_000):
            _race(round_number)
    finally:
        sys.setswitchinterval(before)


def _race(round_number: int) -> None:
    mailbox = TaskMailbox()
    mailbox.bind_to_current_thread()
    actions: list[object] = []

    class Never:
        def cancel(self) -> None:
            pass

    def schedule(delay_s: float, action: object) -> Never:
        actions.append(action)
        return Never()

    now_ns = 0
    service = SystemProcessingTimeService(schedule, MailboxExecutor(mailbox), now_ms=lambda: 0, clock_ns=lambda: now_ns)
    fired: list[int] = []
    timers = [service.register_timer(-5, fired.append) for _ in range(3)]
    now_ns = 10**9
    loop_thread = threading.Thread(target=lambda: [action() for action in list(actions)])  # type: ignore[operator]
    loop_thread.start()
    timers[0].cancel()
    num_fired = len(fired)
    quiesced = service.quiesce() if round_number % 2 else None
    loop_thread.join(PATIENCE_S)
    while (mail := mailbox.try_take()) is not None:
        assert isinstance(mail, Mail)
        mail.run()

    assert num_fired == 0
    assert len(fired) <= 2
    if quiesced is not None:
        assert quiesced.is_done
    else:
        assert len(fired) == 2
