"""Signed HTTP between the processes of a cluster: ``RpcClient`` and the server's middleware.

Side:       loop.
Invariants: the client uses no answer without a valid proof.  The server neither reads a body nor runs a handler before the request's head
            is verified.  A refusal does not say what was wrong.
Rules:      ``Host`` and ``Origin`` must be loopback addresses; otherwise a web page could reach us by DNS rebinding.  Only ``/healthz``
            needs no signature.
"""

import asyncio
import io
import ipaddress
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
import msgspec
import structlog
from aiohttp import web
from yarl import URL

from flowlet.errors import FlowletError
from flowlet.rpc.auth import (
    AUTH_HEADER,
    NONCE_BYTES,
    PROOF_HEADER,
    AcceptedRequest,
    AuthenticationError,
    Nonce,
    Refusal,
    RequestLine,
    RequestVerifier,
    body_digest,
    check_answer,
    sign_answer,
    sign_request,
)

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024  # of a body, and of one WebSocket message
HEALTH_PATH: Final = "/healthz"
MSGPACK: Final = "application/msgpack"
_CONNECT_TIMEOUT_S: Final = 5.0
_BODY_TIMEOUT_S: Final = 30.0
_CLOSE_TIMEOUT_S: Final = 0.5
_LOG_INTERVAL_MS: Final = 1000

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
WallClock = Callable[[], int]

_ACCEPTED: Final = web.RequestKey("accepted", AcceptedRequest)
log = structlog.get_logger(__name__)


class RpcConnectError(FlowletError):
    """The server could not be reached, or the connection broke before the whole answer arrived."""


class RpcStatusError(FlowletError):
    """The server answered with an error; ``errors`` are its texts."""

    def __init__(self, status: int, errors: list[str]) -> None:
        super().__init__("; ".join(errors) or f"HTTP status {status}")
        self.status = status
        self.errors = errors


class _ErrorBody(msgspec.Struct):
    errors: list[str]


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
    return time.time_ns() // 1_000_000


def _errors_in(body: bytes) -> list[str]:
    try:
        return msgspec.json.decode(body, type=_ErrorBody).errors
    except (msgspec.DecodeError, UnicodeDecodeError):
        return [body[:200].decode("utf-8", "replace")]


class _ProvenWebSocket(aiohttp.ClientWebSocketResponse):
    """Exposes the proof in the answer to the handshake, which aiohttp hides."""

    @property
    def proof(self) -> str | None:
        return self._response.headers.get(PROOF_HEADER)


