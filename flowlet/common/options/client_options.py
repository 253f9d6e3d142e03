"""Options and variables of clients: which JobManager a program asks, how long, and how it shows that it is there.

``ClientHeartbeat``: how the client of an attached job shows that it is there.  ``ClientRetry``: how long a client asks
for a JobManager that does not answer.  What ``flowlet run`` and the user tell a program in environment variables;
options of the program override these.

Side:   pure.
Units:  milliseconds.
Source: Flink ``ClientOptions`` (``client.heartbeat.interval``, ``client.heartbeat.timeout``), ``DeploymentOptions``
        (``execution.attached``, ``execution.shutdown-on-attached-exit``).  Flink ``RestOptions``
        (``rest.retry.max-attempts``, ``rest.retry.delay``).  There every pause has the whole delay; here they grow from
        100 ms up to it, so that a JobManager that is back soon is found soon.
Rules:  a job whose results the program reads is attached unless ``execution.attached`` is false.  Without it the job
        would wait for a reader for ever.  Any other job goes on without its client, as in Flink, unless ``execute()``
        waits for it and ``execution.shutdown-on-attached-exit`` is true.
"""

import json
from collections.abc import Mapping
from typing import Final

from flowlet.common.configuration import Configuration
from flowlet.common.job_client import ProgressMode
from flowlet.common.option import boolean, duration, text, whole_number
from flowlet.errors import ConfigError
from netstack.late import dataclass

OPTIONS_VARIABLE: Final = "FLOWLET_RUN_OPTIONS"  # a JSON object of texts
PROGRESS_VARIABLE: Final = "FLOWLET_PROGRESS"  # auto, on or off
DETACHED_VARIABLE: Final = "FLOWLET_RUN_DETACHED"  # "1": execute() does not wait for the end of the job
MAX_TIMEOUT_MS: Final = 365 * 24 * 3_600_000
_FLINKS_INTERVAL_MS: Final = 30_000
_FLINKS_TIMEOUT_MS: Final = 180_000
# A function of the program may keep the interpreter's lock for 50 s, Flink's heartbeat.timeout.
_COLLECT_TIMEOUT_MS: Final = 60_000
_HEARTBEATS_PER_TIMEOUT: Final = 6
# Read by job_manager_address and config_file.
JOB_MANAGER: Final = text("flowlet.jobmanager", allowed="host:port")
"""The JobManager; else `FLOWLET_JOBMANAGER`, else a cluster of the job's own."""
REST_ADDRESS: Final = text("rest.address", "jobmanager.rpc.address", allowed="a host")
"""The JobManager's host."""
REST_PORT: Final = whole_number("rest.port", least=1, default=8081)
"""The port at `rest.address`."""

# Read by ClientHeartbeat.of_options.
IS_ATTACHED: Final = boolean("execution.attached")
"""Whether a job needs its client; else if its results are read or `execute()` waits."""
ENDS_WITH_CLIENT: Final = boolean("execution.shutdown-on-attached-exit", default=False)
"""Whether a job whose results are not read ends with its client."""
CLIENT_INTERVAL: Final = whole_number("client.heartbeat.interval", least=1)
"""Milliseconds between signs of life of the client."""
CLIENT_TIMEOUT: Final = whole_number("client.heartbeat.timeout", least=1)
"""Milliseconds without one after which the job is cancelled."""


@dataclass(frozen=True, slots=True)
class ClientHeartbeat:
    """The client reports every ``interval_ms``; without a report for ``timeout_ms`` the job is cancelled.

    Raises:
        ConfigError: the two do not fit together.
    """

    interval_ms: int
    timeout_ms: int

    def __post_init__(self) -> None:
        if not 0 < self.interval_ms < self.timeout_ms <= MAX_TIMEOUT_MS:
            raise ConfigError(
                f"option {CLIENT_INTERVAL.name!r} is {self.interval_ms} and {CLIENT_TIMEOUT.name!r} is "
                f"{self.timeout_ms}; both are milliseconds, the interval is more than 0 and less than the timeout, and "
                f"the timeout at most {MAX_TIMEOUT_MS}"
            )

    @classmethod
    def of_options(cls, options: Configuration, *, is_collecting: bool, is_attached: bool) -> "ClientHeartbeat | None":
        """Read the options for one job; None: the job needs no client.

        Args:
            options: the environment's.
            is_collecting: the program reads the job's results.
            is_attached: the program waits for the job's end, unless the options say otherwise.
        """
        attached = IS_ATTACHED.find(options)
        if not (is_collecting or is_attached if attached is None else attached):
            return None
        if not is_collecting and not ENDS_WITH_CLIENT.get(options):
            return None
        timeout_ms = CLIENT_TIMEOUT.find(options) or (_COLLECT_TIMEOUT_MS if is_collecting else _FLINKS_TIMEOUT_MS)
        return cls(
            CLIENT_INTERVAL.find(options) or min(_FLINKS_INTERVAL_MS, timeout_ms // _HEARTBEATS_PER_TIMEOUT), timeout_ms
        )


@dataclass(frozen=True, slots=True)
class ClientRetry:
    """A request that gets no answer is tried up to ``max_attempts`` times more, with pauses of at most ``delay_ms``.

    Args:
        max_attempts: how often a client asks again for a JobManager that keeps its jobs (`--job-store`) and does not
            answer.
        delay_ms: the longest pause before it asks again; the first ones are shorter.
    """

    max_attempts: int = whole_number("rest.retry.max-attempts", least=0, default=20).field()
    delay_ms: int = duration("rest.retry.delay", least=1, default=3000).field()


def run_options(variables: Mapping[str, str]) -> Configuration | None:
    """Return the options of the command line; None: there are none.

    Raises ConfigError: the variable was not set by ``flowlet run``.
    """
    text = variables.get(OPTIONS_VARIABLE, "")
    if not text:
        return None
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict) or not all(isinstance(each, str) for each in options.values()):
        raise ConfigError(f"environment variable {OPTIONS_VARIABLE} is no JSON object of texts; flowlet run sets it")
    return Configuration.from_dict(options)


def is_detached(variables: Mapping[str, str]) -> bool:
    """Whether ``execute()`` returns when the job is submitted."""
    return variables.get(DETACHED_VARIABLE, "") == "1"


def progress_mode(variables: Mapping[str, str]) -> ProgressMode:
    """Read the user's wish from ``variables``.  Raises ConfigError: the variable has an unknown value."""
    wish = variables.get(PROGRESS_VARIABLE, "").strip().lower() or "auto"
    try:
        return ProgressMode(wish)
    except ValueError:
        raise ConfigError(
            f"environment variable {PROGRESS_VARIABLE} is {wish!r}; set it to 'auto', 'on' or 'off', or unset it"
        ) from None
