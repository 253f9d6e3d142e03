"""Runs the handshake of a connection before any other handler sees the connection.

``PeerCheck`` accepts a peer by its address, or by its certificate alone, which TLS has verified: for peers without our
handshake.

Side:       loop.
Invariants: until the handshake is over, the decoder accepts nothing but its messages, one by one, and has little
            memory.  Then the handler seals the connection (without TLS), fires ``channel_active`` and leaves the
            pipeline: it costs nothing per message.  A peer that fails learns neither the reason nor the moment: the
            server sends nothing more, reads nothing more and closes the connection ``failure_delay_s`` later.
Rules:      a server that hangs up before its hello has not judged the secret, which it was not shown yet: that is a
            ``ConnectError``, and another attempt may help.  A certificate or a producer's token can be refused there,
            so with these it stays an ``AuthenticationError``.
Source:     modelled on Netty's ``SslHandler`` and ``ProtocolNegotiationHandler``.  Flink's ``security.ssl.internal``,
            with TLS 1.3: both ends have a certificate of one private CA.
"""

import asyncio
import math
from collections.abc import Callable
from functools import partial

from netstack.config import TlsConfig
from netstack.errors import AuthenticationError, ConnectError, ConnectionLostError, LocalProtocolError, NetstackError
from netstack.flow.handshake import Handshake, HandshakePhase
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.eventloop import RunningTimer
from netstack.transport.handler import Channel, ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import MessageDecoder
from netstack.transport.tls import is_expected
from netstack.wire.frame_decoder import FrameSeal
from netstack.wire.message_bytes import HANDSHAKE_MESSAGE_IDS
from netstack.wire.messages import HandshakeMessage


@dataclass(eq=False, repr=False)
class PeerCheck(ChannelHandler):
    """Looks once at the peer, then leaves the pipeline, or ends the connection.

    Args:
        refuse: what is wrong with the peer; None: nothing.
        on_ready: called behind ``channel_active`` of the handlers.
        on_failed: called with the cause when the connection is ended instead.
    """

    refuse: Callable[[Channel], NetstackError | None]
    on_ready: Callable[[Channel], object]
    on_failed: Callable[[NetstackError], None]
    _is_refused: bool = False

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        """Let the handlers behind see the channel, or end it."""
        channel = ctx.channel
        error = self.refuse(channel)
        if error is not None:
            # Before the abort, whose ``channel_inactive`` must not reach handlers that have never seen the channel.
            self._is_refused = True
            self.on_failed(error)
            channel.abort()
            return
        ctx.pipeline.remove(self)
        ctx.fire_channel_active()
        self.on_ready(channel)

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        """Pass the event on only if ``channel_active`` was passed on."""
        if not self._is_refused:
            ctx.fire_channel_inactive()


def refuse_certificate(tls: TlsConfig, channel: Channel) -> AuthenticationError | None:
    """Check the peer's certificate for ``PeerCheck``: return an error if it is none of the pinned ones."""
    if is_expected(channel.peer_certificate, tls.pins):
        return None
    return AuthenticationError(f"{channel.peer} has none of the expected certificates (security.tls.peer_fingerprints)")


_log = LogLines(__name__)

_MAX_REASON_CHARACTERS = 200  # the text may quote a stranger's message


