"""How many records a reader may give just now: ``RecordRateLimit`` and what it can be.

Side:       pure.
Invariants: over any time, a reader gives at most its share of the rate for that time, plus that of one second, which it
            saves up while the tasks behind it are slow.
Units:      nanoseconds of a monotonic clock; records per second.
Source:     Flink ``GuavaRateLimiter``, ``GatedRateLimiter``, without a thread that waits.
"""

from typing import Final, Protocol

_NS_PER_SECOND: Final = 1_000_000_000
# Records of a rate come in small groups: a wakeup costs far more than a record.
_MIN_PAUSE_NS: Final = 10_000_000


class RecordRateLimit(Protocol):
    """The limit of one reader.  Threading: task thread."""

    def allowed(self, now_ns: int) -> int:
        """How many records may be given now."""

    def take(self, num_records: int) -> None:
        """So many were given, at most what was allowed."""

    def pause_ns(self, now_ns: int) -> int | None:
        """How long to wait until more is allowed; None: until ``checkpoint_completed``."""

    def checkpoint_completed(self) -> None:
        """A checkpoint is complete."""


class RecordsPerSecond:
    """A bucket that fills with time; the first record may be given at once."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._capacity = max(per_second, 1.0)
        self._saved = 1.0
        self._since_ns: int | None = None  # when _saved was right; None: nothing was asked

    def __repr__(self) -> str:
        return f"<RecordsPerSecond {self._per_second:g}>"

    def allowed(self, now_ns: int) -> int:
        """How many records may be given now."""
        if self._since_ns is None:
            self._since_ns = now_ns
        if now_ns > self._since_ns:  # the clock may stand still while the task is held back
            grown = self._saved + (now_ns - self._since_ns) * self._per_second / _NS_PER_SECOND
            self._saved = min(grown, self._capacity)
            self._since_ns = now_ns
        return int(self._saved)

    def take(self, num_records: int) -> None:
        """So many were given."""
        self._saved -= num_records

    def pause_ns(self, now_ns: int) -> int | None:
        """Until one record is allowed, and at least 10 ms."""
        missing = 1.0 - self._saved
        return max(int(missing * _NS_PER_SECOND / self._per_second), _MIN_PAUSE_NS)

    def checkpoint_completed(self) -> None:
        """Nothing depends on it."""


class RecordsPerCheckpoint:
    """So many records until the next checkpoint is complete."""

    def __init__(self, per_checkpoint: int) -> None:
        self._per_checkpoint = per_checkpoint
        self._left = per_checkpoint

    def __repr__(self) -> str:
        return f"<RecordsPerCheckpoint {self._left} of {self._per_checkpoint} left>"

    def allowed(self, now_ns: int) -> int:
        """How many records may be given now."""
        return self._left

    def take(self, num_records: int) -> None:
        """So many were given."""
        self._left -= num_records

    def pause_ns(self, now_ns: int) -> int | None:
        """No time is known."""
        return None

    def checkpoint_completed(self) -> None:
        """All of them may be given again."""
        self._left = self._per_checkpoint
