"""Connects to another TaskManager.

Side:   loop.
Source: Flink ``NettyClient``.
Absent: retries, but after a handshake that came too late; ``ConnectionManager`` makes the others.
"""

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import Callable
from typing import Any

from netstack.config import NetstackConfig
from netstack.errors import AuthenticationError, ConnectError, NetstackError
from netstack.flow.handshake import NONCE_BYTES, Handshake, Role, derive_key
from netstack.ids import ConnectionID
from netstack.loop.loop_timers import running_timeout
from netstack.security import SecurityConfig, SecurityMode, is_loopback, required_security
from netstack.transport.authentication_handler import AuthenticationHandler, CertificateHandler, LateHandshakeError
from netstack.transport.handler import Channel, ChannelHandler, ChannelHandlerContext
from netstack.transport.heartbeat_handler import HeartbeatHandler
from netstack.transport.message_codec import behind_decoder
from netstack.transport.network_channel import HandlersFactory, NetworkChannel
from netstack.transport.socket_options import check_congestion_control
from netstack.transport.tls import client_context, timeouts
from netstack.wire.offer_messages import GateIdentity


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
    for _ in range(_MAX_LATE_HANDSHAKES):
        with contextlib.suppress(LateHandshakeError):
            return await _Attempt(config, security, connection_id, handlers_factory, timeout_s, gate).run()
    return await _Attempt(config, security, connection_id, handlers_factory, timeout_s, gate).run()


_MAX_LATE_HANDSHAKES = 10  # each of them took seconds, in which a function kept the interpreter's lock


class _LoopbackOnly(ChannelHandler):
    """First handler of a connection without TLS: closes it if the name was resolved to another machine's address."""

    def __init__(self, on_loopback: Callable[[], None], on_refused: Callable[[str], None]) -> None:
        self._on_loopback = on_loopback
        self._on_refused = on_refused
        self._is_refused = False

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        assert isinstance(ctx.channel, NetworkChannel), "a client makes NetworkChannels"
        if is_loopback(ctx.channel.peer_host):
            self._on_loopback()
            ctx.fire_channel_active()
        else:
            self._is_refused = True
            self._on_refused(ctx.channel.peer)
            ctx.channel.abort()

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        if not self._is_refused:
            ctx.fire_channel_inactive()


class _Attempt:
    """One connection until it is ready."""

    def __init__(
        self,
        config: NetstackConfig,
        security: SecurityConfig,
        connection_id: ConnectionID,
        handlers_factory: HandlersFactory,
        timeout_s: float,
        gate: GateIdentity | None,
    ) -> None:
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._security = security
        self._id = connection_id
        self._timeout_s = timeout_s
        self._channel = NetworkChannel(config, lambda: self._handlers(config, handlers_factory))

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
        address, timeout_s = self._id, self._timeout_s
        try:
            async with running_timeout(timeout_s):
                await self._dial()
                await self._ready
        except TimeoutError as error:
            raise ConnectError(f"cannot connect to {address} within {timeout_s:g} s") from error
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
        address, channel = self._id, self._channel
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
        tls = self._security.tls
        if tls is None:
            return {}
        return {"ssl": client_context(tls), "server_hostname": self._id.host, **timeouts(self._security)}

    def _handlers(self, config: NetstackConfig, handlers_factory: HandlersFactory) -> tuple[ChannelHandler, ...]:
        security, handlers = self._security, handlers_factory()
        if security.mode is SecurityMode.NONE:
            return (_LoopbackOnly(self._succeed, self._refuse), *handlers)
        if security.mode is SecurityMode.CERTIFICATES:
            assert security.tls is not None, "checked when it was made"
            return (CertificateHandler(security.tls.pins, on_ready=self._succeed, on_failed=self._fail), *handlers)
        handshake = Handshake(
            Role.CONSUMER,
            derive_key(security.secret),
            secrets.token_bytes(NONCE_BYTES),
            is_tls_required=security.mode is SecurityMode.TLS,
            gate=self._gate,
        )
        authentication = AuthenticationHandler(
            handshake,
            self._loop,
            # Not ``handshake_timeout_s``: a peer that is only busy must not look like an impostor.
            timeout_s=self._timeout_s,
            failure_delay_s=0,
            pins=frozenset() if security.tls is None else security.tls.pins,
            on_ready=self._succeed,
            on_failed=self._fail,
            late_after_s=security.handshake_timeout_s,
        )
        behind = (*behind_decoder(handlers, authentication), HeartbeatHandler(config, self._loop, sends_first=True))
        return behind if security.mode is SecurityMode.TLS else (_LoopbackOnly(lambda: None, self._refuse), *behind)

    def _succeed(self, _channel: Channel | None = None) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    def _refuse(self, peer: str) -> None:
        self._fail(
            ConnectError(
                f"cannot connect to {self._id}: that is {peer}, and only loopback addresses are allowed without TLS"
            )
        )

    def _fail(self, error: NetstackError) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
