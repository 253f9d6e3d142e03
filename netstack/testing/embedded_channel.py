"""A channel without a socket, with which a test drives the handlers of a pipeline.

Side:       any (the test's thread is the loop thread).
Invariants: frames that reach the head can be read after a flush, in order.  They stay pending until ``flush_outbound``,
            so that the test decides when the channel is writable.
Source:     Netty ``EmbeddedChannel``.  It differs from ``NetworkChannel`` in one point: ``channel_inactive`` is fired
            inside ``close``.
"""

from collections import deque

from netstack.config import NetstackConfig
from netstack.errors import LocalProtocolError
from netstack.testing.embedded_event_loop import EmbeddedEventLoop
from netstack.transport.direct_writer import DirectWriter, FrameSocket
from netstack.transport.handler import Channel, ChannelHandler, ChannelPipeline
from netstack.transport.message_codec import MessageDecoder
from netstack.transport.outbound_buffer import OutboundFrame


class EmbeddedChannel(Channel):
    """A channel that is connected from the start.

    Threading: one thread.
    Ownership: the reader of ``read_outbound`` owns objects that are not ``OutboundFrame``s.
    """

    def __init__(
        self,
        *handlers: ChannelHandler,
        config: NetstackConfig | None = None,
        event_loop: EmbeddedEventLoop | None = None,
    ) -> None:
        super().__init__(NetstackConfig() if config is None else config, "embedded")
        self.event_loop = EmbeddedEventLoop() if event_loop is None else event_loop
        self._unflushed: list[object] = []
        self._readable: deque[object] = deque()
        self._inbound: deque[object] = deque()
        self._errors: list[Exception] = []
        self._is_open = True
        self.certificate: bytes | None = None
        self.is_reading = True
        """False after ``pause_reading``, which does not stop ``write_inbound``."""
        self.was_aborted = False
        """Whether ``abort`` ended the channel."""
        self.pipeline = ChannelPipeline(self, handlers)
        self.pipeline.handlers_added()
        self.pipeline.head.fire_channel_active()

    def __repr__(self) -> str:
        return f"<EmbeddedChannel {'open' if self._is_open else 'closed'}, {self._outbound!r}>"

    # ---------------------------------------------------------------- for the test

    def write_inbound(self, message: object) -> None:
        """Deliver ``message`` as if it had been decoded; ``bytes`` go through the pipeline's ``MessageDecoder`` as from
        a socket.
        """
        if isinstance(message, bytes):
            self._read_bytes(memoryview(message))
        else:
            self.pipeline.head.fire_channel_read(message)
            self.pipeline.head.fire_channel_read_complete()

    def read_inbound(self) -> object | None:
        """Return the next message that no handler consumed, or None."""
        return self._inbound.popleft() if self._inbound else None

    def read_outbound(self) -> object | None:
        """Return the next flushed object, or None: of a frame its bytes, any other object itself."""
        return self._readable.popleft() if self._readable else None

    def read_all_outbound(self) -> bytes:
        """Return the bytes of all flushed frames.

        Raises:
            LocalProtocolError: something else was written: the pipeline has no encoder.
        """
        parts: list[bytes] = []
        while self._readable:
            part = self._readable.popleft()
            if not isinstance(part, bytes):
                raise LocalProtocolError(
                    f"{type(part).__name__} reached the head of {self.pipeline!r} without being encoded"
                )
            parts.append(part)
        return b"".join(parts)

    def flush_outbound(self, max_bytes: int | None = None) -> int:
        """Flush, then take up to ``max_bytes`` (None: all) pending bytes, as the kernel would; returns the number
        taken.

        Calls ``on_written`` of complete frames, and fires ``channel_writability_changed`` if the channel becomes
        writable.
        """
        self.transport_flush()
        pending = self._outbound.pending_bytes
        num_bytes = pending if max_bytes is None else min(max_bytes, pending)
        self._account(num_bytes)
        return num_bytes

    def open_direct(self, sock: FrameSocket) -> None:
        """Let other threads write frames to ``sock``, past the loop; before the first reader is added.

        The channel owns ``sock``; it is not what ``read_outbound`` reads.
        """
        self.direct = DirectWriter(sock, self._outbound, self.turn, lambda: self._is_open, self.transport_flush)

    def run_pending(self) -> int:
        """Run the functions handed to ``event_loop``; returns how many ran."""
        return self.event_loop.run_pending()

    def lose_connection(self, error: Exception | None = None) -> None:
        """End the connection as the transport would, with or without an error; pending bytes are not sent."""
        if not self._is_open:
            return
        self._is_open = False
        if error is not None:
            self.pipeline.head.fire_exception_caught(error)
        self._tell_end(was_active=True)

    def check_exception(self) -> None:
        """Raise the first error that no handler handled, if there is one.

        Raises:
            Exception: that error.
        """
        if self._errors:
            raise self._errors.pop(0)

    # ---------------------------------------------------------------- what handlers see

    @property
    def is_open(self) -> bool:
        """Whether the channel has not been closed."""
        return self._is_open

    @property
    def is_active(self) -> bool:
        """Whether the channel has not been closed."""
        return self._is_open

    @property
    def peer_certificate(self) -> bytes | None:
        """The ``certificate``, which the test sets."""
        return self.certificate

    def abort(self) -> None:
        """End at once; unflushed frames are dropped."""
        if self._is_open:
            self._is_open, self.was_aborted = False, True
            self._unflushed.clear()
            self._tell_end(was_active=True)

    def pause_reading(self) -> None:
        """Note that reading is paused."""
        self.is_reading = False

    def resume_reading(self) -> None:
        """Note that reading goes on."""
        self.is_reading = True

    def event_loop_check(self) -> None:
        """Check that the caller is on the thread that made ``event_loop``.

        Raises:
            LocalProtocolError: it is not.
        """
        if not self.event_loop.is_current_thread():
            raise LocalProtocolError(f"{self!r} was used outside its event loop")

    def transport_write(self, message: object) -> None:
        """Queue ``message``; a closed channel calls the ``on_written`` of a frame and drops it."""
        if not isinstance(message, OutboundFrame):
            if self._is_open:
                self._unflushed.append(message)
            return
        if not self._is_open:
            if message.on_written is not None:
                self._run_callbacks([message.on_written])
            return
        self._unflushed.append(message)
        if self._outbound.add(message.views, message.on_written):
            self.pipeline.head.fire_channel_writability_changed()

    def transport_flush(self) -> None:
        """Make queued objects readable; they stay pending."""
        unflushed, self._unflushed = self._unflushed, []
        self._outbound.take_unflushed()
        for message in unflushed:
            self._readable.append(b"".join(message.views) if isinstance(message, OutboundFrame) else message)

    def transport_close(self) -> None:
        """Flush and end; a second call does nothing."""
        if self._is_open:
            self._is_open = False
            self.transport_flush()
            self._tell_end(was_active=True)

    def on_unhandled_message(self, message: object) -> None:
        """Keep the message for ``read_inbound``."""
        self._inbound.append(message)

    def on_unhandled_exception(self, error: Exception) -> None:
        """Keep the error for ``check_exception``, and close."""
        self._errors.append(error)
        self.transport_close()

    # ---------------------------------------------------------------- helpers

    def _read_bytes(self, rest: memoryview) -> None:
        decoder = self.pipeline.find(MessageDecoder)
        if decoder is None:
            raise LocalProtocolError(f"{self.pipeline!r} has no MessageDecoder to read into")
        while rest and self._is_open:
            buffer = decoder.frames.get_buffer()
            num_bytes = min(len(buffer), len(rest))
            buffer[:num_bytes] = rest[:num_bytes]
            rest = rest[num_bytes:]
            self._num_bytes_in += num_bytes
            self.pipeline.head.fire_channel_read(num_bytes)
            self.pipeline.head.fire_channel_read_complete()
