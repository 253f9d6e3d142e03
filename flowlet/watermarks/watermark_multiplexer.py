"""Combines the watermarks of several parts of one stream (the splits of a source).

Side:       task.
Invariants: the combined watermark is the lowest of all parts that are not idle.  The whole is idle exactly when it has parts and all of
            them are idle.  A removed part holds nothing back.
Units:      milliseconds.
Source:     Flink ``WatermarkOutputMultiplexer``.
"""

from flowlet.common.watermark_generator import WatermarkOutput
from flowlet.records import MIN_TIMESTAMP


class PartialWatermark:
    """The ``WatermarkOutput`` of one part's generator."""

    __slots__ = ("_owner", "is_idle", "timestamp")

    def __init__(self, owner: "WatermarkMultiplexer") -> None:
        self._owner = owner
        self.timestamp = MIN_TIMESTAMP
        self.is_idle = False

    def __repr__(self) -> str:
        return f"<PartialWatermark {self.timestamp}{', idle' if self.is_idle else ''}>"

    def emit_watermark(self, timestamp: int) -> None:
        """Raise the part's watermark; the part is active."""
        if timestamp > self.timestamp:
            self.timestamp = timestamp
            self.is_idle = False
            self._owner.part_changed()

    def mark_idle(self) -> None:
        """Make the part idle: it holds nothing back."""
        if not self.is_idle:
            self.is_idle = True
            self._owner.part_changed()

    def mark_active(self) -> None:
        """Make the part active: its watermark counts again."""
        if self.is_idle:
            self.is_idle = False
            self._owner.part_changed()


class WatermarkMultiplexer:
    """Tells ``output`` the combined watermark and status; ``output`` ignores repetitions.  Task thread only."""

    def __init__(self, output: WatermarkOutput) -> None:
        self._output = output
        self._parts: dict[str, PartialWatermark] = {}
        self._is_deferred = False

    def __repr__(self) -> str:
        return f"<WatermarkMultiplexer of {self._parts!r}>"

    def add(self, name: str) -> PartialWatermark:
        """Add a part; it holds the watermark back until it has one itself."""
        assert name not in self._parts, f"part {name!r} is there already"
        part = self._parts[name] = PartialWatermark(self)
        return part

    def remove(self, name: str) -> None:
        """Remove a part, which has ended."""
        del self._parts[name]
        self.part_changed()

    def watermarks(self) -> dict[str, int]:
        """The watermark of each part."""
        return {name: part.timestamp for name, part in self._parts.items()}

    def defer(self) -> None:
        """Tell the output nothing before ``update``: many parts are about to change."""
        self._is_deferred = True

    def part_changed(self) -> None:
        """Tell the output, unless it is deferred."""
        if not self._is_deferred:
            self.update()

    def update(self) -> None:
        """Tell the output the combined state."""
        self._is_deferred = False
        active = [part.timestamp for part in self._parts.values() if not part.is_idle]
        if active:
            self._output.mark_active()
            self._output.emit_watermark(min(active))
        elif self._parts:
            self._output.mark_idle()
