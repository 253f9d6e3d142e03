"""How long a job goes on without a sign of life from its client, or after its client has left.

Side:   loop.
Units:  seconds.
Source: Flink ``Dispatcher.checkJobClientAliveness``.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from flowlet.messages.control_messages import JobGraphMessage
from flowlet.rpc.front_door import LoopClock
from netstack.flow.heartbeats import Silence

LEFT_S: Final = 5.0  # a tunnel that is started again, a client that dials anew after a second; not measured


class ClientLease:
    """Calls ``on_expired`` once, when it was not renewed for ``timeout_s``.

    Time in which the loop stood still does not count.

    The client keeps a request open all the time (``clientHeartbeat``).  If its connection ends, the client has ended,
    or something between them: it gets ``LEFT_S`` to come again.

    Threading: the loop of ``timers``.
    Life cycle: ``close`` it when the job ends.

    Args:
        timeout_s: without a sign of life.
        timers: of the loop.
        on_expired: gets whether the client has left.
    """

    def __init__(self, timeout_s: float, timers: LoopClock, on_expired: Callable[[bool], None]) -> None:
        self.timeout_s = timeout_s
        self._timers = timers
        self._on_expired = on_expired
        self._has_left = False
        self._silence = Silence(timeout_s, timers.time())
        self._timer: asyncio.TimerHandle | None = self._look_later()

    def __repr__(self) -> str:
        state = "over" if self._timer is None else f"not renewed for {self._silence.silent_s:.1f} s"
        return f"<ClientLease of {self.timeout_s:g} s, {state}>"

    def renew(self) -> None:
        """The client is there."""
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
        if self._silence.look(self._timers.time()):
            self._timer = None
            self._on_expired(self._has_left)
        else:
            self._timer = self._look_later()


def client_lease(job: JobGraphMessage, timers: LoopClock | None, cancel: Callable[[str], object]) -> ClientLease | None:
    """The lease of a job's client, after which ``cancel`` gets the reason; None: the job needs no client."""
    timeout_ms = job.client_heartbeat_timeout_ms
    if timeout_ms is None:
        return None
    timeout_s = timeout_ms / 1000

    def expired(has_left: bool) -> None:  # noqa: FBT001 - called by the lease
        what = (
            "its client has ended, or its connection has"
            if has_left
            else f"no sign of life from its client for {timeout_s:g} s"
        )
        cancel(f"{what} (client.heartbeat.timeout); with execution.attached: false a job goes on without its client")

    return ClientLease(timeout_s, timers or asyncio.get_running_loop(), expired)
