"""The base class of record writers: pending records, serialization, watermarks and statuses, flushes.

Records wait in columns until they are written, and are split by channel; or they wait as lists beside their keys, until
their channels are known.  A reader in this process gets the records themselves.  For any other reader their fields
become columns.

Hot path, per chunk: C code per column.

Side:       task.
Invariants: records of one channel keep their order.  Watermarks, statuses, markers and marks follow all records
            collected before them.  After ``flush_pending`` no record is pending, so flushers need not know about
            pending records.  Columns that wait stand for exactly equal records; no value of a field can change
            (``chain.record_shape``).
Units:      milliseconds, bytes.
Source:     Flink ``RecordWriter``, ``RecordWriterOutput``.  Cleared lists, the bounds below and the split: hot-path
            measurements.  For two or three lanes it is cheapest to find the rows of each lane (two columns into two
            lanes: 2.4 ns per row; ``np.compress`` finds them once per column, 3.7).  For more lanes a stable sort is
            cheapest (7.5 ns), which is a radix sort for integers of up to 16 bits.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.chain.chunking_output import MIN_COLUMN_ROWS, KeyExtractor
from flowlet.columns import Column, Columns, ListColumn, Shape, column_of, try_concatenate
from flowlet.columns.table import exact_type, try_transpose
from flowlet.common.types import Row, parts_of
from flowlet.errors import SerdeError
from flowlet.io.chunk_content import MAX_ELEMENT_BYTES, MIN_CONTENT_RECORDS, try_contents
from flowlet.io.key_dictionary import ChannelCodes
from flowlet.mailbox.task_mailbox import Attention
from flowlet.records import (
    Chunk,
    CompletionMark,
    ControlElement,
    Int64Array,
    LatencyMarker,
    Watermark,
    WatermarkStatus,
)
from flowlet.serde.column_writer import ElementTooLargeError
from flowlet.serde.element_serializer import StreamElementSerializer
from flowlet.serde.flat_classes import flat_class_of, maker_of, parts_of_dicts
from netstack.late import dataclass
from netstack.loop.forks import end_stranded_child
from netstack.partition.result_partition import ResultPartition

LaneArray = NDArray[np.uint16]
# Returns the records as they are sent, and the lane of each; takes one chunk, or several joined ones that share this
# route.
Route = Callable[[Columns], tuple[Columns, LaneArray]]

_MAX_MASKS: Final = 3


class PendingColumns:
    """Waiting chunks of columns, all with timestamps or all without; ``num_lanes`` is at most 65,536."""

    __slots__ = ("_chunks", "_lanes", "_num_lanes", "num_rows")

    def __init__(self, num_lanes: int) -> None:
        self._num_lanes = num_lanes
        self._chunks: list[Chunk] = []
        self._lanes: list[LaneArray | Route | None] = []
        self.num_rows = 0

    def __repr__(self) -> str:
        return f"<PendingColumns: {self.num_rows} rows>"

    def add(self, chunk: Chunk, lanes: LaneArray | Route | None) -> None:
        """Keep a chunk of columns.

        ``lanes``: the lane of each record, or a function that finds it later, for many records at once; None: all go to
            lane 0.
        """
        self._chunks.append(chunk)
        self._lanes.append(lanes)
        self.num_rows += len(chunk)

    def take(self) -> Iterator[tuple[int, Chunk]]:
        """Remove all waiting records: (lane, chunk) pairs, in as few chunks as the columns allow."""
        chunks, lanes = self._chunks, self._lanes
        self._chunks, self._lanes, self.num_rows = [], [], 0
        tables = [chunk.columns for chunk in chunks]
        joined = try_concatenate([table for table in tables if table is not None]) if chunks else None
        if joined is None:
            for chunk, each in zip(chunks, lanes, strict=True):
                yield from self._split(*_routed(each, chunk))
            return
        timestamps = [array for chunk in chunks if (array := chunk.timestamp_array) is not None]
        whole = Chunk.of_columns(joined, np.concatenate(timestamps) if timestamps else None)
        if all(each is lanes[0] for each in lanes):
            yield from self._split(*_routed(lanes[0], whole))
            return
        routed = [_routed(each, chunk) for chunk, each in zip(chunks, lanes, strict=True)]
        if all(chunk.columns is table for (chunk, _), table in zip(routed, tables, strict=True)):
            yield from self._split(whole, np.concatenate([found for _, found in routed if found is not None]))
            return
        for chunk, found in routed:
            yield from self._split(chunk, found)

    def _split(self, chunk: Chunk, lanes: LaneArray | None) -> Iterator[tuple[int, Chunk]]:
        if lanes is None:
            return iter(((0, chunk),))
        assert chunk.columns is not None, "only columns wait here"
        split = _by_masks if self._num_lanes <= _MAX_MASKS else _by_sorting
        # Narrowed before the split, so that the split moves fewer bytes.
        return split(chunk.columns.narrowed(), chunk.timestamp_array, lanes, self._num_lanes)


def _routed(lanes: LaneArray | Route | None, chunk: Chunk) -> tuple[Chunk, LaneArray | None]:
    if not callable(lanes):
        return chunk, lanes
    assert chunk.columns is not None, "only columns wait here"
    columns, found = lanes(chunk.columns)
    return chunk if columns is chunk.columns else Chunk.of_columns(columns, chunk.timestamp_array), found


def _by_masks(
    columns: Columns, timestamps: Int64Array | None, lanes: LaneArray, num_lanes: int
) -> Iterator[tuple[int, Chunk]]:
    for lane in range(num_lanes):
        rows = np.flatnonzero(lanes == lane)
        if len(rows) == len(lanes):
            yield lane, Chunk.of_columns(columns, timestamps)
        elif len(rows):
            yield lane, Chunk.of_columns(columns.take(rows), None if timestamps is None else timestamps.take(rows))


def _by_sorting(
    columns: Columns, timestamps: Int64Array | None, lanes: LaneArray, num_lanes: int
) -> Iterator[tuple[int, Chunk]]:
    order = np.argsort(lanes, kind="stable")
    ends = np.cumsum(np.bincount(lanes, minlength=num_lanes)).tolist()
    columns = columns.take(order)
    timestamps = None if timestamps is None else timestamps.take(order)
    start = 0
    for lane, end in enumerate(ends):
        if start < end:
            yield (
                lane,
                Chunk.of_columns(columns.slice(start, end), None if timestamps is None else timestamps[start:end]),
            )
        start = end


_KEY: Final = 1  # position of the column of keys, behind the column of records


def beside_keys(chunk: Chunk) -> Chunk:
    """Convert a chunk of listed records with keys into two columns, records and keys (``Shape.KEYED``)."""
    assert chunk.keys is not None, "the key extractor gave them"
    fields = (ListColumn(chunk.values), column_of(chunk.keys))
    columns = Columns(len(chunk), fields, Shape.KEYED, key_position=_KEY, record_key=chunk.key_field)
    return Chunk.of_columns(columns, chunk.timestamps)


def as_it_is(chunk: Chunk) -> Chunk:
    """The chunk for a reader in this process: records beside keys as lists, others unchanged."""
    columns = chunk.columns
    if columns is None:
        return chunk
    wide = columns.widened()
    if columns.shape is Shape.KEYED:
        return _listed(chunk, wide)
    return chunk if wide is columns else Chunk.of_columns(wide, chunk.timestamp_array)


def _listed(chunk: Chunk, columns: Columns) -> Chunk:
    records, keys = columns.fields
    listed = Chunk(records.as_list(), chunk.timestamps)
    listed.key_column = keys
    listed.key_field = columns.record_key
    return listed


def sendable(chunk: Chunk) -> Chunk:
    """The chunk for another process: records beside keys become columns of their fields, or else lists; others
    unchanged.
    """
    columns = chunk.columns
    if columns is None or columns.shape is not Shape.KEYED:
        return chunk
    listed = _listed(chunk, columns)
    parts = (
        None
        if columns.record_key is None
        else _columns_of_fields(listed.values, columns.fields[_KEY], columns.record_key)
    )
    return listed if parts is None else Chunk.of_columns(parts, chunk.timestamp_array)


def _columns_of_fields(values: list[Any], keys: Column, field: int | str) -> Columns | None:
    """The records by field, with ``keys`` as column ``field``; None if records differ in type or fields."""
    kind: Any = exact_type(values)
    parts = None if kind is None else _parts_of(values, kind)
    if parts is None:
        return None
    names, fields = parts
    position = names.index(field) if isinstance(field, str) else field
    columns = tuple([keys if place == position else column_of(column) for place, column in enumerate(fields)])
    if kind is tuple:
        return Columns(len(values), columns, Shape.TUPLE, key_position=position)
    if kind is Row:
        return Columns(len(values), columns, Shape.ROW, names, position)
    return Columns(len(values), columns, Shape.OBJECT, names, position, kind, maker_of(kind, names))


def _parts_of(values: list[Any], kind: Any) -> tuple[tuple[str, ...], Sequence[Sequence[Any]]] | None:
    """The names (none for tuples) and values of the fields of records of one type; None if the records differ in their
    fields.
    """
    if kind is tuple:
        fields = try_transpose(values)
        return None if fields is None else ((), fields)
    if kind is dict:
        return parts_of_dicts(values, are_keys_checked=True)
    if kind is Row:
        rows = parts_of(values)
        return None if rows is None or rows[0] is None else (rows[0], list(zip(*rows[1], strict=True)))
    flat_class = flat_class_of(kind)
    return None if flat_class is None else flat_class.take_apart(values)


# Serialized chunks of 1,000-2,000 tuples are best; 8,000 are 25 % slower (out of cache).
MAX_PENDING_RECORDS = 2_000
# More records than this in lists leave the cache (bench programs, two TaskManagers: 4,000 cost 10 % more).
MAX_KEYED_RECORDS = 1_000
# Longer columns are cheaper, up to 65,536 records for numbers (hot-path measurements).  Counting by codes takes 30, 24
# and 22 ns per record in chunks of 4,000, 8,000 and 16,000 (5,000 keys).  Longer chunks are not joined with others;
# those longer than a part are cut.
MAX_PENDING_ROWS_PER_LANE = 16_000
MAX_PENDING_ROWS = 32_768
MAX_PART_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class RecordWriterOptions:
    """How one edge is written.

    ``buffer_timeout_ms``: 0: ``flush_pending`` flushes the partition whenever it wrote; > 0: it calls ``on_written``,
        which must be cheap; -1: it never flushes.

    ``rng`` draws channels.  ``serializer``: of the elements.  ``subtask`` and ``operator`` are the producer's, for
    error messages.  ``attention``: the task's, so that no selector is called in a cancelled task; None: the writer is
    never cancelled.
    """

    buffer_timeout_ms: int
    subtask: int = 0
    on_written: Callable[[], None] | None = None
    rng: random.Random = field(default_factory=random.Random)
    serializer: StreamElementSerializer = field(default_factory=StreamElementSerializer)
    operator: str | None = None
    attention: Attention | None = None

    def __post_init__(self) -> None:
        """Check the timeout.  Raises ValueError if it is below -1."""
        if self.buffer_timeout_ms < -1:
            raise ValueError(
                f"a buffer timeout is -1 (never flush), 0 (flush at once) or milliseconds, got {self.buffer_timeout_ms}"
            )


class RecordWriter(ABC):
    """One output of a chain (an operator ``Output``); task thread only.  Takes over every chunk.

    There are ``num_lanes`` pending lists: one per channel, or one for all channels.  ``keys`` extracts the key of each
    record when it is emitted; None: the consumer needs no keys.
    """

    takes_pickled_records = True  # read by ChunkingOutput: a PickledRecord is written as it is

    def __init__(
        self, partition: ResultPartition, options: RecordWriterOptions, num_lanes: int, keys: KeyExtractor | None = None
    ) -> None:
        self.keys = keys
        self._partition = partition
        self._num_channels = partition.num_subpartitions
        # What ``emit_record`` takes: by lane, and to reach all channels.
        self._targets: Sequence[int] = range(self._num_channels)
        self._serializer = options.serializer
        self._operator = options.operator
        self._pending: list[list[Any]] = [[] for _ in range(num_lanes)]
        self._pending_timestamps: list[list[int]] = [[] for _ in range(num_lanes)]
        self._pending_keys: list[list[Any]] = [[] for _ in range(num_lanes)]
        # Lists are emptied, never replaced: routes hold these bound methods.
        self._appends = [pending.append for pending in self._pending]
        self._timestamp_appends = [pending.append for pending in self._pending_timestamps]
        # Either columns wait or lists do, never both: so records keep their order.
        self._columns = PendingColumns(num_lanes)
        self._max_pending_rows = min(num_lanes * MAX_PENDING_ROWS_PER_LANE, MAX_PENDING_ROWS)
        self._max_keyed_rows = MAX_KEYED_RECORDS
        self._codes: list[ChannelCodes] = []  # one per lane, if text keys have codes
        self._has_timestamps = False  # whether the pending records do; all or none
        self._has_keys = False  # whether the pending listed records do; all or none
        self._is_flushed = options.buffer_timeout_ms >= 0
        self._flushes_always = options.buffer_timeout_ms == 0
        self._on_written = options.on_written if options.buffer_timeout_ms > 0 else None
        self._rng = options.rng
        self.num_written = [0] * num_lanes
        """How many records were written to each lane; a lane is one channel, or stands for all of them."""
        self._is_dirty = False  # whether bytes were written since the last flush_pending
        self._is_idle = False  # the status announced last
        self._is_stopped = False  # whether everything is dropped from now on

    def __repr__(self) -> str:
        num_pending = sum(map(len, self._pending)) + self._columns.num_rows
        return f"<{type(self).__name__} with {num_pending} records pending for {self._partition!r}>"

    @property
    def has_waiting_columns(self) -> bool:
        """Whether columns wait, so that even a few more rows are cheaper as columns."""
        return self._columns.num_rows > 0

    def collect(self, chunk: Chunk) -> None:
        """Route records; ``flush_pending`` writes them at the latest.

        Raises:
            UserFunctionError: the key selector failed; names the record.
        """
        end_stranded_child()
        num_records = len(chunk)
        if self._is_stopped or not num_records:
            return
        if self.keys is not None:
            chunk = self.keys.keyed(chunk)
            if chunk.columns is None and self.keys.makes_keys and num_records >= MIN_COLUMN_ROWS:
                chunk = beside_keys(chunk)
        if chunk.has_timestamps is not self._has_timestamps:
            self._write_pending()
            self._has_timestamps = chunk.has_timestamps
        if chunk.columns is not None:
            for part in (chunk,) if num_records <= MAX_PART_ROWS else chunk.parts(MAX_PART_ROWS):
                self._collect_columns(part)
            return
        if (chunk.keys is not None) is not self._has_keys:
            self._write_pending()
            self._has_keys = chunk.keys is not None
        if self._columns.num_rows:
            self._write_columns()
        for part in (chunk,) if num_records <= MAX_PENDING_RECORDS else chunk.parts(MAX_PENDING_RECORDS):
            self._collect_part(part)
            self._write_pending(MAX_PENDING_RECORDS)

    def emit_control(self, element: ControlElement) -> None:
        """Broadcast an element behind all records.

        A watermark is dropped while the status announced last is idle, and so is a status that repeats it.  After a
        completion mark all bytes are flushed at once: a producer waits for it.  A latency marker goes to one random
        channel: it measures one path, many markers measure all.
        """
        if self._is_stopped:
            return
        match element:
            case LatencyMarker():
                # Flink RecordWriter.randomEmit.
                self._write_pending()
                self._mark_dirty()
                self._partition.emit_record(
                    self._serializer.serialize(element), self._rng.randrange(self._num_channels)
                )
            case Watermark():
                if not self._is_idle:
                    self._broadcast(element)
            case WatermarkStatus():
                if element.is_idle is not self._is_idle:
                    self._is_idle = element.is_idle
                    self._broadcast(element)
            case CompletionMark():
                self._broadcast(element)
                self._partition.flush_all()

    def stop(self) -> None:
        """Drop all elements from now on: the data ended without draining, so consumers accept no more.

        No records may be pending.
        """
        self._is_stopped = True

    def flush_pending(self) -> None:
        """Write pending records; then flush the partition, or request a flush, as the buffer timeout says."""
        self._write_pending()
        if not self._is_dirty:
            return
        self._is_dirty = False
        if self._flushes_always:
            self._partition.flush_all()
        elif self._on_written is not None:
            self._on_written()

    def flush_now(self) -> None:
        """Write pending records and let consumers see them, unless the edge is never flushed."""
        self.flush_pending()
        if self._is_flushed:
            self._partition.flush_all()

    @abstractmethod
    def _lanes(self, num_records: int, keys: list[Any] | None) -> Any:
        """The lane of each of the next records, in a list or an array; None: all go to lane 0.

        ``keys``: the results of the ``KeyExtractor``, one for each record.
        """

    def _collect_part(self, part: Chunk) -> None:
        """Append 1 to ``MAX_PENDING_RECORDS`` records, with their timestamps and keys, to the lists of their lanes."""
        values = part.values
        timestamps = part.timestamps
        lanes = self._lanes(len(values), part.keys)
        appends = self._appends
        for lane, value in zip(lanes, values):  # noqa: B905 - same length by construction, and strict costs in the hot loop
            appends[lane](value)
        if timestamps is not None:
            appends = self._timestamp_appends
            for lane, timestamp in zip(lanes, timestamps):  # noqa: B905 - as above
                appends[lane](timestamp)

    def _collect_columns(self, chunk: Chunk) -> None:
        """Collect a chunk of columns, of at most ``MAX_PART_ROWS`` rows."""
        lanes = self._lanes(len(chunk), chunk.keys)
        self._add_columns(chunk, None if lanes is None else np.asarray(lanes, np.uint16))

    def _add_columns(self, chunk: Chunk, lanes: LaneArray | Route | None) -> None:
        # Records that wait in lists are older.
        if not self._columns.num_rows:
            self._write_pending()
        self._columns.add(chunk, lanes)
        is_keyed = chunk.columns is not None and chunk.columns.shape is Shape.KEYED
        if self._columns.num_rows >= (self._max_keyed_rows if is_keyed else self._max_pending_rows):
            self._write_columns()

    def _broadcast(self, element: Watermark | WatermarkStatus | CompletionMark) -> None:
        self._write_pending()
        data = self._serializer.serialize(element)
        self._mark_dirty()
        for target in self._targets:
            self._partition.emit_record(data, target)

    def _write_columns(self) -> None:
        for lane, chunk in self._columns.take():
            self._write_chunk(chunk, lane)

    def _write_pending(self, longer_than: int = 0) -> None:
        """Write the columns that wait, or else the lists with more than ``longer_than`` records."""
        if self._columns.num_rows:
            self._write_columns()
            return
        for lane, values in enumerate(self._pending):
            if len(values) <= longer_than:
                continue
            timestamps = self._pending_timestamps[lane]
            keys = self._pending_keys[lane]
            chunk = Chunk(values.copy(), timestamps.copy() if self._has_timestamps else None)
            if keys:
                chunk.keys = keys.copy()
            self._write_chunk(chunk, lane)
            # Emptied, never replaced: see the constructor.
            values.clear()
            timestamps.clear()
            keys.clear()

    def _write_chunk(self, chunk: Chunk, lane: int) -> None:
        num_records = len(chunk)
        if num_records >= MIN_CONTENT_RECORDS and self._hand_over(chunk, lane):
            return
        chunk = sendable(chunk)
        codes = self._codes[lane] if self._codes else None
        try:
            data = self._serializer.serialize_chunk(chunk, codes)
        except ElementTooLargeError as error:
            if num_records == 1:
                raise self._unsendable(error) from error
            data = None
        except SerdeError as error:
            raise self._unsendable(error) from error
        if data is not None and (
            len(data) <= min(MAX_ELEMENT_BYTES, self._serializer.max_element_bytes) or num_records == 1
        ):
            self._mark_dirty()
            if codes is not None:
                # Only here: the halves of an element that is too large are encoded once more.
                codes.commit()
            self._partition.emit_record(data, self._targets[lane])
            self.num_written[lane] += num_records
            return
        half = num_records // 2
        self._write_chunk(chunk.slice(0, half), lane)
        self._write_chunk(chunk.slice(half, num_records), lane)

    def _unsendable(self, error: SerdeError) -> SerdeError:
        return (
            error
            if self._operator is None
            else SerdeError(f"a result of operator {self._operator!r} cannot be sent: {error}")
        )

    def _hand_over(self, chunk: Chunk, lane: int) -> bool:
        """Hand the chunk itself to a consumer in this process, large columns in parts; False: it must be serialized."""
        takes_contents = self._partition.takes_contents(lane)
        contents = try_contents(as_it_is(chunk), self._serializer.max_element_bytes) if takes_contents else None
        if contents is None:
            return False
        self._mark_dirty()
        num_taken = 0
        for content in contents:
            if not self._partition.emit_content(content, lane):
                break
            num_taken += len(content)
            self.num_written[lane] += len(content)
        if 0 < num_taken < len(chunk):  # the consumer left in between; another one may read bytes only
            self._write_chunk(chunk.slice(num_taken, len(chunk)), lane)
        return num_taken > 0

    def _mark_dirty(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            # Requested before the write, too: the write may wait for a buffer, and consumers free only buffers that
            # were flushed.
            if self._on_written is not None:
                self._on_written()
