"""Promises of ``KeyedTimerService`` and ``BatchTimerService``.

Source: Flink ``InternalTimerServiceImplTest``, ``BatchExecutionInternalTimeServiceTest``.
"""

from collections.abc import Callable
from typing import Any

import pytest

from flowlet.keys.exact_keys import key_group_range
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService
from flowlet.timers.keyed_timer_service import KeyContext, KeyedTimerServiceManager, KeyGroupTimers, Timer, never

MAX_PARALLELISM = 128
Fired = tuple[str, Any, Any, int]  # domain, key, namespace, timestamp


class Clock(TestProcessingTimeService):
    """A clock that a test may set without firing timers."""

    def show(self, now_ms: int) -> None:
        self._now_ms = now_ms


class Services:
    """A timer service with clock and key context; notes the timers that fire, with the key of that moment."""

    def __init__(
        self,
        key_groups: range = range(MAX_PARALLELISM),
        should_interrupt: Callable[[], bool] = lambda: False,
        clock_ns: Callable[[], int] = lambda: 0,
        *,
        is_batch: bool = False,
    ) -> None:
        self.clock = Clock()
        self.keys = KeyContext()
        self.fired: list[Fired] = []
        self.react: Callable[[Timer], object] = lambda timer: None
        self.timers = KeyedTimerServiceManager(
            self.keys, self.clock, key_groups, MAX_PARALLELISM, should_interrupt, clock_ns=clock_ns
        ).timer_service("timers", self, is_batch=is_batch)

    def on_event_time(self, timer: Timer) -> None:
        self._fire("event", timer)

    def on_processing_time(self, timer: Timer) -> None:
        self._fire("processing", timer)

    def _fire(self, domain: str, timer: Timer) -> None:
        assert self.keys.current_key == timer.key
        self.fired.append((domain, timer.key, timer.namespace, timer.timestamp))
        self.react(timer)

    def take(self) -> list[Fired]:
        self.timers.check_invariants()
        fired, self.fired = self.fired, []
        return fired

    def event(self, key: Any, namespace: Any, *timestamps: int) -> None:
        self.keys.current_key = key
        for timestamp in timestamps:
            self.timers.register_event_time_timer(namespace, timestamp)

    def processing(self, key: Any, namespace: Any, *timestamps: int) -> None:
        self.keys.current_key = key
        for timestamp in timestamps:
            self.timers.register_processing_time_timer(namespace, timestamp)


@pytest.fixture
def services() -> Services:
    return Services()


def test_however_many_processing_time_timers_the_clock_has_one(services: Services) -> None:
    for key in ("a", "b"):
        services.processing(key, "w1", 10, 20)
        services.processing(key, "w2", 10, 20)

    for now, rest in ((10, [20]), (20, [])):
        assert services.clock.active_timers() == [now]
        services.clock.set_time(now)
        assert len(services.take()) == 4
        assert services.clock.active_timers() == rest


def test_an_earlier_timer_moves_the_one_of_the_clock(services: Services) -> None:
    for timestamp, due in ((20, 20), (10, 10), (30, 10)):
        services.processing("a", None, timestamp)
        assert services.clock.active_timers() == [due]


def test_registering_inside_a_callback_leaks_no_timer_of_the_clock(services: Services) -> None:
    services.react = lambda timer: services.timers.register_processing_time_timer(None, timer.timestamp + 10)
    services.processing("a", None, 10)

    for now in (10, 20, 30):
        services.clock.set_time(now)
        assert services.take() == [("processing", "a", None, now)]
        assert services.clock.active_timers() == [now + 10]


def test_a_timer_for_the_past_registered_inside_a_callback_fires(services: Services) -> None:

    def register_once(timer: Timer) -> None:
        if timer.namespace is None:
            services.timers.register_processing_time_timer("w", 1)

    services.react = register_once
    services.processing("a", None, 10)

    services.clock.set_time(10)

    assert services.take() == [("processing", "a", None, 10), ("processing", "a", "w", 1)]


def test_the_service_knows_both_times(services: Services) -> None:
    services.clock.set_time(17)

    assert services.timers.current_processing_time() == 17
    assert services.timers.current_watermark() == MIN_TIMESTAMP
    services.timers.try_advance_watermark(39, never)
    assert services.timers.current_watermark() == 39
    services.timers.try_advance_watermark(20, never)
    assert services.timers.current_watermark() == 39


def test_event_time_timers_fire_up_to_and_including_the_watermark(services: Services) -> None:
    for key in ("a", "b"):
        services.event(key, "w", 10, 11)
    services.event("a", "w", 10)

    services.timers.try_advance_watermark(9, never)
    assert services.take() == []
    services.timers.try_advance_watermark(10, never)
    assert services.take() == [("event", "a", "w", 10), ("event", "b", "w", 10)]
    assert len(services.timers._event_time) == 2
    services.timers.try_advance_watermark(100, never)
    assert services.take() == [("event", "a", "w", 11), ("event", "b", "w", 11)]


