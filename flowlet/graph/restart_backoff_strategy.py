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

from flowlet.common.job_settings import JobSettings, RestartKind, RestartSettings
from netstack.late import dataclass

RandomInteger = Callable[[int, int], int]
"""``randint`` of a ``random.Random``: a number from the first to the second, both included."""


@dataclass(slots=True, eq=False)
class RestartStrategy:
    """Whether a job starts again.  Threading: one thread.

    Args:
        settings: what the user chose; DEFAULT is as NONE.
        randint: makes the jitter of exponential delays, so that jobs that failed together do not come back together.
    """

    settings: RestartSettings = field(default_factory=RestartSettings)
    randint: RandomInteger = lambda _low, _high: 0
    _num_failures: int = field(init=False, default=0)  # of an exponential delay: since the backoff began
    _failures_ms: deque[int] = field(init=False)  # when the last ones were, one more than a failure rate allows
    _next_restart_ms: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._failures_ms = deque(maxlen=self.settings.max_failures + 1)

    @property
    def can_restart(self) -> bool:
        """Whether ``decide`` will ever say yes: if not, what a restart needs is not kept."""
        settings = self.settings
        if settings.kind is RestartKind.FIXED_DELAY:
            return self._num_failures < settings.attempts
        return settings.kind in (RestartKind.FAILURE_RATE, RestartKind.EXPONENTIAL_DELAY)

    @property
    def why_no_restart(self) -> str | None:
        """For people: why ``decide`` said no, with the option that allows more; None: it never says yes."""
        settings = self.settings
        match settings.kind:
            case RestartKind.FIXED_DELAY:
                return f"restart-strategy.fixed-delay.attempts is {settings.attempts}"
            case RestartKind.FAILURE_RATE:
                allowed = f"restart-strategy.failure-rate.max-failures-per-interval is {settings.max_failures}"
                return f"{allowed}, and there were {len(self._failures_ms)} failures within {settings.interval_ms} ms"
            case RestartKind.EXPONENTIAL_DELAY:
                limit = f"restart-strategy.exponential-delay.attempts-before-reset-backoff is {settings.max_attempts}"
                return f"{limit}, and it never ran for {settings.reset_ms} ms without a failure"
            case _:
                return None

    def decide(self, now_ms: int) -> int | None:
        """The job has failed: how long to wait before it starts again; None: it ends."""
        settings = self.settings
        match settings.kind:
            case RestartKind.FIXED_DELAY:
                self._num_failures += 1
                return settings.delay_ms if self._num_failures <= settings.attempts else None
            case RestartKind.FAILURE_RATE:  # the oldest failure of too many must not be within the interval
                self._failures_ms.append(now_ms)
                is_full = len(self._failures_ms) > settings.max_failures
                return None if is_full and now_ms - self._failures_ms[0] <= settings.interval_ms else settings.delay_ms
            case RestartKind.EXPONENTIAL_DELAY:
                return self._exponential_delay_ms(now_ms)
            case _:
                return None

    def _exponential_delay_ms(self, now_ms: int) -> int | None:
        """Each delay is longer than the one before, until the job has run for a while without a failure; a failure
        before the last restart was due belongs to the one before.
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
        settings = self.settings
        match settings.kind:
            case RestartKind.FIXED_DELAY:
                limit = f"{settings.attempts} attempts, {settings.delay_ms} ms"
            case RestartKind.FAILURE_RATE:
                limit = (
                    f"at most {settings.max_failures} failures within {settings.interval_ms} ms, {settings.delay_ms} ms"
                )
            case RestartKind.EXPONENTIAL_DELAY:
                attempts = "any number of" if settings.max_attempts == -1 else str(settings.max_attempts)
                limit = f"{attempts} attempts, {settings.initial_backoff_ms} to {settings.max_backoff_ms} ms"
            case _:
                return "none"
        return f"{settings.kind.value}, {limit} apart"


def create_restart_strategy(settings: JobSettings, randint: RandomInteger) -> RestartStrategy:
    """The strategy of a job: what the user chose; else exponential delays with Flink's numbers if it takes checkpoints,
    or none.
    """
    restart = settings.restart
    if restart.kind is RestartKind.DEFAULT:
        restart = RestartSettings(RestartKind.EXPONENTIAL_DELAY if settings.takes_checkpoints else RestartKind.NONE)
    return RestartStrategy(restart, randint)
