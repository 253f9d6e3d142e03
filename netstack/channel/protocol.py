"""A TCP connection as a ``Channel``: the pipeline between an asyncio transport and the handlers.

Side:       loop.  Hot path.
Invariants: bytes go to the transport only while it holds none, in one gather write; so "pending" is what waits here plus what the
            transport holds, and ``resume_writing`` means that the transport holds nothing.  A frame's ``on_written`` runs when the
            kernel has its last byte.  One pass hands at most about ``max_write_batch_bytes`` to the kernel before other work is served.
Units:      bytes.
Source:     Netty ``AbstractNioByteChannel``, ``AbstractChannel.AbstractUnsafe``; closing lingers until the peer has read everything,
            because a close with unread input makes the kernel reset the connection and the peer lose our last message.
TLS:        the transport holds plaintext that is not encrypted yet and ciphertext that is not out; "pending" counts both.  What the
            encrypted connection's own transport holds (64 KiB at most) is not seen.
"""

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import TypeAlias, cast

import structlog

from netstack.channel.direct_writer import DirectWriter
from netstack.channel.handler import Channel, ChannelHandler
from netstack.channel.message_codec import MessageDecoder
from netstack.channel.outbound_buffer import ChannelOutboundBuffer, OnWritten, OutboundFrame
from netstack.channel.pipeline import ChannelPipeline
from netstack.channel.socket_options import set_options
from netstack.config import NetstackConfig, is_debug
from netstack.errors import ConnectionLostError, LocalProtocolError
from netstack.forks import ClosedInChildren

_log = structlog.get_logger(__name__)

HandlersFactory: TypeAlias = Callable[[], Sequence[ChannelHandler]]

_IDLE_CHECKS = 3  # so many in a row, in ``dead_peer_timeout_s``, must find the same incomplete frame


class _State(Enum):
    CONNECTING = auto()
    OPEN = auto()
    CLOSING = auto()  # what is pending is still sent, what arrives is dropped
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """What went through one channel so far."""

    num_bytes_in: int
    num_bytes_out: int
    num_reads: int
    num_writes: int
    pending_bytes: int


