"""The handlers of one channel, in order.

Side:       loop.
Invariants: the head, which calls the transport, stands before the first handler, and the tail, which reports unhandled
            messages, behind the last.  A handler can be removed from a connected channel, as Netty's handshake handlers
            are; then it costs nothing.
Source:     Netty ``DefaultChannelPipeline``.
Absent:     adding handlers to a connected channel.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from netstack.errors import LocalProtocolError
from netstack.transport.handler import Channel, ChannelHandler, ChannelHandlerContext

H = TypeVar("H", bound=ChannelHandler)


class _Head(ChannelHandler):
    """Turns operations into calls of the transport."""

    def write(self, ctx: ChannelHandlerContext, message: object) -> None:
        ctx.channel.transport_write(message)

    def flush(self, ctx: ChannelHandlerContext) -> None:
        ctx.channel.transport_flush()

    def close(self, ctx: ChannelHandlerContext) -> None:
        ctx.channel.transport_close()


class _Tail(ChannelHandler):
    """Ends every inbound event."""

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        pass

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        pass

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        ctx.channel.on_unhandled_message(message)

    def channel_read_complete(self, ctx: ChannelHandlerContext) -> None:
        pass

    def user_event_triggered(self, ctx: ChannelHandlerContext, event: object) -> None:
        pass

    def channel_writability_changed(self, ctx: ChannelHandlerContext) -> None:
        pass

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        ctx.channel.on_unhandled_exception(error)


class ChannelPipeline:
    """A chain of handlers between the transport and the application.

    Threading: loop thread only.

    Attributes:
        head: the context before the first handler; firing there saves one call per event.
    """

    __slots__ = ("_contexts", "_tail", "channel", "head")

    def __init__(self, channel: Channel, handlers: Sequence[ChannelHandler]) -> None:
        self.channel = channel
        self.head = ChannelHandlerContext(self, _Head())
        self._contexts = tuple(ChannelHandlerContext(self, handler) for handler in handlers)
        self._tail = ChannelHandlerContext(self, _Tail())
        self._link()

    def _link(self) -> None:
        chain = (self.head, *self._contexts, self._tail)
        for previous, ctx in pairwise(chain):
            ctx.link(previous)
        for ctx in reversed(chain[:-1]):
            ctx.link_reader()

    def __repr__(self) -> str:
        return f"<ChannelPipeline {', '.join(type(ctx.handler).__name__ for ctx in self._contexts)}>"

    @property
    def handlers(self) -> tuple[ChannelHandler, ...]:
        """The handlers, head to tail."""
        return tuple(ctx.handler for ctx in self._contexts)

    def find(self, kind: type[H]) -> H | None:
        """The first handler of this class, or None."""
        for ctx in self._contexts:
            if isinstance(ctx.handler, kind):
                return ctx.handler
        return None

    def remove_handler(self, handler: ChannelHandler) -> None:
        """Remove ``handler``; see ``remove``.

        Raises:
            LocalProtocolError: it is not in this pipeline, or not any more.
        """
        ctx = next((each for each in self._contexts if each.handler is handler), None)
        if ctx is None:
            raise LocalProtocolError(f"{handler!r} is not in {self!r}")
        self.remove(ctx)

    def remove(self, ctx: ChannelHandlerContext) -> None:
        """Remove the handler of ``ctx`` and call its ``handler_removed``; its last events still go through ``ctx`` to
        its old neighbours.

        Raises:
            LocalProtocolError: it is not in this pipeline, or not any more.
        """
        if ctx not in self._contexts:
            raise LocalProtocolError(f"{ctx!r} is not in {self!r}")
        self._contexts = tuple(each for each in self._contexts if each is not ctx)
        self._link()
        ctx.handler.handler_removed(ctx)

    def handlers_added(self) -> None:
        """Channel only: call every ``handler_added``, head to tail; called once, when ``channel.pipeline`` is set."""
        for ctx in self._contexts:
            ctx.handler.handler_added(ctx)

    def handlers_removed(self) -> None:
        """Channel only: call every ``handler_removed``, tail to head; errors go to the channel."""
        for ctx in reversed(self._contexts):
            try:
                ctx.handler.handler_removed(ctx)
            except Exception as error:  # noqa: BLE001 - reported by the channel; the other handlers still learn it
                self.channel.on_unhandled_exception(error)

    # ---------------------------------------------------------------- inbound, from the head

    def fire_channel_active(self) -> None:
        """The channel is connected."""
        self.head.fire_channel_active()

    def fire_channel_inactive(self) -> None:
        """The connection ended."""
        self.head.fire_channel_inactive()

    def fire_channel_read(self, message: object) -> None:
        """A message arrived."""
        self.head.fire_channel_read(message)

    def fire_channel_read_complete(self) -> None:
        """One read of the socket was delivered."""
        self.head.fire_channel_read_complete()

    def fire_user_event_triggered(self, event: object) -> None:
        """Hand ``event`` to the handlers."""
        self.head.fire_user_event_triggered(event)

    def fire_channel_writability_changed(self) -> None:
        """``channel.is_writable`` flipped."""
        self.head.fire_channel_writability_changed()

    def fire_exception_caught(self, error: Exception) -> None:
        """The transport failed."""
        self.head.fire_exception_caught(error)

    # ---------------------------------------------------------------- outbound, from the tail

    def write(self, message: object) -> None:
        """Send ``message`` through all handlers."""
        self._tail.write(message)

    def flush(self) -> None:
        """Send everything written so far."""
        self._tail.flush()

    def close(self) -> None:
        """End the connection."""
        self._tail.close()
