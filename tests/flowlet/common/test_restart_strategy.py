"""Restart strategies as objects say what options say."""

from datetime import timedelta
from typing import Any

import pytest

from flowlet.common import Configuration, Duration, RestartStrategies
from flowlet.common.job_settings import RestartKind, RestartSettings
from flowlet.common.restart_strategy import RestartStrategyConfiguration
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import ConfigError
from tests.flowlet.stream_graphs import graph_of, unstarted

FIXED = RestartStrategies.fixed_delay_restart(3, 10_000)
RATE = RestartStrategies.failure_rate_restart(5, 60_000, 15_500)


def settings_with(strategy: RestartStrategyConfiguration | None) -> RestartSettings:
    """Return the restart settings that a job gets."""
    environment = unstarted()
    if strategy is not None:
        environment.set_restart_strategy(strategy)
        assert environment.get_restart_strategy() == strategy
    environment.from_collection([1]).print()
    return graph_of(environment.execute).settings.job.restart


def test_a_job_restarts_as_its_strategy_says() -> None:
    fixed, rate = settings_with(FIXED), settings_with(RATE)

    assert (fixed.kind, fixed.attempts, fixed.delay_ms) == (RestartKind.FIXED_DELAY, 3, 10_000)
    assert rate.kind is RestartKind.FAILURE_RATE
    assert (rate.max_failures, rate.interval_ms, rate.delay_ms) == (5, 60_000, 15_500)
    assert settings_with(RestartStrategies.no_restart()).kind is RestartKind.NONE
    assert settings_with(RestartStrategies.fall_back_restart()) == settings_with(None)


def test_a_strategy_takes_the_place_of_the_one_before() -> None:
    environment = StreamExecutionEnvironment(
        Configuration.from_dict({"restart-strategy": "failurerate", "restart-strategy.failure-rate.delay": "1 s"})
    )

    environment.set_restart_strategy(FIXED)

    assert environment.get_restart_strategy() == FIXED


@pytest.mark.parametrize(
    ("strategy", "description"),
    [
        (RestartStrategies.no_restart(), "Restart deactivated."),
        (RestartStrategies.fall_back_restart(), "Cluster level default restart strategy"),
        (FIXED, "Restart with fixed delay (PT10S). #3 restart attempts."),
        (RATE, "Failure rate restart with maximum of 5 failures within interval PT1M and fixed delay PT15.5S."),
        (RestartStrategies.fixed_delay_restart(1, 0), "Restart with fixed delay (PT0S). #1 restart attempts."),
        (
            RestartStrategies.fixed_delay_restart(1, 3_600_001),
            "Restart with fixed delay (PT1H0.001S). #1 restart attempts.",
        ),
    ],
)
def test_descriptions(strategy: RestartStrategyConfiguration, description: str) -> None:
    assert strategy.get_description() == description


def test_times_are_numbers_of_milliseconds_timedeltas_or_durations() -> None:
    kind = RestartStrategies.FixedDelayRestartStrategyConfiguration

    assert kind(1, 2000) == kind(1, timedelta(seconds=2)) == kind(1, Duration.of_seconds(2))
    assert kind(1, 2000).get_delay_between_attempts_interval() == timedelta(seconds=2)
    assert len({kind(1, 2000), kind(1, timedelta(seconds=2)), kind(2, 2000)}) == 2
    assert (RATE.get_max_failure_rate(), RATE.get_failure_interval()) == (5, timedelta(minutes=1))


@pytest.mark.parametrize("given", [(None, 1), (-1, 1), (1, None), (1, -1), (1, "1 s"), (1.5, 1)])
def test_other_arguments_are_refused(given: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigError, match="must be a"):
        RestartStrategies.fixed_delay_restart(*given)


def test_another_object_and_a_strategy_without_a_class_are_refused() -> None:
    environment = StreamExecutionEnvironment(Configuration.from_dict({"restart-strategy.type": "exponential-delay"}))

    with pytest.raises(ConfigError, match=r"set_restart_strategy\(\) needs a strategy such as"):
        environment.set_restart_strategy("none")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the restart strategy is 'exponential-delay', which has no class"):
        environment.get_restart_strategy()
