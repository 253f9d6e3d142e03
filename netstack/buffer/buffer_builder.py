"""``BufferBuilder``, into which one thread writes records, and ``BufferConsumer``, with which another reads them
meanwhile; readers of segments that were filled in one go, and of contents: objects that stand in a buffer for their
bytes.

Serializing for a reader that shares the memory is work for nothing.  A buffer with a content still takes one segment of
its pool, so that flow control counts it like any other; the segment stays unused.  Its bytes are made only on request:
a checkpoint keeps bytes.

Side:       shared.  The builder belongs to the task thread; a consumer to the holder of its subpartition's lock.
Hot path:   per chunk and per buffer, not per record.
Invariants: writer and reader share one integer, the ``position`` of their marker (the lease itself, or one of its own):
            ``n >= 0`` committed bytes, or ``~n`` once the writer finished with ``n`` (so that an empty one can finish
            too).  The writer stores the bytes first and the position after them, in one attribute store; the reader
            loads it once and takes length and end from that one value.  A producer does not touch a content that it
            emitted; the reader that takes it out is its one owner from then on, so bytes are made before that or never.
Units:      positions in bytes from the start of the segment; the size of a content is an estimate.
Source:     Flink ``BufferBuilder``, ``BufferConsumer``.  Copies of a consumer read one segment, each at its own pace
            (one writer, a copy per subpartition: broadcast).  Contents: none in Flink, whose local channels hand over
            serialized buffers, and whose every buffer comes from a ``BufferBuilder``.
"""

from typing import Final, Self

from netstack.buffer.network_buffer import (
    FREEING_RECYCLER,
    BufferContent,
    BufferLease,
    BufferRecycler,
    MemorySegment,
    NetworkBuffer,
)
from netstack.errors import LocalProtocolError
from netstack.log_lines import shown_state
from netstack.wire.messages import DataType


class PositionMarker:
    """The writer's position, for bytes that come from no builder."""

    __slots__ = ("position",)

    def __init__(self, position: int = 0) -> None:
        self.position = position


