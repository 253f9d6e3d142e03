"""Accepts connections of other TaskManagers and of producers, and connects to them (``connect``).

Side:       loop.
Invariants: without mutual TLS the server listens on loopback addresses only, whatever a host name resolves to.
            ``Admission`` decides which connections are cut when there are too many.  A TLS connection is counted there
            once it is encrypted; until then, at most ``tls_handshake_timeout_s``, ``TlsAcceptor`` has it.  Producers
            with tokens get at most half of the connections, so that they cannot keep TaskManagers out.
Source:     Flink ``NettyServer``, ``NettyClient``.
Absent:     retries of ``connect``, but after a handshake that came too late; ``ConnectionManager`` makes the others.
"""

import asyncio
import contextlib
import secrets
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from netstack.config import NetstackConfig, SecurityConfig, SecurityMode, check_loopback, is_loopback, required_security
from netstack.errors import AuthenticationError, ConnectError, NetstackError, ResourceClosedError
from netstack.flow.admission import Admission, AdmissionStatistics
from netstack.flow.handshake import NONCE_BYTES, Handshake, Role, derive_key
from netstack.ids import ConnectionID
from netstack.late import dataclass
from netstack.log_lines import LogLines, limited_log, shown_state
from netstack.loop.eventloop import running_timeout, wall_clock_ms
from netstack.loop.forks import ClosedInChildren, PortClosedInChildren
from netstack.transport.authentication_handler import (
    AuthenticationHandler,
    LateHandshakeError,
    PeerCheck,
    refuse_certificate,
)
from netstack.transport.handler import Channel, ChannelHandler, ChannelHandlerContext
from netstack.transport.heartbeat_handler import HeartbeatHandler
from netstack.transport.message_codec import behind_decoder
from netstack.transport.network_channel import HandlersFactory, NetworkChannel
from netstack.transport.socket_options import check_congestion_control, within_descriptors
from netstack.transport.tls import TlsAcceptor, timeouts, tls_context
from netstack.wire.offer_messages import GateIdentity, gate_token

_log = LogLines(__name__)

# From accept() to connection_made asyncio takes three turns of the loop (a task, then a callback), uvloop one.
_ACCEPT_PASSES = 3
_CLOSE_MARGIN_S = 0.2  # a connection that is cut at its deadline ends one turn of the loop later


