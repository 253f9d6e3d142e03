"""Who takes the segments of buffers back that nobody uses any more.

Side:   shared.  Any thread recycles.
Source: Flink ``BufferRecycler``, ``FreeingBufferRecycler``.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from netstack.buffer.memory_segment import MemorySegment


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
