"""A WebSocket of the control port whose every message is signed and numbered.

Side:       loop.
Invariants: nobody sees a message before its signature and number are right; after the first one that is not, none is
            received any more.
Wire form:  each message is a binary frame: number (8 bytes, from 0, per direction), HMAC-SHA256 of number and content,
            content.
Rules:      the keys are those of this WebSocket and of one direction (``message_keys``).  A message of another session,
            of the other direction, or of a relay has a wrong signature.  The number shows a message that was repeated,
            left out or moved.
Absent:     secrecy.  A close frame is not signed: a relay can end a session, as it can cut the connection, and can
            write any reason into the frame.  A message that is held back is noticed when the next one arrives.  With
            TLS, which the control port does not have yet, the certificate would bind the session to the server's
            address; these signatures bind it to the secret, and would not be bound to the TLS channel.
"""

import asyncio
import hmac
import struct
from contextlib import suppress
from dataclasses import field
from typing import Final, NoReturn

import aiohttp
from aiohttp import web

from flowlet.rpc.requests import GOING_AWAY, SessionEndedError
from netstack.late import dataclass

CLOSE_TIMEOUT_S: Final = 0.3
HEADER_BYTES: Final = 40
_NUMBER: Final = struct.Struct(">Q")
_MAX_CLOSE_REASON_BYTES: Final = 123  # RFC 6455, section 5.5


@dataclass(slots=True, eq=False)
class SignedWebSocket:
    """One end of an open WebSocket.

    Threading: the loop; one task sends and one receives.
    Life cycle: ``close`` it, or let who opened the connection do so.
    """

    websocket: web.WebSocketResponse | aiohttp.ClientWebSocketResponse
    send_key: bytes
    receive_key: bytes
    _num_sent: int = field(init=False, default=0)
    _num_received: int = field(init=False, default=0)
    _failure: str | None = field(init=False, default=None)  # why nothing is received any more

    def __repr__(self) -> str:
        return (
            f"<SignedWebSocket {self._num_sent} sent, {self._num_received} "
            f"received{'' if self._failure is None else ', failed'}>"
        )

    async def send(self, content: bytes) -> None:
        """Send a message.  Raises ConnectionError: the connection is lost."""
        number = _NUMBER.pack(self._num_sent)
        # Before the wait: a send that is cancelled may have left, and its number must not be used again.
        self._num_sent += 1
        frame = b"".join((number, _signature(self.send_key, number, content), content))
        try:
            # waits for the peer to read; ended by the end of the session, or the caller's deadline
            await self.websocket.send_bytes(frame)
        except aiohttp.ClientError as error:
            raise ConnectionResetError(str(error)) from error

    async def receive(self, timeout_s: float | None = None) -> bytes:
        """Return the content of the next message.

        Raises:
            TimeoutError: none came within ``timeout_s``.
            SessionEndedError: the connection has ended, or its next frame was not the next message of the peer.
        """
        if self._failure is None:
            # waits for the peer; ended by the caller's timeout, or the kernel
            frame = await self.websocket.receive(timeout_s)
            if frame.type is aiohttp.WSMsgType.BINARY:
                return self._opened(frame.data)
            self._failure = _end_in_words(frame)
        raise SessionEndedError(self._failure)

    async def close(self, reason: str, *, code: int = GOING_AWAY) -> None:
        """Close the connection and tell the peer why; idempotent."""
        shortened = reason.encode()[:_MAX_CLOSE_REASON_BYTES].decode("utf-8", "ignore").encode()
        with suppress(TimeoutError):  # a peer that does not read must not hold us up; aiohttp drops the connection
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.websocket.close(code=code, message=shortened)

    def _opened(self, data: bytes) -> bytes:
        number, signature, content = data[: _NUMBER.size], data[_NUMBER.size : HEADER_BYTES], data[HEADER_BYTES:]
        # The signature first: the number of a stranger says nothing.
        if len(data) < HEADER_BYTES or not hmac.compare_digest(
            signature, _signature(self.receive_key, number, content)
        ):
            self._fail(f"a message of {len(data)} bytes came that is not signed with the key of this session")
        (received,) = _NUMBER.unpack(number)
        if received != self._num_received:
            what = "came again" if received < self._num_received else "came too early, or others were left out"
            self._fail(f"message {received} {what}: message {self._num_received} is the next one")
        self._num_received += 1
        return content

    def _fail(self, reason: str) -> NoReturn:
        # Kept: behind a message that does not fit none is received any more.
        self._failure = reason
        raise SessionEndedError(reason)


def _signature(key: bytes, number: bytes, content: bytes) -> bytes:
    mac = hmac.new(key, number, "sha256")
    mac.update(content)
    return mac.digest()


def _end_in_words(frame: aiohttp.WSMessage) -> str:
    match frame.type:
        case aiohttp.WSMsgType.CLOSE:
            return f"it closed the connection{': ' + repr(frame.extra)[1:-1] if frame.extra else ''}"
        case aiohttp.WSMsgType.ERROR:
            return f"the connection broke: {str(frame.data)[:200]}"
        case aiohttp.WSMsgType.CLOSED | aiohttp.WSMsgType.CLOSING:
            return "its connection was closed"
        case _:
            return "it sent a text message"
