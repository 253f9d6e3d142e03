"""``ChannelHandler``, ``ChannelHandlerContext`` and ``Channel``.

Side:       loop.  Hot path.
Invariants: inbound events go from the head to the tail, outbound operations from the tail to the head.  An exception of
            an inbound method goes to ``exception_caught`` of the same handler, one of an outbound method to the caller
            of the operation.
Source:     Netty's classes of these names.  Operations return no promise; the ``on_written`` of a frame is called
            instead.
Absent:     adding handlers to a connected channel; executors of single handlers.
"""

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netstack.transport.direct_writer import DirectWriter
    from netstack.transport.pipeline import ChannelPipeline
    from netstack.wire.frame_seal import FrameSeal


class ChannelHandler:
    """Handles the events of one channel; every method passes its event on by default.

    Threading: all methods run on the channel's loop thread, to completion.
    Life cycle: ``handler_added``, ``channel_active``, reads and events, ``channel_inactive``, ``handler_removed``.
    """

    def handler_added(self, ctx: "ChannelHandlerContext") -> None:
        """The pipeline was made; ``ctx`` is this handler's place in it."""

    def handler_removed(self, ctx: "ChannelHandlerContext") -> None:
        """The channel ended; the last call."""

    def channel_active(self, ctx: "ChannelHandlerContext") -> None:
        """The channel is connected."""
        ctx.fire_channel_active()

    def channel_inactive(self, ctx: "ChannelHandlerContext") -> None:
        """The connection ended; called once, and only after ``channel_active``."""
        ctx.fire_channel_inactive()

    def channel_read(self, ctx: "ChannelHandlerContext", message: object) -> None:
        """One message arrived."""
        ctx.fire_channel_read(message)

    def channel_read_complete(self, ctx: "ChannelHandlerContext") -> None:
        """All messages of one read of the socket were delivered."""
        ctx.fire_channel_read_complete()

    def user_event_triggered(self, ctx: "ChannelHandlerContext", event: object) -> None:
        """Another handler fired ``event``."""
        ctx.fire_user_event_triggered(event)

    def channel_writability_changed(self, ctx: "ChannelHandlerContext") -> None:
        """``ctx.channel.is_writable`` flipped."""
        ctx.fire_channel_writability_changed()

    def exception_caught(self, ctx: "ChannelHandlerContext", error: Exception) -> None:
        """This handler, a handler nearer to the head, or the transport raised ``error``."""
        ctx.fire_exception_caught(error)

    def write(self, ctx: "ChannelHandlerContext", message: object) -> None:
        """Pass ``message`` on towards the socket, as it is or transformed."""
        ctx.write(message)

    def flush(self, ctx: "ChannelHandlerContext") -> None:
        """Hand what was written to the socket."""
        ctx.flush()

    def close(self, ctx: "ChannelHandlerContext") -> None:
        """End the connection."""
        ctx.close()


