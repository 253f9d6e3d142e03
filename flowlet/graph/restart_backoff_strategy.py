"""Decides whether a job that failed starts again, and after how long.

Side:       pure.
Invariants: a strategy belongs to one job; ``decide`` counts the failure that it is asked about.
Units:      milliseconds; ``now_ms`` is of a clock that nobody sets, which runs neither backwards nor ahead between two
            failures of a job.
Source:     Flink ``RestartBackoffTimeStrategy`` and its classes, ``RestartBackoffTimeStrategyFactoryLoader``.
Rules:      failures that belong together (the tasks of one run of a region fail one after the other) are one failure;
            ``ExecutionGraph`` merges them.  All regions of a job count together.  If the clock was set back, an
            exponential delay is still at most ``max_backoff_ms``.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import assert_never

from flowlet.common.job_settings import JobSettings, RestartKind, RestartSettings
from netstack.late import dataclass

RandomInteger = Callable[[int, int], int]
"""``randint`` of a ``random.Random``: a number from the first to the second, both included."""


class RestartStrategy:
    """Whether a job starts again.  Threading: one thread."""

    __slots__ = ()

    def decide(self, now_ms: int) -> int | None:
        """The job has failed: how long to wait before it starts again; None: it ends."""
        return None

    @property
    def can_restart(self) -> bool:
        """Whether ``decide`` will ever say yes: if not, what a restart needs is not kept."""
        return True

    @property
    def why_no_restart(self) -> str | None:
        """For people: why ``decide`` said no, with the option that allows more; None: it never says yes."""
        return None


class NoRestart(RestartStrategy):
    """Every failure ends the job."""

    @property
    def can_restart(self) -> bool:
        """Never."""
        return False

    def __str__(self) -> str:
        return "none"


@dataclass(slots=True)
class FixedDelay(RestartStrategy):
    """The same delay each time, for a number of restarts."""

    attempts: int
    delay_ms: int
    _num_failures: int = 0

    @property
    def can_restart(self) -> bool:
        """Until the attempts are used up."""
        return self._num_failures < self.attempts

    @property
    def why_no_restart(self) -> str:
        """The number of attempts."""
        return f"restart-strategy.fixed-delay.attempts is {self.attempts}"

    def decide(self, now_ms: int) -> int | None:
        """The delay, unless the attempts are used up."""
        self._num_failures += 1
        return self.delay_ms if self._num_failures <= self.attempts else None

    def __str__(self) -> str:
        return f"fixed-delay, {self.attempts} attempts, {self.delay_ms} ms apart"


@dataclass(slots=True)
class FailureRate(RestartStrategy):
    """The same delay each time, until there are more than ``max_failures`` within ``interval_ms``; old failures are
    forgotten.
    """

    max_failures: int
    interval_ms: int
    delay_ms: int
    _failures_ms: deque[int] = field(init=False)  # when the last ones were, one more than are allowed

    def __post_init__(self) -> None:
        self._failures_ms = deque(maxlen=self.max_failures + 1)

    @property
    def why_no_restart(self) -> str:
        """The rate."""
        allowed = f"restart-strategy.failure-rate.max-failures-per-interval is {self.max_failures}"
        return f"{allowed}, and there were {len(self._failures_ms)} failures within {self.interval_ms} ms"

    def decide(self, now_ms: int) -> int | None:
        """The delay, unless the oldest failure of too many is within the interval."""
        self._failures_ms.append(now_ms)
        is_full = len(self._failures_ms) > self.max_failures
        return None if is_full and now_ms - self._failures_ms[0] <= self.interval_ms else self.delay_ms

    def __str__(self) -> str:
        return (
            f"failure-rate, at most {self.max_failures} failures within {self.interval_ms} ms, {self.delay_ms} ms apart"
        )


@dataclass(slots=True)
class ExponentialDelay(RestartStrategy):
    """Each delay longer than the one before, until the job has run for a while without a failure.

    ``randint`` makes the jitter, so that jobs that failed together do not come back together.
    """

    settings: RestartSettings
    randint: RandomInteger
    _num_failures: int = 0  # since the backoff began
    _next_restart_ms: int | None = None

    @property
    def why_no_restart(self) -> str:
        """The number of attempts."""
        limit = f"restart-strategy.exponential-delay.attempts-before-reset-backoff is {self.settings.max_attempts}"
        return f"{limit}, and it never ran for {self.settings.reset_ms} ms without a failure"

    def decide(self, now_ms: int) -> int | None:
        """The delay, unless the attempts are used up; a failure before the last restart was due belongs to the one
        before.
        """
        settings = self.settings
        if self._next_restart_ms is None or now_ms > self._next_restart_ms:
            if self._next_restart_ms is not None and now_ms - self._next_restart_ms >= settings.reset_ms:
                self._num_failures = 0
            self._next_restart_ms = now_ms + self._backoff_ms()
            self._num_failures += 1
        if settings.max_attempts != -1 and self._num_failures > settings.max_attempts:
            return None
        return min(max(0, self._next_restart_ms - now_ms), settings.max_backoff_ms)

    def _backoff_ms(self) -> int:
        settings = self.settings
        try:
            backoff_ms = int(settings.initial_backoff_ms * settings.multiplier**self._num_failures)
        except OverflowError:
            return settings.max_backoff_ms
        jitter_ms = int(backoff_ms * settings.jitter)
        varied_ms = backoff_ms + self.randint(-jitter_ms, jitter_ms)
        return max(settings.initial_backoff_ms, min(varied_ms, settings.max_backoff_ms))

    def __str__(self) -> str:
        attempts = "any number of" if self.settings.max_attempts == -1 else str(self.settings.max_attempts)
        return (
            f"exponential-delay, {attempts} attempts, {self.settings.initial_backoff_ms} to "
            f"{self.settings.max_backoff_ms} ms apart"
        )


def create_restart_strategy(settings: JobSettings, randint: RandomInteger) -> RestartStrategy:
    """The strategy of a job: what the user chose; else exponential delays with Flink's numbers if it takes checkpoints,
    or none.
    """
    restart = settings.restart
    match restart.kind:
        case RestartKind.NONE:
            return NoRestart()
        case RestartKind.FIXED_DELAY:
            return FixedDelay(restart.attempts, restart.delay_ms)
        case RestartKind.FAILURE_RATE:
            return FailureRate(restart.max_failures, restart.interval_ms, restart.delay_ms)
        case RestartKind.EXPONENTIAL_DELAY:
            return ExponentialDelay(restart, randint)
        case RestartKind.DEFAULT:
            return (
                NoRestart()
                if settings.checkpoints is None or not settings.checkpoints.is_periodic
                else ExponentialDelay(RestartSettings(), randint)
            )
        case _:
            assert_never(restart.kind)