def test_the_watermark_is_new_when_its_timers_fire(services: Services) -> None:
    seen: list[int] = []
    services.react = lambda timer: seen.append(services.timers.current_watermark())
    services.event("a", None, 10)

    services.timers.try_advance_watermark(15, never)

    assert seen == [15]


def test_an_event_time_timer_registered_inside_a_callback_fires_if_it_is_due(services: Services) -> None:
    services.react = lambda timer: services.timers.register_event_time_timer(None, timer.timestamp + 10)
    services.event("a", None, 10)

    services.timers.try_advance_watermark(35, never)

    assert [timestamp for *_, timestamp in services.take()] == [10, 20, 30]
    assert len(services.timers._event_time) == 1


def test_processing_time_timers_fire_at_their_time(services: Services) -> None:
    services.processing("a", "w1", 10)
    services.processing("b", "w2", 10)
    services.processing("a", "w2", 20)
    assert len(services.timers._processing_time) == 3

    services.clock.set_time(10)

    assert services.take() == [("processing", "a", "w1", 10), ("processing", "b", "w2", 10)]
    assert len(services.timers._processing_time) == 1


@pytest.mark.parametrize("domain", ["event", "processing"])
def test_a_deleted_timer_does_not_fire(services: Services, domain: str) -> None:
    """Timers of other keys and namespaces fire."""
    for key in ("a", "b"):
        getattr(services, domain)(key, "w1", 10)
        getattr(services, domain)(key, "w2", 10)
    services.keys.current_key = "a"

    getattr(services.timers, f"delete_{domain}_time_timer")("w1", 10)
    getattr(services.timers, f"delete_{domain}_time_timer")("w1", 11)
    services.clock.set_time(10)
    services.timers.try_advance_watermark(10, never)

    assert services.take() == [(domain, "a", "w2", 10), (domain, "b", "w1", 10), (domain, "b", "w2", 10)]


def test_a_timer_leaves_the_current_key_as_it_was(services: Services) -> None:
    """The timer may fail."""

    def fail(timer: Timer) -> None:
        raise ValueError("broken")

    services.event("a", None, 10)
    services.event("b", None, 20)
    services.keys.current_key = "record"
    services.timers.try_advance_watermark(10, never)
    assert services.keys.current_key == "record"
    services.react = fail

    with pytest.raises(ValueError, match="broken"):
        services.timers.try_advance_watermark(20, never)

    assert services.keys.current_key == "record"


def test_without_a_key_there_are_no_timers(services: Services) -> None:
    with pytest.raises(RuntimeError, match="use timers only on a keyed stream"):
        services.timers.register_event_time_timer(None, 1)
    with pytest.raises(RuntimeError, match="use timers only on a keyed stream"):
        services.timers.delete_processing_time_timer(None, 1)


def test_none_is_a_key_with_timers(services: Services) -> None:
    services.event(None, None, 10)
    services.keys.current_key = "a"

    services.timers.try_advance_watermark(10, never)

    assert services.take() == [("event", None, None, 10)]


def test_a_long_run_of_event_time_timers_can_be_interrupted(services: Services) -> None:
    """The run can be left after each timer, and goes on where it stopped (FLINK-20217)."""
    services.event("a", None, 10, 20, 30, 40)

    assert not services.timers.try_advance_watermark(30, lambda: True)
    assert [timestamp for *_, timestamp in services.take()] == [10]
    assert services.timers.current_watermark() == 30
    assert not services.timers.try_advance_watermark(30, lambda: True)
    assert services.timers.try_advance_watermark(30, lambda: True)
    assert [timestamp for *_, timestamp in services.take()] == [20, 30]


def test_a_long_run_of_processing_time_timers_lets_mails_pass() -> None:
    """The rest comes with the clock's next timer, which is due at once."""
    services = Services(should_interrupt=lambda: True)
    services.processing("a", None, 1, 2, 3)
    services.clock.show(3)

    services.timers._on_clock(3)
    assert [timestamp for *_, timestamp in services.take()] == [1]
    assert services.clock.active_timers()[-1:] == [2]
    services.clock.advance(0)

    assert [timestamp for *_, timestamp in services.take()] == [2, 3]


def test_processing_time_timers_that_take_long_pause() -> None:
    """The remaining timers are due at once, so results of the first ones leave the task, and barriers pass."""
    now_ns = [0]
    services = Services(clock_ns=lambda: now_ns[0])
    services.react = lambda _: now_ns.append(now_ns.pop() + 20_000_000)
    services.processing("a", None, 1, 2, 3)
    services.clock.show(3)

    services.timers._on_clock(3)

    assert [timestamp for *_, timestamp in services.take()] == [1]
    assert services.clock.active_timers()[-1:] == [2]


