"""A TCP connection as a ``Channel``, on an asyncio transport.

Side:       loop.  Hot path.
Invariants: bytes go to the transport in one gather write, and only while it holds none.  So the pending bytes are those
            queued here plus those in the transport, and ``resume_writing`` means that the transport is empty.  A
            frame's ``on_written`` runs when the kernel has its last byte.  One pass hands at most about
            ``max_write_batch_bytes`` to the kernel before the loop does other work.
Units:      bytes.
Source:     Netty ``AbstractNioByteChannel``, ``AbstractChannel.AbstractUnsafe``.  A close lingers until the peer has
            read everything: with unread input the kernel would reset the connection, and the peer would lose our last
            message.
TLS:        pending bytes include plaintext before encryption and ciphertext in the TLS transport, but not the at most
            64 KiB in the transport below it.
"""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any, TypeAlias, cast

from netstack.config import NetstackConfig, is_debug
from netstack.errors import ConnectionLostError, LocalProtocolError
from netstack.log_lines import LogLines, caused_by, limited_log
from netstack.loop.forks import ClosedInChildren
from netstack.transport.direct_writer import DirectWriter
from netstack.transport.handler import Channel, ChannelHandler, ChannelPipeline
from netstack.transport.message_codec import MessageDecoder
from netstack.transport.outbound_buffer import OutboundFrame
from netstack.transport.socket_options import host_silent_s, set_options

_log = LogLines(__name__)


HandlersFactory: TypeAlias = Callable[[], Sequence[ChannelHandler]]

_IDLE_CHECKS = 3  # in ``heartbeat_timeout_s``; the channel is cut if all find one incomplete frame


class _State(Enum):
    CONNECTING = auto()
    OPEN = auto()
    CLOSING = auto()  # pending bytes are still sent, received bytes are dropped
    CLOSED = auto()


