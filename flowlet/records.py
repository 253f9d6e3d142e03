"""Stream elements: what flows between operators.

Side:   pure.
Source: Flink ``StreamElement``, ``StreamRecord``, ``Watermark``, ``WatermarkStatus``, ``LatencyMarker``, ``RecordAttributes``,
        ``InternalWatermark``.  Records flow in chunks: Python pays per call, so the unit that moves is a run of records between two
        control elements, never a single one.
Absent: columnar chunks (``values`` is the only representation so far).
"""

from dataclasses import dataclass
from typing import Any, Final

MIN_TIMESTAMP = -(2**63)
MAX_TIMESTAMP = 2**63 - 1
OPERATOR_ID_BYTES: Final = 16


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


@dataclass(frozen=True, slots=True)
class LatencyMarker:
    """Sent by a source now and then, to find out how long its records take to an operator.

    ``marked_time_ms``: the source's clock, milliseconds since the epoch.  ``operator_id``: of the source, 16 bytes; Flink's lower and
    upper half, in this order.  ``subtask``: of the source.
    """

    marked_time_ms: int
    operator_id: bytes
    subtask: int

    def __post_init__(self) -> None:
        assert len(self.operator_id) == OPERATOR_ID_BYTES, f"an operator's id of {len(self.operator_id)} bytes"


@dataclass(frozen=True, slots=True)
class RecordAttributes:
    """What holds for the records behind it: backlog is old data, whose delay nobody minds."""

    is_backlog: bool


@dataclass(frozen=True, slots=True)
class InternalWatermark:
    """A watermark of one subpartition, where a channel reads several."""

    timestamp: int
    subpartition: int


StreamElement = Chunk | Watermark | WatermarkStatus | LatencyMarker | RecordAttributes | InternalWatermark
