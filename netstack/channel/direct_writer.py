"""The way past the loop: a thread that has a little to send writes it itself, while the connection is at rest.

Hot path.  Why: a record that comes alone would wait for the loop to wake up, which takes longer than all else that is done to it.

Side:       shared.  ``try_begin``, ``write`` and ``end`` on any thread but the loop's; the channel makes and closes it on the loop thread.
Invariants: whoever writes to the socket holds the channel's ``turn``, the loop included, from before it decides what comes next until the
            kernel has it or it stands in the outbound buffer.  So what goes past the loop never comes between the parts of a frame, and
            never before something that was written earlier.  Nobody waits for anything but the interpreter while it holds the turn.
            The socket is a duplicate: the transport may close its own at any moment, and its number then means something else.
            The main thread never has it: a signal handler that raises there (Ctrl-C) would leave the turn taken, and the loop waiting.
Lock order: ``turn`` before the locks of subpartitions and pools; no callback of a handler runs on a foreign thread.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Collection
from threading import get_ident
from typing import Final, Protocol

from netstack.channel.outbound_buffer import ChannelOutboundBuffer

MAX_DIRECT_BYTES: Final = 4096  # of payload; more is worth the loop's gather write.  Not measured.
_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)


class FrameSocket(Protocol):
    """What is needed of a socket that does not block."""

    def send(self, data: bytes, flags: int, /) -> int:
        """How many bytes the kernel took, at least one; raises OSError if it takes none."""

    def close(self) -> None:
        """Give it back."""


class DirectWriter:
    """Writes whole frames to one connection from a thread that is not the loop's.

    Life cycle: until ``close``; afterwards ``try_begin`` refuses.
    Ownership: owns ``sock``.

    Args:
        sock: non-blocking, of the same connection as the channel's transport.
        outbound: what the channel has not handed to the kernel yet.
        turn: the channel's.
        is_open: whether the channel still takes frames.
        flush_threadsafe: makes the loop write what is in ``outbound``.
        barred_threads: never have the turn.  Default: the calling thread, which is the loop's, and the main thread, which a signal handler
            may tear out of a block that gives back what it took.
    """

    __slots__ = ("_barred_threads", "_flush_threadsafe", "_is_open", "_outbound", "_sock", "_turn", "num_bytes_out", "num_writes")

    def __init__(
        self,
        sock: FrameSocket,
        outbound: ChannelOutboundBuffer,
        turn: "threading.RLock",
        is_open: Callable[[], bool],
        flush_threadsafe: Callable[[], object],
        barred_threads: Collection[int | None] | None = None,
    ) -> None:
        self._sock: FrameSocket | None = sock
        self._outbound = outbound
        self._turn = turn
        self._is_open = is_open
        self._flush_threadsafe = flush_threadsafe
        default = frozenset({threading.get_ident(), threading.main_thread().ident})
        self._barred_threads = default if barred_threads is None else barred_threads
        self.num_bytes_out = 0  # Both written under the turn; read anywhere, one write stale is fine.
        self.num_writes = 0

    def __repr__(self) -> str:
        return f"<DirectWriter {'closed' if self._sock is None else 'open'}, {self.num_writes} writes>"

    def try_begin(self) -> bool:
        """Take the turn; False if somebody has it, something written earlier is not out yet, the channel ends, or the thread is barred."""
        if get_ident() in self._barred_threads or not self._turn.acquire(blocking=False):
            return False
        outbound = self._outbound
        if self._sock is None or outbound.num_added != outbound.num_written or not self._is_open():
            self._turn.release()
            return False
        return True

    def write(self, frame: bytes) -> None:
        """Send one whole frame; between ``try_begin`` and ``end``, once.  What the kernel does not take, the loop sends next."""
        assert self._sock is not None, "the turn was taken"
        try:
            num_sent = self._sock.send(frame, _NO_SIGNAL)
        except OSError:  # there is no room, or the connection is broken: then the loop finds out, and tells everybody
            num_sent = 0
        self.num_writes += 1
        self.num_bytes_out += num_sent
        if num_sent < len(frame):
            self._outbound.add((memoryview(frame)[num_sent:],), None)
            with contextlib.suppress(RuntimeError):  # a loop that was closed sends nothing more
                self._flush_threadsafe()

    def end(self) -> None:
        """Give the turn back."""
        self._turn.release()

    def close(self) -> None:
        """Nothing goes past the loop any more; the second call does nothing."""
        with self._turn:
            sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
