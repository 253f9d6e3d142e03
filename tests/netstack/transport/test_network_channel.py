"""``NetworkChannel`` on real sockets and both loops: backpressure, ownership, closing."""

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from netstack.config import NetstackConfig
from netstack.errors import ConnectionLostError, LocalProtocolError, RemoteProtocolError
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import OutboundBuffer
from netstack.transport.network_channel import NetworkChannel
from netstack.transport.outbound_buffer import OutboundFrame
from netstack.transport.server import NetworkServer
from netstack.wire.message_bytes import encode
from netstack.wire.messages import AddCredit, BufferResponse, CloseRequest, DataType, ErrorCode, ErrorResponse
from tests.netstack.transport.sockets import (
    CONFIG,
    PAGE,
    CountedBuffer,
    Inbox,
    dialled,
    fill,
    handlers,
    on_loops,
    raw_peer,
    read_bytes,
)
from tests.netstack.wire.samples import ALL_MESSAGES, CONTROL_MESSAGES, RECEIVER, content, frame_of


@dataclass
class Pair:
    """Both ends of one connection."""

    client: NetworkChannel
    client_inbox: Inbox
    server: NetworkChannel
    server_inbox: Inbox


class _Capture(ChannelHandler):
    def __init__(self) -> None:
        self.channel: asyncio.Future[NetworkChannel] = asyncio.get_running_loop().create_future()

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        assert isinstance(ctx.channel, NetworkChannel)
        self.channel.set_result(ctx.channel)
        ctx.fire_channel_active()


@asynccontextmanager
async def connected(config: NetstackConfig = CONFIG) -> AsyncIterator[Pair]:
    """Connect a pair, which is closed at the end."""
    client_inbox, server_inbox, capture = Inbox(), Inbox(), _Capture()

    def server_handlers() -> Sequence[ChannelHandler]:
        return (*handlers(server_inbox, config)()[:2], capture, server_inbox)

    async with dialled(server_handlers, handlers(client_inbox, config), config) as client:
        yield Pair(client, client_inbox, await capture.channel, server_inbox)


@on_loops()
async def test_all_messages_arrive_in_both_directions() -> None:
    """All messages arrive in order, with equal payloads."""
    async with connected() as pair:
        for message in CONTROL_MESSAGES:
            pair.client.write(message)
            pair.server.write_and_flush(message)
        pair.client.flush()
        buffer = CountedBuffer(7)
        pair.client.write_and_flush([OutboundBuffer(RECEIVER, 1, 2, 3, buffer)])

        for message in CONTROL_MESSAGES:
            assert await pair.server_inbox.messages.get() == message
            assert await pair.client_inbox.messages.get() == message
        response = await pair.server_inbox.messages.get()

        assert isinstance(response, BufferResponse)
        assert response[:7] == (RECEIVER, 1, 2, 3, DataType.DATA_BUFFER, False, ())
        assert content(response) == bytes([7]) * PAGE
        assert buffer.num_recycled == 1


@on_loops()
async def test_nothing_leaves_before_the_flush() -> None:
    """Two writes leave with one flush, in one gather write."""
    async with connected() as pair:
        pair.client.write(AddCredit(RECEIVER, 1))
        pair.client.write(AddCredit(RECEIVER, 2))
        assert (pair.client.pending_bytes, pair.client.num_writes) == (58, 0)

        pair.client.flush()
        pair.client.flush()

        assert pair.client.pending_bytes == 0
        assert pair.client.num_writes == 1
        assert pair.client.num_bytes_out == 58
        assert await pair.server_inbox.messages.get() == AddCredit(RECEIVER, 1)
        assert await pair.server_inbox.messages.get() == AddCredit(RECEIVER, 2)
        assert pair.server.num_bytes_in == 58


