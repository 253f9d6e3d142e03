"""Readers of segments that were filled in one go, and of contents: objects that stand in a buffer for their bytes.

Serializing for a reader that shares the memory is work for nothing.  A buffer with a content still takes one segment of
its pool, so that flow control counts it like any other; the segment stays unused.  Its bytes are made when they are
asked for: a checkpoint keeps bytes.

Side:       shared.  A consumer belongs to whoever holds the lock of its subpartition.
Hot path:   per buffer.
Invariants: whoever emits a content has no use for it any more; the reader that takes it out is its one owner from then
            on, so bytes are made before that or never.
Units:      bytes; the size of a content is an estimate.
Source:     none in Flink, whose local channels hand over serialized buffers, and whose every buffer comes from a
            ``BufferBuilder``.
"""

from typing import Final

from netstack.buffer.buffer_builder import BufferConsumer
from netstack.buffer.memory_segment import BufferRecycler, MemorySegment
from netstack.buffer.network_buffer import BufferContent, BufferLease, NetworkBuffer
from netstack.errors import LocalProtocolError
from netstack.wire.messages import DataType

_PIECE_BYTES: Final = 32 * 1024  # of bytes that are made of a content: a segment of the default size


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
        """What it holds."""
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
            self._data = self._content.to_bytes()
            self.size = len(self._data)
        return memoryview(self._data)

    def byte_buffers(self) -> list[NetworkBuffer]:
        """The bytes, in buffers as large as others are, each with a reference of its own."""
        return pieces_of(self.view)

    def slice(self, offset: int, size: int) -> NetworkBuffer:
        """``size`` bytes from ``offset`` on, in a buffer of its own."""
        return NetworkBuffer.unpooled(bytes(self.view), DataType.DATA_BUFFER).slice(offset, size)


def pieces_of(view: memoryview) -> list[NetworkBuffer]:
    """Bytes in buffers as large as others are."""
    pieces = [bytes(view[start : start + _PIECE_BYTES]) for start in range(0, len(view), _PIECE_BYTES)]
    return [NetworkBuffer.unpooled(piece, DataType.DATA_BUFFER) for piece in pieces]


class SegmentConsumer(BufferConsumer):
    """Reads a segment that was filled in one go; its lease is made only for a reader that wants less than the whole, or
    a buffer of it.

    As behind a builder, whoever holds it learns that the writer has finished when it looks for the first time.
    """

    __slots__ = ("_made_lease", "_segment", "recycler")

    # Instead of slots, which would have to be filled once per buffer.  bench: transport.
    data_type = DataType.DATA_BUFFER
    is_buffer = True
    is_compressed = False

    def __init__(self, segment: MemorySegment, recycler: BufferRecycler, partial_record_length: int = 0) -> None:
        self._segment = segment
        self.recycler = recycler  # gets the segment when nobody uses it any more
        self._made_lease: BufferLease | None = None
        self._seen = 0
        self._read = 0
        self._is_closed = False
        self.partial_record_length = partial_record_length

    @property
    def _lease(self) -> BufferLease:  # type: ignore[override]  # it is only read
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
        """The whole segment and the only reference of it: the consumer is closed.

        None if a part was read, or there are other readers.
        """
        if self._made_lease is not None or self._read:
            return None
        self._seen = ~len(self._segment.view)
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
        """About how many bytes were not built yet."""
        return 0 if self._read else self.content.size_bytes

    @property
    def is_data_available(self) -> bool:
        """Whether it was not built yet."""
        return not self._read

    def take(self) -> NetworkBuffer | None:
        """The content, once; the consumer is closed then: its reference goes along."""
        self._seen = ~len(self._segment.view)
        if self._read:
            return None
        self._read = len(self._segment.view)
        self._is_closed = True
        return ContentBuffer(self._lease, self.content)

    def build(self) -> NetworkBuffer:
        """The content as bytes, once, then nothing; the consumer stays open."""
        self._seen = ~len(self._segment.view)
        data = b"" if self._read else self.content.to_bytes()
        self._read = len(self._segment.view)
        return NetworkBuffer.unpooled(data, DataType.DATA_BUFFER)

    def try_build(self) -> NetworkBuffer | None:
        """Like ``build``, but None instead of an empty buffer."""
        return None if self._read else self.build()

    def take_segment(self) -> MemorySegment | None:
        """None: the segment has nothing in it."""
        return None

    def byte_buffers(self) -> list[NetworkBuffer]:
        """The bytes that were not built yet, in buffers as large as others are."""
        return [] if self._read else pieces_of(memoryview(self.content.to_bytes()))

    def copy(self) -> BufferConsumer:
        """A second reader, of the bytes."""
        return BufferConsumer.of_buffer(NetworkBuffer.unpooled(self.content.to_bytes(), DataType.DATA_BUFFER))

    def skip(self, num_bytes: int) -> None:
        """Refused: contents are whole records.

        Raises:
            LocalProtocolError: always.
        """
        raise LocalProtocolError(f"{num_bytes} bytes of a content cannot be skipped")
