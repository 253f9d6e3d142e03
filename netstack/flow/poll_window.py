"""How long a loop polls its sockets after data arrived, before it sleeps.

Side:       pure.
Units:      nanoseconds of a monotonic clock.
Source:     the idea of Linux ``net.core.busy_poll``.
"""


class PollWindow:
    """Open for ``length_ns`` after each arrival of data; shut while another thread needs the core."""

    __slots__ = ("_end_ns", "_is_held", "_length_ns")

    def __init__(self, length_ns: int) -> None:
        assert length_ns > 0, "a window of no length is never open"
        self._length_ns = length_ns
        self._end_ns = 0
        self._is_held = False

    def __repr__(self) -> str:
        return f"<PollWindow of {self._length_ns / 1000:g} us{', held' if self._is_held else ''}>"

    def news(self, now_ns: int) -> None:
        """Data arrived: open the window."""
        self._end_ns = now_ns + self._length_ns

    def hold(self, *, is_held: bool) -> None:
        """True shuts the window; False lets the next arrival open it again."""
        self._is_held = is_held
        if is_held:
            self._end_ns = 0

    def is_open(self, now_ns: int) -> bool:
        """Whether the loop shall poll once more before it sleeps."""
        return now_ns < self._end_ns and not self._is_held