@on_loops()
async def test_the_second_page_makes_the_channel_unwritable_and_the_flush_writable() -> None:
    """With watermarks of one and two pages the handlers are notified of both changes."""
    async with connected() as pair:
        channel = pair.client
        buffers = [CountedBuffer(number) for number in range(2)]
        states = []
        for number, buffer in enumerate(buffers):
            channel.write([OutboundBuffer(RECEIVER, 0, number, 0, buffer)])
            states.append(channel.is_writable)
        channel.flush()
        await pair.client_inbox.became_writable.wait()

        assert states == [True, False]
        assert channel.is_writable
        assert pair.client_inbox.log == ["active", "writable False", "writable True"]
        for _ in buffers:
            await pair.server_inbox.messages.get()
        assert [buffer.num_recycled for buffer in buffers] == [1, 1]


@on_loops()
async def test_a_peer_that_does_not_read_stops_the_writer_until_it_reads() -> None:
    """Pending stays bounded, buffers the kernel has no copy of are not recycled, and every byte arrives unchanged."""
    async with raw_peer() as (channel, inbox, peer):
        buffers = fill(channel)
        pending = channel.pending_bytes
        held = [buffer for buffer in buffers if not buffer.num_recycled]
        assert 2 * PAGE < pending <= 3 * PAGE + 3 * 47
        assert len(held) >= 2
        inbox.became_writable.clear()

        received = await read_bytes(peer, len(buffers) * (PAGE + 47))
        await inbox.became_writable.wait()

        assert channel.pending_bytes == 0
        assert channel.is_writable
        assert [buffer.num_recycled for buffer in buffers] == [1] * len(buffers)
        for number in range(len(buffers)):
            payload = received[number * (PAGE + 47) + 47 : (number + 1) * (PAGE + 47)]
            assert payload == bytes([number % 251]) * PAGE
        assert inbox.log[-2:] == ["writable False", "writable True"]


@on_loops()
async def test_what_is_flushed_while_the_transport_is_busy_follows_in_order() -> None:
    """It goes out by itself; unflushed messages wait for their flush."""
    async with raw_peer() as (channel, inbox, peer):
        num_buffers = len(fill(channel))
        inbox.became_writable.clear()
        channel.write_and_flush(AddCredit(RECEIVER, 1))
        num_writes = channel.num_writes

        await read_bytes(peer, num_buffers * (PAGE + 47))
        tail = await read_bytes(peer, 29)
        assert tail == encode(AddCredit(RECEIVER, 1))
        assert channel.num_writes == num_writes + 1

        channel.write(CloseRequest())
        assert channel.pending_bytes == 9


@on_loops()
async def test_a_handler_that_writes_whenever_it_may_does_not_recurse_or_starve_the_loop() -> None:
    """A handler that fills the channel whenever it becomes writable leaves room for other callbacks of the loop."""
    num_rounds = 200

    class Eager(Inbox):
        def __init__(self) -> None:
            super().__init__()
            self.num_written = 0
            self.seen_by_the_loop: list[int] = []

        def channel_active(self, ctx: ChannelHandlerContext) -> None:
            self.tick(ctx)
            self.channel_writability_changed(ctx)

        def tick(self, ctx: ChannelHandlerContext) -> None:
            self.seen_by_the_loop.append(self.num_written)
            if self.num_written < num_rounds and ctx.channel.is_open:
                asyncio.get_running_loop().call_soon(self.tick, ctx)

        def channel_writability_changed(self, ctx: ChannelHandlerContext) -> None:
            if ctx.channel.is_writable and self.num_written < num_rounds:
                self.num_written += 1
                for _ in range(3):
                    ctx.write([OutboundBuffer(RECEIVER, 0, self.num_written, 0, CountedBuffer(1))])
                ctx.flush()

    inbox, eager = Inbox(), Eager()
    async with dialled(handlers(inbox), handlers(eager)):
        for _ in range(3 * num_rounds):
            await inbox.messages.get()

    steps = [after - before for before, after in pairwise(eager.seen_by_the_loop)]
    # Two passes may fall between two looks of the loop: one that goes on, one because the transport is empty.
    rounds_per_pass = CONFIG.max_write_batch_bytes // (3 * (PAGE + 47)) + 1
    assert max(steps) <= 2 * rounds_per_pass + 2


