"""Routes records by their keys.

Hot path.  Where the key is a field of the records (or the record), they are turned into columns once per chunk, a text key into codes, and
numpy does the rest.  Else there is one call of the selector per record, one dictionary probe and one bound ``append``.

Side:       task.
Invariants: every way sends a key to the same channel; dictionaries are bounded; records keep their values and types.
Source:     Flink ``ChannelSelectorRecordWriter`` with ``KeyGroupStreamPartitioner``.  ``key_routes``, ``key_dictionary``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
from typing import Any, Final

import numpy as np

from flowlet.column_key import ColumnKey, column_key_hashes
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
    WordColumn,
    column_of,
)
from flowlet.columns.inspection import exact_type, try_seconds, try_transpose
from flowlet.columns.number_tuples import MIN_NUMBER_TUPLES, try_number_columns
from flowlet.columns.short_texts import HEAD_BYTES
from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.fusing.field_selector import field_selected_by, selects_record
from flowlet.fusing.inlined_map import InlinedMap
from flowlet.graph.partitioner import KeyGroups
from flowlet.key_columns import ChannelTable, column_hashes, try_hashes
from flowlet.keys import exact_key, exact_keys, key_group, operator_index
from flowlet.operators.user_function import last_of, preview
from flowlet.records import Chunk
from flowlet.short_text_keys import short_text_hashes
from flowlet.task.key_dictionary import MAX_CHUNK_KEYS, ChannelCodes, KeyDictionary
from flowlet.task.key_routes import Detour, Routes
from flowlet.task.pending_columns import LaneArray, Route
from flowlet.task.record_writer_base import MAX_PENDING_ROWS, RecordWriter, RecordWriterOptions
from netstack.partition.result_partition import ResultPartition

# Fewer records are routed one by one: numpy's calls cost more than they save.  Not measured closely.
_MIN_COLUMNS: Final = 32
# So many texts are joined, so that numpy finds the codes of some thousands of them at once (50 ns each, a probe of a dictionary 75, and 115
# beside a task that empties the cache).  Not measured closely.
_MIN_WORDS: Final = 500
# More get their codes at once: together with all that may wait they would be more than a dictionary takes.
_MAX_WORDS: Final = MAX_CHUNK_KEYS - MAX_PENDING_ROWS
_NUMBERS: Final = frozenset({int, float, bool})
_SCALARS: Final = _NUMBERS | {str}
_INSTANT: Final = "M"  # a numpy kind that cannot be a key

_Fields = list[Sequence[Any]]
_KeyedColumn = tuple[Column, LaneArray | Route]


class KeyGroupsRecordWriter(RecordWriter):
    """Records with the same key go to the same channel: key -> hash -> key group -> channel.

    Args:
        partitioner: holds the user's key selector and the consumer's number of key groups.
    """

    def __init__(self, partition: ResultPartition, options: RecordWriterOptions, partitioner: KeyGroups) -> None:
        super().__init__(partition, options, partition.num_subpartitions)
        self._subtask = options.subtask
        self._key_function = partitioner.key_function
        self._key_map = InlinedMap()
        self._field = field_selected_by(partitioner.key_selector)
        self._selects_record = selects_record(partitioner.key_selector)
        self._is_column_key = isinstance(partitioner.key_selector, ColumnKey)  # then nulls and instants are keys, too
        self._max_parallelism = partitioner.max_parallelism
        self._channels = ChannelTable(partitioner.max_parallelism, self._num_channels)
        self._route_of: dict[Any, Route] = {}  # by the position of the key, and how
        self._routes = Routes(self._appends, self._channel_of)
        self._timestamp_routes = Routes(self._timestamp_appends, self._channel_of)
        self._detour = Detour()
        self._dictionary = KeyDictionary(self._channels, self._num_channels)
        self._dictionary_detour = Detour(is_patient=True)
        self._codes = [ChannelCodes(self._dictionary, channel) for channel in range(self._num_channels)]

    # ---------------------------------------------------------------- records in columns

    def _collect_columns(self, chunk: Chunk) -> None:
        columns = chunk.columns
        assert columns is not None, "so said the caller"
        position = self._key_position(columns)
        keyed = None if position is None else self._try_keyed(columns.fields[position], position)
        if position is None or keyed is None:
            self._collect_values(chunk.values, chunk.timestamps)
            return
        column, lanes = keyed
        timestamps = chunk.timestamps if chunk.timestamp_array is None else chunk.timestamp_array
        self._add_columns(Chunk.of_columns(_with_field(columns, position, column), timestamps), lanes)

    def _key_position(self, columns: Columns) -> int | None:
        field = self._field
        if type(field) is str and field in columns.field_names:
            return columns.field_names.index(field)
        if type(field) is int and columns.shape is not Shape.SCALAR and field < len(columns.fields):
            return field
        return 0 if self._selects_record and columns.shape is Shape.SCALAR else None

    def _try_keyed(self, column: Column, position: int) -> _KeyedColumn | None:
        """The column as it is to be sent, and the channel of each key; None if keys of this kind are looked at one by one."""
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
            case WordColumn():
                return self._coded(column, position)
            case ShortTextColumn():
                return self._coded(column.to_list(), position)
            case ArrayColumn(array=array) if array.dtype.kind != _INSTANT:
                return column, self._lanes_at(position, _lanes_of_numbers)
            case ArrowColumn(array=array):
                return self._try_arrow(column, array)
            case _:
                return None

    def _lanes_at(self, position: int, lanes_of: Callable[[ChannelTable, Column], LaneArray]) -> Route:
        """The same one for the same arguments."""
        found = self._route_of.get((position, lanes_of))
        if found is None:
            found = self._route_of[position, lanes_of] = partial(_with_lanes, self._channels, position, lanes_of)
        return found

    def _try_arrow(self, column: Column, array: Any) -> _KeyedColumn | None:
        try:
            hashes = column_key_hashes(array) if self._is_column_key else column_hashes(array)
            return column, self._channels.of_hashes(hashes)
        except KeyTypeError:
            return None  # looked at one by one, the record is found

    def _coded(self, keys: Sequence[str] | WordColumn, position: int) -> _KeyedColumn:
        """Text keys: as codes, or past the dictionary."""
        if len(keys) > MAX_CHUNK_KEYS or self._dictionary_detour.is_taken():
            return self._past_dictionary(keys.to_list() if isinstance(keys, WordColumn) else keys, position)
        words = None if isinstance(keys, WordColumn) or self._dictionary_detour.is_on_trial else _short_words(keys)
        if words is None:
            return self._with_codes_of(keys)
        if position not in self._route_of:
            self._route_of[position] = partial(self._route_words, position)
        return words, self._route_of[position]  # their codes are found when there are more of them

    def _route_words(self, position: int, columns: Columns) -> tuple[Columns, LaneArray]:
        """Find codes for the words in a field."""
        words = columns.fields[position]
        assert isinstance(words, WordColumn), "so were all that were joined"
        column, lanes = self._with_codes_of(words)
        return _with_field(columns, position, column), lanes

    def _with_codes_of(self, keys: Sequence[str] | WordColumn) -> tuple[Column, LaneArray]:
        dictionary = self._usable_dictionary()
        num_known = len(dictionary)
        codes = dictionary.encode_words(keys) if isinstance(keys, WordColumn) else dictionary.encode(keys)
        self._dictionary_detour.judge(len(keys), len(dictionary) - num_known, is_full=dictionary.is_full)
        return self._with_codes(codes, keys)

    def _past_dictionary(self, keys: Sequence[str], position: int) -> _KeyedColumn:
        words = WordColumn.joined(keys)
        if words is not None:
            return words, self._lanes_at(position, _lanes_of_words)
        hashes = try_hashes(keys)
        assert hashes is not None, "texts have a way past the dictionary"
        return ListColumn(list(keys), str), self._channels.of_hashes(hashes)

    def _usable_dictionary(self) -> KeyDictionary:
        """The dictionary, with room for the keys of one more chunk."""
        dictionary = self._dictionary
        if dictionary.is_full:
            dictionary.restart()
        return dictionary

    def _with_codes(self, codes: LaneArray, keys: Column | Sequence[str]) -> tuple[Column, LaneArray]:
        """The keys by these codes; by themselves if they are too large to be kept on both sides."""
        lanes = self._dictionary.channels_of(codes)
        if not self._dictionary.is_too_large:
            return CodedColumn(codes, self._dictionary.table), lanes
        self._dictionary.restart()
        return ListColumn(list(keys), str) if isinstance(keys, Sequence) else keys, lanes

    # ---------------------------------------------------------------- records in a list

    def _collect_part(self, values: list[Any], timestamps: list[int] | None) -> None:
        if len(values) >= MIN_NUMBER_TUPLES and type(self._field) is int:
            numbers = try_number_columns(values)
            if numbers is not None and self._field < len(numbers):
                self._collect_columns(Chunk.of_columns(Columns(len(values), tuple(numbers), Shape.TUPLE), timestamps))
                return
        keys = None
        if len(values) >= _MIN_COLUMNS or self._columns.num_rows:
            position, keys, fields, shape = self._key_and_fields(values)
            if fields:
                columns = None if position is None else self._try_columns(fields, position, shape)
                if columns is not None:
                    self._add_columns(Chunk.of_columns(columns[0], timestamps), columns[1])
                    return
        if self._columns.num_rows:
            self._write_columns()
        self._route_keys(self._keys(values) if keys is None else keys, values, timestamps)
        self._write_long_lists()

    def _key_and_fields(self, values: list[Any]) -> tuple[int | None, list[Any] | None, _Fields | None, Shape]:
        """The position of the field that is the key; the keys, if they had to be asked for; and all fields, if the records have any.

        The fields are those of tuples, or the values themselves.
        """
        kind = exact_type(values)
        if kind is not tuple:
            fields: _Fields | None = [values] if kind in _SCALARS else None
            if fields is None or self._selects_record:
                return 0, None, fields, Shape.SCALAR
            keys = self._keys(values)
            return _position_of(keys, [values]), keys, fields, Shape.SCALAR
        if type(self._field) is int:
            fields = try_transpose(values)
            position = self._field if fields and self._field < len(fields) else None
            return position, None, fields, Shape.TUPLE
        keys = self._keys(values)
        seconds = try_seconds(values, keys)
        if seconds is not None:
            return 0, keys, [keys, seconds], Shape.TUPLE
        fields = try_transpose(values)
        return _position_of(keys, fields or ()), keys, fields, Shape.TUPLE

    def _try_columns(self, fields: _Fields, position: int, shape: Shape) -> tuple[Columns, LaneArray | Route] | None:
        keys = fields[position]
        kind = type(keys[0]) if shape is Shape.SCALAR else exact_type(keys)  # scalars were looked at before
        keyed = self._coded(keys, position) if kind is str else self._try_keyed(column_of(keys), position) if kind in _NUMBERS else None
        if keyed is None:
            return None
        columns = [keyed[0] if index == position else column_of(field) for index, field in enumerate(fields)]
        return Columns(len(fields[0]), tuple(columns), shape), keyed[1]

    def _route_keys(self, keys: list[Any], values: list[Any], timestamps: list[int] | None) -> None:
        if self._detour.is_taken() and self._route_by_hashes(keys, values, timestamps):
            return
        exact = self._exact_keys(keys, values)  # the same list when equal keys are the same key
        num_misses_before = self._routes.num_misses
        self._append(self._routes, keys, exact, values)
        if timestamps is not None:
            self._append(self._timestamp_routes, keys, exact, timestamps)
        self._detour.judge(len(keys), self._routes.num_misses - num_misses_before, is_full=False)

    def _route_by_hashes(self, keys: list[Any], values: list[Any], timestamps: list[int] | None) -> bool:
        """Hash all keys at once; False if these keys cannot be."""
        hashes = try_hashes(keys)
        if hashes is None:
            self._detour.give_up()
            return False
        self._append_each(self._channels.of_hashes(hashes).tolist(), values, timestamps)
        return True

    def _append(self, routes: Routes, keys: list[Any], exact: list[Any], items: list[Any]) -> None:
        if exact is keys:
            for key, item in zip(keys, items):  # noqa: B905 - same length by construction, and strict costs in the hot loop
                routes[key](item)
            return
        for key, stand_in, item in zip(keys, exact, items):  # noqa: B905 - as above
            (routes.get(stand_in) or routes.add(stand_in, key))(item)

    def _channel_of(self, key: Any) -> int:
        return operator_index(key_group(key, self._max_parallelism), self._max_parallelism, self._num_channels)

    def _keys(self, values: list[Any]) -> list[Any]:
        field = self._field
        remaining = iter(values)
        try:
            if type(field) is int and list(map(type, values)).count(tuple) == len(values):
                return [value[field] for value in remaining]
            return self._key_map.results(self._key_function, remaining)
        except Exception as error:
            # The iterator stands behind the record that failed: nothing had to be counted per record.
            raise self._failure(last_of(values, remaining)) from error

    def _failure(self, record: object) -> UserFunctionError:
        return UserFunctionError("key_by", self._subtask, preview(record))

    def _exact_keys(self, keys: list[Any], values: list[Any]) -> list[Any]:
        try:
            return exact_keys(keys)
        except KeyTypeError as error:
            raise self._failure(next(value for key, value in zip(keys, values, strict=True) if not _can_be_key(key))) from error


def _with_field(columns: Columns, position: int, column: Column) -> Columns:
    """The records with another representation of one field."""
    fields = tuple([column if index == position else field for index, field in enumerate(columns.fields)])
    return Columns(len(columns), fields, columns.shape, columns.field_names)


def _with_lanes(
    channels: ChannelTable, position: int, lanes_of: Callable[[ChannelTable, Column], LaneArray], columns: Columns
) -> tuple[Columns, LaneArray]:
    return columns, lanes_of(channels, columns.fields[position])


def _lanes_of_numbers(channels: ChannelTable, key: Column) -> LaneArray:
    assert isinstance(key, ArrayColumn), "so were all that were joined"
    return channels.of_keys(key.array)


def _lanes_of_words(channels: ChannelTable, key: Column) -> LaneArray:
    assert isinstance(key, WordColumn), "so were all that were joined"
    if key.short is not None:
        return channels.of_hashes(short_text_hashes(key.short.heads))
    hashes = try_hashes(key.to_list())
    assert hashes is not None, "texts have a way past the dictionary"
    return channels.of_hashes(hashes)


def _short_words(keys: Sequence[str]) -> WordColumn | None:
    """The keys as words of a text; None if they are few, or many, not ASCII, or so long that their first bytes do not tell them apart."""
    words = WordColumn.joined(keys) if _MIN_WORDS <= len(keys) <= _MAX_WORDS else None
    return None if words is None or len(words.text) > HEAD_BYTES * len(keys) else words


def _position_of(keys: list[Any], fields: Sequence[Sequence[Any]]) -> int | None:
    """Which field has these very keys."""
    for position, field in enumerate(fields):
        if field[0] is keys[0] and all(map(is_, field, keys)):
            return position
    return None


def _can_be_key(key: Any) -> bool:
    try:
        exact_key(key)
    except KeyTypeError:
        return False
    return True