class ChannelHandlerContext:
    """One handler's place in its pipeline.

    ``fire_*`` pass an inbound event to the next handler towards the tail; ``write``, ``flush`` and ``close`` pass an
    operation to the next handler towards the head.  Handlers that do not override a hot method are skipped.
    """

    __slots__ = (
        "_completer",
        "_flusher",
        "_next",
        "_previous",
        "_reader",
        "_watcher",
        "_writer",
        "channel",
        "handler",
        "pipeline",
    )

    def __init__(self, pipeline: "ChannelPipeline", handler: ChannelHandler) -> None:
        self.pipeline = pipeline
        self.channel: Channel = pipeline.channel
        self.handler = handler
        # The pipeline links the contexts.  Those at both ends stay linked to themselves; these links are never used.
        self._next = self._previous = self._reader = self._completer = self._watcher = self._writer = self._flusher = (
            self
        )

    def __repr__(self) -> str:
        return f"<context of {self.handler!r}>"

    def link(self, previous: "ChannelHandlerContext") -> None:
        """Pipeline only: put this context behind ``previous``; called from the head to the tail."""
        self._previous, previous._next = previous, self
        self._writer = previous if _overrides(previous.handler, "write") else previous._writer
        self._flusher = previous if _overrides(previous.handler, "flush") else previous._flusher

    def link_reader(self) -> None:
        """Pipeline only: find the next handlers of reads and of writability; called from the tail to the head after
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
        ctx = self._next
        try:
            ctx.handler.channel_active(ctx)
        except Exception as error:  # noqa: BLE001 - handed to the handler's exception_caught
            ctx.catch(error)

    def fire_channel_inactive(self) -> None:
        """Tell the next handler that the connection ended."""
        ctx = self._next
        try:
            ctx.handler.channel_inactive(ctx)
        except Exception as error:  # noqa: BLE001 - handed to the handler's exception_caught
            ctx.catch(error)

    def fire_channel_read(self, message: object) -> None:
        """Hand ``message`` to the next handler with a ``channel_read``."""
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

    def fire_user_event_triggered(self, event: object) -> None:
        """Hand ``event`` to the next handler."""
        ctx = self._next
        try:
            ctx.handler.user_event_triggered(ctx, event)
        except Exception as error:  # noqa: BLE001 - handed to the handler's exception_caught
            ctx.catch(error)

    def fire_channel_writability_changed(self) -> None:
        """Tell the next handler with a ``channel_writability_changed`` that ``is_writable`` flipped."""
        ctx = self._watcher
        try:
            ctx.handler.channel_writability_changed(ctx)
        except Exception as error:  # noqa: BLE001 - handed to the handler's exception_caught
            ctx.catch(error)

    def fire_exception_caught(self, error: Exception) -> None:
        """Hand ``error`` to the next handler."""
        self._next.catch(error)

    def catch(self, error: Exception) -> None:
        """Hand ``error`` to this handler; if that fails too, both errors go to the channel."""
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
        ctx = self._flusher
        ctx.handler.flush(ctx)

    def write_and_flush(self, message: object) -> None:
        """``write`` and then ``flush``."""
        self.write(message)
        self.flush()

    def close(self) -> None:
        """End the connection; bytes already written are still sent, within ``close_timeout_s``."""
        ctx = self._previous
        ctx.handler.close(ctx)


def _overrides(handler: ChannelHandler, name: str) -> bool:
    return getattr(type(handler), name) is not getattr(ChannelHandler, name)


class Channel(ABC):
    """One connection, as its handlers see it.

    Threading: loop thread only.  The operations enter the pipeline at its tail; the ``transport_*`` methods are its
               head.
    """

    pipeline: "ChannelPipeline"
    peer: str
    """The peer's address, for logs and errors."""
    turn: "threading.RLock"
    """Held from the choice of the next frame until it is written; see ``DirectWriter``."""
    seal: "FrameSeal | None" = None
    """Seals every frame that leaves.

    Set once, when the peer has proven that it knows the secret; used with the ``turn`` held.
    """

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the channel has not been closed; true also before it is connected."""

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether the channel is connected and has not been closed."""

    @property
    @abstractmethod
    def is_writable(self) -> bool:
        """False above the high watermark until the low one is reached; see ``ChannelOutboundBuffer``."""

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """Bytes that were written and that the kernel has not taken."""

    @property
    @abstractmethod
    def num_bytes_in(self) -> int:
        """Bytes received so far."""

    @property
    @abstractmethod
    def num_bytes_out(self) -> int:
        """Bytes that the kernel has taken so far."""

    @property
    def host_silent_s(self) -> float:
        """How long the kernel of the peer's host has acknowledged nothing; 0 if that is not known."""
        return 0.0

    @property
    @abstractmethod
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate in DER form, checked by TLS; None without TLS."""

    @property
    def tls_binding(self) -> bytes | None:
        """The channel binding of the TLS connection: equal at both ends, unique to the connection; None without TLS."""
        return None

    @property
    def local_address(self) -> str:
        """This end's address, in the form of ``peer``."""
        return ""

    def direct_writer(self) -> "DirectWriter | None":
        """The channel's ``DirectWriter``, or None; the channel closes it."""
        return None

    @abstractmethod
    def abort(self) -> None:
        """End the connection at once, without the handlers; queued frames are dropped.  A second call does nothing."""

    @abstractmethod
    def pause_reading(self) -> None:
        """Read nothing, as Netty without auto-read; the end of the connection is not noticed either."""

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
        """Head only: queue an ``OutboundFrame``; a closed channel calls its ``on_written`` and drops it."""

    @abstractmethod
    def transport_flush(self) -> None:
        """Head only: hand queued frames to the transport."""

    @abstractmethod
    def transport_close(self) -> None:
        """Head only: end the connection when the queued frames are sent or ``close_timeout_s`` is over; a second call
        does nothing.
        """

    @abstractmethod
    def on_unhandled_message(self, message: object) -> None:
        """Tail only: no handler consumed ``message``."""

    @abstractmethod
    def on_unhandled_exception(self, error: Exception) -> None:
        """Tail only: no handler handled ``error``."""

    def write(self, message: object) -> None:
        """Send ``message`` through all handlers; it leaves with the next flush."""
        self.pipeline.write(message)

    def flush(self) -> None:
        """Send everything written so far."""
        self.pipeline.flush()

    def write_and_flush(self, message: object) -> None:
        """``write`` and then ``flush``."""
        self.pipeline.write(message)
        self.pipeline.flush()

    def close(self) -> None:
        """End the connection, through all handlers; bytes already written are still sent, within
        ``close_timeout_s``.
        """
        self.pipeline.close()
