"""The settings of the bootstraps: watermarks, socket options, and the time after which a silent peer is dead."""

import asyncio
import socket
from dataclasses import replace

import pytest

from netstack.config import NetstackConfig
from netstack.ids import ConnectionID
from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.transport.message_codec import MessageEncoder, OutboundBuffer
from netstack.transport.server import NetworkServer, connect
from netstack.wire.message_bytes import encode
from netstack.wire.messages import AddCredit
from tests.netstack.transport.sockets import CONFIG, LOOPS, Inbox, handlers, run
from tests.netstack.wire.samples import RECEIVER, HeapBuffer
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("page", [65536, 1024])
def test_low_and_high_watermarks(page: int) -> None:
    """NettyServerLowAndHighWatermarkTest: one page keeps the channel writable, the second does not, the flush makes it
    so again.
    """
    inbox = Inbox()
    channel = EmbeddedChannel(
        MessageEncoder(), inbox, config=NetstackConfig(segment_size_bytes=page, network_memory_bytes=4 * page)
    )

    channel.write([OutboundBuffer(RECEIVER, 0, 0, 0, HeapBuffer(bytes(page)))])
    assert channel.is_writable
    channel.write([OutboundBuffer(RECEIVER, 0, 1, 0, HeapBuffer(bytes(page)))])
    assert not channel.is_writable
    channel.flush_outbound()

    assert channel.is_writable
    assert inbox.log == ["active", "writable False", "writable True"]


@pytest.mark.parametrize("loop_name", LOOPS)
def test_the_kernel_finds_a_peer_that_is_gone_within_30_s(loop_name: str) -> None:
    """Keepalive starts after 10 s, with four probes 5 s apart; unacknowledged data has 30 s.

    Buffer sizes are the user's, if there are any.
    """

    async def main() -> None:
        config = replace(CONFIG, send_buffer_bytes=50_000, receive_buffer_bytes=60_000)
        server = NetworkServer(config, handlers(Inbox()))
        channel = await connect(
            config, ConnectionID(*await server.start("127.0.0.1", 0)), handlers(Inbox()), timeout_s=PATIENCE_S
        )
        assert channel._transport is not None
        sock = channel._transport.get_extra_info("socket")

        tcp = {
            socket.TCP_NODELAY: 1,
            socket.TCP_KEEPIDLE: 10,
            socket.TCP_KEEPINTVL: 5,
            socket.TCP_KEEPCNT: 4,
            socket.TCP_USER_TIMEOUT: 30_000,
        }
        assert {option: sock.getsockopt(socket.IPPROTO_TCP, option) for option in tcp} == tcp
        # Linux doubles it for its own bookkeeping.
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 120_000
        channel.close()
        await channel.wait_closed()
        await server.close()

    run(loop_name, main())


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_peer_that_stops_in_the_middle_of_a_frame_is_cut(loop_name: str) -> None:
    """A peer that stops inside a frame (Slowloris) is cut; one that is silent between two frames stays."""

    async def main() -> None:
        inbox = Inbox()
        server = NetworkServer(replace(CONFIG, heartbeat_interval_s=0.1, heartbeat_timeout_s=0.2), handlers(inbox))
        host, port = await server.start("127.0.0.1", 0)
        silent = await connect(CONFIG, ConnectionID(host, port), handlers(Inbox()), timeout_s=PATIENCE_S)
        reader, writer = await asyncio.open_connection(host, port)

        writer.write(encode(AddCredit(RECEIVER, 1))[:-1])
        assert await reader.read() == b""

        assert "stopped in the middle of a frame" in str(inbox.errors[0])
        assert silent.is_active
        silent.close()
        await silent.wait_closed()
        writer.close()
        await writer.wait_closed()
        await server.close()

    run(loop_name, main())
