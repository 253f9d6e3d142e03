"""Routes records by key.

Maps keys to channels by dictionary.

Hot path.  One dictionary probe per record.

Hot path.  If the key is a field of records in columns (or the record itself), text keys become codes, and numpy does
the rest.  Otherwise each record costs one dictionary probe and two bound ``append``.  ``chain.key_extractor`` extracted
the keys.

Side:       task.
Source:     hot-path measurements: key -> bound append costs 61-69 ns, key -> channel object 71-118 ns.  Every
            dictionary is slow once it leaves the cache, from about 16,384 entries.  Hashing a column costs about 70 ns
            per key, a miss about 1 us.  Flink ``ChannelSelectorRecordWriter`` with ``KeyGroupStreamPartitioner``.
Invariants: all ways send a key to the same channel; dictionaries are bounded; records keep their values and types.
"""

from collections.abc import Callable
from typing import Any

from flowlet.chain.key_extractor import KeyExtractor, field_selected_by
from flowlet.columns import (
    Column,
    Columns,
    Shape,
)
from flowlet.graph.partitioner import KeyGroups
from flowlet.io.key_column_router import KeyColumnRouter
from flowlet.io.key_dictionary import ChannelCodes, DictionaryBypass, KeyDictionary
from flowlet.io.record_writer import RecordWriter, RecordWriterOptions
from flowlet.keys.column_key import ColumnKey
from flowlet.keys.exact_keys import exact_keys, key_group, operator_index
from flowlet.keys.key_columns import ChannelTable, try_hashes
from flowlet.records import Chunk
from netstack.partition.result_partition import ResultPartition

MAX_ROUTES = 16_384

Route = tuple[Callable[[Any], None], Callable[[Any], None]]


class Routes(dict[Any, Route]):
    """Exact key -> the bound ``append`` of its channel's records, and of its channel's keys; bounded, emptied when
    full.
    """

    __slots__ = ("_appends", "_channel_of", "num_misses")

    def __init__(self, appends: list[Route], channel_of: Callable[[Any], int]) -> None:
        super().__init__()
        self._appends = appends
        self._channel_of = channel_of
        self.num_misses = 0

    def __missing__(self, key: Any) -> Route:
        """Add the route of a key that is its own exact key."""
        return self.add(key, key)

    def add(self, exact: Any, key: Any) -> Route:
        """Add and return the route of ``key``."""
        append = self._appends[self._channel_of(key)]
        if len(self) >= MAX_ROUTES:
            self.clear()
        self.num_misses += 1
        self[exact] = append
        return append


class KeyGroupsRecordWriter(RecordWriter):
    """Sends records with equal keys to the same channel: key -> hash -> key group -> channel.

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
        self._max_parallelism = partitioner.max_parallelism
        self._channels = ChannelTable(partitioner.max_parallelism, self._num_channels)
        self._routes = Routes(
            list(zip(self._appends, [keys.append for keys in self._pending_keys], strict=True)), self._channel_of
        )
        self._routes_bypass = DictionaryBypass()
        dictionary = KeyDictionary(self._channels, self._num_channels)
        self._column_router = KeyColumnRouter(
            self._channels, dictionary, self._channel_of, is_column_key=self._is_column_key
        )
        self._codes = [ChannelCodes(dictionary, channel) for channel in range(self._num_channels)]

    # ---------------------------------------------------------------- records in columns

    def _collect_columns(self, chunk: Chunk) -> None:
        columns = chunk.columns
        assert columns is not None, "the caller passes only columns"
        position = self._key_position(columns)
        keyed = None if position is None else self._column_router.try_route(columns.fields[position], position)
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
        """Collect records in columns whose keys are routed one by one: from ``key``, or from the selector if that is
        None.
        """
        assert self.keys is not None, "a writer by key has a key extractor"
        listed = Chunk(chunk.values, chunk.timestamps)
        listed.keys = self.keys.keys_of(chunk.values) if key is None else key.to_list()
        self.keys.checked(listed)
        self._collect_values(listed.values, listed.timestamps, listed.keys)


def _with_field(columns: Columns, position: int, column: Column) -> Columns:
    """The records with one field replaced."""
    fields = tuple([column if index == position else field for index, field in enumerate(columns.fields)])
    return columns.with_fields(fields).with_key_position(columns.key_position)