class _ChannelGroup(ChannelHandler):
    """The first handler of every pipeline of a server, shared by all: keeps the set of channels."""

    def __init__(self, config: NetstackConfig, security: SecurityConfig) -> None:
        self.channels: set[NetworkChannel] = set()
        self._producers: set[NetworkChannel] = set()
        self._max_producers = max(1, config.max_connections // 2)
        self.is_closed = False
        # Failed peers could fill a disk; ``num_failed_authentications`` and ``admission_statistics`` count all of them.
        self.log = limited_log(__name__, time.monotonic)
        self._is_open_to_all = security.mode is SecurityMode.NONE
        self.admission: Admission[NetworkChannel] = Admission(
            max_connections=config.max_connections,
            max_unauthenticated=within_descriptors(security.max_unauthenticated),
            max_unauthenticated_per_host=security.max_unauthenticated_per_host,
        )

    def authenticated(self, channel: Channel, gate: GateIdentity | None) -> None:
        """Note that the peer of ``channel`` is authenticated; ``gate``: the gate that it may offer partitions to; None:
        it knows the secret.
        """
        assert isinstance(channel, NetworkChannel), "a server makes NetworkChannels"
        # A channel that has ended in the meantime would stay among the producers for ever.
        if gate is not None and channel in self.channels:
            limit = self._max_producers
            if len(self._producers) >= limit:
                text = "a producer was refused: there are too many"
                self.log.warning(text, peer=channel.peer, gate=str(gate), limit=limit)
                channel.abort()
                return
            self._producers.add(channel)
        self.admission.authenticate(channel)

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        """Count a new channel, and cut others for it if necessary, or refuse it."""
        channel = ctx.channel
        assert isinstance(channel, NetworkChannel), "a server makes NetworkChannels"
        evicted = self.admission.arrive(channel, channel.peer_host)
        if evicted is None:
            text = "a connection was refused: there are too many"
            self.log.warning(text, peer=channel.peer, admission=repr(self.admission))
            channel.abort()
            return
        # Before the event goes on: a handler that closes the channel in it must find it counted.
        self.channels.add(channel)
        for each in evicted:
            text = "a connection was cut: too many are not authenticated"
            self.log.warning(text, peer=each.peer, admission=repr(self.admission))
            each.abort()
        if self._is_open_to_all:
            self.admission.authenticate(channel)
        ctx.fire_channel_active()
        # Behind the event: handlers hear of an end only if they have heard of the beginning.
        if self.is_closed:
            # The kernel accepted it before the server stopped listening.
            channel.close()

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        assert isinstance(ctx.channel, NetworkChannel), "a server makes NetworkChannels"
        # The handlers behind never heard of a channel that was refused.
        if ctx.channel in self.channels:
            self.channels.remove(ctx.channel)
            self._producers.discard(ctx.channel)
            self.admission.leave(ctx.channel)
            ctx.fire_channel_inactive()


class NetworkServer:
    """Accepts connections and gives each its own pipeline, with the authentication that ``config.security`` asks for.

    Threading: loop thread only.
    Life cycle: ``start`` once, ``close`` once or more.
    """

    def __init__(self, config: NetstackConfig, handlers_factory: HandlersFactory) -> None:
        self._config = config
        # None never gets beyond ``start``.
        self._security = SecurityConfig.none() if config.security is None else config.security
        self._key = derive_key(self._security.secret)
        self._handlers_factory = handlers_factory
        self._group = _ChannelGroup(config, self._security)
        self._server: asyncio.Server | None = None
        self._tls: TlsAcceptor | None = None
        self._guards: list[ClosedInChildren | PortClosedInChildren] = []  # while it listens
        self._num_failed = 0

    def __repr__(self) -> str:
        state = shown_state("new", closed=self._group.is_closed, listening=self._server is not None)
        return f"<NetworkServer {state}, {self.num_channels} channels>"

    @property
    def num_channels(self) -> int:
        """Connections, including those not yet authenticated."""
        return len(self._group.channels)

    @property
    def num_handshakes(self) -> int:
        """Connections inside their TLS handshake, which ``num_channels`` does not count."""
        return 0 if self._tls is None else self._tls.num_handshakes

    @property
    def num_failed_authentications(self) -> int:
        """How many connections failed their handshake, of TLS or of the secret."""
        return self._num_failed + (0 if self._tls is None else self._tls.num_failed)

    @property
    def has_lost_port(self) -> bool:
        """Whether other code of this process has closed or replaced a listening socket, so that no connection comes any
        more.
        """
        guards = () if self._group.is_closed else self._guards
        return not all(guard.is_intact for guard in guards if isinstance(guard, ClosedInChildren))

    def admission_statistics(self) -> AdmissionStatistics:
        """Return the numbers of connections now, and of connections that were cut or refused because there were too
        many.
        """
        return self._group.admission.statistics()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; port 0 picks a free one.  Returns (host, port) to connect to.

        Raises:
            ConfigError: ``config.security`` is not set, its certificates cannot be read, or it is not TLS and ``host``
                is not a loopback address; or the kernel does not have ``config.congestion_control``.
            OSError: the address cannot be bound.
            ResourceClosedError: the server was closed.
        """
        security = required_security(self._config.security)
        if security.tls is None:
            check_loopback(host)
        check_congestion_control(self._config.congestion_control)
        if self._group.is_closed:
            raise ResourceClosedError("the server was closed")
        assert self._server is None, "a server is started once"
        tls = None if security.tls is None else TlsAcceptor(security, self._make_channel, self._on_tls_failed)
        # Not serving yet: a host name is resolved here, and its addresses are checked before a peer can connect.
        server = await asyncio.get_running_loop().create_server(
            self._make_channel, host, port, backlog=self._config.backlog, start_serving=False
        )
        # Kept before the first check that may raise: ``close`` then closes the sockets.
        self._server = server
        # Also of a connection that was accepted, but has no channel yet.
        ports = {each.getsockname()[1] for each in server.sockets}
        self._guards = [
            *(ClosedInChildren(each.fileno(), server) for each in server.sockets),
            *map(PortClosedInChildren, ports),
        ]
        if tls is not None:
            self._tls = tls
            tls.serve(server.sockets, self._config.backlog)
        else:
            for each in server.sockets:
                check_loopback(str(each.getsockname()[0]))
            await server.start_serving()
        bound_host, bound_port = server.sockets[0].getsockname()[:2]
        return str(bound_host), int(bound_port)

    async def close(self) -> None:
        """Stop listening and close every connection; returns when all are gone, at the latest shortly after
        ``close_timeout_s``.
        """
        # First: a connection that is accepted from now on is closed as soon as it is active.
        self._group.is_closed = True
        # Before the descriptors close: their numbers may then mean other files, which a forked child must keep.
        for guard in self._guards:
            guard.release()
        if self._server is not None:
            self._server.close()
            for _ in range(_ACCEPT_PASSES):
                await asyncio.sleep(0)
        if self._tls is not None:
            await self._tls.close()
        # A copy: each channel leaves the set when it ends.
        channels = list(self._group.channels)
        for channel in channels:
            if self._group.admission.is_authenticated(channel):
                channel.close()
            else:
                channel.abort()  # an unauthenticated peer was sent nothing but the handshake
        try:
            async with asyncio.timeout(self._config.close_timeout_s + _CLOSE_MARGIN_S):
                await self._wait_closed(channels)
        except TimeoutError:
            _log.warning(
                "the server does not wait any longer for its connections to end",
                peers=[each.peer for each in self._group.channels],
            )

    async def _wait_closed(self, channels: list[NetworkChannel]) -> None:
        for channel in channels:
            await channel.wait_closed()  # waits for the connection to close; ended by the timeout of close()
        if self._server is not None:
            # waits for the listening sockets to close; ended by the timeout of close()
            await self._server.wait_closed()

    def _make_channel(self) -> NetworkChannel:
        return NetworkChannel(self._config, self._handlers)

    def _handlers(self) -> tuple[ChannelHandler, ...]:
        security = self._security
        handlers = self._handlers_factory()
        # The group comes first in each case: it counts a connection before its peer has said anything.
        if security.mode is SecurityMode.NONE:
            return (self._group, *handlers)
        if security.mode is SecurityMode.CERTIFICATES:
            assert security.tls is not None, "checked when it was made"
            check = PeerCheck(
                partial(refuse_certificate, security.tls),
                on_ready=lambda channel: self._group.authenticated(channel, None),
                on_failed=self._on_failed,
            )
            return (self._group, check, *handlers)
        handshake = Handshake(
            Role.PRODUCER,
            self._key,
            secrets.token_bytes(NONCE_BYTES),
            is_tls_required=security.mode is SecurityMode.TLS,
            gate_key=self._gate_key,
            authorities=security.authorities,
        )
        loop = asyncio.get_running_loop()
        authentication = AuthenticationHandler(
            handshake,
            loop,
            timeout_s=security.handshake_timeout_s,
            failure_delay_s=security.failure_delay_s,
            pins=frozenset() if security.tls is None else security.tls.pins,
            on_ready=lambda channel: self._group.authenticated(channel, handshake.peer_gate),
            on_failed=self._on_failed,
            log=self._group.log,
        )
        heartbeats = HeartbeatHandler(self._config, loop, sends_first=False)
        return (self._group, *behind_decoder(handlers, authentication), heartbeats)

    def _gate_key(self, gate: GateIdentity) -> bytes | None:
        # Asked at each handshake: a token expires while the server runs.
        if gate.is_expired(wall_clock_ms()):
            return None
        return derive_key(gate_token(self._security.secret, gate))

    def _on_tls_failed(self, error: Exception) -> None:
        self._group.log.warning("a connection was not encrypted", error=str(error), kind=type(error).__name__)

    def _on_failed(self, _error: NetstackError) -> None:
        self._num_failed += 1


async def connect(
    config: NetstackConfig,
    connection_id: ConnectionID,
    handlers_factory: HandlersFactory,
    timeout_s: float,
    gate: GateIdentity | None = None,
) -> NetworkChannel:
    """Connect and authenticate; returns a channel whose handlers have seen ``channel_active``.

    Args:
        config: with the secret, or with the token of ``gate`` in its place.
        connection_id: the peer's address.
        handlers_factory: makes the handlers of the pipeline.
        timeout_s: for the connection, TLS and the handshake together; time in which this loop stood still does not
            count.
        gate: the gate to offer partitions to; None: the connection is for partition requests.

    Raises:
        AuthenticationError: one end did not prove that it knows the secret, or TLS failed.
        ConfigError: ``config.security`` is not set, its certificates cannot be read, or the kernel does not offer
            ``config.congestion_control``.
        ConnectError: the peer does not listen or hangs up at once, the address is not allowed, or ``timeout_s`` is
            over.
    """
    security = required_security(config.security)
    if security.tls is None and not is_loopback(connection_id.host):
        raise ConnectError(
            f"cannot connect to {connection_id}: only loopback addresses are allowed with security mode {security.mode}"
        )
    check_congestion_control(config.congestion_control)
    # Again only after a handshake that came too late: any other refusal would come again.
    for _ in range(_MAX_LATE_HANDSHAKES):
        with contextlib.suppress(LateHandshakeError):
            return await _Dial(config, security, connection_id, handlers_factory, timeout_s, gate).run()
    return await _Dial(config, security, connection_id, handlers_factory, timeout_s, gate).run()


_MAX_LATE_HANDSHAKES = 10  # each of them took seconds, in which a function kept the interpreter's lock


@dataclass(eq=False)
class _Dial:
    """One connection until it is ready."""

    config: NetstackConfig
    security: SecurityConfig
    address: ConnectionID
    handlers_factory: HandlersFactory
    timeout_s: float
    gate: GateIdentity | None

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._channel = NetworkChannel(self.config, self._handlers)

    async def run(self) -> NetworkChannel:
        channel = self._channel
        try:
            await self._connect()
        except BaseException:  # also a cancellation that arrives when the connection is just ready
            self._ready.cancel()  # nobody waits for it any more
            channel.abort()
            await channel.wait_closed()  # waits for an aborted connection; ended by the next pass of the loop
            raise
        return channel

    async def _connect(self) -> None:
        address = self.address
        try:
            # One limit for all steps: a peer that is slow in each of them must not take as long as their sum.
            async with running_timeout(self.timeout_s):
                await self._dial()
                await self._ready
        except TimeoutError as error:
            raise ConnectError(f"cannot connect to {address} within {self.timeout_s:g} s") from error
        except ssl.SSLError as error:
            raise AuthenticationError(f"cannot connect to {address}: TLS failed: {error}") from error
        except (OSError, OverflowError, UnicodeError) as error:
            # OverflowError: a port beyond 65535.  UnicodeError: a host that no name service can look up.
            raise ConnectError(f"cannot connect to {address}: {type(error).__name__}: {error}") from error

    async def _dial(self) -> None:
        """Connect; a cancellation reaches ``create_connection`` only before ``connection_made``.

        Later, uvloop would close the transport without calling ``connection_lost``, and ``wait_closed`` would never
        return.
        """
        address = self.address
        channel = self._channel
        dial = self._loop.create_task(
            self._loop.create_connection(lambda: channel, address.host, address.port, **self._tls_options()),
            name=f"dial {address}",
        )
        try:
            await asyncio.shield(dial)  # waits for the connection; ended by the timeout of its caller
        except asyncio.CancelledError:
            if channel.is_connecting:
                dial.cancel()
            # waits for TLS of a cancelled attempt; ended by tls_handshake_timeout_s
            await asyncio.gather(dial, return_exceptions=True)
            raise

    def _tls_options(self) -> dict[str, Any]:
        tls = self.security.tls
        if tls is None:
            return {}
        return {
            "ssl": tls_context(tls, is_server=False),
            "server_hostname": self.address.host,
            **timeouts(self.security),
        }

    def _handlers(self) -> tuple[ChannelHandler, ...]:
        security = self.security
        handlers = self.handlers_factory()
        if security.mode is SecurityMode.NONE:
            return (self._loopback_check(self._succeed), *handlers)
        if security.mode is SecurityMode.CERTIFICATES:
            assert security.tls is not None, "checked when it was made"
            check = partial(refuse_certificate, security.tls)
            return (PeerCheck(check, on_ready=self._succeed, on_failed=self._fail), *handlers)
        handshake = Handshake(
            Role.CONSUMER,
            derive_key(security.secret),
            secrets.token_bytes(NONCE_BYTES),
            is_tls_required=security.mode is SecurityMode.TLS,
            gate=self.gate,
        )
        authentication = AuthenticationHandler(
            handshake,
            self._loop,
            # Not ``handshake_timeout_s``: a peer that is only busy must not look like an impostor.
            timeout_s=self.timeout_s,
            failure_delay_s=0,
            pins=frozenset() if security.tls is None else security.tls.pins,
            on_ready=self._succeed,
            on_failed=self._fail,
            late_after_s=security.handshake_timeout_s,
        )
        behind = (
            *behind_decoder(handlers, authentication),
            HeartbeatHandler(self.config, self._loop, sends_first=True),
        )
        return behind if security.mode is SecurityMode.TLS else (self._loopback_check(lambda _: None), *behind)

    def _loopback_check(self, on_ready: Callable[[Channel], object]) -> PeerCheck:
        """Make the first handler without TLS: the name may have been resolved to another machine's address."""
        # Before any byte of ours: a proof must not go to another machine in the clear.
        return PeerCheck(self._refuse_other_machine, on_ready=on_ready, on_failed=self._fail)

    def _refuse_other_machine(self, channel: Channel) -> ConnectError | None:
        if is_loopback(self._channel.peer_host):
            return None
        return ConnectError(
            f"cannot connect to {self.address}: that is {channel.peer}, and only loopback addresses are allowed "
            "without TLS"
        )

    def _succeed(self, _channel: Channel) -> None:
        # ``run`` cancels the future when its caller gives up; the connection may become ready just then.
        if not self._ready.done():
            self._ready.set_result(None)

    def _fail(self, error: NetstackError) -> None:
        # The end of a connection that was ready before, or that nobody waits for.
        if not self._ready.done():
            self._ready.set_exception(error)
