"""Routes chunks to the subpartitions of one output and serializes them.

Hot path.  Per record there is one dictionary probe and one bound ``append`` (keyed edges), or nothing at all (all others).

Side:       task.
Invariants: records of one channel keep their order; a watermark or status comes behind every record collected before it; after
            ``flush_pending`` nothing is pending, so that flushers never have to know about pending records.
Source:     Flink ``RecordWriter``, ``ChannelSelectorRecordWriter``, ``BroadcastRecordWriter``, ``RecordWriterOutput``.
            Tight loops, cleared lists and the bound of the route dictionary: hot-path measurements (route: key -> bound append 61-69 ns,
            any object-per-channel form 71-118 ns; every dictionary is slow once it leaves the cache, from about 16,384 entries).
Absent:     latency markers, rescale and custom partitioners, a vectorised route for high-cardinality keys.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, assert_never

from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.graph.partitioner import Broadcast, Forward, Global, KeyGroups, Partitioner, Rebalance
from flowlet.keys import exact_key, exact_keys, key_group, operator_index
from flowlet.operators.key_selection import selects_first_field
from flowlet.operators.user_function import last_of, preview
from flowlet.records import Chunk, LatencyMarker, Watermark, WatermarkStatus
from flowlet.serde.element_serializer import StreamElementSerializer
from netstack.partition.result_partition import ResultPartition

# Tuples want 1,000-2,000 records per serialized chunk; 8,000 are 25 % slower (out of cache).
MAX_PENDING_RECORDS = 2_000
MAX_ROUTES = 16_384
# A larger element is cut in two, so that the consumer never has to hold more than a quarter of its limit of 64 MiB.  Not measured.
MAX_ELEMENT_BYTES = 16 * 1024 * 1024


class RecordWriter(ABC):
    """One output of a chain (an operator ``Output``).

    Threading: task thread only.
    Ownership: takes over every chunk; the values are dropped as soon as they are serialized.

    Args:
        partition: where the bytes go.
        num_lanes: how many pending lists there are: one per channel, or one for all.
        buffer_timeout_ms: 0: flush the partition with every ``flush_pending`` that wrote; > 0: ``on_written`` sees to it; -1: never.
        on_written: called when there are written, not yet flushed bytes; must be cheap.
    """

    def __init__(
        self, partition: ResultPartition, num_lanes: int, *, buffer_timeout_ms: int, on_written: Callable[[], None] | None
    ) -> None:
        self._partition = partition
        self._num_channels = partition.num_subpartitions
        self._serializer = StreamElementSerializer()
        self._pending: list[list[Any]] = [[] for _ in range(num_lanes)]
        self._pending_timestamps: list[list[int]] = [[] for _ in range(num_lanes)]
        self._has_timestamps = False  # of the pending records, all or none
        self._flushes_always = buffer_timeout_ms == 0
        self._on_written = on_written if buffer_timeout_ms > 0 else None
        self._is_dirty = False  # bytes were written since the last flush_pending
        self._is_idle = False  # the status announced last

    def __repr__(self) -> str:
        return f"<{type(self).__name__} with {sum(map(len, self._pending))} records pending for {self._partition!r}>"

    def collect(self, chunk: Chunk) -> None:
        """Route the records; they are written at the latest by ``flush_pending``.

        Raises:
            UserFunctionError: the key selector failed; names the record.
        """
        values, timestamps = chunk.values, chunk.timestamps
        if (timestamps is not None) is not self._has_timestamps and values:
            self._write_pending()
            self._has_timestamps = timestamps is not None
        if len(values) <= MAX_PENDING_RECORDS:
            self._collect_part(values, timestamps)
            return
        for start in range(0, len(values), MAX_PENDING_RECORDS):
            part = slice(start, start + MAX_PENDING_RECORDS)
            self._collect_part(values[part], None if timestamps is None else timestamps[part])

    def emit_watermark(self, watermark: Watermark) -> None:
        """Broadcast a watermark behind all records; dropped while the announced status is idle."""
        if not self._is_idle:
            self._broadcast(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Broadcast a status behind all records, unless it is the one announced last."""
        if status.is_idle is not self._is_idle:
            self._is_idle = status.is_idle
            self._broadcast(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Send a marker to the first channel, behind all records."""
        self._write_pending()
        self._mark_dirty()
        self._partition.emit_record(self._serializer.serialize(marker), 0)

    def flush_pending(self) -> None:
        """Write what is pending; then flush the partition, or ask for a flush in time, as the buffer timeout says."""
        self._write_pending()
        if not self._is_dirty:
            return
        self._is_dirty = False
        if self._flushes_always:
            self._partition.flush_all()
        elif self._on_written is not None:
            self._on_written()

    @abstractmethod
    def _route(self, values: list[Any], timestamps: list[int] | None) -> None:
        """Append each record, and its timestamp if there is one, to the pending lists of its lane."""

    def _write_bytes(self, element: bytes, lane: int) -> None:
        self._partition.emit_record(element, lane)

    def _collect_part(self, values: list[Any], timestamps: list[int] | None) -> None:
        if not values:
            return
        self._route(values, timestamps)
        for lane, pending in enumerate(self._pending):
            if len(pending) > MAX_PENDING_RECORDS:
                self._write_lane(lane)

    def _broadcast(self, element: Watermark | WatermarkStatus) -> None:
        self._write_pending()
        data = self._serializer.serialize(element)
        self._mark_dirty()
        self._write_to_all(data)

    def _write_to_all(self, element: bytes) -> None:
        for channel in range(self._num_channels):
            self._partition.emit_record(element, channel)

    def _write_pending(self) -> None:
        for lane, pending in enumerate(self._pending):
            if pending:
                self._write_lane(lane)

    def _write_lane(self, lane: int) -> None:
        values, timestamps = self._pending[lane], self._pending_timestamps[lane]
        self._write_chunk(Chunk(values, timestamps if self._has_timestamps else None), lane)
        # Emptied, never replaced: the routes hold their bound append.
        del values[:]
        del timestamps[:]

    def _write_chunk(self, chunk: Chunk, lane: int) -> None:
        data = self._serializer.serialize(chunk)
        if len(data) <= MAX_ELEMENT_BYTES or len(chunk) == 1:
            self._mark_dirty()
            self._write_bytes(data, lane)
            return
        values, timestamps, half = chunk.values, chunk.timestamps, len(chunk) // 2
        for part in (slice(0, half), slice(half, None)):
            self._write_chunk(Chunk(values[part], None if timestamps is None else timestamps[part]), lane)

    def _mark_dirty(self) -> None:
        if not self._is_dirty:
            self._is_dirty = True
            # Asked for before the write as well: the write may block for a buffer, which consumers free only of what was flushed.
            if self._on_written is not None:
                self._on_written()


class SingleChannelRecordWriter(RecordWriter):
    """Everything goes to channel 0: forward, global, and every partitioner with one consumer."""

    def _route(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._pending[0] += values
        if timestamps is not None:
            self._pending_timestamps[0] += timestamps


class BroadcastRecordWriter(SingleChannelRecordWriter):
    """Every record goes to every channel, serialized once."""

    def _write_bytes(self, element: bytes, lane: int) -> None:
        self._write_to_all(element)


class RebalanceRecordWriter(RecordWriter):
    """Record by record round robin, from a random channel on.

    Args:
        rng: chooses the first channel.
    """

    def __init__(
        self,
        partition: ResultPartition,
        *,
        buffer_timeout_ms: int,
        on_written: Callable[[], None] | None = None,
        rng: random.Random,
    ) -> None:
        super().__init__(partition, partition.num_subpartitions, buffer_timeout_ms=buffer_timeout_ms, on_written=on_written)
        self._next_channel = rng.randrange(self._num_channels)

    def _route(self, values: list[Any], timestamps: list[int] | None) -> None:
        num_channels, first = self._num_channels, self._next_channel
        for position in range(min(num_channels, len(values))):
            channel = (first + position) % num_channels
            self._pending[channel] += values[position::num_channels]
            if timestamps is not None:
                self._pending_timestamps[channel] += timestamps[position::num_channels]
        self._next_channel = (first + len(values)) % num_channels


class _Routes(dict[Any, Callable[[Any], None]]):
    """Exact key -> bound ``append`` of the list of its channel; bounded, emptied when full."""

    __slots__ = ("_appends", "_channel_of")

    def __init__(self, appends: list[Callable[[Any], None]], channel_of: Callable[[Any], int]) -> None:
        super().__init__()
        self._appends = appends
        self._channel_of = channel_of

    def __missing__(self, key: Any) -> Callable[[Any], None]:
        """For keys that are their own exact key."""
        return self.add(key, key)

    def add(self, exact: Any, key: Any) -> Callable[[Any], None]:
        """Learn the route of ``key``."""
        append = self._appends[self._channel_of(key)]
        if len(self) >= MAX_ROUTES:
            self.clear()
        self[exact] = append
        return append


class KeyGroupsRecordWriter(RecordWriter):
    """Records with the same key go to the same channel: key -> hash -> key group -> channel.

    Args:
        partitioner: holds the user's key selector and the consumer's number of key groups.
        subtask: of this producer, for error messages.
    """

    def __init__(
        self,
        partition: ResultPartition,
        *,
        buffer_timeout_ms: int,
        on_written: Callable[[], None] | None = None,
        partitioner: KeyGroups,
        subtask: int,
    ) -> None:
        super().__init__(partition, partition.num_subpartitions, buffer_timeout_ms=buffer_timeout_ms, on_written=on_written)
        self._key_selector = partitioner.key_function
        # The subscript in place instead of the call: 41 -> 17 ns per key.
        self._selects_first_field = selects_first_field(partitioner.key_selector)
        self._max_parallelism = partitioner.max_parallelism
        self._subtask = subtask
        self._routes = _Routes([pending.append for pending in self._pending], self._channel_of)
        self._timestamp_routes = _Routes([pending.append for pending in self._pending_timestamps], self._channel_of)

    def _channel_of(self, key: Any) -> int:
        return operator_index(key_group(key, self._max_parallelism), self._max_parallelism, self._num_channels)

    def _route(self, values: list[Any], timestamps: list[int] | None) -> None:
        keys = self._keys(values)
        exact = self._exact_keys(keys, values)  # the same list when equal keys are the same key
        self._append(self._routes, keys, exact, values)
        if timestamps is not None:
            self._append(self._timestamp_routes, keys, exact, timestamps)

    def _append(self, routes: _Routes, keys: list[Any], exact: list[Any], items: list[Any]) -> None:
        if exact is keys:
            for key, item in zip(keys, items):  # noqa: B905 - same length by construction, and strict costs in the hot loop
                routes[key](item)
            return
        for key, stand_in, item in zip(keys, exact, items):  # noqa: B905 - as above
            (routes.get(stand_in) or routes.add(stand_in, key))(item)

    def _keys(self, values: list[Any]) -> list[Any]:
        key_selector = self._key_selector
        remaining = iter(values)
        try:
            if self._selects_first_field and list(map(type, values)).count(tuple) == len(values):
                return [value[0] for value in remaining]
            return [key_selector(value) for value in remaining]
        except Exception as error:
            # The iterator stands behind the record that failed: nothing had to be counted per record.
            raise self._failure(last_of(values, remaining)) from error

    def _exact_keys(self, keys: list[Any], values: list[Any]) -> list[Any]:
        try:
            return exact_keys(keys)
        except KeyTypeError as error:
            raise self._failure(next(value for key, value in zip(keys, values, strict=True) if not _can_be_key(key))) from error

    def _failure(self, record: object) -> UserFunctionError:
        return UserFunctionError("key_by", self._subtask, preview(record))


def _can_be_key(key: Any) -> bool:
    try:
        exact_key(key)
    except KeyTypeError:
        return False
    return True


def create_record_writer(
    partition: ResultPartition,
    partitioner: Partitioner,
    *,
    buffer_timeout_ms: int,
    subtask: int,
    on_written: Callable[[], None] | None = None,
    rng: random.Random | None = None,
) -> RecordWriter:
    """The writer for a partitioner.

    Args:
        partition: where the bytes go; its number of subpartitions is the number of channels.
        partitioner: chooses channels.
        buffer_timeout_ms: see ``RecordWriter``.
        subtask: of the producer.
        on_written: see ``RecordWriter``.
        rng: for the first channel of a rebalance.
    """
    if partition.num_subpartitions == 1:
        return SingleChannelRecordWriter(partition, 1, buffer_timeout_ms=buffer_timeout_ms, on_written=on_written)
    match partitioner:
        case Forward() | Global():
            return SingleChannelRecordWriter(partition, 1, buffer_timeout_ms=buffer_timeout_ms, on_written=on_written)
        case Broadcast():
            return BroadcastRecordWriter(partition, 1, buffer_timeout_ms=buffer_timeout_ms, on_written=on_written)
        case Rebalance():
            rng = random.Random() if rng is None else rng  # noqa: S311 - spreads load, protects nothing
            return RebalanceRecordWriter(partition, buffer_timeout_ms=buffer_timeout_ms, on_written=on_written, rng=rng)
        case KeyGroups():
            return KeyGroupsRecordWriter(
                partition, buffer_timeout_ms=buffer_timeout_ms, on_written=on_written, partitioner=partitioner, subtask=subtask
            )
        case _:
            assert_never(partitioner)
