"""Where a job runs, from options and environment variables.

Side:  pure.
Rules: an option of the program overrides an environment variable; without either, the program starts its own cluster.
"""

from collections.abc import Mapping

from flowlet.common.configuration import Configuration
from flowlet.common.options.client_options import JOB_MANAGER, REST_ADDRESS, REST_PORT
from flowlet.common.units.host_address import JOB_MANAGER_VARIABLE, checked_address, parse_address
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
