"""Stream elements, which flow between operators.

Side:   pure.
Source: Flink ``StreamElement``, ``StreamRecord``, ``Watermark``, ``WatermarkStatus``, ``LatencyMarker``,
        ``RecordAttributes``, ``InternalWatermark``.  Records flow in chunks, never singly, because Python pays per
        call: a chunk is a run of records between two control elements.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from flowlet.columns import Column, Columns
from netstack.late import dataclass
from netstack.late import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64Array = NDArray[np.int64]
else:
    Int64Array = Any  # for annotations: numpy is imported late

MIN_TIMESTAMP = -(2**63)
MAX_TIMESTAMP = 2**63 - 1
OPERATOR_ID_BYTES: Final = 16


class Chunk:
    """A run of records in stream order: a list of Python objects, or columns, from which the list is made on demand.

    Timestamps are milliseconds since the epoch, one per record; or no record has one.

    Ownership: the operator that holds a chunk owns it, and gives it away by passing it on.  The owner may change the
               list of a chunk without columns, if it passes the list on in a new chunk.  If there are columns, list,
               columns and timestamps must not change.

    Args:
        values: one object per record.
        timestamps: one per record, or None.

    Attributes:
        columns: the records by column, read only; None if there is only the list (see ``columns_of``).
        keys: the key of each record, from the edge's key selector when the record was emitted; None if no keys were
            taken, or if they are a field (``Columns.key_position``).
        key_column: the keys as a column, if there is one.
        key_field: for a list, the field of each record that is the key object itself, if known.
    """

    __slots__ = ("_keys", "_timestamp_array", "_timestamps", "_values", "columns", "key_column", "key_field")

    def __init__(self, values: list[Any], timestamps: list[int] | None = None) -> None:
        assert timestamps is None or len(timestamps) == len(values), "one timestamp per record"
        self._keys: list[Any] | None = None
        self.key_column: Column | None = None
        self.key_field: int | str | None = None
        self._values: list[Any] | None = values
        self.columns: Columns | None = None
        self._timestamps = timestamps
        self._timestamp_array: Int64Array | None = None

    @classmethod
    def of_columns(cls, columns: Columns, timestamps: Int64Array | list[int] | None = None) -> Chunk:
        """A chunk whose records are the rows of columns."""
        assert timestamps is None or len(timestamps) == columns.num_rows, "one timestamp per record"
        chunk = cls.__new__(cls)
        chunk._keys = None
        chunk.key_column = None
        chunk.key_field = None
        chunk._values = None
        chunk.columns = columns
        chunk._timestamp_array = timestamps if isinstance(timestamps, np.ndarray) else None
        chunk._timestamps = None if isinstance(timestamps, np.ndarray) else timestamps
        return chunk

    @property
    def values(self) -> list[Any]:
        """The records as Python objects; made from columns at the first access, and kept."""
        if self._values is None:
            assert self.columns is not None, "a chunk is a list or columns"
            self._values = self.columns.to_list()
        return self._values

    @property
    def keys(self) -> list[Any] | None:
        """The key of each record (see the class); made from the column at the first access, and kept."""
        if self._keys is None and self.key_column is not None:
            self._keys = self.key_column.to_list()
        return self._keys

    @keys.setter
    def keys(self, keys: list[Any] | None) -> None:
        self._keys = keys

    def records(self) -> Iterator[Any]:
        """The values one by one; values from columns are made on demand and not kept."""
        if self._values is not None:
            return iter(self._values)
        assert self.columns is not None, "a chunk is a list or columns"
        return self.columns.records()

    @property
    def timestamps(self) -> list[int] | None:
        """The timestamps, one per record, or None; made from the array at the first access, and kept."""
        if self._timestamps is None and self._timestamp_array is not None:
            self._timestamps = self._timestamp_array.tolist()
        return self._timestamps

    @property
    def timestamp_array(self) -> Int64Array | None:
        """The timestamps as an array, which must not be changed, or None."""
        if self._timestamp_array is None and self._timestamps is not None:
            # Half the time of ``np.array``, which looks at each number twice.
            array = np.frombuffer(struct.pack(f"={len(self._timestamps)}q", *self._timestamps), np.int64)
            if self.columns is None:
                return array  # the list may still change
            self._timestamp_array = array
        return self._timestamp_array

    @property
    def has_timestamps(self) -> bool:
        """Whether the records have timestamps."""
        return self._timestamps is not None or self._timestamp_array is not None

    def timestamp_bounds(self) -> tuple[int, int]:
        """The lowest and the highest timestamp; there is at least one."""
        array = self._timestamp_array
        if array is not None:
            return int(array.min()), int(array.max())
        assert self._timestamps, "a chunk of records with timestamps"
        return min(self._timestamps), max(self._timestamps)

    def copy(self) -> Chunk:
        """A chunk with these records; a list is copied, columns are shared."""
        if self.columns is not None:
            return Chunk.of_columns(
                self.columns, self._timestamps if self._timestamp_array is None else self._timestamp_array
            )
        timestamps = None if self._timestamps is None else self._timestamps.copy()
        return self._in_list(self.values.copy(), timestamps)

    def with_timestamps(self, timestamps: Int64Array | list[int] | None) -> Chunk:
        """These records with other timestamps; a list stays a list, columns stay columns.  Gives this chunk away."""
        if self.columns is None:
            return self._in_list(self.values, timestamps.tolist() if isinstance(timestamps, np.ndarray) else timestamps)
        chunk = Chunk.of_columns(self.columns, timestamps)
        chunk._values = self._values
        return chunk

    def without_keys(self) -> Chunk:
        """These records without keys, which are valid for one ``key_by`` only.  Gives this chunk away."""
        if self.columns is None:
            return Chunk(self.values, self.timestamps)
        if self.columns.key_position is None:
            return self
        timestamps = self._timestamps if self._timestamp_array is None else self._timestamp_array
        return Chunk.of_columns(self.columns.with_key_position(None), timestamps)

    def with_values(self, values: list[Any]) -> Chunk:
        """Return a chunk of other records, in a list, with these timestamps and keys.  Gives this chunk away."""
        return self if values is self._values else self._in_list(values, self.timestamps)

    def parts(self, max_records: int) -> Iterator[Chunk]:
        """The records in order, in chunks of at most ``max_records``.  Gives this chunk away."""
        if len(self) <= max_records:
            yield self
            return
        for start in range(0, len(self), max_records):
            yield self.slice(start, start + max_records)

    def slice(self, start: int, stop: int) -> Chunk:
        """The records from ``start`` to before ``stop``; a list stays a list, columns stay columns."""
        if self.columns is None:
            part = Chunk(self.values[start:stop], None if self._timestamps is None else self._timestamps[start:stop])
            part._keys = None if self._keys is None else self._keys[start:stop]
            part.key_column = None if self.key_column is None else self.key_column.slice(start, stop)
            part.key_field = self.key_field
            return part
        timestamps = self._timestamps if self._timestamp_array is None else self._timestamp_array
        return Chunk.of_columns(self.columns.slice(start, stop), None if timestamps is None else timestamps[start:stop])

    def _in_list(self, values: list[Any], timestamps: list[int] | None) -> Chunk:
        chunk = Chunk(values, timestamps)
        chunk._keys, chunk.key_column, chunk.key_field = self._keys, self.key_column, self.key_field
        return chunk

    def __len__(self) -> int:
        values = self._values
        if values is not None:
            return len(values)
        assert self.columns is not None, "a chunk is a list or columns"
        return self.columns.num_rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chunk) and self.values == other.values and self.timestamps == other.timestamps

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        kind = "" if self.columns is None else " in columns"
        return f"<Chunk of {len(self)} records{kind}{' with timestamps' if self.has_timestamps else ''}>"


class PickledRecord:
    """The pickle of a record that could change after it was emitted.

    It takes the record's place in a chunk's list.  Serializers send the pickle unchanged; readers get the record.
    ``data`` comes from ``flowlet.serde.pickles.record_pickle.dumps_record``.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"<PickledRecord of {len(self.data)} bytes>"


