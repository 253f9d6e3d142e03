"""The reader of a content that waits in a subpartition.

Side:   shared.  It belongs to whoever holds the lock of its subpartition.
Hot path: per buffer.
Units:  bytes; the size of a content is an estimate.
Source: none in Flink; see ``netstack.buffer.content_buffer``.
"""

from netstack.buffer.buffer_consumer import BufferConsumer
from netstack.buffer.buffer_recycler import BufferRecycler
from netstack.buffer.content_buffer import ContentBuffer, pieces_of
from netstack.buffer.memory_segment import MemorySegment
from netstack.buffer.network_buffer import BufferContent, NetworkBuffer
from netstack.buffer.segment_consumer import SegmentConsumer
from netstack.errors import LocalProtocolError
from netstack.wire.messages import DataType


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
