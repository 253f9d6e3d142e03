"""Tests of ``flowlet.metrics.metricbase``: names, values and limits of users' metrics."""

import msgspec
import numpy as np
import pytest

from flowlet.errors import FlowletError
from flowlet.metrics.metricbase import MAX_METRICS, MetricRegistry, MetricValue

S = 1_000_000_000


class ManualNanos:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def registry() -> MetricRegistry:
    return MetricRegistry()


def test_a_metric_is_shown_under_the_names_of_its_groups(registry: MetricRegistry) -> None:
    """``extra`` makes a group inside the group, as key and value."""
    registry.group.counter("records").inc(3)
    registry.group.add_group("parse").counter("errors").dec()
    registry.group.add_group("host", "a").distribution("bytes").update(7)

    assert registry.values() == [
        MetricValue("records", "counter", 3),
        MetricValue("parse.errors", "counter", -1),
        MetricValue("host.a.bytes", "distribution", 1, sum=7, min=7, max=7),
    ]


def test_the_same_name_gives_the_same_metric(registry: MetricRegistry) -> None:
    registry.group.add_group("g").counter("hits").inc()
    registry.group.add_group("g").counter("hits").inc()

    assert registry.group.add_group("g").counter("hits").get_count() == 2
    assert len(registry.values()) == 1


def test_a_name_belongs_to_one_kind(registry: MetricRegistry) -> None:
    registry.group.counter("hits")

    with pytest.raises(FlowletError, match="'hits' is taken by a counter"):
        registry.group.meter("hits")
    with pytest.raises(FlowletError, match="'hits' is taken by a counter"):
        registry.group.gauge("hits", lambda: 1)


def test_a_distribution_has_sum_count_and_bounds(registry: MetricRegistry) -> None:
    distribution = registry.group.distribution("sizes")
    empty = registry.values()[0]
    for value in (5, -2, 9):
        distribution.update(value)

    assert empty == MetricValue("sizes", "distribution", 0, sum=0)
    assert registry.values() == [MetricValue("sizes", "distribution", 3, sum=12, min=-2, max=9)]


def test_a_meter_tells_the_rate_of_its_time_span() -> None:
    """The rate is that of the time since the meter was made, until that is as long as the span."""
    clock = ManualNanos()
    registry = MetricRegistry(clock)
    meter = registry.group.meter("events", 10)
    rates = []
    for second in range(1, 21):
        meter.mark_event(4 if second <= 10 else 2)
        clock.now_ns = second * S
        registry.sample()
        rates.append(registry.values()[0].rate)

    assert meter.get_count() == 60
    assert rates[0] == rates[9] == 4.0
    assert rates[14] == 3.0
    assert rates[19] == 2.0


def test_a_gauge_shows_what_its_function_returned_at_the_last_sample(registry: MetricRegistry) -> None:
    values: list[object] = [1]
    registry.group.gauge("length", lambda: len(values))
    before = registry.values()
    registry.sample()
    values.append(2)

    assert before == [MetricValue("length", "gauge", None)]
    assert registry.values() == [MetricValue("length", "gauge", 1)]


def test_a_failing_gauge_is_reported_once_and_shows_nothing() -> None:
    """The job goes on, and so do other gauges."""
    errors: list[tuple[str, str]] = []
    registry = MetricRegistry(on_gauge_error=lambda name, error: errors.append((name, str(error))))
    registry.group.gauge("broken", lambda: int("x"))
    registry.group.gauge("whole", lambda: 3)
    registry.sample()
    registry.sample()

    assert [each.value for each in registry.values()] == [None, 3]
    assert errors == [("broken", "invalid literal for int() with base 10: 'x'")]


def test_samples_are_asked_for_only_where_a_metric_needs_them() -> None:
    starts: list[None] = []
    registry = MetricRegistry(start_sampling=lambda: starts.append(None))
    registry.group.counter("c")
    registry.group.distribution("d")
    assert not starts
    registry.group.gauge("g", lambda: 1)
    registry.group.meter("m")
    assert len(starts) == 1


@pytest.mark.parametrize(
    ("shown", "expected"), [(2**70, float(2**70)), (10**400, None), (True, True), ("text", "text"), ([1], "[1]")]
)
def test_a_message_can_hold_every_value(shown: object, expected: object, registry: MetricRegistry) -> None:
    registry.group.gauge("g", lambda: shown)
    registry.sample()

    assert registry.values()[0].value == expected


class OtherInt(int):
    """A number that is no plain ``int``, as those of NumPy: only a search would find it in a range."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("it is searched for")

    __hash__ = int.__hash__


def test_a_whole_number_of_another_class_is_shown_as_a_plain_one(registry: MetricRegistry) -> None:
    registry.group.counter("c").inc(OtherInt(3))
    registry.group.meter("m").mark_event(OtherInt(4))
    registry.group.distribution("d").update(OtherInt(5))
    registry.group.gauge("g", lambda: OtherInt(6))
    registry.sample()

    counter, meter, distribution, gauge = registry.values()
    shown = [counter.value, meter.value, distribution.sum, distribution.min, distribution.max, gauge.value]
    assert [(type(each), each) for each in shown] == [(int, each) for each in (3, 4, 5, 5, 5, 6)]


def test_a_message_can_hold_the_rate_of_a_meter_that_counted_numbers_of_numpy() -> None:
    clock = ManualNanos()
    registry = MetricRegistry(clock)
    registry.group.meter("m").mark_event(np.int64(4))  # type: ignore[arg-type]  # functions of users have such numbers
    clock.now_ns = S
    registry.sample()

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(registry.values()[0].rate)) == 4.0


def test_metrics_over_the_limit_work_and_are_not_shown(registry: MetricRegistry) -> None:
    counters = [registry.group.counter(f"of record {number}") for number in range(MAX_METRICS + 2)]
    counters[-1].inc()

    assert counters[-1].get_count() == 1
    assert len(registry.values()) == MAX_METRICS
    assert registry.num_refused == 2


@pytest.mark.parametrize("name", ["", None, 3, "x" * 300])
def test_a_name_is_a_text_of_bounded_length(name: object) -> None:
    with pytest.raises(FlowletError, match="name"):
        MetricRegistry().group.counter(name)  # type: ignore[arg-type]  # that is the point


def test_small_numbers_of_numpy_do_not_wrap_around(registry: MetricRegistry) -> None:
    """A function may count the values of an array, whose sums have eight bits."""
    group = registry.group
    counter, meter, distribution = group.counter("c"), group.meter("m"), group.distribution("d")

    for _ in range(3):
        counter.inc(np.uint8(200))  # type: ignore[arg-type]  # as above
        meter.mark_event(np.int8(100))  # type: ignore[arg-type]  # as above
        distribution.update(np.int8(100))  # type: ignore[arg-type]  # as above
    counter.dec(np.uint8(250))  # type: ignore[arg-type]  # as above

    (shown,) = [each for each in registry.values() if each.name == "d"]
    assert (counter.get_count(), meter.get_count(), shown.sum) == (350, 300, 300)
    assert (type(counter.get_count()), type(meter.get_count())) == (int, int)
