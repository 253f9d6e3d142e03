"""Signed HTTP between the processes of a cluster: ``RpcClient``; ``AuthenticatingServer`` is the other side.

Side:       loop.
Invariants: the client uses no answer without a valid proof, and no message of a WebSocket without a right signature.
"""

import io
import socket
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import aiohttp
from yarl import URL

from flowlet.rpc import requests
from flowlet.rpc.auth import AuthenticationError
from flowlet.rpc.signed_requests import OtherTimeError, RequestSigner, reason_of, unknown_host
from flowlet.rpc.signed_websocket import HEADER_BYTES, SignedWebSocket
from netstack.config import DEAD_HOST_TIMEOUT_S
from netstack.loop.eventloop import running_timeout
from netstack.loop.forks import PortClosedInChildren
from netstack.transport.socket_options import watch_host

_CONNECT_TIMEOUT_S: Final = 5.0
_CLOSE_TIMEOUT_S: Final = 0.5


class _OpenWebSocket(aiohttp.ClientWebSocketResponse):
    """Exposes the headers of the answer to the handshake, which aiohttp hides."""

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers


class RpcClient(requests.RpcGateway):
    """Sends signed requests to one JobManager.

    ``dead_host_timeout_s``: a connection ends if the kernel of the server's host acknowledges nothing for so long.
    """

    def __init__(
        self,
        host: str,
        port: int,
        secret: bytes,
        *,
        clock: requests.WallClock = requests.wall_clock_ms,
        dead_host_timeout_s: float = DEAD_HOST_TIMEOUT_S,
    ) -> None:
        self.authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._base = f"http://{self.authority}"
        self._signer = RequestSigner(self.authority, secret, clock)
        self._in_children = PortClosedInChildren(port)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(socket_factory=partial(_watched_socket, dead_host_timeout_s)),
            ws_response_class=_OpenWebSocket,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
        )

    def __repr__(self) -> str:
        return f"<RpcClient of {self._base}{' closed' if self._session.closed else ''}>"

    async def request(
        self, method: str, path: str, *, body: bytes = b"", timeout_s: float = requests.ANSWER_TIMEOUT_S
    ) -> requests.RpcResponse:
        """Implement ``RpcGateway.request``; sends a second time if the server's clock differs."""
        try:
            return await self._request(method, path, body, timeout_s)
        # Once: a server whose clock jumps would be asked for ever.
        except OtherTimeError:
            return await self._request(method, path, body, timeout_s, is_second=True)

    async def open_session(self) -> SignedWebSocket:
        """Implement ``RpcGateway.open_session``; asks a second time if the server's clock differs."""
        try:
            return await self._open_session()
        except OtherTimeError:
            return await self._open_session(is_second=True)

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._session.close()
        # Behind the connections: until then a forked child must not keep one of them open.
        self._in_children.release()

    async def _request(
        self, method: str, path: str, body: bytes, timeout_s: float, *, is_second: bool = False
    ) -> requests.RpcResponse:
        nonce, headers = self._signer.sign(method, path, body)
        if body:
            headers["Content-Type"] = requests.MSGPACK
        try:
            # Time in which this loop stood still does not count: the answer may lie in the socket.
            async with running_timeout(timeout_s):
                url = URL(self._base + path, encoded=True)
                # As a stream, because aiohttp warns about large bodies of bytes.
                data = io.BytesIO(body) if body else None
                async with self._session.request(
                    method, url, data=data, headers=headers, allow_redirects=False
                ) as response:
                    answer = requests.RpcResponse(response.status, await _read_limited(response))
                    # Within the timeout and before any use: an answer without proof may be a stranger's.
                    self._signer.check(nonce, answer, response.headers.get, is_second=is_second)
                    return answer
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise requests.RpcConnectError(f"JobManager {self.authority}: {_reason_of(error, timeout_s)}") from None

    async def _open_session(self, *, is_second: bool = False) -> SignedWebSocket:
        nonce, headers = self._signer.sign("GET", requests.SESSION_PATH, b"")
        try:
            async with running_timeout(_CONNECT_TIMEOUT_S):
                websocket = await self._session.ws_connect(
                    URL(self._base + requests.SESSION_PATH, encoded=True),
                    headers=headers,
                    max_msg_size=requests.MAX_MESSAGE_BYTES + HEADER_BYTES,
                    compress=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S),
                )
        except aiohttp.WSServerHandshakeError as error:
            headers_of_answer: Mapping[str, Any] = error.headers or {}
            self._signer.check_refusal(nonce, error.status, headers_of_answer.get, is_second=is_second)
            raise requests.RpcStatusError(
                error.status, [f"no WebSocket at {requests.SESSION_PATH}: HTTP status {error.status}"]
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise requests.RpcConnectError(
                f"JobManager {self.authority}: {_reason_of(error, _CONNECT_TIMEOUT_S)}"
            ) from None
        assert isinstance(websocket, _OpenWebSocket), "the session's ws_response_class"
        try:
            to_server, to_client = self._signer.keys_of_session(nonce, websocket.headers.get)
        # The connection is open already: without this it would stay so.
        except AuthenticationError:
            await websocket.close(message=b"the proof in the answer is wrong")
            raise
        return SignedWebSocket(websocket, send_key=to_server, receive_key=to_client)


def _watched_socket(dead_host_timeout_s: float, address: aiohttp.AddrInfoType) -> socket.socket:
    """Make a socket for an address, whose connection ends with the host there."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    try:
        watch_host(made, dead_host_timeout_s)
    # aiohttp does not know of it yet.
    except BaseException:
        made.close()
        raise
    return made


async def _read_limited(response: aiohttp.ClientResponse) -> bytes:
    chunks, size = [], 0
    async for chunk in response.content.iter_any():  # waits for the body; ended by the timeout of request()
        size += len(chunk)
        # While it is read: a server that is none could send for ever.
        if size > requests.MAX_MESSAGE_BYTES:
            raise aiohttp.ClientPayloadError(f"the answer is longer than {requests.MAX_MESSAGE_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _reason_of(error: Exception, timeout_s: float) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return unknown_host(error.host)  # the text of uvloop's error does not say so
    os_error = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return reason_of(os_error, timeout_s)
