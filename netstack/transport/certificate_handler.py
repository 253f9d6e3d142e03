"""Accepts a peer by its certificate alone, which TLS has verified: for peers without our handshake.

Side:   loop.
Source: Flink's ``security.ssl.internal``, with TLS 1.3: both ends have a certificate of one private CA.
"""

from collections.abc import Callable

from netstack.errors import AuthenticationError, NetstackError
from netstack.transport.handler import Channel, ChannelHandler, ChannelHandlerContext
from netstack.transport.tls import is_expected


class CertificateHandler(ChannelHandler):
    """Looks once at the peer's certificate, then leaves the pipeline.

    Args:
        pins: SHA-256 digests of the accepted certificates; empty: every certificate that TLS accepts.
        on_ready: called behind ``channel_active`` of the handlers.
        on_failed: called with the cause when the connection is ended instead.
    """

    def __init__(
        self, pins: frozenset[bytes], *, on_ready: Callable[[Channel], None], on_failed: Callable[[NetstackError], None]
    ) -> None:
        self._pins = pins
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._is_refused = False

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        """Let the handlers behind see the channel, or end it."""
        channel = ctx.channel
        if not is_expected(channel.peer_certificate, self._pins):
            self._is_refused = True
            self._on_failed(
                AuthenticationError(
                    f"{channel.peer} has none of the expected certificates (security.tls.peer_fingerprints)"
                )
            )
            channel.abort()
            return
        ctx.pipeline.remove(ctx)
        ctx.fire_channel_active()
        self._on_ready(channel)

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        """Pass it on only if ``channel_active`` was."""
        if not self._is_refused:
            ctx.fire_channel_inactive()
