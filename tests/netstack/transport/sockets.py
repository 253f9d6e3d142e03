"""Loopback connections for tests, on either event loop."""

import asyncio
import functools
import inspect
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
import uvloop

from netstack.config import NetstackConfig, SecurityConfig
from netstack.ids import ConnectionID
from netstack.transport.handler import Channel, ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import MessageDecoder, MessageEncoder, OutboundBuffer
from netstack.transport.network_channel import HandlersFactory, NetworkChannel
from netstack.transport.server import NetworkServer, connect
from netstack.wire.messages import DataType
from tests.netstack.wire.samples import RECEIVER, HeapAllocator
from tests.waiting import PATIENCE_S

T = TypeVar("T")
AsyncTest = Callable[..., Coroutine[Any, Any, None]]

# libuv makes one pipe per process with its first loop and keeps it; made here, no test seems to leave it behind.
uvloop.new_event_loop().close()

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
CONFIG = NetstackConfig(
    segment_size_bytes=32 * 1024, network_memory_bytes=1024 * 1024, close_timeout_s=10.0, security=SecurityConfig.none()
)
PAGE = CONFIG.segment_size_bytes


def run(loop_name: str, main: Coroutine[Any, Any, T], expected_error: str | None = None) -> T:
    """Run ``main`` on the named kind of loop; fails after half a minute instead of hanging, and on stray errors but the
    expected one.
    """
    errors: list[dict[str, Any]] = []

    async def bounded() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
        async with asyncio.timeout(PATIENCE_S):
            return await main

    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        result = runner.run(bounded())
    assert [each for each in errors if each["message"] != expected_error] == []
    return result


def on_loops(expected_error: str | None = None) -> Callable[[AsyncTest], Callable[..., None]]:
    """Make an asynchronous test one that runs on each kind of loop, like ``run``."""

    def decorate(test: AsyncTest) -> Callable[..., None]:
        signature = inspect.signature(test)

        def run_test(loop_name: str, **arguments: Any) -> None:
            run(loop_name, test(**arguments), expected_error)

        functools.update_wrapper(run_test, test)
        loop_parameter = inspect.Parameter("loop_name", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run_test.__signature__ = signature.replace(  # type: ignore[attr-defined]  # pytest looks at it
            parameters=[loop_parameter, *signature.parameters.values()]
        )
        on_each: Callable[..., None] = pytest.mark.parametrize("loop_name", LOOPS)(run_test)
        return on_each

    return decorate


class Inbox(ChannelHandler):
    """Last in a pipeline: keeps messages and errors, and lets a test wait for them."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[object] = asyncio.Queue()
        self.errors: list[Exception] = []
        self.log: list[str] = []
        self.ended = asyncio.Event()
        self.became_writable = asyncio.Event()

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        self.log.append("active")

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        self.log.append("inactive")
        self.ended.set()

    def handler_removed(self, ctx: ChannelHandlerContext) -> None:
        self.log.append("removed")

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        self.messages.put_nowait(message)

    def channel_writability_changed(self, ctx: ChannelHandlerContext) -> None:
        self.log.append(f"writable {ctx.channel.is_writable}")
        if ctx.channel.is_writable:
            self.became_writable.set()

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        self.errors.append(error)


class Live(Inbox):
    """An inbox that knows its channel, and passes heartbeats on."""

    channel: Channel | None = None

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        super().channel_active(ctx)
        self.channel = ctx.channel
        ctx.fire_channel_active()

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        super().channel_read(ctx, message)
        ctx.fire_channel_read(message)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` is true, about which nobody tells; the connection lives on meanwhile."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)


def handlers(last: ChannelHandler, config: NetstackConfig = CONFIG) -> Callable[[], tuple[ChannelHandler, ...]]:
    """Return a factory for one pipeline that ends with ``last``."""
    return lambda: (MessageEncoder(), MessageDecoder(config, HeapAllocator()), last)


@asynccontextmanager
async def dialled(
    server_handlers: HandlersFactory,
    client_handlers: HandlersFactory,
    config: NetstackConfig = CONFIG,
    client_config: NetstackConfig | None = None,
) -> AsyncIterator[NetworkChannel]:
    """Connect a channel to a server of its own; both are closed at the end, also if the test fails.

    Both ends have one config unless the client's is given.
    """
    server = NetworkServer(config, server_handlers)
    try:
        address = ConnectionID(*await server.start("127.0.0.1", 0))
        channel = await connect(client_config or config, address, client_handlers, timeout_s=PATIENCE_S)
        try:
            yield channel
        finally:
            channel.close()
            await channel.wait_closed()
    finally:
        await server.close()


class CountedBuffer:
    """A payload of one page that counts its recycling and forbids its use afterwards."""

    def __init__(self, byte: int) -> None:
        self._data = bytearray([byte]) * PAGE
        self.view = memoryview(self._data)
        self.size = PAGE
        self.data_type = DataType.DATA_BUFFER
        self.is_compressed = False
        self.num_recycled = 0

    def recycle(self) -> None:
        self.num_recycled += 1
        self._data[:] = b"\xdd" * PAGE  # as a pool does that hands the memory to the next writer


@asynccontextmanager
async def raw_peer(config: NetstackConfig = CONFIG) -> AsyncIterator[tuple[NetworkChannel, Inbox, socket.socket]]:
    """Connect a channel to a plain socket, which reads only when the test does."""
    loop = asyncio.get_running_loop()
    inbox = Inbox()
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)
        address = ConnectionID(*listening.getsockname())
        channel = await connect(config, address, handlers(inbox, config), timeout_s=PATIENCE_S)
        peer, _ = await loop.sock_accept(listening)
    peer.setblocking(False)
    try:
        with peer:
            yield channel, inbox, peer
    finally:
        channel.close()
        await channel.wait_closed()


async def read_bytes(peer: socket.socket, num_bytes: int) -> bytes:
    loop, parts = asyncio.get_running_loop(), list[bytes]()
    while num_bytes:
        part = await loop.sock_recv(peer, min(num_bytes, 1 << 20))
        assert part, "the channel ended early"
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)


def fill(channel: NetworkChannel) -> list[CountedBuffer]:
    """Write buffers until the kernel takes no more and the channel is unwritable."""
    buffers: list[CountedBuffer] = []
    while channel.is_writable:
        assert len(buffers) < 4096, "the kernel takes everything"
        buffers.append(CountedBuffer(len(buffers) % 251))
        channel.write_and_flush([OutboundBuffer(RECEIVER, 0, len(buffers) - 1, 0, buffers[-1])])
    return buffers
