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
from functools import partial
from typing import Any

from netstack.config import NetstackConfig
from netstack.errors import AuthenticationError, ConnectError, NetstackError
from netstack.flow.handshake import NONCE_BYTES, Handshake, Role, derive_key
from netstack.ids import ConnectionID
from netstack.late import dataclass
from netstack.loop.loop_timers import running_timeout
from netstack.security import SecurityConfig, SecurityMode, is_loopback, required_security
from netstack.transport.authentication_handler import (
    AuthenticationHandler,
    LateHandshakeError,
    PeerCheck,
    refuse_certificate,
)
from netstack.transport.handler import Channel, ChannelHandler
from netstack.transport.heartbeat_handler import HeartbeatHandler
from netstack.transport.message_codec import behind_decoder
from netstack.transport.network_channel import HandlersFactory, NetworkChannel
from netstack.transport.socket_options import check_congestion_control
from netstack.transport.tls import timeouts, tls_context
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


@dataclass(eq=False)
class _Attempt:
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
        """The first handler without TLS: the name may have been resolved to another machine's address."""
        return PeerCheck(self._refuse_other_machine, on_ready=on_ready, on_failed=self._fail)

    def _refuse_other_machine(self, channel: Channel) -> ConnectError | None:
        if is_loopback(self._channel.peer_host):
            return None
        return ConnectError(
            f"cannot connect to {self.address}: that is {channel.peer}, and only loopback addresses are allowed "
            "without TLS"
        )

    def _succeed(self, _channel: Channel) -> None:
        if not self._ready.done():
            self._ready.set_result(None)

    def _fail(self, error: NetstackError) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
