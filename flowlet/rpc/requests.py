"""Requests to a JobManager and their answers, whatever carries them: HTTP, a pipe of a child process, or a call in this
process.

Side:       loop.
Rules:      a handler knows neither its carrier nor aiohttp.  A body is whole before its handler is called.
Absent:     signatures.  HTTP has them (``AuthenticatingServer``, ``RpcClient``); the other carriers join processes of
            one program alone.
"""

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NoReturn, Protocol, Self, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from flowlet.errors import FlowletError, JobGraphError, StorageError
from flowlet.rpc.auth import NONCE_BYTES, Nonce
from netstack.flow.heartbeats import Silence
from netstack.log_lines import LogLines

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024  # of a body, and of one message of a TaskManager's session
SESSION_PATH: Final = "/rpc/taskmanager"  # where HTTP has the session of a TaskManager
MSGPACK: Final = "application/msgpack"
JSON: Final = "application/json"
# Why a session ends, as a WebSocket says it (RFC 6455, section 7.4.1).
GOING_AWAY: Final = 1001
POLICY_VIOLATION: Final = 1008
_NS_PER_MS: Final = 1_000_000
# How long an answer may take, beyond what it waits for: as long as a sign of life (Flink's heartbeat.timeout).  A
# function may keep the interpreter's lock of either end.  A process that is gone is known at once, and a host that is
# gone after ``DEAD_HOST_TIMEOUT_S``.
ANSWER_TIMEOUT_S: Final = 50.0
DRAIN_TIMEOUT_S: Final = 1.0  # how long a session that ends may take over its last messages; not measured

_log = LogLines(__name__)
_message_encoder: Final = msgspec.msgpack.Encoder()
WallClock = Callable[[], int]
T = TypeVar("T")
Decoder = msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]


class RpcConnectError(FlowletError):
    """The server could not be reached, or the connection broke before the whole answer arrived.

    Its text has the reason; the errors of the libraries that led to it say no more, and are not its cause.
    """

    is_one_line = True


class RpcStatusError(FlowletError):
    """The server answered with an error; ``errors`` are its texts."""

    def __init__(self, status: int, errors: list[str]) -> None:
        super().__init__("; ".join(errors) or f"HTTP status {status}")
        self.status = status
        self.errors = errors


class SessionEndedError(FlowletError):
    """No more messages come; the text says why, and calls the peer "it"."""


class _ErrorBody(msgspec.Struct):
    errors: list[str]


_error_decoder: Final = msgspec.json.Decoder(_ErrorBody)


class RpcResponse(msgspec.Struct, frozen=True):
    """An answer, as its client sees it: from HTTP only with a valid proof."""

    status: int
    body: bytes

    def raise_for_status(self) -> "RpcResponse":
        """Return this answer.  Raises RpcStatusError: the status is 400 or more."""
        if self.status < 400:
            return self
        try:
            errors = _error_decoder.decode(self.body).errors
        except (msgspec.DecodeError, UnicodeDecodeError):
            errors = [self.body[:200].decode("utf-8", "replace")]
        raise RpcStatusError(self.status, errors)


# ---------------------------------------------------------------- the client's side


class SessionTransport(Protocol):
    """One end of the session between a JobManager and a TaskManager.

    Threading: the loop; one task sends and one receives.
    """

    async def send(self, content: bytes) -> None:
        """Send a message.  Raises ConnectionError: the session has ended."""

    async def receive(self, timeout_s: float | None = None) -> bytes:
        """Return the next message.

        Raises:
            TimeoutError: none came within ``timeout_s``.
            SessionEndedError: no more come.
        """

    async def close(self, reason: str, *, code: int = GOING_AWAY) -> None:
        """End the session and tell the peer why; idempotent."""


async def receive_in_time(transport: SessionTransport, silence: Silence, clock: Callable[[], float]) -> bytes:
    """Return the next message of a session.

    Raises SessionEndedError: the connection ended, or the peer was silent for too long.
    """
    while True:
        try:
            content = await transport.receive(silence.next_look_s)
        except TimeoutError:
            if silence.look(clock()):
                raise SessionEndedError(
                    f"no message from it for {silence.silent_s:.3g} s: it hangs, or a function keeps the interpreter's "
                    "lock"
                ) from None
        else:
            silence.heard(clock())
            return content