class BufferConsumer:
    """Reads the bytes that a builder committed, in any number of buffers.

    Threading: one at a time; the owner's lock orders the calls.
    Ownership: holds a reference on the segment until ``close``; every built buffer holds one of its own.
    """

    __slots__ = (
        "_is_closed",
        "_lease",
        "_marker",
        "_read",
        "_seen",
        "data_type",
        "is_buffer",
        "is_compressed",
        "partial_record_length",
    )

    def __init__(
        self,
        lease: BufferLease,
        marker: PositionMarker | BufferLease,
        data_type: DataType,
        partial_record_length: int = 0,
    ) -> None:
        self._lease = lease
        self._marker = marker
        self._seen = marker.position  # the position at the last look; ``is_finished`` reads it
        self._read = 0
        self._is_closed = False
        self.data_type = data_type
        self.is_buffer = data_type.is_buffer
        self.is_compressed = False
        self.partial_record_length = partial_record_length

    @classmethod
    def of_event(cls, data: bytes, data_type: DataType) -> Self:
        """Make a consumer of a serialized event: finished from the start, outside of every pool; ``copy`` it for
        further subpartitions.
        """
        lease = BufferLease(MemorySegment(memoryview(data)), FREEING_RECYCLER)
        lease.position = ~len(data)
        return cls(lease, lease, data_type)

    @classmethod
    def of_buffer(cls, buffer: NetworkBuffer) -> Self:
        """Make a consumer of a complete buffer; it takes over the caller's reference."""
        consumer = cls(buffer.lease, PositionMarker(~(buffer.offset + buffer.size)), buffer.data_type)
        consumer._read = buffer.offset
        consumer.is_compressed = buffer.is_compressed
        return consumer

    def __repr__(self) -> str:
        state = shown_state("open", closed=self._is_closed, finished=self.is_finished)
        return f"<BufferConsumer {self.data_type.name} {state}, {self._read} bytes read>"

    def copy(self) -> "BufferConsumer":
        """Make a second reader of this buffer, which starts where this one stands now; with a reference of its own.

        Raises:
            BufferOwnershipError: nobody holds the segment any more.
        """
        self._lease.retain()
        copy = BufferConsumer(self._lease, self._marker, self.data_type, self.partial_record_length)
        # What this reader has built went elsewhere: a copy for a checkpoint must not have it again.
        copy._read = self._read
        copy.is_compressed = self.is_compressed
        return copy

    @property
    def is_start_of_data_buffer(self) -> bool:
        """Whether nothing of a data buffer was built or skipped yet."""
        return self.is_buffer and self._read == 0

    @property
    def segment_size_bytes(self) -> int:
        """How much the buffer could hold, whatever it was trimmed to."""
        return len(self._lease.segment.view)

    @property
    def num_bytes_unread(self) -> int:
        """How many committed bytes were not built yet; looks at the writer's position now."""
        # One load for the test and the number: the writer may finish in between.
        position = self._marker.position
        return max(0, (position if position >= 0 else ~position) - self._read)

    @property
    def is_finished(self) -> bool:
        """Whether the writer had finished at the last ``build`` (or at construction)."""
        # Not by the position now: bytes that the writer commits behind the last look would be dropped with the buffer.
        return self._seen < 0

    @property
    def is_data_available(self) -> bool:
        """Whether there are committed bytes that were not built yet; looks at the writer's position now."""
        position = self._marker.position
        return (position if position >= 0 else ~position) > self._read

    def build(self) -> NetworkBuffer:
        """Return everything committed since the last call, maybe nothing; the caller recycles it."""
        # One load: the writer may commit more, or finish, between two.
        position = self._seen = self._marker.position
        start = self._read
        end = self._read = position if position >= 0 else ~position
        lease = self._lease
        lease.retain()
        return NetworkBuffer.of_lease(
            lease, start, end - start, self.data_type, is_buffer=self.is_buffer, is_compressed=self.is_compressed
        )

    def take(self) -> NetworkBuffer | None:
        """Build like ``build``, but return None instead of an empty buffer.  If the writer has finished, return the
        rest and close the consumer, whose reference goes to the returned buffer.
        """
        # One load for both questions: the writer may commit more, or finish, between two.
        position = self._seen = self._marker.position
        start = self._read
        end = position if position >= 0 else ~position
        if end == start:
            return None
        self._read = end
        # Fast path: the consumer's reference moves to the last buffer, without a retain and a release.
        if position < 0:
            self._is_closed = True
        else:
            self._lease.retain()
        return NetworkBuffer.of_lease(
            self._lease, start, end - start, self.data_type, is_buffer=self.is_buffer, is_compressed=self.is_compressed
        )

    def skip(self, num_bytes: int) -> None:
        """Leave out the next ``num_bytes`` committed bytes.

        Raises:
            ValueError: fewer are committed.
        """
        position = self._seen = self._marker.position
        end = position if position >= 0 else ~position
        if not 0 <= num_bytes <= end - self._read:
            raise ValueError(f"cannot skip {num_bytes} bytes, {end - self._read} can be read")
        self._read += num_bytes

    def close(self) -> None:
        """Give the reader's reference back; the second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self._lease.release()


class BufferBuilder:
    """Appends bytes to a segment; committed bytes can be read while more are written.

    Threading: one thread, the task's.
    Ownership: holds a reference on the segment from construction to ``close``.
    """

    __slots__ = ("_has_consumer", "_is_closed", "_lease", "_marker", "_position", "_view", "capacity_bytes")

    def __init__(self, segment: MemorySegment, recycler: BufferRecycler) -> None:
        # The lease is the marker, too: one object less per buffer.
        self._lease = self._marker = BufferLease(segment, recycler)
        self._view = view = segment.view
        self.capacity_bytes = len(view)  # how many bytes it takes in all; less after ``trim``
        self._position = 0  # how many bytes are written
        self._has_consumer = False
        self._is_closed = False

    def __repr__(self) -> str:
        state = shown_state("open", closed=self._is_closed, finished=self.is_finished)
        return f"<BufferBuilder {state}, {self._position} of {self.capacity_bytes} bytes>"

    @property
    def is_full(self) -> bool:
        """Whether no byte fits any more."""
        return self._position == self.capacity_bytes

    @property
    def is_finished(self) -> bool:
        """Whether ``finish`` was called."""
        return self._marker.position < 0

    def append_and_commit(self, data: bytes | memoryview) -> int:
        """Write as much of ``data`` (single bytes) as fits, which the consumer sees at once; returns how many bytes."""
        marker = self._marker
        assert marker.position >= 0, "a finished buffer takes no more data"
        position = self._position
        num_bytes = len(data)
        if num_bytes > self.capacity_bytes - position:
            num_bytes = self.capacity_bytes - position
            data = memoryview(data)[:num_bytes]
        end = position + num_bytes
        # The bytes first: a reader that sees the new position takes them at once.
        self._view[position:end] = data
        self._position = marker.position = end
        return num_bytes

    def trim(self, size_bytes: int) -> None:
        """Limit the buffer to ``size_bytes`` (buffer debloating): never below the written bytes, never beyond the
        segment.
        """
        # What was written was committed, and may be read already.
        self.capacity_bytes = min(len(self._view), max(size_bytes, self._position))

    def finish(self) -> int:
        """Close for writing; returns the bytes written.  The second call changes nothing."""
        # Number and end in one store: a reader never sees the end without all bytes.
        self._marker.position = ~self._position
        return self._position

    def create_buffer_consumer(self, partial_record_length: int = 0) -> BufferConsumer:
        """Make the one reader of this buffer; it sees bytes that are committed later, too.

        Args:
            partial_record_length: how many of the first bytes belong to a record that began in an earlier buffer.

        Raises:
            LocalProtocolError: there is a consumer already.
        """
        if self._has_consumer:
            raise LocalProtocolError("a buffer has one consumer, and it exists already")
        # A reference for the reader: it may be closed while the builder still writes, and the segment must not go home
        # then.
        self._has_consumer = True
        self._lease.retain()
        return BufferConsumer(self._lease, self._marker, DataType.DATA_BUFFER, partial_record_length)

    def close(self) -> int:
        """Finish, and give the writer's reference back; returns the bytes written.  The second call changes nothing."""
        position = self._position
        if not self._is_closed:
            self._is_closed = True
            # Before the reference goes: a reader that still sees an unfinished buffer would wait for more.
            self._marker.position = ~position
            self._lease.release()
        return position


