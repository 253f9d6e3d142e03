"""The record writers, one for each partitioner: by key; to one channel, to all, to the next one, to a random one; by a
user's function.

Hot path.  If the key is a field of records in columns (or the record itself), or stands in a column beside them, it is
routed by column: a text becomes a code, and numpy does the rest.  A few records in a list cost a dictionary probe and
two ``append`` each.  ``KeyExtractor`` extracted the keys.  Writers that need no key work per chunk, but for
``ShuffleRecordWriter``; a function of the user is called twice per record.

Side:       task.
Invariants: all ways send a key to the channel to which it would go by itself; dictionaries are bounded; records keep
            their values and types.
Source:     Flink ``RecordWriterBuilder``, ``StreamTask.createRecordWriter``; ``ChannelSelectorRecordWriter`` with
            ``KeyGroupStreamPartitioner``, ``ForwardPartitioner``, ``GlobalPartitioner``, ``RebalancePartitioner``,
            ``RescalePartitioner``, ``ShufflePartitioner`` or ``CustomPartitionerWrapper``; ``BroadcastRecordWriter``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, assert_never

import numpy as np

from flowlet.chain.chunking_output import KeyExtractor, create_key_extractor, field_selected_by
from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    Columns,
    ColumnVisitor,
    ConstantColumn,
    ListColumn,
    Shape,
    ShortTextColumn,
)
from flowlet.columns.short_text_column import try_short_texts
from flowlet.errors import KeyTypeError
from flowlet.graph.partitioner import (
    Broadcast,
    Custom,
    Forward,
    Global,
    KeyGroups,
    Partitioner,
    Rebalance,
    Rescale,
    Shuffle,
)
from flowlet.io.key_dictionary import MAX_CHUNK_KEYS, ChannelCodes, DictionaryBypass, KeyDictionary
from flowlet.io.record_writer import LaneArray, RecordWriter, RecordWriterOptions, Route, beside_keys
from flowlet.keys.column_key import ColumnKey
from flowlet.keys.exact_keys import exact_keys
from flowlet.keys.key_columns import ChannelTable, column_hashes, short_text_hashes, try_hashes
from flowlet.records import Chunk
from netstack.partition.buffer_writing_result_partition import ALL
from netstack.partition.result_partition import ResultPartition

_CONSTANTS: Final = frozenset({int, float, bool, bytes})
_INSTANT: Final = "M"  # a numpy kind that cannot be a key
MAX_LANES: Final = 16_384  # every dictionary is slow once it leaves the cache

KeyedColumn = tuple[Column, LaneArray | Route]


class _Lanes(dict[Any, int]):
    """The channel of each exact key that was looked up; bounded, emptied when full."""

    __slots__ = ("_channels",)

    def __init__(self, channels: ChannelTable) -> None:
        super().__init__()
        self._channels = channels

    def __missing__(self, exact: Any) -> int:
        lane = self._channels.of_exact(exact)
        if len(self) >= MAX_LANES:
            self.clear()
        self[exact] = lane
        return lane


class KeyColumnRouter(ColumnVisitor[KeyedColumn | None]):
    """Finds the channel of each key, and the representation in which the keys are sent.

    There are three ways: texts by codes, while most of them come again; numbers, and texts that do not come again, by
    hashes of a whole column; all other keys by a dictionary.

    Ownership: the task's thread; the dictionary is shared with the codes of each channel.

    Args:
        channels: of the consumers.
        dictionary: of text keys.
        is_column_key: whether nulls and instants are keys, too (``ColumnKey``).
    """

    def __init__(self, channels: ChannelTable, dictionary: KeyDictionary, *, is_column_key: bool) -> None:
        self._channels = channels
        self.dictionary = dictionary
        self._lanes = _Lanes(channels)
        self._is_column_key = is_column_key
        self.bypass = DictionaryBypass()
        self._position = 0  # of the key among the fields, while a column is visited
        self._are_keys = False  # whether that field holds the keys themselves, and no values for a selector
        self._routes: dict[Any, Route] = {}  # by the position of the key, and how

    def lanes_of(self, keys: list[Any]) -> list[int]:
        """The channel of each key, one by one; for few keys."""
        return list(map(self._lanes.__getitem__, exact_keys(keys)))

    def try_route(self, column: Column, position: int, shape: Shape) -> KeyedColumn | None:
        """The keys as they will be sent, and the channel of each; None if keys of this kind are sent beside their
        records.

        Args:
            column: the keys.
            position: of the field that has them.
            shape: of the records.
        """
        self._position = position
        self._are_keys = shape is Shape.KEYED or not self._is_column_key
        return self.visit(column)

    def visit_any(self, column: Column) -> None:
        """Return None: other keys are sent beside their records."""

    def visit_constant(self, column: ConstantColumn) -> KeyedColumn | None:
        """Route by one look-up of the key."""
        value = column.value
        if type(value) is str:
            codes = np.full(len(column), self._usable_dictionary().encode([value])[0], np.uint16)
            return self._with_codes(codes, column)
        if type(value) not in _CONSTANTS:
            return None
        return column, np.full(len(column), self.lanes_of([value])[0], np.uint16)

    def visit_coded(self, column: CodedColumn) -> KeyedColumn | None:
        """Route by the codes of this writer's dictionary."""
        recoded = self._usable_dictionary().try_recode(column)
        return None if recoded is None else self._with_codes(recoded, column)

    def visit_list(self, column: ListColumn) -> KeyedColumn | None:
        """Route texts by codes or past the dictionary, other keys by hashes, or one by one."""
        keys = column.values
        if column.value_type is str:
            return self._of_texts(keys)
        if not self._are_keys:
            return None
        hashes = try_hashes(keys)
        if hashes is not None:
            return column, self._channels.of_hashes(hashes)
        try:
            return column, np.array(self.lanes_of(keys), np.uint16)
        except KeyTypeError:
            return None  # looked at one by one, the record is found

    def visit_short_texts(self, column: ShortTextColumn) -> KeyedColumn | None:
        """Route short texts as other texts."""
        return self._of_texts(column.to_list())

    def visit_array(self, column: ArrayColumn) -> KeyedColumn | None:
        """Route numbers later, because many at once are cheaper; instants are sent beside their records."""
        return None if column.array.dtype.kind == _INSTANT else (column, self._route_by(_lanes_of_numbers))

    def visit_arrow(self, column: ArrowColumn) -> KeyedColumn | None:
        """Route by the hashes of the whole array."""
        try:
            hashes = column_hashes(column.array)
            return column, self._channels.of_hashes(hashes)
        except KeyTypeError:
            return None  # looked at one by one, the record is found

    def _of_texts(self, keys: Sequence[str]) -> KeyedColumn:
        """Route texts by codes of the dictionary, or past it by hashes."""
        # A longer chunk could need more codes than 16 bits have.
        if len(keys) > MAX_CHUNK_KEYS or self.bypass.is_taken():
            return self._past_dictionary(keys)
        dictionary = self._usable_dictionary()
        num_known = len(dictionary)
        codes = dictionary.encode(keys)
        self.bypass.judge(len(keys), len(dictionary) - num_known, is_full=dictionary.is_full)
        return self._with_codes(codes, keys)

    def _past_dictionary(self, keys: Sequence[str]) -> KeyedColumn:
        short = try_short_texts(keys)
        if short is not None:
            return short, self._route_by(_lanes_of_short_texts)
        hashes = try_hashes(keys)
        assert hashes is not None, "texts have a way past the dictionary"
        return ListColumn(list(keys), str), self._channels.of_hashes(hashes)

    def _usable_dictionary(self) -> KeyDictionary:
        """The dictionary, with room for the keys of one more chunk."""
        dictionary = self.dictionary
        if dictionary.is_full:
            dictionary.restart()
        return dictionary

    def _with_codes(self, codes: LaneArray, keys: Column | Sequence[str]) -> KeyedColumn:
        """The keys as these codes, and their channels; the texts themselves if the dictionary has become too large."""
        lanes = self.dictionary.channel_of.take(codes)
        if not self.dictionary.is_too_large:
            return CodedColumn(codes, self.dictionary.table), lanes
        self.dictionary.restart()
        return keys if isinstance(keys, Column) else ListColumn(list(keys), str), lanes

    def _route_by(self, lanes_of: Callable[[ChannelTable, Any], LaneArray]) -> Route:
        """The function that routes by the key column.

        One object for each position of the key and each function, so that chunks that share a route can be joined.
        """
        found = self._routes.get((self._position, lanes_of))
        if found is None:
            found = self._routes[self._position, lanes_of] = partial(
                _with_lanes, self._channels, self._position, lanes_of
            )
        return found