class Outbox:
    """Messages to the other end of a session, which leave in the order of ``send``.

    A session that cannot send ends: a message that finds no room, a transport that takes none, or takes too long over
    the last ones, closes the transport, whose reader then sees the end.  A session that went on would leave tasks that
    wait for ever for what was lost; one that ends starts them again.

    Threading: the loop.
    Life cycle: ``start`` once; ``end`` once the reader has seen the end.

    Args:
        transport: of the session; its owner closes it, too.
        max_messages: so many may wait; a peer for which more wait does not read.
        own: the name of this side, in reasons of ends.
        peer: the name of the other side, as above.
    """

    def __init__(self, transport: SessionTransport, max_messages: int, *, own: str, peer: str) -> None:
        self._transport = transport
        self._max_messages = max_messages
        self._own = own
        self._peer = peer
        self._messages: asyncio.Queue[msgspec.Struct | None] = asyncio.Queue()  # None: the last one was sent
        self._writer: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None  # of the last messages
        self._closer: asyncio.Task[None] | None = None
        self.end_reason: str | None = None  # why nothing more is sent; None: the session goes on

    def __repr__(self) -> str:
        return f"<Outbox {self._messages.qsize()} queued{'' if self.end_reason is None else ', closing'}>"

    def start(self, name: str) -> None:
        """Begin to send; ``name``: of the writer."""
        self._writer = asyncio.create_task(self._write(), name=name)

    def send(self, message: msgspec.Struct) -> None:
        """Send after all earlier messages; ignored once the session ends."""
        if self.end_reason is not None:
            return
        # Bounded: a peer that reads nothing would fill the memory.
        if self._messages.qsize() >= self._max_messages:
            self.close(f"{self._peer} does not read its messages, {self._max_messages} are waiting")
        else:
            self._messages.put_nowait(message)

    def close(self, reason: str) -> None:
        """End the session once all messages are sent, or the time for that is over; idempotent."""
        if self.end_reason is None:
            self.end_reason = reason
            self._messages.put_nowait(None)
            # The peer may not read, and so keep the writer for ever.
            self._deadline = asyncio.get_running_loop().call_later(DRAIN_TIMEOUT_S, self._close_transport)

    async def end(self) -> None:
        """Stop; messages that were not sent are dropped.  The caller closes the transport."""
        if self._deadline is not None:
            self._deadline.cancel()
        assert self._writer is not None, "start() made it"
        # It may wait for a peer that does not read.
        self._writer.cancel()
        # Not ``await``: the writer's cancellation would look like one of this task, which may be cancelled here, too.
        # waits for a cancelled task, and for the end of the transport; ended by their next steps, and its own deadline
        await asyncio.wait([self._writer, *([] if self._closer is None else [self._closer])])

    def _close_transport(self) -> None:
        self._closer = asyncio.create_task(self._transport.close(self.end_reason or ""), name="end of a session")

    async def _write(self) -> None:
        try:
            # waits for messages, or for the peer to read; ended by the session, or by the deadline of close()
            while (message := await self._messages.get()) is not None:
                await self._transport.send(_message_encoder.encode(message))
        except OSError as error:  # the reader sees the broken connection, too, and reports it
            _log.debug("a session takes no more messages", peer=self._peer, error=str(error))
        except Exception as error:  # noqa: BLE001 - the top of an asyncio task: else the session would look alive
            _log.exception("the writer of a session failed", peer=self._peer)
            self.end_reason = self.end_reason or f"{self._own} failed: {type(error).__name__}: {error}"
        await self._transport.close(self.end_reason or "it takes no more messages")


class RpcGateway(ABC):
    """The way from a client or a TaskManager to its JobManager.

    Threading: the loop on which it was made.  Life cycle: ``close`` it (or use ``async with``); pending requests then
        fail.
    """

    authority: str
    """``host:port`` of the JobManager."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def request(
        self, method: str, path: str, *, body: bytes = b"", timeout_s: float = ANSWER_TIMEOUT_S
    ) -> RpcResponse:
        """Send a request; return the answer, whatever its status.  ``path`` includes the query and is sent unchanged.

        Raises:
            RpcConnectError: there is no JobManager, or no answer within ``timeout_s``.
            AuthenticationError: client and JobManager have different secrets.
        """

    @abstractmethod
    async def open_session(self) -> SessionTransport:
        """Open the session of a TaskManager.

        Raises:
            RpcConnectError: there is no JobManager.
            AuthenticationError: TaskManager and JobManager have different secrets.
            RpcStatusError: the JobManager refuses it.
        """

    @abstractmethod
    async def close(self) -> None:
        """End all connections; idempotent."""


# ---------------------------------------------------------------- the JobManager's side


class Request(msgspec.Struct, frozen=True):
    """A whole request, whatever way it came."""

    raw_path: str  # the target, with the query, as it was sent
    match_info: Mapping[str, str]  # the variable parts of the path
    query: Mapping[str, str]  # the parameters; of several values the first one
    body: bytes


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    status: int = 200
    body: bytes | None = None
    content_type: str = JSON
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)  # of HTTP alone


class RequestError(FlowletError):
    """A handler refuses a request."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.http_status = status


