"""``JobManager``: serves REST clients and TaskManagers on one port.

Side:       loop.
Invariants: listens on loopback only; when idle it wakes only for heartbeats.
Source:     Flink ``ClusterEntrypoint``, ``DispatcherRestEndpoint``.
"""

import asyncio
import os

from aiohttp import web

from flowlet.errors import ConfigError
from flowlet.jm.dispatcher import Dispatcher
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.jm.rest import RestApi
from flowlet.rpc.front_door import DoorLimits, FrontDoor
from flowlet.rpc.http import WallClock, wall_clock_ms
from netstack.errors import ConfigError as NetstackConfigError
from netstack.forks import PortClosedInChildren
from netstack.log_lines import LogLines
from netstack.security import check_loopback

# When the JobManager stops and its jobs have been cancelled: how long requests and WebSockets may take to end.
_HANDLER_TIMEOUT_S = 0.3  # aiohttp waits this long twice: before and after it cancels
_LINGERING_TIME_S = 1.0
_KEEPALIVE_TIMEOUT_S = 75.0
log = LogLines(__name__)


class JobManager:
    """A JobManager on a loop of this process.

    Threading: ``start`` and ``close`` on the same loop; everything else happens there, too.
    Life cycle: ``start`` once, ``close`` once or more.
    """

    def __init__(self, config: JobManagerConfig, *, clock: WallClock = wall_clock_ms) -> None:
        self._config = config
        self._clock = clock
        self._runner: web.AppRunner | None = None
        self._door: FrontDoor | None = None
        self._server: asyncio.Server | None = None
        self._address: tuple[str, int] | None = None
        self._in_children: PortClosedInChildren | None = None
        self._jm_id = os.urandom(8).hex()
        self.dispatcher = Dispatcher(config, clock)

    def __repr__(self) -> str:
        return f"<JobManager {'closed' if self._address is None else self._address} {self.dispatcher!r}>"

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        """Listen; return the host and port bound (``port=0`` picks a free one).

        Raises:
            ConfigError: this is no loopback address, or the port cannot be bound.
        """
        assert self._runner is None, "started once"
        try:
            check_loopback(host)
        except NetstackConfigError as error:
            raise ConfigError(str(error)) from error
        api = RestApi(self.dispatcher, self._config, self._jm_id, self._clock)
        runner = web.AppRunner(
            api.create_application(),
            access_log=None,
            handler_cancellation=True,  # a long poll whose client has disconnected ends at once
            shutdown_timeout=_HANDLER_TIMEOUT_S,
            keepalive_timeout=_KEEPALIVE_TIMEOUT_S,
            lingering_time=_LINGERING_TIME_S,
        )
        await runner.setup()
        assert runner.server is not None, "setup() made it"
        loop, config = asyncio.get_running_loop(), self._config
        limits = DoorLimits(config.max_unproved_connections, config.max_unproved_connections_per_host, config.proof_timeout_s)
        self._door = FrontDoor(api.protection, runner.server, limits, loop)
        try:
            self._server = await loop.create_server(self._door, host, port)
        except (OSError, OverflowError) as error:
            await runner.cleanup()
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise ConfigError(f"cannot listen on {host}:{port}: {reason}") from error
        self._runner = runner
        self._address = self._server.sockets[0].getsockname()[:2]
        self._in_children = PortClosedInChildren(self._address[1])
        log.info("JobManager started", address=f"{self._address[0]}:{self._address[1]}", jm_id=self._jm_id)
        return self._address

    async def close(self) -> None:
        """Cancel the jobs, close the TaskManagers' sessions and stop listening; takes at most 2 s; idempotent."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        assert self._server is not None, "start() set both"
        assert self._door is not None, "start() set both"
        await self.dispatcher.close()
        self._server.close()
        self._door.close()
        await runner.cleanup()
        if self._in_children is not None:
            self._in_children.release()
        self._address = None
        log.info("JobManager stopped", jm_id=self._jm_id)
