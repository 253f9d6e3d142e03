"""Routes records by key.

Hot path.  If the key is a field of records in columns (or the record itself), text keys become codes, and numpy does the rest.  Otherwise
each record costs one dictionary probe and two bound ``append``.  ``chain.key_extractor`` extracted the keys.
Side:       task.
Invariants: all ways send a key to the same channel; dictionaries are bounded; records keep their values and types.
Source:     Flink ``ChannelSelectorRecordWriter`` with ``KeyGroupStreamPartitioner``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from flowlet.chain.key_extractor import create_key_extractor, field_selected_by
from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    Columns,
    ConstantColumn,
    ListColumn,
    Shape,
    ShortTextColumn,
)
from flowlet.columns.short_texts import try_short_texts
from flowlet.errors import KeyTypeError
from flowlet.graph.partitioner import KeyGroups
from flowlet.io.dictionary_bypass import DictionaryBypass
from flowlet.io.key_dictionary import MAX_CHUNK_KEYS, ChannelCodes, KeyDictionary
from flowlet.io.key_routes import Routes
from flowlet.io.pending_columns import LaneArray, Route
from flowlet.io.record_writer import RecordWriter, RecordWriterOptions
from flowlet.keys.column_key import ColumnKey, column_key_hashes
from flowlet.keys.exact_keys import exact_keys
from flowlet.keys.key_columns import ChannelTable, column_hashes, try_hashes
from flowlet.keys.key_groups import key_group, operator_index
from flowlet.keys.short_text_keys import short_text_hashes
from flowlet.records import Chunk
from netstack.partition.result_partition import ResultPartition

_NUMBERS: Final = frozenset({int, float, bool})
_INSTANT: Final = "M"  # the numpy kind of timestamps, which cannot be keys

_KeyedColumn = tuple[Column, LaneArray | Route]


class KeyGroupsRecordWriter(RecordWriter):
    """Sends records with equal keys to the same channel: key -> hash -> key group -> channel.

    ``partitioner`` holds the user's key selector and the consumer's number of key groups.
    """

    def __init__(self, partition: ResultPartition, options: RecordWriterOptions, partitioner: KeyGroups) -> None:
        keys = create_key_extractor(partitioner, options.subtask, partition.num_subpartitions)
        super().__init__(partition, options, partition.num_subpartitions, keys)
        self._field = field_selected_by(partitioner.key_selector)
        self._is_column_key = isinstance(partitioner.key_selector, ColumnKey)  # a column's nulls and timestamps can be keys
        self._max_parallelism = partitioner.max_parallelism
        self._channels = ChannelTable(partitioner.max_parallelism, self._num_channels)
        self._route_of: dict[Any, Route] = {}  # (position of the key, function that routes it) -> route
        self._routes = Routes(list(zip(self._appends, [keys.append for keys in self._pending_keys], strict=True)), self._channel_of)
        self._routes_bypass = DictionaryBypass()
        self._dictionary = KeyDictionary(self._channels, self._num_channels)
        self._dictionary_bypass = DictionaryBypass(is_patient=True)
        self._codes = [ChannelCodes(self._dictionary, channel) for channel in range(self._num_channels)]

    # ---------------------------------------------------------------- records in columns

    def _collect_columns(self, chunk: Chunk) -> None:
        columns = chunk.columns
        assert columns is not None, "the caller passes only columns"
        position = self._key_position(columns)
        keyed = None if position is None else self._try_keyed(columns.fields[position], position)
        if position is None or keyed is None:
            is_taken = position is not None and (columns.shape is Shape.KEYED or not self._is_column_key)
            self._collect_listed(chunk, columns.fields[position] if is_taken and position is not None else None)
            return
        column, lanes = keyed
        timestamps = chunk.timestamps if chunk.timestamp_array is None else chunk.timestamp_array
        self._add_columns(Chunk.of_columns(_with_field(columns, position, column), timestamps), lanes)

    def _key_position(self, columns: Columns) -> int | None:
        if columns.key_position is not None:
            return columns.key_position
        field = self._field
        if type(field) is str and field in columns.field_names:
            return columns.field_names.index(field)
        if type(field) is int and columns.shape is not Shape.SCALAR and field < len(columns.fields):
            return field
        return None

    def _try_keyed(self, column: Column, position: int) -> _KeyedColumn | None:
        """The key column as it is sent, and the channel of each key; None if keys of this kind are routed one by one."""
        match column:
            case ConstantColumn(value=str()) if type(column.value) is str:
                codes = np.full(len(column), self._usable_dictionary().encode([column.value])[0], np.uint16)
                return self._with_codes(codes, column)
            case ConstantColumn(value=value) if type(value) in _NUMBERS:
                return column, np.full(len(column), self._channel_of(value), np.uint16)
            case CodedColumn():
                recoded = self._usable_dictionary().try_recode(column)
                return None if recoded is None else self._with_codes(recoded, column)
            case ListColumn(values=values, value_type=value_type) if value_type is str:
                return self._coded(values, position)
            case ShortTextColumn():
                return self._coded(column.to_list(), position)
            case ArrayColumn(array=array) if array.dtype.kind != _INSTANT:
                return column, self._lanes_at(position, _lanes_of_numbers)
            case ArrowColumn(array=array):
                return self._try_arrow(column, array)
            case _:
                return None

    def _lanes_at(self, position: int, lanes_of: Callable[[ChannelTable, Column], LaneArray]) -> Route:
        """A route; the same object for the same arguments, because only chunks with the same route are routed together."""
        found = self._route_of.get((position, lanes_of))
        if found is None:
            found = self._route_of[position, lanes_of] = partial(_with_lanes, self._channels, position, lanes_of)
        return found

    def _try_arrow(self, column: Column, array: Any) -> _KeyedColumn | None:
        try:
            hashes = column_key_hashes(array) if self._is_column_key else column_hashes(array)
            return column, self._channels.of_hashes(hashes)
        except KeyTypeError:
            return None  # routed one by one instead, which finds the record with the bad key

    def _coded(self, keys: Sequence[str], position: int) -> _KeyedColumn:
        """Text keys as codes, or as texts if they bypass the dictionary."""
        if len(keys) > MAX_CHUNK_KEYS or self._dictionary_bypass.is_taken():
            return self._past_dictionary(keys, position)
        dictionary = self._usable_dictionary()
        num_known = len(dictionary)
        codes = dictionary.encode(keys)
        self._dictionary_bypass.judge(len(keys), len(dictionary) - num_known, is_full=dictionary.is_full)
        return self._with_codes(codes, keys)

    def _past_dictionary(self, keys: Sequence[str], position: int) -> _KeyedColumn:
        short = try_short_texts(keys)
        if short is not None:
            return short, self._lanes_at(position, _lanes_of_short_texts)
        hashes = try_hashes(keys)
        assert hashes is not None, "texts can be hashed"
        return ListColumn(list(keys), str), self._channels.of_hashes(hashes)

    def _usable_dictionary(self) -> KeyDictionary:
        """The dictionary, emptied if it has no room for another chunk."""
        dictionary = self._dictionary
        if dictionary.is_full:
            dictionary.restart()
        return dictionary

    def _with_codes(self, codes: LaneArray, keys: Column | Sequence[str]) -> tuple[Column, LaneArray]:
        """The keys as codes; as they are if the dictionary's texts are too long to be kept on both sides."""
        lanes = self._dictionary.channels_of(codes)
        if not self._dictionary.is_too_large:
            return CodedColumn(codes, self._dictionary.table), lanes
        self._dictionary.restart()
        return ListColumn(list(keys), str) if isinstance(keys, Sequence) else keys, lanes

    # ---------------------------------------------------------------- records in a list

    def _collect_part(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None) -> None:
        assert keys is not None, "there is a key extractor"
        if not (self._routes_bypass.is_taken() and self._route_by_hashes(keys, values, timestamps)):
            self._route_keys(keys, values, timestamps)
        self._write_long_lists()

    def _route_keys(self, keys: list[Any], values: list[Any], timestamps: list[int] | None) -> None:
        exact = exact_keys(keys)  # the same list if equal keys are always the same key
        num_misses_before = self._routes.num_misses
        if exact is keys and timestamps is None:
            self._append_plain(keys, values)
        else:
            self._append_exact(keys, exact, values, timestamps)
        self._routes_bypass.judge(len(keys), self._routes.num_misses - num_misses_before, is_full=False)

    def _route_by_hashes(self, keys: list[Any], values: list[Any], timestamps: list[int] | None) -> bool:
        """Route all keys by their hashes at once; False if keys of this kind cannot be hashed together."""
        hashes = try_hashes(keys)
        if hashes is None:
            self._routes_bypass.give_up()
            return False
        channels = self._channels.of_hashes(hashes).tolist()
        self._append_each(channels, values, timestamps)
        for channel, key in zip(channels, keys):  # noqa: B905 - same length by construction, and strict costs in the hot loop
            self._pending_keys[channel].append(key)
        return True

    def _append_plain(self, keys: list[Any], values: list[Any]) -> None:
        routes = self._routes
        for key, value in zip(keys, values):  # noqa: B905 - as above
            append, append_key = routes[key]
            append(value)
            append_key(key)

    def _append_exact(self, keys: list[Any], exact: list[Any], values: list[Any], timestamps: list[int] | None) -> None:
        routes = self._routes
        channels = []
        for key, stand_in, value in zip(keys, exact, values):  # noqa: B905 - as above
            append, append_key = routes.get(stand_in) or routes.add(stand_in, key)
            append(value)
            append_key(key)
            if timestamps is not None:
                channels.append(append)
        if timestamps is not None:
            of_lane = dict(zip(self._appends, self._timestamp_appends, strict=True))
            for append, timestamp in zip(channels, timestamps, strict=True):
                of_lane[append](timestamp)

    def _channel_of(self, key: Any) -> int:
        return operator_index(key_group(key, self._max_parallelism), self._max_parallelism, self._num_channels)

    def _collect_listed(self, chunk: Chunk, key: Column | None) -> None:
        """Collect records in columns whose keys are routed one by one: from ``key``, or from the selector if that is None."""
        assert self.keys is not None, "a writer by key has a key extractor"
        listed = Chunk(chunk.values, chunk.timestamps)
        listed.keys = self.keys.keys_of(chunk.values) if key is None else key.to_list()
        self.keys.checked(listed)
        self._collect_values(listed.values, listed.timestamps, listed.keys)


def _with_field(columns: Columns, position: int, column: Column) -> Columns:
    """The records with one field replaced."""
    fields = tuple([column if index == position else field for index, field in enumerate(columns.fields)])
    return columns.with_fields(fields).with_key_position(columns.key_position)


def _with_lanes(
    channels: ChannelTable, position: int, lanes_of: Callable[[ChannelTable, Column], LaneArray], columns: Columns
) -> tuple[Columns, LaneArray]:
    return columns, lanes_of(channels, columns.fields[position])


def _lanes_of_numbers(channels: ChannelTable, key: Column) -> LaneArray:
    assert isinstance(key, ArrayColumn), "joined columns are of the same class"
    return channels.of_keys(key.array)


def _lanes_of_short_texts(channels: ChannelTable, key: Column) -> LaneArray:
    assert isinstance(key, ShortTextColumn), "joined columns are of the same class"
    return channels.of_hashes(short_text_hashes(key.packed16))
