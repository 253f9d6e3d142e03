"""Measures how long mails wait, how many run, and how many are queued.

Side:       shared.  The mailbox thread measures, a timer's thread posts, any thread reads.
Invariants: at most one measuring mail or one timer is pending, so they do not pile up in a stuck task.  A reader gets
            one consistent tuple, which a single attribute store replaces.
Units:      nanoseconds of a monotonic clock inside; milliseconds and mails per second outside.
Source:     Flink ``MailboxMetricsController`` (one measuring mail per second, a histogram of the last 60),
            ``MeterView`` for ``mailboxMailsPerSecond``, ``mailboxLatencyMs``, ``mailboxQueueSize``.  No thread updates
            meters here: measuring mails take the samples, and a reader adds the time since the last one.
"""

from collections.abc import Callable

from flowlet.mailbox.task_mailbox import MIN_PRIORITY, Mail, TaskMailbox
from netstack.late import dataclass
from netstack.timers import Cancellable, ScheduleTimer

# Flink's ``MailboxMetricsController``: one value per second, 60 values.
MEASUREMENT_INTERVAL_MS = 1_000
NUM_SAMPLES = 60
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_METER_WINDOW_NS = 60 * _NS_PER_S  # as Flink's ``MeterView``


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """How long the last measuring mails waited, in milliseconds; zeros if there were none."""

    count: int
    min_ms: float
    max_ms: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class MailboxMetrics:
    """Flink's ``mailboxMailsPerSecond``, ``mailboxLatencyMs`` and ``mailboxQueueSize`` of one task."""

    mails_per_second: float
    latency: LatencyHistogram
    queue_size: int


def histogram_of(latencies_ns: tuple[int, ...]) -> LatencyHistogram:
    """Summarise nanoseconds; a percentile p is the smallest value that at least p percent of the
    values do not exceed.
    """
    if not latencies_ns:
        return LatencyHistogram(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    ordered = sorted(latencies_ns)

    def percentile_ms(percent: int) -> float:
        return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] / _NS_PER_MS

    mean_ms = sum(ordered) / len(ordered) / _NS_PER_MS
    return LatencyHistogram(
        count=len(ordered),
        min_ms=ordered[0] / _NS_PER_MS,
        max_ms=ordered[-1] / _NS_PER_MS,
        mean_ms=mean_ms,
        p50_ms=percentile_ms(50),
        p95_ms=percentile_ms(95),
        p99_ms=percentile_ms(99),
    )


class LatencyProbe:
    """Posts a mail to itself at intervals and measures how long it waits.

    Threading: ``start`` and ``close`` on the mailbox thread, ``metrics`` on any.
    Life cycle: ``start`` once -> ``close`` in every state, any number of times.

    Args:
        mailbox: the mailbox to measure.
        num_mails_processed: returns how many mails the task has run.
        schedule_timer: calls a function after a delay in seconds, on any thread.
        clock_ns: monotonic.
        interval_ms: from the end of one measurement to the next.
    """

    def __init__(
        self,
        mailbox: TaskMailbox,
        num_mails_processed: Callable[[], int],
        schedule_timer: ScheduleTimer,
        clock_ns: Callable[[], int],
        *,
        interval_ms: int = MEASUREMENT_INTERVAL_MS,
    ) -> None:
        if interval_ms <= 0:
            raise ValueError(f"a mailbox is measured at intervals above 0 ms, not {interval_ms}")
        self._mailbox = mailbox
        self._num_mails_processed = num_mails_processed
        self._schedule_timer = schedule_timer
        self._clock_ns = clock_ns
        self._interval_s = interval_ms / 1_000
        self._latencies_ns: tuple[int, ...] = ()  # Written by the mailbox thread; replaced, never changed.
        # (time, mails so far), oldest first.  Written by the mailbox thread; replaced, never changed.
        self._samples: tuple[tuple[int, int], ...] = ((clock_ns(), num_mails_processed()),)
        self._timer: Cancellable | None = None  # Written by the mailbox thread.
        self._is_closed = False  # Written by the mailbox thread; a timer that misses it posts a mail that does nothing.

    def __repr__(self) -> str:
        return f"<LatencyProbe {len(self._latencies_ns)} samples, {'closed' if self._is_closed else 'open'}>"

    def start(self) -> None:
        """Post the first measuring mail."""
        self._post()

    def close(self) -> None:
        """Stop measuring."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _post(self) -> None:
        posted_ns = self._clock_ns()
        # The mailbox refuses the mail when the task ends; then nobody needs the measurement.
        self._mailbox.try_put_threadsafe(
            Mail(lambda: self._measure(posted_ns), MIN_PRIORITY, "measure the mailbox's latency")
        )

    def _measure(self, posted_ns: int) -> None:
        if self._is_closed:
            return
        now_ns = self._clock_ns()
        self._latencies_ns = (*self._latencies_ns, now_ns - posted_ns)[-NUM_SAMPLES:]
        self._samples = self._recent(now_ns, (*self._samples, (now_ns, self._num_mails_processed())))
        self._timer = self._schedule_timer(self._interval_s, self._post)

    def _recent(self, now_ns: int, samples: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """The samples of the last minute, at least one."""
        return tuple(sample for sample in samples[:-1] if now_ns - sample[0] <= _METER_WINDOW_NS) + samples[-1:]

    def metrics(self) -> MailboxMetrics:
        """The present values; any thread."""
        return MailboxMetrics(self._mails_per_second(), histogram_of(self._latencies_ns), self._mailbox.num_mails)

    def _mails_per_second(self) -> float:
        now_ns = self._clock_ns()
        since_ns, num_before = self._recent(now_ns, self._samples)[0]
        elapsed_ns = now_ns - since_ns
        return 0.0 if elapsed_ns <= 0 else (self._num_mails_processed() - num_before) * _NS_PER_S / elapsed_ns
