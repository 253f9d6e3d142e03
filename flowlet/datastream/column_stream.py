"""Streams of columns: record batches of one schema.  To a function of single records they are ``Row`` s.

Side:       pure.  Nothing runs before ``execute``.
Rules:      all methods of ``DataStream`` work, too.  Columns stay columns in functions of batches, keys that are a
            column, and built-in aggregations.
Source:     none in PyFlink's DataStream API, which has columns only in its Table API.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, overload

import pyarrow as pa

from flowlet.common.checks import is_name
from flowlet.common.time import Duration
from flowlet.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.datastream import data_stream, window
from flowlet.datastream.data_stream import DataStream
from flowlet.datastream.formats.arrow_schemas import (
    check_comparable,
    check_key,
    check_schema,
    check_summable,
    check_time,
    column_of,
    declared_schema,
    schema_with_sum,
)
from flowlet.datastream.functions import KeySelector
from flowlet.datastream.keyed_stream import EMIT_ROWS, KeyedStream, OneKey, WindowsOfStream
from flowlet.datastream.user_functions.aggregations import Aggregation
from flowlet.datastream.user_functions.argument_checks import checked_batch_function
from flowlet.errors import JobGraphError
from flowlet.graph.partitioner import Global, KeyGroups
from flowlet.graph.partitioner import Partitioner as StreamPartitioner
from flowlet.graph.transformation import GraphValue, OperatorFactory, PartitionTransformation, Transformation
from flowlet.kernels.time_column import TimeColumn
from flowlet.kernels.windows.columnar_join import JOIN_KINDS, LEFT, RIGHT, ColumnJoin, JoinedColumn
from flowlet.kernels.windows.columnar_windows import PartsLayout, WindowedAggregation
from flowlet.kernels.windows.window_partials import AGGREGATES, WindowAggregate, value_type
from flowlet.kernels.windows.window_shapes import WINDOW_END, WINDOW_START, AlignedWindows, SessionWindows, WindowShape
from flowlet.keys.column_key import ColumnKey

if TYPE_CHECKING:
    from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment

_SUPPORTED: Final = "tumbling, sliding and session windows of event or processing time"


def window_shape(assigner: Any) -> WindowShape:
    """The windows of an assigner.

    Raises:
        JobGraphError: its windows are not computed on columns.
    """
    match assigner:
        case window.TumblingEventTimeWindows() | window.TumblingProcessingTimeWindows():
            return AlignedWindows(
                assigner._size, assigner._size, assigner._offset, is_event_time=assigner.is_event_time()
            )
        case window.SlidingEventTimeWindows() | window.SlidingProcessingTimeWindows():
            return AlignedWindows(
                assigner._size, assigner._slide, assigner._offset, is_event_time=assigner.is_event_time()
            )
        case window.EventTimeSessionWindows() | window.ProcessingTimeSessionWindows():
            return SessionWindows(assigner._session_gap, is_event_time=assigner.is_event_time())
        case _:
            raise JobGraphError(
                f"columns have {_SUPPORTED}, got {assigner!r}; call to_records() before key_by() and window() for "
                "other windows"
            )


def checked_aggregates(schema: Any, named: Mapping[str, Any], taken: Iterable[str]) -> tuple[WindowAggregate, ...]:
    """The aggregations of ``agg(...)``.

    Args:
        schema: of the rows.
        named: for each result ``(column, kind)``, or ``"count"``.
        taken: names that the results have besides.

    Raises:
        JobGraphError: there is none, or one of them cannot be computed.
    """
    if not named:
        raise JobGraphError('agg() needs at least one aggregation, such as total=("amount", "sum") or n="count"')
    for name in named:
        if name in taken:
            raise JobGraphError(f"agg(): the results have a column {name!r} already; give the aggregation another name")
    return tuple(_checked(schema, name, wanted) for name, wanted in named.items())


def _checked(schema: Any, name: str, wanted: Any) -> WindowAggregate:
    if wanted == "count":
        return WindowAggregate(name, "count")
    if not (isinstance(wanted, tuple) and len(wanted) == 2 and is_name(wanted[1])):
        raise JobGraphError(
            f'agg({name}=...) needs a column and an aggregation, such as ("amount", "sum"), or "count", got {wanted!r}'
        )
    column, kind = wanted
    method = f"agg({name}=({column!r}, {kind!r})): {kind}"
    if kind not in AGGREGATES:
        raise JobGraphError(f"{method} is not one of {', '.join(AGGREGATES)}")
    column = column_of(schema, column, kind)
    column_type = schema.field(column).type
    if kind in ("sum", "mean") and not (pa.types.is_integer(column_type) or pa.types.is_floating(column_type)):
        raise JobGraphError(
            f"{method} needs integers or floats, column {column!r} is a {column_type}; cast it to float64 by "
            "map_batches(...)"
        )
    if kind in ("min", "max"):
        check_comparable(schema, column, kind)
    return WindowAggregate(name, kind, column, column_type)


def checked_key_types(schemas: tuple[Any, Any], keys: tuple[str, str]) -> Any:
    """The Arrow type of the keys of a join, without a dictionary; the keys must be of one kind on both sides.

    It is the type of the left keys, or int64 for integers whose types differ.

    Raises:
        JobGraphError: the kinds differ.
    """
    types = [schema.field(key).type for schema, key in zip(schemas, keys, strict=True)]
    plain = list(map(value_type, types))
    if _key_kind(plain[0]) != _key_kind(plain[1]):
        raise JobGraphError(
            f"where({keys[0]!r}) is a {types[0]} and equal_to({keys[1]!r}) a {types[1]}: their values never are the "
            "same key; cast one of them by map_batches(...)"
        )
    return pa.int64() if pa.types.is_integer(plain[0]) and plain[0] != plain[1] else plain[0]


def _key_kind(kind: Any) -> str:
    for name in ("integer", "floating", "boolean", "timestamp", "date"):
        if getattr(pa.types, f"is_{name}")(kind):
            return f"{name} {kind.tz}" if name == "timestamp" else name
    return "text" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else "bytes"


def checked_joined_columns(
    schemas: tuple[Any, Any], keys: tuple[str, str], chosen: Mapping[str, Any]
) -> tuple[JoinedColumn, ...]:
    """The columns of ``select(...)``.

    Raises:
        JobGraphError: a column is missing, or its name is taken.
    """
    if not chosen:
        found = [(name, side, name) for side in (LEFT, RIGHT) for name in schemas[side].names if name != keys[side]]
    else:
        found = [(name, *_checked_side(name, wanted)) for name, wanted in chosen.items()]
    names = [keys[LEFT], WINDOW_START, WINDOW_END, *[name for name, _, _ in found]]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise JobGraphError(
            f"the results of the join would have several columns {', '.join(map(repr, twice))}; "
            'choose their names, as in select(page=("left", "url"), target=("right", "url"))'
        )
    return tuple(_joined_column(schemas, *each) for each in found)


def _joined_column(schemas: tuple[Any, Any], name: str, side: int, column: Any) -> JoinedColumn:
    found = column_of(schemas[side], column, "select")
    return JoinedColumn(name, side, found, value_type(schemas[side].field(found).type))


def _checked_side(name: str, wanted: Any) -> tuple[int, Any]:
    if not (isinstance(wanted, tuple) and len(wanted) == 2 and wanted[0] in ("left", "right")):
        raise JobGraphError(f'select({name}=...) needs ("left", column) or ("right", column), got {wanted!r}')
    return (LEFT if wanted[0] == "left" else RIGHT), wanted[1]


class ColumnStream(DataStream):
    """A stream of record batches; ``schema`` is a ``pyarrow.Schema``."""

    __slots__ = ("schema",)

    def __init__(self, environment: "StreamExecutionEnvironment", transformation: Transformation, schema: Any) -> None:
        super().__init__(environment, transformation)
        self.schema = schema

    def map_batches(self, func: Callable[[Any], Any], output_schema: Any = None) -> "ColumnStream":
        """Apply a function to each ``pyarrow.RecordBatch``; it returns a batch, an iterable of batches, or None for no
        rows.

        The number of rows in a batch varies, so the function must not depend on it.  Batches are not copied: the
        function must not write into the memory of one that it got or gave, such as into a numpy array of which it was
        made.

        Args:
            func: may be a generator function, or an object with ``map_batch(batch)``.
            output_schema: of the result; None: the schema of the input.

        Raises:
            JobGraphError: an argument has the wrong type.
        """
        function = checked_batch_function(func)
        schema = self.schema if output_schema is None else check_schema(output_schema, "map_batches")
        factory = OperatorFactory.of(
            "flowlet.operators.record_batches:MapBatchesOperator",
            function=function,
            schema=self.schema,
            output_schema=schema,
        )
        return self._columns("Map Batches", factory, schema)

    @overload
    def key_by(self, key_selector: str, key_type: TypeInformation | None = None) -> "KeyedColumnStream": ...
    @overload
    def key_by(
        self, key_selector: Callable[[Any], Any] | KeySelector, key_type: TypeInformation | None = None
    ) -> "KeyedStream": ...
    def key_by(self, key_selector: Any, key_type: TypeInformation | None = None) -> "KeyedStream":
        """Send all rows with one key to one subtask.

        Args:
            key_selector: the name of a column (the stream keeps its columns), or a function of one ``Row``.  Functions
                are given the value of the column, as the ``Row`` has it, as their key.
            key_type: as for any stream.

        Raises:
            JobGraphError: there is no such column, or its values cannot be keys.
        """
        if not isinstance(key_selector, str):
            return super().key_by(key_selector, key_type)
        check_key(self.schema, key_selector)
        return KeyedColumnStream(self, key_selector, self.schema)

    def with_event_time(
        self, column: int | str, max_out_of_orderness: Duration | None = None, idle_timeout: Duration | None = None
    ) -> "ColumnStream":
        """Take timestamps from a column, for a whole batch at once, and emit watermarks.

        Args:
            column: name or position of a column of timestamps (those without a time zone are in UTC), dates, or
                milliseconds since 1970.
            max_out_of_orderness: how far a row may be behind the latest one before it; None: rows are in order.
            idle_timeout: after how long without a row others do not wait for a subtask of this stream; None: they wait.

        Raises:
            JobGraphError: there is no such column, its values are no times, or a duration is none.
        """
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(
            Duration.of_millis(0) if max_out_of_orderness is None else max_out_of_orderness
        )
        if idle_timeout is not None:
            strategy = strategy.with_idleness(idle_timeout)
        return self.assign_timestamps_and_watermarks(
            strategy.with_timestamp_assigner(TimeColumn(check_time(self.schema, column)))
        )

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> "ColumnStream":
        """Assign timestamps and emit watermarks, as ``DataStream`` does.

        The strategy's functions get a ``Row`` for each row; ``with_event_time`` saves this cost.
        """
        return ColumnStream(
            self._environment, super().assign_timestamps_and_watermarks(watermark_strategy)._transformation, self.schema
        )

    def join(self, other: "ColumnStream", how: str = "inner") -> "JoinedColumnStreams":  # type: ignore[override]  # keys are columns here
        """Join the rows of two streams of columns that have equal keys and lie in one window.

        Args:
            other: the right side.
            how: ``"inner"``, ``"left"``, ``"right"`` or ``"outer"``: the side whose rows are emitted alone where the
                other side has none.

        Raises:
            JobGraphError: ``other`` is no stream of columns, or belongs to another environment.
        """
        if not isinstance(other, ColumnStream):
            raise JobGraphError(
                f"join() of columns needs another stream of columns, got {other!r}; use to_arrow() there, or "
                "to_records() here"
            )
        self._check_companion(other, "join")
        return JoinedColumnStreams(self, other, how)

    def window_all(self, window_assigner: Any) -> "WindowedColumnStream":  # type: ignore[override]  # has the methods of the other, too
        """All rows of the stream in windows of event or processing time, in one subtask."""
        return WindowedColumnStream(self, None, window_assigner)

    def to_records(self) -> DataStream:
        """The rows as single ``Row`` records."""
        factory = OperatorFactory.of("flowlet.operators.record_batches:ToRecordsOperator")
        return self._then("To Records", factory, PickledBytesTypeInfo())

    def to_arrow(self, schema: Any = None) -> "ColumnStream":
        """The rows with another schema, for example with wider types; None: this stream."""
        return self if schema is None else to_columns(self, schema)

    def _arrow_schema(self) -> Any:
        return self.schema

    def _selected(self, names: list[str]) -> "ColumnStream":
        """The stream with only these columns, so that no others travel; itself if it has no others."""
        names = names or self.schema.names[:1]  # rows without columns could not be counted
        if names == self.schema.names:
            return self
        rows = self._unpartitioned()
        positions = tuple(self.schema.get_field_index(name) for name in names)
        factory = OperatorFactory.of(
            "flowlet.operators.record_batches:SelectColumnsOperator", positions=positions, schema=self.schema
        )
        return rows._internal("Select", factory, pa.schema([self.schema.field(name) for name in names]))

    def _unpartitioned(self) -> "ColumnStream":
        """The stream in front of its partitionings, for a step whose results are partitioned anew: only the last
        partitioning counts.
        """
        step = self._transformation
        while isinstance(step, PartitionTransformation):
            assert step.input is not None, "a partitioning has an input"
            step = step.input
        return ColumnStream(self._environment, step, self.schema)

    def _partitioned(self, partitioner: StreamPartitioner) -> "ColumnStream":
        return ColumnStream(self._environment, data_stream.partition(self, partitioner), self.schema)

    def _columns(self, name: str, factory: OperatorFactory, schema: Any, **settings: Any) -> "ColumnStream":
        """The columns of an operator that reads this stream; ``settings``: as of ``_add``."""
        step = self._add(name, factory, PickledBytesTypeInfo(), **settings)
        return ColumnStream(self._environment, step, schema)

    def _internal(self, name: str, factory: OperatorFactory, schema: Any) -> "ColumnStream":
        """The columns of an operator that is part of the next step and in the task of its input."""
        return self._columns(name, factory, schema, is_internal=True, parallelism=self._transformation.parallelism)


class KeyedColumnStream(KeyedStream):
    """A stream of columns keyed by one of them; null is a key, too.

    Aggregations skip nulls; a result is null until its key has had a value.
    """

    __slots__ = ("_key_name", "schema")

    def __init__(self, origin: ColumnStream, key_name: str, schema: Any) -> None:
        super().__init__(origin, ColumnKey(key_name))
        self._key_name = key_name
        self.schema = schema

    def window(self, window_assigner: Any) -> "WindowedColumnStream":  # type: ignore[override]  # has the methods of the other, too
        """The rows of each key in windows of event or processing time."""
        assert isinstance(self._origin, ColumnStream), "made of one"
        return WindowedColumnStream(self._origin, self._key_name, window_assigner)

    def sum(self, position_to_sum: int | str = 0, *, emit: str = EMIT_ROWS) -> ColumnStream:
        """The first row of each key, its column replaced by the sum so far, as int64 or float64.

        Args:
            position_to_sum: name or position of a column of numbers.
            emit: ``"row"``: one result per row; ``"batch"``: one per key and batch.
        """
        column = check_summable(self.schema, position_to_sum)
        return self._aggregated("sum", column, emit, schema_with_sum(self.schema, column))

    def count(self, *, emit: str = EMIT_ROWS) -> ColumnStream:
        """The number of rows of each key so far, in the key's column and ``count``; ``emit``: see ``sum``."""
        key = self._key_name
        if key == "count":
            raise JobGraphError(
                "count() adds a column 'count', but the key has that name; rename the key with map_batches(...)"
            )
        schema = pa.schema([self.schema.field(key), pa.field("count", pa.int64())])
        return ColumnStream(self._environment, self._counted((key, "count"), emit), schema)

    def min(self, position_to_min: int | str = 0, *, emit: str = EMIT_ROWS) -> ColumnStream:
        """The first row of each key, its column replaced by the lowest value so far; ``emit``: see ``sum``."""
        return self._extreme("min", position_to_min, emit)

    def max(self, position_to_max: int | str = 0, *, emit: str = EMIT_ROWS) -> ColumnStream:
        """The first row of each key, its column replaced by the highest value so far; ``emit``: see ``sum``."""
        return self._extreme("max", position_to_max, emit)

    def min_by(self, position_to_min_by: int | str = 0, *, emit: str = EMIT_ROWS) -> ColumnStream:
        """The row of each key with the lowest value so far in a column, of equal ones the first;
        ``emit``: see ``sum``.
        """
        return self._extreme("min_by", position_to_min_by, emit)

    def max_by(self, position_to_max_by: int | str = 0, *, emit: str = EMIT_ROWS) -> ColumnStream:
        """The row of each key with the highest value so far in a column, of equal ones the first; ``emit``: see
        ``sum``.
        """
        return self._extreme("max_by", position_to_max_by, emit)

    @overload
    def key_by(self, key_selector: str, key_type: TypeInformation | None = None) -> "KeyedColumnStream": ...
    @overload
    def key_by(
        self, key_selector: Callable[[Any], Any] | KeySelector, key_type: TypeInformation | None = None
    ) -> KeyedStream: ...
    def key_by(self, key_selector: Any, key_type: TypeInformation | None = None) -> KeyedStream:
        """The rows keyed in another way, which replaces this key."""
        return self._origin.key_by(key_selector, key_type)

    def _arrow_schema(self) -> Any:
        return self.schema

    def _extreme(self, method: str, position: int | str, emit: str) -> ColumnStream:
        column = check_comparable(self.schema, position, method)
        return self._aggregated(method, column, emit, self.schema)

    def _aggregated(self, method: str, column: str, emit: str, schema: Any) -> ColumnStream:
        function = Aggregation(method, column, skips_nulls=True)
        return ColumnStream(self._environment, self._reduced(method, function, PickledBytesTypeInfo(), emit), schema)


