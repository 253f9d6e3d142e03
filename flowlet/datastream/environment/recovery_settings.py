"""``RecoverySettings``: what ``StreamExecutionEnvironment`` says about restarts and changelogs.

Side:   pure.
Rules:  the options ``restart-strategy.*`` and ``state.changelog.enabled`` are the only state.
Source: PyFlink ``pyflink.datastream.stream_execution_environment``; restart strategies are in PyFlink until 1.20.
"""

from typing import Self

from flowlet.common.configuration import Configuration
from flowlet.common.flinks_options import CHANGELOG, IGNORED, warn_of_setter
from flowlet.common.job_settings import FAILURE_RATE_DELAY, RestartKind, RestartSettings
from flowlet.common.option import view_of
from flowlet.common.restart_strategy import RestartStrategies, RestartStrategyConfiguration
from flowlet.errors import ConfigError


class RecoverySettings:
    """A base class of ``StreamExecutionEnvironment`` alone.  Every setter raises ConfigError: an argument is wrong."""

    _configuration: Configuration

    def set_restart_strategy(self, restart_strategy_configuration: RestartStrategyConfiguration) -> Self:
        """Set how jobs start again after a failure: sets the options ``restart-strategy.*``."""
        if not isinstance(restart_strategy_configuration, RestartStrategyConfiguration):
            raise ConfigError(
                "set_restart_strategy() needs a strategy such as RestartStrategies.fixed_delay_restart(3, 1000), got "
                f"{restart_strategy_configuration!r}"
            )
        for name in self._configuration.key_set():
            if name == "restart-strategy" or name.startswith("restart-strategy."):
                self._configuration.remove_config(name)
        for name, text in restart_strategy_configuration.options().items():
            self._configuration.set_string(name, text)
        return self

    def get_restart_strategy(self) -> RestartStrategyConfiguration:
        """The strategy that the options name.

        Raises:
            ConfigError: it is the one with exponential delays, which has no class in PyFlink.
        """
        found = view_of(RestartSettings, self._configuration)
        match found.kind:
            case RestartKind.DEFAULT:
                return RestartStrategies.fall_back_restart()
            case RestartKind.NONE:
                return RestartStrategies.no_restart()
            case RestartKind.FIXED_DELAY:
                return RestartStrategies.fixed_delay_restart(found.attempts, found.delay_ms)
            case RestartKind.FAILURE_RATE:
                delay_ms = FAILURE_RATE_DELAY.get(self._configuration)
                return RestartStrategies.failure_rate_restart(found.max_failures, found.interval_ms, delay_ms)
            case kind:
                raise ConfigError(
                    f"the restart strategy is {kind.value!r}, which has no class; look at the options "
                    "restart-strategy.*"
                )

    def enable_changelog_state_backend(self, enabled: bool) -> Self:  # noqa: FBT001  # PyFlink's signature
        """Without an effect, which a warning says: checkpoints hold the state itself.

        Raises ConfigError: it is no bool.
        """
        if not isinstance(enabled, bool):
            raise ConfigError(f"enable_changelog_state_backend() needs True or False, got {enabled!r}")
        self._configuration.set_boolean(CHANGELOG, enabled)
        if enabled:
            warn_of_setter("enable_changelog_state_backend()", IGNORED[CHANGELOG])
        return self

    def is_changelog_state_backend_enabled(self) -> bool | None:
        """Whether it was asked for, or None if nothing was said about it; without an effect."""
        found = self._configuration.get_boolean(CHANGELOG, default_value=False)
        return found if self._configuration.contains_key(CHANGELOG) else None

    def is_chaining_of_operators_with_different_max_parallelism_enabled(self) -> bool:
        """True: a max parallelism never parts a chain, which always has one parallelism."""
        return True