ServeSession = Callable[[SessionTransport, str | None], Awaitable[None]]
"""Serves the session of one TaskManager until it ends; the text names its host in logs."""


class Route(msgspec.Struct, frozen=True):
    """The handler of requests with a method and a path, such as ``/jobs/{job_id}``."""

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]


def status_of(error: Exception) -> int | None:
    """Return the status of the answer to a request that this error ends; None: it is a fault of the JobManager."""
    if isinstance(error, JobGraphError):
        return 400
    if isinstance(error, StorageError):
        return 503
    status: int | None = getattr(error, "http_status", None)
    return status


def refuse(status: int, reason: str) -> NoReturn:
    """Raise the ``RequestError``."""
    raise RequestError(status, reason)


def json_response(document: object, status: int = 200) -> Response:
    """Make an answer with a document."""
    return Response(status=status, body=msgspec.json.encode(document))


def error_response(status: int, *errors: str) -> Response:
    """Make an error in the form of all errors: ``{"errors": [text, ...]}``."""
    return json_response({"errors": list(errors)}, status)


def decoded(request: Request, decoder: Decoder[T], otherwise: str, *, if_empty: bytes = b"") -> T:
    """Decode a body.  Raises RequestError: it cannot be decoded, so it is ``otherwise``."""
    try:
        return decoder.decode(request.body or if_empty)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        refuse(400, f"the body is {otherwise}: {error}")


def number_in(request: Request, name: str, default: int, *, what: str = "a number", max_digits: int = 9) -> int:
    """Read a number in the query, which is ``default`` if it is not there; -1 is a number only as the default.

    Raises RequestError: it is something else; the answer calls it ``what``.
    """
    text = request.query.get(name)
    if text is None or (text == "-1" and default == -1):
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= max_digits):
        refuse(400, f"{name} must be {what}")
    return int(text)


class Router:
    """Answers requests, whatever way they came.

    Args:
        routes: the first one that fits answers.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes: dict[int, list[tuple[list[str], Route]]] = {}  # by the number of parts of their paths
        for route in routes:
            parts = route.path.split("/")
            self._routes.setdefault(len(parts), []).append((parts, route))

    def __repr__(self) -> str:
        return f"<Router of {sum(map(len, self._routes.values()))} routes>"

    async def answer(self, method: str, target: str, body: bytes) -> Response:
        """Return the handler's answer, or that to its error (``status_of``)."""
        path, _, query = target.partition("?")
        parts = [unquote(part) for part in path.split("/")]
        is_known = False
        for template, route in self._routes.get(len(parts), ()):
            match_info = _match(template, parts)
            if match_info is None:
                continue
            # The path is right, the method perhaps not: that is another answer than 404.
            is_known = True
            if route.method != method:
                continue
            parameters = dict(reversed(parse_qsl(query, keep_blank_values=True)))
            try:
                return await route.handler(Request(target, match_info, parameters, body))
            except Exception as error:  # noqa: BLE001 - the top of a request: log it, and go on serving others
                status = status_of(error)
                if status is not None:
                    return error_response(status, str(error))
                _log.exception("request failed", method=method, path=path)
                return error_response(500, "internal error; see the JobManager's log")
        return error_response(405, "Method Not Allowed") if is_known else error_response(404, "Not Found")


def _match(template: Sequence[str], parts: Sequence[str]) -> dict[str, str] | None:
    found = {}
    for wanted, part in zip(template, parts, strict=True):
        if wanted.startswith("{"):
            if not part:
                return None
            found[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return found


# ---------------------------------------------------------------- clocks and nonces of signed requests


def wall_clock_ms() -> int:
    """Return the milliseconds since the epoch."""
    return time.time_ns() // _NS_PER_MS


def steady_clock(wall: WallClock = wall_clock_ms, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> WallClock:
    """Make a clock that shows the time of ``wall`` now, and is then neither put back nor forward."""
    # Read once: a wall clock that is set later changes no window of requests.
    offset_ns = wall() * _NS_PER_MS - monotonic_ns()
    return lambda: (offset_ns + monotonic_ns()) // _NS_PER_MS


def new_nonce() -> Nonce:
    """Make a nonce that was never used."""
    return Nonce(os.urandom(NONCE_BYTES).hex())
