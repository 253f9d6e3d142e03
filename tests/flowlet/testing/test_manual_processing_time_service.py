"""Promises of ``TestProcessingTimeService``.

Source: Flink ``TestProcessingTimeServiceTest``.
"""

import pytest

from flowlet.testing.manual_processing_time_service import TestProcessingTimeService


def test_timers_fire_in_order_when_the_clock_reaches_them() -> None:
    clock, fired = TestProcessingTimeService(), list[int]()
    for timestamp in (50, 30, 40):
        clock.register_timer(timestamp, fired.append)

    clock.set_time(35)
    assert fired == [30]
    assert clock.active_timers() == [40, 50]
    clock.set_time(50)
    assert fired == [30, 40, 50]
    assert clock.current_time_ms() == 50


def test_a_timer_for_the_past_fires_with_the_next_move() -> None:
    """The timer never fires inside the call that registers it."""
    clock, fired = TestProcessingTimeService(100), list[int]()

    clock.register_timer(30, fired.append)
    assert fired == []
    clock.advance(0)

    assert fired == [30]


def test_a_timer_that_is_cancelled_does_not_fire() -> None:
    clock, fired = TestProcessingTimeService(), list[int]()
    first, _ = clock.register_timer(10, fired.append), clock.register_timer(20, fired.append)

    first.cancel()
    clock.advance(100)

    assert fired == [20]
    assert first.is_done


def test_a_callback_may_register_and_cancel() -> None:
    clock, fired = TestProcessingTimeService(), list[int]()
    later = clock.register_timer(20, fired.append)

    def callback(timestamp: int) -> None:
        later.cancel()
        clock.register_timer(15, fired.append)

    clock.register_timer(10, callback)
    clock.advance(100)

    assert fired == [15]


@pytest.mark.parametrize("schedule", ["schedule_at_fixed_rate", "schedule_with_fixed_delay"])
def test_repeating_timers_fire_until_they_are_cancelled(schedule: str) -> None:
    clock, fired = TestProcessingTimeService(100), list[int]()

    timer = getattr(clock, schedule)(fired.append, initial_delay_ms=0, period_ms=10)
    clock.advance(25)
    assert fired == [100, 110, 120]
    timer.cancel()
    clock.advance(100)

    assert fired == [100, 110, 120]
    assert clock.num_timers == 0


def test_after_quiesce_nothing_fires_and_after_shut_down_registering_is_an_error() -> None:
    clock, fired = TestProcessingTimeService(), list[int]()
    clock.register_timer(10, fired.append)

    assert clock.quiesce().is_done
    assert clock.register_timer(20, fired.append).is_done
    clock.advance(100)
    assert fired == []
    clock.shut_down()
    with pytest.raises(RuntimeError, match="shut down"):
        clock.register_timer(30, fired.append)


def test_the_relative_clock_can_be_held_back() -> None:
    clock = TestProcessingTimeService(5)
    clock.paused_ns = 1_000_000

    assert clock.relative_time_ns() == 4_000_000
