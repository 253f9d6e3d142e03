"""The TaskManager's control connection: one signed WebSocket to the JobManager, reopened whenever it is lost.

Side:       loop.
Invariants: at most one session at a time; a session begins with the registration.  Messages are dropped while there is
            no session, because a JobManager that lost a TaskManager has failed its tasks already.  A session loses no
            message: one that finds no room in the queue ends the session.
Source:     Flink ``RegisteredRpcConnection``, ``TaskExecutorToJobManagerHeartbeat``, over WebSocket in place of Pekko.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import TYPE_CHECKING, Final

import msgspec

from flowlet.errors import FlowletError
from flowlet.messages import control_messages as messages
from flowlet.rpc.auth import AuthenticationError
from flowlet.rpc.requests import (
    Outbox,
    RpcConnectError,
    RpcGateway,
    RpcStatusError,
    SessionEndedError,
    SessionTransport,
    receive_in_time,
)
from netstack.flow.heartbeats import Backoff, Silence
from netstack.late import dataclass
from netstack.log_lines import LogLines

if TYPE_CHECKING:
    from flowlet.tm.task_executor import TaskExecutor

_log = LogLines(__name__)

_DECODER: "Final[msgspec.msgpack.Decoder[messages.ToTaskManager]]" = msgspec.msgpack.Decoder(
    messages.union_of(messages.ToTaskManager)
)
DEFAULT_GIVE_UP_AFTER_S: Final = 300.0  # Flink's taskmanager.registration.timeout
_MAX_QUEUED_MESSAGES: Final = 10_000  # tasks send a few per second: if this many wait, the JobManager does not read
# A heartbeat reads the tasks' gauges, whose maxima are of the last 5 s (``TimerGauge``); rarer ones would miss some.
# It also tells the JobManager which tasks wait for a client.
_REPORT_INTERVAL_S: Final = 1.0
_STALL_S: Final = 1.0  # a pause that ends this late does not count as time without a JobManager
_IDLE_HEARTBEAT_FACTOR: Final = 2  # without tasks there is little to report
_MS_PER_S: Final = 1000


def heartbeat_interval_s(wanted_ms: int) -> float:
    """Return the interval of heartbeats: as the JobManager wants, or shorter because they carry the tasks' metrics."""
    return min(wanted_ms / _MS_PER_S, _REPORT_INTERVAL_S)


class JobManagerUnreachableError(FlowletError):
    """No JobManager was reached for ``give_up_after_s``."""


@dataclass(frozen=True, slots=True)
class ReconnectConfig:
    """The settings of reconnecting to the JobManager."""

    first_pause_s: float = 0.1  # Flink's cluster.registration.initial-timeout
    longest_pause_s: float = 5.0
    give_up_after_s: float = DEFAULT_GIVE_UP_AFTER_S
    welcome_timeout_s: float = 50.0  # from the registration to the JobManager's answer; Flink's heartbeat.timeout, too


