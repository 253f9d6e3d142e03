"""Promises of ``BatchTimerService``.

Source: Flink ``BatchExecutionInternalTimeServiceTest``.
"""

from collections.abc import Callable
from typing import Any

import pytest

from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService
from flowlet.timers.keyed_timer_service import KeyContext, KeyedTimerServiceManager, Timer, never

Fired = tuple[str, Any, int]  # domain, key, timestamp


class Services:
    """A timer service; records each timer that fires with the key that was current then, and checks the watermark."""

    def __init__(self) -> None:
        self.clock = TestProcessingTimeService()
        self.keys = KeyContext()
        self.fired: list[Fired] = []
        self.react: Callable[[Timer], object] = lambda timer: None
        self.timers = KeyedTimerServiceManager(self.keys, self.clock, range(128), 128).timer_service(
            "timers", self, is_batch=True
        )

    def on_event_time(self, timer: Timer) -> None:
        self._fire("event", timer)

    def on_processing_time(self, timer: Timer) -> None:
        self._fire("clock", timer)

    def _fire(self, domain: str, timer: Timer) -> None:
        assert self.keys.current_key == timer.key
        assert self.timers.current_watermark() == MAX_TIMESTAMP
        self.fired.append((domain, timer.key, timer.timestamp))
        self.react(timer)

    def register(self, key: Any, *, event: int | None = None, clock: int | None = None) -> None:
        self.keys.current_key = key
        if event is not None:
            self.timers.register_event_time_timer(None, event)
        if clock is not None:
            self.timers.register_processing_time_timer(None, clock)


@pytest.fixture
def services() -> Services:
    return Services()


def test_at_the_end_all_timers_fire_one_key_after_the_other(services: Services) -> None:
    services.register("a", event=20, clock=10**15)
    services.register("b", event=10, clock=5)
    services.register("a", event=10, clock=3)
    services.timers.try_advance_watermark(MAX_TIMESTAMP, never)
    of_a = [("event", "a", 10), ("event", "a", 20), ("clock", "a", 3), ("clock", "a", 10**15)]
    assert services.fired == [*of_a, ("event", "b", 10), ("clock", "b", 5)]
    assert services.timers.current_watermark() == MIN_TIMESTAMP
    services.timers.check_invariants()


def test_neither_the_clock_nor_a_watermark_fires_a_timer_before_the_end(services: Services) -> None:
    services.register("a", event=1, clock=1)
    services.clock.set_time(10**9)
    services.timers.try_advance_watermark(10**9, never)
    assert services.fired == []
    assert services.clock.num_timers == 0
    assert services.timers.current_watermark() == MIN_TIMESTAMP


def test_a_key_of_another_type_is_another_key(services: Services) -> None:
    services.register(1, clock=1)
    services.register(True, clock=2)  # a key
    services.register(1, event=3)
    services.timers.try_advance_watermark(MAX_TIMESTAMP, never)
    assert [(domain, type(key), at) for domain, key, at in services.fired] == [
        ("event", int, 3),
        ("clock", int, 1),
        ("clock", bool, 2),
    ]


def test_a_timer_that_is_registered_at_the_end_of_its_key_is_ignored(services: Services) -> None:
    services.react = lambda timer: services.register(timer.key, event=timer.timestamp + 1, clock=timer.timestamp + 1)
    services.register("a", event=1)
    services.timers.try_advance_watermark(MAX_TIMESTAMP, never)
    assert services.fired == [("event", "a", 1)]
    assert len(services.timers._event_time) == len(services.timers._processing_time) == 0


def test_a_timer_deletes_later_ones_of_its_key(services: Services) -> None:
    services.react = lambda timer: services.timers.delete_processing_time_timer(None, 7)
    services.register("a", event=1, clock=7)
    services.register("a", clock=8)
    services.timers.try_advance_watermark(MAX_TIMESTAMP, never)
    assert services.fired == [("event", "a", 1), ("clock", "a", 8)]
