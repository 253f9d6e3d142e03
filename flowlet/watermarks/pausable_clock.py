"""A clock that can be paused.

Side:   pure.  It reads the clock given.
Source: Flink ``PausableRelativeClock``.
"""

from collections.abc import Callable


class PausableClock:
    """Nanoseconds of the monotonic clock ``now_ns``, without pauses."""

    __slots__ = ("_now_ns", "_paused_at_ns", "_paused_ns")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._paused_ns = 0  # length of all past pauses
        self._paused_at_ns: int | None = None  # start of the present pause; None: it runs

    def __repr__(self) -> str:
        return f"<PausableClock {'stopped' if self._paused_at_ns is not None else 'running'} at {self()} ns>"

    def __call__(self) -> int:
        """The time in nanoseconds."""
        now_ns = self._now_ns() if self._paused_at_ns is None else self._paused_at_ns
        return now_ns - self._paused_ns

    def pause(self) -> None:
        """Pause; does nothing if paused."""
        if self._paused_at_ns is None:
            self._paused_at_ns = self._now_ns()

    def resume(self) -> None:
        """Continue; does nothing if running."""
        if self._paused_at_ns is not None:
            self._paused_ns += self._now_ns() - self._paused_at_ns
            self._paused_at_ns = None
