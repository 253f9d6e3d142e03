"""A loop that has just got data looks for more for a while before it sleeps.

Why:        to wake a loop that sleeps takes two switches between threads and, where its core has halted, the way back through the
            hypervisor; and the sender pays for half of it (bench: latency).
Side:       loop.
Invariants: between two looks the loop serves its sockets, its timers and what others handed to it; one look is pending at most, and none
            after ``close``, or when nothing came for the window's length.  A loop that gets nothing never looks.
Units:      as the names say.
Source:     the idea of Linux ``SO_BUSY_POLL``.  With uvloop each look gives up the interpreter's lock.
"""

import time
from collections.abc import Callable

from netstack.channel.handler import ChannelHandler, ChannelHandlerContext
from netstack.flow.poll_window import PollWindow

_NS_PER_US = 1000


class BusyPoller:
    """Keeps one loop from sleeping.

    Life cycle: until ``close``; afterwards news are ignored.

    Args:
        call_soon: has a function called in the loop's next turn; a turn with such a function does not sleep.
        length_us: how long after the last news.
        clock_ns: monotonic.
    """

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], length_us: int, clock_ns: Callable[[], int] = time.monotonic_ns):
        self._call_soon = call_soon
        self._clock_ns = clock_ns
        self._window = PollWindow(length_us * _NS_PER_US)
        self._is_pending = False
        self._is_closed = False
        self.num_looks = 0

    def __repr__(self) -> str:
        return f"<BusyPoller {'looking' if self._is_pending else 'off'}, {self._window!r}, {self.num_looks} looks>"

    def news(self) -> None:
        """Data came."""
        self._window.news(self._clock_ns())
        if not self._is_pending:
            self._look()

    def hold(self, *, is_held: bool) -> None:
        """Leave the core, and the interpreter's lock, to others from now on; or no longer."""
        self._window.hold(is_held=is_held)

    def close(self) -> None:
        """Look no more."""
        self._is_closed = True

    def _look(self) -> None:
        self.num_looks += 1
        self._is_pending = not self._is_closed and self._window.is_open(self._clock_ns())
        if self._is_pending:
            self._call_soon(self._look)


class NewsHandler(ChannelHandler):
    """Tells of each read of a connection, once everything that came with it has been dealt with."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news

    def channel_read_complete(self, ctx: ChannelHandlerContext) -> None:
        """Pass it on first: whoever waits for the data comes before what follows."""
        ctx.fire_channel_read_complete()
        self._on_news()
