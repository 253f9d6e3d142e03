"""Takes the keys of the records that leave a chain.

Hot path.  Per record one call of the selector; none for ``operator.itemgetter(k)`` on tuples in columns, which cannot
change.
Side:       task.
Invariants: the selector is called once per record, when the record is emitted.  A field is taken for the key only if it
            is the very object that the selector returned.
Source:     Flink ``KeySelector``; ``KeyGroupStreamPartitioner``, ``CustomPartitionerWrapper``.
"""

import operator
from collections.abc import Callable
from typing import Any, Final

from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.columns import Columns, Shape, columns_of
from flowlet.columns.column import is_unchanging
from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.graph.partitioner import Custom, KeyGroups, Partitioner
from flowlet.keys.column_key import ColumnKey
from flowlet.keys.exact_keys import exact_key, exact_keys
from flowlet.mailbox.task_mailbox import Attention
from flowlet.records import Chunk, PickledRecord
from flowlet.serde.pickles.record_pickle import dumps_record, loads_record
from flowlet.serde.type_serializer import last_of, preview

# Fewer rows stay in a list: numpy's calls would cost more than they save.  Not measured closely.
MIN_COLUMN_ROWS: Final = 32


class KeyExtractor:
    """Calls the key selector of one edge.

    Args:
        select: returns what the writer of the edge needs of a record: its key, or its channel for a custom partitioner.
        name: the step that error messages name.
        subtask: index of the producer.
        selector: the user's selector object, which may tell which field it selects; None: unknown.
        makes_keys: whether ``select`` returns keys of a keyed stream.
        attention: the task's; a cancelled task calls the selector for no further record.  None: nothing cancels it.
    """

    def __init__(
        self,
        select: Callable[[Any], Any],
        name: str,
        subtask: int,
        *,
        selector: Any = None,
        makes_keys: bool = True,
        attention: Attention | None = None,
    ) -> None:
        self._select = select
        self.name = name
        self.subtask = subtask
        self.field = field_selected_by(selector)
        self.is_column = isinstance(selector, ColumnKey)
        self.makes_keys = makes_keys
        self._attention = Attention() if attention is None else attention

    def write(self, code: LoopCode, record: str) -> str:
        """Generate the statement that takes the key of the record in the variable ``record``; returns the variable of
        the key.
        """
        key = code.variable("k")
        code.line(f"{key} = {code.bind(self._select, 'key')}({record})", Blame(self.name, self.subtask, record))
        return key

    def copy_if_mutable(self, key: Any) -> Any:
        """The key if it cannot change, else a copy of it as it is now."""
        return key if is_unchanging(key) else loads_record(dumps_record(key))

    def keyed(self, chunk: Chunk) -> Chunk:
        """The chunk with its keys (or channels), which are extracted if it has none.

        Raises:
            UserFunctionError: the selector failed, or returned something that cannot be a key.
        """
        columns = chunk.columns
        if chunk.keys is not None or (self.is_column and columns is not None):
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
        """The records in columns, with the position of the key if the selector tells it."""
        field, columns = self.field, columns_of(values)
        if columns is not None and columns.shape is Shape.TUPLE and type(field) is int and field < len(columns.fields):
            return Columns(columns.num_rows, columns.fields, Shape.TUPLE, key_position=field)
        return columns

    def keys_of(self, values: list[Any]) -> list[Any]:
        """Call the selector for each record.

        Raises:
            TaskCancelled: the task is cancelled; the selector is called for no further record.
            UserFunctionError: the selector failed.
        """
        return selected(self._select, values, self._attention, self.name, self.subtask)

    def _common_position(self, keys: list[Any], values: list[Any]) -> int | None:
        """The position of the field that is the key in every record; None if there is none."""
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
        """The chunk itself.

        Raises UserFunctionError, which names the record, if a key is of a type that cannot be a key.
        """
        if self.makes_keys and chunk.keys is not None:
            exact_keys_of(chunk.keys, chunk, self.name, self.subtask)
        return chunk


def selected(
    select: Callable[[Any], Any], values: list[Any], attention: Attention, name: str, subtask: int
) -> list[Any]:
    """The key that a selector gives for each record.

    Raises:
        TaskCancelled: the task is cancelled; the selector is called for no further record.
        UserFunctionError: the selector failed; names the step, its subtask and the record.
    """
    records = iter(values)
    try:
        return [select(record) for record in records if not attention or attention.goes_on()]
    except Exception as error:
        raise UserFunctionError(name, subtask, preview(last_of(values, records))) from error


def exact_keys_of(keys: list[Any], chunk: Chunk, name: str, subtask: int) -> list[Any]:
    """The stand-ins of what was selected; the records of the chunk are looked at only for an error.

    Raises:
        UserFunctionError: something cannot be a key; names the step, its subtask and the record.
    """
    try:
        return exact_keys(keys)
    except KeyTypeError as error:
        value = next(value for key, value in zip(keys, chunk.values, strict=True) if not can_be_key(key))
        record = loads_record(value.data) if type(value) is PickledRecord else value
        raise UserFunctionError(name, subtask, preview(record)) from error


def create_key_extractor(
    partitioner: Partitioner, subtask: int, num_channels: int, attention: Attention | None = None
) -> KeyExtractor | None:
    """The extractor for an edge: of keys, or of channels for a custom partitioner.

    None where the writer needs neither.

    ``subtask`` is the producer's; a custom partitioner chooses among ``num_channels`` consumers.  ``attention``: see
    ``KeyExtractor``.
    """
    if isinstance(partitioner, KeyGroups):
        return KeyExtractor(
            partitioner.key_function, "key_by", subtask, selector=partitioner.key_selector, attention=attention
        )
    if isinstance(partitioner, Custom):
        choose = _channel_function(partitioner, num_channels)
        return KeyExtractor(choose, "partition_custom", subtask, makes_keys=False, attention=attention)
    return None


def _channel_function(partitioner: Custom, num_channels: int) -> Callable[[Any], int]:
    select, choose, index = partitioner.key_function, partitioner.channel_function, operator.index

    def channel_of(record: Any) -> int:
        channel = index(choose(select(record), num_channels))
        if not 0 <= channel < num_channels:
            raise ValueError(
                f"the partitioner returned {channel}; it must return a number from 0 to {num_channels - 1}"
            )
        return channel

    return channel_of


def field_selected_by(selector: Any) -> int | str | None:
    """The field that an ``operator.itemgetter`` of one field, or a column, selects; None for any other selector.

    Negative positions count as unknown: in records of different lengths they mean different columns.
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
    return Chunk.of_columns(columns.with_key_position(position), chunk.timestamp_array)


def can_be_key(key: Any) -> bool:
    """Whether ``exact_key`` accepts the key."""
    try:
        exact_key(key)
    except KeyTypeError:
        return False
    return True
