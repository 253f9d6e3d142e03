"""A ``Channel``, and the ``ChannelPipeline`` of ``ChannelHandler``s between its transport and the application.

Side:       loop.  Hot path.
Invariants: inbound events go from the head to the tail, messages that are written from the tail to the head.  An
            exception of an inbound method goes to ``exception_caught`` of the handler that raised it, one of a write to
            the caller.  The head, which calls the transport, stands before the first handler, and the tail, which
            reports unhandled messages, behind the last.  A handler can be removed from a connected channel, as Netty's
            handshake handlers are; then it costs nothing.
Source:     Netty's classes of these names, ``DefaultChannelPipeline``.  Operations return no promise; the
            ``on_written`` of a frame is called instead.
Absent:     adding handlers to a connected channel; executors of single handlers; user events; handlers of flushes and
            closes, which nobody but the head had.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from netstack.config import NetstackConfig
from netstack.errors import LocalProtocolError
from netstack.transport.direct_writer import DirectWriter
from netstack.transport.outbound_buffer import ChannelOutboundBuffer, OnWritten

if TYPE_CHECKING:
    from netstack.wire.frame_decoder import FrameSeal
    from netstack.wire.offer_messages import GateIdentity


class ChannelHandler:
    """Handles the events of one channel; every method passes its event on by default.

    Threading: all methods run on the channel's loop thread, to completion.
    Life cycle: ``handler_added``, ``channel_active``, reads and events, ``channel_inactive``, ``handler_removed``.
    """

    def handler_added(self, ctx: "ChannelHandlerContext") -> None:
        """Hear that the pipeline was made; ``ctx`` is this handler's place in it."""

    def handler_removed(self, ctx: "ChannelHandlerContext") -> None:
        """Hear that the channel has ended; the last call."""

    def channel_active(self, ctx: "ChannelHandlerContext") -> None:
        """Hear that the channel is connected."""
        ctx.fire_channel_active()

    def channel_inactive(self, ctx: "ChannelHandlerContext") -> None:
        """Hear that the connection ended; called once, and only after ``channel_active``."""
        ctx.fire_channel_inactive()

    def channel_read(self, ctx: "ChannelHandlerContext", message: object) -> None:
        """Handle one message that arrived."""
        ctx.fire_channel_read(message)

    def channel_read_complete(self, ctx: "ChannelHandlerContext") -> None:
        """Hear that all messages of one read of the socket were delivered."""
        ctx.fire_channel_read_complete()

    def channel_writability_changed(self, ctx: "ChannelHandlerContext") -> None:
        """Hear that ``ctx.channel.is_writable`` flipped."""
        ctx.fire_channel_writability_changed()

    def exception_caught(self, ctx: "ChannelHandlerContext", error: Exception) -> None:
        """Handle ``error``, which this handler, one nearer to the head, or the transport raised."""
        ctx.fire_exception_caught(error)

    def write(self, ctx: "ChannelHandlerContext", message: object) -> None:
        """Pass ``message`` on towards the socket, unchanged or transformed."""
        ctx.write(message)


