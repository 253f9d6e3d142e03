"""Handlers, the place of a handler in its pipeline, and what a handler may ask of its channel.

Side:       loop.  Hot path.
Invariants: inbound events go from the head to the tail, outbound operations from the tail to the head.  An exception out of an inbound
            method goes to ``exception_caught`` of the same handler; one out of an outbound method goes to the caller of the operation.
Source:     Netty ``ChannelHandler``, ``AbstractChannelHandlerContext``, ``Channel``.  Operations have no promises: a frame tells by its
            ``on_written`` that it is out of the channel.
Absent:     adding handlers while the channel lives; executors of single handlers.
"""

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netstack.channel.direct_writer import DirectWriter
    from netstack.channel.pipeline import ChannelPipeline


class ChannelHandler:
    """Takes part in the events of one channel; every method passes on by default.

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
        """Another handler has news that are no message."""
        ctx.fire_user_event_triggered(event)

    def channel_writability_changed(self, ctx: "ChannelHandlerContext") -> None:
        """``ctx.channel.is_writable`` flipped."""
        ctx.fire_channel_writability_changed()

    def exception_caught(self, ctx: "ChannelHandlerContext", error: Exception) -> None:
        """This handler, one nearer to the head, or the transport failed."""
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

    ``fire_*`` pass an inbound event to the next handler towards the tail; ``write``, ``flush`` and ``close`` an operation to the next
    one towards the head.  Handlers that do not override one of the hot methods are skipped, not called.
    """

    __slots__ = ("_completer", "_flusher", "_next", "_previous", "_reader", "_watcher", "_writer", "channel", "handler", "pipeline")

    def __init__(self, pipeline: "ChannelPipeline", handler: ChannelHandler) -> None:
        self.pipeline = pipeline
        self.channel: Channel = pipeline.channel
        self.handler = handler
        # Linked by the pipeline; the ends of the chain are linked to themselves and never used.
        self._next = self._previous = self._reader = self._completer = self._watcher = self._writer = self._flusher = self

    def __repr__(self) -> str:
        return f"<context of {self.handler!r}>"

    def link(self, previous: "ChannelHandlerContext") -> None:
        """Pipeline only: put this context behind ``previous``, which is linked towards the head already."""
        self._previous, previous._next = previous, self
        self._writer = previous if _overrides(previous.handler, "write") else previous._writer
        self._flusher = previous if _overrides(previous.handler, "flush") else previous._flusher

    def link_reader(self) -> None:
        """Pipeline only: find who is next to be told of reads and writability; called from the tail to the head once all are linked."""
        following = self._next
        self._reader = following if _overrides(following.handler, "channel_read") else following._reader
        self._completer = following if _overrides(following.handler, "channel_read_complete") else following._completer
        self._watcher = following if _overrides(following.handler, "channel_writability_changed") else following._watcher

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
        """Hand ``message`` to the next handler that reads."""
        ctx = self._reader
        try:
            ctx.handler.channel_read(ctx, message)
        except Exception as error:  # noqa: BLE001 - handed to the handler's exception_caught
            ctx.catch(error)

    def fire_channel_read_complete(self) -> None:
        """Tell the next handler that listens that one read of the socket was delivered."""
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
        """Tell the next handler that listens that writability flipped."""
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
        """Hand ``message`` to the next handler towards the head that writes; it leaves with the next flush."""
        ctx = self._writer
        ctx.handler.write(ctx, message)

    def flush(self) -> None:
        """Ask for everything written so far to be sent."""
        ctx = self._flusher
        ctx.handler.flush(ctx)

    def write_and_flush(self, message: object) -> None:
        """``write`` and then ``flush``."""
        self.write(message)
        self.flush()

    def close(self) -> None:
        """Ask for the connection to end; bytes already written are still sent, within the configured time."""
        ctx = self._previous
        ctx.handler.close(ctx)


def _overrides(handler: ChannelHandler, name: str) -> bool:
    return getattr(type(handler), name) is not getattr(ChannelHandler, name)


class Channel(ABC):
    """One connection, as its handlers see it.

    Threading: loop thread only.  The operations enter the pipeline at its tail; the ``transport_*`` methods are its head.
    """

    pipeline: "ChannelPipeline"
    peer: str
    """Whom the channel is connected to, for messages."""
    turn: "threading.RLock"
    """Held by whoever decides what is written next, until it is written; see ``DirectWriter``."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether nobody has closed the channel yet; true also before it is connected."""

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether the channel is connected and nobody has closed it."""

    @property
    @abstractmethod
    def is_writable(self) -> bool:
        """Whether a considerate handler may go on writing; see ``ChannelOutboundBuffer``."""

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """How many bytes were written and not yet taken by the kernel."""

    @property
    @abstractmethod
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate in DER form, checked by TLS; None without TLS."""

    @property
    def tls_binding(self) -> bytes | None:
        """What the two ends of this very TLS connection know of it and no other connection has; None without TLS."""
        return None

    def direct_writer(self) -> "DirectWriter | None":
        """The way past the loop, which ends with the channel; None if there is none."""
        return None

    @abstractmethod
    def abort(self) -> None:
        """End the connection at once, past all handlers: what is queued is dropped.  A second call does nothing."""

    @abstractmethod
    def pause_reading(self) -> None:
        """Take nothing more from the peer (Netty's auto-read off), not even the news that it is gone."""

    @abstractmethod
    def resume_reading(self) -> None:
        """Go on after ``pause_reading``."""

    @abstractmethod
    def event_loop_check(self) -> None:
        """Check that the caller is on the channel's loop thread.

        Raises:
            LocalProtocolError: it is not.
        """

    @abstractmethod
    def transport_write(self, message: object) -> None:
        """Head only: queue an ``OutboundFrame``; on a channel that is no longer open it is dropped, after its ``on_written`` was called."""

    @abstractmethod
    def transport_flush(self) -> None:
        """Head only: hand queued frames to the transport."""

    @abstractmethod
    def transport_close(self) -> None:
        """Head only: end the connection once the queued frames are sent or their time is over; a second call does nothing."""

    @abstractmethod
    def on_unhandled_message(self, message: object) -> None:
        """Tail only: no handler wanted ``message``."""

    @abstractmethod
    def on_unhandled_exception(self, error: Exception) -> None:
        """Tail only: no handler dealt with ``error``."""

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
        """End the connection, through all handlers; bytes already written are still sent, within the configured time."""
        self.pipeline.close()