def _with_lanes(
    channels: ChannelTable, position: int, lanes_of: Callable[[ChannelTable, Any], LaneArray], columns: Columns
) -> tuple[Columns, LaneArray]:
    return columns, lanes_of(channels, columns.fields[position])


def _lanes_of_numbers(channels: ChannelTable, key: ArrayColumn) -> LaneArray:
    return channels.of_keys(key.array)


def _lanes_of_short_texts(channels: ChannelTable, key: ShortTextColumn) -> LaneArray:
    return channels.of_hashes(short_text_hashes(key.packed16))


class KeyGroupsRecordWriter(RecordWriter):
    """Sends all records with equal keys to one channel: key -> hash -> key group -> channel.

    ``partitioner`` holds the user's key selector and the consumer's number of key groups.
    """

    def __init__(
        self,
        partition: ResultPartition,
        options: RecordWriterOptions,
        partitioner: KeyGroups,
        keys: KeyExtractor | None,
    ) -> None:
        super().__init__(partition, options, partition.num_subpartitions, keys)
        self._field = field_selected_by(partitioner.key_selector)
        # A column's nulls and timestamps can be keys.
        self._is_column_key = isinstance(partitioner.key_selector, ColumnKey)
        channels = ChannelTable(partitioner.max_parallelism, self._num_channels)
        dictionary = KeyDictionary(channels, self._num_channels)
        self._router = KeyColumnRouter(channels, dictionary, is_column_key=self._is_column_key)
        self._key_appends = [pending.append for pending in self._pending_keys]
        self._codes = [ChannelCodes(dictionary, channel) for channel in range(self._num_channels)]

    def _collect_columns(self, chunk: Chunk) -> None:
        columns = chunk.columns
        assert columns is not None, "the caller passes only columns"
        position = self._key_position(columns)
        keyed = None if position is None else self._router.try_route(columns.fields[position], position, columns.shape)
        if position is None or keyed is None:
            key_column = None if position is None or self._is_column_key else columns.fields[position]
            self._collect_columns(self._beside_keys(chunk, key_column))
            return
        column, lanes = keyed
        self._add_columns(Chunk.of_columns(columns.with_field(position, column), chunk.timestamp_array), lanes)

    def _beside_keys(self, chunk: Chunk, key: Column | None) -> Chunk:
        """Records as lists beside their keys; ``key``: the column of keys; None: the selector gives the keys."""
        assert self.keys is not None, "a writer by key has a key extractor"
        listed = Chunk(chunk.values, chunk.timestamps)
        listed.keys = self.keys.keys_of(listed.values) if key is None else key.to_list()
        return beside_keys(self.keys.checked(listed))

    def _key_position(self, columns: Columns) -> int | None:
        if columns.key_position is not None:
            return columns.key_position
        field = self._field
        if type(field) is str and field in columns.field_names:
            return columns.field_names.index(field)
        if type(field) is int and columns.shape is not Shape.SCALAR and field < len(columns.fields):
            return field
        return None

    def _lanes(self, num_records: int, keys: list[Any] | None) -> list[int]:
        assert keys is not None, "there is a key extractor"
        return self._router.lanes_of(keys)

    def _collect_part(self, part: Chunk) -> None:
        values, timestamps, keys = part.values, part.timestamps, part.keys
        assert keys is not None, "there is a key extractor"
        lanes = self._lanes(len(values), keys)
        appends, key_appends = self._appends, self._key_appends
        for lane, value, key in zip(lanes, values, keys):  # noqa: B905 - same length by construction, and strict costs in the hot loop
            appends[lane](value)
            key_appends[lane](key)
        if timestamps is not None:
            for lane, timestamp in zip(lanes, timestamps, strict=True):
                self._timestamp_appends[lane](timestamp)


