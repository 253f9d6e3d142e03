"""``config.yaml``: one file of options for clients, JobManagers and TaskManagers.

Side:       shared.  Read once per process, at its start.
Rules:      the file is in the directory of the variable ``FLOWLET_CONF_DIR``; without it there is none.  Names may be
            nested, as in Flink: ``rest: {port: 8082}`` is ``rest.port: 8082``.  Each process takes what concerns it; a
            name that concerns none is an error.  Command lines, variables and programs come before it.
Source:     Flink ``GlobalConfiguration``, ``YamlParserUtils``.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from flowlet.common.configuration import Configuration
from flowlet.common.options.client_options import REST_ADDRESS, REST_PORT
from flowlet.common.options.known_options import BY_NAME, check_options
from flowlet.common.written_values import duration_nanos, parse_bytes
from flowlet.errors import ConfigError
from netstack.late import dataclass

DIRECTORY_VARIABLE: Final = "FLOWLET_CONF_DIR"
FILE_NAME: Final = "config.yaml"
_NANOS_PER_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ClusterOption:
    """An option of a JobManager or TaskManager: the parameter of its command that it sets, and how."""

    parameter: str
    convert: Callable[[str], str] = str
    meaning: str = ""


def _bytes(text: str) -> str:
    return str(parse_bytes(text))


def _seconds(text: str) -> str:
    return str(duration_nanos(text) / _NANOS_PER_S)


TASK_MANAGER_OPTIONS: Final = {
    "taskmanager.numberOfTaskSlots": ClusterOption(
        "slots", meaning="subtasks of one slot sharing group that may run there"
    ),
    "taskmanager.bind-host": ClusterOption("host", meaning="the address of the data port"),
    "taskmanager.data.port": ClusterOption("data_port", meaning="the data port; 0: a free one"),
    "taskmanager.memory.network.max": ClusterOption(
        "network_memory", _bytes, "the memory for network buffers, such as 64 mb"
    ),
    "taskmanager.memory.segment-size": ClusterOption("segment_size", _bytes, "of one network buffer, such as 32 kb"),
    "taskmanager.network.memory.buffers-per-channel": ClusterOption(
        "exclusive_buffers", meaning="exclusive buffers of a channel"
    ),
    "taskmanager.network.memory.floating-buffers-per-gate": ClusterOption(
        "floating_buffers", meaning="floating buffers of a gate"
    ),
    "taskmanager.registration.timeout": ClusterOption(
        "registration_timeout_s", _seconds, "how long it looks for a JobManager"
    ),
}
JOB_MANAGER_OPTIONS: Final = {
    "rest.bind-address": ClusterOption("host", meaning="the loopback address to listen on"),
    "slot.request.timeout": ClusterOption("slot_request_timeout", _seconds, "how long a job waits for its slots"),
    "heartbeat.interval": ClusterOption("heartbeat_interval_s", _seconds, "between two signs of life to a TaskManager"),
    "heartbeat.timeout": ClusterOption(
        "heartbeat_timeout_s", _seconds, "after it a silent TaskManager is lost, and the JobManager to it"
    ),
    "flowlet.job-store": ClusterOption(
        "job_store", meaning="the directory of jobs that another JobManager goes on with"
    ),
}


def client_options(variables: Mapping[str, str]) -> Configuration | None:
    """Read the options of programs from the file; None: there is no file.

    Raises ConfigError: it cannot be read, or an entry is wrong.
    """
    found = _read(variables)
    if found is None:
        return None
    return Configuration.from_dict({name: text for name, text in found.items() if name in BY_NAME})


def job_manager_defaults(variables: Mapping[str, str]) -> dict[str, str]:
    """Read the parameters of the JobManager's command.  Raises as ``client_options``."""
    found = _read(variables) or {}
    port = {"port": found[REST_PORT.name]} if REST_PORT.name in found else {}
    return port | _parameters(found, JOB_MANAGER_OPTIONS)


def task_manager_defaults(variables: Mapping[str, str]) -> dict[str, str]:
    """Read the parameters of the TaskManager's command.  Raises as ``client_options``."""
    found = _read(variables) or {}
    host = REST_ADDRESS.find(Configuration.from_dict(found))
    address = {} if host is None else {"jobmanager": f"{host}:{found.get(REST_PORT.name, REST_PORT.default)}"}
    return address | _parameters(found, TASK_MANAGER_OPTIONS)


def job_manager_address_of_commands(variables: Mapping[str, str]) -> str | None:
    """Read host:port for commands that ask a JobManager; None: the file does not name it.  Raises as
    ``client_options``.
    """
    return task_manager_defaults(variables).get("jobmanager")


def _parameters(found: Mapping[str, str], options: Mapping[str, ClusterOption]) -> dict[str, str]:
    parameters = {}
    for name, option in options.items():
        if name in found:
            try:
                parameters[option.parameter] = option.convert(found[name])
            except ValueError:
                raise ConfigError(
                    f"option {name!r} in {FILE_NAME} is {found[name]!r}, which is no size or duration"
                ) from None
    return parameters


def _read(variables: Mapping[str, str]) -> dict[str, str] | None:
    directory = variables.get(DIRECTORY_VARIABLE, "").strip()
    if not directory:
        return None
    path = Path(directory).expanduser() / FILE_NAME
    try:
        # The loader that makes nothing but texts, lists and mappings.
        document = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)  # noqa: S506
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not in UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}; {DIRECTORY_VARIABLE} names its directory") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    # A file of comments alone is an empty one.
    if document in (None, ""):
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path} has no options by name: write NAME: VALUE")
    found = dict(_flat(document, ""))
    for_clusters = TASK_MANAGER_OPTIONS.keys() | JOB_MANAGER_OPTIONS.keys()
    try:
        # A name that nobody reads is a mistake: the default would hold without a word.
        check_options(Configuration.from_dict({name: text for name, text in found.items() if name not in for_clusters}))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return found


def _flat(mapping: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in mapping.items():
        name = f"{prefix}{key}"
        # An option whose value is a mapping is no group of options.
        if isinstance(value, dict) and not (name in BY_NAME or not value):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value if isinstance(value, str) else json.dumps(value)
