"""Tests of ``flowlet.graph.restart_backoff_strategy``: how often, after how long, and what with it."""

from graphlib import CycleError
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.job_settings import CheckpointSettings, JobSettings, RestartKind, RestartSettings
from flowlet.graph.restart_backoff_strategy import RegionOrder, RestartStrategy, create_restart_strategy
from tests.flowlet.graph.events import fixed_delay

CHECKPOINTS = CheckpointSettings(1000, "/tmp/checkpoints")
NO_RESTART = RestartStrategy(RestartSettings(RestartKind.NONE))


def failure_rate(max_failures: int, interval_ms: int, delay_ms: int) -> RestartStrategy:
    settings = RestartSettings(
        RestartKind.FAILURE_RATE, max_failures=max_failures, interval_ms=interval_ms, delay_ms=delay_ms
    )
    return RestartStrategy(settings)


def exponential(
    *, jitter: float = 0.0, multiplier: float = 2.0, max_attempts: int = -1, seed: int = 7
) -> RestartStrategy:
    settings = RestartSettings(
        RestartKind.EXPONENTIAL_DELAY,
        initial_backoff_ms=100,
        max_backoff_ms=1000,
        multiplier=multiplier,
        jitter=jitter,
        reset_ms=5000,
        max_attempts=max_attempts,
    )
    return RestartStrategy(settings, Random(seed).randint)


def delays(strategy: RestartStrategy, number: int, now_ms: int = 0) -> list[int | None]:
    """Return the answers if each failure comes 1 ms after the restart."""
    found: list[int | None] = []
    for _ in range(number):
        found.append(strategy.decide(now_ms))
        now_ms += (found[-1] or 0) + 1
    return found


def test_none_never_restarts() -> None:
    assert [NO_RESTART.decide(now_ms) for now_ms in (0, 10**9)] == [None, None]
    assert NO_RESTART.why_no_restart is None, "nobody asked for one"


def test_each_strategy_names_the_option_that_allows_more() -> None:
    rate = failure_rate(2, 100, 10)
    for now_ms in (0, 1, 2):
        rate.decide(now_ms)

    assert fixed_delay(3, 5).why_no_restart == "restart-strategy.fixed-delay.attempts is 3"
    assert rate.why_no_restart == (
        "restart-strategy.failure-rate.max-failures-per-interval is 2, and there were 3 failures within 100 ms"
    )
    assert exponential(max_attempts=4).why_no_restart == (
        "restart-strategy.exponential-delay.attempts-before-reset-backoff is 4, and it never ran for 5000 ms without a "
        "failure"
    )
    assert not NO_RESTART.can_restart


class TestFixedDelay:
    def test_the_attempts_are_restarts_however_far_apart(self) -> None:
        strategy = fixed_delay(2, 500)

        assert [strategy.decide(now_ms) for now_ms in (0, 10**6, 10**9, 10**12)] == [500, 500, None, None]

    def test_what_a_restart_needs_is_kept_for_the_last_attempt_too(self) -> None:
        strategy = fixed_delay(1, 0)
        before = strategy.can_restart
        strategy.decide(0)

        assert (before, strategy.can_restart) == (True, False)

    def test_no_attempts(self) -> None:
        assert fixed_delay(0, 5).decide(0) is None


class TestFailureRate:
    def test_one_more_than_allowed_within_the_interval_ends_the_job(self) -> None:
        strategy = failure_rate(2, 100, 10)

        assert [strategy.decide(now_ms) for now_ms in (0, 50, 100)] == [10, 10, None]

    def test_an_interval_has_to_be_over_for_the_oldest_to_be_forgotten(self) -> None:
        strategy = failure_rate(1, 100, 10)

        assert [strategy.decide(now_ms) for now_ms in (0, 101, 202, 302)] == [10, 10, 10, None]