def to_columns(stream: DataStream, schema: Any) -> ColumnStream:
    """Convert the records to columns: ``DataStream.to_arrow``."""
    known = declared_schema(stream.get_type()) if schema is None else check_schema(schema, "to_arrow")
    factory = OperatorFactory.of("flowlet.operators.record_batches:ToColumnsOperator", schema=known)
    return ColumnStream(stream._environment, stream._add("To Arrow", factory, PickledBytesTypeInfo()), known)


class WindowedColumnStream(WindowsOfStream[Any, Any]):
    """A stream of columns cut into windows; made by ``window`` and ``window_all``.

    Results of ``agg``, and of the aggregations after it, are columns: the key, ``window_start``, ``window_end``
    (exclusive, both without a time zone), and the aggregations.  Their event time is the last millisecond of the
    window.  Late rows that are allowed let the results of all windows that a batch changes be emitted again.

    ``reduce``, ``aggregate``, ``apply`` and ``process`` are those of the rows as records, and so are triggers and
    evictors.
    """

    def __init__(self, stream: "ColumnStream", key: str | None, assigner: Any) -> None:
        super().__init__(stream, assigner)
        self._rows = stream
        self._key = key
        self._is_keyed = key is not None

    def agg(self, **aggregations: Any) -> "ColumnStream":
        """Compute several aggregations at once: ``agg(total=("amount", "sum"), mean=("amount", "mean"), n="count")``.

        Args:
            aggregations: for each column of results a column and one of ``sum``, ``mean``, ``min``, ``max``, ``count``
                (of values that are not null), ``first`` and ``last`` (by event time); or ``"count"``, of rows.

        Nulls are left out; a window without a value has a null.  Sums of integers are int64, and fail the job where
        that is too small.

        Raises:
            JobGraphError: a column is missing or of a type that cannot be aggregated so, or the windows are of another
                kind.
        """
        if self._trigger is not None or "evictor" in self._chosen:
            raise JobGraphError("agg(): a trigger or an evictor needs windows of records: use reduce() or process()")
        shape, stream = window_shape(self._assigner), self._rows
        lateness_ms = self._chosen.get("allowed_lateness_ms", 0)
        late_tag = self._chosen.get("late_tag_id")
        taken = (WINDOW_START, WINDOW_END) if self._key is None else (self._key, WINDOW_START, WINDOW_END)
        if self._key in (WINDOW_START, WINDOW_END):
            raise JobGraphError(
                f"agg(): the results have a column {self._key!r}, as the key is called; rename the key by "
                "map_batches(...)"
            )
        aggregates = checked_aggregates(stream.schema, aggregations, taken)
        if not shape.is_event_time and (lateness_ms or late_tag is not None):
            raise JobGraphError(
                "windows by the clock have no late rows; leave allowed_lateness() and side_output_late_data() out"
            )
        key_type = None if self._key is None else value_type(stream.schema.field(self._key).type)
        aggregation = WindowedAggregation(shape, aggregates, self._key, key_type, lateness_ms)
        if late_tag is None and aggregation.can_be_local:
            return self._in_two_steps(aggregation, stream)
        if late_tag is None:
            needed = {each.column for each in aggregates} | {self._key}
            stream = stream._selected([name for name in stream.schema.names if name in needed])
        return self._aggregated(aggregation, stream)

    def sum(self, column: int | str) -> "ColumnStream":
        """The sum of a column, under its name."""
        return self._single(column, "sum")

    def mean(self, column: int | str) -> "ColumnStream":
        """The mean of a column, under its name."""
        return self._single(column, "mean")

    def min(self, column: int | str) -> "ColumnStream":
        """The smallest value of a column, under its name."""
        return self._single(column, "min")

    def max(self, column: int | str) -> "ColumnStream":
        """The largest value of a column, under its name."""
        return self._single(column, "max")

    def count(self) -> "ColumnStream":
        """The number of rows, as ``count``."""
        return self.agg(count="count")

    def _single(self, column: int | str, kind: str) -> "ColumnStream":
        name = column_of(self._rows.schema, column, kind)
        return self.agg(**{name: (name, kind)})

    def _in_two_steps(self, aggregation: WindowedAggregation, rows: "ColumnStream") -> "ColumnStream":
        """Aggregate the rows into parts in the task that has them, so that only the parts travel."""
        rows, layout = rows._unpartitioned(), PartsLayout(aggregation, rows.schema)
        factory = OperatorFactory.of(
            "flowlet.windows.window_columns_operator:LocalWindowColumnsOperator",
            aggregation=aggregation,
            schema=rows.schema,
            layout=layout,
        )
        return self._aggregated(aggregation, rows._internal("Local Window", factory, layout.schema), layout)

    def _aggregated(
        self, aggregation: WindowedAggregation, rows: "ColumnStream", layout: PartsLayout | None = None
    ) -> "ColumnStream":
        factory = OperatorFactory.of(
            "flowlet.windows.window_columns_operator:WindowColumnsOperator",
            aggregation=aggregation,
            schema=rows.schema,
            late_tag=self._chosen.get("late_tag_id"),
            layout=layout,
            is_batch=GraphValue.IS_BATCH,
        )
        schema = aggregation.output_schema()
        if self._key is None:
            return rows._partitioned(Global())._columns("Window All", factory, schema).force_non_parallel()
        return rows._partitioned(KeyGroups(ColumnKey(self._key)))._columns("Window", factory, schema)

    def _windowed(self, *arguments: Any) -> DataStream:
        """The windows of the rows as records."""
        selector = OneKey() if self._key is None else operator.itemgetter(self._key)
        self._stream = self._rows.to_records().key_by(selector)
        return super()._windowed(*arguments)


