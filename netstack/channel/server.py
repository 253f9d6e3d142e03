"""Listens for other TaskManagers.

Side:       loop.
Invariants: nothing listens where other machines can reach it without mutual TLS, whatever a host name turns out to mean.  A connection
            counts from accept on; which ones go when there are too many is the business of ``Admission``.
Source:     Flink ``NettyServer``.
"""

import asyncio
import secrets
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import structlog

from netstack.channel.handler import Channel, ChannelHandler, ChannelHandlerContext
from netstack.channel.message_codec import behind_decoder
from netstack.channel.protocol import HandlersFactory, NetworkChannel, describe_address
from netstack.channel.tls import server_context, timeouts
from netstack.config import NetstackConfig
from netstack.errors import NetstackError, ResourceClosedError
from netstack.flow.admission import Admission, AdmissionStatistics
from netstack.flow.handshake import NONCE_BYTES, Handshake, Role, derive_key
from netstack.handlers.auth import MAX_UNAUTHENTICATED_READ_BYTES, AuthenticationHandler
from netstack.security import SecurityConfig, SecurityMode, check_loopback, required_security

_log = structlog.get_logger(__name__)

# From accept() to connection_made asyncio takes three turns of the loop (a task, then a callback), uvloop one.
_ACCEPT_PASSES = 3


class _ChannelGroup(ChannelHandler):
    """First in every pipeline of a server: knows which channels there are.  Shared by all of them."""

    def __init__(self, config: NetstackConfig, security: SecurityConfig) -> None:
        self.channels: dict[NetworkChannel, Callable[[], None]] = {}  # admitted -> how to cut it
        self.is_closed = False
        self._is_open_to_all = security.mode is SecurityMode.NONE
        self.admission: Admission[NetworkChannel] = Admission(
            max_connections=config.max_connections,
            max_unauthenticated=security.max_unauthenticated,
            max_unauthenticated_per_host=security.max_unauthenticated_per_host,
        )

    def admit(self, channel: NetworkChannel, peer: str, cut: Callable[[], None]) -> bool:
        """Take in a connection that was accepted, at the cost of others if need be; False: it has to go."""
        evicted = self.admission.arrive(channel, peer.rpartition(":")[0].strip("[]"))
        if evicted is None:
            _log.warning("a connection was refused: there are too many", peer=peer, admission=repr(self.admission))
            return False
        self.channels[channel] = cut
        for each in evicted:
            _log.warning("a connection was cut: too many are not authenticated", peer=each.peer)
            self.channels[each]()
        return True

    def authenticated(self, channel: Channel) -> None:
        """The peer of one of the channels has shown who it is."""
        assert isinstance(channel, NetworkChannel), "a server makes NetworkChannels"
        self.admission.authenticate(channel)

    def leave(self, channel: NetworkChannel) -> bool:
        """The connection is gone; whether it had been taken in."""
        self.admission.leave(channel)
        return self.channels.pop(channel, None) is not None

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        channel = ctx.channel
        assert isinstance(channel, NetworkChannel), "a server makes NetworkChannels"
        if channel in self.channels:
            self.channels[channel] = channel.abort  # its TLS is up; it was taken in when it was accepted
        elif not self.admit(channel, channel.peer, channel.abort):
            channel.abort()
            return
        if self._is_open_to_all:
            self.admission.authenticate(channel)
        ctx.fire_channel_active()
        if self.is_closed:
            # Accepted by the kernel before the server stopped to listen.
            channel.close()

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        assert isinstance(ctx.channel, NetworkChannel), "a server makes NetworkChannels"
        if self.leave(ctx.channel):
            ctx.fire_channel_inactive()


