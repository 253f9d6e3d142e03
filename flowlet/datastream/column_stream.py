"""Streams of columns: record batches of one schema.  To a function of single records they are ``Row`` s.

Side:       pure.  Nothing runs before ``execute``.
Rules:      all methods of ``DataStream`` work, too.  Columns stay columns in functions of batches, keys that are a
            column, and built-in aggregations.
Source:     none in PyFlink's DataStream API, which has columns only in its Table API.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

from flowlet.common.time import Duration
from flowlet.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.datastream import data_stream
from flowlet.datastream.data_stream import DataStream
from flowlet.datastream.formats.arrow_schemas import (
    check_comparable,
    check_key,
    check_schema,
    check_summable,
    check_time,
    declared_schema,
    schema_with_sum,
)
from flowlet.datastream.functions import KeySelector
from flowlet.datastream.joins.joined_columns import JoinedColumnStreams
from flowlet.datastream.keyed_stream import EMIT_ROWS, KeyedStream, emits_batches_of
from flowlet.datastream.user_functions.aggregations import Aggregation, Total, extreme_of
from flowlet.datastream.user_functions.argument_checks import checked_batch_function
from flowlet.datastream.windowed_columns import WindowedColumnStream
from flowlet.errors import JobGraphError
from flowlet.graph.partitioner import Partitioner as StreamPartitioner
from flowlet.graph.transformation import (
    OperatorFactory,
    OperatorTransformation,
    PartitionTransformation,
    Transformation,
)
from flowlet.kernels.time_column import TimeColumn
from flowlet.keys.column_key import ColumnKey

if TYPE_CHECKING:
    from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = ["ColumnStream", "KeyedColumnStream"]


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
            output_schema: of the result; None: the same as of the input.

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
        return self._columns(self._step("Map Batches", factory, PickledBytesTypeInfo()), schema)

    @overload
    def key_by(self, key_selector: str, key_type: TypeInformation | None = None) -> "KeyedColumnStream": ...
    @overload
    def key_by(
        self, key_selector: Callable[[Any], Any] | KeySelector, key_type: TypeInformation | None = None
    ) -> "KeyedStream": ...
    def key_by(self, key_selector: Any, key_type: TypeInformation | None = None) -> "KeyedStream":
        """Send all rows with the same key to the same subtask.

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
        return KeyedColumnStream(self, ColumnKey(key_selector), self.schema)

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
        """As for any stream; a function that is called for each row gets a ``Row``, which ``with_event_time`` saves."""
        return ColumnStream(
            self._environment, super().assign_timestamps_and_watermarks(watermark_strategy)._transformation, self.schema
        )

    def join(self, other: "ColumnStream", how: str = "inner") -> JoinedColumnStreams:  # type: ignore[override]  # keys are columns here
        """Join the rows of two streams of columns with equal keys in the same window.

        Args:
            other: the right side.
            how: ``"inner"``, ``"left"``, ``"right"`` or ``"outer"``: whose rows come out alone where the other side has
                none.

        Raises:
            JobGraphError: it is no stream of columns of the same environment.
        """
        if not isinstance(other, ColumnStream):
            raise JobGraphError(
                f"join() of columns needs another stream of columns, got {other!r}; use to_arrow() there, or "
                "to_records() here"
            )
        self._check_companion(other, "join")
        return JoinedColumnStreams(self, other, how)

    def window_all(self, window_assigner: Any) -> WindowedColumnStream:  # type: ignore[override]  # has the methods of the other, too
        """All rows of the stream in windows of event or processing time, in one subtask."""
        return WindowedColumnStream(self, None, window_assigner)

    def to_records(self) -> DataStream:
        """The rows as single ``Row`` records."""
        factory = OperatorFactory.of("flowlet.operators.record_batches:ToRecordsOperator")
        return self._then(self._step("To Records", factory, PickledBytesTypeInfo()))

    def to_arrow(self, schema: Any = None) -> "ColumnStream":
        """The rows with another schema, for example with wider types; None: this stream."""
        return self if schema is None else to_columns(self, schema)

    def _arrow_schema(self) -> Any:
        return self.schema

    def _selected(self, names: list[str]) -> "ColumnStream":
        """The stream with only these columns, so that no others travel; itself if it has no others."""
        import pyarrow as pa

        names = names or self.schema.names[:1]  # rows without columns could not be counted
        if names == self.schema.names:
            return self
        rows = self._unpartitioned()
        positions = tuple(self.schema.get_field_index(name) for name in names)
        factory = OperatorFactory.of(
            "flowlet.operators.record_batches:SelectColumnsOperator", positions=positions, schema=self.schema
        )
        step = rows._step("Select", factory, PickledBytesTypeInfo(), is_internal=True)
        step.parallelism = rows._transformation.parallelism  # so that it is in the task of its input
        return self._columns(step, pa.schema([self.schema.field(name) for name in names]))

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

    def _columns(self, transformation: OperatorTransformation, schema: Any) -> "ColumnStream":
        self._environment._add_operator(transformation)
        return ColumnStream(self._environment, transformation, schema)


class KeyedColumnStream(KeyedStream):
    """A stream of columns keyed by one of them; null is a key, too.

    Aggregations skip nulls; a result is null until its key has had a value.
    """

    __slots__ = ("schema",)

    def __init__(self, origin: ColumnStream, key: ColumnKey, schema: Any) -> None:
        super().__init__(origin, key)
        self.schema = schema

    def window(self, window_assigner: Any) -> WindowedColumnStream:  # type: ignore[override]  # has the methods of the other, too
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
        return self._aggregated("Sum", Total(column, skips_nulls=True), emit, schema_with_sum(self.schema, column))

    def count(self, *, emit: str = EMIT_ROWS) -> ColumnStream:
        """The number of rows of each key so far, in the key's column and ``count``; ``emit``: see ``sum``."""
        import pyarrow as pa

        key = self._key_name
        if key == "count":
            raise JobGraphError(
                "count() adds a column 'count', but the key has that name; rename the key with map_batches(...)"
            )
        schema = pa.schema([self.schema.field(key), pa.field("count", pa.int64())])
        return self._columns(self._counted((key, "count"), emit), schema)

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

    @property
    def _key_name(self) -> str:
        name: str = self._key_selector.name
        return name

    def _extreme(self, method: str, position: int | str, emit: str) -> ColumnStream:
        column = check_comparable(self.schema, position, method)
        return self._aggregated(
            method.replace("_", " ").title(), extreme_of(method, column, skips_nulls=True), emit, self.schema
        )

    def _aggregated(self, name: str, function: Aggregation, emit: str, schema: Any) -> ColumnStream:
        emits_batches = emits_batches_of(name, emit)
        return self._columns(self._reduced(name, function, PickledBytesTypeInfo(), emits_batches=emits_batches), schema)

    def _columns(self, transformation: OperatorTransformation, schema: Any) -> ColumnStream:
        self._environment._add_operator(transformation)
        return ColumnStream(self._environment, transformation, schema)


def to_columns(stream: DataStream, schema: Any) -> ColumnStream:
    """See ``DataStream.to_arrow``."""
    known = declared_schema(stream.get_type()) if schema is None else check_schema(schema, "to_arrow")
    factory = OperatorFactory.of("flowlet.operators.record_batches:ToColumnsOperator", schema=known)
    rows = stream._then(stream._step("To Arrow", factory, PickledBytesTypeInfo()))
    return ColumnStream(stream._environment, rows._transformation, known)
