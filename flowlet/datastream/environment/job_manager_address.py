"""Where a job runs, from options and environment variables.

Side:  pure.
Rules: an option of the program overrides an environment variable; without either, the program starts its own cluster.
"""

from collections.abc import Mapping

from flowlet.common.configuration import Configuration
from flowlet.common.options.known_options import JOB_MANAGER, REST_ADDRESS, REST_PORT
from flowlet.errors import ConfigError

JOB_MANAGER_VARIABLE = "FLOWLET_JOBMANAGER"  # host:port
LOCAL_VARIABLE = "FLOWLET_LOCAL"  # "inprocess": no child processes


def job_manager_address(configuration: Configuration, variables: Mapping[str, str]) -> tuple[str, int] | None:
    """Host and port of the JobManager; None: an embedded one.

    Raises:
        ConfigError: an option or variable is no address; the message names it.
    """
    own_address = JOB_MANAGER.find(configuration)
    if own_address is not None:
        return parsed_address(own_address, f"option {JOB_MANAGER.name!r}")
    host = REST_ADDRESS.find(configuration)
    if host is not None:
        return _checked(host, REST_PORT.get(configuration), f"options {REST_ADDRESS.is_set(configuration)!r} and {REST_PORT.name!r}")
    if REST_PORT.is_set(configuration):
        raise ConfigError(f"option {REST_PORT.name!r} is set and has no effect: set {REST_ADDRESS.name!r}, too")
    address = variables.get(JOB_MANAGER_VARIABLE, "").strip()
    return parsed_address(address, f"environment variable {JOB_MANAGER_VARIABLE}") if address else None


def is_in_process(variables: Mapping[str, str]) -> bool:
    """Whether an embedded cluster stays in this process.  Raises ConfigError if the variable is set to anything but ``inprocess``."""
    value = variables.get(LOCAL_VARIABLE, "").strip().lower()
    if value not in ("", "inprocess"):
        raise ConfigError(f"environment variable {LOCAL_VARIABLE} is {value!r}; unset it, or set it to 'inprocess'")
    return value == "inprocess"


def parsed_address(address: str, where: str) -> tuple[str, int]:
    """Host and port of ``host:port``.  Raises ConfigError if it is not of that form; names ``where`` it was found."""
    host, colon, port = address.strip().removeprefix("http://").rstrip("/").rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal():
        raise ConfigError(f"{where} is {address!r}; it must be host:port, such as 127.0.0.1:{REST_PORT.default}")
    return _checked(host, int(port), where)


def _checked(host: str, port: int, where: str) -> tuple[str, int]:
    host = host.removeprefix("[").removesuffix("]")  # IPv6 literals
    if not host or not 1 <= port <= 65535:
        raise ConfigError(f"{where}: {host!r} and {port} are no host and port from 1 to 65535")
    return host, port
