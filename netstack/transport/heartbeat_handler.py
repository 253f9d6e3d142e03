"""Keeps a connection of authenticated peers from hanging: sends heartbeats, and cuts a silent connection.

Side:       loop.
Invariants: costs nothing per message.  A timer compares the channel's byte counters; only heartbeats reach
            ``channel_read``, because the handlers before this one pass on nothing else.  Both options concern this
            end's view of its peer: each end tells the other in its heartbeats how often it wants one.  So processes
            with different options do not cut each other.  The end that dialled sends the first heartbeat: until it has
            read the last message of the handshake, it accepts no other.
Promises:   a peer whose process is stopped for good, or that is behind a link which acknowledges bytes and forwards
            none, is lost after ``heartbeat_timeout_s``: a time that C code which keeps the GIL may take.  Producers and
            clients outside the cluster, who wait for such a peer, have no JobManager that tells them.  A host that is
            gone is lost after ``dead_peer_timeout_s``: at each look the kernel is asked when the other one last
            acknowledged anything, because TCP_USER_TIMEOUT would also end connections whose peer does not read
            (``watch_host``).  The kernel's questions to a full receive buffer come at 0.2, 0.6, 1.4, 3, 6.2, 12.6,
            25.4, 51 s: a peer that answers them has 50 s.
Absent:     heartbeats without authentication: a plain Flink peer knows no such message.
"""

import asyncio

from netstack.config import NetstackConfig
from netstack.errors import ConnectionLostError
from netstack.flow.heartbeats import Heartbeats, Verdict
from netstack.transport.handler import Channel, ChannelHandler, ChannelHandlerContext
from netstack.wire.messages import Heartbeat

_MS_PER_S = 1000
# Of ``dead_peer_timeout_s``; the rest is for the time between two looks, and for probes to be answered.
_HOST_SHARE = 5 / 6


class HeartbeatHandler(ChannelHandler):
    """The last handler of the pipeline of an authenticated connection.

    Life cycle: starts with ``channel_active``, which follows the authentication.

    Args:
        config: has ``heartbeat_interval_s``, ``heartbeat_timeout_s`` and ``dead_peer_timeout_s``.
        loop: of the channel.
        sends_first: this end dialled; the other one sends nothing before it got a heartbeat.
    """

    def __init__(self, config: NetstackConfig, loop: asyncio.AbstractEventLoop, *, sends_first: bool) -> None:
        self._message = Heartbeat(round(config.heartbeat_interval_s * _MS_PER_S))
        self._timeout_s = config.heartbeat_timeout_s
        self._host_timeout_s = config.dead_peer_timeout_s
        self._heartbeats = Heartbeats(config.heartbeat_interval_s, self._timeout_s, loop.time())
        self._loop = loop
        self._may_send = sends_first
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<HeartbeatHandler of {self._heartbeats!r}>"

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        """Start to look; the end that dialled tells its peer how often it wants a heartbeat."""
        ctx.fire_channel_active()
        # A handler may have closed the channel in its event.
        if ctx.channel.is_active:
            self._look_later(ctx)
            if self._may_send:
                ctx.write_and_flush(self._message)

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        """Remember how often the peer wants a heartbeat; answer the first one."""
        if not isinstance(message, Heartbeat):
            ctx.fire_channel_read(message)
            return
        # The timer that runs was set for the old interval, and would look too late.
        if self._heartbeats.peer_wants(message.interval_ms / _MS_PER_S) and self._timer is not None:
            self._look_later(ctx)
        # The peer has dialled, and has read the last message of the handshake: from here on it takes heartbeats.
        if not self._may_send:
            self._may_send = True
            ctx.write_and_flush(self._message)

    def handler_removed(self, ctx: ChannelHandlerContext) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self, ctx: ChannelHandlerContext) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._heartbeats.look_s, self._look, ctx)

    def _look(self, ctx: ChannelHandlerContext) -> None:
        channel = ctx.channel
        # This end has closed it: ``close_timeout_s`` bounds the rest.
        if not channel.is_active:
            return
        # First: by default a dead host is known after 30 s, a silent process after 60.
        host_silent_s = channel.host_silent_s
        if host_silent_s >= self._host_timeout_s * _HOST_SHARE:
            self._cut(
                channel,
                f"the host of {channel.peer} acknowledged nothing for {host_silent_s:.1f} s (dead_peer_timeout_s is "
                f"{self._host_timeout_s:g}): it is gone, or the network is",
            )
            return
        match self._heartbeats.look(self._loop.time(), channel.num_bytes_in, channel.num_bytes_out):
            case Verdict.CUT:
                self._cut(
                    channel,
                    f"{channel.peer} sent nothing for {self._heartbeats.silent_s:.1f} s, not even a heartbeat "
                    f"(heartbeat_timeout_s is {self._timeout_s:g}): its process is stopped or hangs, or the network "
                    "swallows what is sent",
                )
                return
            # A heartbeat would wait behind pending bytes.
            case Verdict.SEND if self._may_send and not channel.pending_bytes:
                ctx.write_and_flush(self._message)
            case _:
                pass
        self._look_later(ctx)

    @staticmethod
    def _cut(channel: Channel, reason: str) -> None:
        # Before the end, which has no reason of its own: the first error of a channel is the one that its task sees.
        channel.pipeline.head.fire_exception_caught(ConnectionLostError(reason))
        channel.abort()
