"""Buffers that hold an object instead of its bytes, for a reader of the same process.

Serializing for a reader that shares the memory is work for nothing.  Such a buffer still takes one segment of its pool,
so that flow control counts it like any other; the segment stays unused.  Its bytes are made when they are asked for: a
checkpoint keeps bytes.

Side:       shared.  Hot path, per buffer.
Invariants: whoever emits a content has no use for it any more; the reader that takes it out is its one owner from then
            on, so bytes are made before that or never.
Units:      bytes; the size of a content is an estimate.
Source:     none in Flink, whose local channels hand over serialized buffers.
"""

from typing import Final

from netstack.buffer.network_buffer import BufferContent, BufferLease, NetworkBuffer
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
