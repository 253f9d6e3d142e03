"""Decides whether a job that failed starts again, and after how long; and which of its regions do.

``RegionOrder``: which regions of a job read the finished results of which others.

Side:       pure.
Invariants: a strategy belongs to one job; ``decide`` counts the failure that it is asked about.  No region reads its
            own results, nor those of a region that reads its own (there is no cycle).
Units:      milliseconds; ``now_ms`` is of a clock that nobody sets, which runs neither backwards nor ahead between two
            failures of a job.
Source:     Flink ``RestartBackoffTimeStrategy`` and its classes, ``RestartBackoffTimeStrategyFactoryLoader``;
            ``PipelinedRegionSchedulingStrategy``, ``RestartPipelinedRegionFailoverStrategy``.  Flink starts a region as
            soon as its own inputs are there; here a stage starts when all before it are finished, so that no stage
            waits for the slots of another.
Rules:      failures that belong together (the tasks of one run of a region fail one after the other) are one failure;
            ``ExecutionGraph`` merges them.  All regions of a job count together.  If the clock was set back, an
            exponential delay is still at most ``max_backoff_ms``.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field
from graphlib import TopologicalSorter

import msgspec

from flowlet.common.job_settings import JobSettings, RestartKind, RestartSettings
from flowlet.messages.control_messages import FailureInfo
from netstack.late import dataclass

RandomInteger = Callable[[int, int], int]
"""``randint`` of a ``random.Random``: a number from the first to the second, both included."""


@dataclass(slots=True, eq=False)
class RestartStrategy:
    """Decides whether a job starts again.  Threading: one thread.

    Args:
        settings: what the user chose; DEFAULT is as NONE.
        randint: makes the jitter of exponential delays, so that jobs that failed together do not come back together.
    """

    settings: RestartSettings = field(default_factory=RestartSettings)
    randint: RandomInteger = lambda _low, _high: 0
    _num_failures: int = field(init=False, default=0)  # of an exponential delay: since the backoff began
    _failures_ms: deque[int] = field(init=False, default_factory=deque)  # the last ones, one more than a rate allows
    _next_restart_ms: int | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.settings.kind is RestartKind.FAILURE_RATE:
            self._failures_ms = deque(maxlen=self.settings.max_failures + 1)

    @property
    def can_restart(self) -> bool:
        """Whether ``decide`` may ever allow a restart; if not, nothing is kept for one."""
        settings = self.settings
        if settings.kind is RestartKind.FIXED_DELAY:
            return self._num_failures < settings.attempts
        return settings.kind in (RestartKind.FAILURE_RATE, RestartKind.EXPONENTIAL_DELAY)

    @property
    def why_no_restart(self) -> str | None:
        """Why ``decide`` refused, for people, with the option that allows more; None: it never allows a restart."""
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
        """Note that the job has failed; returns how long to wait before it starts again; None: it ends."""
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
        """Return the next delay: each is longer than the one before, until the job has run for ``reset_ms`` without a
        failure.

        A failure before the last restart was due belongs to the failure before it.
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
    """Make the strategy of a job: the user's choice; else exponential delays with Flink's numbers if it takes
    checkpoints, or none.
    """
    restart = settings.restart
    if restart.kind is RestartKind.DEFAULT:
        restart = RestartSettings(RestartKind.EXPONENTIAL_DELAY if settings.takes_checkpoints else RestartKind.NONE)
    return RestartStrategy(restart, randint)


@dataclass(slots=True)
class FailedRun:
    """Why a run ended; only its graph changes it."""

    root: FailureInfo
    concurrent: deque[FailureInfo]  # further failures until the run had ended, newest last
    restarted_ms: int | None = None  # when the next run of the regions began; None: it has not, or never will


class RegionOrder(msgspec.Struct, frozen=True):
    """The order of regions: a region runs after the regions whose complete results it reads.

    Attributes:
        producers: by region, the regions whose results it reads when they are complete.
        consumers: by region, the regions that read its results.
        stages: by region, from 0: how many regions the longest way to it goes through.  A region begins when all of the
            stages before its own have finished.
    """

    producers: Sequence[frozenset[int]]
    consumers: Sequence[frozenset[int]]
    stages: Sequence[int]

    @classmethod
    def of(cls, producers: Sequence[Collection[int]]) -> "RegionOrder":
        """Find the order of regions from the results that each reads.

        Raises:
            CycleError: regions read each other's results in a circle, which is a mistake of ours.
        """
        consumers: list[set[int]] = [set() for _ in producers]
        for region, read in enumerate(producers):
            for producer in read:
                consumers[producer].add(region)
        stages = [0] * len(producers)
        for region in TopologicalSorter(dict(enumerate(producers))).static_order():
            stages[region] = max((stages[producer] + 1 for producer in producers[region]), default=0)
        return cls([frozenset(read) for read in producers], [frozenset(each) for each in consumers], stages)

    @property
    def is_staged(self) -> bool:
        """Whether there is more than one stage."""
        return any(self.stages)

    def involved(
        self, failed: Iterable[int], is_gone: Callable[[int], bool], has_begun: Callable[[int], bool]
    ) -> set[int]:
        """Find the regions that must run again: those that failed, producers whose results they miss, and readers of
        results of such regions.

        Args:
            failed: the regions that failed.
            is_gone: whether a region has finished, but its results are no more.
            has_begun: whether a region has attempts.
        """
        found: set[int] = set()
        waiting = list(failed)
        while waiting:
            region = waiting.pop()
            if region in found:
                continue
            found.add(region)
            waiting += [producer for producer in self.producers[region] if is_gone(producer)]
            waiting += [consumer for consumer in self.consumers[region] if has_begun(consumer)]
        return found