class NetworkChannel(asyncio.BufferedProtocol, Channel):
    """One connection; made by ``NetworkServer`` and ``connect``.

    Threading: loop thread only.
    Life cycle: connecting, open, closing (after ``close``), closed (after the transport is gone; ``wait_closed`` returns).
    """

    def __init__(self, config: NetstackConfig, handlers_factory: HandlersFactory) -> None:
        self.peer = "nobody yet"
        self._close_timeout_s = config.close_timeout_s
        self._max_write_batch_bytes = config.max_write_batch_bytes
        self._outbound = ChannelOutboundBuffer(config.high_watermark_bytes, config.low_watermark_bytes)
        self._state = _State.CONNECTING
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transport: asyncio.Transport | None = None
        self._held_bytes = 0  # handed to the transport, not yet taken by the kernel
        self._is_paused = False
        self._is_flushing = False
        self._is_flush_wanted = False
        self.turn = threading.RLock()
        self._direct_writer: DirectWriter | None = None
        self._is_debug = is_debug()
        self._close_timer: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()
        self._guards: list[ClosedInChildren] = []  # while there are sockets
        self._config = config
        self._is_tls = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._num_bytes_at_check = self._num_idle_checks = 0
        self._num_bytes_in = self._num_bytes_out = self._num_reads = self._num_writes = 0
        self.pipeline = ChannelPipeline(self, handlers_factory())
        decoder = self.pipeline.find(MessageDecoder)
        if decoder is None:
            raise LocalProtocolError(f"{self.pipeline!r} has no MessageDecoder to read into")
        self._decoder = decoder
        self._read_buffer = decoder.read_buffer
        self._head = self.pipeline.head
        self.pipeline.handlers_added()

    def __repr__(self) -> str:
        return f"<NetworkChannel to {self.peer} {self._state.name.lower()}, {self._outbound!r}>"

    # ---------------------------------------------------------------- what handlers see

    @property
    def is_open(self) -> bool:
        """Whether nobody has closed the channel yet; true also before it is connected."""
        return self._state is _State.OPEN or self._state is _State.CONNECTING

    @property
    def is_connecting(self) -> bool:
        """Whether there has been no connection yet."""
        return self._state is _State.CONNECTING

    @property
    def is_active(self) -> bool:
        """Whether the channel is connected and nobody has closed it."""
        return self._state is _State.OPEN

    @property
    def is_writable(self) -> bool:
        """Whether no more than the high watermark is pending, and the channel is open."""
        return self._outbound.is_writable and self.is_open

    @property
    def pending_bytes(self) -> int:
        """How many bytes were written and not yet taken by the kernel."""
        return self._outbound.pending_bytes

    @property
    def peer_host(self) -> str:
        """The address in ``peer``."""
        return self.peer.rpartition(":")[0].strip("[]")

    def statistics(self) -> ChannelStatistics:
        """Counters since the connection was made."""
        direct = self._direct_writer
        num_bytes_out = self._num_bytes_out + (0 if direct is None else direct.num_bytes_out)
        num_writes = self._num_writes + (0 if direct is None else direct.num_writes)
        return ChannelStatistics(self._num_bytes_in, num_bytes_out, self._num_reads, num_writes, self.pending_bytes)

    @property
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate in DER form, checked by TLS; None without TLS."""
        tls = self._tls_object
        return None if tls is None else tls.getpeercert(binary_form=True)

    @property
    def tls_binding(self) -> bytes | None:
        """The client's Finished message: it covers the whole handshake, the certificates and keys of both ends included."""
        tls = self._tls_object
        return None if tls is None else tls.get_channel_binding("tls-unique")

    @property
    def _tls_object(self) -> ssl.SSLObject | None:
        return None if self._transport is None else cast("ssl.SSLObject | None", self._transport.get_extra_info("ssl_object"))

    def direct_writer(self) -> DirectWriter | None:
        """The way past the loop, made at the first call; None with TLS, and while there is no connection."""
        if self._direct_writer is None and self._transport is not None and self._loop is not None and not self._is_tls:
            sock = _duplicate(self._transport.get_extra_info("socket"))
            if sock is not None:
                self._guards.append(ClosedInChildren(sock.fileno(), sock))
                flush = partial(self._loop.call_soon_threadsafe, self.transport_flush)
                self._direct_writer = DirectWriter(sock, self._outbound, self.turn, lambda: self._state is _State.OPEN, flush)
        return self._direct_writer

    def abort(self) -> None:
        """End the connection at once, past all handlers: what is queued is dropped.  A second call does nothing."""
        if self._state is _State.CONNECTING:
            self._finish_close()
        elif self._transport is not None:
            # The handlers hear of it in ``connection_lost``; until then nothing more is read or written.
            self._state = _State.CLOSING
            self._transport.abort()

    def pause_reading(self) -> None:
        """Take nothing more from the peer (Netty's auto-read off), not even the news that it is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on after ``pause_reading``."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def event_loop_check(self) -> None:
        """Check that the caller is on the channel's loop thread; every operation does so when ``NETSTACK_DEBUG=1``.

        Raises:
            LocalProtocolError: it is not.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if self._loop is not None and running is not self._loop:
            raise LocalProtocolError(f"{self!r} was used outside its event loop")

    async def wait_closed(self) -> None:
        """Return once the connection is gone and all handlers know it."""
        await self._closed.wait()

    def on_unhandled_message(self, message: object) -> None:
        """Report a message that no handler wanted."""
        _log.warning("no handler serves the message", peer=self.peer, kind=type(message).__name__, pipeline=repr(self.pipeline))

    def on_unhandled_exception(self, error: Exception) -> None:
        """Report an error that no handler dealt with, and close."""
        _log.error("closing the channel after an unhandled error", peer=self.peer, error=str(error), exc_info=error)
        self.transport_close()

    # ---------------------------------------------------------------- the head of the pipeline

    def transport_write(self, message: object) -> None:
        """Queue an ``OutboundFrame``; on a channel that is no longer open it is dropped, after its ``on_written`` was called.

        Raises:
            LocalProtocolError: ``message`` is something else: no encoder stands in the pipeline.
        """
        if self._is_debug:
            self.event_loop_check()
        if not isinstance(message, OutboundFrame):
            raise LocalProtocolError(f"{type(message).__name__} reached the transport of {self.pipeline!r} without being encoded")
        views, on_written = message
        if not self.is_open:
            if on_written is not None:
                self._run_callbacks([on_written])
            return
        with self.turn:
            is_full = self._outbound.add(views, on_written)
        if is_full:
            self.pipeline.fire_channel_writability_changed()

    def transport_flush(self) -> None:
        """Hand queued frames to the transport; while it holds earlier ones they wait until it has none."""
        if self._is_debug:
            self.event_loop_check()
        self._is_flush_wanted = True
        if not self._is_flushing:
            with self.turn:
                self._flush_pass()

    def transport_close(self) -> None:
        """Send what is queued, then end the connection; after ``close_timeout_s`` it is cut.  A second call does nothing."""
        if self._is_debug:
            self.event_loop_check()
        if self._state is _State.CONNECTING:
            self._finish_close()
        elif self._state is _State.OPEN and self._loop is not None:
            self._state = _State.CLOSING
            self._cut_later(self._loop)
            self.transport_flush()

    # ---------------------------------------------------------------- writing

    def _flush_pass(self) -> None:
        """Write out what is wanted; a flush from inside (a handler that became writable) is another round of the same pass."""
        budget = self._max_write_batch_bytes
        self._is_flushing = True
        try:
            while self._is_flush_wanted and not self._held_bytes and self._transport is not None:
                if budget <= 0:
                    assert self._loop is not None, "a channel with a transport has a loop"
                    self._loop.call_soon(self.transport_flush)
                    return
                self._is_flush_wanted = False
                budget -= self._write_out(self._transport)
        finally:
            self._is_flushing = False
        if self._state is _State.CLOSING and not self._outbound.pending_bytes:
            self._end_writing()

    def _write_out(self, transport: asyncio.Transport) -> int:
        """One gather write of everything unflushed; returns how many bytes.  The transport holds nothing before."""
        outbound = self._outbound
        views = outbound.take_unflushed()
        # A closing transport drops what it gets; connection_lost follows and fails the frames.
        if not views or transport.is_closing():
            return 0
        num_bytes = outbound.pending_bytes
        self._num_writes += 1
        transport.writelines(views)
        if transport.is_closing():
            return num_bytes
        # Ciphertext is longer than what was written.
        held = self._held_bytes = min(transport.get_write_buffer_size(), num_bytes)
        if held and not self._is_paused:
            # asyncio's writelines of 3.12.0 to 3.12.8 forgets to pause (CVE-2024-12254) and so would never resume; this makes up for it.
            self._set_write_limits(transport)
        self._account(num_bytes - held)
        return num_bytes

    def _account(self, num_bytes: int) -> None:
        """The kernel took ``num_bytes`` more."""
        self._num_bytes_out += num_bytes
        callbacks, is_writable_again = self._outbound.written(num_bytes)
        self._run_callbacks(callbacks)
        if is_writable_again:
            self.pipeline.fire_channel_writability_changed()

    def _run_callbacks(self, callbacks: list[OnWritten]) -> None:
        """Call each one; errors reach the handlers, and the other callbacks are still called."""
        remaining = iter(callbacks)
        while True:
            try:
                for callback in remaining:
                    callback()
            except Exception as error:  # noqa: BLE001 - the top of the loop: handlers report it
                self.pipeline.fire_exception_caught(error)
            else:
                return

    # ---------------------------------------------------------------- closing

    def _end_writing(self) -> None:
        """Everything is sent: tell the peer so, and wait for it to close (or for the timer)."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._is_tls:
            transport.close()  # sends close_notify and waits for the peer's, at most tls_shutdown_timeout_s
            return
        try:
            transport.write_eof()
        except OSError:
            # The peer is gone already (ENOTCONN): there is nobody to wait for.
            transport.abort()

    def _cut_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._close_timer is None:
            self._close_timer = loop.call_later(self._close_timeout_s, self._cut)

    def _cut(self) -> None:
        if self._transport is not None:
            if self._outbound.pending_bytes:
                _log.warning("connection cut with bytes unsent", peer=self.peer, unsent_bytes=self._outbound.pending_bytes)
            self._transport.abort()

    def _finish_close(self) -> None:
        was_connected = self._state is not _State.CONNECTING
        if self._direct_writer is not None:
            self._direct_writer.close()
        self._state, self._transport, self._held_bytes = _State.CLOSED, None, 0
        for guard in self._guards:
            guard.release()
        self._guards.clear()
        for timer in (self._close_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._run_callbacks(self._outbound.fail_all())
        if was_connected:
            self.pipeline.fire_channel_inactive()
        self.pipeline.handlers_removed()
        self._closed.set()

    def _check_idle(self) -> None:
        """A peer that stops in the middle of a frame holds memory: it is cut.  Between frames it may be silent for ever."""
        assert self._loop is not None, "checked since it was connected"
        timeout_s = self._config.dead_peer_timeout_s
        self._idle_timer = self._loop.call_later(timeout_s / _IDLE_CHECKS, self._check_idle)
        if not self._decoder.is_mid_frame or self._num_bytes_in != self._num_bytes_at_check:
            self._num_bytes_at_check, self._num_idle_checks = self._num_bytes_in, 0
            return
        self._num_idle_checks += 1
        if self._num_idle_checks >= _IDLE_CHECKS:
            self.pipeline.fire_exception_caught(
                ConnectionLostError(f"{self.peer} stopped in the middle of a frame and sent nothing for {timeout_s:g} s")
            )
            self.abort()

    def _set_write_limits(self, transport: asyncio.Transport) -> None:
        # TLS transports of asyncio and uvloop take 0 as "always paused", also when they hold nothing.
        transport.set_write_buffer_limits(high=1 if self._is_tls else 0)

    # ---------------------------------------------------------------- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        tcp = cast(asyncio.Transport, transport)  # uvloop's transports do not derive from asyncio's
        if self._state is not _State.CONNECTING:
            tcp.abort()
            return
        self._loop, self._transport, self._state = asyncio.get_running_loop(), tcp, _State.OPEN
        self.peer = describe_address(tcp.get_extra_info("peername"))
        try:
            self._is_tls = tcp.get_extra_info("ssl_object") is not None
            sock = tcp.get_extra_info("socket")
            set_options(sock, self._config)
            self._set_write_limits(tcp)
            self._guards.append(ClosedInChildren(sock.fileno(), tcp))
        except Exception as error:  # noqa: BLE001 - whoever is not told of a connection neither times it out nor counts it
            self.pipeline.fire_exception_caught(error)
            self.abort()
            return
        self._idle_timer = self._loop.call_later(self._config.dead_peer_timeout_s / _IDLE_CHECKS, self._check_idle)
        self.pipeline.fire_channel_active()
        if self._is_flush_wanted:
            self.transport_flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the transport reads into: the decoder's buffer."""
        return self._read_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """``nbytes`` arrived; a channel that is closing drops them."""
        if self._state is not _State.OPEN:
            return
        self._num_bytes_in += nbytes
        self._num_reads += 1
        head = self._head
        head.fire_channel_read(nbytes)
        head.fire_channel_read_complete()

    def pause_writing(self) -> None:
        """The transport holds bytes."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The transport holds nothing any more."""
        self._is_paused = False
        if self._transport is None:
            return
        taken, self._held_bytes = self._held_bytes, 0
        with self.turn:
            self._account(taken)
            self._flush_pass()

    def eof_received(self) -> bool:
        """The peer sends no more, and so is gone or wants to be: close; what it does not take within ``close_timeout_s`` is dropped."""
        if self._loop is not None:
            self._cut_later(self._loop)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport is gone."""
        if self._state is _State.CLOSED:
            return
        if exc is not None and self._state is _State.OPEN:
            # Nothing is sent any more, whatever the handlers answer to the error.
            self._state, self._transport = _State.CLOSING, None
            error = ConnectionLostError(f"lost the connection to {self.peer}: {type(exc).__name__}: {exc}")
            error.__cause__ = exc
            self.pipeline.fire_exception_caught(error)
        self._finish_close()


def _duplicate(sock: socket.socket | None) -> socket.socket | None:
    """The same connection under a number of our own; None if there is no socket (a pretended transport), or no number left."""
    if sock is None or sock.fileno() < 0:
        return None
    try:
        number = os.dup(sock.fileno())
    except OSError:  # EMFILE: the connection works without
        return None
    duplicate = socket.socket(sock.family, sock.type, sock.proto, fileno=number)
    duplicate.settimeout(0)  # without waiting
    return duplicate


def describe_address(name: object) -> str:
    """``host:port`` of what the socket calls its peer."""
    match name:
        case (host, port, *_):
            return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
        case _:
            return str(name)