@dataclass(frozen=True, slots=True)
class Watermark:
    """Announces that no record with a timestamp up to this one (milliseconds) is expected."""

    timestamp: int


MAX_WATERMARK = Watermark(MAX_TIMESTAMP)


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """Whether a stream is active, or idle: then consumers do not wait for its watermarks."""

    is_idle: bool


ACTIVE = WatermarkStatus(is_idle=False)
IDLE = WatermarkStatus(is_idle=True)


@dataclass(frozen=True, slots=True)
class LatencyMarker:
    """Measures how long the records of a source take to reach an operator.

    ``marked_time_ms``: the source's clock, milliseconds since the epoch.  ``operator_id``: the source's, 16 bytes:
        Flink's lower half, then its upper half.  ``subtask``: the source's.
    """

    marked_time_ms: int
    operator_id: bytes
    subtask: int

    def __post_init__(self) -> None:
        assert len(self.operator_id) == OPERATOR_ID_BYTES, f"an operator's id of {len(self.operator_id)} bytes"


@dataclass(frozen=True, slots=True)
class RecordAttributes:
    """Attributes of the records that follow; backlog is old data, whose delay does not matter."""

    is_backlog: bool


@dataclass(frozen=True, slots=True)
class InternalWatermark:
    """A watermark of one subpartition, for channels that read several."""

    timestamp: int
    subpartition: int


@dataclass(frozen=True, slots=True)
class CompletionMark:
    """Follows every record that the job's sources emitted before it; operators emit the records that they hold before
    they pass it on.

    ``number`` rises from 1 within a job.
    """

    number: int


ControlElement = Watermark | WatermarkStatus | LatencyMarker | CompletionMark  # emitted by operators besides records

StreamElement = (
    Chunk | Watermark | WatermarkStatus | LatencyMarker | RecordAttributes | InternalWatermark | CompletionMark
)