@on_loops()
async def test_close_sends_what_was_written_then_ends_both_ends() -> None:
    """A close sends unflushed messages, too; each handler is told of the end once, and neither end sees an error."""
    async with connected() as pair:
        pair.client.write(AddCredit(RECEIVER, 1))
        pair.client.close()
        pair.client.close()
        assert not pair.client.is_active
        assert not pair.client.is_writable

        assert await pair.server_inbox.messages.get() == AddCredit(RECEIVER, 1)
        await pair.client.wait_closed()
        await pair.server.wait_closed()

        for inbox in (pair.client_inbox, pair.server_inbox):
            assert inbox.log == ["active", "inactive", "removed"]
            assert inbox.errors == []
        assert "closed" in repr(pair.client)


@on_loops()
async def test_the_last_message_arrives_although_unread_input_waits() -> None:
    """The peer gets the last message even with unread input, for which a plain close would reset the connection."""
    async with raw_peer() as (channel, inbox, peer):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(peer, encode(CloseRequest()))
        await inbox.messages.get()
        error = ErrorResponse(ErrorCode.PROTOCOL, "too much", None)
        channel.write_and_flush(error)
        channel.close()
        await loop.sock_sendall(peer, encode(CloseRequest()) * 50_000)

        assert await read_bytes(peer, len(encode(error))) == encode(error)
        assert await loop.sock_recv(peer, 1) == b""
        peer.close()
        await channel.wait_closed()
        assert inbox.messages.empty()
        assert inbox.errors == []


@on_loops()
async def test_close_cuts_the_connection_when_its_time_is_over() -> None:
    """A peer that never reads cannot keep the channel, nor its buffers."""
    config = replace(CONFIG, close_timeout_s=0.05)
    async with raw_peer(config) as (channel, inbox, _peer):
        buffers = fill(channel)
        late = CountedBuffer(0)

        channel.close()
        channel.write_and_flush([OutboundBuffer(RECEIVER, 0, 0, 0, late)])
        assert late.num_recycled == 1
        await channel.wait_closed()

        assert [buffer.num_recycled for buffer in buffers] == [1] * len(buffers)
        assert channel.pending_bytes == 0
        assert inbox.log[-2:] == ["inactive", "removed"]


@on_loops()
async def test_a_peer_that_goes_away_ends_the_channel() -> None:
    """An orderly end is no error; frames that could not be sent are recycled."""
    async with raw_peer() as (channel, inbox, peer):
        buffer = CountedBuffer(0)
        channel.write([OutboundBuffer(RECEIVER, 0, 0, 0, buffer)])
        peer.shutdown(socket.SHUT_WR)

        await channel.wait_closed()

        assert inbox.log == ["active", "inactive", "removed"]
        assert inbox.errors == []
        assert buffer.num_recycled == 1


@on_loops()
async def test_a_peer_that_sends_no_more_and_reads_nothing_is_cut() -> None:
    """After ``close_timeout_s``, however it drips; all buffers come back."""
    async with raw_peer(replace(CONFIG, close_timeout_s=0.05)) as (channel, inbox, peer):
        buffers = fill(channel)
        peer.shutdown(socket.SHUT_WR)

        await channel.wait_closed()

        assert [buffer.num_recycled for buffer in buffers] == [1] * len(buffers)
        assert inbox.log[-2:] == ["inactive", "removed"]


@pytest.mark.parametrize("timeout_s", [100_000.0, 1e30])
@on_loops()
async def test_the_kernel_gets_no_longer_times_than_it_takes(timeout_s: float) -> None:
    """A very patient configuration works as one that is as patient as can be."""
    async with raw_peer(replace(CONFIG, dead_peer_timeout_s=timeout_s)) as (channel, _, _):
        assert channel._transport is not None
        sock = channel._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 32_767
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == min(32_767, round(timeout_s / 6))
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == min(2**31 - 1, round(timeout_s * 1000))


@on_loops()
async def test_a_connection_whose_options_are_refused_is_cut() -> None:
    """A connection whose options the system refuses is cut: otherwise it would be neither counted nor timed out."""
    transport = ScriptedTransport()
    transport._sock.close()
    channel, inbox = scripted(transport)

    assert transport.is_aborted
    assert [type(error) for error in inbox.errors] == [OSError]
    channel.connection_lost(None)
    await channel.wait_closed()