class ChannelHandlerContext:
    """One handler's place in its pipeline.

    ``fire_*`` pass an inbound event to the next handler towards the tail, ``write`` a message to the next handler
    towards the head; ``flush`` and ``close`` go to the transport.  Handlers that do not override a hot method are
    skipped.
    """

    def __init__(self, pipeline: "ChannelPipeline", handler: ChannelHandler) -> None:
        self.pipeline = pipeline
        self.channel: Channel = pipeline.channel
        self.handler = handler
        # The pipeline links the contexts.  Those at both ends stay linked to themselves; these links are never used.
        # A link of a context that was removed stays: its last events still find the old neighbours.
        self._next = self._reader = self._completer = self._watcher = self._writer = self

    def __repr__(self) -> str:
        return f"<context of {self.handler!r}>"

    def link(self, previous: "ChannelHandlerContext") -> None:
        """Put this context behind ``previous``; called by the pipeline, from the head to the tail."""
        previous._next = self
        self._writer = previous if _overrides(previous.handler, "write") else previous._writer

    def link_reader(self) -> None:
        """Find the next handlers of reads and of writability; called by the pipeline, from the tail to the head, after
        ``link``.
        """
        following = self._next
        self._reader = following if _overrides(following.handler, "channel_read") else following._reader
        self._completer = following if _overrides(following.handler, "channel_read_complete") else following._completer
        self._watcher = (
            following if _overrides(following.handler, "channel_writability_changed") else following._watcher
        )

    # ---------------------------------------------------------------- inbound

    def fire_channel_active(self) -> None:
        """Tell the next handler that the channel is connected."""
        self._next._call("channel_active")

    def fire_channel_inactive(self) -> None:
        """Tell the next handler that the connection ended."""
        self._next._call("channel_inactive")

    def fire_channel_writability_changed(self) -> None:
        """Tell the next handler with a ``channel_writability_changed`` that ``is_writable`` flipped."""
        self._watcher._call("channel_writability_changed")

    def fire_channel_read(self, message: object) -> None:
        """Hand ``message`` to the next handler with a ``channel_read``."""
        # Not through ``_call``: this runs per message.
        # An error goes to the handler that raised it, not to its caller, a handler nearer to the head.
        ctx = self._reader
        try:
            ctx.handler.channel_read(ctx, message)
        except Exception as error:  # noqa: BLE001 - handed to the handler's exception_caught
            ctx.catch(error)

    def fire_channel_read_complete(self) -> None:
        """Tell the next handler with a ``channel_read_complete`` that one read of the socket was delivered."""
        ctx = self._completer
        try:
            ctx.handler.channel_read_complete(ctx)
        except Exception as error:  # noqa: BLE001 - handed to the handler's exception_caught
            ctx.catch(error)

    def _call(self, method: str) -> None:
        try:
            getattr(self.handler, method)(self)
        except Exception as error:  # noqa: BLE001 - handed to the handler's exception_caught
            self.catch(error)

    def fire_exception_caught(self, error: Exception) -> None:
        """Hand ``error`` to the next handler."""
        self._next.catch(error)

    def catch(self, error: Exception) -> None:
        """Hand ``error`` to this handler; if that fails too, both errors go to the channel."""
        # Two errors at most: a handler that fails in ``exception_caught`` is not asked again.
        try:
            self.handler.exception_caught(self, error)
        except Exception as second:  # noqa: BLE001 - the channel reports it, with ``error`` as its context
            self.channel.on_unhandled_exception(second)

    # ---------------------------------------------------------------- outbound

    def write(self, message: object) -> None:
        """Hand ``message`` to the next handler with a ``write``; it leaves with the next flush."""
        ctx = self._writer
        ctx.handler.write(ctx, message)

    def flush(self) -> None:
        """Send everything written so far."""
        self.channel.transport_flush()

    def write_and_flush(self, message: object) -> None:
        """``write`` and then ``flush``."""
        self.write(message)
        self.flush()

    def close(self) -> None:
        """End the connection; bytes already written are still sent, within ``close_timeout_s``."""
        self.channel.transport_close()


def _overrides(handler: ChannelHandler, name: str) -> bool:
    return getattr(type(handler), name) is not getattr(ChannelHandler, name)


H = TypeVar("H", bound=ChannelHandler)


class _Head(ChannelHandler):
    """Hands frames to the transport."""

    def write(self, ctx: ChannelHandlerContext, message: object) -> None:
        ctx.channel.transport_write(message)


class _Tail(ChannelHandler):
    """Ends every inbound event."""

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        pass

    channel_inactive = channel_read_complete = channel_writability_changed = channel_active

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        ctx.channel.on_unhandled_message(message)

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        ctx.channel.on_unhandled_exception(error)


