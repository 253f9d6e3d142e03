"""What an environment takes from its options: the JobManager's address, dependencies of Python, and how jobs recover.

``PythonDependencies``: the methods of ``StreamExecutionEnvironment`` that ship files with a job.

``RecoverySettings``: what ``StreamExecutionEnvironment`` says about restarts and changelogs.

Side:   pure.  Paths are read when a job starts.
Rules:  an option of the program overrides an environment variable; without either, the program starts its own cluster.
        the options ``python.*`` and ``pipeline.cached-files`` are the only state.  the options ``restart-strategy.*``
        and ``state.changelog.enabled`` are the only state.
Source: PyFlink ``pyflink.datastream.stream_execution_environment``.  PyFlink
        ``pyflink.datastream.stream_execution_environment``; restart strategies are in PyFlink until 1.20.
"""

from collections.abc import Mapping
from typing import Self

from flowlet.common.checks import check_kind
from flowlet.common.configuration import Configuration
from flowlet.common.flinks_options import CHANGELOG, IGNORED, warn_of_setter
from flowlet.common.job_settings import FAILURE_RATE_DELAY, RestartKind, RestartSettings
from flowlet.common.option import view_of
from flowlet.common.options import python_options
from flowlet.common.options.client_options import JOB_MANAGER, REST_ADDRESS, REST_PORT
from flowlet.common.restart_strategy import RestartStrategies, RestartStrategyConfiguration
from flowlet.common.written_values import JOB_MANAGER_VARIABLE, checked_address, parse_address
from flowlet.errors import ConfigError

LOCAL_VARIABLE = "FLOWLET_LOCAL"  # "inprocess": no child processes


def job_manager_address(configuration: Configuration, variables: Mapping[str, str]) -> tuple[str, int] | None:
    """Host and port of the JobManager; None: an embedded one.

    Raises:
        ConfigError: an option or variable is no address; the message names it.
    """
    own_address = JOB_MANAGER.find(configuration)
    if own_address is not None:
        return parse_address(own_address, f"option {JOB_MANAGER.name!r}")
    host = REST_ADDRESS.find(configuration)
    if host is not None:
        return checked_address(
            host, REST_PORT.get(configuration), f"options {REST_ADDRESS.is_set(configuration)!r} and {REST_PORT.name!r}"
        )
    if REST_PORT.is_set(configuration):
        raise ConfigError(f"option {REST_PORT.name!r} is set and has no effect: set {REST_ADDRESS.name!r}, too")
    address = variables.get(JOB_MANAGER_VARIABLE, "").strip()
    return parse_address(address, f"environment variable {JOB_MANAGER_VARIABLE}") if address else None


def is_in_process(variables: Mapping[str, str]) -> bool:
    """Whether an embedded cluster stays in this process.

    Raises ConfigError if the variable is set to anything but ``inprocess``.
    """
    value = variables.get(LOCAL_VARIABLE, "").strip().lower()
    if value not in ("", "inprocess"):
        raise ConfigError(f"environment variable {LOCAL_VARIABLE} is {value!r}; unset it, or set it to 'inprocess'")
    return value == "inprocess"


class PythonDependencies:
    """A base class of ``StreamExecutionEnvironment`` alone.  Every method raises ConfigError: an argument is wrong."""

    _configuration: Configuration

    def add_python_file(self, file_path: str) -> None:
        """Ship a module, a zip archive or wheel of modules, or a folder of modules, which every task can import.

        Modules that lie beside the program, and that it has imported, are shipped anyway.
        """
        python_options.add_python_file(self._configuration, file_path)

    def set_python_requirements(self, requirements_file_path: str, requirements_cache_dir: str | None = None) -> None:
        """Install with pip, on every TaskManager, what a requirements file names.

        Args:
            requirements_file_path: in pip's format.
            requirements_cache_dir: a folder of packages, as ``pip download -d`` makes it, which is shipped and has all
                that is needed; left out, pip asks its index.
        """
        python_options.set_requirements(self._configuration, requirements_file_path, requirements_cache_dir)

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """Unpack a zip or tar archive, or a folder, on every TaskManager; functions find it below their working
        directory.

        Args:
            archive_path: on this machine.
            target_dir: its folder there; left out, it is called as the archive, with the ending of its name.
        """
        python_options.add_archive(self._configuration, archive_path, target_dir)

    def set_python_executable(self, python_exec: str) -> None:
        """Run the TaskManagers that this program starts with another interpreter, which has flowlet, and the same
        version of Python.

        A job for a cluster that runs already is refused with it: there the interpreter is chosen where TaskManagers are
        started.
        """
        python_options.set_executable(self._configuration, python_exec)

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> None:  # noqa: FBT001, FBT002  # PyFlink's
        """Ship a file or folder that functions find by ``name``; ``executable``: it is a program."""
        python_options.add_cached_file(self._configuration, file_path, name, is_executable=executable)


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
        check_kind(enabled, bool, "enable_changelog_state_backend() needs True or False", ConfigError)
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
