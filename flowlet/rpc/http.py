"""Signed HTTP between the processes of a cluster: ``RpcClient``; ``AuthenticatingServer`` is the other side.

Side:       loop.
Invariants: the client uses no answer without a valid proof, and no message of a WebSocket without a right signature.
"""

import asyncio
import errno
import io
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from flowlet.errors import FlowletError
from flowlet.rpc.auth import (
    AUTH_HEADER,
    NONCE_BYTES,
    NONCE_HEADER,
    PROOF_HEADER,
    TIME_HEADER,
    AuthenticationError,
    Nonce,
    RequestLine,
    check_answer,
    message_keys,
    parse_nonce,
    sign_request,
)
from flowlet.rpc.signed_websocket import HEADER_BYTES, SignedWebSocket
from netstack.forks import PortClosedInChildren
from netstack.late import dataclass

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024  # of a body, and of one WebSocket message
MSGPACK: Final = "application/msgpack"
_CONNECT_TIMEOUT_S: Final = 5.0
_CLOSE_TIMEOUT_S: Final = 0.5
_NS_PER_MS: Final = 1_000_000
# A WebSocket is pinged this often, and ends if no pong comes within half of it: a link that swallows bytes shows nothing else.
_PING_INTERVAL_S: Final = 20.0

WallClock = Callable[[], int]


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


class _ErrorBody(msgspec.Struct):
    errors: list[str]


_error_decoder: Final = msgspec.json.Decoder(_ErrorBody)


@dataclass(frozen=True, slots=True)
class RpcResponse:
    """An answer whose proof was checked."""

    status: int
    body: bytes

    def raise_for_status(self) -> "RpcResponse":
        """Return this answer.  Raises RpcStatusError: the status is 400 or more."""
        if self.status < 400:
            return self
        raise RpcStatusError(self.status, _errors_in(self.body))


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // _NS_PER_MS


