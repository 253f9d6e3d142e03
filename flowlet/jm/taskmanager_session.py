"""The JobManager's end of one TaskManager's session, over a WebSocket, a pipe, or within one process.

Side:       loop.
Invariants: a session registers its TaskManager at most once, and ``task_manager_lost`` follows exactly when the session
            ends, for whatever reason; messages leave in the order of ``send``; ``Registered`` is the first.
Source:     Flink ``HeartbeatManager``, ``TaskExecutorRegistration``.
"""

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, Final

import msgspec

from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.messages import control_messages as messages
from flowlet.rpc.requests import POLICY_VIOLATION, Outbox, SessionEndedError, SessionTransport, receive_in_time
from netstack.flow.heartbeats import Silence
from netstack.late import dataclass
from netstack.log_lines import LogLines

if TYPE_CHECKING:
    from flowlet.jm.dispatcher import Dispatcher

# A task needs at most one deployment and one CancelTask; if this many messages wait, the TaskManager does not read.
MAX_QUEUED_MESSAGES: Final = 50_000
_REFUSAL_TIMEOUT_S: Final = 0.3
_MAX_REASON_CHARS: Final = 8 * 1024
_MS_PER_S: Final = 1000
_TM_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}", re.ASCII)

log = LogLines(__name__)
_decoder: "Final[msgspec.msgpack.Decoder[messages.ToJobManager]]" = msgspec.msgpack.Decoder(
    messages.union_of(messages.ToJobManager)
)
_encoder: Final = msgspec.msgpack.Encoder()


@dataclass(slots=True, eq=False)
class TaskManagerSession:
    """A connected TaskManager, from the handshake to the end of the connection.

    Threading: the JobManager's loop.  Life cycle: ``run`` once; the properties need a registered TaskManager.
    """

    transport: SessionTransport
    listener: "Dispatcher"  # hears of the session from its registration to its end
    config: JobManagerConfig
    jm_id: str
    peer: str | None = None  # for logs, until it has told its name
    monotonic: Callable[[], float] = time.monotonic
    _outbox: Outbox = field(init=False)
    registration: messages.RegisterTaskManager = field(init=False)  # once it has come
    _last_heard_s: float = field(init=False)
    _answered_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._outbox = Outbox(self.transport, MAX_QUEUED_MESSAGES, own="the JobManager's side", peer="it")
        self._last_heard_s = self._answered_s = self.monotonic()

    def __repr__(self) -> str:
        name = self.tm_id if hasattr(self, "registration") else "unregistered"
        return f"<TaskManagerSession {name}{'' if self._outbox.end_reason is None else ' closing'}>"

    @property
    def tm_id(self) -> str:
        """The id that the TaskManager chose for itself."""
        return self.registration.tm_id

    @property
    def silence_s(self) -> float:
        """Seconds since the TaskManager's last message."""
        return self.monotonic() - self._last_heard_s

    def send(self, message: messages.ToTaskManager) -> None:
        """Send after all earlier messages; ignored once the session has ended."""
        self._outbox.send(message)

    def close(self, reason: str) -> None:
        """End the session once all messages are sent; idempotent."""
        self._outbox.close(reason)

    async def run(self) -> None:
        """Serve the connection until it ends."""
        registration = await self._receive_registration()
        if registration is None:
            return
        self.registration = registration
        # Its form before its meaning: a wrong id must not get into the dispatcher's tables.
        refusal = check_registration(registration, self.config) or self.listener.task_manager_registered(self)
        if refusal is not None:
            await self._refuse(refusal)
            return
        config = self.config
        self.send(
            messages.Registered(self.jm_id, config.heartbeat_interval_ms, round(config.heartbeat_timeout_s * _MS_PER_S))
        )
        # Behind the first message: what the dispatcher sends from now on follows it.
        self._outbox.start(f"writer to TaskManager {self.tm_id}")
        reason = "its connection broke off"
        try:
            reason = await self._read()
        finally:
            # From here on messages in both directions are dropped: send() does nothing once there is a reason.
            self._outbox.end_reason = reason = self._outbox.end_reason or reason
            try:
                # First: its jobs fail now, not when the connection has closed.
                self.listener.task_manager_lost(self, reason)
            finally:
                try:
                    await self._outbox.end()
                finally:
                    await self.transport.close(reason)

    async def _receive_registration(self) -> messages.RegisterTaskManager | None:
        timeout_s = self.config.registration_timeout_s
        try:
            # With a limit of its own: a peer that says nothing must not hold a connection.
            message = _decoded(await self.transport.receive(timeout_s))
            if isinstance(message, messages.RegisterTaskManager):
                return message
            reason = f"the first message must be a registration, not a {type(message).__name__}"
        except TimeoutError:
            reason = f"the first message must be a registration, and none came within {timeout_s:g} s"
        except SessionEndedError as error:
            reason = str(error)
        log.warning("a TaskManager did not register", peer=self.peer, reason=reason)
        await self.transport.close(reason, code=POLICY_VIOLATION)
        return None

    async def _refuse(self, reason: str) -> None:
        log.warning("TaskManager refused", tm_id=self.tm_id[:64], reason=reason)
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(_REFUSAL_TIMEOUT_S):
                await self.transport.send(_encoder.encode(messages.RegistrationRefused(reason)))
        await self.transport.close(reason, code=POLICY_VIOLATION)

    async def _read(self) -> str:
        silence = Silence(self.config.heartbeat_timeout_s, self.monotonic())
        while True:
            try:
                message = _decoded(await receive_in_time(self.transport, silence, self.monotonic))
            except SessionEndedError as error:
                return str(error)
            # Any message is a sign of life: a TaskManager with much to report may send heartbeats late.
            self._last_heard_s = self.monotonic()
            match message:
                case messages.FromTask():
                    self.listener.handle(self, message)
                case messages.TaskManagerHeartbeat():
                    # Show that this JobManager is alive, once per interval: a TaskManager may report more often.
                    if (self._last_heard_s - self._answered_s) * _MS_PER_S >= self.config.heartbeat_interval_ms:
                        self._answered_s = self._last_heard_s
                        self.send(messages.JobManagerHeartbeat())
                    self.listener.heartbeat(self, message)
                # Its own reason is the cause; the connection's end that follows would say less.
                case messages.TaskManagerEnding(reason=reason):
                    return reason[:_MAX_REASON_CHARS]
                case messages.RegisterTaskManager():
                    return "it registered twice on one connection"
                case _:
                    return f"it sent a {type(message).__name__}, which no handler takes"


def _decoded(content: bytes) -> messages.ToJobManager:
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SessionEndedError(f"it sent an invalid message: {str(error)[:200]}") from error


def check_registration(message: messages.RegisterTaskManager, config: JobManagerConfig) -> str | None:
    """Return why this TaskManager must be refused, or None."""
    if message.protocol_version != messages.PROTOCOL_VERSION:
        return (
            f"it speaks protocol version {message.protocol_version}, this JobManager {messages.PROTOCOL_VERSION}: "
            "use the same release of flowlet"
        )
    if _TM_ID.fullmatch(message.tm_id) is None:
        return "its id must be 1 to 64 letters, digits and _ . : -"
    if not 1 <= message.num_slots <= config.max_slots_per_task_manager:
        return f"it offers {message.num_slots} slots, it must offer 1 to {config.max_slots_per_task_manager}"
    if not 1 <= message.data_port <= 65_535:
        return f"its data port is {message.data_port}, it must be 1 to 65535"
    if not 1 <= len(message.data_host) <= 255 or not message.data_host.isprintable():
        return "its data host must have 1 to 255 printable characters"
    return None
