"""``WindowResults``: where the results of windows go.

Hot path, per result: a look at its type, and two appends where only chunks leave the chain behind the operator; else
one run of the loop behind it.

Side:       task.
Invariants: results leave before the watermark, the barrier or the mark that follows them.  A chained function gets a
            result before the next one is made.
Source:     Flink ``TimestampedCollector``.
"""

from typing import Any, Final

from flowlet.chain.operator_output import OperatorOutput
from flowlet.columns.unchanging import UNCHANGING, is_unchanging
from flowlet.records import Chunk, Watermark, WatermarkStatus

_MAX_WAITING: Final = 1_000  # as many as a chunk holds


class WindowResults:
    """Gathers results, or passes them on at once; also the way of watermarks, which results must not miss."""

    __slots__ = ("_is_gathered", "_out", "_timestamps", "_values")

    def __init__(self, out: OperatorOutput) -> None:
        self._out = out
        self._is_gathered = out.is_gathered
        self._values: list[Any] = []
        self._timestamps: list[int] | None = []

    def __repr__(self) -> str:
        return f"<WindowResults: {len(self._values)} wait>"

    def emit(self, value: Any, timestamp: int | None) -> None:
        """Emit one result to the main output."""
        if not self._is_gathered or (type(value) not in UNCHANGING and not is_unchanging(value)):
            # A result that can change must be copied now, and a chained function called.
            self.flush()
            self._out.collect_each((value,), None if timestamp is None else (timestamp,), 1)
            return
        if timestamp is None:
            if self._timestamps:
                self.flush()
            self._timestamps = None
        else:
            if self._timestamps is None:
                self.flush()
                self._timestamps = []
            self._timestamps.append(timestamp)
        self._values.append(value)
        if len(self._values) >= _MAX_WAITING:
            self.flush()

    def emit_side(self, tag_id: str, value: Any, timestamp: int | None) -> None:
        """Emit one result to a side output."""
        self._out.emit_side(tag_id, value, timestamp)

    def flush(self) -> None:
        """Pass on what waits."""
        values, timestamps = self._values, self._timestamps
        self._values, self._timestamps = [], []
        if values:
            self._out.collect(Chunk(values, timestamps))

    def drain(self) -> None:
        """Pass on what waits, here and in the outputs behind."""
        self.flush()
        self._out.drain()

    def emit_watermark(self, watermark: Watermark) -> None:
        """Pass a watermark on behind the results."""
        self.flush()
        self._out.emit_watermark(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Pass a status on behind the results."""
        self.flush()
        self._out.emit_watermark_status(status)
