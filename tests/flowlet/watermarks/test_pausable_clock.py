"""Source: Flink ``PausableRelativeClockTest``."""

from flowlet.operators.source_event_time import PausableClock


def test_the_clock_stands_still_while_it_is_paused() -> None:
    now = [100]
    clock = PausableClock(lambda: now[0])

    clock.pause()
    now[0] = 150
    clock.pause()
    assert clock() == 100
    clock.resume()
    clock.resume()
    now[0] = 160

    assert clock() == 110
