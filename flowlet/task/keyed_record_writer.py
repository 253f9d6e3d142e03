"""Routes records by what the user's selector says about them.

Hot path.  Per record there is one call of the selector and, for key groups, one dictionary probe and one bound ``append``.

Side:       task.
Invariants: the dictionary and the vectorised route send a key to the same channel; the dictionary is bounded.
Source:     Flink ``ChannelSelectorRecordWriter`` with ``KeyGroupStreamPartitioner`` and ``CustomPartitionerWrapper``.
            Hot-path measurements: key -> bound append 61-69 ns, any object-per-channel form 71-118 ns; every dictionary is slow once it
            leaves the cache, from about 16,384 entries; hashing a column takes about 70 ns per key, whatever the cardinality, and a miss
            about 1 us.
"""

import operator
from collections.abc import Callable
from typing import Any

from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.fusing.field_selector import field_selected_by
from flowlet.graph.partitioner import Custom, KeyGroups
from flowlet.key_columns import subtasks_of_hashes, try_hashes
from flowlet.keys import exact_key, exact_keys, key_group, operator_index
from flowlet.operators.user_function import last_of, preview
from flowlet.task.record_writer_base import RecordWriter, RecordWriterOptions
from netstack.partition.result_partition import ResultPartition

MAX_ROUTES = 16_384
# When more than one in so many keys is not in the dictionary, hashing the whole column is the cheaper way (see Source).
_TOLERATED_MISSES = 16
# Fewer keys say nothing about the cardinality.  Not measured.
_MIN_JUDGED_KEYS = 256
# How many chunks go past the dictionary before it gets another chance; doubled with every failure.  Not measured.
_MIN_DETOUR = 4
_MAX_DETOUR = 64


class _Routes(dict[Any, Callable[[Any], None]]):
    """Exact key -> bound ``append`` of the list of its channel; bounded, emptied when full."""

    __slots__ = ("_appends", "_channel_of", "num_misses")

    def __init__(self, appends: list[Callable[[Any], None]], channel_of: Callable[[Any], int]) -> None:
        super().__init__()
        self._appends = appends
        self._channel_of = channel_of
        self.num_misses = 0

    def __missing__(self, key: Any) -> Callable[[Any], None]:
        """For keys that are their own exact key."""
        return self.add(key, key)

    def add(self, exact: Any, key: Any) -> Callable[[Any], None]:
        """Learn the route of ``key``."""
        append = self._appends[self._channel_of(key)]
        if len(self) >= MAX_ROUTES:
            self.clear()
        self.num_misses += 1
        self[exact] = append
        return append


class _Detour:
    """Decides chunk by chunk whether keys go through the dictionary, by how many of them it did not know lately."""

    __slots__ = ("_length", "_num_left")

    def __init__(self) -> None:
        self._length = _MIN_DETOUR
        self._num_left = 0

    def is_taken(self) -> bool:
        """Whether the next chunk goes past the dictionary."""
        if not self._num_left:
            return False
        self._num_left -= 1
        return True

    def judge(self, num_keys: int, num_misses: int) -> None:
        """A chunk went through the dictionary."""
        if num_keys < _MIN_JUDGED_KEYS:
            return
        if num_misses * _TOLERATED_MISSES <= num_keys:
            self._length = _MIN_DETOUR
            return
        self._num_left = self._length
        self._length = min(2 * self._length, _MAX_DETOUR)

    def give_up(self) -> None:
        """The keys have no way past the dictionary."""
        self._num_left = 0


class _SelectingRecordWriter(RecordWriter):
    """Asks the user about every record.

    Args:
        key_function: the user's key selector.
        operator_name: who is blamed for its failures.
    """

    def __init__(
        self, partition: ResultPartition, options: RecordWriterOptions, key_function: Callable[[Any], Any], operator_name: str
    ) -> None:
        super().__init__(partition, options, partition.num_subpartitions)
        self._key_function = key_function
        self._operator_name = operator_name
        self._subtask = options.subtask

    def _failure(self, record: object) -> UserFunctionError:
        return UserFunctionError(self._operator_name, self._subtask, preview(record))