class SingleChannelRecordWriter(RecordWriter):
    """Sends all records to channel 0: forward, global, and every partitioner with one consumer.  It has one lane."""

    def _collect_part(self, part: Chunk) -> None:
        timestamps, keys = part.timestamps, part.keys
        self._pending[0] += part.values
        if timestamps is not None:
            self._pending_timestamps[0] += timestamps
        if keys is not None:
            self._pending_keys[0] += keys

    def _lanes(self, num_records: int, keys: list[Any] | None) -> None:
        return None


class BroadcastRecordWriter(SingleChannelRecordWriter):
    """Sends every record to every channel: serialized once, into buffers that all channels share."""

    def __init__(self, partition: ResultPartition, options: RecordWriterOptions) -> None:
        super().__init__(partition, options, 1)
        self._targets = (ALL,)

    def _hand_over(self, chunk: Chunk, lane: int) -> bool:
        return False  # every consumer needs its own records


class RoundRobinRecordWriter(RecordWriter):
    """Sends each record to the next channel, from ``first_channel`` on: a random one for rebalance, 0 for rescale."""

    def __init__(self, partition: ResultPartition, options: RecordWriterOptions, *, first_channel: int) -> None:
        super().__init__(partition, options, partition.num_subpartitions)
        self._next_channel = first_channel

    def _collect_part(self, part: Chunk) -> None:
        values, timestamps = part.values, part.timestamps
        num_channels, first = self._num_channels, self._next_channel
        for position in range(min(num_channels, len(values))):
            channel = (first + position) % num_channels
            self._pending[channel] += values[position::num_channels]
            if timestamps is not None:
                self._pending_timestamps[channel] += timestamps[position::num_channels]
        self._next_channel = (first + len(values)) % num_channels

    def _lanes(self, num_records: int, keys: list[Any] | None) -> Any:
        lanes = np.arange(self._next_channel, self._next_channel + num_records) % self._num_channels
        self._next_channel = (self._next_channel + num_records) % self._num_channels
        return lanes


