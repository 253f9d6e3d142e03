"""The writer of a segment that is read at the same time.

Side:       shared.  It belongs to the task thread; its ``BufferConsumer`` to whoever holds its subpartition's lock.
Hot path:   per chunk and per buffer, not per record.
Invariants: writer and reader share one integer, the ``position`` of their marker (the lease itself, or one of its own):
            ``n >= 0`` committed bytes, or ``~n`` once the writer finished with ``n`` (so that an empty one can finish
            too).  The writer stores the bytes first and the position after them, in one attribute store; the reader
            loads it once and takes length and end from that one value.
Units:      positions in bytes from the start of the segment.
Source:     Flink ``BufferBuilder``.
"""

from netstack.buffer.buffer_consumer import BufferConsumer
from netstack.buffer.buffer_recycler import BufferRecycler
from netstack.buffer.memory_segment import MemorySegment
from netstack.buffer.network_buffer import BufferLease
from netstack.errors import LocalProtocolError
from netstack.wire.messages import DataType


class BufferBuilder:
    """Appends bytes to a segment; what is committed can be read while more is written.

    Threading: one thread, the task's.
    Ownership: holds a reference on the segment from construction to ``close``.
    """

    __slots__ = ("_capacity", "_has_consumer", "_is_closed", "_lease", "_marker", "_position", "_view")

    def __init__(self, segment: MemorySegment, recycler: BufferRecycler) -> None:
        self._lease = self._marker = BufferLease(segment, recycler)
        self._view = view = segment.view
        self._capacity = len(view)
        self._position = 0  # appended, maybe not committed
        self._has_consumer = False
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "finished" if self.is_finished else "open"
        return f"<BufferBuilder {state}, {self._position} of {self._capacity} bytes>"

    @property
    def recycler(self) -> BufferRecycler:
        """Who gets the segment when nobody uses it any more."""
        return self._lease.recycler

    @property
    def capacity_bytes(self) -> int:
        """How many bytes it takes in all: the size of the segment, or less after ``trim``."""
        return self._capacity

    @property
    def num_bytes_appended(self) -> int:
        """How many bytes were written, committed or not."""
        return self._position

    @property
    def writable_bytes(self) -> int:
        """How many bytes still fit."""
        return self._capacity - self._position

    @property
    def is_full(self) -> bool:
        """Whether nothing fits any more."""
        return self._position == self._capacity

    @property
    def is_finished(self) -> bool:
        """Whether ``finish`` was called."""
        return self._marker.position < 0

    def append(self, data: bytes | memoryview) -> int:
        """Write as much of ``data`` (single bytes) as fits, invisible until ``commit``; returns how many bytes that
        were.
        """
        assert self._marker.position >= 0, "a finished buffer takes no more data"
        position = self._position
        num_bytes = len(data)
        if num_bytes > self._capacity - position:
            num_bytes = self._capacity - position
            data = memoryview(data)[:num_bytes]
        end = position + num_bytes
        self._view[position:end] = data
        self._position = end
        return num_bytes

    def commit(self) -> None:
        """Let the consumer see everything appended so far."""
        assert self._marker.position >= 0, "a finished buffer is committed"
        self._marker.position = self._position

    def append_and_commit(self, data: bytes | memoryview) -> int:
        """``append`` and ``commit`` in one call."""
        marker = self._marker
        assert marker.position >= 0, "a finished buffer takes no more data"
        position = self._position
        num_bytes = len(data)
        if num_bytes > self._capacity - position:
            num_bytes = self._capacity - position
            data = memoryview(data)[:num_bytes]
        end = position + num_bytes
        self._view[position:end] = data
        self._position = marker.position = end
        return num_bytes

    def trim(self, size_bytes: int) -> None:
        """Take ``size_bytes`` in all (buffer debloating): never less than is written, never more than the segment
        holds.
        """
        self._capacity = min(len(self._view), max(size_bytes, self._position))

    def finish(self) -> int:
        """Commit and close for writing; returns the bytes written.  The second call changes nothing."""
        self._marker.position = ~self._position
        return self._position

    def create_buffer_consumer(self, partial_record_length: int = 0) -> BufferConsumer:
        """The one reader; it starts at what is committed later as well as now.

        Args:
            partial_record_length: how many of the first bytes belong to a record that began in an earlier buffer.

        Raises:
            LocalProtocolError: there is a consumer already.
        """
        if self._has_consumer:
            raise LocalProtocolError("a buffer has one consumer, and it exists already")
        self._has_consumer = True
        self._lease.retain()
        return BufferConsumer(self._lease, self._marker, DataType.DATA_BUFFER, partial_record_length)

    def close(self) -> int:
        """Finish, and give the writer's reference back; returns the bytes written.  The second call changes nothing."""
        position = self._position
        if not self._is_closed:
            self._is_closed = True
            self._marker.position = ~position
            self._lease.release()
        return position
