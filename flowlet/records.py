"""Stream elements: what flows between operators.

Side:   pure.
Source: Flink ``StreamElement``, ``StreamRecord``, ``Watermark``, ``WatermarkStatus``.  Records flow in chunks: Python pays per call, so
        the unit that moves is a run of records between two control elements, never a single one.
Absent: latency markers; columnar chunks (``values`` is the only representation so far).
"""

from dataclasses import dataclass
from typing import Any

MIN_TIMESTAMP = -(2**63)
MAX_TIMESTAMP = 2**63 - 1


class Chunk:
    """A run of records in stream order.

    ``values`` holds one Python object per record.  ``timestamps`` is None when no record has one, else a list of the same length, in
    milliseconds since the epoch.  A chunk is owned by the operator that holds it: passing it on gives it away.
    """

    __slots__ = ("timestamps", "values")

    def __init__(self, values: list[Any], timestamps: list[int] | None = None) -> None:
        assert timestamps is None or len(timestamps) == len(values), "one timestamp per record"
        self.values = values
        self.timestamps = timestamps

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chunk) and self.values == other.values and self.timestamps == other.timestamps

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"<Chunk of {len(self.values)} records{'' if self.timestamps is None else ' with timestamps'}>"


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record with a smaller or equal timestamp (milliseconds) is expected any more."""

    timestamp: int


MAX_WATERMARK = Watermark(MAX_TIMESTAMP)


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """Whether a stream takes part in the watermark of those that read it."""

    is_idle: bool


ACTIVE = WatermarkStatus(is_idle=False)
IDLE = WatermarkStatus(is_idle=True)

StreamElement = Chunk | Watermark | WatermarkStatus