@on_loops()
async def test_a_reset_is_told_as_a_lost_connection_before_the_end() -> None:
    """The error names the peer and keeps its cause; what a handler answers to it is dropped, not sent."""
    async with raw_peer() as (channel, inbox, peer):
        fill(channel)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()

        await channel.wait_closed()

        (error,) = inbox.errors
        assert isinstance(error, ConnectionLostError)
        assert str(error).startswith(f"lost the connection to {channel.peer}: ")
        assert isinstance(error.__cause__, OSError)
        assert inbox.log[-2:] == ["inactive", "removed"]


@on_loops()
async def test_a_broken_stream_reaches_the_handlers_as_an_error() -> None:
    """The error follows the good messages; the channel stays until a handler closes it."""
    async with raw_peer() as (channel, inbox, peer):
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(peer, encode(AddCredit(RECEIVER, 1)) + b"GET / HTTP/1.1\r\n")

        assert await inbox.messages.get() == AddCredit(RECEIVER, 1)
        assert [type(error) for error in inbox.errors] == [RemoteProtocolError]
        assert channel.is_active


@on_loops()
async def test_an_error_that_no_handler_wants_closes_the_connection() -> None:
    """The peer sees the end of a connection whose read failed."""

    class Broken(ChannelHandler):
        def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
            raise ValueError("cannot read")

    async with dialled(handlers(Broken()), handlers(Inbox())) as channel:
        channel.write_and_flush(CloseRequest())

        await channel.wait_closed()


@on_loops()
async def test_an_error_of_a_callback_does_not_stop_the_others() -> None:
    """Every buffer is recycled, and the handlers get the error."""

    def fail() -> None:
        raise ValueError("recycled twice")

    async with connected() as pair:
        seen: list[str] = []
        head = pair.client
        head.transport_write(OutboundFrame((encode(CloseRequest()),), fail))
        head.transport_write(OutboundFrame((encode(CloseRequest()),), lambda: seen.append("second")))
        head.transport_write(OutboundFrame((encode(CloseRequest()),), fail))
        head.flush()

        assert seen == ["second"]
        assert [str(error) for error in pair.client_inbox.errors] == ["recycled twice"] * 2
        for _ in range(3):
            assert await pair.server_inbox.messages.get() == CloseRequest()


@on_loops()
async def test_only_frames_reach_the_transport() -> None:
    """A pipeline without an encoder is a bug of ours."""
    async with connected() as pair:
        with pytest.raises(LocalProtocolError, match="CloseRequest reached the transport"):
            pair.client.transport_write(CloseRequest())


@on_loops()
async def test_a_message_that_nobody_serves_is_dropped_and_the_channel_lives() -> None:
    """The dropped message is reported in the log, and the next one is read."""

    class OnlyCredit(Inbox):
        def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
            if isinstance(message, AddCredit):
                super().channel_read(ctx, message)
            else:
                ctx.fire_channel_read(message)

    inbox = OnlyCredit()
    async with dialled(handlers(inbox), handlers(Inbox())) as channel:
        channel.write(CloseRequest())
        channel.write_and_flush(AddCredit(RECEIVER, 1))

        assert await inbox.messages.get() == AddCredit(RECEIVER, 1)
        assert inbox.errors == []