class CustomRecordWriter(_SelectingRecordWriter):
    """Records go where the user's function sends their keys.

    Args:
        partitioner: the user's function and key selector.
    """

    def __init__(self, partition: ResultPartition, options: RecordWriterOptions, partitioner: Custom) -> None:
        super().__init__(partition, options, partitioner.key_function, "partition_custom")
        self._channel_function = partitioner.channel_function

    def _route(self, values: list[Any], timestamps: list[int] | None) -> None:
        channels = self._channels(values)
        for channel, value in zip(channels, values, strict=True):
            if not 0 <= channel < self._num_channels:
                cause = ValueError(f"the partitioner chose {channel}, but there are the {self._num_channels} subtasks from 0 on")
                raise self._failure(value) from cause
        self._append_each(channels, values, timestamps)

    def _channels(self, values: list[Any]) -> list[int]:
        select, choose, num_channels, index = self._key_function, self._channel_function, self._num_channels, operator.index
        remaining = iter(values)
        try:
            return [index(choose(select(value), num_channels)) for value in remaining]
        except Exception as error:
            raise self._failure(last_of(values, remaining)) from error


class KeyGroupsRecordWriter(_SelectingRecordWriter):
    """Records with the same key go to the same channel: key -> hash -> key group -> channel.

    Args:
        partitioner: holds the user's key selector and the consumer's number of key groups.
    """

    def __init__(self, partition: ResultPartition, options: RecordWriterOptions, partitioner: KeyGroups) -> None:
        super().__init__(partition, options, partitioner.key_function, "key_by")
        # The subscript in place instead of the call: 41 -> 17 ns per key.
        self._field = field_selected_by(partitioner.key_selector)
        self._max_parallelism = partitioner.max_parallelism
        self._routes = _Routes(self._appends, self._channel_of)
        self._timestamp_routes = _Routes(self._timestamp_appends, self._channel_of)
        self._detour = _Detour()

    def _channel_of(self, key: Any) -> int:
        return operator_index(key_group(key, self._max_parallelism), self._max_parallelism, self._num_channels)

    def _route(self, values: list[Any], timestamps: list[int] | None) -> None:
        keys = self._keys(values)
        if self._detour.is_taken() and self._route_by_column(keys, values, timestamps):
            return
        exact = self._exact_keys(keys, values)  # the same list when equal keys are the same key
        num_misses_before = self._routes.num_misses
        self._append(self._routes, keys, exact, values)
        if timestamps is not None:
            self._append(self._timestamp_routes, keys, exact, timestamps)
        self._detour.judge(len(keys), self._routes.num_misses - num_misses_before)

    def _route_by_column(self, keys: list[Any], values: list[Any], timestamps: list[int] | None) -> bool:
        """Hash all keys at once; False if these keys cannot be."""
        hashes = try_hashes(keys)
        if hashes is None:
            self._detour.give_up()
            return False
        self._append_each(subtasks_of_hashes(hashes, self._max_parallelism, self._num_channels).tolist(), values, timestamps)
        return True

    def _append(self, routes: _Routes, keys: list[Any], exact: list[Any], items: list[Any]) -> None:
        if exact is keys:
            for key, item in zip(keys, items):  # noqa: B905 - same length by construction, and strict costs in the hot loop
                routes[key](item)
            return
        for key, stand_in, item in zip(keys, exact, items):  # noqa: B905 - as above
            (routes.get(stand_in) or routes.add(stand_in, key))(item)

    def _keys(self, values: list[Any]) -> list[Any]:
        key_function = self._key_function
        remaining = iter(values)
        try:
            field = self._field
            if type(field) is int and list(map(type, values)).count(tuple) == len(values):
                return [value[field] for value in remaining]
            return [key_function(value) for value in remaining]
        except Exception as error:
            # The iterator stands behind the record that failed: nothing had to be counted per record.
            raise self._failure(last_of(values, remaining)) from error

    def _exact_keys(self, keys: list[Any], values: list[Any]) -> list[Any]:
        try:
            return exact_keys(keys)
        except KeyTypeError as error:
            raise self._failure(next(value for key, value in zip(keys, values, strict=True) if not _can_be_key(key))) from error


def _can_be_key(key: Any) -> bool:
    try:
        exact_key(key)
    except KeyTypeError:
        return False
    return True
