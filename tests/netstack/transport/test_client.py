"""``connect`` on real sockets and both loops."""

import asyncio
import dataclasses
import socket

import pytest

from netstack.config import SecurityConfig
from netstack.errors import ConnectError, LocalProtocolError
from netstack.ids import ConnectionID
from netstack.transport.handler import ChannelHandlerContext
from netstack.transport.network_channel import NetworkChannel
from netstack.transport.server import NetworkServer, connect
from tests.netstack.transport.sockets import CONFIG, LOOPS, Inbox, handlers, run
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.parametrize("loop_name", LOOPS)


def test_a_connected_channel_is_active_and_knows_its_peer(loop_name: str) -> None:
    """A connected channel knows its peer; both ends have TCP_NODELAY and SO_KEEPALIVE."""

    async def main() -> None:
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

    run(loop_name, main())


def test_nobody_listening_is_a_connect_error(loop_name: str) -> None:
    """The error names the address and the reason, and keeps the cause."""

    async def main() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # bound, not listening
            address = ConnectionID("127.0.0.1", unused.getsockname()[1])
            with pytest.raises(ConnectError, match=f"cannot connect to {address}: ConnectionRefusedError: ") as raised:
                await connect(CONFIG, address, handlers(Inbox()), timeout_s=PATIENCE_S)
        assert isinstance(raised.value.__cause__, OSError)

    run(loop_name, main())


@pytest.mark.parametrize("address", [ConnectionID("127.0.0.1", 65536), ConnectionID("a" * 64 + ".invalid", 1)])
def test_an_address_that_cannot_exist_is_a_connect_error(loop_name: str, address: ConnectionID) -> None:
    """An impossible address raises a ConnectError, and no foreign exception."""

    async def main() -> None:
        with pytest.raises(ConnectError, match=f"cannot connect to {address}"):
            await connect(CONFIG, address, handlers(Inbox()), timeout_s=PATIENCE_S)

    run(loop_name, main())


def test_a_connection_that_takes_too_long_is_a_connect_error(loop_name: str) -> None:
    """The attempt fails after its time and leaves no socket open; here the kernel does not answer, for the accept queue
    is full.
    """

    async def main() -> None:
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

    run(loop_name, main())


def test_a_pipeline_without_a_decoder_is_refused(loop_name: str) -> None:
    """The transport would have nowhere to read into."""

    async def main() -> None:
        server = NetworkServer(CONFIG, handlers(Inbox()))
        address = ConnectionID(*await server.start("127.0.0.1", 0))
        with pytest.raises(LocalProtocolError, match="no MessageDecoder"):
            await connect(CONFIG, address, lambda: (Inbox(),), timeout_s=PATIENCE_S)
        await server.close()
        await asyncio.sleep(0)

    run(loop_name, main())


@pytest.mark.parametrize("security", [SecurityConfig.none(), SecurityConfig.hmac(bytes(32))])
def test_a_name_that_leads_to_another_machine_is_refused(
    loop_name: str, security: SecurityConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that was reached decides, not the one that ``localhost`` should mean; here 127.0.0.1 plays the other
    machine.
    """
    monkeypatch.setattr("netstack.transport.server.is_loopback", lambda host: host == "localhost")
    config = dataclasses.replace(CONFIG, security=security)

    async def main() -> None:
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

    run(loop_name, main())


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
def test_a_dial_that_is_cancelled_just_when_it_connects_ends(loop_name: str, security: SecurityConfig) -> None:
    """The channel ends and no socket stays open, even if uvloop closes the transport without telling the protocol."""
    config = dataclasses.replace(CONFIG, security=security)

    async def main() -> None:
        server = NetworkServer(config, handlers(Inbox()))
        address = ConnectionID(*await server.start("127.0.0.1", 0))
        inbox = CancelWhenActive()

        inbox.dialling = asyncio.create_task(connect(config, address, handlers(inbox), timeout_s=PATIENCE_S))
        await asyncio.gather(inbox.dialling, return_exceptions=True)

        assert inbox.dialling.cancelled()
        assert inbox.log == ["active", "inactive", "removed"]
        await server.close()

    run(loop_name, main())