@on_loops()
async def test_the_channel_can_be_used_on_its_loop_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``NETSTACK_DEBUG=1`` a task thread that touches a channel is found at once."""
    monkeypatch.setenv("NETSTACK_DEBUG", "1")
    async with connected() as pair:
        with pytest.raises(LocalProtocolError, match="outside its event loop"):
            await asyncio.to_thread(pair.client.write, CloseRequest())
        with pytest.raises(LocalProtocolError, match="outside its event loop"):
            await asyncio.to_thread(pair.client.flush)
        with pytest.raises(LocalProtocolError, match="outside its event loop"):
            await asyncio.to_thread(pair.client.close)
        assert pair.client.pending_bytes == 0
        assert pair.client.is_open


@on_loops()
async def test_a_channel_closed_before_it_is_connected_never_becomes_active() -> None:
    """Written buffers are recycled, ``wait_closed`` returns, and the connection is cut when it is made."""
    inbox, server_inbox, buffer = Inbox(), Inbox(), CountedBuffer(0)
    channel = NetworkChannel(CONFIG, handlers(inbox))
    channel.write_and_flush([OutboundBuffer(RECEIVER, 0, 0, 0, buffer)])
    channel.close()
    await channel.wait_closed()
    server = NetworkServer(CONFIG, handlers(server_inbox))
    host, port = await server.start("127.0.0.1", 0)

    await asyncio.get_running_loop().create_connection(lambda: channel, host, port)
    await server_inbox.ended.wait()

    assert inbox.log == ["removed"]
    assert buffer.num_recycled == 1
    await server.close()


@on_loops()
async def test_what_was_flushed_before_the_connection_was_made_is_sent() -> None:
    """A handler may write as soon as it is added."""

    class Greeting(Inbox):
        def handler_added(self, ctx: ChannelHandlerContext) -> None:
            ctx.write_and_flush(AddCredit(RECEIVER, 1))

    inbox = Inbox()
    async with dialled(handlers(inbox), handlers(Greeting())):
        assert await inbox.messages.get() == AddCredit(RECEIVER, 1)


@on_loops()
async def test_frames_cut_by_tcp_anywhere_are_put_together() -> None:
    """A peer that sends in small pieces is understood."""
    async with raw_peer() as (_, inbox, peer):
        loop = asyncio.get_running_loop()
        stream = b"".join(map(frame_of, ALL_MESSAGES))
        for at in range(0, len(stream), 7):
            await loop.sock_sendall(peer, stream[at : at + 7])

        assert [await inbox.messages.get() for _ in ALL_MESSAGES] == ALL_MESSAGES


class ScriptedTransport(asyncio.Transport):
    """Does what real kernels and loops do rarely."""

    def __init__(self, *, takes_bytes: int = 1 << 30, peer: object = ("127.0.0.1", 7)) -> None:
        super().__init__()
        self.takes_bytes = takes_bytes
        self.peer = peer
        self.written = b""
        self.num_limits_set = 0
        self.is_broken = False
        self.is_aborted = False
        self._sock = socket.socket()

    def get_extra_info(self, name: str, default: object = None) -> object:
        known: dict[str, object] = {"peername": self.peer, "socket": self._sock}
        return known.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert (high, low) == (0, None)
        self.num_limits_set += 1

    def get_write_buffer_size(self) -> int:
        return max(0, len(self.written) - self.takes_bytes)

    def writelines(self, views: Iterable[bytes | bytearray | memoryview]) -> None:
        self.written += b"".join(views)

    def is_closing(self) -> bool:
        return self.is_broken or self.is_aborted

    def write_eof(self) -> None:
        raise OSError("not connected")

    def abort(self) -> None:
        self.is_aborted = True
        self._sock.close()


def scripted(transport: ScriptedTransport) -> tuple[NetworkChannel, Inbox]:
    inbox = Inbox()
    channel = NetworkChannel(CONFIG, handlers(inbox))
    channel.connection_made(transport)
    return channel, inbox


@on_loops()
async def test_partial_writes_are_accounted_exactly() -> None:
    """A buffer is recycled only after the kernel took all of it; the rest waits for ``resume_writing``."""
    transport = ScriptedTransport(takes_bytes=PAGE + 47)
    channel, inbox = scripted(transport)
    buffers = [CountedBuffer(number) for number in range(3)]
    for number, buffer in enumerate(buffers):
        channel.write([OutboundBuffer(RECEIVER, 0, number, 0, buffer)])
    channel.pause_writing()
    channel.flush()

    assert [buffer.num_recycled for buffer in buffers] == [1, 0, 0]
    assert channel.pending_bytes == 2 * (PAGE + 47)
    assert not channel.is_writable
    channel.write_and_flush(AddCredit(RECEIVER, 1))
    assert len(transport.written) == 3 * (PAGE + 47)

    transport.takes_bytes = 1 << 30
    channel.resume_writing()
    assert [buffer.num_recycled for buffer in buffers] == [1, 1, 1]
    assert channel.pending_bytes == 0
    assert transport.written.endswith(encode(AddCredit(RECEIVER, 1)))
    assert inbox.log == ["active", "writable False", "writable True"]
    transport.abort()
    channel.connection_lost(None)
    channel.resume_writing()


@on_loops()
async def test_a_loop_that_forgets_to_pause_is_reminded() -> None:
    """Setting the limits again makes the transport look at its pending bytes."""
    transport = ScriptedTransport(takes_bytes=10)
    channel, _ = scripted(transport)
    channel.write_and_flush(AddCredit(RECEIVER, 1))

    assert transport.num_limits_set == 2
    assert channel.pending_bytes == 19
    transport.abort()
    channel.connection_lost(None)
    assert channel.pending_bytes == 0


@on_loops()
async def test_a_write_that_breaks_the_connection_counts_as_not_written() -> None:
    """The buffer is recycled when the transport says that it is gone; a second report of that changes nothing."""

    class BreaksAtWrite(ScriptedTransport):
        def writelines(self, views: Iterable[bytes | bytearray | memoryview]) -> None:
            self.is_broken = True

    transport = BreaksAtWrite()
    channel, inbox = scripted(transport)
    first, second = CountedBuffer(0), CountedBuffer(1)
    channel.write_and_flush([OutboundBuffer(RECEIVER, 0, 0, 0, first)])
    channel.write_and_flush([OutboundBuffer(RECEIVER, 0, 1, 0, second)])

    assert (first.num_recycled, second.num_recycled) == (0, 0)
    assert channel.num_bytes_out == 0
    transport.abort()
    channel.connection_lost(BrokenPipeError("pipe"))
    channel.connection_lost(None)

    assert (first.num_recycled, second.num_recycled) == (1, 1)
    assert [type(error) for error in inbox.errors] == [ConnectionLostError]
    assert inbox.log == ["active", "writable False", "inactive", "removed"]


@on_loops()
async def test_an_answer_to_a_lost_connection_is_dropped_and_recycled() -> None:
    """A handler may try to tell the peer; the transport is not touched any more."""

    class Answering(Inbox):
        def __init__(self) -> None:
            super().__init__()
            self.buffer = CountedBuffer(0)

        def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
            ctx.write_and_flush([OutboundBuffer(RECEIVER, 0, 0, 0, self.buffer)])
            ctx.close()

    inbox, transport = Answering(), ScriptedTransport()
    channel = NetworkChannel(CONFIG, handlers(inbox))
    channel.connection_made(transport)

    channel.connection_lost(ConnectionResetError("reset"))

    assert transport.written == b""
    assert not transport.is_aborted
    assert inbox.buffer.num_recycled == 1
    assert inbox.log == ["active", "inactive", "removed"]
    transport.abort()


@on_loops()
async def test_a_peer_that_is_gone_already_is_not_waited_for() -> None:
    """A connection is cut at once if the peer cannot be told the end of our data."""
    transport = ScriptedTransport()
    channel, _ = scripted(transport)

    channel.close()

    assert transport.is_aborted
    channel.connection_lost(None)
    await channel.wait_closed()


@pytest.mark.parametrize(
    ("peer", "text"), [(("::1", 7, 0, 0), "[::1]:7"), (("127.0.0.1", 7), "127.0.0.1:7"), (None, "None")]
)
@on_loops()
async def test_the_peer_is_named_as_in_urls(peer: object, text: str) -> None:
    """IPv6 addresses are written in brackets, as in URLs."""
    transport = ScriptedTransport(peer=peer)
    channel, _ = scripted(transport)

    assert channel.peer == text
    transport.abort()
    channel.connection_lost(None)


@on_loops()
async def test_without_a_free_descriptor_the_loop_writes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way past the loop is a convenience: the connection goes on without it, and has it as soon as there is one."""

    def refuse(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async with connected() as pair:
        with monkeypatch.context() as limited:
            limited.setattr("netstack.transport.network_channel.os.dup", refuse)
            assert pair.server.direct_writer() is None
        assert pair.server.direct_writer() is not None
