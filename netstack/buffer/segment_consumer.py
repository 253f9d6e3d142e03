"""The reader of a segment that was filled in one go.

Side:       shared.  It belongs to whoever holds the lock of its subpartition.
Hot path:   per buffer.
Units:      sizes in bytes.
Source:     none in Flink, whose every buffer comes from a ``BufferBuilder``.
"""

from netstack.buffer.buffer_consumer import BufferConsumer
from netstack.buffer.buffer_recycler import BufferRecycler
from netstack.buffer.memory_segment import MemorySegment
from netstack.buffer.network_buffer import BufferLease
from netstack.wire.messages import DataType


class SegmentConsumer(BufferConsumer):
    """Reads a segment that was filled in one go; its lease is made only if somebody wants less than the whole, or a
    buffer of it.

    As behind a builder, whoever holds it learns that the writer has finished when it looks for the first time.
    """

    __slots__ = ("_made_lease", "_recycler", "_segment")

    # Instead of slots, which would have to be filled once per buffer.  bench: transport.
    data_type = DataType.DATA_BUFFER
    is_buffer = True
    is_compressed = False

    def __init__(self, segment: MemorySegment, recycler: BufferRecycler, partial_record_length: int = 0) -> None:
        self._segment = segment
        self._recycler = recycler
        self._made_lease: BufferLease | None = None
        self._seen = 0
        self._read = 0
        self._is_closed = False
        self.partial_record_length = partial_record_length

    @property
    def _lease(self) -> BufferLease:  # type: ignore[override]  # it is only read
        lease = self._made_lease
        if lease is None:
            lease = self._made_lease = BufferLease(self._segment, self._recycler)
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

    @property
    def recycler(self) -> BufferRecycler:
        """Who gets the segment when nobody uses it any more."""
        return self._recycler
