"""Relays between a client and the server, over real sockets: each is refused at the handshake, or at the first frame
that it changes.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from netstack.config import SecurityConfig
from netstack.errors import ConnectError, NetstackError
from netstack.ids import ConnectionID
from netstack.transport.handler import ChannelHandlerContext
from netstack.transport.message_codec import OutboundBuffer
from netstack.transport.network_channel import NetworkChannel
from netstack.transport.server import NetworkServer, connect
from netstack.wire.frame_decoder import SEAL_BYTES, FrameSeal
from netstack.wire.message_bytes import encode
from netstack.wire.messages import AddCredit, BufferResponse, CancelPartitionRequest
from netstack.wire.offer_messages import GateIdentity, gate_token
from tests.netstack.handlers.attackers import HMAC_CONFIG, SECRET, SECURITY
from tests.netstack.handlers.relay import Relay, relaying
from tests.netstack.transport.sockets import Inbox, handlers, on_loops
from tests.netstack.wire.samples import RECEIVER, HeapBuffer, content, frame_of, response
from tests.waiting import PATIENCE_S

GATE = GateIdentity(b"J" * 16, "clicks", 2**62)
NO_SEAL = "does not bear the peer's seal"
INJECTED = encode(CancelPartitionRequest(RECEIVER))


class Ends:
    """A client that dialled a relay at an address which the server takes for its own, and what both ends heard."""

    def __init__(
        self, relay: Relay, inbox: Inbox, client_inbox: Inbox, client: NetworkChannel, server: NetworkServer
    ) -> None:
        self.relay = relay
        self.inbox = inbox
        self.client_inbox = client_inbox
        self.client = client
        self.server = server

    @property
    def server_channel(self) -> NetworkChannel:
        (channel,) = self.server._group.channels
        return channel


class ClosingInbox(Inbox):
    """Ends the connection after an error, as the handlers of both ends do."""

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        super().exception_caught(ctx, error)
        ctx.close()


@asynccontextmanager
async def between() -> AsyncIterator[Ends]:
    """Run a relay that holds the very address: the server's own list of addresses has it."""
    async with relaying() as (relay, entrance):
        security = replace(SECURITY, authorities=frozenset({str(entrance)}))
        inbox, client_inbox = ClosingInbox(), ClosingInbox()
        server = NetworkServer(replace(HMAC_CONFIG, security=security), handlers(inbox))
        relay.target = ConnectionID(*await server.start("127.0.0.1", 0))
        client = await connect(HMAC_CONFIG, entrance, handlers(client_inbox), timeout_s=PATIENCE_S)
        try:
            client.write_and_flush(AddCredit(RECEIVER, 1))
            assert await inbox.messages.get() == AddCredit(RECEIVER, 1)
            yield Ends(relay, inbox, client_inbox, client, server)
        finally:
            client.close()
            await client.wait_closed()
            await server.close()


@pytest.mark.parametrize(
    ("gate", "told"), [(None, "serves another address than this one"), (GATE, "did not authenticate")]
)
@on_loops()
async def test_a_relay_at_another_address_is_refused_at_the_handshake(gate: GateIdentity | None, told: str) -> None:
    """The server's log names both addresses; neither end's handlers hear of the connection."""
    inbox, client_inbox = Inbox(), Inbox()
    server = NetworkServer(HMAC_CONFIG, handlers(inbox))
    config = (
        HMAC_CONFIG if gate is None else replace(HMAC_CONFIG, security=SecurityConfig.hmac(gate_token(SECRET, gate)))
    )
    with capture_logs() as logs:
        async with relaying() as (relay, entrance):
            relay.target = ConnectionID(*await server.start("127.0.0.1", 0))
            with pytest.raises(ConnectError, match=told):
                await connect(config, entrance, handlers(client_inbox), PATIENCE_S, gate)
    await server.close()

    assert "active" not in inbox.log + client_inbox.log
    assert relay.num_bytes_to_client == 0
    (reason,) = [
        each["reason"]
        for each in logs
        if each["event"] == "a connection was not authenticated" and "relay" in each["reason"]
    ]
    assert f"it dialled {entrance}, here is {relay.target}" in reason


