"""The frames of a channel that the kernel has not taken yet.

Side:       pure.  Hot path.
Invariants: ``pending_bytes`` counts every byte from ``add`` until ``written``; an ``on_written`` callback is returned
            once, when the last byte of its frame was written, or by ``fail_all``.
Units:      bytes.
Source:     Netty ``ChannelOutboundBuffer``, without the 96 bytes that Netty adds per message for its own bookkeeping.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

View: TypeAlias = bytes | memoryview
OnWritten: TypeAlias = Callable[[], None]


class OutboundFrame(NamedTuple):
    """Encoded bytes for the head of a pipeline.

    Ownership: ``views`` must not change until ``on_written`` is called, once, after the last byte was written or the
               write failed.
    """

    views: Sequence[View]
    on_written: OnWritten | None


class ChannelOutboundBuffer:
    """A FIFO queue of frames with a high and a low watermark.

    Attributes:
        is_writable: False from above the high watermark until at or below the low one; read only.
        num_added: bytes added so far; read only.
        num_written: bytes written so far; read only.
    """

    __slots__ = ("_callbacks", "_high", "_low", "_unflushed", "is_writable", "num_added", "num_written")

    def __init__(self, high_watermark_bytes: int, low_watermark_bytes: int) -> None:
        assert 0 <= low_watermark_bytes <= high_watermark_bytes, "the low watermark is not above the high one"
        self._high = high_watermark_bytes
        self._low = low_watermark_bytes
        self.is_writable = True
        # Two sums that only grow, not their difference: a callback is due when ``num_written`` reaches the sum at its
        # frame's end.
        self.num_added = 0
        self.num_written = 0
        self._unflushed: list[View] = []
        self._callbacks: deque[tuple[int, OnWritten]] = deque()  # (num_written at the end of the frame, its callback)

    def __repr__(self) -> str:
        return (
            f"<ChannelOutboundBuffer {'writable' if self.is_writable else 'full'}, {self.pending_bytes} bytes pending>"
        )

    @property
    def pending_bytes(self) -> int:
        """Bytes added and not yet written."""
        return self.num_added - self.num_written

    def add(self, views: Sequence[View], on_written: OnWritten | None) -> bool:
        """Append one frame; returns True if this made the channel unwritable."""
        added = self.num_added
        for view in views:
            added += len(view)
        self.num_added = added
        self._unflushed += views
        if on_written is not None:
            self._callbacks.append((added, on_written))
        if self.is_writable and added - self.num_written > self._high:
            self.is_writable = False
            return True
        return False

    def take_unflushed(self) -> list[View]:
        """Return the bytes added since the last call, for one gather write; they stay pending."""
        views, self._unflushed = self._unflushed, []
        return views

    def written(self, num_bytes: int) -> tuple[list[OnWritten], bool]:
        """Count ``num_bytes`` more as written; returns the due callbacks, and whether the channel became writable."""
        assert 0 <= num_bytes <= self.pending_bytes, f"{num_bytes} bytes written, {self.pending_bytes} pending"
        self.num_written += num_bytes
        written, callbacks = self.num_written, self._callbacks
        # Returned, not called: a callback may write, and must find the counts as they are then.
        due: list[OnWritten] = []
        while callbacks and callbacks[0][0] <= written:
            due.append(callbacks.popleft()[1])
        # Not at the high watermark already: the channel would flip with every frame.
        if not self.is_writable and self.num_added - written <= self._low:
            self.is_writable = True
            return due, True
        return due, False

    def fail_all(self) -> list[OnWritten]:
        """Drop everything; returns the callbacks of all frames that were not written completely."""
        due = [callback for _, callback in self._callbacks]
        self._callbacks.clear()
        self._unflushed = []
        # A closed channel has no pending bytes, so nobody waits for them.
        self.num_written = self.num_added
        return due

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        assert 0 <= self.num_written <= self.num_added, repr(self)
        unflushed_bytes = sum(map(len, self._unflushed))
        assert unflushed_bytes <= self.pending_bytes, f"{unflushed_bytes} bytes unflushed in {self!r}"
        ends = [end for end, _ in self._callbacks]
        assert ends == sorted(ends), "frames end in the order in which they were added"
        if self.is_writable:
            assert self.pending_bytes <= self._high, repr(self)