class NetworkServer:
    """Accepts connections and gives each its own pipeline, with the authentication that ``config.security`` asks for.

    Threading: loop thread only.
    Life cycle: ``start`` once, ``close`` once or more.
    """

    def __init__(self, config: NetstackConfig, handlers_factory: HandlersFactory) -> None:
        self._config = config
        self._security = SecurityConfig.none() if config.security is None else config.security  # None never gets beyond ``start``
        self._key = derive_key(self._security.secret)
        self._handlers_factory = handlers_factory
        self._group = _ChannelGroup(config, self._security)
        self._upgrades: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._num_failed = 0

    def __repr__(self) -> str:
        state = "closed" if self._group.is_closed else "listening" if self._server is not None else "new"
        return f"<NetworkServer {state}, {self.num_channels} channels>"

    @property
    def num_channels(self) -> int:
        """How many connections there are, those not yet authenticated included."""
        return len(self._group.channels)

    @property
    def num_failed_authentications(self) -> int:
        """How many connections ended because the peer did not show who it is."""
        return self._num_failed

    def admission_statistics(self) -> AdmissionStatistics:
        """How many connections there are, and how many were cut or refused because there were too many."""
        return self._group.admission.statistics()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; port 0 picks a free one.  Returns the address to connect to.

        Raises:
            ConfigError: ``config.security`` is not set, its certificates cannot be read, or it is not TLS and ``host`` is not a loopback
                address.
            OSError: the address cannot be bound.
            ResourceClosedError: the server was closed.
        """
        security = required_security(self._config.security)
        is_tls = security.mode is SecurityMode.TLS
        if not is_tls:
            check_loopback(host)
        if self._group.is_closed:
            raise ResourceClosedError("the server was closed")
        assert self._server is None, "a server is started once"
        factory: Callable[[], asyncio.BaseProtocol] = self._make_channel
        if security.tls is not None:
            factory = partial(self._make_upgrade, server_context(security.tls))
        server = await asyncio.get_running_loop().create_server(factory, host, port, backlog=self._config.backlog, start_serving=False)
        self._server = server
        if not is_tls:
            for each in server.sockets:
                check_loopback(str(each.getsockname()[0]))
        await server.start_serving()
        bound_host, bound_port = server.sockets[0].getsockname()[:2]
        return str(bound_host), int(bound_port)

    async def close(self) -> None:
        """Stop to listen and close every connection; returns once all are gone, at the latest after ``close_timeout_s``."""
        self._group.is_closed = True
        if self._server is not None:
            self._server.close()
            for _ in range(_ACCEPT_PASSES):
                await asyncio.sleep(0)
        for upgrade in list(self._upgrades):
            upgrade.cancel()
        await asyncio.gather(*self._upgrades, return_exceptions=True)
        channels = list(self._group.channels)
        for channel in channels:
            if self._group.admission.is_authenticated(channel):
                channel.close()
            else:
                channel.abort()  # nobody whom we owe a farewell
        for channel in channels:
            await channel.wait_closed()
        if self._server is not None:
            await self._server.wait_closed()

    def _make_channel(self) -> NetworkChannel:
        security = self._security
        if security.mode is SecurityMode.NONE:
            return NetworkChannel(self._config, lambda: (self._group, *self._handlers_factory()))
        authentication = AuthenticationHandler(
            Handshake(Role.PRODUCER, self._key, secrets.token_bytes(NONCE_BYTES), is_tls_required=security.mode is SecurityMode.TLS),
            asyncio.get_running_loop(),
            timeout_s=security.handshake_timeout_s,
            failure_delay_s=security.failure_delay_s,
            pins=frozenset() if security.tls is None else security.tls.pins,
            on_ready=self._group.authenticated,
            on_failed=self._on_failed,
        )
        return NetworkChannel(self._config, lambda: (self._group, *behind_decoder(self._handlers_factory(), authentication)))

    def _on_failed(self, _error: NetstackError) -> None:
        self._num_failed += 1

    def _make_upgrade(self, context: ssl.SSLContext) -> "_TlsUpgrade":
        return _TlsUpgrade(self._make_channel(), self._group, partial(self._upgrade, context))

    def _upgrade(self, context: ssl.SSLContext, upgrade: "_TlsUpgrade") -> None:
        task = asyncio.get_running_loop().create_task(self._run_upgrade(context, upgrade), name=f"TLS with {upgrade.peer}")
        self._upgrades.add(task)
        task.add_done_callback(self._upgrades.discard)

    async def _run_upgrade(self, context: ssl.SSLContext, upgrade: "_TlsUpgrade") -> None:
        is_ready = False
        try:
            is_ready = await upgrade.run(context, timeouts(self._security))
        except (OSError, TimeoutError) as error:  # SSLError is an OSError
            self._num_failed += 1
            _log.warning("a connection was not encrypted", peer=upgrade.peer, reason=repr(f"{type(error).__name__}: {error}"[:200]))
        finally:
            if not is_ready:
                upgrade.give_up()


class _TlsUpgrade(asyncio.Protocol):
    """A connection between accept and the end of its TLS handshake; then its ``NetworkChannel`` takes over.

    asyncio could do this by itself, but it tells nobody of connections that are not encrypted yet: they could not be counted or cut.
    """

    def __init__(self, channel: NetworkChannel, group: _ChannelGroup, begin: Callable[["_TlsUpgrade"], None]) -> None:
        self.peer = "nobody yet"
        self._channel = channel
        self._group = group
        self._begin = begin
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tcp = self._transport = cast(asyncio.Transport, transport)
        tcp.pause_reading()  # nothing is read as plaintext
        self.peer = describe_address(tcp.get_extra_info("peername"))
        if self._group.is_closed or not self._group.admit(self._channel, self.peer, tcp.abort):
            tcp.abort()
        else:
            self._begin(self)

    def data_received(self, data: bytes) -> None:
        """Plaintext: never looked at (CVE-2023-40217)."""
        self.give_up()

    async def run(self, context: ssl.SSLContext, options: dict[str, Any]) -> bool:
        """Encrypt, and hand over to the channel; whether that was done."""
        assert self._transport is not None, "begun when it was connected"
        early = _EarlyBytes(self._transport.abort)
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(self._transport, early, context, server_side=True, **options)
        if transport is None or early.is_lost:
            return False
        transport.set_protocol(self._channel)
        self._channel.connection_made(transport)
        early.hand_over(self._channel)
        return True

    def give_up(self) -> None:
        """Cut it, if it is still there."""
        self._group.leave(self._channel)
        if self._transport is not None:
            self._transport.abort()


class _EarlyBytes(asyncio.BufferedProtocol):
    """Keeps what a peer sends right behind its half of the TLS handshake, until the channel is there to read it."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self.is_lost = False
        self._abort = abort
        self._bytes = memoryview(bytearray(MAX_UNAUTHENTICATED_READ_BYTES))
        self._num_bytes = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._bytes[self._num_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        self._num_bytes += nbytes
        if self._num_bytes == len(self._bytes):
            self._abort()  # an honest peer sends one small message and waits

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def hand_over(self, channel: NetworkChannel) -> None:
        """Give the channel what came."""
        start = 0
        while start < self._num_bytes and channel.is_open:
            buffer = channel.get_buffer(-1)
            num_bytes = min(len(buffer), self._num_bytes - start)
            buffer[:num_bytes] = self._bytes[start : start + num_bytes]
            start += num_bytes
            channel.buffer_updated(num_bytes)
