"""``JobManager``: serves REST clients and TaskManagers on one port.

Side:       loop.
Invariants: listens on loopback only; when idle it wakes only for heartbeats.
Source:     Flink ``ClusterEntrypoint``, ``DispatcherRestEndpoint``.
"""

import asyncio
import importlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlet.checkpoint.jobmanager.job_store import JobKeeper, JobStore, Recovery, job_store_key
from flowlet.errors import ConfigError, FlowletError, StorageError
from flowlet.jm.dispatcher import Dispatcher
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.jm.rest import RestApi
from flowlet.rpc.front_door import DoorLimits, FrontDoor
from flowlet.rpc.local_rpc import LocalServer
from flowlet.rpc.requests import WallClock, wall_clock_ms
from flowlet.shipping.bundle_store import FileKeeper, PartStore
from flowlet.storage.state_files import WorkingDirectory
from netstack.config import check_loopback
from netstack.errors import ConfigError as NetstackConfigError
from netstack.log_lines import LogLines
from netstack.loop.background_call import call_in_background, close_in_background, run_in_background
from netstack.loop.forks import PortClosedInChildren
from netstack.transport.socket_options import within_descriptors

if TYPE_CHECKING:
    from aiohttp import web

_BACKLOG = 100  # connections that the kernel keeps until they are accepted; asyncio's default
# When the JobManager stops and its jobs have been cancelled: how long requests and WebSockets may take to end.
_HANDLER_TIMEOUT_S = 0.3  # aiohttp waits this long twice: before and after it cancels
_LINGERING_TIME_S = 1.0
_KEEPALIVE_TIMEOUT_S = 75.0
log = LogLines(__name__)


class JobManager:
    """A JobManager on a loop of this process.

    Threading: ``start`` and ``close`` on one loop; everything else happens there, too.
    Life cycle: ``start`` once, ``close`` once or more.
    """

    def __init__(self, config: JobManagerConfig, *, clock: WallClock = wall_clock_ms) -> None:
        self._config = config
        self._clock = clock
        self._web: _WebServer | None = None
        self._local: LocalServer | None = None
        self._door: FrontDoor | None = None
        self._server: asyncio.Server | None = None
        self._address: tuple[str, int] | None = None
        self._in_children: PortClosedInChildren | None = None
        self._jm_id = os.urandom(8).hex()
        self._store = None if config.job_store is None else JobStore(config.job_store, job_store_key(config.secret))
        self.dispatcher = Dispatcher(config, clock, JobKeeper(self._store, call_in_background))
        self._temporary = WorkingDirectory(purpose="jobmanager", advice="set TMPDIR to another directory")
        max_bytes = config.max_shipped_mebibytes * 1024**2
        self._files = FileKeeper(
            PartStore(self._directory_of_files),
            run_in_background,
            lambda: (master.job.code.files for master in self.dispatcher.jobs.values() if not master.is_ended),
            max_bytes,
        )

    def __repr__(self) -> str:
        return f"<JobManager {'closed' if self._address is None else self._address} {self.dispatcher!r}>"

    async def start(self, host: str = "127.0.0.1", port: int = 0, *, expects_strangers: bool = True) -> tuple[str, int]:
        """Read the job store, if there is one, then listen; return the host and port bound (``port=0`` picks a free
        one).

        ``expects_strangers`` False: nobody may ever connect, so what serves HTTP is imported for the first connection.

        Raises:
            ConfigError: this is no loopback address, the port cannot be bound, or the job store cannot be used.
        """
        assert self._web is None, "started once"
        try:
            check_loopback(host)
        except NetstackConfigError as error:
            raise ConfigError(str(error)) from error
        recovery = Recovery() if self._store is None else await self._read(self._store)
        try:
            return await self._listen(host, port, recovery, expects_strangers=expects_strangers)
        # The lock of the store ends with it: another JobManager may use the directory.
        except BaseException:
            if self._store is not None:
                self._store.close()
            raise

    def _directory_of_files(self) -> Path:
        """Return the directory of shipped files; with a job store they outlive this process, as the jobs do."""
        if self._config.job_store is not None:
            return self._config.job_store / "files"
        try:
            return self._temporary.path()
        except FlowletError as error:
            raise StorageError(str(error)) from error

    async def _read(self, store: JobStore) -> Recovery:
        """Read the job store; on another thread, because a file server may take its time."""

        def lock_and_read() -> Recovery:
            store.lock(self._config.job_store_lock_s)
            try:
                return store.load(self._config.checkpoint_key)
            # On the thread that took the lock: the caller may have been cancelled, and would not know of it.
            except BaseException:
                store.close()
                raise

        try:
            return await run_in_background(lock_and_read, "job store")  # a signal to this process ends it, too
        except StorageError as error:
            raise ConfigError(str(error)) from error

    async def _listen(self, host: str, port: int, recovery: Recovery, *, expects_strangers: bool) -> tuple[str, int]:
        api = RestApi(self.dispatcher, self._config, self._jm_id, self._clock, self._files)
        web = _WebServer(api)
        if expects_strangers:
            await web.start()
        loop, config = asyncio.get_running_loop(), self._config
        max_strangers = within_descriptors(config.max_unproved_connections)
        limits = DoorLimits(
            max_strangers, config.max_unproved_connections_per_host, config.proof_timeout_s, config.dead_host_timeout_s
        )
        self._door = FrontDoor(api.protection, web.make_protocol, limits, loop, web.prepare)
        try:
            # Bound, not serving: the first request must find the recovered jobs.
            self._server = await loop.create_server(
                self._door, host, port, backlog=min(_BACKLOG, max_strangers), start_serving=False
            )
        except (OSError, OverflowError) as error:
            await web.close()
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise ConfigError(f"cannot listen on {host}:{port}: {reason}") from error
        self._web = web
        self._local = LocalServer(api.routes(), api.serve_session)
        self._address = self._server.sockets[0].getsockname()[:2]
        self._in_children = PortClosedInChildren(self._address[1])
        self.dispatcher.recover(recovery)  # before anybody asks for a job
        await self._server.start_serving()
        log.info("JobManager started", address=f"{self._address[0]}:{self._address[1]}", jm_id=self._jm_id)
        return self._address

    @property
    def local(self) -> LocalServer:
        """The server for this process and its children, without HTTP.  Between ``start`` and ``close``."""
        assert self._local is not None, "start() made it"
        return self._local

    async def close(self) -> None:
        """Cancel the jobs, close the TaskManagers' sessions and stop listening; takes at most 2 s; idempotent.

        With a job store the jobs are not cancelled: the next JobManager with this store goes on with them.
        """
        # Taken in one step: a second call, while this one waits, does nothing.
        web, self._web = self._web, None
        if web is None:
            return
        assert self._server is not None, "start() set it"
        assert self._door is not None, "start() set it"
        # First: a TaskManager whose session ends below would open another one.
        self.local.refuse_sessions()
        await self.dispatcher.close()
        # Behind the sessions: clients that wait for the end of a job still get their answer.
        self._server.close()
        self._door.close()
        # waits for requests; ended by these timeouts
        await asyncio.gather(web.close(), self.local.close(_HANDLER_TIMEOUT_S))
        if self._in_children is not None:
            self._in_children.release()
        if self._store is not None:
            self._store.close()
        await close_in_background(self._temporary.close, "files of the JobManager")
        self._address = None
        log.info("JobManager stopped", jm_id=self._jm_id)