class TestExponentialDelay:
    def test_the_delay_grows_up_to_its_limit(self) -> None:
        assert delays(exponential(), 6) == [100, 200, 400, 800, 1000, 1000]

    def test_after_a_calm_time_it_begins_anew(self) -> None:
        """The time counts from the moment when the job was to start again."""
        strategy = exponential()
        before = strategy.decide(0), strategy.decide(101)  # restarts at 100 and 301

        assert before == (100, 200)
        assert strategy.decide(301 + 4999) == 400
        assert strategy.decide(301 + 4999 + 400 + 5000) == 100

    def test_a_failure_before_the_restart_is_due_is_not_counted(self) -> None:
        strategy = exponential(max_attempts=1)

        assert [strategy.decide(now_ms) for now_ms in (0, 30, 100)] == [100, 70, 0]
        assert strategy.decide(101) is None

    def test_attempts_are_counted_from_the_last_calm_time(self) -> None:
        strategy = exponential(max_attempts=2)

        assert delays(strategy, 3) == [100, 200, None]
        assert strategy.decide(10**6) == 100

    def test_jitter_changes_the_delay_to_both_sides(self) -> None:
        found = {delays(exponential(jitter=0.25, seed=seed), 3)[2] for seed in range(2000)}

        assert {300, 500} <= {each for each in found if each is not None}
        assert all(each is not None and 300 <= each <= 500 for each in found)

    def test_jitter_keeps_the_limits(self) -> None:
        for seed in range(50):
            found = delays(exponential(jitter=1.0, seed=seed), 8)
            assert all(each is not None and 100 <= each <= 1000 for each in found)

    def test_a_number_of_failures_that_no_float_can_hold(self) -> None:
        assert delays(exponential(multiplier=10.0), 400)[-1] == 1000

    @given(st.lists(st.integers(0, 10**6), max_size=30))
    def test_a_clock_that_was_set_back_makes_no_delay_longer_than_the_limit(self, times_ms: list[int]) -> None:
        strategy = exponential()

        assert all(each is not None and 0 <= each <= 1000 for each in map(strategy.decide, times_ms))


class TestCreate:
    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            (RestartSettings(RestartKind.DEFAULT), "none"),
            (RestartSettings(RestartKind.NONE), "none"),
            (RestartSettings(RestartKind.FIXED_DELAY), "fixed-delay, 1 attempts, 1000 ms apart"),
            (
                RestartSettings(RestartKind.FIXED_DELAY, attempts=3, delay_ms=7),
                "fixed-delay, 3 attempts, 7 ms apart",
            ),
            (
                RestartSettings(RestartKind.FAILURE_RATE),
                "failure-rate, at most 1 failures within 60000 ms, 1000 ms apart",
            ),
            (
                RestartSettings(RestartKind.FAILURE_RATE, max_failures=4, interval_ms=9, delay_ms=8),
                "failure-rate, at most 4 failures within 9 ms, 8 ms apart",
            ),
            (
                RestartSettings(RestartKind.EXPONENTIAL_DELAY),
                "exponential-delay, any number of attempts, 1000 to 60000 ms apart",
            ),
        ],
        ids=str,
    )
    def test_each_kind_has_its_strategy_with_its_options(self, settings: RestartSettings, expected: str) -> None:
        assert str(create_restart_strategy(JobSettings(restart=settings), Random(0).randint)) == expected

    def test_checkpoints_bring_exponential_delays_with_flinks_numbers(self) -> None:
        strategy = create_restart_strategy(
            JobSettings(checkpoints=CHECKPOINTS, restart=RestartSettings(max_backoff_ms=3000)), Random(0).randint
        )

        assert strategy.settings == RestartSettings(RestartKind.EXPONENTIAL_DELAY, max_backoff_ms=60_000)

    def test_none_means_none_with_checkpoints_too(self) -> None:
        settings = JobSettings(checkpoints=CHECKPOINTS, restart=RestartSettings(RestartKind.NONE))

        assert not create_restart_strategy(settings, Random(0).randint).can_restart


# -------------------------------------------------------------------- the regions that run again together


DIAMOND = RegionOrder.of([(), (0,), (0,), (1, 2), ()])  # 0 -> 1 and 2 -> 3; 4 alone


def test_stages_follow_from_who_reads_whom() -> None:
    """The longest way counts."""
    assert list(DIAMOND.stages) == [0, 1, 1, 2, 0]
    assert list(RegionOrder.of([(2,), (0,), ()]).stages) == [1, 2, 0]
    assert DIAMOND.is_staged
    assert not RegionOrder.of([(), ()]).is_staged


def test_a_failed_region_takes_with_it_who_has_begun_to_read_it() -> None:
    """A region that has not begun to read is left alone."""
    assert DIAMOND.involved([1], lambda _: False, {0, 1, 2}.__contains__) == {1}
    assert DIAMOND.involved([1], lambda _: False, {0, 1, 2, 3}.__contains__) == {1, 3}


def test_lost_results_are_made_again_as_far_back_as_needed() -> None:
    """All regions that read the results run again, too."""
    assert DIAMOND.involved([3], {1}.__contains__, {0, 1, 2, 3}.__contains__) == {1, 3}
    assert DIAMOND.involved([3], {0, 1}.__contains__, {0, 1, 2, 3}.__contains__) == {0, 1, 2, 3}


def test_a_circle_is_our_own_mistake() -> None:
    """Graphs have none."""
    with pytest.raises(CycleError):
        RegionOrder.of([(1,), (0,)])