class JoinedColumnStreams:
    """Two streams of columns; ``where``, ``equal_to`` and ``window`` say which rows meet, ``select`` makes the stream.

    Args:
        left: one stream.
        right: the other one.
        how: ``"inner"``, ``"left"``, ``"right"`` or ``"outer"``.
    """

    __slots__ = ("_assigner", "_how", "_keys", "_sides")

    def __init__(self, left: "ColumnStream", right: "ColumnStream", how: str) -> None:
        if how not in JOIN_KINDS:
            raise JobGraphError(f"join(how={how!r}) is not one of {', '.join(map(repr, JOIN_KINDS))}")
        self._sides = (left, right)
        self._how = how
        self._keys: list[str | None] = [None, None]
        self._assigner: Any = None

    def where(self, column: str) -> "JoinedColumnStreams":
        """The key's column on the left side."""
        return self._with_key(LEFT, column)

    def equal_to(self, column: str) -> "JoinedColumnStreams":
        """The key's column on the right side."""
        return self._with_key(RIGHT, column)

    def window(self, window_assigner: Any) -> "JoinedColumnStreams":
        """The windows in which rows meet: tumbling or sliding ones of event time."""
        self._assigner = window_assigner
        return self

    def select(self, **columns: tuple[str, str]) -> "ColumnStream":
        """The key, ``window_start``, ``window_end`` and these columns of each pair of rows.

        Args:
            columns: for each column of results ``("left", column)`` or ``("right", column)``; none: all columns but the
                keys.

        Raises:
            JobGraphError: keys or windows are missing, the keys are of different types, or a column is missing or there
                twice.
        """
        (left, right), (left_key, right_key) = self._sides, self._keys
        if left_key is None or right_key is None or self._assigner is None:
            raise JobGraphError("select() comes after where(column), equal_to(column) and window(...)")
        shape = window_shape(self._assigner)
        if not isinstance(shape, AlignedWindows) or not shape.is_event_time:
            raise JobGraphError(
                f"columns are joined in tumbling or sliding windows of event time, got {self._assigner!r}; call "
                "to_records() before join()"
            )
        key_type = checked_key_types((left.schema, right.schema), (left_key, right_key))
        chosen = checked_joined_columns((left.schema, right.schema), (left_key, right_key), columns)
        sides = []
        for side, stream, key in ((LEFT, left, left_key), (RIGHT, right, right_key)):
            needed = {each.column for each in chosen if each.side == side} | {key}
            sides.append(stream._selected([name for name in stream.schema.names if name in needed]))
        join = ColumnJoin(
            shape, (left_key, right_key), key_type, self._how, chosen, (sides[LEFT].schema, sides[RIGHT].schema)
        )
        factory = OperatorFactory.of("flowlet.windows.window_columns_operator:JoinColumnsOperator", join=join)
        keyed_left, keyed_right = (
            side._partitioned(KeyGroups(ColumnKey(key))) for side, key in zip(sides, (left_key, right_key), strict=True)
        )
        return keyed_left._columns("Join", factory, join.output_schema(), second_input=keyed_right._transformation)

    def _with_key(self, side: int, column: str) -> "JoinedColumnStreams":
        check_key(self._sides[side].schema, column)
        self._keys[side] = column
        return self
