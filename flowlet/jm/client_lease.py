"""How long a job goes on without a sign of life from its client, or after its client has left.

Side:   loop.
Units:  seconds.
Source: Flink ``Dispatcher.checkJobClientAliveness``.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from netstack.loop.eventloop import LoopClock, RunningTimer

LEFT_S: Final = 5.0  # a tunnel that is started again, a client that dials anew after a second; not measured


class ClientLease:
    """Calls ``cancel`` once, with the reason, when it was not renewed for ``timeout_s``.

    Time in which the loop stood still does not count (``RunningTimer``).

    The client keeps a request open all the time (``clientHeartbeat``).  If its connection ends, the client has ended,
    or something between them: it gets ``LEFT_S`` to come again.

    Threading: the loop of ``timers``.
    Life cycle: ``close`` it when the job ends.

    Args:
        timeout_s: without a sign of life; None: the job needs no client.
        timers: None: the running loop.
        cancel: of the job.
    """

    def __init__(self, timeout_s: float | None, timers: LoopClock | None, cancel: Callable[[str], object]) -> None:
        self._timeout_s = timeout_s
        self._timers = timers
        self._cancel = cancel
        self._timer: RunningTimer | None = None  # None: it is over, or not needed
        self._num_signs = 0  # of life
        if timeout_s is not None:
            self._wait(timeout_s, f"no sign of life from its client for {timeout_s:g} s")

    def __repr__(self) -> str:
        return f"<ClientLease of {self._timeout_s} s, {self._timer or 'over'}>"

    def renew(self) -> int:
        """Note that the client is there; returns the number of this sign of life."""
        self._num_signs += 1
        # None once the job has ended: a report that comes late must not set a timer again.
        if self._timer is not None and self._timeout_s is not None:
            self._wait(self._timeout_s, f"no sign of life from its client for {self._timeout_s:g} s")
        return self._num_signs

    def client_left(self, sign: int) -> None:
        """Note that the connection has ended over which the client gave this sign of life."""
        # Its next request may be there already: the end of a connection that was cut on its way is noticed late.
        is_newest = sign == self._num_signs
        if is_newest and self._timer is not None and self._timeout_s is not None:
            # At most the timeout that the user set, which may be shorter.
            self._wait(min(LEFT_S, self._timeout_s), "its client has ended, or its connection has")

    def close(self) -> None:
        """Watch no longer; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, delay_s: float, what: str) -> None:
        self.close()
        self._timer = RunningTimer(self._timers or asyncio.get_running_loop(), delay_s, lambda: self._expired(what))

    def _expired(self, what: str) -> None:
        # First: a cancel that ends the job calls ``close``.
        self._timer = None
        self._cancel(
            f"{what} (client.heartbeat.timeout); with execution.attached: false a job goes on without its client"
        )
