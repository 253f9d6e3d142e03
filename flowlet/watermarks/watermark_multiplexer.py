"""Combines the watermarks of several parts of one stream (the splits of a source).

Side:       task.
Invariants: the combined watermark is the lowest of all parts that are not idle.  The whole is idle exactly when it has
            parts and all of them are idle.  A removed part holds nothing back.
Units:      milliseconds.
Source:     Flink ``WatermarkOutputMultiplexer``.
"""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from flowlet.common.watermark_generator import WatermarkOutput
from flowlet.records import MIN_TIMESTAMP

_MIN_HEAP: Final = 64  # entries that may be there besides two for each part


class PartialWatermark:
    """The ``WatermarkOutput`` of one part's generator."""

    __slots__ = ("_owner", "is_idle", "is_removed", "timestamp")

    def __init__(self, owner: "WatermarkMultiplexer") -> None:
        self._owner = owner
        self.timestamp = MIN_TIMESTAMP
        self.is_idle = False
        self.is_removed = False

    def __repr__(self) -> str:
        return f"<PartialWatermark {self.timestamp}{', idle' if self.is_idle else ''}>"

    def emit_watermark(self, timestamp: int) -> None:
        """Raise the part's watermark; the part is active."""
        if timestamp > self.timestamp:
            was_idle, self.is_idle = self.is_idle, False
            self.timestamp = timestamp
            self._owner.part_changed(self, was_idle=was_idle)

    def mark_idle(self) -> None:
        """Make the part idle: it holds nothing back."""
        if not self.is_idle:
            self.is_idle = True
            self._owner.part_changed(self, was_idle=False)

    def mark_active(self) -> None:
        """Make the part active: its watermark counts again."""
        if self.is_idle:
            self.is_idle = False
            self._owner.part_changed(self, was_idle=True)


class WatermarkMultiplexer:
    """Tells ``output`` the combined watermark and status; ``output`` ignores repetitions.  Task thread only.

    The lowest part is the top of a heap: with thousands of splits, looking at all of them for each that changes would
    be quadratic.
    """

    def __init__(self, output: WatermarkOutput) -> None:
        self._output = output
        self._parts: dict[str, PartialWatermark] = {}
        self._num_active = 0
        # Every active part is in the heap at its timestamp.  An entry with another timestamp than its part's is dropped
        # when it is the top.
        self._heap: list[tuple[int, int, PartialWatermark]] = []
        self._numbers = count()  # parts cannot be compared
        self._is_deferred = False

    def __repr__(self) -> str:
        return f"<WatermarkMultiplexer of {len(self._parts)} parts, {self._num_active} active>"

    def add(self, name: str) -> PartialWatermark:
        """Add a part; it holds the watermark back until it has one itself."""
        assert name not in self._parts, f"part {name!r} is there already"
        part = self._parts[name] = PartialWatermark(self)
        self._num_active += 1
        self._push(part)
        return part

    def remove(self, name: str) -> None:
        """Remove a part, which has ended."""
        part = self._parts.pop(name)
        part.is_removed = True
        self._num_active -= not part.is_idle
        self._changed()

    def watermarks(self) -> dict[str, int]:
        """The watermark of each part."""
        return {name: part.timestamp for name, part in self._parts.items()}

    def defer(self) -> None:
        """Tell the output nothing before ``update``: many parts are about to change."""
        self._is_deferred = True

    def part_changed(self, part: PartialWatermark, *, was_idle: bool) -> None:
        """Tell the output, unless it is deferred."""
        if part.is_removed:
            return
        self._num_active += was_idle - part.is_idle
        if not part.is_idle:
            self._push(part)
        self._changed()

    def update(self) -> None:
        """Tell the output the combined state."""
        self._is_deferred = False
        lowest = self._lowest()
        if lowest is not None:
            self._output.mark_active()
            self._output.emit_watermark(lowest)
        elif self._parts:
            self._output.mark_idle()

    def check_invariants(self) -> None:
        """Assert what the fields say."""
        active = [part.timestamp for part in self._parts.values() if not part.is_idle]
        assert self._num_active == len(active)
        assert self._lowest() == min(active, default=None)
        assert len(self._heap) <= 2 * len(self._parts) + _MIN_HEAP

    def _changed(self) -> None:
        if not self._is_deferred:
            self.update()

    def _push(self, part: PartialWatermark) -> None:
        heappush(self._heap, (part.timestamp, next(self._numbers), part))
        if len(self._heap) > 2 * len(self._parts) + _MIN_HEAP:
            self._heap = [
                (each.timestamp, next(self._numbers), each) for each in self._parts.values() if not each.is_idle
            ]
            heapify(self._heap)

    def _lowest(self) -> int | None:
        heap = self._heap
        while heap:
            timestamp, _, part = heap[0]
            if part.timestamp == timestamp and not part.is_idle and not part.is_removed:
                return timestamp
            heappop(heap)
        return None
