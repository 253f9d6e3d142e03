"""``NetworkServer`` on real sockets and both loops."""

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from netstack.errors import ConfigError, ConnectError, ResourceClosedError
from netstack.ids import ConnectionID
from netstack.transport.handler import ChannelHandler
from netstack.transport.server import NetworkServer, connect
from netstack.wire.messages import AddCredit
from tests.netstack.transport.sockets import CONFIG, LOOPS, Inbox, handlers, run
from tests.netstack.wire.samples import RECEIVER
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.parametrize("loop_name", LOOPS)


def test_every_connection_has_a_pipeline_of_its_own(loop_name: str) -> None:
    """The factory is called per connection; messages go to the right one."""

    async def main() -> None:
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

    run(loop_name, main())


def test_close_ends_all_connections_and_stops_to_listen(loop_name: str) -> None:
    """Both ends have ended when ``close`` returns; a second close does nothing."""

    async def main() -> None:
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

    run(loop_name, main())


# Not 1: asyncio of 3.11 itself loses a connection between its accept() and its transport (an assert in
# ``Server._attach``).
@pytest.mark.parametrize("num_passes", [0, 2, 3, 4])
def test_a_connection_that_is_being_accepted_while_the_server_closes_is_closed_too(
    loop_name: str, num_passes: int
) -> None:
    """A connection that the server does not know yet, has accepted, or has connected is closed by its close."""

    async def main() -> None:
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

    run(loop_name, main())


class _NeverEmpty:
    """An asyncio listener as it is from Python 3.12 on while a connection is inside its TLS handshake: closed, but not
    at its end.
    """

    def __init__(self, listener: asyncio.Server) -> None:
        self._listener = listener

    def close(self) -> None:
        self._listener.close()

    async def wait_closed(self) -> None:
        await self._listener.wait_closed()
        await asyncio.Event().wait()


@pytest.mark.slow
def test_close_does_not_wait_for_connections_out_of_reach(loop_name: str) -> None:
    async def main() -> None:
        server = NetworkServer(replace(CONFIG, close_timeout_s=0.01), handlers(Inbox()))
        await server.start("127.0.0.1", 0)
        assert server._server is not None
        server._server = cast(asyncio.Server, _NeverEmpty(server._server))

        async with asyncio.timeout(PATIENCE_S):
            await server.close()

    run(loop_name, main())


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "example.org"])
def test_an_address_that_others_can_reach_is_refused(loop_name: str, host: str) -> None:
    """The data port has no authentication; the error names the address and the reason."""

    async def main() -> None:
        server = NetworkServer(CONFIG, handlers(Inbox()))
        with pytest.raises(ConfigError, match=f"refusing to listen on {host}: only loopback"):
            await server.start(host, 0)
        await server.close()

    run(loop_name, main())


def test_a_port_in_use_is_an_os_error(loop_name: str) -> None:
    """The caller learns which address."""

    async def main() -> None:
        first, second = NetworkServer(CONFIG, handlers(Inbox())), NetworkServer(CONFIG, handlers(Inbox()))
        host, port = await first.start("127.0.0.1", 0)
        with pytest.raises(OSError, match="in use"):
            await second.start(host, port)
        await first.close()
        await second.close()

    run(loop_name, main())


def test_a_port_that_somebody_else_has_closed_is_noticed(loop_name: str) -> None:
    """A user's function replaces every socket of its process: clients are refused, and nothing else tells."""

    async def main() -> None:
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

    run(loop_name, main())