@dataclass(slots=True, eq=False)
class JobManagerConnection:
    """Keeps a session with the JobManager.

    Life cycle: ``run`` in an asyncio task; to end the session, cancel that task.
    """

    rpc: RpcGateway
    registration: messages.RegisterTaskManager
    listener: "TaskExecutor"  # carries out orders, makes heartbeats, and hears of sessions
    reconnect: ReconnectConfig
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    _outbox: Outbox | None = field(init=False, default=None)  # None while there is no session
    _last_contact: float = field(init=False, default=0.0)
    _has_registered: bool = field(init=False, default=False)

    def __repr__(self) -> str:
        return f"<JobManagerConnection {'off' if self._outbox is None else f'on, {self._outbox!r}'}>"

    def send(self, message: messages.ToJobManager) -> None:
        """Queue a message; dropped if there is no session.

        A message that finds no room ends the session, as the JobManager does when its own queue is full: a job whose
        final task state was lost would run for ever, while a JobManager that loses the session starts the tasks again.
        """
        if self._outbox is not None:
            self._outbox.send(message)

    async def run(self) -> None:
        """Register and serve the session, again and again.

        Raises:
            FlowletError: the JobManager refused this TaskManager: trying again does not help.
            AuthenticationError: TaskManager and JobManager have different secrets.  Not after the first session:
                a peer that answers without a proof then is another process, on the port of a JobManager that is gone,
                and must not end this one.  Before it, nothing tells such a process from a JobManager with another
                secret.  The latter is a mistake of the person who starts this TaskManager, who must hear of it at once;
                and a stranger who holds the port keeps the JobManager from it anyway.
            JobManagerUnreachableError: no JobManager was reached for ``give_up_after_s``.
        """
        clock = self.clock
        backoff_s = Backoff(self.reconnect.first_pause_s, self.reconnect.longest_pause_s)
        pauses_s = backoff_s.delays()
        self._last_contact = clock()
        while True:
            contact_before = self._last_contact
            reason = await self._try_session()
            if self._last_contact != contact_before:  # it had registered: only such a session sets the time
                pauses_s = backoff_s.delays()
                _log.info("lost the JobManager", reason=reason)
                await self.listener.session_lost(reason)
                self._last_contact = clock()  # tasks that ended late are no fault of the JobManager's
            without_s = clock() - self._last_contact
            if without_s > self.reconnect.give_up_after_s:
                raise JobManagerUnreachableError(f"no JobManager for {without_s:.0f} s, giving up: {reason}")
            pause_s = next(pauses_s)
            _log.info("no JobManager yet, trying again", reason=reason, pause_s=pause_s)
            slept_from_s = clock()
            await self.sleep(pause_s)
            late_s = clock() - slept_from_s - pause_s
            if late_s > _STALL_S:
                # This process or its machine stood still: that says nothing about the JobManager.
                self._last_contact += late_s

    async def _try_session(self) -> str:
        """Run one session; return the reason why it ended."""
        try:
            socket = await self.rpc.open_session()
            reason = "the TaskManager is stopping"
            try:
                reason = await self._serve(socket)
            finally:
                await socket.close(reason)
        except (RpcConnectError, RpcStatusError, OSError) as error:
            return str(error) or type(error).__name__
        except AuthenticationError as error:
            if not self._has_registered:
                raise
            return str(error)
        finally:
            self._outbox = None
        return f"the JobManager's session ended: {reason}"

    async def _serve(self, socket: SessionTransport) -> str:
        # The kernel takes it, whether the JobManager reads or not.
        await socket.send(msgspec.msgpack.encode(self.registration))
        outbox: Outbox | None = None
        heartbeats: asyncio.Task[None] | None = None
        silence = Silence(self.reconnect.welcome_timeout_s, self.clock())
        try:
            while True:
                message = _DECODER.decode(await receive_in_time(socket, silence, self.clock))
                match message:
                    case messages.Registered():
                        outbox, heartbeats = self._begin(socket, message)
                        silence = Silence(message.heartbeat_timeout_ms / _MS_PER_S, self.clock())
                    case messages.JobManagerHeartbeat():
                        pass  # any message is a sign of life
                    case messages.RegistrationRefused(reason=reason):
                        raise FlowletError(f"the JobManager refused this TaskManager: {reason}")
                    case _:
                        self.listener.handle(message)
        except SessionEndedError as error:
            return (None if outbox is None else outbox.end_reason) or str(error)
        except msgspec.MsgspecError as error:
            return f"it sent a message that is not understood: {error}"
        finally:
            if outbox is not None and heartbeats is not None:
                self._last_contact = self.clock()
                heartbeats.cancel()
                await asyncio.wait([heartbeats])  # waits for the cancelled task; ended by its next step
                await outbox.end()

    def _begin(self, socket: SessionTransport, welcome: messages.Registered) -> tuple[Outbox, asyncio.Task[None]]:
        self._last_contact = self.clock()
        self._has_registered = True
        outbox = Outbox(socket, _MAX_QUEUED_MESSAGES, own="the TaskManager's side", peer="the JobManager")
        outbox.start("control messages")
        self._outbox = outbox
        self.listener.registered(welcome.jm_id)
        interval_s = heartbeat_interval_s(welcome.heartbeat_interval_ms)
        return outbox, asyncio.create_task(self._send_heartbeats(outbox, interval_s), name="heartbeats")

    async def _send_heartbeats(self, outbox: Outbox, interval_s: float) -> None:
        try:
            while True:
                heartbeat = self.listener.heartbeat()
                outbox.send(heartbeat)
                await asyncio.sleep(interval_s if heartbeat.tasks else interval_s * _IDLE_HEARTBEAT_FACTOR)
        except Exception as error:  # noqa: BLE001 - the top of an asyncio task: else the session would look alive
            _log.exception("a helper of the control connection failed")
            outbox.close(f"the TaskManager's side failed: {type(error).__name__}: {error}")
