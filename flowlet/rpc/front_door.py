"""The front door before aiohttp: connections whose peer has proved nothing yet.

Side:       loop.
Invariants: aiohttp sees a connection only once the head of its first request is signed; before that it has a
            descriptor, this small object and at most 4 KiB of its head, and no task.  At most ``max_connections`` wait
            here, ``max_per_host`` of them from one address other than loopback, none longer than ``timeout_s`` while
            this process runs; the oldest is cut for a new one.
Rules:      refused requests, and ``/healthz``, are answered here, and the connection ends.
Absent:     deadlines for later requests on a connection whose first one was signed, but for their bodies
            (``AuthenticatingServer``); and a limit of such connections.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from http import HTTPStatus
from typing import Final, cast

from flowlet.rpc.auth import AUTH_HEADER, AcceptedRequest
from flowlet.rpc.authenticating_server import AuthenticatingServer
from flowlet.rpc.request_head import parse_head
from flowlet.rpc.requests import Response
from netstack.config import DEAD_HOST_TIMEOUT_S
from netstack.flow.admission import Admission, AdmissionStatistics, RateLimit
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.eventloop import LoopClock
from netstack.transport.socket_options import watch_host

MAX_HEAD_BYTES: Final = 4096
_END_OF_HEAD: Final = b"\r\n\r\n"
_LOGS_PER_S: Final = 1.0
_STALL_S: Final = 0.1  # no timer is so late unless the loop stands still; not measured
_UNLIMITED: Final = 2**31
_log = LogLines(__name__)


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """Limits on connections that have proved nothing."""

    max_connections: int
    max_per_host: int
    timeout_s: float
    dead_host_timeout_s: float = DEAD_HOST_TIMEOUT_S  # of all connections, those that are signed, too


@dataclass(eq=False)
class FrontDoor:
    """Makes the protocols of a server's connections: call it, as ``loop.create_server`` does.

    Threading: the loop.
    Life cycle: ``close`` once the server listens no more; it cuts those that wait.

    Args:
        protection: judges requests.
        make_protocol: makes the protocol of a connection whose first request is signed.
        prepare: called before the first protocol is made; calls back, at once or later, when one can be.
    """

    protection: AuthenticatingServer
    make_protocol: Callable[[], asyncio.Protocol]
    limits: DoorLimits
    timers: LoopClock
    prepare: Callable[[Callable[[], None]], None] = lambda when_ready: when_ready()
    # What any connection receives lies here only until ``buffer_updated`` returns, which the loop calls right after it
    # was filled.
    scratch: memoryview = field(init=False, default_factory=lambda: memoryview(bytearray(MAX_HEAD_BYTES)))
    _deadlines: "dict[_Visitor, float]" = field(init=False, default_factory=dict)  # the oldest first
    _timer: asyncio.TimerHandle | None = field(init=False, default=None)  # for the first deadline, while there is one
    _due_s: float = field(init=False, default=0.0)  # when it fires

    def __post_init__(self) -> None:
        self._admission: Admission[_Visitor] = Admission(
            max_connections=_UNLIMITED,
            max_unauthenticated=self.limits.max_connections,
            max_unauthenticated_per_host=self.limits.max_per_host,
        )
        self._logs = RateLimit(_LOGS_PER_S, self.timers.time)

    def __repr__(self) -> str:
        return f"<FrontDoor {len(self._deadlines)} waiting>"

    def __call__(self) -> asyncio.BaseProtocol:
        """Make the protocol of a new connection."""
        return _Visitor(self)

    def statistics(self) -> AdmissionStatistics:
        """Return the numbers of connections that wait now, and of connections that were cut for others."""
        return self._admission.statistics()

    def close(self) -> None:
        """Cut all waiting connections."""
        if self._timer is not None:
            self._timer.cancel()
        # A copy: each leaves the table.
        for visitor in list(self._deadlines):
            self.leave(visitor)
            visitor.abort()

    def arrive(self, visitor: "_Visitor", host: str) -> None:
        """Count a new connection, and cut another one for it if there are too many."""
        for each in self._admission.arrive(visitor, host) or ():
            self._cut(each, "too many connections have proved nothing yet")
        self._deadlines[visitor] = self.timers.time() + self.limits.timeout_s
        self._set_timer()

    def leave(self, visitor: "_Visitor") -> None:
        """Forget a connection; a second call does nothing."""
        self._admission.leave(visitor)
        self._deadlines.pop(visitor, None)

    def _set_timer(self) -> None:
        if self._timer is None and self._deadlines:
            self._due_s = next(iter(self._deadlines.values()))
            self._timer = self.timers.call_at(self._due_s, self._cut_late)

    def _cut_late(self) -> None:
        self._timer = None
        now_s = self.timers.time()
        late_s = now_s - self._due_s
        if late_s > _STALL_S:  # this end stood still: what they sent may wait in their sockets
            self._deadlines = dict.fromkeys(self._deadlines, now_s + self.limits.timeout_s)
        for visitor in [each for each, deadline_s in self._deadlines.items() if deadline_s <= now_s]:
            self._cut(visitor, f"no signed request within {self.limits.timeout_s:g} s")
        self._set_timer()

    def _cut(self, visitor: "_Visitor", reason: str) -> None:
        self.leave(visitor)
        if not visitor.is_answered and self._logs.take():
            _log.warning("a connection was cut", reason=reason, peer=visitor.peer, waiting=len(self._deadlines))
        visitor.abort()


class _Visitor(asyncio.BufferedProtocol):
    """One connection until the head of its first request is whole."""

    __slots__ = ("_door", "_head", "_transport", "is_answered")

    def __init__(self, door: FrontDoor) -> None:
        self._door = door
        self._head = b""
        self._transport: asyncio.Transport | None = None  # None: not connected yet, or lost
        self.is_answered = False

    @property
    def peer(self) -> str:
        """The peer's address, for logs."""
        return str(None if self._transport is None else self._transport.get_extra_info("peername"))

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of a TCP server; uvloop's are no subclass
        sock = transport.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):  # the peer is gone; the next read finds out
                watch_host(sock, self._door.limits.dead_host_timeout_s)
        self._door.arrive(self, str((transport.get_extra_info("peername") or ("",))[0]))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._door.leave(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._door.scratch[: MAX_HEAD_BYTES - len(self._head)]

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_answered:
            return  # the rest of the refused request: if nobody read it, the kernel would drop our answer
        self._head += self._door.scratch[:nbytes]
        end = self._head.find(_END_OF_HEAD)
        if end >= 0:
            self._admit(self._head[:end])
        elif len(self._head) == MAX_HEAD_BYTES:
            self._answer(self._refusal(431, f"the head of a request may have {MAX_HEAD_BYTES} bytes"))

    def _admit(self, data: bytes) -> None:
        assert self._transport is not None, "it has just received something"
        address = self._transport.get_extra_info("sockname")
        # The peer is gone, and the loop could not ask for the address any more: there is nobody to answer.
        if address is None:
            self._transport.abort()
            return
        head = parse_head(data, AUTH_HEADER, (address[0], address[1]))
        verdict = (
            self._refusal(400, "this is no request of HTTP/1.1")
            if head is None
            else self._door.protection.judge(head, remember=False)
        )
        if isinstance(verdict, AcceptedRequest):
            # Its peer has proven itself: from here on it counts no more, and has no deadline.
            self._door.leave(self)
            # A loop may decide how it reads (into a buffer of the protocol's, or not) when reading begins.
            self._transport.pause_reading()
            self._door.prepare(self._enter)
        else:
            self._answer(verdict)

    def _enter(self) -> None:
        transport = self._transport
        if transport is None:  # the peer has left meanwhile
            return
        protocol = self._door.make_protocol()
        transport.set_protocol(protocol)
        # Before reading goes on: the first bytes must find the protocol ready.
        protocol.connection_made(transport)
        transport.resume_reading()
        # The head was taken out of the socket: aiohttp has to see it, too.
        protocol.data_received(self._head)

    def _refusal(self, status: int, reason: str) -> Response:
        return self._door.protection.refused(status, reason, peer=self.peer)

    def _answer(self, answer: Response) -> None:
        assert self._transport is not None, "it has just received something"
        body = answer.body or b""
        self.is_answered, self._head = True, b""
        lines = [
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *(f"{name}: {value}" for name, value in answer.headers.items()),
        ]
        self._transport.write("\r\n".join(lines).encode() + _END_OF_HEAD + body)
        try:
            self._transport.write_eof()
        except (OSError, RuntimeError):
            # ENOTCONN: the peer is gone already, as in ``NetworkChannel``; RuntimeError: the transport knows it.
            self._transport.abort()