_PIECE_BYTES: Final = 32 * 1024  # size of a buffer of a content's bytes: a segment of the default size


class ContentBuffer(NetworkBuffer):
    """A data buffer with a content; its ``view`` has the bytes.

    Threading: as of every buffer; ``view`` by one thread at a time.
    """

    __slots__ = ("_content", "_data")

    def __init__(self, lease: BufferLease, content: BufferContent) -> None:
        self._lease = lease
        self._offset = 0
        self.size = content.size_bytes
        self.data_type = DataType.DATA_BUFFER
        self.is_buffer = True
        self.is_compressed = False
        self._content = content
        self._data: bytes | None = None

    @property
    def content(self) -> BufferContent:
        """The content that stands in this buffer for its bytes."""
        return self._content

    @property
    def view(self) -> memoryview:
        """The bytes, which may be more than a segment holds.

        Raises:
            BufferOwnershipError: the buffer was recycled by its last holder.
        """
        if not self._lease.count:
            raise self._lease.misused("is used after its release")
        if self._data is None:
            # Once: a second serialization might differ, and readers of slices need one text.
            self._data = self._content.to_bytes()
            self.size = len(self._data)
        return memoryview(self._data)

    def byte_buffers(self) -> list[NetworkBuffer]:
        """Copy the bytes into buffers of the usual size, each with a reference of its own."""
        return pieces_of(self.view)

    def slice(self, offset: int, size: int) -> NetworkBuffer:
        """Copy the bytes, and return ``size`` of them from ``offset`` on in a buffer of its own."""
        return NetworkBuffer.unpooled(bytes(self.view), DataType.DATA_BUFFER).slice(offset, size)


def pieces_of(view: memoryview) -> list[NetworkBuffer]:
    """Copy bytes into buffers of the usual size."""
    pieces = [bytes(view[start : start + _PIECE_BYTES]) for start in range(0, len(view), _PIECE_BYTES)]
    return [NetworkBuffer.unpooled(piece, DataType.DATA_BUFFER) for piece in pieces]


