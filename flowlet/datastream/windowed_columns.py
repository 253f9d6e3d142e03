"""Windows of streams of columns.

Side:       pure.  Nothing runs before ``execute``.
Rules:      functions of records (``reduce``, ``aggregate``, ``apply``, ``process``), triggers and evictors work as on
            any stream: then the rows become records.
Source:     PyFlink ``WindowedStream``, ``AllWindowedStream``; ``agg``: pandas' named aggregation.
"""

import operator
from typing import TYPE_CHECKING, Any

from flowlet.common.checks import check_kind
from flowlet.common.time import Length, millis_of
from flowlet.common.typeinfo import PickledBytesTypeInfo
from flowlet.datastream.data_stream import DataStream
from flowlet.datastream.formats.window_checks import checked_aggregates, window_shape
from flowlet.datastream.output_tag import OutputTag
from flowlet.datastream.windowed_stream import AllWindowedStream, WindowedStream
from flowlet.errors import JobGraphError
from flowlet.graph.partitioner import Global, KeyGroups
from flowlet.graph.transformation import GraphValue, OperatorFactory
from flowlet.kernels.windows.columnar_windows import WINDOW_END, WINDOW_START, WindowedAggregation
from flowlet.kernels.windows.local_windows import PartsLayout
from flowlet.keys.column_key import ColumnKey

if TYPE_CHECKING:
    from flowlet.datastream.column_stream import ColumnStream

__all__ = ["WindowedColumnStream"]


class WindowedColumnStream:
    """A stream of columns cut into windows; made by ``window`` and ``window_all``.

    Results are columns: the key, ``window_start``, ``window_end`` (exclusive, both without a time zone), and the
    aggregations.  Their event time is the last millisecond of the window.
    """

    __slots__ = ("_assigner", "_key", "_late_tag", "_lateness_ms", "_stream")

    def __init__(self, stream: "ColumnStream", key: str | None, assigner: Any) -> None:
        self._stream = stream
        self._key = key
        self._assigner = assigner
        self._lateness_ms = 0
        self._late_tag: OutputTag | None = None

    def allowed_lateness(self, time_ms: int | Length) -> "WindowedColumnStream":
        """Take rows up to this long behind the end of their window; the results of all windows that a batch changes are
        emitted again.
        """
        self._lateness_ms = millis_of(time_ms, "allowed_lateness()", takes_number=True, at_least_ms=0)
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> "WindowedColumnStream":
        """Send rows that are too late for all their windows to a side output; else they are counted and dropped."""
        check_kind(output_tag, OutputTag, "side_output_late_data() needs an OutputTag")
        self._late_tag = output_tag
        return self

    def agg(self, **aggregations: Any) -> "ColumnStream":
        """Several aggregations at once: ``agg(total=("amount", "sum"), mean=("amount", "mean"), n="count")``.

        Args:
            aggregations: for each column of results a column and one of ``sum``, ``mean``, ``min``, ``max``, ``count``
                (of values that are not null), ``first`` and ``last`` (by event time); or ``"count"``, of rows.

        Nulls are left out; a window without a value has a null.  Sums of integers are int64, and fail the job where
        that is too small.

        Raises:
            JobGraphError: a column is missing or of a type that cannot be aggregated so, or the windows are of another
                kind.
        """
        import pyarrow as pa

        shape, stream = window_shape(self._assigner), self._stream
        taken = (WINDOW_START, WINDOW_END) if self._key is None else (self._key, WINDOW_START, WINDOW_END)
        if self._key in (WINDOW_START, WINDOW_END):
            raise JobGraphError(
                f"agg(): the results have a column {self._key!r}, as the key is called; rename the key by "
                "map_batches(...)"
            )
        aggregates = checked_aggregates(stream.schema, aggregations, taken)
        if not shape.is_event_time and (self._lateness_ms or self._late_tag is not None):
            raise JobGraphError(
                "windows by the clock have no late rows; leave allowed_lateness() and side_output_late_data() out"
            )
        key_type = None if self._key is None else stream.schema.field(self._key).type
        if key_type is not None and pa.types.is_dictionary(key_type):
            key_type = key_type.value_type
        aggregation = WindowedAggregation(shape, aggregates, self._key, key_type, self._lateness_ms)
        if self._late_tag is None and aggregation.can_be_local:
            return self._in_two_steps(aggregation, stream)
        if self._late_tag is None:
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
        from flowlet.datastream.formats.arrow_schemas import column_of

        name = column_of(self._stream.schema, column, kind)
        return self.agg(**{name: (name, kind)})

    def _in_two_steps(self, aggregation: WindowedAggregation, rows: "ColumnStream") -> "ColumnStream":
        """Parts are made of the rows where these are, and only the parts travel."""
        rows, layout = rows._unpartitioned(), PartsLayout(aggregation, rows.schema)
        factory = OperatorFactory.of(
            "flowlet.windows.window_columns_operator:LocalWindowColumnsOperator",
            aggregation=aggregation,
            schema=rows.schema,
            layout=layout,
        )
        step = rows._step("Local Window", factory, PickledBytesTypeInfo(), is_internal=True)
        step.parallelism = rows._transformation.parallelism  # so that it is in the task of its input
        return self._aggregated(aggregation, rows._columns(step, layout.schema), layout)

    def _aggregated(
        self, aggregation: WindowedAggregation, rows: "ColumnStream", layout: PartsLayout | None = None
    ) -> "ColumnStream":
        factory = OperatorFactory.of(
            "flowlet.windows.window_columns_operator:WindowColumnsOperator",
            aggregation=aggregation,
            schema=rows.schema,
            late_tag=None if self._late_tag is None else self._late_tag.tag_id,
            layout=layout,
            is_batch=GraphValue.IS_BATCH,
        )
        sent = rows._partitioned(Global() if self._key is None else KeyGroups(ColumnKey(self._key)))
        step = sent._step("Window All" if self._key is None else "Window", factory, PickledBytesTypeInfo())
        if self._key is None:
            step.parallelism = 1
            step.max_parallelism = 1
            step.is_non_parallel = True
        return rows._columns(step, aggregation.output_schema())

    # -- as records

    def trigger(self, trigger: Any) -> Any:
        """The windows of the rows as records, with this trigger: see ``WindowedStream``."""
        return self._records().trigger(trigger)

    def evictor(self, evictor: Any) -> Any:
        """The windows of the rows as records, with this evictor: see ``WindowedStream``."""
        return self._records().evictor(evictor)

    def reduce(self, *args: Any, **named: Any) -> DataStream:
        """``WindowedStream.reduce`` of the rows as records."""
        return self._records().reduce(*args, **named)

    def aggregate(self, *args: Any, **named: Any) -> DataStream:
        """``WindowedStream.aggregate`` of the rows as records."""
        return self._records().aggregate(*args, **named)

    def apply(self, *args: Any, **named: Any) -> DataStream:
        """``WindowedStream.apply`` of the rows as records."""
        return self._records().apply(*args, **named)

    def process(self, *args: Any, **named: Any) -> DataStream:
        """``WindowedStream.process`` of the rows as records."""
        return self._records().process(*args, **named)

    def _records(self) -> WindowedStream | AllWindowedStream:
        rows = self._stream.to_records()
        stream: WindowedStream | AllWindowedStream
        if self._key is None:
            stream = rows.window_all(self._assigner)
        else:
            stream = rows.key_by(operator.itemgetter(self._key)).window(self._assigner)
        if self._lateness_ms:
            stream = stream.allowed_lateness(self._lateness_ms)
        return stream if self._late_tag is None else stream.side_output_late_data(self._late_tag)
