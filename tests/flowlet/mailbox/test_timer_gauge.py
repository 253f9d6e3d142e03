"""Promises of the gauge behind idle and backpressured time.

Source: Flink `TimerGaugeTest`.
"""

import threading

import pytest

from flowlet.mailbox.mailbox_processor import UPDATE_INTERVAL_S, TimerGauge
from tests.flowlet.mailbox.boxes import Clock


class Rig:
    def __init__(self, num_intervals: int = 1) -> None:
        self.clock = Clock()
        self.gauge = TimerGauge(self.clock, window_s=num_intervals * UPDATE_INTERVAL_S)

    def measure(self, by_ms: int) -> None:
        self.gauge.mark_start()
        self.clock.advance_ms(by_ms)
        self.gauge.mark_end()

    def numbers(self) -> tuple[int, int, int]:
        """Value, longest single measurement, everything so far."""
        return self.gauge.value, self.gauge.max_single_measurement_ms, self.gauge.accumulated_ns() // 1_000_000


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_an_end_may_be_told_of_later(rig: Rig) -> None:
    rig.gauge.mark_start()
    rig.clock.advance_ms(10)
    end_ns = rig.clock()
    rig.clock.advance_ms(5)

    rig.gauge.mark_end(end_ns)

    assert rig.numbers() == (0, 0, 10)
    rig.measure(1)
    assert rig.numbers() == (0, 0, 11)


def test_an_end_before_the_last_update_takes_nothing_back(rig: Rig) -> None:
    """The interval that was closed meanwhile has it."""
    rig.gauge.mark_start()
    rig.clock.advance_ms(10)
    end_ns = rig.clock()
    rig.clock.advance_ms(5)
    rig.gauge.update()

    rig.gauge.mark_end(end_ns)

    assert rig.gauge.accumulated_ns() // 1_000_000 == 15


def test_basic_usage(rig: Rig) -> None:
    """10 ms of 5 s are 2 ms of each second; the next interval has none."""
    rig.gauge.update()
    assert rig.numbers() == (0, 0, 0)

    rig.measure(10)
    rig.clock.advance_ms(10)
    rig.gauge.update()
    assert rig.numbers() == (2, 10, 10)
    assert repr(rig.gauge) == "<TimerGauge 2 ms/s, at rest>"

    rig.gauge.update()
    assert rig.numbers() == (0, 0, 10)


def test_get_without_update(rig: Rig) -> None:
    """The accumulated time alone is up to date between updates."""
    rig.gauge.mark_start()
    rig.clock.advance_ms(10)
    assert rig.numbers() == (0, 0, 10)

    rig.gauge.mark_end()
    assert rig.numbers() == (0, 0, 10)


def test_update_before_marking_end(rig: Rig) -> None:
    """A measurement that goes on counts for the interval, and the longest one is counted from its beginning."""
    rig.gauge.mark_start()
    rig.clock.advance_ms(10)
    rig.gauge.update()
    assert rig.gauge.is_measuring
    assert rig.numbers() == (2, 10, 10)

    rig.clock.advance_ms(10)
    rig.gauge.mark_end()
    rig.gauge.update()
    assert not rig.gauge.is_measuring
    assert rig.numbers() == (2, 20, 20)


def test_larger_timespan() -> None:
    """A window of two intervals is their average; the first interval alone counts alone; the third drops the first."""
    rig = Rig(num_intervals=2)

    rig.measure(10)
    rig.gauge.update()
    assert rig.gauge.value == 2

    rig.measure(20)
    rig.gauge.update()
    assert rig.gauge.value == 3

    rig.measure(30)
    rig.gauge.update()
    assert rig.gauge.value == 5


def test_max_single_measurement(rig: Rig) -> None:
    """The gauge has the longest measurement of the last interval, not the sum."""
    for by_ms in (10, 30, 20):
        rig.measure(by_ms)
    rig.gauge.update()
    assert rig.numbers() == (12, 30, 60)

    rig.measure(5)
    rig.gauge.update()
    assert rig.gauge.max_single_measurement_ms == 5


def test_the_value_is_at_most_the_whole_second(rig: Rig) -> None:
    """The update may come late."""
    rig.measure(60_000)
    rig.gauge.update()

    assert rig.gauge.value == 1_000


def test_a_second_start_or_end_changes_nothing(rig: Rig) -> None:
    rig.gauge.mark_end()
    rig.gauge.mark_start()
    rig.clock.advance_ms(10)
    rig.gauge.mark_start()
    rig.clock.advance_ms(10)
    rig.gauge.mark_end()
    rig.clock.advance_ms(10)
    rig.gauge.mark_end()

    assert rig.gauge.accumulated_ns() // 1_000_000 == 20


@pytest.mark.parametrize("window_s", [0, 1, UPDATE_INTERVAL_S, UPDATE_INTERVAL_S + 1])
def test_a_window_is_whole_intervals(window_s: int) -> None:
    clock = Clock()
    gauge = TimerGauge(clock, window_s=window_s)

    gauge.mark_start()
    clock.advance_ms(5_000)
    gauge.mark_end()
    gauge.update()
    gauge.update()

    assert gauge.value == 0


def test_updates_lose_nothing_that_another_thread_marks() -> None:
    """A clock that ticks with each look: every interval's time adds up to the accumulated time."""
    ticks = iter(range(0, 10**12, 10**6))
    gauge = TimerGauge(lambda: next(ticks), window_s=10**6)
    is_over = threading.Event()

    def update() -> None:
        while not is_over.is_set():
            gauge.update()

    thread = threading.Thread(target=update)
    thread.start()
    for _ in range(2_000):
        gauge.mark_start()
        gauge.mark_end()
    is_over.set()
    thread.join()
    gauge.update()

    assert sum(gauge._slots) == gauge.accumulated_ns()