class SegmentConsumer(BufferConsumer):
    """Reads a segment that was filled in one go.  It makes a lease only for a reader that wants a part of the segment,
    or a buffer of it.

    As with a consumer of a builder, the holder learns that the writer has finished when it looks for the first time.
    """

    __slots__ = ("_made_lease", "_segment", "recycler")

    # Class attributes in place of slots, which would have to be filled once per buffer.  bench: transport.
    data_type = DataType.DATA_BUFFER
    is_buffer = True
    is_compressed = False

    def __init__(self, segment: MemorySegment, recycler: BufferRecycler, partial_record_length: int = 0) -> None:
        self._segment = segment
        self.recycler = recycler  # takes the segment back when nobody uses it any more
        self._made_lease: BufferLease | None = None
        self._seen = 0
        self._read = 0
        self._is_closed = False
        self.partial_record_length = partial_record_length

    @property
    def _lease(self) -> BufferLease:  # type: ignore[override]  # it is only read
        # Made for a second reader or a part only: most segments leave whole, in a run.
        lease = self._made_lease
        if lease is None:
            lease = self._made_lease = BufferLease(self._segment, self.recycler)
            lease.position = ~len(self._segment.view)
        return lease

    @property
    def _marker(self) -> BufferLease:  # type: ignore[override,mutable-override]  # it is only read
        return self._lease

    @property
    def segment_size_bytes(self) -> int:
        """How much the buffer holds."""
        return len(self._segment.view)

    @property
    def num_bytes_unread(self) -> int:
        """How many bytes were not built yet."""
        return len(self._segment.view) - self._read

    @property
    def is_data_available(self) -> bool:
        """Whether there are bytes that were not built yet."""
        return self._read < len(self._segment.view)

    def take_segment(self) -> MemorySegment | None:
        """Return the whole segment and its only reference; the consumer is closed.

        None if a part was read, or there are other readers.
        """
        # A lease counts other readers, such as a copy for a checkpoint: they read on when the run is recycled.
        if self._made_lease is not None or self._read:
            return None
        self._seen = ~len(self._segment.view)
        # The reference leaves with the segment: a later ``close`` must not send it home as well.
        self._is_closed = True
        return self._segment


class ContentConsumer(SegmentConsumer):
    """Reads a segment that stands for a content, whole or not at all."""

    __slots__ = ("content",)

    def __init__(self, segment: MemorySegment, recycler: BufferRecycler, content: BufferContent) -> None:
        super().__init__(segment, recycler)
        self.content = content

    @property
    def num_bytes_unread(self) -> int:
        """Estimate of how many bytes were not built yet."""
        return 0 if self._read else self.content.size_bytes

    @property
    def is_data_available(self) -> bool:
        """Whether the content was not built yet."""
        return not self._read

    def take(self) -> NetworkBuffer | None:
        """Return the content, once; then the consumer is closed, and its reference belongs to the returned buffer."""
        self._seen = ~len(self._segment.view)
        if self._read:
            return None
        self._read = len(self._segment.view)
        self._is_closed = True
        return ContentBuffer(self._lease, self.content)

    def build(self) -> NetworkBuffer:
        """Return the content as bytes, once, then nothing; the consumer stays open."""
        self._seen = ~len(self._segment.view)
        # As bytes: the content itself has one owner, and this consumer stays open.
        data = b"" if self._read else self.content.to_bytes()
        self._read = len(self._segment.view)
        return NetworkBuffer.unpooled(data, DataType.DATA_BUFFER)

    def take_segment(self) -> MemorySegment | None:
        """Return None: the segment holds no bytes."""
        # Its bytes are whatever the segment held before.
        return None

    def byte_buffers(self) -> list[NetworkBuffer]:
        """Return the bytes that were not built yet, in buffers of the usual size."""
        return [] if self._read else pieces_of(memoryview(self.content.to_bytes()))

    def copy(self) -> BufferConsumer:
        """Make a second reader, of the bytes."""
        # A content has one owner; the copy must not see what its reader does to it.
        return BufferConsumer.of_buffer(NetworkBuffer.unpooled(self.content.to_bytes(), DataType.DATA_BUFFER))

    def skip(self, num_bytes: int) -> None:
        """Refuse: contents are whole records.

        Raises:
            LocalProtocolError: always.
        """
        raise LocalProtocolError(f"{num_bytes} bytes of a content cannot be skipped")