class _WebServer:
    """The HTTP server behind the front door.  Threading: the loop.  Life cycle: ``close`` it."""

    def __init__(self, api: RestApi) -> None:
        self._api = api
        self._runner: web.AppRunner | None = None  # once it is started
        self._starting: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<_WebServer {'not needed yet' if self._runner is None else 'on'}>"

    async def start(self) -> None:
        """Import the HTTP server's modules, and make it."""
        aiohttp_web: Any = importlib.import_module("aiohttp.web")
        runner = aiohttp_web.AppRunner(
            self._api.create_application(),
            access_log=None,
            handler_cancellation=True,  # a long poll whose client has disconnected ends at once
            shutdown_timeout=_HANDLER_TIMEOUT_S,
            keepalive_timeout=_KEEPALIVE_TIMEOUT_S,
            lingering_time=_LINGERING_TIME_S,
        )
        await runner.setup()
        self._runner = runner

    def prepare(self, when_ready: Callable[[], None]) -> None:
        """Call ``when_ready`` when ``make_protocol`` may be called: at once, or when the import is over."""
        if self._runner is not None:
            when_ready()
            return
        # One import for all connections that come meanwhile.
        if self._starting is None:
            self._starting = asyncio.create_task(self._start_late(), name="start of the web server")
        self._starting.add_done_callback(partial(_unless_failed, when_ready))

    async def _start_late(self) -> None:
        # On another thread, so that the loop goes on meanwhile: it takes a third of a second.
        await run_in_background(lambda: importlib.import_module("aiohttp.web"), "import of aiohttp")
        await self.start()

    def make_protocol(self) -> asyncio.Protocol:
        """Make the protocol of a connection whose peer has proved something."""
        assert self._runner is not None, "prepare() said so"
        assert self._runner.server is not None, "setup() made it"
        return self._runner.server()

    async def close(self) -> None:
        """Give requests and WebSockets a moment, then end them."""
        # First: a start that is under way would make a runner behind this.
        if self._starting is not None:
            self._starting.cancel()
            # waits for a cancelled task; ended by its next step
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()


def _unless_failed(when_ready: Callable[[], None], started: "asyncio.Task[None]") -> None:
    if started.cancelled():
        return  # the JobManager closes
    if (error := started.exception()) is not None:
        log.error("the web server cannot start", reason=f"{type(error).__name__}: {error}")
        return
    when_ready()
