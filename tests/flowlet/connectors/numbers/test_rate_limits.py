import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.connectors.numbers.reader import RecordRateLimit
from flowlet.datastream.connectors.datagen import RateLimiterStrategy

SECOND_NS = 1_000_000_000


@pytest.mark.parametrize(("per_second", "seconds"), [(0.5, 40), (1, 20), (3, 20), (1_000, 3), (123_456, 2)])
def test_a_reader_that_is_polled_when_it_may_keeps_the_rate(per_second: float, seconds: int) -> None:
    """The number of records is exactly the rate times the time, and the first one, which may be given at once."""
    limit, now_ns, total = RecordRateLimit(RateLimiterStrategy.per_second(per_second), 1), 0, 0

    while now_ns <= seconds * SECOND_NS:
        allowed = limit.allowed(now_ns)
        limit.take(allowed)
        total += allowed
        pause_ns = limit.pause_ns()
        assert pause_ns is not None
        now_ns += pause_ns

    assert total == pytest.approx(per_second * seconds, abs=max(1.0, per_second / 100))


@given(st.floats(0.1, 1e6), st.lists(st.integers(0, 5 * SECOND_NS), min_size=1, max_size=20))
def test_no_time_has_more_than_its_share_and_one_second(per_second: float, steps: list[int]) -> None:
    """The polls may be as irregular as they like."""
    limit, now_ns = RecordRateLimit(RateLimiterStrategy.per_second(per_second), 1), 0
    given_at: list[tuple[int, int]] = []

    for step in steps:
        now_ns += step
        allowed = limit.allowed(now_ns)
        limit.take(allowed)
        given_at.append((now_ns, allowed))

    for index, (start, _) in enumerate(given_at):
        for end, _ in given_at[index:]:
            records = sum(count for at, count in given_at[index:] if at <= end)
            assert records <= (end - start) / SECOND_NS * per_second + max(per_second, 1) + 1e-3


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    limit = RecordRateLimit(RateLimiterStrategy.per_second(10), 1)
    limit.take(limit.allowed(SECOND_NS))

    assert limit.allowed(0) == 0
    assert limit.allowed(2 * SECOND_NS) == 10


def test_a_rate_per_checkpoint_waits_for_the_checkpoint() -> None:
    limit = RecordRateLimit(RateLimiterStrategy.per_checkpoint(3), 1)
    limit.take(2)
    limit.take(1)
    assert limit.allowed(10**12) == 0
    assert limit.pause_ns() is None

    limit.checkpoint_completed()

    assert limit.allowed(0) == 3