class NetworkChannel(asyncio.BufferedProtocol, Channel):
    """One connection; made by ``NetworkServer`` and ``connect``.

    Threading: loop thread only.
    Life cycle: connecting, open, closing (after ``close``), closed (the transport is gone; ``wait_closed`` returns).
    """

    def __init__(self, config: NetstackConfig, handlers_factory: HandlersFactory) -> None:
        Channel.__init__(self, config, "not connected")
        self._close_timeout_s = config.close_timeout_s
        self._max_write_batch_bytes = config.max_write_batch_bytes
        self._state = _State.CONNECTING
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transport: asyncio.Transport | None = None
        self._held_bytes = 0  # handed to the transport, not yet taken by the kernel
        self._is_paused = False
        self._is_flushing = False
        self._is_flush_wanted = False
        self._is_debug = is_debug()
        self._close_timer: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()
        self._log = limited_log(__name__, time.monotonic)
        self._guards: list[ClosedInChildren] = []  # of the open sockets
        self._config = config
        self._is_tls = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._num_bytes_at_check = self._num_idle_checks = 0
        self.num_writes = 0
        """Gather writes."""
        self.pipeline = ChannelPipeline(self, handlers_factory())
        decoder = self.pipeline.find(MessageDecoder)
        if decoder is None:
            raise LocalProtocolError(f"{self.pipeline!r} has no MessageDecoder to read into")
        self._decoder = decoder
        self._head = self.pipeline.head
        self.pipeline.handlers_added()

    def __repr__(self) -> str:
        return f"<NetworkChannel to {self.peer} {self._state.name.lower()}, {self._outbound!r}>"

    # ---------------------------------------------------------------- what handlers see

    @property
    def is_open(self) -> bool:
        """Whether the channel has not been closed; true also before it is connected."""
        return self._state is _State.OPEN or self._state is _State.CONNECTING

    @property
    def is_connecting(self) -> bool:
        """Whether the channel has not been connected yet."""
        return self._state is _State.CONNECTING

    @property
    def is_active(self) -> bool:
        """Whether the channel is connected and has not been closed."""
        return self._state is _State.OPEN

    @property
    def peer_host(self) -> str:
        """The address in ``peer``."""
        return self.peer.rpartition(":")[0].strip("[]")

    @property
    def local_address(self) -> str:
        """This end's address; "" before the channel is connected."""
        return "" if self._transport is None else describe_address(self._extra("sockname"))

    @property
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate in DER form, checked by TLS; None without TLS."""
        tls: ssl.SSLObject | None = self._extra("ssl_object")
        return None if tls is None else tls.getpeercert(binary_form=True)

    @property
    def tls_binding(self) -> bytes | None:
        """The client's TLS Finished message, which covers the whole TLS handshake with both certificates; None without
        TLS.
        """
        tls: ssl.SSLObject | None = self._extra("ssl_object")
        return None if tls is None else tls.get_channel_binding("tls-unique")

    @property
    def host_silent_s(self) -> float:
        """How long the kernel of the peer's host has acknowledged nothing; 0 if that is not known."""
        sock = self._extra("socket")
        return 0.0 if sock is None or sock.fileno() < 0 else host_silent_s(sock)

    def _extra(self, name: str) -> Any:
        """Ask asyncio's transport for its extra info ``name``; None without transport."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    def direct_writer(self) -> DirectWriter | None:
        """Return the ``DirectWriter``, made at the first call; None with TLS and before the connection is made."""
        if self.direct is None and self._transport is not None and self._loop is not None and not self._is_tls:
            sock = _duplicate(self._extra("socket"))
            if sock is not None:
                # The child of a fork closes the duplicate as well: otherwise the connection would outlive this process.
                self._guards.append(ClosedInChildren(sock.fileno(), sock))
                flush = partial(self._loop.call_soon_threadsafe, self.transport_flush)
                self.direct = DirectWriter(sock, self._outbound, self.turn, lambda: self._state is _State.OPEN, flush)
        return self.direct

    def abort(self) -> None:
        """End the connection at once, without the handlers; queued frames are dropped.  A second call does nothing."""
        if self._state is _State.CONNECTING:
            self._finish_close()
        elif self._transport is not None:
            # ``connection_lost`` tells the handlers; until then nothing is read or written.
            self._state = _State.CLOSING
            self._transport.abort()

    def pause_reading(self) -> None:
        """Read nothing, like Netty without auto-read; the end of the connection is not noticed either."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again after ``pause_reading``."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def event_loop_check(self) -> None:
        """Check that the caller is on the channel's loop thread; every operation calls it when ``NETSTACK_DEBUG=1``.

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
        """Return when the connection is gone and all handlers have been told."""
        await self._closed.wait()  # waits for the end of the connection; ended by close_timeout_s, or heartbeats

    def on_unhandled_message(self, message: object) -> None:
        """Log a message that no handler consumed."""
        kind = type(message).__name__
        self._log.warning("no handler serves the message", peer=self.peer, kind=kind, pipeline=repr(self.pipeline))

    def on_unhandled_exception(self, error: Exception) -> None:
        """Log an error that no handler handled, and close."""
        _log.error("closing the channel after an unhandled error", peer=self.peer, error=str(error), exc_info=error)
        self.transport_close()

    # ---------------------------------------------------------------- the head of the pipeline

    def transport_write(self, message: object) -> None:
        """Queue an ``OutboundFrame``; a closed channel calls its ``on_written`` and drops it.

        Raises:
            LocalProtocolError: ``message`` is something else: the pipeline has no encoder.
        """
        if self._is_debug:
            self.event_loop_check()
        if not isinstance(message, OutboundFrame):
            raise LocalProtocolError(
                f"{type(message).__name__} reached the transport of {self.pipeline!r} without being encoded"
            )
        views, on_written = message
        if not self.is_open:
            if on_written is not None:
                self._run_callbacks([on_written])
            return
        with self.turn:
            # With the turn: a direct write may be looking at the buffer.
            is_full = self._outbound.add(views, on_written)
        if is_full:
            self._head.fire_channel_writability_changed()

    def transport_flush(self) -> None:
        """Hand queued frames to the transport, at once or when it has written the earlier ones."""
        if self._is_debug:
            self.event_loop_check()
        self._is_flush_wanted = True
        if not self._is_flushing:
            with self.turn:
                self._flush_pass()

    def transport_close(self) -> None:
        """Send the queued frames, then end the connection; after ``close_timeout_s`` it is cut.

        A second call does nothing.
        """
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
        """Write the queued frames; a nested flush (of a handler that became writable) is another round of this pass."""
        budget = self._max_write_batch_bytes
        self._is_flushing = True
        try:
            while self._is_flush_wanted and not self._held_bytes and self._transport is not None:
                if budget <= 0:
                    assert self._loop is not None, "a channel with a transport has a loop"
                    # In the next pass of the loop: other connections have their turn first.
                    self._loop.call_soon(self.transport_flush)
                    return
                # Before the write: a handler that becomes writable in it asks anew.
                self._is_flush_wanted = False
                budget -= self._write_out(self._transport)
        finally:
            self._is_flushing = False
        if self._state is _State.CLOSING and not self._outbound.pending_bytes:
            self._end_writing()

    def _write_out(self, transport: asyncio.Transport) -> int:
        """Hand every unflushed frame to the empty transport in one gather write; returns the number of bytes."""
        outbound = self._outbound
        views = outbound.take_unflushed()
        # A closing transport drops its input; connection_lost follows and fails the frames.
        if not views or transport.is_closing():
            return 0
        num_bytes = outbound.pending_bytes
        self.num_writes += 1
        transport.writelines(views)
        if transport.is_closing():
            return num_bytes
        # ``min``: with TLS the transport counts ciphertext, which is longer than the frames.
        held = self._held_bytes = min(transport.get_write_buffer_size(), num_bytes)
        if held and not self._is_paused:
            # asyncio's writelines of 3.12.0 to 3.12.8 does not pause the protocol (CVE-2024-12254), so it would never
            # resume.
            self._set_write_limits(transport)
        self._account(num_bytes - held)
        return num_bytes

    # ---------------------------------------------------------------- closing

    def _end_writing(self) -> None:
        """Shut down the write side, then wait for the peer to close, or for the timer."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._is_tls:
            transport.close()  # sends close_notify and waits for the peer's, at most tls_shutdown_timeout_s
            return
        try:
            transport.write_eof()
        except OSError:
            # ENOTCONN: the peer is gone already.
            transport.abort()

    def _cut_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._close_timer is None:
            self._close_timer = loop.call_later(self._close_timeout_s, self._cut)

    def _cut(self) -> None:
        if self._transport is not None:
            if self._outbound.pending_bytes:
                _log.warning(
                    "connection cut with bytes unsent", peer=self.peer, unsent_bytes=self._outbound.pending_bytes
                )
            self._transport.abort()

    def _finish_close(self) -> None:
        was_active = self._state is not _State.CONNECTING
        if self.direct is not None:  # before the guards go: it may have to wait for a write of another thread
            self.direct.close()
        self._state = _State.CLOSED
        self._transport = None
        self._held_bytes = 0
        for guard in self._guards:
            guard.release()
        self._guards.clear()
        for timer in (self._close_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._tell_end(was_active=was_active)
        # Last: who waits for the end finds everything released.
        self._closed.set()

    def _check_idle(self) -> None:
        """Cut a peer that stopped in the middle of a frame, because the frame holds memory; between frames a peer may
        be silent.
        """
        assert self._loop is not None, "checked since it was connected"
        timeout_s = self._config.heartbeat_timeout_s  # the peer's process may stand still in the middle of a frame, too
        self._idle_timer = self._loop.call_later(timeout_s / _IDLE_CHECKS, self._check_idle)
        if not self._decoder.frames.is_mid_frame or self._num_bytes_in != self._num_bytes_at_check:
            self._num_bytes_at_check, self._num_idle_checks = self._num_bytes_in, 0
            return
        # Several looks, each of which starts the next timer: a loop that stood still makes one late look, not all.
        self._num_idle_checks += 1
        if self._num_idle_checks >= _IDLE_CHECKS:
            self._head.fire_exception_caught(
                ConnectionLostError(
                    f"{self.peer} stopped in the middle of a frame and sent nothing for {timeout_s:g} s"
                )
            )
            self.abort()

    def _set_write_limits(self, transport: asyncio.Transport) -> None:
        # Not 0 with TLS: asyncio's and uvloop's TLS transports would then stay paused even when they are empty.
        transport.set_write_buffer_limits(high=1 if self._is_tls else 0)

    # ---------------------------------------------------------------- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the channel: the socket is connected."""
        tcp = cast(asyncio.Transport, transport)  # uvloop's transports do not derive from asyncio's
        if self._state is not _State.CONNECTING:
            # It was closed while the connection was being made.
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
        except Exception as error:  # noqa: BLE001 - a handler that was not told could neither time the connection out nor count it
            self._head.fire_exception_caught(error)
            self.abort()
            return
        self._idle_timer = self._loop.call_later(self._config.heartbeat_timeout_s / _IDLE_CHECKS, self._check_idle)
        self._head.fire_channel_active()
        # A handler has written before there was a transport.
        if self._is_flush_wanted:
            self.transport_flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the decoder's read buffer."""
        return self._decoder.frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Decode ``nbytes`` received bytes; a closing channel drops them."""
        if self._state is not _State.OPEN:
            return
        self._num_bytes_in += nbytes
        head = self._head
        head.fire_channel_read(nbytes)
        head.fire_channel_read_complete()

    def pause_writing(self) -> None:
        """Note that the transport holds bytes."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Note that the transport is empty, and hand it the queued frames."""
        self._is_paused = False
        if self._transport is None:
            return
        taken, self._held_bytes = self._held_bytes, 0
        with self.turn:
            # With the turn: a direct write compares the two counts that this changes.
            self._account(taken)
            self._flush_pass()

    def eof_received(self) -> bool:
        """Close this side: the peer has closed its own.  Bytes that it does not take within ``close_timeout_s`` are
        dropped.
        """
        if self._loop is not None:
            self._cut_later(self._loop)
        return False  # The transport closes itself when it has written its own bytes.

    def connection_lost(self, exc: Exception | None) -> None:
        """End the channel: the transport is gone."""
        # Closed while the connection was being made: the handlers were told then.
        if self._state is _State.CLOSED:
            return
        if exc is not None and self._state is _State.OPEN:
            # Before the handlers see the error: their answers must not be sent.
            self._state, self._transport = _State.CLOSING, None
            text = f"lost the connection to {self.peer}: {type(exc).__name__}: {exc}"
            self._head.fire_exception_caught(caused_by(exc, ConnectionLostError(text)))
        self._finish_close()


def _duplicate(sock: socket.socket | None) -> socket.socket | None:
    """Duplicate the descriptor of the connection; None without a socket (a test's transport) or a free descriptor."""
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
    """Write a socket's peer name as ``host:port``."""
    match name:
        case (host, port, *_):
            return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
        case _:
            return str(name)