class RpcClient:
    """Sends signed requests to one JobManager.

    Threading: the loop on which it was created.  Life cycle: ``close`` it (or use ``async with``); pending requests then fail.
    """

    def __init__(self, host: str, port: int, secret: bytes, *, clock: WallClock = wall_clock_ms) -> None:
        self.authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._base = f"http://{self.authority}"
        self._secret = secret
        self._clock = clock
        self._session = aiohttp.ClientSession(
            ws_response_class=_ProvenWebSocket,
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
                    self._check(nonce, answer, response.headers.get(PROOF_HEADER))
                    return answer
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise RpcConnectError(f"JobManager {self.authority}: {_reason_of(error, timeout_s)}") from error

    async def connect_websocket(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket to a server that knows the secret.

        Raises:
            RpcConnectError: there is no server.
            AuthenticationError: client and server have different secrets.
            RpcStatusError: the server refused the upgrade.
        """
        nonce, headers = self._sign("GET", path, b"")
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                websocket = await self._session.ws_connect(
                    URL(self._base + path, encoded=True),
                    headers=headers,
                    max_msg_size=MAX_MESSAGE_BYTES,
                    compress=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S),
                )
        except aiohttp.WSServerHandshakeError as error:
            self._check_refusal(error.status)
            raise RpcStatusError(error.status, [f"no WebSocket at {path}: HTTP status {error.status}"]) from error
        except (aiohttp.ClientError, OSError) as error:
            raise RpcConnectError(f"JobManager {self.authority}: {_reason_of(error, _CONNECT_TIMEOUT_S)}") from error
        assert isinstance(websocket, _ProvenWebSocket), "the session's ws_response_class"
        try:
            check_answer(self._secret, nonce, 101, b"", websocket.proof)
        except AuthenticationError:
            await websocket.close()
            raise
        return websocket

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._session.close()

    def _sign(self, method: str, path: str, body: bytes) -> tuple[Nonce, dict[str, str]]:
        nonce = Nonce(os.urandom(NONCE_BYTES).hex())
        line = RequestLine(method, self.authority, path)
        return nonce, {"Host": self.authority, AUTH_HEADER: sign_request(self._secret, line, body, nonce, self._clock())}

    def _check(self, nonce: Nonce, answer: RpcResponse, proof: str | None) -> None:
        if proof is None:
            self._check_refusal(answer.status)
        try:
            check_answer(self._secret, nonce, answer.status, answer.body, proof)
        except AuthenticationError as error:
            raise AuthenticationError(f"{self.authority}: {error}") from error

    def _check_refusal(self, status: int) -> None:
        if status == web.HTTPUnauthorized.status_code:
            raise AuthenticationError(f"{self.authority} refused the request: authentication failed; do both use the same secret file?")


async def _read_limited(response: aiohttp.ClientResponse) -> bytes:
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > MAX_MESSAGE_BYTES:
            raise aiohttp.ClientPayloadError(f"the answer is longer than {MAX_MESSAGE_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _reason_of(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno:
        return os.strerror(error.os_error.errno)  # asyncio's own text does not give the reason
    return str(error) or type(error).__name__


def error_response(status: int, *errors: str) -> web.Response:
    """An error in the form of all errors: ``{"errors": [text, ...]}``."""
    return web.Response(status=status, body=msgspec.json.encode({"errors": list(errors)}), content_type="application/json")


class AuthenticatingServer:
    """Admits only signed requests to loopback addresses, and signs the answers.  Threading: the server's loop."""

    def __init__(self, secret: bytes, *, max_body_bytes: int = MAX_MESSAGE_BYTES, clock: WallClock = wall_clock_ms) -> None:
        self._secret = secret
        self._verifier = RequestVerifier(secret)
        self._max_body_bytes = max_body_bytes
        self._clock = clock
        self._logged_ms = 0
        self.num_refused = 0

    def __repr__(self) -> str:
        return f"<AuthenticatingServer {self.num_refused} refused>"

    def create_application(self) -> web.Application:
        """An application behind this check; add routes to it."""

        @web.middleware
        async def protect(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self.handle(request, handler)

        application = web.Application(middlewares=[protect], client_max_size=self._max_body_bytes)
        application.on_response_prepare.append(self._prove)
        return application

    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The handler's answer, or a refusal."""
        refusal = self._judge(request)
        if refusal is not None:
            self.num_refused += 1
            return refusal
        try:
            if _ACCEPTED in request and not await self._has_proven_body(request):
                return error_response(400, "the body does not match the request's signature")
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return error_response(error.status, error.reason)
        except Exception:  # the top of a request: log it, and go on serving others
            log.exception("request failed", method=request.method, path=request.path)
            return error_response(500, "internal error; see the JobManager's log")

    def _judge(self, request: web.Request) -> web.Response | None:
        origin = request.headers.get("Origin")
        if not _is_loopback_authority(request.host) or not (origin is None or _is_loopback_authority(origin.partition("://")[2])):
            return error_response(403, "only requests to a loopback address are served")
        if request.path == HEALTH_PATH:
            return None
        line = RequestLine(request.method, request.host, request.raw_path)
        verdict = self._verifier.verify(request.headers.get(AUTH_HEADER), line, self._clock())
        if isinstance(verdict, Refusal):
            self._log_refusal(verdict, request)
            return error_response(401, "authentication failed")
        request[_ACCEPTED] = verdict
        return None

    def _log_refusal(self, refusal: Refusal, request: web.Request) -> None:
        # At most one line per interval and no raw text: a refused peer must not be able to fill the disk or forge lines.
        now_ms = self._clock()
        if now_ms - self._logged_ms >= _LOG_INTERVAL_MS:
            self._logged_ms = now_ms
            path = repr(request.raw_path[:200])
            log.warning("request refused", reason=refusal.value, method=request.method, path=path, refused_before=self.num_refused)

    async def _has_proven_body(self, request: web.Request) -> bool:
        limit = self._max_body_bytes
        if request.content_length is not None and request.content_length > limit:
            raise web.HTTPRequestEntityTooLarge(limit, request.content_length)
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                body = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        return body_digest(body) == request[_ACCEPTED].body_sha256

    async def _prove(self, request: web.Request, response: web.StreamResponse) -> None:
        if _ACCEPTED in request:
            body = response.body if isinstance(response, web.Response) else b""
            assert body is None or isinstance(body, bytes), "answers are made whole"
            response.headers[PROOF_HEADER] = sign_answer(self._secret, request[_ACCEPTED].nonce, response.status, body or b"")


def _is_loopback_authority(authority: str) -> bool:
    host = authority.rpartition(":")[0] if authority.rpartition(":")[2].isdigit() else authority
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
