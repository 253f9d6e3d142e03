"""``NetworkServer`` on real sockets and both loops."""

import asyncio
import dataclasses
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from netstack.config import SecurityConfig
from netstack.errors import ConfigError, ConnectError, LocalProtocolError, ResourceClosedError
from netstack.ids import ConnectionID
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.network_channel import NetworkChannel
from netstack.transport.server import NetworkServer, connect
from netstack.wire.messages import AddCredit
from tests.netstack.transport.sockets import CONFIG, Inbox, handlers, on_loops
from tests.netstack.wire.samples import RECEIVER
from tests.waiting import PATIENCE_S


@on_loops()
async def test_every_connection_has_a_pipeline_of_its_own() -> None:
    """The factory is called per connection; messages go to the right one."""
    inboxes: list[Inbox] = []

    def make() -> Sequence[ChannelHandler]:
        inboxes.append(Inbox())
        return handlers(inboxes[-1])()

    server = NetworkServer(CONFIG, make)
    address = ConnectionID(*await server.start("127.0.0.1", 0))
    channels = [await connect(CONFIG, address, handlers(Inbox()), timeout_s=PATIENCE_S) for _ in range(2)]

    channels[0].write_and_flush(AddCredit(RECEIVER, 1))
    channels[1].write_and_flush(AddCredit(RECEIVER, 2))
    first, second = [await inbox.messages.get() for inbox in inboxes]

    assert {first, second} == {AddCredit(RECEIVER, 1), AddCredit(RECEIVER, 2)}
    assert server.num_channels == 2
    assert "listening, 2 channels" in repr(server)
    for channel in channels:
        channel.close()
        await channel.wait_closed()
    for inbox in inboxes:
        await inbox.ended.wait()
    assert server.num_channels == 0
    await server.close()


@on_loops()
async def test_close_ends_all_connections_and_stops_to_listen() -> None:
    """Both ends have ended when ``close`` returns; a second close does nothing."""
    inbox, client_inbox = Inbox(), Inbox()
    server = NetworkServer(CONFIG, handlers(inbox))
    address = ConnectionID(*await server.start("127.0.0.1", 0))
    channel = await connect(CONFIG, address, handlers(client_inbox), timeout_s=PATIENCE_S)
    channel.write_and_flush(AddCredit(RECEIVER, 1))
    await inbox.messages.get()

    await server.close()
    await server.close()

    assert inbox.log == ["active", "inactive", "removed"]
    await channel.wait_closed()
    assert client_inbox.log == ["active", "inactive", "removed"]
    assert client_inbox.errors == []
    assert "closed" in repr(server)
    with pytest.raises(ConnectError, match=f"cannot connect to {address}"):
        await connect(CONFIG, address, handlers(Inbox()), timeout_s=PATIENCE_S)
    with pytest.raises(ResourceClosedError):
        await server.start("127.0.0.1", 0)


# Not 1: asyncio of 3.11 itself loses a connection between its accept() and its transport (an assert in
# ``Server._attach``).
@pytest.mark.parametrize("num_passes", [0, 2, 3, 4])
@on_loops()
async def test_a_connection_that_is_being_accepted_while_the_server_closes_is_closed_too(num_passes: int) -> None:
    """A connection that the server does not know yet, has accepted, or has connected is closed by its close."""
    server = NetworkServer(CONFIG, handlers(Inbox()))
    host, port = await server.start("127.0.0.1", 0)
    with socket.create_connection((host, port)) as client:
        client.settimeout(10)
        for _ in range(num_passes):
            await asyncio.sleep(0)
        # Not awaited yet, as the client must close its end too; close() runs up to its first wait at once.
        closing = asyncio.ensure_future(server.close())
        try:
            received = await asyncio.to_thread(client.recv, 1)
        except ConnectionResetError:
            received = b""
        assert received == b""
        client.close()
        await closing


class _NeverEmpty:
    """A listener of Python 3.12 while a connection is inside its TLS handshake: closed, but not at its end."""

    def __init__(self, listener: asyncio.Server) -> None:
        self._listener = listener

    def close(self) -> None:
        self._listener.close()

    async def wait_closed(self) -> None:
        await self._listener.wait_closed()
        await asyncio.Event().wait()


@pytest.mark.slow
@on_loops()
async def test_close_does_not_wait_for_connections_out_of_reach() -> None:
    server = NetworkServer(replace(CONFIG, close_timeout_s=0.01), handlers(Inbox()))
    await server.start("127.0.0.1", 0)
    assert server._server is not None
    server._server = cast(asyncio.Server, _NeverEmpty(server._server))

    async with asyncio.timeout(PATIENCE_S):
        await server.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
@on_loops()
async def test_an_address_that_others_can_reach_is_refused(host: str) -> None:
    """The data port has no authentication; the error names the address and the reason."""
    server = NetworkServer(CONFIG, handlers(Inbox()))
    with pytest.raises(ConfigError, match=f"refusing to listen on {host}: only loopback"):
        await server.start(host, 0)
    await server.close()


@on_loops()
async def test_a_port_in_use_is_an_os_error() -> None:
    """The caller learns which address."""
    first, second = NetworkServer(CONFIG, handlers(Inbox())), NetworkServer(CONFIG, handlers(Inbox()))
    host, port = await first.start("127.0.0.1", 0)
    with pytest.raises(OSError, match="in use"):
        await second.start(host, port)
    await first.close()
    await second.close()


