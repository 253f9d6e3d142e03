"""A clock that moves only when a test says so.

Side:  any.
Units: nanoseconds.
"""


class ManualClock:
    """Stands in for ``time.monotonic_ns``.

    Threading: one thread at a time.
    """

    __slots__ = ("_now_ns",)

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def __repr__(self) -> str:
        return f"<ManualClock at {self._now_ns} ns>"

    def now_ns(self) -> int:
        """The time in nanoseconds."""
        return self._now_ns

    def advance(self, duration_ns: int) -> None:
        """Move the time forward; raises ValueError for a negative ``duration_ns``."""
        if duration_ns < 0:
            raise ValueError(f"time cannot go back by {-duration_ns} ns")
        self._now_ns += duration_ns
