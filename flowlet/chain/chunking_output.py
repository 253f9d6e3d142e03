"""Gathers the records that leave a chain into chunks, for one consumer: the record writer of an edge, or a chained
operator on columns; and takes their keys (``KeyExtractor``).

The loop of the chain appends to it, record by record.  The key is taken here, once per record, at the moment the record
is emitted.

Hot path.  Per record: one call of the key selector, a test of the types, one append per field (bench: wordcount,
programs); no call of the selector for ``operator.itemgetter(k)`` on tuples in columns, which cannot change.
Side:       task.
Invariants: the consumer gets all elements in the order in which they were emitted, watermarks and markers included.  It
            gets each record in its state at the time when it was emitted (``record_shape``).  When a loop has ended, no
            record waits here.  The selector is called once per record, when the record is emitted.  A field is taken
            for the key only if the selector returned that very object.
Source:     Flink ``RecordWriterOutput``, ``ChannelSelectorRecordWriter.emit``.  Flink ``KeySelector``;
            ``KeyGroupStreamPartitioner``, ``CustomPartitionerWrapper``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

from flowlet.chain.loop_code import Blame, LoopCode, LoopEnd, write_conversion
from flowlet.chain.record_shape import MIN_OTHERS, RecordShape, ShapeWatch, apart, copy_if_mutable, fields_of, unpickled
from flowlet.chain.stream_operator import EdgeOutput
from flowlet.columns import Column, Columns, ListColumn, Shape, column_of, columns_of
from flowlet.columns.column import UNCHANGING, are_unchanging, is_unchanging
from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.graph.partitioner import Custom, KeyGroups, Partitioner
from flowlet.keys.column_key import ColumnKey
from flowlet.keys.exact_keys import exact_key, exact_keys
from flowlet.mailbox.task_mailbox import Attention
from flowlet.records import Chunk, ControlElement, PickledRecord
from flowlet.serde.pickles.record_pickle import loads_record
from flowlet.serde.type_serializer import last_of, preview
from flowlet.typed.record_conversion import RecordConversion

# Fewer rows stay in a list: numpy's calls would cost more than they save.  Not measured closely.
MIN_COLUMN_ROWS: Final = 32


class KeyExtractor:
    """Calls the key selector of one edge.

    Args:
        select: returns the key of a record, or its channel for a custom partitioner.
        name: the step that error messages name.
        subtask: index of the producer.
        selector: the user's selector object, from which the selected field may be known; None: unknown.
        makes_keys: whether ``select`` returns keys of a keyed stream.
        attention: the task's; a cancelled task calls the selector for no further record.  None: it is never cancelled.
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

    def keyed(self, chunk: Chunk) -> Chunk:
        """The chunk with its keys (or channels), which are extracted if it has none.

        Raises:
            UserFunctionError: the selector failed, or returned a value that cannot be a key.
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
        """The records in columns, with the position of the key if it is known from the selector."""
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
        """Check the keys of a chunk; returns the chunk.

        Raises UserFunctionError, which names the record, if a key is of a type that cannot be a key.
        """
        if self.makes_keys and chunk.keys is not None:
            exact_keys_of(chunk.keys, chunk, self.name, self.subtask)
        return chunk


def selected(
    select: Callable[[Any], Any], values: list[Any], attention: Attention, name: str, subtask: int
) -> list[Any]:
    """Call a selector for each record; returns the keys.

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
    """The exact keys of selected keys; the records of the chunk are looked at only for an error.

    Raises:
        UserFunctionError: a value cannot be a key; names the step, its subtask and the record.
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
    """The extractor for an edge: of keys, or of channels for a custom partitioner; None if the writer needs neither.

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


# Chunks of 1,000-2,000 tuples are best, 8,000 are 25 % slower (hot-path measurements).  This is also the largest number
# of records that one generator may give before the consumers have their turn.
MAX_WAITING: Final = 2_000