@on_loops()
async def test_a_port_that_somebody_else_has_closed_is_noticed() -> None:
    """A user's function replaces every socket of its process: clients are refused, and nothing else tells."""
    server = NetworkServer(CONFIG, handlers(Inbox()))
    assert not server.has_lost_port
    await server.start("127.0.0.1", 0)
    assert server._server is not None
    number = server._server.sockets[0].fileno()
    kept = os.dup(number)
    assert not server.has_lost_port

    near, far = socket.socketpair()
    with near, far:
        os.dup2(near.fileno(), number)
        assert server.has_lost_port
    os.dup2(kept, number)
    os.close(kept)
    assert not server.has_lost_port
    await server.close()
    assert not server.has_lost_port


# ---------------------------------------------------------------- ``connect``


@on_loops()
async def test_a_connected_channel_is_active_and_knows_its_peer() -> None:
    """A connected channel knows its peer; both ends have TCP_NODELAY and SO_KEEPALIVE."""
    inbox = Inbox()
    server = NetworkServer(CONFIG, handlers(Inbox()))
    address = ConnectionID(*await server.start("127.0.0.1", 0))

    channel = await connect(CONFIG, address, handlers(inbox), 10)

    assert inbox.log == ["active"]
    assert channel.is_open
    assert channel.is_active
    assert channel.is_writable
    assert channel.peer == f"127.0.0.1:{address.port}"
    assert repr(channel).startswith(f"<NetworkChannel to 127.0.0.1:{address.port} open")
    assert channel._transport is not None
    sock = channel._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    await server.close()
    await channel.wait_closed()


@on_loops()
async def test_nobody_listening_is_a_connect_error() -> None:
    """The error names the address and the reason, and keeps the cause."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening
        address = ConnectionID("127.0.0.1", unused.getsockname()[1])
        with pytest.raises(ConnectError, match=f"cannot connect to {address}: ConnectionRefusedError: ") as raised:
            await connect(CONFIG, address, handlers(Inbox()), timeout_s=PATIENCE_S)
    assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.parametrize("address", [ConnectionID("127.0.0.1", 65536), ConnectionID("a" * 64 + ".invalid", 1)])
@on_loops()
async def test_an_address_that_cannot_exist_is_a_connect_error(address: ConnectionID) -> None:
    """An impossible address raises a ConnectError, and no foreign exception."""
    with pytest.raises(ConnectError, match=f"cannot connect to {address}"):
        await connect(CONFIG, address, handlers(Inbox()), timeout_s=PATIENCE_S)


@on_loops()
async def test_a_connection_that_takes_too_long_is_a_connect_error() -> None:
    """No socket stays open; here the accept queue is full, and the kernel does not answer."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen(0)
        address = ConnectionID("127.0.0.1", busy.getsockname()[1])
        waiting = []
        for _ in range(4):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex((address.host, address.port))
            waiting.append(sock)
        with pytest.raises(ConnectError, match=f"cannot connect to {address} within 0.05 s"):
            await connect(CONFIG, address, handlers(Inbox()), timeout_s=0.05)
        for sock in waiting:
            sock.close()


@on_loops()
async def test_a_pipeline_without_a_decoder_is_refused() -> None:
    """The transport would have nowhere to read into."""
    server = NetworkServer(CONFIG, handlers(Inbox()))
    address = ConnectionID(*await server.start("127.0.0.1", 0))
    with pytest.raises(LocalProtocolError, match="no MessageDecoder"):
        await connect(CONFIG, address, lambda: (Inbox(),), timeout_s=PATIENCE_S)
    await server.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize("security", [SecurityConfig.none(), SecurityConfig.hmac(bytes(32))])
@on_loops()
async def test_a_name_that_leads_to_another_machine_is_refused(
    security: SecurityConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that was reached decides; here 127.0.0.1 plays the other machine."""
    monkeypatch.setattr("netstack.transport.server.is_loopback", lambda host: host == "localhost")
    config = dataclasses.replace(CONFIG, security=security)
    server_inbox, inbox = Inbox(), Inbox()
    server = NetworkServer(config, handlers(server_inbox))
    _, port = await server.start("127.0.0.1", 0)

    with pytest.raises(
        ConnectError, match=rf"cannot connect to localhost:{port}: that is 127\.0\.0\.1:{port}, and only loopback"
    ):
        await connect(config, ConnectionID("localhost", port), handlers(inbox), timeout_s=PATIENCE_S)

    assert inbox.log == ["removed"]
    assert server_inbox.messages.empty()
    await server.close()


class CancelWhenActive(Inbox):
    """Cancels the dial in the very pass in which it connects."""

    def __init__(self) -> None:
        super().__init__()
        self.dialling: asyncio.Task[NetworkChannel] | None = None

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        super().channel_active(ctx)
        assert self.dialling is not None
        self.dialling.cancel()


@pytest.mark.parametrize("security", [SecurityConfig.none(), SecurityConfig.hmac(bytes(32))])
@on_loops()
async def test_a_dial_that_is_cancelled_just_when_it_connects_ends(security: SecurityConfig) -> None:
    """The channel ends and no socket stays open, even if uvloop closes the transport without telling the protocol."""
    config = dataclasses.replace(CONFIG, security=security)
    server = NetworkServer(config, handlers(Inbox()))
    address = ConnectionID(*await server.start("127.0.0.1", 0))
    inbox = CancelWhenActive()

    inbox.dialling = asyncio.create_task(connect(config, address, handlers(inbox), timeout_s=PATIENCE_S))
    await asyncio.gather(inbox.dialling, return_exceptions=True)

    assert inbox.dialling.cancelled()
    assert inbox.log == ["active", "inactive", "removed"]
    await server.close()
