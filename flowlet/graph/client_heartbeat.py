"""``ClientHeartbeat``: how the client of an attached job shows that it is there.

``ClientRetry``: how long a client asks for a JobManager that does not answer.

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

from typing import Final

from flowlet.common.configuration import Configuration
from flowlet.common.options.known_options import (
    CLIENT_INTERVAL,
    CLIENT_TIMEOUT,
    ENDS_WITH_CLIENT,
    IS_ATTACHED,
    RETRY_ATTEMPTS,
    RETRY_DELAY,
)
from flowlet.errors import ConfigError
from netstack.late import dataclass

_FLINKS_INTERVAL_MS: Final = 30_000
_FLINKS_TIMEOUT_MS: Final = 180_000
# A function of the program may keep the interpreter's lock for 50 s, Flink's heartbeat.timeout.
_COLLECT_TIMEOUT_MS: Final = 60_000
_HEARTBEATS_PER_TIMEOUT: Final = 6
MAX_TIMEOUT_MS: Final = 365 * 24 * 3_600_000


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
                f"{self.timeout_ms}; both are "
                "milliseconds, the interval is more than 0 and less than the timeout, and the timeout at most "
                f"{MAX_TIMEOUT_MS}"
            )

    @classmethod
    def of_options(cls, options: Configuration, *, is_collecting: bool, is_attached: bool) -> "ClientHeartbeat | None":
        """What the options say for one job; None: the job needs no client.

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
    """A request that gets no answer is tried ``max_attempts`` times more, with pauses of at most ``delay_ms``."""

    max_attempts: int = 20
    delay_ms: int = 3000

    @classmethod
    def of_options(cls, options: Configuration) -> "ClientRetry":
        """What the options say."""
        return cls(RETRY_ATTEMPTS.get(options), RETRY_DELAY.get(options))
