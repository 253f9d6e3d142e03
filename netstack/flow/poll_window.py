"""How long a loop keeps looking for more after data came.

Side:       pure.
Units:      nanoseconds of a monotonic clock.
Source:     the idea of Linux ``net.core.busy_poll``.
"""


class PollWindow:
    """Open from each piece of news on, for a while; shut while somebody else needs the core.

    Args:
        length_ns: how long after the last news.
    """

    __slots__ = ("_end_ns", "_is_held", "_length_ns")

    def __init__(self, length_ns: int) -> None:
        assert length_ns > 0, "a window of no length is never open"
        self._length_ns = length_ns
        self._end_ns = 0
        self._is_held = False

    def __repr__(self) -> str:
        return f"<PollWindow of {self._length_ns / 1000:g} us{', held' if self._is_held else ''}>"

    def news(self, now_ns: int) -> None:
        """Something came: more of it may follow."""
        self._end_ns = now_ns + self._length_ns

    def hold(self, *, is_held: bool) -> None:
        """Shut it, or let it be open again; from the next news on if it was shut."""
        self._is_held = is_held
        if is_held:
            self._end_ns = 0

    def is_open(self, now_ns: int) -> bool:
        """Whether to look once more before sleeping."""
        return now_ns < self._end_ns and not self._is_held