@dataclass(eq=False)
class AuthenticationHandler(ChannelHandler):
    """The handler right behind the ``MessageDecoder``; one per connection.

    Life cycle: calls ``on_ready`` (after ``channel_active``) or ``on_failed``, once.

    Args:
        handshake: this end of the handshake.
        loop: for the two timers.
        timeout_s: from connected to ready; time in which this loop stood still does not count.
        failure_delay_s: from a failure to the close.
        pins: SHA-256 digests of the accepted certificates; empty: every certificate that TLS accepts.
        on_ready: the connection is ready.
        on_failed: the connection failed; gets the cause.
        late_after_s: a peer that hangs up so long after this end began to dial may have waited for it in vain, or was
            late itself: that is a ``LateHandshakeError``.
        log: of failures; that of a server is limited.
    """

    handshake: Handshake
    loop: asyncio.AbstractEventLoop
    timeout_s: float
    failure_delay_s: float
    on_ready: Callable[[Channel], None]
    on_failed: Callable[[NetstackError], None]
    pins: frozenset[bytes] = frozenset()
    late_after_s: float = math.inf
    log: LogLines = _log

    def __post_init__(self) -> None:
        self._timer: asyncio.TimerHandle | RunningTimer | None = None
        self._began_s = self.loop.time()
        self._decoder: MessageDecoder | None = None
        self._has_failed = False
        self._is_judged_late = False  # the peer judges this end only after its first message, which has not come yet

    def __repr__(self) -> str:
        return f"<AuthenticationHandler of {self.handshake!r}>"

    def handler_added(self, ctx: ChannelHandlerContext) -> None:
        """Let the decoder accept only messages of the handshake.

        Raises:
            LocalProtocolError: there is no decoder.
        """
        self._decoder = ctx.pipeline.find(MessageDecoder)
        if self._decoder is None:
            raise LocalProtocolError(f"{ctx.pipeline!r} has no MessageDecoder to protect")
        # A stranger gets little memory: otherwise each connection costs a read buffer of 1 MiB before its peer has
        # proven anything.
        self._decoder.frames.accept(HANDSHAKE_MESSAGE_IDS, is_known=False)

    def handler_removed(self, ctx: ChannelHandlerContext) -> None:
        """Cancel the timers."""
        self._cancel_timer()

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        """Start the handshake; the event is passed on when it is over."""
        # First: a peer that never says anything is cut as well.
        late = _RefusedError(f"it did not finish the handshake within {self.timeout_s:g} s")
        self._timer = RunningTimer(self.loop, self.timeout_s, partial(self._fail, ctx, late))
        try:
            authority = ctx.channel.peer if self.handshake.is_client else ctx.channel.local_address
            binding = self._tls_binding(ctx)
            self._is_judged_late = self.handshake.is_consumer and binding is None
            messages = self.handshake.connected(tls_binding=binding, authority=authority)
        except NetstackError as error:
            self._fail(ctx, error)
        else:
            self._send(ctx, messages)

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        """Fail the handshake; the event is not passed on, because ``channel_active`` was not."""
        if not self._has_failed:
            self._report(ctx, _PeerGoneError("it closed the connection during the handshake"))
        self._cancel_timer()

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        """Process the next message of the handshake; after a failure messages are dropped."""
        # The socket is read no more, but the last read may have brought several messages.
        if self._has_failed:
            return
        assert isinstance(message, HandshakeMessage), "the decoder understands nothing else"
        # It has said something: from here on a hang-up may be its verdict.
        self._is_judged_late = False
        try:
            messages = self.handshake.receive(message)
        except NetstackError as error:
            self._fail(ctx, error)
            return
        self._send(ctx, messages)
        if self.handshake.phase is HandshakePhase.READY:
            self._become_ready(ctx)

    def channel_read_complete(self, ctx: ChannelHandlerContext) -> None:
        """Keep the event: the handlers behind have read nothing."""

    def channel_writability_changed(self, ctx: ChannelHandlerContext) -> None:
        """Keep the event: the handlers behind have written nothing."""

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        """Treat a broken frame, another protocol or a lost connection as a wrong proof."""
        if not self._has_failed:
            self._fail(ctx, error)

    # ---------------------------------------------------------------- helpers

    def _tls_binding(self, ctx: ChannelHandlerContext) -> bytes | None:
        channel = ctx.channel
        certificate = channel.peer_certificate
        if certificate is None:
            return None
        if not is_expected(certificate, self.pins):
            raise _RefusedError("its certificate is none of the expected ones (security.tls.peer_fingerprints)")
        return channel.tls_binding

    def _send(self, ctx: ChannelHandlerContext, messages: list[HandshakeMessage]) -> None:
        for message in messages:
            ctx.write(message)
        if messages:
            ctx.flush()

    def _become_ready(self, ctx: ChannelHandlerContext) -> None:
        self._cancel_timer()
        assert self._decoder is not None, "found when the handler was added"
        # Behind the last message of the handshake, which has no seal, and before any handler can write.
        keys, channel, seal = self.handshake.seal_keys(), ctx.channel, None
        if keys is not None:
            channel.seal, seal = FrameSeal(keys[0], channel.peer), FrameSeal(keys[1], channel.peer)
        # Before the handlers behind can hear of the channel: they never see a message of a role that the peer has not.
        self._decoder.frames.accept(self.handshake.welcome_ids, seal)
        ctx.pipeline.remove(self)
        # Before the event: ``ConnectionRoles`` chooses the handlers by it.
        channel.peer_gate = self.handshake.peer_gate
        ctx.fire_channel_active()
        # Behind the event: the dialling side goes on at once, with handlers that know the channel.
        self.on_ready(channel)

    def _fail(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        self._cancel_timer()
        # Before the abort: its ``channel_inactive`` would report another cause.
        self._report(ctx, error)
        channel = ctx.channel
        # Not at once: the moment of the close would tell how far the handshake came.
        if self.failure_delay_s > 0:
            # For the delay a stranger's bytes stay in the kernel, and cost no memory of ours.
            channel.pause_reading()
            self._timer = self.loop.call_later(self.failure_delay_s, channel.abort)
        else:
            channel.abort()

    def _report(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        self._has_failed = True
        peer = ctx.channel.peer
        reason = str(error)[:_MAX_REASON_CHARACTERS]
        # A peer that went away may just be shutting down; a peer that was refused may be an attacker.
        tell = self.log.info if _is_gone(error) else self.log.warning
        tell("a connection was not authenticated", peer=peer, reason=repr(reason))
        failure: NetstackError = AuthenticationError(
            f"{peer} did not authenticate: {reason}; do both processes use the same secret file, and is nothing "
            "between them?"
        )
        took_s = self.loop.time() - self._began_s
        if _is_gone(error) and took_s >= self.late_after_s:
            failure = LateHandshakeError(
                f"{peer} closed the connection during the handshake, which took {took_s:.0f} s: this process or that "
                "one stood still"
            )
        elif _is_gone(error) and self._is_judged_late:
            failure = ConnectError(
                f"{peer} closed the connection before it said anything: it has no file descriptors left, has too many "
                "connections, serves another address than this one, or ends just now; see its log"
            )
        failure.__cause__ = error
        self.on_failed(failure)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LateHandshakeError(ConnectError):
    """The peer hung up because one of the two ends stood still; another attempt may succeed."""


class _RefusedError(NetstackError):
    """This end refused the peer; the cause of an ``AuthenticationError``."""


class _PeerGoneError(_RefusedError):
    """The peer closed the connection during the handshake."""


def _is_gone(error: Exception) -> bool:
    """Whether the peer ended the connection, for whatever reason."""
    return isinstance(error, (_PeerGoneError, ConnectionLostError))
