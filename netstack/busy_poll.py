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

from netstack.late import dataclass
from netstack.log_lines import shown_state
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext

_NS_PER_US = 1000


@dataclass(eq=False)
class BusyPoller:
    """Keeps one loop from sleeping for ``length_us`` after each arrival of data, unless another thread needs the core.

    Life cycle: until ``close``; afterwards ``news`` does nothing.

    Args:
        call_soon: calls a function in the loop's next turn; the loop does not sleep before such a turn.
        length_us: how long it polls.
        clock_ns: monotonic.
    """

    call_soon: Callable[[Callable[[], None]], object]
    length_us: int
    clock_ns: Callable[[], int] = time.monotonic_ns
    _end_ns: int = 0
    _is_held: bool = False
    _is_pending: bool = False
    _is_closed: bool = False
    num_looks: int = 0

    def __post_init__(self) -> None:
        assert self.length_us > 0, "without a length it never polls"

    def __repr__(self) -> str:
        state = shown_state("off", held=self._is_held, looking=self._is_pending)
        return f"<BusyPoller {state}, {self.num_looks} looks>"

    def news(self) -> None:
        """Data arrived."""
        self._end_ns = self.clock_ns() + self.length_us * _NS_PER_US
        if not self._is_pending:
            self._look()

    def hold(self, *, is_held: bool) -> None:
        """True: poll no longer, so that other threads get the core and the interpreter's lock; False: poll again after
        the next data.
        """
        self._is_held = is_held
        if is_held:
            self._end_ns = 0

    def close(self) -> None:
        """Stop polling."""
        self._is_closed = True

    def _look(self) -> None:
        self.num_looks += 1
        self._is_pending = not (self._is_closed or self._is_held) and self.clock_ns() < self._end_ns
        if self._is_pending:
            self.call_soon(self._look)


class NewsHandler(ChannelHandler):
    """Calls a function after each read of a connection, when its messages have been handled."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news

    def channel_read_complete(self, ctx: ChannelHandlerContext) -> None:
        """Pass the event on, then call: the handlers that wake tasks must come first."""
        ctx.fire_channel_read_complete()
        self._on_news()
