"""How long a job goes on without a sign of life from its client, or after its client has left.

Side:   loop.
Units:  seconds.
Source: Flink ``Dispatcher.checkJobClientAliveness``.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from flowlet.rpc.front_door import LoopClock
from netstack.flow.heartbeats import Silence

LEFT_S: Final = 5.0  # a tunnel that is started again, a client that dials anew after a second; not measured


class ClientLease:
    """Calls ``cancel`` once, with the reason, when it was not renewed for ``timeout_s``.

    Time in which the loop stood still does not count.

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
        self._cancel = cancel
        self._has_left = False
        self._timer: asyncio.TimerHandle | None = None  # None: it is over, or not needed
        if timeout_s is not None:
            self._timers = timers or asyncio.get_running_loop()
            self._silence = Silence(timeout_s, self._timers.time())
            self._timer = self._look_later()

    def __repr__(self) -> str:
        state = "over" if self._timer is None else f"not renewed for {self._silence.silent_s:.1f} s"
        return f"<ClientLease of {self._timeout_s} s, {state}>"

    def renew(self) -> None:
        """The client is there."""
        if self._timer is not None:
            self._has_left = False
            self._silence.heard(self._timers.time())

    def client_left(self) -> None:
        """The client's connection has ended."""
        if self._timer is not None:
            self._has_left = True
            self._timer.cancel()
            self._silence.heard(self._timers.time())
            self._silence.hasten(LEFT_S)
            self._timer = self._look_later()

    def close(self) -> None:
        """Watch no longer; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> asyncio.TimerHandle:
        return self._timers.call_at(self._timers.time() + self._silence.next_look_s, self._look)

    def _look(self) -> None:
        if not self._silence.look(self._timers.time()):
            self._timer = self._look_later()
            return
        self._timer = None
        what = f"no sign of life from its client for {self._timeout_s:g} s"
        if self._has_left:
            what = "its client has ended, or its connection has"
        self._cancel(
            f"{what} (client.heartbeat.timeout); with execution.attached: false a job goes on without its client"
        )