def flipped(data: bytes) -> bytes:
    return data[:-20] + bytes([data[-20] ^ 4]) + data[-19:]


@pytest.mark.parametrize(
    "frame",
    [INJECTED, INJECTED + bytes(SEAL_BYTES), INJECTED + FrameSeal(SECRET, "relay").sign(INJECTED)],
    ids=["unsealed", "zeros for a seal", "another key"],
)
@on_loops()
async def test_a_frame_that_a_relay_adds_ends_the_connection(frame: bytes) -> None:
    """An added frame ends the connection before a handler gets it, in either direction; the error names the peer."""
    async with between() as ends:
        ends.relay.inject_to_server(frame + bytes(SEAL_BYTES))
        await ends.inbox.ended.wait()
        check_refused(ends.inbox)
    async with between() as ends:
        ends.relay.inject_to_client(frame_of(response(b"payload")) + frame[len(INJECTED) :] + bytes(SEAL_BYTES))
        await ends.client_inbox.ended.wait()
        check_refused(ends.client_inbox)


def check_refused(inbox: Inbox) -> None:
    assert inbox.messages.empty()
    (error,) = inbox.errors
    assert isinstance(error, NetstackError)
    assert NO_SEAL in str(error)
    assert "127.0.0.1:" in str(error)


@pytest.mark.parametrize(
    "change", [flipped, lambda data: data * 2, lambda data: data[29 + SEAL_BYTES :]], ids=["flip", "repeat", "drop"]
)
@on_loops()
async def test_a_frame_that_a_relay_changes_ends_the_connection(change: Callable[[bytes], bytes]) -> None:
    async with between() as ends:
        ends.relay.to_server = change
        ends.client.write(AddCredit(RECEIVER, 2))
        ends.client.write_and_flush(AddCredit(RECEIVER, 3))
        await ends.inbox.ended.wait()

        delivered = [ends.inbox.messages.get_nowait() for _ in range(ends.inbox.messages.qsize())]
        assert delivered == [AddCredit(RECEIVER, 2), AddCredit(RECEIVER, 3)][: len(delivered)]
        (error,) = ends.inbox.errors
        assert NO_SEAL in str(error)
        assert ends.client.peer not in str(error)  # the server names the client's end, not itself


@on_loops()
async def test_a_flipped_bit_of_a_payload_is_found_before_the_payload_is_delivered() -> None:
    """A flipped bit is found before its payload is delivered, also in the middle of a gather write of many frames."""
    async with between() as ends:
        pages = [bytes([number]) * 3000 for number in range(20)]
        ends.server_channel.write_and_flush(
            [OutboundBuffer(RECEIVER, 0, number, 0, HeapBuffer(page)) for number, page in enumerate(pages)]
        )
        for page in pages:
            message = await ends.client_inbox.messages.get()
            assert isinstance(message, BufferResponse)
            assert content(message) == page

        ends.relay.to_client = lambda data: data[:9000] + bytes([data[9000] ^ 1]) + data[9001:]
        ends.server_channel.write_and_flush(
            [OutboundBuffer(RECEIVER, 0, number, 0, HeapBuffer(page)) for number, page in enumerate(pages)]
        )
        await ends.client_inbox.ended.wait()

        numbers = []
        while not ends.client_inbox.messages.empty():
            message = ends.client_inbox.messages.get_nowait()
            assert content(message) == pages[message.sequence_number]  # type: ignore[attr-defined]  # a response
            numbers.append(message.sequence_number)  # type: ignore[attr-defined]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) < 20
        (error,) = ends.client_inbox.errors
        assert f"from {ends.client.peer} {NO_SEAL}" in str(error)