def test_after_close_the_clock_has_no_timer(services: Services) -> None:
    services.processing("a", None, 10)

    services.timers.close()
    services.processing("a", None, 5)

    assert services.clock.num_timers == 0


def snapshot_of(services: Services) -> dict[int, KeyGroupTimers]:
    for number in range(20):
        services.event(f"key{number}", "w", 10, 20)
        services.processing(f"key{number}", None, 15)
    return services.timers.snapshot()


def test_a_snapshot_does_not_change_later(services: Services) -> None:
    groups = snapshot_of(services)
    before = repr(groups)

    services.timers.try_advance_watermark(100, never)

    assert repr(groups) == before


def test_timers_move_with_their_key_groups_when_a_job_is_rescaled(services: Services) -> None:
    """One subtask becomes three: each timer fires at one of them, the owner of its key."""
    groups = snapshot_of(services)
    fired: list[Any] = []

    for subtask in range(3):
        mine = key_group_range(MAX_PARALLELISM, 3, subtask)
        restored = Services(mine)
        restored.timers.restore({group: timers for group, timers in groups.items() if group in mine})
        restored.timers.try_advance_watermark(100, never)
        restored.clock.set_time(100)
        fired += restored.take()

    services.timers.try_advance_watermark(100, never)
    services.clock.set_time(100)
    assert sorted(map(repr, fired)) == sorted(map(repr, services.take()))


def test_timers_of_other_subtasks_are_refused() -> None:
    services = Services(range(1))
    groups = snapshot_of(Services())
    group = max(groups)

    with pytest.raises(ValueError, match=f"key group {group} is not in range"):
        services.timers.restore({group: groups[group]})
    with pytest.raises(ValueError, match=f"belongs to key group {group}, not 0"):
        services.timers.restore({0: groups[group]})


# ---------------------------------------------------------------- in BATCH mode


@pytest.fixture
def batch() -> Services:
    return Services(is_batch=True)


def end(batch: Services) -> list[tuple[str, Any, int]]:
    """Return the domain, the key and the time of each timer that fires at the end of the keys."""
    react = batch.react

    def check_and_react(timer: Timer) -> None:
        assert batch.timers.current_watermark() == MAX_TIMESTAMP
        react(timer)

    batch.react = check_and_react
    batch.timers.try_advance_watermark(MAX_TIMESTAMP, never)
    return [(domain, key, at) for domain, key, _, at in batch.take()]


def test_at_the_end_all_timers_fire_one_key_after_the_other(batch: Services) -> None:
    for key, event, clock in (("a", 20, 10**15), ("b", 10, 5), ("a", 10, 3)):
        batch.event(key, None, event)
        batch.processing(key, None, clock)

    of_a = [("event", "a", 10), ("event", "a", 20), ("processing", "a", 3), ("processing", "a", 10**15)]
    assert end(batch) == [*of_a, ("event", "b", 10), ("processing", "b", 5)]
    assert batch.timers.current_watermark() == MIN_TIMESTAMP


def test_neither_the_clock_nor_a_watermark_fires_a_timer_before_the_end(batch: Services) -> None:
    batch.event("a", None, 1)
    batch.processing("a", None, 1)

    batch.clock.set_time(10**9)
    batch.timers.try_advance_watermark(10**9, never)

    assert batch.fired == []
    assert batch.clock.num_timers == 0
    assert batch.timers.current_watermark() == MIN_TIMESTAMP


def test_a_key_of_another_type_is_another_key(batch: Services) -> None:
    batch.processing(1, None, 1)
    batch.processing(True, None, 2)  # a key
    batch.event(1, None, 3)

    fired = [(domain, type(key), at) for domain, key, at in end(batch)]
    assert fired == [("event", int, 3), ("processing", int, 1), ("processing", bool, 2)]


def test_a_timer_that_is_registered_at_the_end_of_its_key_is_ignored(batch: Services) -> None:
    def register(timer: Timer) -> None:
        batch.event(timer.key, None, timer.timestamp + 1)
        batch.processing(timer.key, None, timer.timestamp + 1)

    batch.react = register
    batch.event("a", None, 1)

    assert end(batch) == [("event", "a", 1)]
    assert len(batch.timers._event_time) == len(batch.timers._processing_time) == 0


def test_a_timer_deletes_later_ones_of_its_key(batch: Services) -> None:
    batch.react = lambda timer: batch.timers.delete_processing_time_timer(None, 7)
    batch.event("a", None, 1)
    batch.processing("a", None, 7, 8)

    assert end(batch) == [("event", "a", 1), ("processing", "a", 8)]