class ChannelPipeline:
    """A chain of handlers between the transport and the application.

    Threading: loop thread only.

    Attributes:
        head: the context before the first handler, where inbound events are fired.
        tail: the context behind the last handler, where operations begin.
    """

    __slots__ = ("_contexts", "channel", "head", "tail")

    def __init__(self, channel: "Channel", handlers: Sequence[ChannelHandler]) -> None:
        self.channel = channel
        self.head = ChannelHandlerContext(self, _Head())
        # A tuple, exchanged as a whole: ``handlers_removed`` goes through one while a handler removes itself.
        self._contexts = tuple(ChannelHandlerContext(self, handler) for handler in handlers)
        self.tail = ChannelHandlerContext(self, _Tail())
        self._link()

    def _link(self) -> None:
        chain = (self.head, *self._contexts, self.tail)
        for previous, ctx in pairwise(chain):
            ctx.link(previous)
        for ctx in reversed(chain[:-1]):
            ctx.link_reader()

    def __repr__(self) -> str:
        return f"<ChannelPipeline {', '.join(type(ctx.handler).__name__ for ctx in self._contexts)}>"

    def find(self, kind: type[H]) -> H | None:
        """Return the first handler of this class, or None."""
        for ctx in self._contexts:
            if isinstance(ctx.handler, kind):
                return ctx.handler
        return None

    def remove(self, handler: ChannelHandler) -> None:
        """Remove ``handler`` and call its ``handler_removed``; its last events still go to its old neighbours.

        Raises:
            LocalProtocolError: it is not in this pipeline, or not any more.
        """
        ctx = next((each for each in self._contexts if each.handler is handler), None)
        if ctx is None:
            raise LocalProtocolError(f"{handler!r} is not in {self!r}")
        self._contexts = tuple(each for each in self._contexts if each is not ctx)
        self._link()
        # Linked anew first: an event that a neighbour fires from here on goes past the removed handler.
        handler.handler_removed(ctx)

    def handlers_added(self) -> None:
        """Call every ``handler_added``, head to tail; called once by the channel, when ``channel.pipeline`` is set."""
        for ctx in self._contexts:
            ctx.handler.handler_added(ctx)

    def handlers_removed(self) -> None:
        """Call every ``handler_removed``, tail to head; errors go to the channel, which calls this."""
        for ctx in reversed(self._contexts):
            try:
                ctx.handler.handler_removed(ctx)
            except Exception as error:  # noqa: BLE001 - reported by the channel; the other handlers still learn it
                self.channel.on_unhandled_exception(error)


