"""``DataStream``: the steps of a program.

Side:   pure.  Nothing runs before ``execute``; each call adds a ``Transformation``.
Source: PyFlink ``pyflink.datastream.data_stream``.
Absent: what ``flowlet.common.not_yet`` names: windows, project, cache, ``set_uid_hash``.
"""

import importlib
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self, overload

from flowlet.common.checks import is_name, is_whole_number
from flowlet.common.execution_config import ExecutionConfig, check_max_parallelism, check_parallelism
from flowlet.common.not_yet import missing_attribute
from flowlet.common.typeinfo import PickledBytesTypeInfo, TypeInformation, Types
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.datastream.aggregations import Aggregation, extreme_of
from flowlet.datastream.argument_checks import checked_function, checked_object, declared_type
from flowlet.datastream.closeable_iterator import CloseableIterator
from flowlet.datastream.connected_streams import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
from flowlet.datastream.connectors.base import Sink, SupportsGlobalCommitter
from flowlet.datastream.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    ReduceFunction,
    SinkFunction,
)
from flowlet.datastream.output_tag import OutputTag
from flowlet.datastream.slot_sharing_group import SlotSharingGroup
from flowlet.datastream.split_stream import SplitStream
from flowlet.datastream.state import MapStateDescriptor
from flowlet.errors import JobGraphError
from flowlet.graph.partitioner import Broadcast, Custom, Forward, Global, KeyGroups, Rebalance, Rescale, Shuffle
from flowlet.graph.partitioner import Partitioner as StreamPartitioner
from flowlet.graph.transformation import (
    ChainingStrategy,
    CollectTransformation,
    CountTransformation,
    FilterTransformation,
    FlatMapTransformation,
    GlobalCommitTransformation,
    MapTransformation,
    PartitionTransformation,
    PrintTransformation,
    ProcessTransformation,
    ReduceTransformation,
    SideOutputTransformation,
    SinkFunctionTransformation,
    SinkTransformation,
    SplitTransformation,
    SumTransformation,
    TimestampsAndWatermarksTransformation,
    Transformation,
    UnionTransformation,
)

if TYPE_CHECKING:
    from flowlet.datastream.column_stream import ColumnStream
    from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = [
    "BroadcastConnectedStream",
    "BroadcastStream",
    "CloseableIterator",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "KeyedStream",
    "SplitStream",
]

# Called on a stream without keys, these raise NotKeyedError, which says what to do.
_KEYED_METHODS = frozenset({"reduce", "sum", "min", "max", "min_by", "max_by", "count"})
# What keyed aggregations emit: a result per record, or one per key and chunk.
EMIT_ROWS, EMIT_BATCHES = "row", "batch"
# That module imports this one, so it is loaded by name.
_COLUMNS_MODULE = "flowlet.datastream.column_stream"


class NotKeyedError(JobGraphError, AttributeError):
    """A method of keyed streams was called on a stream without keys."""


