"""``RestartSettings``: whether a job that failed starts again, after how long, and how often.

Side:   pure.
Units:  milliseconds.
Source: Flink ``RestartStrategyOptions``, ``JobManagerOptions.EXECUTION_FAILOVER_STRATEGY``; the limits are
        those of the ``...RestartBackoffTimeStrategy`` classes.
"""

from enum import Enum
from typing import Final

from flowlet.errors import JobGraphError
from netstack.late import dataclass


class RestartKind(Enum):
    """Flink's strategies, by the value of ``restart-strategy.type``; DEFAULT: EXPONENTIAL_DELAY with checkpoints, else
    NONE.
    """

    DEFAULT = "default"
    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    FAILURE_RATE = "failure-rate"
    EXPONENTIAL_DELAY = "exponential-delay"


_LOWEST: Final = {
    "attempts": 0,
    "delay_ms": 0,
    "max_failures": 1,
    "interval_ms": 1,
    "initial_backoff_ms": 1,
    "max_backoff_ms": 1,
    "jitter": 0,
    "reset_ms": 1,
    "max_attempts": -1,
}


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """The options of all strategies; each uses its own.

    Args:
        kind: the strategy.
        attempts: FIXED_DELAY: so many restarts.
        delay_ms: FIXED_DELAY, FAILURE_RATE: before each restart.
        max_failures: FAILURE_RATE: more within ``interval_ms`` fail the job.
        interval_ms: see ``max_failures``.
        initial_backoff_ms: EXPONENTIAL_DELAY: before the first restart; then times ``multiplier`` up to
            ``max_backoff_ms``, each changed at random by up to ``jitter`` of itself.
        reset_ms: EXPONENTIAL_DELAY: after so long without a failure the backoff begins anew.
        max_attempts: EXPONENTIAL_DELAY: so many restarts without that; -1: any number.
        is_regional: only the regions that failed start again; False: all tasks.

    Raises:
        JobGraphError: a number is out of range, or two contradict each other.
    """

    kind: RestartKind = RestartKind.DEFAULT
    attempts: int = 1
    delay_ms: int = 1000
    max_failures: int = 1
    interval_ms: int = 60_000
    initial_backoff_ms: int = 1000
    max_backoff_ms: int = 60_000
    multiplier: float = 1.5
    jitter: float = 0.1
    reset_ms: int = 3_600_000
    max_attempts: int = -1
    is_regional: bool = True

    def __post_init__(self) -> None:
        for name, lowest in _LOWEST.items():
            if getattr(self, name) < lowest:
                raise JobGraphError(f"{name} of the restart strategy is {getattr(self, name)}, the least is {lowest}")
        if self.multiplier <= 1:
            raise JobGraphError(f"multiplier of the restart strategy is {self.multiplier:g}, it must be more than 1")
        if self.jitter > 1:
            raise JobGraphError(f"jitter of the restart strategy is {self.jitter:g}, the most is 1")
        if self.initial_backoff_ms > self.max_backoff_ms:
            raise JobGraphError(
                f"the restart strategy begins with a backoff of {self.initial_backoff_ms} ms, which is more than its "
                "greatest of "
                f"{self.max_backoff_ms} ms: change restart-strategy.exponential-delay.initial-backoff or .max-backoff"
            )