class Channel(ABC):
    """One connection, as its handlers see it.

    Threading: loop thread only.  The operations enter the pipeline at its tail; the ``transport_*`` methods are its
               head.
    """

    pipeline: ChannelPipeline
    seal: "FrameSeal | None" = None
    """Seals every frame that leaves.

    Set once, when the peer has proven that it knows the secret; used with the ``turn`` held.
    """

    def __init__(self, config: NetstackConfig, peer: str) -> None:
        self.peer = peer
        """The peer's address, for logs and errors."""
        self.peer_gate: GateIdentity | None = None
        """The one gate that the peer may offer partitions to; None: it knows the cluster's secret.  Set before
        ``channel_active`` of the handlers behind the authentication.
        """
        # Reentrant: within a pass the loop becomes writable, and its handlers write again.
        self.turn = threading.RLock()
        """Held from the choice of the next frame until it is written; see ``DirectWriter``."""
        self._outbound = ChannelOutboundBuffer(config.high_watermark_bytes, config.low_watermark_bytes)
        self.direct: DirectWriter | None = None
        """What ``direct_writer`` returns, once it is made; set before the first reader is added."""
        # Both by the loop thread alone; a direct write has a counter of its own.
        self._num_bytes_in = 0
        self._num_bytes_out = 0

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the channel has not been closed; true also before it is connected."""

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether the channel is connected and has not been closed."""

    @property
    def is_writable(self) -> bool:
        """Whether more should be written: False above the high watermark until the low one is reached; see
        ``ChannelOutboundBuffer``.
        """
        # A closed channel drops what is written: a producer must not go on filling it.
        return self._outbound.is_writable and self.is_open

    @property
    def pending_bytes(self) -> int:
        """Bytes that were written and that the kernel has not taken."""
        return self._outbound.pending_bytes

    @property
    def num_bytes_in(self) -> int:
        """Bytes received so far; with TLS, of plaintext."""
        return self._num_bytes_in

    @property
    def num_bytes_out(self) -> int:
        """Bytes that the kernel has taken so far."""
        # Two counters, each with one writer at a time, so that none is lost; the sum may be one write stale.
        direct = self.direct
        return self._num_bytes_out + (0 if direct is None else direct.num_bytes_out)

    @property
    def host_silent_s(self) -> float:
        """How long the kernel of the peer's host has acknowledged nothing; 0 if that is not known."""
        return 0.0

    @property
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate in DER form, checked by TLS; None without TLS."""
        return None

    @property
    def tls_binding(self) -> bytes | None:
        """The channel binding of the TLS connection: equal at both ends, unique to the connection; None without TLS."""
        return None

    @property
    def local_address(self) -> str:
        """This end's address, in the form of ``peer``."""
        return ""

    def direct_writer(self) -> DirectWriter | None:
        """Return the channel's ``DirectWriter``, or None; the channel closes it."""
        return self.direct

    @abstractmethod
    def abort(self) -> None:
        """End the connection at once, without the handlers; queued frames are dropped.  A second call does nothing."""

    @abstractmethod
    def pause_reading(self) -> None:
        """Read nothing, like Netty without auto-read; the end of the connection is not noticed either."""

    @abstractmethod
    def resume_reading(self) -> None:
        """Read again after ``pause_reading``."""

    @abstractmethod
    def event_loop_check(self) -> None:
        """Check that the caller is on the channel's loop thread.

        Raises:
            LocalProtocolError: it is not.
        """

    @abstractmethod
    def transport_write(self, message: object) -> None:
        """Queue an ``OutboundFrame``; a closed channel calls its ``on_written`` and drops it.  For the head only."""

    @abstractmethod
    def transport_flush(self) -> None:
        """Hand queued frames to the transport.  For the head only."""

    @abstractmethod
    def transport_close(self) -> None:
        """End the connection when the queued frames are sent or ``close_timeout_s`` is over; a second call does
        nothing.  For the head only.
        """

    @abstractmethod
    def on_unhandled_message(self, message: object) -> None:
        """Take a message that no handler consumed.  For the tail only."""

    @abstractmethod
    def on_unhandled_exception(self, error: Exception) -> None:
        """Take an error that no handler handled.  For the tail only."""

    def write(self, message: object) -> None:
        """Send ``message`` through all handlers; it leaves with the next flush."""
        self.pipeline.tail.write(message)

    def flush(self) -> None:
        """Send everything written so far."""
        self.transport_flush()

    def write_and_flush(self, message: object) -> None:
        """``write`` and then ``flush``."""
        self.pipeline.tail.write_and_flush(message)

    def close(self) -> None:
        """End the connection; bytes already written are still sent, within ``close_timeout_s``."""
        self.transport_close()

    # ---------------------------------------------------------------- for the transport

    def _account(self, num_bytes: int) -> None:
        """Count ``num_bytes`` more that the kernel took."""
        self._num_bytes_out += num_bytes
        callbacks, is_writable_again = self._outbound.written(num_bytes)
        self._run_callbacks(callbacks)
        if is_writable_again:
            self.pipeline.head.fire_channel_writability_changed()

    def _run_callbacks(self, callbacks: Iterable[OnWritten]) -> None:
        """Call every callback; errors go to the handlers."""
        # One iterator for all rounds: after an error the rest follow, and none is called twice.
        remaining = iter(callbacks)
        while True:
            try:
                for callback in remaining:
                    callback()
            # Caught here: of several frames that end together, one callback's error must not keep the other buffers.
            except Exception as error:  # noqa: BLE001 - the top of the loop: handlers report it
                self.pipeline.head.fire_exception_caught(error)
            else:
                return

    def _tell_end(self, *, was_active: bool) -> None:
        """Drop all unsent frames, and tell the handlers that the connection is gone."""
        # First: a direct write that is under way ends, and none begins, before the frames are dropped.
        if self.direct is not None:
            self.direct.close()
        self._run_callbacks(self._outbound.fail_all())
        if was_active:
            self.pipeline.head.fire_channel_inactive()
        self.pipeline.handlers_removed()
