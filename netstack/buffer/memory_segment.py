"""One piece of network memory.

Side:   shared.  Whoever holds a segment reads and writes it; who that is, leases and pools say.
Source: Flink ``MemorySegment``.
"""

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