class ShuffleRecordWriter(RecordWriter):
    """Sends each record to a random channel."""

    def _lanes(self, num_records: int, keys: list[Any] | None) -> list[int]:
        return self._rng.choices(range(self._num_channels), k=num_records)


class CustomRecordWriter(RecordWriter):
    """Sends each record to the channel that the user's partitioner chooses for its key, when the record is emitted."""

    def _lanes(self, num_records: int, keys: list[Any] | None) -> list[int]:
        assert keys is not None, "there is a key extractor"
        return keys


def create_record_writer(
    partition: ResultPartition,
    partitioner: Partitioner,
    options: RecordWriterOptions,
    *,
    first_channel: int | None = None,
) -> RecordWriter:
    """The record writer for a partitioner.

    ``partition`` has one subpartition per channel.  ``first_channel``: of a rebalance; None: a random one.
    """
    num_channels = partition.num_subpartitions
    keys = create_key_extractor(partitioner, options.subtask, num_channels, options.attention)
    if num_channels == 1:
        return SingleChannelRecordWriter(partition, options, 1, keys)
    match partitioner:
        case Forward() | Global():
            return SingleChannelRecordWriter(partition, options, 1)
        case Broadcast():
            return BroadcastRecordWriter(partition, options)
        case Rebalance():
            first = options.rng.randrange(num_channels) if first_channel is None else first_channel
            return RoundRobinRecordWriter(partition, options, first_channel=first)
        case Rescale():
            return RoundRobinRecordWriter(partition, options, first_channel=0)
        case Shuffle():
            return ShuffleRecordWriter(partition, options, num_channels)
        case Custom():
            return CustomRecordWriter(partition, options, num_channels, keys)
        case KeyGroups():
            return KeyGroupsRecordWriter(partition, options, partitioner, keys)
        case _:
            assert_never(partitioner)
