"""Polls the network for a moment after data arrived, before the loop sleeps, as long as that pays.

Side:       loop.
Why:        waking a sleeping loop takes two thread switches and, where its core has halted, a way through the
            hypervisor; the sender pays half of that (bench: latency).
Invariants: between two polls the loop serves its sockets, timers and handed-over functions.  At most one poll is
            pending; none is after ``close`` or after the window's length without data.  A loop without data never
            polls.
Units:      nanoseconds of a monotonic clock.
Source:     the idea of Linux ``net.core.busy_poll`` and ``SO_BUSY_POLL``.  With uvloop each poll releases the
            interpreter's lock.
"""

import time
from collections.abc import Callable

from netstack.transport.handler import ChannelHandler, ChannelHandlerContext


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


_NS_PER_US = 1000


class BusyPoller:
    """Keeps one loop from sleeping for ``length_us`` after the last data.

    Life cycle: until ``close``; afterwards ``news`` does nothing.

    Args:
        call_soon: calls a function in the loop's next turn; the loop does not sleep before such a turn.
        length_us: of the window.
        clock_ns: monotonic.
    """

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        length_us: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ):
        self._call_soon = call_soon
        self._clock_ns = clock_ns
        self._window = PollWindow(length_us * _NS_PER_US)
        self._is_pending = False
        self._is_closed = False
        self.num_looks = 0

    def __repr__(self) -> str:
        return f"<BusyPoller {'looking' if self._is_pending else 'off'}, {self._window!r}, {self.num_looks} looks>"

    def news(self) -> None:
        """Data arrived."""
        self._window.news(self._clock_ns())
        if not self._is_pending:
            self._look()

    def hold(self, *, is_held: bool) -> None:
        """True: poll no longer, so that other threads get the core and the interpreter's lock; False: poll again after
        the next data.
        """
        self._window.hold(is_held=is_held)

    def close(self) -> None:
        """Stop polling."""
        self._is_closed = True

    def _look(self) -> None:
        self.num_looks += 1
        self._is_pending = not self._is_closed and self._window.is_open(self._clock_ns())
        if self._is_pending:
            self._call_soon(self._look)


class NewsHandler(ChannelHandler):
    """Calls a function after each read of a connection, when its messages have been handled."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news

    def channel_read_complete(self, ctx: ChannelHandlerContext) -> None:
        """Pass the event on, then call: the handlers that wake tasks must come first."""
        ctx.fire_channel_read_complete()
        self._on_news()
