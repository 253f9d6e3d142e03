"""A clock that can be stopped.

Side:   pure.  The time comes from the clock given.
Source: Flink ``PausableRelativeClock``.
"""

from collections.abc import Callable


class PausableClock:
    """Shows how long it has run.

    Args:
        now_ns: a clock that only moves on.
    """

    __slots__ = ("_now_ns", "_paused_at_ns", "_paused_ns")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._paused_ns = 0  # in pauses that are over
        self._paused_at_ns: int | None = None  # None: it runs

    def __repr__(self) -> str:
        return f"<PausableClock {'stopped' if self._paused_at_ns is not None else 'running'} at {self()} ns>"

    def __call__(self) -> int:
        """Nanoseconds."""
        now_ns = self._now_ns() if self._paused_at_ns is None else self._paused_at_ns
        return now_ns - self._paused_ns

    def pause(self) -> None:
        """Stop; nothing if it stands."""
        if self._paused_at_ns is None:
            self._paused_at_ns = self._now_ns()

    def resume(self) -> None:
        """Go on; nothing if it runs."""
        if self._paused_at_ns is not None:
            self._paused_ns += self._now_ns() - self._paused_at_ns
            self._paused_at_ns = None