class ChunkingOutput(LoopEnd):
    """Gathers records for ``target``; task thread only.

    ``keys`` takes the key of each record; None: the consumer needs no keys.  ``conversion``: to the declared type;
    None: no type is declared.
    """

    def __init__(
        self, target: EdgeOutput, keys: KeyExtractor | None = None, conversion: RecordConversion | None = None
    ) -> None:
        self.target = target
        self._conversion = conversion
        # Whether records of the shape are of the declared type, except for tests by column or in the loop.
        self._is_covered = False
        self.keys = keys
        # None: the consumer is a record writer, which looks at the keys by itself; or it needs none.
        self._checking = None if getattr(target, "keys", None) is keys else keys
        self.calls_users = keys is not None and keys.field is None  # a selector of the user, for each record
        self.num_emitted = 0  # since it was made
        self.shape: RecordShape | None = None  # the shape that loops test records for
        self.key_position: int | None = None  # in records of that shape, which field is the key
        self._takes_pickled = bool(getattr(target, "takes_pickled_records", False))
        self._has_timestamps = False
        self._timestamps: list[int] = []
        self._fields: list[list[Any]] = []  # one list per field, of records of the shape, if that is a tuple or a value
        self._values: list[Any] = []  # all other records
        self._keys: list[Any] = []  # their keys, where no field is the key
        self._has_pickled = False
        self._has_others = False  # whether a record that waits in ``_values`` is not of the shape
        # Whether records of the shape are kept by field: the key is one of them, or there is none.
        self._has_columns = False
        self._watch = ShapeWatch()
        # A stack, one item per run in progress: whether records had timestamps before it.
        self._outer_timestamps: list[bool] = []
        self.text_key = 0  # how often a shape was chosen: a shape that comes back has new lists
        self._last_key: Any = None  # the key of the last record that was not of the shape

    def __repr__(self) -> str:
        return f"<ChunkingOutput into {self.target!r}: {self._num_waiting} records wait>"

    # ---------------------------------------------------------------- the text of the loop

    def write(self, code: LoopCode, record: str, timestamp: str | None) -> None:
        """Generate the statements that emit the record in the variable ``record``."""
        shape = self.shape
        code.at_start(f"{code.bind(self.expect_timestamps, 'expect')}(has_timestamps={timestamp is not None})")
        if not self._is_covered and self._conversion is not None:
            record = write_conversion(self._conversion, code, record)
        if shape is None:
            self._write_add(code, record, None if self.keys is None else self.keys.write(code, record), timestamp, None)
            return
        # ``itemgetter`` gives the field of a tuple itself, so the loop need not call it.
        is_asked = self.keys is not None and not (
            shape.kind is tuple and self.keys.field == self.key_position is not None
        )
        key = self.keys.write(code, record) if self.keys is not None and is_asked else None
        is_open = code.variable("open")
        code.at_start(f"{is_open} = {code.bind(self.begin, 'begin')}()")
        with code.block(f"if {is_open} and {shape.type_test(code, record)}:"):
            fields, tests = shape.write_fields(code, record)
            tests += self._tests(code, shape, record, fields, key)
            if self._is_covered and self._conversion is not None and not self._has_columns:
                tests += self._conversion.tests(fields, record)
            if not tests:
                self._write_appends(code, record, fields, key, timestamp)
            else:
                with code.block(f"if {' and '.join(tests)}:"):
                    self._write_appends(code, record, fields, key, timestamp)
                with code.block("else:"):
                    self._write_other(code, record, key, timestamp, is_open)
        with code.block("else:"):
            self._write_other(code, record, key, timestamp, is_open)

    def _write_other(
        self, code: LoopCode, record: str, key: str | None, timestamp: str | None, is_open: str | None
    ) -> None:
        """Generate the statements that emit a record of another shape than the loop tests for."""
        if self._is_covered and self._conversion is not None:
            record = write_conversion(self._conversion, code, record)
        self._write_add(code, record, key, timestamp, is_open)

    def _write_add(
        self, code: LoopCode, record: str, key: str | None, timestamp: str | None, is_open: str | None
    ) -> None:
        if key is None and self.keys is not None:
            key = self.keys.write(code, record)
        arguments = ", ".join(name for name in (record, key or "None", timestamp) if name is not None)
        call = f"{code.bind(self.add, 'emit')}({arguments})"
        code.line(call if is_open is None else f"{is_open} = {call}")

    def _tests(self, code: LoopCode, shape: RecordShape, record: str, fields: list[str], key: str | None) -> list[str]:
        tests: list[str] = []
        if key is not None and self.key_position is not None:
            tests.append(f"{(fields or [record])[self.key_position]} is {key}")
        elif key is not None:
            tests.append(f"type({key}) in {code.bind(UNCHANGING, 'unchanging')}")
        flat = None if shape.field_types is not None else shape.flat_test(code, record)
        return tests if flat is None else [*tests, flat]

    def _write_appends(
        self, code: LoopCode, record: str, fields: Sequence[str], key: str | None, timestamp: str | None
    ) -> None:
        assert self.shape is not None, "the caller tested that there is a shape"
        if self._has_columns:
            for field, values in zip(fields or [record], self._fields, strict=True):
                code.line(f"{code.bind(values, 'field')}.append({field})")
        else:
            code.line(f"{code.bind(self._values, 'values')}.append({self.shape.owned(code, record, fields)})")
        if key is not None and not self._has_columns:
            code.line(f"{code.bind(self._keys, 'keys')}.append({key})")
        if timestamp is not None:
            code.line(f"{code.bind(self._timestamps, 'timestamps')}.append({timestamp})")

    def write_limit(self, code: LoopCode) -> None:
        """Generate the statements that pass waiting records on once they fill a chunk; for the end of an inner loop."""
        waiting = self._fields[0] if self._has_columns and self._fields else self._values
        with code.block(f"if len({code.bind(waiting, 'waiting')}) >= {MAX_WAITING}:"):
            code.line(f"{code.bind(self.drain, 'drain')}()")

    # ---------------------------------------------------------------- called by the loop

    def expect_timestamps(self, *, has_timestamps: bool) -> None:
        """Note, at the start of a loop, whether the records that it emits have timestamps."""
        if has_timestamps is not self._has_timestamps:
            self.drain()
            self._has_timestamps = has_timestamps

    def begin(self) -> bool:
        """Whether the loop may test records for the shape."""
        return self.shape is not None and not (self._has_columns and self._values)

    def add(self, record: Any, key: Any = None, timestamp: int | None = None) -> bool:
        """Emit a record of any shape.

        Returns whether the loop may test the next records for the shape without changing the order.
        """
        if self._fields and self._fields[0]:
            self._drain_columns()
        value = record if type(record) in UNCHANGING else copy_if_mutable(record)
        if type(value) is PickledRecord:
            self._has_pickled = True
        self._has_others = True
        self._values.append(value)
        if self.keys is not None:
            self._keys.append(key if is_unchanging(key) else apart(key))
        if timestamp is not None:
            self._timestamps.append(timestamp)
        self._watch.note(record)
        self._last_key = key
        if len(self._values) >= MAX_WAITING:
            self.drain()
        return not self._has_columns

    def drain(self) -> None:
        """Pass all waiting records to the consumer."""
        if self._fields and self._fields[0]:
            self._drain_columns()
        if self._values:
            self._drain_values()

    # ---------------------------------------------------------------- chunks

    @property
    def _num_waiting(self) -> int:
        return len(self._values) + (len(self._fields[0]) if self._fields else 0)

    def try_whole(self, chunk: Chunk) -> Chunk | None:
        """The chunk to ``collect`` as a whole; None if a function must see single records, or a record can change."""
        if chunk.columns is not None:
            is_seen = self.calls_users and chunk.columns.shape is Shape.ROW  # and a Row can be changed
            return chunk.without_keys() if chunk.columns.is_unchanging() and not is_seen else None
        if self.calls_users:
            return None
        columns = columns_of(chunk.values) if len(chunk) >= MIN_COLUMN_ROWS else None
        if columns is None:
            return chunk.without_keys() if are_unchanging(chunk.values) else None
        return Chunk.of_columns(columns, chunk.timestamps) if columns.is_unchanging() else None

    def collect(self, chunk: Chunk) -> None:
        """Pass on a chunk whose records no function has to see.  Takes over the chunk."""
        self.drain()
        if self._conversion is not None:
            chunk = self._conversion.converted(chunk)
        self.num_emitted += len(chunk)
        self.target.collect(chunk if self._checking is None else self._checking.keyed(chunk))

    def emit_control(self, element: ControlElement) -> None:
        """Pass on the element behind all records emitted so far."""
        self.drain()
        self.target.emit_control(element)

    def _drain_columns(self) -> None:
        shape = self.shape
        assert shape is not None, "only records of a shape wait by field"
        types = shape.field_types or (shape.kind,)
        is_listed = len(self._fields[0]) < MIN_COLUMN_ROWS and not getattr(self.target, "has_waiting_columns", False)
        fields: list[Column] = list(map(ListColumn, self._fields) if is_listed else map(column_of, self._fields, types))
        if self._is_covered and self._conversion is not None:
            misfit = self._conversion.first_misfit(fields)
            if misfit is not None:
                self._pass_on_up_to(misfit, shape)
            fields = self._conversion.rounded(fields)
        num_rows = len(fields[0])
        timestamps = self._take_timestamps(num_rows)
        if is_listed:
            chunk = Chunk(shape.columns(fields, None).to_list(), timestamps)
            if self.key_position is not None:
                chunk.keys = fields[self.key_position].to_list()
        else:
            chunk = Chunk.of_columns(shape.columns(fields, self.key_position), timestamps)
        for field in self._fields:
            field.clear()
        self.num_emitted += num_rows
        self.target.collect(chunk)

    def _pass_on_up_to(self, misfit: int, shape: RecordShape) -> None:
        """Pass on the records before the one at ``misfit``, which is not of its declared type.

        Raises DeclaredTypeError for the record at ``misfit``.
        """
        assert self._conversion is not None, "only a conversion finds misfits"
        record = shape.columns([ListColumn(field[misfit : misfit + 1]) for field in self._fields], None).to_list()[0]
        for field in self._fields:
            del field[misfit:]
        del self._timestamps[misfit:]
        if misfit:
            self._drain_columns()
        self._conversion.convert(record)

    def _drain_values(self) -> None:
        values = self._values.copy()
        self._values.clear()
        if self._has_pickled and not self._takes_pickled:
            values = unpickled(values)
        chunk = Chunk(values, self._take_timestamps(len(values)))
        if self._keys:
            chunk.keys = self._keys.copy()
            chunk.key_field = (
                None if self._has_others or self.shape is None else self.shape.key_field(self.key_position)
            )
            self._keys.clear()
        self._has_pickled = self._has_others = False
        self.num_emitted += len(values)
        self.target.collect(chunk if self._checking is None else self._checking.checked(chunk))

    def _take_timestamps(self, num_records: int) -> list[int] | None:
        if not self._has_timestamps:
            return None
        timestamps = self._timestamps[:num_records]
        del self._timestamps[:num_records]
        return timestamps

    # ---------------------------------------------------------------- the choice of the shape

    def enter_loop(self) -> None:
        """Choose the shape that fits the last records, at the start of a run of a loop.

        Runs nest: a watermark that a function emits fires timers, whose results go through this chain.  An inner run
        keeps the shape, because the text of the outer loop is for that shape.
        """
        self._outer_timestamps.append(self._has_timestamps)
        if len(self._outer_timestamps) == 1 and self._watch.num_others >= MIN_OTHERS:
            self._choose_shape()

    def leave_loop(self) -> None:
        """Note the end of a run; none of its records waits here."""
        had_timestamps = self._outer_timestamps.pop()
        if self._outer_timestamps:
            self._has_timestamps = had_timestamps

    def _choose_shape(self) -> None:
        record, key, self._last_key = self._watch.last, self._last_key, None
        shape = self._watch.chosen(self.shape)
        position = None if shape is None else self._position_of(key, record, shape)
        if (shape, position) == (self.shape, self.key_position):
            return
        self.text_key += 1
        self.shape, self.key_position = shape, position
        self._has_columns = shape is not None and shape.is_by_column and (self.keys is None or position is not None)
        is_unseen = self._has_columns and (self.keys is None or self.keys.field == position is not None)
        self._is_covered = (
            shape is not None
            and self._conversion is not None
            and self._conversion.covers(shape.kind, shape.field_types, may_round=is_unseen)
        )
        width = len(shape.field_types or (1,)) if shape is not None else 0
        self._fields = [[] for _ in range(width)] if self._has_columns else []

    def _position_of(self, key: Any, record: Any, shape: RecordShape) -> int | None:
        """The position of the field that is the key object itself; None if there is none, or if the fields are not
        tested.
        """
        if self.keys is None or not self.keys.makes_keys or not (shape.is_scalar or shape.field_types is not None):
            return None
        return next((position for position, field in enumerate(fields_of(record, shape)) if field is key), None)
