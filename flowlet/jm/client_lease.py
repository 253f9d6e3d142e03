"""How long a job goes on without a sign of life from its client.

Side:   loop.
Units:  seconds.
Source: Flink ``Dispatcher.checkJobClientAliveness``.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from flowlet.rpc.control_messages import JobGraphMessage
from flowlet.rpc.front_door import Timers

_STALL_S: Final = 1.0  # if our own loop was late by this much, reports may wait in the sockets: the silence proves nothing


class ClientLease:
    """Calls ``on_expired`` once, when it was not renewed for ``timeout_s``.

    Threading: the loop of ``timers``.
    Life cycle: ``close`` it when the job ends.
    """

    def __init__(self, timeout_s: float, timers: Timers, on_expired: Callable[[], None]) -> None:
        self.timeout_s = timeout_s
        self._timers = timers
        self._on_expired = on_expired
        self._deadline_s = timers.time() + timeout_s
        self._looks_at_s = self._deadline_s  # uvloop's timers do not tell when they are due
        self._timer: asyncio.TimerHandle | None = timers.call_at(self._looks_at_s, self._look)

    def __repr__(self) -> str:
        state = "over" if self._timer is None else f"{self._deadline_s - self._timers.time():.1f} s left"
        return f"<ClientLease of {self.timeout_s:g} s, {state}>"

    def renew(self) -> None:
        """The client is there."""
        self._deadline_s = self._timers.time() + self.timeout_s

    def close(self) -> None:
        """Watch no longer; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now_s = self._timers.time()
        if now_s - self._looks_at_s > _STALL_S:
            self.renew()
        if now_s >= self._deadline_s:
            self._timer = None
            self._on_expired()
        else:
            self._looks_at_s = self._deadline_s
            self._timer = self._timers.call_at(self._looks_at_s, self._look)


def client_lease(job: JobGraphMessage, timers: Timers | None, cancel: Callable[[str], object]) -> ClientLease | None:
    """The lease of a job's client, after which ``cancel`` gets the reason; None: the job needs no client."""
    timeout_ms = job.client_heartbeat_timeout_ms
    if timeout_ms is None:
        return None
    reason = (
        f"no sign of life from its client for {timeout_ms / 1000:g} s (client.heartbeat.timeout); "
        "with execution.attached: false a job goes on without its client"
    )

    def expired() -> None:
        cancel(reason)

    return ClientLease(timeout_ms / 1000, timers or asyncio.get_running_loop(), expired)
