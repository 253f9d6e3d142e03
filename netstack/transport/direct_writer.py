"""Lets a task thread write one small frame to an idle connection itself, without the loop.

Hot path.  Why: waking the loop takes longer than all other work on a single record.  bench: latency.

Side:       shared.  ``try_begin``, ``write`` and ``end`` on any thread but the loop's; the channel makes and closes it
            on the loop thread.
Invariants: a thread, the loop's too, holds the channel's ``turn`` from the choice of the next frame until the frame is
            in the kernel or in the outbound buffer.  So a direct write never splits a frame and never overtakes an
            earlier one.  The holder does not block.  The socket is a duplicate: the transport may close its own at any
            moment, and its number would then mean another file.  The main thread is barred: a signal handler that
            raises there (Ctrl-C) would keep the turn, and the loop would wait for ever.
Lock order: ``turn`` before the locks of subpartitions and pools; callbacks of handlers run on the loop thread only.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import field
from threading import get_ident
from typing import Final, Protocol

from netstack.late import dataclass
from netstack.transport.outbound_buffer import ChannelOutboundBuffer

MAX_DIRECT_BYTES: Final = 4096  # of payload; larger ones are left to the loop's gather write.  Not measured.
_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)


class FrameSocket(Protocol):
    """The part of a non-blocking socket that ``DirectWriter`` uses."""

    def send(self, data: bytes, flags: int, /) -> int:
        """Send bytes; return how many the kernel took, at least one; raise OSError if it takes none."""

    def close(self) -> None:
        """Close the socket."""


@dataclass(eq=False)
class DirectWriter:
    """Writes whole frames to one connection from threads other than the loop's.

    Life cycle: until ``close``; afterwards ``try_begin`` returns False.
    Ownership: owns ``sock``.

    Args:
        sock: non-blocking, a duplicate of the transport's.
        outbound: the channel's frames that the kernel has not taken.
        turn: the channel's.
        is_open: whether the channel still takes frames.
        flush_threadsafe: makes the loop write what is in ``outbound``.
        barred_threads: ids of threads that ``try_begin`` refuses.  Default: the calling thread (the loop's) and the
            main thread.
    """

    sock: FrameSocket | None
    outbound: ChannelOutboundBuffer
    turn: "threading.RLock"
    is_open: Callable[[], bool]
    flush_threadsafe: Callable[[], object]
    barred_threads: Collection[int | None] = field(
        default_factory=lambda: frozenset({threading.get_ident(), threading.main_thread().ident})
    )
    num_bytes_out: int = 0  # Both written under the turn; read anywhere, one write stale is fine.
    num_writes: int = 0

    def __repr__(self) -> str:
        return f"<DirectWriter {'closed' if self.sock is None else 'open'}, {self.num_writes} writes>"

    def try_begin(self) -> bool:
        """Take the turn; False if it is taken, earlier frames are pending, the channel is closing, or the thread is
        barred.
        """
        # Without waiting: the loop may hold the turn for a whole gather write, and sends this data as well.
        if get_ident() in self.barred_threads or not self.turn.acquire(blocking=False):
            return False
        outbound = self.outbound
        # Bytes that wait go first: this frame would land in the middle of one that the socket has taken in part.
        if self.sock is None or outbound.num_added != outbound.num_written or not self.is_open():
            self.turn.release()
            return False
        return True

    def write(self, frame: bytes) -> None:
        """Send one whole frame, once between ``try_begin`` and ``end``; the loop sends the bytes that the kernel does
        not take.
        """
        assert self.sock is not None, "the turn was taken"
        try:
            num_sent = self.sock.send(frame, _NO_SIGNAL)
        except OSError:  # no room, or a broken connection, which the loop will find and report
            num_sent = 0
        self.num_writes += 1
        self.num_bytes_out += num_sent
        if num_sent < len(frame):
            # With the turn still held: no other frame gets in front of the rest.
            self.outbound.add((memoryview(frame)[num_sent:],), None)
            with contextlib.suppress(RuntimeError):  # a loop that was closed sends nothing more
                self.flush_threadsafe()

    def end(self) -> None:
        """Give the turn back."""
        self.turn.release()

    def close(self) -> None:
        """Close the socket; later writes go through the loop.  A second call does nothing."""
        # A write that has begun ends first: until then the number of the descriptor means this socket.
        with self.turn:
            sock, self.sock = self.sock, None
        if sock is not None:
            sock.close()
