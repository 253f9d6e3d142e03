"""Tests of ``flowlet.rpc.signed_websocket``: a message arrives once and in its turn, or the session ends."""

import asyncio
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.rpc.requests import SessionEndedError
from flowlet.rpc.signed_websocket import HEADER_BYTES, SignedWebSocket

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


class Wire:
    """aiohttp's WebSocket, as far as it is needed: what is sent lies in ``frames``, and what is to be received, too."""

    def __init__(self) -> None:
        self.frames: list[bytes | aiohttp.WSMessage] = []
        self.closed_with: list[tuple[int, bytes]] = []

    async def send_bytes(self, data: bytes) -> None:
        self.frames.append(data)

    async def receive(self, timeout: float | None = None) -> aiohttp.WSMessage:  # noqa: ASYNC109 - aiohttp's signature
        frame = self.frames.pop(0)
        return aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, frame, None) if isinstance(frame, bytes) else frame

    async def close(self, *, code: int, message: bytes) -> None:
        self.closed_with.append((code, message))


def end(wire: Wire, *, send_key: bytes = KEY, receive_key: bytes = KEY) -> SignedWebSocket:
    return SignedWebSocket(cast(web.WebSocketResponse, wire), send_key=send_key, receive_key=receive_key)


async def sent(*contents: bytes, key: bytes = KEY) -> Wire:
    """Return a wire on which these messages lie."""
    wire = Wire()
    sender = end(wire, send_key=key)
    for content in contents:
        await sender.send(content)
    return wire


async def received(wire: Wire) -> tuple[list[bytes], str]:
    """Return the contents that arrive before the end, and the reason of the end, which later calls repeat."""
    receiver, contents = end(wire), list[bytes]()

    async def receive_all() -> None:
        while True:
            contents.append(await receiver.receive())

    with pytest.raises(SessionEndedError) as caught:
        await receive_all()
    wire.frames = (await sent(*([b"later"] * 9))).frames
    with pytest.raises(SessionEndedError) as again:
        await receiver.receive()
    assert str(again.value) == str(caught.value)
    return contents, str(caught.value)


CLOSED = aiohttp.WSMessage(aiohttp.WSMsgType.CLOSED, None, None)


async def test_messages_arrive_in_their_order() -> None:
    wire = await sent(b"a", b"", b"c" * 100_000)
    wire.frames.append(CLOSED)

    assert await received(wire) == ([b"a", b"", b"c" * 100_000], "its connection was closed")


@pytest.mark.parametrize("position", [0, 7, 8, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 2])
async def test_a_changed_byte_ends_the_session(position: int) -> None:
    """A change of the number, the signature or the content is noticed."""
    wire = await sent(b"abc")
    frame = bytearray(cast(bytes, wire.frames[0]))
    frame[position] ^= 1
    wire.frames = [bytes(frame)]

    contents, reason = await received(wire)

    assert (contents, reason) == ([], "a message of 43 bytes came that is not signed with the key of this session")


@given(st.binary(max_size=100))
@settings(max_examples=20)
def test_no_foreign_bytes_are_a_message(data: bytes) -> None:
    wire = Wire()
    wire.frames = [data]

    contents, reason = asyncio.run(received(wire))

    assert contents == []
    assert reason.endswith("not signed with the key of this session")


async def test_a_message_of_another_session_or_direction_ends_it() -> None:
    contents, reason = await received(await sent(b"a", key=OTHER_KEY))

    assert contents == []
    assert reason.endswith("not signed with the key of this session")


@pytest.mark.parametrize(
    ("order", "num_good", "reason"),
    [
        ([0, 0], 1, "message 0 came again: message 1 is the next one"),
        ([0, 1, 0], 2, "message 0 came again: message 2 is the next one"),
        ([1, 0], 0, "message 1 came too early, or others were left out: message 0 is the next one"),
        ([0, 2], 1, "message 2 came too early, or others were left out: message 1 is the next one"),
    ],
)
async def test_a_message_out_of_turn_ends_the_session(order: list[int], num_good: int, reason: str) -> None:
    wire = await sent(b"a", b"b", b"c")
    wire.frames = [wire.frames[number] for number in order]

    contents, found = await received(wire)

    assert (contents, found) == ([b"a", b"b", b"c"][:num_good], reason)


@pytest.mark.parametrize(
    ("kind", "data", "extra", "reason"),
    [
        (aiohttp.WSMsgType.CLOSE, 1000, "", "it closed the connection"),
        (aiohttp.WSMsgType.CLOSE, 1001, "bye\x1b\n", "it closed the connection: bye\\x1b\\n"),
        (aiohttp.WSMsgType.ERROR, ValueError("bad frame"), None, "the connection broke: bad frame"),
        (aiohttp.WSMsgType.CLOSED, None, None, "its connection was closed"),
        (aiohttp.WSMsgType.CLOSING, None, None, "its connection was closed"),
        (aiohttp.WSMsgType.TEXT, "x", None, "it sent a text message"),
    ],
)
async def test_the_end_of_a_connection_in_words(
    kind: aiohttp.WSMsgType, data: Any, extra: str | None, reason: str
) -> None:
    wire = Wire()
    wire.frames = [aiohttp.WSMessage(kind, data, extra)]

    assert await received(wire) == ([], reason)


async def test_the_reason_of_a_close_is_cut_at_what_a_frame_can_hold() -> None:
    wire = Wire()

    await end(wire).close("ü" * 100, code=1008)

    assert wire.closed_with == [(1008, ("ü" * 61).encode())]


async def test_it_tells_what_it_did() -> None:
    wire = await sent(b"a")
    websocket = end(wire)
    await websocket.receive()

    assert "0 sent, 1 received" in repr(websocket)
