"""The keys of records that leave a chain.

Hot path.  Per record one call of the selector; none where it is ``operator.itemgetter(k)`` and the records are tuples in columns, which
cannot change.

Side:       task.
Invariants: the selector is called once per record, when the record is emitted; a field counts as the key only if it is the very object that
            the selector gave.
Source:     Flink ``KeySelector``; ``KeyGroupStreamPartitioner``, ``CustomPartitionerWrapper``.
"""

import operator
from collections.abc import Callable
from typing import Any, Final

from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.chain.preview import last_of, preview
from flowlet.columns import Columns, Shape, columns_of
from flowlet.columns.unchanging import is_unchanging
from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.graph.partitioner import Custom, KeyGroups, Partitioner
from flowlet.keys.column_key import ColumnKey
from flowlet.keys.exact_keys import exact_key, exact_keys
from flowlet.records import Chunk, PickledRecord
from flowlet.serde.pickles.record_pickle import dumps_record, loads_record

# Fewer rows stay in a list: numpy's calls cost more than they save.  Not measured closely.
MIN_COLUMN_ROWS: Final = 32


class KeyExtractor:
    """Calls the key selector of one edge.

    Args:
        select: gives what the writer of the edge needs to know of a record: its key, or, for a custom partitioner, its channel.
        name: of the step, for error messages.
        subtask: of the producer.
        selector: the user's object, of which some say which field they take; None: it is not asked.
        makes_keys: whether what is selected are keys of a keyed stream.
    """

    def __init__(self, select: Callable[[Any], Any], name: str, subtask: int, *, selector: Any = None, makes_keys: bool = True) -> None:
        self._select = select
        self.name = name
        self.subtask = subtask
        self.field = field_selected_by(selector)
        self._is_column = isinstance(selector, ColumnKey)
        self.makes_keys = makes_keys

    def write(self, code: LoopCode, record: str) -> str:
        """The statement that takes the key of the record in a variable; returns the variable of the key."""
        key = code.variable("k")
        code.line(f"{key} = {code.bind(self._select, 'key')}({record})", Blame(self.name, self.subtask, record))
        return key

    def copy_if_mutable(self, key: Any) -> Any:
        """The key as it is now."""
        return key if is_unchanging(key) else loads_record(dumps_record(key))

    def keyed(self, chunk: Chunk) -> Chunk:
        """The chunk with what the writer needs to know, unless it has that.

        Raises:
            UserFunctionError: the selector failed, or gave something that cannot be a key.
        """
        columns = chunk.columns
        if chunk.keys is not None or (self._is_column and columns is not None):
            return self.checked(chunk)
        if columns is not None:
            if columns.key_position is not None:
                return chunk
            if type(self.field) is int and columns.shape is Shape.TUPLE and self.field < len(columns.fields):
                return _with_key_position(chunk, columns, self.field)
        values = chunk.values
        if columns is None and self.makes_keys and len(values) >= MIN_COLUMN_ROWS:
            columns = self._columns_of(values)
            if columns is not None and columns.key_position is not None:
                return Chunk.of_columns(columns, chunk.timestamps)
        keys = self.keys_of(values)
        position = self._common_position(keys, values) if columns is not None else None
        if columns is not None and position is not None:
            return _with_key_position(Chunk.of_columns(columns, chunk.timestamps), columns, position)
        keyed = Chunk(values, chunk.timestamps)
        keyed.keys = keys
        return self.checked(keyed)

    def _columns_of(self, values: list[Any]) -> Columns | None:
        """The records in columns, with the position of the key if that is known without asking the selector."""
        field, columns = self.field, columns_of(values)
        if columns is not None and columns.shape is Shape.TUPLE and type(field) is int and field < len(columns.fields):
            return Columns(columns.num_rows, columns.fields, Shape.TUPLE, key_position=field)
        return columns

    def keys_of(self, values: list[Any]) -> list[Any]:
        """What is selected of each record.

        Raises:
            UserFunctionError: the selector failed.
        """
        records = iter(values)
        select = self._select
        try:
            return [select(record) for record in records]
        except Exception as error:
            raise UserFunctionError(self.name, self.subtask, preview(last_of(values, records))) from error

    def _common_position(self, keys: list[Any], values: list[Any]) -> int | None:
        """Which field is the key in all records of columns."""
        if not keys or not self.makes_keys:
            return None
        if all(map(operator.is_, keys, values)):
            return 0 if type(values[0]) is not tuple else None
        if type(values[0]) is not tuple:
            return None
        position = next((position for position, field in enumerate(values[0]) if field is keys[0]), None)
        if position is None or not all(map(operator.is_, keys, map(operator.itemgetter(position), values))):
            return None
        return position

    def checked(self, chunk: Chunk) -> Chunk:
        """The same chunk.

        Raises:
            UserFunctionError: some key cannot be one; shows its record.
        """
        if not self.makes_keys or chunk.keys is None:
            return chunk
        try:
            exact_keys(chunk.keys)
        except KeyTypeError as error:
            value = next(value for key, value in zip(chunk.keys, chunk.values, strict=True) if not _can_be_key(key))
            record = loads_record(value.data) if type(value) is PickledRecord else value
            raise UserFunctionError(self.name, self.subtask, preview(record)) from error
        return chunk


def create_key_extractor(partitioner: Partitioner, subtask: int, num_channels: int) -> KeyExtractor | None:
    """What takes the key of each record, or its channel for a custom partitioner; None where the writer needs neither.

    Args:
        partitioner: of the edge.
        subtask: of the producer.
        num_channels: the number of consumers, from which a custom partitioner chooses.
    """
    if isinstance(partitioner, KeyGroups):
        return KeyExtractor(partitioner.key_function, "key_by", subtask, selector=partitioner.key_selector)
    if isinstance(partitioner, Custom):
        return KeyExtractor(_channel_function(partitioner, num_channels), "partition_custom", subtask, makes_keys=False)
    return None


def _channel_function(partitioner: Custom, num_channels: int) -> Callable[[Any], int]:
    select, choose, index = partitioner.key_function, partitioner.channel_function, operator.index

    def channel_of(record: Any) -> int:
        channel = index(choose(select(record), num_channels))
        if not 0 <= channel < num_channels:
            raise ValueError(f"the partitioner chose {channel}, but there are the {num_channels} subtasks from 0 on")
        return channel

    return channel_of


def field_selected_by(selector: Any) -> int | str | None:
    """The field, if the selector is an ``operator.itemgetter`` of one field, or a column; else None.

    A position is never negative: counted from the end, the same one would be different columns of records of different lengths.
    """
    if isinstance(selector, ColumnKey):
        return selector.name
    if type(selector) is not operator.itemgetter:
        return None
    reduced: Any = selector.__reduce__()
    fields = reduced[1]
    field = fields[0] if len(fields) == 1 else None
    return field if type(field) is str or (type(field) is int and field >= 0) else None


def _with_key_position(chunk: Chunk, columns: Columns, position: int) -> Chunk:
    with_key = columns.with_key_position(position)
    return Chunk.of_columns(with_key, chunk.timestamps if chunk.timestamp_array is None else chunk.timestamp_array)


def _can_be_key(key: Any) -> bool:
    try:
        exact_key(key)
    except KeyTypeError:
        return False
    return True