class _Operator:
    """The settings of streams and sinks.

    Each setter returns its object.  It raises ``JobGraphError``, naming the operator, if the value is invalid, or if the object stands for
    a partitioning (``rebalance()``, ``key_by()``, ...), which has no settings.
    """

    __slots__ = ("_transformation",)

    def __init__(self, transformation: Transformation) -> None:
        self._transformation = transformation

    def name(self, name: str) -> Self:
        """Name the operator, for tasks, logs and metrics."""
        self._settings("name").name = _checked_text(name, "name")
        return self

    def uid(self, uid: str) -> Self:
        """Give the operator an id that survives changes of the program around it; unique in the job."""
        self._settings("uid").uid = _checked_text(uid, "uid")
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks of the operator."""
        transformation = self._settings("set_parallelism")
        check_parallelism(parallelism, f"operator {transformation.operator_name!r}: its")
        if transformation.is_non_parallel and parallelism != 1:
            raise JobGraphError(
                f"operator {transformation.operator_name!r} cannot run in parallel: its parallelism must be 1, got {parallelism}; "
                "set the parallelism of the operators behind it"
            )
        transformation.parallelism = parallelism
        return self

    def set_description(self, description: str) -> Self:
        """Describe the operator in the execution plan."""
        self._settings("set_description").description = _checked_text(description, "set_description")
        return self

    def disable_chaining(self) -> Self:
        """Run the operator in its own task."""
        self._settings("disable_chaining").chaining = ChainingStrategy.NEVER
        return self

    def slot_sharing_group(self, slot_sharing_group: str | SlotSharingGroup) -> Self:
        """Put the operator, and operators behind it without a group, into a slot sharing group."""
        transformation = self._settings("slot_sharing_group")
        if not isinstance(slot_sharing_group, SlotSharingGroup):
            slot_sharing_group = SlotSharingGroup(slot_sharing_group)
        transformation.slot_sharing_group = slot_sharing_group.get_name()
        return self

    def _settings(self, method: str) -> Transformation:
        """The transformation, if it stands for an operator."""
        if isinstance(self._transformation, UnionTransformation | SideOutputTransformation):
            what = "union" if isinstance(self._transformation, UnionTransformation) else "side output"
            raise JobGraphError(f"{method}() on a {what}, which is no operator; call it on the operator before or after it")
        if isinstance(self._transformation, PartitionTransformation):
            strategy = self._transformation.partitioner.ship_strategy
            raise JobGraphError(
                f"{method}() on a {strategy} partitioning, which is no operator; call it on the operator before or after the partitioning"
            )
        return self._transformation


class DataStream(_Operator):
    """A stream of records; its methods add operators and return new streams.  One thread."""

    __slots__ = ("_environment",)

    def __init__(self, environment: "StreamExecutionEnvironment", transformation: Transformation) -> None:
        super().__init__(transformation)
        self._environment = environment

    def get_name(self) -> str:
        """The name of the operator that makes this stream."""
        return self._settings("get_name").name

    def get_type(self) -> TypeInformation:
        """The declared type of the records; without one, any Python object."""
        return self._transformation.output_type

    def get_execution_environment(self) -> "StreamExecutionEnvironment":
        """The environment of this stream."""
        return self._environment

    def get_execution_config(self) -> ExecutionConfig:
        """The settings that operators inherit."""
        return self._environment.get_config()

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups: the highest parallelism to which the operator can be rescaled."""
        transformation = self._settings("set_max_parallelism")
        check_max_parallelism(max_parallelism, f"operator {transformation.operator_name!r}: its")
        if transformation.is_non_parallel and max_parallelism != 1:
            raise JobGraphError(f"operator {transformation.operator_name!r} cannot run in parallel: its max parallelism must be 1")
        transformation.max_parallelism = max_parallelism
        return self

    def force_non_parallel(self) -> Self:
        """Fix the parallelism of the operator at 1."""
        transformation = self._settings("force_non_parallel")
        transformation.parallelism = 1
        transformation.max_parallelism = 1
        transformation.is_non_parallel = True
        return self

    def set_buffer_timeout(self, timeout_millis: int) -> Self:
        """Limit how long records wait for their buffer to fill, in milliseconds; 0: they do not wait, -1: the environment's timeout."""
        transformation = self._settings("set_buffer_timeout")
        if not is_whole_number(timeout_millis) or timeout_millis < -1:
            raise JobGraphError(
                f"operator {transformation.operator_name!r}: its buffer timeout must be -1 (the environment's), 0 (none) or milliseconds, "
                f"got {timeout_millis!r}"
            )
        transformation.buffer_timeout_ms = None if timeout_millis == -1 else timeout_millis
        return self

    def start_new_chain(self) -> Self:
        """Run the operator in another task than its predecessor."""
        self._settings("start_new_chain").chaining = ChainingStrategy.HEAD
        return self

    def map(self, func: Callable[[Any], Any] | MapFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a function that returns one record for each record."""
        function = checked_function(func, MapFunction, "map", 1)
        return self._then(MapTransformation(name="Map", function=function, **self._inherited(declared_type(output_type))))

    def flat_map(self, func: Callable[[Any], Any] | FlatMapFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a function that returns an iterable of records for each record."""
        function = checked_function(func, FlatMapFunction, "flat_map", 1)
        return self._then(FlatMapTransformation(name="FlatMap", function=function, **self._inherited(declared_type(output_type))))

    def filter(self, func: Callable[[Any], Any] | FilterFunction) -> "DataStream":
        """Keep the records for which the function returns True."""
        function = checked_function(func, FilterFunction, "filter", 1)
        return self._then(FilterTransformation(name="Filter", function=function, **self._inherited(self.get_type())))

    def key_by(self, key_selector: Callable[[Any], Any] | KeySelector, key_type: TypeInformation | None = None) -> "KeyedStream":
        """Send all records with the same key to the same subtask.

        A key is None, a bool, number, str, bytes, date, time, datetime, timedelta, Decimal, Fraction, UUID or path; an Enum member; a numpy
        scalar; a tuple, list, frozenset or ``Row`` of keys; a frozen dataclass of keys, or an instance of any class of keys that has
        ``__eq__`` and ``__hash__`` and can be pickled.  Keys of different types differ, even if Python calls them equal (1, 1.0 and True).
        A key must not change.  Any other key fails the job at its first record, with the reason.

        Raises:
            JobGraphError: the selector cannot be called with one record, or needs ``open`` or ``close``, which are not called for it yet.
        """
        selector = checked_function(key_selector, KeySelector, "key_by", 1)
        _check_has_no_life_cycle(selector)
        if key_type is not None:
            declared_type(key_type)
        return KeyedStream(self, selector)

    def process(self, func: ProcessFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a process function; ``yield tag, value`` with an ``OutputTag`` emits to that side output."""
        function = checked_object(func, "process", ProcessFunction)
        return self._then(ProcessTransformation(name="Process", function=function, **self._inherited(declared_type(output_type))))

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> "DataStream":
        """Assign timestamps and emit watermarks, as the strategy says.  Raises JobGraphError if it is no strategy."""
        if not isinstance(watermark_strategy, WatermarkStrategy):
            raise JobGraphError(f"assign_timestamps_and_watermarks() needs a WatermarkStrategy, got {watermark_strategy!r}")
        inherited = self._inherited(self.get_type())
        # As in Flink, with the parallelism of the input: so no exchange lies between a source and its watermarks.
        inherited["parallelism"] = self._transformation.parallelism
        return self._then(TimestampsAndWatermarksTransformation(name="Timestamps/Watermarks", strategy=watermark_strategy, **inherited))

    def get_side_output(self, output_tag: OutputTag) -> "DataStream":
        """A side output of the operator that makes this stream.

        Raises:
            JobGraphError: it is no tag, or this stream is not made by an operator.
        """
        if not isinstance(output_tag, OutputTag):
            raise JobGraphError(f"get_side_output() needs an OutputTag, got {output_tag!r} of type {type(output_tag).__name__}")
        upstream = self._settings("get_side_output")
        side = SideOutputTransformation(
            name="Side Output", input=upstream, tag_id=output_tag.tag_id, output_type=output_tag.type_info, parallelism=upstream.parallelism
        )
        return DataStream(self._environment, side)

    def union(self, *streams: "DataStream") -> "DataStream":
        """Merge streams, without an order between them; a stream given twice counts twice.

        Raises:
            JobGraphError: an argument is no stream, belongs to another environment, or has another declared type.
        """
        for stream in streams:
            self._check_companion(stream, "union")
            if stream.get_type() != self.get_type():
                raise JobGraphError(f"union() needs streams of one type, got {self.get_type()} and {stream.get_type()}")
        if not streams:
            return self
        transformations = [self._transformation, *(stream._transformation for stream in streams)]
        return DataStream(self._environment, UnionTransformation(name="Union", streams=transformations, output_type=self.get_type()))

    @overload
    def connect(self, ds: "DataStream") -> ConnectedStreams: ...

    @overload
    def connect(self, ds: BroadcastStream) -> BroadcastConnectedStream: ...

    def connect(self, ds: "DataStream | BroadcastStream") -> ConnectedStreams | BroadcastConnectedStream:
        """Connect this stream and another one to one operator that sees the records of both.

        Every subtask of the operator sees all records of a ``BroadcastStream``, which ``broadcast(descriptor)`` makes.

        Raises:
            JobGraphError: it is no stream of the same environment.
        """
        if isinstance(ds, BroadcastStream):
            return BroadcastConnectedStream(self, ds, ds.broadcast_state_descriptors)
        self._check_companion(ds, "connect")
        return ConnectedStreams(self, ds)

    def split(self, output_selector: Callable[[Any], Any]) -> SplitStream:
        """Split the records by name, for ``SplitStream.select``; side outputs are the newer way.

        ``output_selector`` returns the names of a record: a callable, or an object with ``select(value)``.
        """
        if not callable(output_selector) and not callable(getattr(output_selector, "select", None)):
            raise JobGraphError(f"split() needs a callable or an object with select(value), got {output_selector!r}")
        transformation = SplitTransformation(name="Split", function=output_selector, **self._inherited(self.get_type()))
        return SplitStream(transformation, self._then(transformation).get_side_output)

    def to_arrow(self, schema: Any = None) -> "ColumnStream":
        """Convert the records to columns, on which the next operators work.  Not in PyFlink.

        ``schema`` is a ``pyarrow.Schema``; None: that of the declared type, a row or tuple of simple types.

        Raises:
            JobGraphError: there is no schema, and the type has none.
        """
        stream: ColumnStream = importlib.import_module(_COLUMNS_MODULE).to_columns(self, schema)
        return stream

    def rebalance(self) -> "DataStream":
        """Send each record to the next subtask in turn."""
        return self._partitioned(Rebalance())

    def rescale(self) -> "DataStream":
        """Send each record to the next of a few subtasks in turn, so that not every subtask talks to all others."""
        return self._partitioned(Rescale())

    def shuffle(self) -> "DataStream":
        """Send each record to a random subtask."""
        return self._partitioned(Shuffle())

    def global_(self) -> "DataStream":
        """Send all records to the first subtask."""
        return self._partitioned(Global())

    def partition_custom(
        self, partitioner: Callable[[Any, int], int] | Partitioner, key_selector: Callable[[Any], Any] | KeySelector
    ) -> "DataStream":
        """Send each record to the subtask ``partitioner(key, num_subtasks)``, or ``partitioner.partition(...)``."""
        if not callable(partitioner) and not callable(getattr(partitioner, "partition", None)):
            raise JobGraphError(
                f"partition_custom() needs a callable or an object with partition(key, num_partitions), got {partitioner!r}"
            )
        return self._partitioned(Custom(partitioner, checked_function(key_selector, KeySelector, "partition_custom", 1)))

    def forward(self) -> "DataStream":
        """Send records to the same subtask of the next operator, which must have the same parallelism."""
        return self._partitioned(Forward())

    @overload
    def broadcast(self) -> "DataStream": ...

    @overload
    def broadcast(
        self, broadcast_state_descriptor: MapStateDescriptor, *other_broadcast_state_descriptors: MapStateDescriptor
    ) -> BroadcastStream: ...

    def broadcast(
        self,
        broadcast_state_descriptor: MapStateDescriptor | None = None,
        *other_broadcast_state_descriptors: MapStateDescriptor,
    ) -> "DataStream | BroadcastStream":
        """Send every record to every subtask; with descriptors: to functions that keep what they say in broadcast states.

        Raises:
            JobGraphError: a descriptor is no ``MapStateDescriptor``, or two have the same name.
        """
        stream = self._partitioned(Broadcast())
        if broadcast_state_descriptor is None and not other_broadcast_state_descriptors:
            return stream
        descriptors = [broadcast_state_descriptor, *other_broadcast_state_descriptors]
        return BroadcastStream(stream, _checked_descriptors(descriptors))

    def print(self, sink_identifier: str | None = None) -> "DataStreamSink":
        """Print each record on the standard output of its TaskManager."""
        if sink_identifier is not None:
            _checked_text(sink_identifier, "print")
        return self._into(PrintTransformation(name="Print to Std. Out", identifier=sink_identifier, **self._inherited(self.get_type())))

    def sink_to(self, sink: Sink) -> "DataStreamSink":
        """Send each record to a sink."""
        if not isinstance(sink, Sink):
            raise JobGraphError(f"sink_to() needs a sink such as DiscardingSink(), got {sink!r} of type {type(sink).__name__}")
        written = SinkTransformation(name="Sink", sink=sink, **self._inherited(self.get_type()))
        target = self._into(written)
        if isinstance(sink, SupportsGlobalCommitter):
            output_type = Types.PICKLED_BYTE_ARRAY()
            commits = GlobalCommitTransformation(name="Sink", sink=sink, input=written, parallelism=1, output_type=output_type)
            self._environment._add_operator(commits)
        return target

    def add_sink(self, sink_func: SinkFunction | Callable[[Any], object] | Sink) -> "DataStreamSink":
        """Call a function with each record; sinks that PyFlink gives to ``add_sink``, such as ``JdbcSink``, are taken, too."""
        if isinstance(sink_func, Sink):
            return self.sink_to(sink_func)
        function = checked_function(sink_func, SinkFunction, "add_sink", 1)
        return self._into(SinkFunctionTransformation(name="Unnamed", function=function, **self._inherited(self.get_type())))

    def execute_and_collect(self, job_execution_name: str | None = None, limit: int | None = None) -> CloseableIterator | list[Any]:
        """Run the job now and return its records.

        Without ``limit``: an iterator, to be closed, best by a ``with`` statement.  With it: a list of at most that many records; then the
        job is cancelled.

        Raises:
            JobGraphError: the program or the limit is invalid.
            JobExecutionError: the job failed.
        """
        if limit is not None and (not is_whole_number(limit) or limit < 1):
            raise JobGraphError(f"execute_and_collect() needs a limit of 1 or more records, got {limit!r}")
        submitted = self._environment._submit(job_execution_name, CollectTransformation(name="Collect", input=self._transformation))
        values = CloseableIterator(submitted, self._environment._release)
        if limit is None:
            return values
        with values:
            return list(itertools.islice(values, limit))

    def _check_companion(self, stream: Any, method: str) -> None:
        if not isinstance(stream, DataStream) or stream._environment is not self._environment:
            raise JobGraphError(f"{method}() needs streams of the same environment, got {stream!r} of type {type(stream).__name__}")

    def _inherited(self, output_type: TypeInformation) -> dict[str, Any]:
        return {"input": self._transformation, "parallelism": self._environment.get_parallelism(), "output_type": output_type}

    def _then(self, transformation: Transformation) -> "DataStream":
        self._environment._add_operator(transformation)
        return DataStream(self._environment, transformation)

    def _into(self, transformation: Transformation) -> "DataStreamSink":
        self._environment._add_operator(transformation)
        return DataStreamSink(transformation)

    def _partitioned(self, partitioner: StreamPartitioner) -> "DataStream":
        return DataStream(self._environment, _partition(self, partitioner))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in _KEYED_METHODS:
                raise NotKeyedError(f"{name}() needs a keyed stream: call key_by(...) before it")
            raise missing_attribute(self, name)


class KeyedStream(DataStream):
    """A stream whose records with the same key are in the same subtask; made by ``key_by``.

    It is no operator: it has no name, parallelism or other settings, and its partitioning is fixed.
    """

    __slots__ = ("_origin",)

    def __init__(self, origin: DataStream, key_selector: Any) -> None:
        super().__init__(origin._environment, _partition(origin, KeyGroups(key_selector)))
        self._origin = origin

    def reduce(self, func: Callable[[Any, Any], Any] | ReduceFunction) -> DataStream:
        """Combine the records of each key: a result per record, or in BATCH mode one per key at the end."""
        function = checked_function(func, ReduceFunction, "reduce", 2)
        is_declared = isinstance(function, Aggregation)
        return self._then(
            ReduceTransformation(name="Reduce", function=function, is_declared=is_declared, **self._inherited(self.get_type()))
        )

    def sum(self, position_to_sum: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The first record of each key, its field replaced by the sum so far.

        Args:
            position_to_sum: position or name of the field; for records that are numbers, 0.
            emit: ``"row"``: one result per record; ``"batch"``: one per key and chunk.  The size of chunks depends on the network; the last
                result of each key does not.
        """
        _check_position("sum", position_to_sum)
        emits_batches = _emits_batches("sum", emit)
        return self._then(
            SumTransformation(name="Sum", position=position_to_sum, emits_batches=emits_batches, **self._inherited(self.get_type()))
        )

    def count(self, *, emit: str = EMIT_ROWS) -> DataStream:
        """Pairs of each key and the number of its records so far; ``emit``: see ``sum``.  Not in PyFlink."""
        return self._then(
            CountTransformation(name="Count", emits_batches=_emits_batches("count", emit), **self._inherited(PickledBytesTypeInfo()))
        )

    def min(self, position_to_min: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The first record of each key, its field replaced by the lowest value so far; arguments as for ``sum``."""
        return self._extreme("min", position_to_min, emit)

    def max(self, position_to_max: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The first record of each key, its field replaced by the highest value so far; arguments as for ``sum``."""
        return self._extreme("max", position_to_max, emit)

    def min_by(self, position_to_min_by: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The record of each key with the lowest value so far in a field, of equal ones the first; arguments as for ``sum``."""
        return self._extreme("min_by", position_to_min_by, emit)

    def max_by(self, position_to_max_by: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The record of each key with the highest value so far in a field, of equal ones the first; arguments as for ``sum``."""
        return self._extreme("max_by", position_to_max_by, emit)

    def process(self, func: KeyedProcessFunction | ProcessFunction, output_type: TypeInformation | None = None) -> DataStream:
        """As for any stream, with keys and timers."""
        function = checked_object(func, "process", KeyedProcessFunction, ProcessFunction)
        has_timers = getattr(type(function), "on_timer", None) not in (None, KeyedProcessFunction.on_timer)
        declared = self._inherited(declared_type(output_type))
        return self._then(ProcessTransformation(name="KeyedProcess", function=function, has_timers=has_timers, **declared))

    def key_by(self, key_selector: Callable[[Any], Any] | KeySelector, key_type: TypeInformation | None = None) -> "KeyedStream":
        """The records keyed in another way, which replaces this key."""
        return self._origin.key_by(key_selector, key_type)

    def _extreme(self, method: str, position: int | str, emit: str) -> DataStream:
        _check_position(method, position)
        function = extreme_of(method, position)
        name, emits_batches = method.replace("_", " ").title(), _emits_batches(method, emit)
        inherited = self._inherited(self.get_type())
        return self._then(ReduceTransformation(name=name, function=function, emits_batches=emits_batches, is_declared=True, **inherited))

    def _partitioned(self, partitioner: StreamPartitioner) -> DataStream:
        raise JobGraphError(
            f"a keyed stream keeps its partitioning, it cannot become {partitioner.ship_strategy}: "
            "partition before key_by(), or behind the next operator"
        )


class DataStreamSink(_Operator):
    """The end of a stream, whose settings can still be changed."""

    __slots__ = ()


def _partition(stream: DataStream, partitioner: StreamPartitioner) -> PartitionTransformation:
    upstream = stream._transformation
    return PartitionTransformation(name="Partition", input=upstream, partitioner=partitioner, output_type=upstream.output_type)


def _checked_descriptors(descriptors: list[Any]) -> list[MapStateDescriptor]:
    names = set()
    for each in descriptors:
        if not isinstance(each, MapStateDescriptor):
            raise JobGraphError(f"broadcast() needs a MapStateDescriptor for each state, got {each!r}")
        if each.ttl_config is not None:
            raise JobGraphError(f"broadcast state {each.name!r} cannot have a time to live: only keyed state can")
        if each.name in names:
            raise JobGraphError(f"broadcast() got two descriptors of the name {each.name!r}; give each state a name of its own")
        names.add(each.name)
    return descriptors


def _emits_batches(method: str, emit: Any) -> bool:
    if emit not in (EMIT_ROWS, EMIT_BATCHES):
        raise JobGraphError(f"{method}() emits {EMIT_ROWS!r} or {EMIT_BATCHES!r}, got emit={emit!r}")
    return bool(emit == EMIT_BATCHES)


def _check_position(method: str, position: Any) -> None:
    if not is_whole_number(position) and not is_name(position):
        raise JobGraphError(f"{method}() needs the position or the name of a field, got {position!r}")


def _check_has_no_life_cycle(selector: Any) -> None:
    if isinstance(selector, KeySelector) and (type(selector).open, type(selector).close) != (Function.open, Function.close):
        raise JobGraphError(
            f"key_by(): {type(selector).__name__} overrides open() or close(), which are not called for key selectors yet; "
            "prepare in __init__, or take the key from a field that a map() before it adds"
        )


def _checked_text(text: str, method: str) -> str:
    if not is_name(text):
        raise JobGraphError(f"{method}() needs a text that is not empty, got {text!r}")
    return text
