"""Listens for other TaskManagers.

Side:   loop.
Source: Flink ``NettyServer``.
Absent: TLS; a limit on the number of connections.
"""

import asyncio

from netstack.channel.handler import ChannelHandler, ChannelHandlerContext
from netstack.channel.protocol import HandlersFactory, NetworkChannel
from netstack.config import NetstackConfig
from netstack.errors import ResourceClosedError
from netstack.security import check_loopback

# From accept() to connection_made asyncio takes three turns of the loop (a task, then a callback), uvloop one.
_ACCEPT_PASSES = 3


class _ChannelGroup(ChannelHandler):
    """First in every pipeline of a server: knows which channels are connected.  Shared by all of them."""

    def __init__(self) -> None:
        self.channels: set[NetworkChannel] = set()
        self.is_closed = False

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        assert isinstance(ctx.channel, NetworkChannel), "a server makes NetworkChannels"
        self.channels.add(ctx.channel)
        ctx.fire_channel_active()
        if self.is_closed:
            # Accepted by the kernel before the server stopped to listen.
            ctx.channel.close()

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        assert isinstance(ctx.channel, NetworkChannel), "a server makes NetworkChannels"
        self.channels.discard(ctx.channel)
        ctx.fire_channel_inactive()


class NetworkServer:
    """Accepts connections and gives each its own pipeline.

    Threading: loop thread only.
    Life cycle: ``start`` once, ``close`` once or more.
    """

    def __init__(self, config: NetstackConfig, handlers_factory: HandlersFactory) -> None:
        self._config = config
        self._handlers_factory = handlers_factory
        self._group = _ChannelGroup()
        self._server: asyncio.Server | None = None

    def __repr__(self) -> str:
        state = "closed" if self._group.is_closed else "listening" if self._server is not None else "new"
        return f"<NetworkServer {state}, {self.num_channels} channels>"

    @property
    def num_channels(self) -> int:
        """How many connections there are."""
        return len(self._group.channels)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; port 0 picks a free one.  Returns the address to connect to.

        Raises:
            ConfigError: ``host`` is not a loopback address.
            OSError: the address cannot be bound.
            ResourceClosedError: the server was closed.
        """
        check_loopback(host)
        if self._group.is_closed:
            raise ResourceClosedError("the server was closed")
        assert self._server is None, "a server is started once"
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._make_channel, host, port, backlog=self._config.backlog)
        self._server = server
        bound_host, bound_port = server.sockets[0].getsockname()[:2]
        return str(bound_host), int(bound_port)

    async def close(self) -> None:
        """Stop to listen and close every connection; returns once all are gone, at the latest after ``close_timeout_s``."""
        self._group.is_closed = True
        if self._server is not None:
            self._server.close()
            for _ in range(_ACCEPT_PASSES):
                await asyncio.sleep(0)
        channels = list(self._group.channels)
        for channel in channels:
            channel.close()
        for channel in channels:
            await channel.wait_closed()
        if self._server is not None:
            await self._server.wait_closed()

    def _make_channel(self) -> NetworkChannel:
        return NetworkChannel(self._config, lambda: (self._group, *self._handlers_factory()))
