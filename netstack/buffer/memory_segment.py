"""One piece of network memory.

Who takes the segments of buffers back that nobody uses any more.

The memory that all segments of a network pool are cut from.

Side:   shared.  Whoever holds a segment reads and writes it; who that is, leases and pools say.
Source: Flink ``MemorySegment``.  Flink ``BufferRecycler``, ``FreeingBufferRecycler``.  Flink allocates each segment on
        its own, in ``NetworkBufferPool``.
Units:  sizes in bytes.
"""

import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from netstack.buffer.segment_ledger import SegmentLedger


class MemorySegment:
    """One fixed-size piece of memory; ``index`` is its number in the arena, -1 outside of one."""

    __slots__ = ("index", "ledger", "view")

    def __init__(self, view: memoryview, index: int = -1, ledger: SegmentLedger | None = None) -> None:
        self.view = view
        self.index = index
        self.ledger = ledger  # of its pool, in debug mode

    def __repr__(self) -> str:
        return f"<MemorySegment {self.index}>"


class BufferRecycler(Protocol):
    """Takes back the segment of a buffer that nobody uses any more."""

    def recycle(self, segment: MemorySegment) -> None:
        """Take ``segment`` back; any thread."""


class SegmentHome(Protocol):
    """A recycler that takes back several segments at once; its recyclers name it as their ``home``, and their
    ``home_index`` there.
    """

    def recycle_all(self, returned: Sequence[tuple[MemorySegment, int]]) -> None:
        """Take back segments, each with the index that its recycler has here; any thread."""

    def recycle_run(self, segments: Sequence[MemorySegment], index: int) -> None:
        """The same for segments with one index."""


class FreeingBufferRecycler:
    """Leaves the memory to the interpreter: for buffers that came from no pool."""

    __slots__ = ()

    def recycle(self, segment: MemorySegment) -> None:
        """Forget the segment."""


FREEING_RECYCLER: Final = FreeingBufferRecycler()


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