def steady_clock(wall: WallClock = wall_clock_ms, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> WallClock:
    """A clock that shows the time of ``wall`` now, and is then neither put back nor forward."""
    offset_ns = wall() * _NS_PER_MS - monotonic_ns()
    return lambda: (offset_ns + monotonic_ns()) // _NS_PER_MS


def new_nonce() -> Nonce:
    """A nonce that was never used."""
    return Nonce(os.urandom(NONCE_BYTES).hex())


def _errors_in(body: bytes) -> list[str]:
    try:
        return _error_decoder.decode(body).errors
    except (msgspec.DecodeError, UnicodeDecodeError):
        return [body[:200].decode("utf-8", "replace")]


class _OpenWebSocket(aiohttp.ClientWebSocketResponse):
    """Exposes the headers of the answer to the handshake, which aiohttp hides."""

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers


class _OtherTimeError(Exception):
    """The server refused a request because of its date; its time is known now."""


class RpcClient:
    """Sends signed requests to one JobManager.

    Threading: the loop on which it was created.  Life cycle: ``close`` it (or use ``async with``); pending requests then fail.
    """

    def __init__(self, host: str, port: int, secret: bytes, *, clock: WallClock = wall_clock_ms) -> None:
        self.authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._base = f"http://{self.authority}"
        self._secret = secret
        self._clock = clock
        self._ahead_ms = 0  # of the server's time over ours; a server that was started again may have another one
        self._in_children = PortClosedInChildren(port)
        self._session = aiohttp.ClientSession(
            ws_response_class=_OpenWebSocket,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
        )

    def __repr__(self) -> str:
        return f"<RpcClient of {self._base}{' closed' if self._session.closed else ''}>"

    async def __aenter__(self) -> "RpcClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def request(
        self, method: str, path: str, *, body: bytes = b"", content_type: str = MSGPACK, timeout_s: float = 30.0
    ) -> RpcResponse:
        """Send a request; return the answer, whatever its status.  ``path`` includes the query and is sent unchanged.

        Raises:
            RpcConnectError: there is no server, or no answer within ``timeout_s``.
            AuthenticationError: client and server have different secrets.
        """
        try:
            return await self._request(method, path, body, content_type, timeout_s)
        except _OtherTimeError:
            return await self._request(method, path, body, content_type, timeout_s, is_second=True)

    async def connect_websocket(self, path: str) -> SignedWebSocket:
        """Open a WebSocket to a server that knows the secret.

        Raises:
            RpcConnectError: there is no server.
            AuthenticationError: client and server have different secrets.
            RpcStatusError: the server refused the upgrade.
        """
        try:
            return await self._connect_websocket(path)
        except _OtherTimeError:
            return await self._connect_websocket(path, is_second=True)

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._session.close()
        self._in_children.release()

    async def _request(
        self, method: str, path: str, body: bytes, content_type: str, timeout_s: float, *, is_second: bool = False
    ) -> RpcResponse:
        nonce, headers = self._sign(method, path, body)
        if body:
            headers["Content-Type"] = content_type
        try:
            async with asyncio.timeout(timeout_s):
                url = URL(self._base + path, encoded=True)
                # As a stream, because aiohttp warns about large bodies of bytes.
                data = io.BytesIO(body) if body else None
                async with self._session.request(method, url, data=data, headers=headers, allow_redirects=False) as response:
                    answer = RpcResponse(response.status, await _read_limited(response))
                    self._check(nonce, answer, response.headers, is_second=is_second)
                    return answer
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise RpcConnectError(f"JobManager {self.authority}: {_reason_of(error, timeout_s)}") from None

    async def _connect_websocket(self, path: str, *, is_second: bool = False) -> SignedWebSocket:
        nonce, headers = self._sign("GET", path, b"")
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                websocket = await self._session.ws_connect(
                    URL(self._base + path, encoded=True),
                    headers=headers,
                    max_msg_size=MAX_MESSAGE_BYTES + HEADER_BYTES,
                    compress=0,
                    heartbeat=_PING_INTERVAL_S,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S),
                )
        except aiohttp.WSServerHandshakeError as error:
            self._check_refusal(nonce, error.status, error.headers or {}, is_second=is_second)
            raise RpcStatusError(error.status, [f"no WebSocket at {path}: HTTP status {error.status}"]) from error
        except (aiohttp.ClientError, OSError) as error:
            raise RpcConnectError(f"JobManager {self.authority}: {_reason_of(error, _CONNECT_TIMEOUT_S)}") from None
        assert isinstance(websocket, _OpenWebSocket), "the session's ws_response_class"
        try:
            server_nonce = parse_nonce(websocket.headers.get(NONCE_HEADER)) or Nonce("")
            check_answer(self._secret, nonce, 101, server_nonce.encode(), websocket.headers.get(PROOF_HEADER))
        except AuthenticationError as error:
            await websocket.close(message=b"the proof in the answer is wrong")
            raise AuthenticationError(f"{self.authority}: {error}") from error
        keys = message_keys(self._secret, nonce, server_nonce)
        return SignedWebSocket(websocket, send_key=keys.to_server, receive_key=keys.to_client)

    def _sign(self, method: str, path: str, body: bytes) -> tuple[Nonce, dict[str, str]]:
        nonce = new_nonce()
        line = RequestLine(method, self.authority, path)
        signature = sign_request(self._secret, line, body, nonce, self._clock() + self._ahead_ms)
        return nonce, {"Host": self.authority, AUTH_HEADER: signature}

    def _check(self, nonce: Nonce, answer: RpcResponse, headers: Mapping[str, str], *, is_second: bool) -> None:
        if answer.status in (web.HTTPUnauthorized.status_code, web.HTTPMisdirectedRequest.status_code):
            self._check_refusal(nonce, answer.status, headers, is_second=is_second)
        try:
            check_answer(self._secret, nonce, answer.status, answer.body, headers.get(PROOF_HEADER))
        except AuthenticationError as error:
            raise AuthenticationError(f"{self.authority}: {error}") from error

    def _check_refusal(self, nonce: Nonce, status: int, headers: Mapping[str, str], *, is_second: bool) -> None:
        time_ms = headers.get(TIME_HEADER)
        if status == web.HTTPMisdirectedRequest.status_code:
            raise AuthenticationError(
                f"{self.authority} refused the request, because the JobManager there has another address: name the one that it shows "
                f"when it starts, or start it with --advertise {self.authority}"
            )
        if status == web.HTTPUnauthorized.status_code and not is_second and time_ms is not None:
            check_answer(self._secret, nonce, status, time_ms.encode("utf-8", "replace"), headers.get(PROOF_HEADER))
            self._ahead_ms = int(time_ms) - self._clock()
            raise _OtherTimeError
        if status == web.HTTPUnauthorized.status_code:
            raise AuthenticationError(f"{self.authority} refused the request: authentication failed; do both use the same secret file?")


async def _read_limited(response: aiohttp.ClientResponse) -> bytes:
    chunks, size = [], 0
    async for chunk in response.content.iter_any():  # waits for the body; ended by the timeout of request()
        size += len(chunk)
        if size > MAX_MESSAGE_BYTES:
            raise aiohttp.ClientPayloadError(f"the answer is longer than {MAX_MESSAGE_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _reason_of(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the host {error.host!r} is unknown: correct its name, or give its address"  # the text of uvloop's error does not say so
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        reason = os.strerror(error.os_error.errno)  # asyncio's own text does not give the reason
        if error.os_error.errno == errno.ECONNREFUSED:
            return f"{reason}: nothing listens there; start a JobManager (flowlet jm), or correct host and port"
        return reason
    return str(error) or type(error).__name__


def error_response(status: int, *errors: str) -> web.Response:
    """An error in the form of all errors: ``{"errors": [text, ...]}``."""
    return web.Response(status=status, body=msgspec.json.encode({"errors": list(errors)}), content_type="application/json")
