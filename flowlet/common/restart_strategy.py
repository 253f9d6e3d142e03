"""``RestartStrategies``: how a job starts again after a failure, as objects.

Side:   pure.
Rules:  an environment keeps them as options ``restart-strategy.*``; an object here only says what to set.
Units:  milliseconds where a number is given.
Source: PyFlink ``pyflink.common.restart_strategy``; texts by Flink ``RestartStrategyDescriptionUtils``.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from flowlet.common.checks import check_number, is_whole_number
from flowlet.common.time import Duration, Time, millis_of
from flowlet.errors import ConfigError

__all__ = ["RestartStrategies", "RestartStrategyConfiguration"]

_MS = timedelta(milliseconds=1)


class RestartStrategyConfiguration:
    """One strategy; equal to another one with equal options."""

    _description: str
    _options: Mapping[str, str]

    def get_description(self) -> str:
        """Describe the strategy for people."""
        return self._description

    def options(self) -> Mapping[str, str]:
        """Return the options that set this strategy; not in PyFlink."""
        return dict(self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RestartStrategyConfiguration) and self.options() == other.options()

    def __hash__(self) -> int:
        return hash(frozenset(self.options().items()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {dict(self.options())}>"


class RestartStrategies:
    """Makes strategies, for ``StreamExecutionEnvironment.set_restart_strategy``."""

    class NoRestartStrategyConfiguration(RestartStrategyConfiguration):
        """No restarts: a job that fails once has failed."""

        _description = "Restart deactivated."
        _options: Mapping[str, str] = {"restart-strategy.type": "none"}

    class FixedDelayRestartStrategyConfiguration(RestartStrategyConfiguration):
        """Some restarts, with equal pauses before them.  Raises ConfigError: an argument is wrong."""

        def __init__(
            self,
            restart_attempts: int | None = None,
            delay_between_attempts_interval: int | timedelta | Duration | None = None,
        ) -> None:
            self._attempts = _count(restart_attempts, "restart_attempts", 0)
            self._delay = _time(delay_between_attempts_interval, "delay_between_attempts_interval")
            self._description = f"Restart with fixed delay ({_iso(self._delay)}). #{self._attempts} restart attempts."
            self._options = {
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": str(self._attempts),
                "restart-strategy.fixed-delay.delay": _text(self._delay),
            }

        def get_restart_attempts(self) -> int:
            """Return how many restarts there are."""
            return self._attempts

        def get_delay_between_attempts_interval(self) -> timedelta:
            """Return the pause before each restart."""
            return self._delay

    class FailureRateRestartStrategyConfiguration(RestartStrategyConfiguration):
        """Restarts as long as failures are rare.  Raises ConfigError: an argument is wrong."""

        def __init__(
            self,
            max_failure_rate: int | None = None,
            failure_interval: int | timedelta | Duration | None = None,
            delay_between_attempts_interval: int | timedelta | Duration | None = None,
        ) -> None:
            self._rate = _count(max_failure_rate, "max_failure_rate", 1)
            self._interval = _time(failure_interval, "failure_interval")
            self._delay = _time(delay_between_attempts_interval, "delay_between_attempts_interval")
            self._description = (
                f"Failure rate restart with maximum of {self._rate} failures within interval {_iso(self._interval)} "
                f"and fixed delay {_iso(self._delay)}."
            )
            self._options = {
                "restart-strategy.type": "failure-rate",
                "restart-strategy.failure-rate.max-failures-per-interval": str(self._rate),
                "restart-strategy.failure-rate.failure-rate-interval": _text(self._interval),
                "restart-strategy.failure-rate.delay": _text(self._delay),
            }

        def get_max_failure_rate(self) -> int:
            """Return how many failures in the interval do not fail the job."""
            return self._rate

        def get_failure_interval(self) -> timedelta:
            """Return the time in which failures are counted."""
            return self._interval

        def get_delay_between_attempts_interval(self) -> timedelta:
            """Return the pause before each restart."""
            return self._delay

    class FallbackRestartStrategyConfiguration(RestartStrategyConfiguration):
        """The strategy of jobs that set none: exponential delays with checkpoints, no restarts without."""

        _description = "Cluster level default restart strategy"
        _options: Mapping[str, str] = {}

    @staticmethod
    def no_restart() -> "RestartStrategies.NoRestartStrategyConfiguration":
        """Make the strategy without restarts: a job that fails once has failed."""
        return RestartStrategies.NoRestartStrategyConfiguration()

    @staticmethod
    def fall_back_restart() -> "RestartStrategies.FallbackRestartStrategyConfiguration":
        """Make the strategy of jobs that set none."""
        return RestartStrategies.FallbackRestartStrategyConfiguration()

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int, delay_between_attempts: int
    ) -> "RestartStrategies.FixedDelayRestartStrategyConfiguration":
        """Make a strategy of some restarts, with a pause in milliseconds before each."""
        return RestartStrategies.FixedDelayRestartStrategyConfiguration(restart_attempts, delay_between_attempts)

    @staticmethod
    def failure_rate_restart(
        failure_rate: int, failure_interval: int, delay_interval: int
    ) -> "RestartStrategies.FailureRateRestartStrategyConfiguration":
        """Make a strategy that restarts as long as there are at most ``failure_rate`` failures in ``failure_interval``
        milliseconds.
        """
        return RestartStrategies.FailureRateRestartStrategyConfiguration(failure_rate, failure_interval, delay_interval)


def _count(given: Any, name: str, lowest: int) -> int:
    check_number(given, lowest, f"{name} must be a whole number of {lowest} or more", ConfigError)
    return int(given)


def _time(given: Any, name: str) -> timedelta:
    if isinstance(given, Duration | Time):
        given = millis_of(given, name)
    length = timedelta(milliseconds=given) if is_whole_number(given) else given
    if not isinstance(length, timedelta) or length < timedelta():
        raise ConfigError(
            f"{name} must be a number of milliseconds, a Duration, a Time or a timedelta, 0 or more, got {given!r}"
        )
    return length


def _text(length: timedelta) -> str:
    return f"{length // _MS} ms"


def _iso(length: timedelta) -> str:
    """Write a time as Java writes a ``Duration``: PT1H2M3.5S."""
    seconds, millis = divmod(length // _MS, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{millis:03}".rstrip("0").rstrip(".")
    parts = [
        f"{hours}H" if hours else "",
        f"{minutes}M" if minutes else "",
        f"{seconds}{fraction}S" if seconds or millis else "",
    ]
    return "PT" + ("".join(parts) or "0S")
