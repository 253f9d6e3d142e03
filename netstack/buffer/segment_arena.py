"""The memory that all segments of a network pool are cut from.

Side:   shared.
Units:  sizes in bytes.
Source: Flink allocates each segment on its own, in ``NetworkBufferPool``.
"""

import mmap
from contextlib import suppress

from netstack.buffer.memory_segment import MemorySegment
from netstack.buffer.segment_ledger import SegmentLedger


class SegmentArena:
    """One anonymous mapping, cut into segments.  Pages are touched when they are first used.

    Threading: ``unmap`` once, by whoever holds every segment; no lock is needed.
    """

    def __init__(self, num_segments: int, segment_size_bytes: int, ledger: SegmentLedger | None) -> None:
        self._map = mmap.mmap(-1, num_segments * segment_size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._map)
        self.segments = [
            MemorySegment(self._view[index * segment_size_bytes : (index + 1) * segment_size_bytes], index, ledger)
            for index in range(num_segments)
        ]

    def unmap(self) -> None:
        """Give the memory back; nobody may use a segment any more."""
        for segment in self.segments:
            segment.view.release()
        self._view.release()
        # A view of memory that was recycled may still exist; then the mapping goes with the last such view.
        with suppress(BufferError):
            self._map.close()
