"""``DataStream``: the steps of a program.

Side:   pure.  Nothing runs before ``execute``; each call adds a ``Transformation``.
Source: PyFlink ``pyflink.datastream.data_stream``.
Absent: the methods that ``flowlet.common.not_yet`` names: cache.
"""

import importlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, overload

from flowlet.common.checks import check_kind, check_name, check_number, is_name
from flowlet.common.execution_config import ExecutionConfig, check_max_parallelism, check_parallelism
from flowlet.common.job_client import JobClient, SubmittedJob
from flowlet.common.not_yet import missing_attribute, missing_names
from flowlet.common.typeinfo import RowTypeInfo, TypeInformation, Types
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.datastream.connectors.base import Sink, SupportsGlobalCommitter
from flowlet.datastream.functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    SinkFunction,
)
from flowlet.datastream.joins.window_join import CoGroupedStreams, JoinedStreams
from flowlet.datastream.output_tag import OutputTag
from flowlet.datastream.slot_sharing_group import SlotSharingGroup
from flowlet.datastream.state import MapStateDescriptor
from flowlet.datastream.user_functions.aggregations import Projection, projected_type
from flowlet.datastream.user_functions.argument_checks import (
    checked_function,
    checked_object,
    declared_type,
    result_type,
)
from flowlet.errors import FlowletError, JobGraphError, without_our_frames
from flowlet.graph.partitioner import Broadcast, Custom, Forward, Global, Rebalance, Rescale, Shuffle
from flowlet.graph.partitioner import Partitioner as StreamPartitioner
from flowlet.graph.transformation import (
    ChainingStrategy,
    CollectTransformation,
    GraphValue,
    OperatorFactory,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    Transformation,
    UnionTransformation,
    key_selector_of,
    selection_tag,
)

if TYPE_CHECKING:
    from flowlet.client.collect import CollectedValues
    from flowlet.client.running_job import RunningJob
    from flowlet.datastream.column_stream import ColumnStream
    from flowlet.datastream.keyed_stream import AllWindowedStream, KeyedStream, WindowedStream
    from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment
    from flowlet.datastream.window.window_assigners import WindowAssigner

__all__ = [
    "AllWindowedStream",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "CloseableIterator",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "KeyedStream",
    "SplitStream",
    "WindowedStream",
]


class CloseableIterator:
    """Iterates over the records of a stream; use it in a ``with`` statement.  One thread.

    Life cycle: if it cannot be made, because the job failed before its tasks ran, the job is still the caller's to
    release.  After the last record it waits for the job and closes itself; closed before that, it cancels the job.

    Args:
        submitted: the job, with the one edge to read.
        on_end: releases what the job holds; called once.
        arrow_schema: gives the ``pyarrow.Schema`` of the records, or raises JobGraphError: they have none.

    Raises: ``next()`` raises ``JobExecutionError`` if the job failed.
    """

    __slots__ = ("_arrow_schema", "_edge_id", "_is_closed", "_job", "_on_end", "_values")

    def __init__(
        self, submitted: SubmittedJob, on_end: "Callable[[RunningJob], None]", arrow_schema: Callable[[], Any]
    ) -> None:
        (self._edge_id,) = submitted.external_edges
        self._job = submitted.job
        self._on_end = on_end
        self._is_closed = False
        self._arrow_schema = arrow_schema
        self._values: CollectedValues | None = None
        # Else the last stage may begin much later: ``next`` waits for it, and the job can be watched.
        if not submitted.runs_in_stages:
            self._values = submitted.job.collect(self._edge_id)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        try:
            if self._values is None:
                self._values = self._job.collect(self._edge_id)
            return next(self._values)
        except StopIteration:
            self._finish()
            raise
        except FlowletError as error:
            self.close()
            raise without_our_frames(error) from error.__cause__
        except BaseException:
            self.close()
            raise

    def next(self) -> Any:
        """The next record.

        Raises:
            StopIteration: there are no more records.
            JobExecutionError: the job failed.
        """
        return next(self)

    def to_arrow(self, schema: Any = None) -> Any:
        """All records that were not taken yet as a ``pyarrow.Table``; waits for the end of the job.  Not in PyFlink.

        Columns stay columns on their way; single records are put into columns here.  Without ``schema`` the table has
        the schema of the stream of columns, or of the declared type.

        Raises:
            JobGraphError: the declared type has no schema of Arrow, and none was given; the iterator can still be read.
            TypeError: a record is not of the schema.
            JobExecutionError: the job failed.
        """
        import pyarrow as pa  # here, as most programs need no Arrow

        from flowlet.columns.arrow_batches import batch_of_records

        known = self._arrow_schema() if schema is None else schema
        if self._is_closed:
            raise FlowletError(
                "to_arrow() comes too late: the records were read to their end, or the iterator was closed"
            )
        try:
            if self._values is None:
                self._values = self._job.collect(self._edge_id)
            batches = [batch_of_records(chunk, known) for chunk in self._values.chunks()]
            table = pa.Table.from_batches(batches, known)
        except FlowletError as error:
            self.close()
            raise without_our_frames(error) from error.__cause__
        except BaseException:
            self.close()
            raise
        self._finish()
        return table

    def to_pandas(self, schema: Any = None) -> Any:
        """``to_arrow`` as a ``pandas.DataFrame``.  Not in PyFlink.

        Raises:
            FlowletError: pandas is not installed; the iterator can still be read.
            JobGraphError, TypeError, JobExecutionError: as ``to_arrow``.
        """
        if find_spec("pandas") is None:
            raise FlowletError("to_pandas() needs pandas: install it (pip install pandas), or use to_arrow()")
        return self.to_arrow(schema).to_pandas()

    @property
    def job_client(self) -> JobClient:
        """The client of the job, which the iterator still owns.  Not in PyFlink."""
        return JobClient(self._job, lambda _: None)

    def close(self) -> None:
        """Cancel the job if it still runs, and release what it holds; idempotent.

        In a forked child it does nothing.
        """
        if self._is_closed or self._job.is_inherited:  # inherited: the job belongs to the parent process
            return
        self._is_closed = True
        try:
            if not self._job.status().is_globally_terminal_state():
                self._job.cancel()
        except KeyboardInterrupt:
            self._job.cancel_after_interrupt()
            raise
        finally:
            self._on_end(self._job)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _finish(self) -> None:
        """Wait for the job after the last record: its failure concerns the reader, too."""
        self._is_closed = True
        try:
            self._job.wait()  # waits for the end of the job; ended by the job, a lost JobManager, or Ctrl-C
        finally:
            self._on_end(self._job)


_UID_HASH: Final = re.compile(r"[0-9A-Fa-f]{32}")


class StreamSettings:
    """The settings of streams and sinks.

    Each setter returns its object.  It raises ``JobGraphError``, naming the operator, if the value is invalid, or if
    the object stands for a partitioning (``rebalance()``, ``key_by()``, ...), which has no settings.
    """

    __slots__ = ("_transformation",)

    def __init__(self, transformation: Transformation) -> None:
        self._transformation = transformation

    def name(self, name: str) -> Self:
        """Name the operator, for tasks, logs and metrics."""
        self._settings("name").name = checked_text(name, "name")
        return self

    def uid(self, uid: str) -> Self:
        """Give the operator an id that survives changes of the program around it; unique in the job."""
        self._settings("uid").uid = checked_text(uid, "uid")
        return self

    def set_uid_hash(self, uid_hash: str) -> Self:
        """Give the operator this id, 32 hex digits, in place of an id from its uid or its position; unique in the
        job.
        """
        transformation = self._settings("set_uid_hash")
        if not is_name(uid_hash) or not _UID_HASH.fullmatch(uid_hash):
            raise JobGraphError(f"Node hash must be a 32 character String that describes a hex code. Found: {uid_hash}")
        transformation.uid_hash = uid_hash.lower()
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks of the operator."""
        transformation = self._settings("set_parallelism")
        check_parallelism(parallelism, f"operator {transformation.operator_name!r}: its")
        _check_can_be_parallel(transformation, "parallelism", parallelism)
        transformation.parallelism = parallelism
        return self

    def set_description(self, description: str) -> Self:
        """Describe the operator in the execution plan."""
        self._settings("set_description").description = checked_text(description, "set_description")
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
        slot_sharing_group.warn_of_resources()
        transformation.slot_sharing_group = slot_sharing_group.get_name()
        return self

    def _settings(self, method: str) -> Transformation:
        """The transformation.  Raises JobGraphError: it stands for no operator."""
        if isinstance(self._transformation, UnionTransformation | SideOutputTransformation):
            what = "union" if isinstance(self._transformation, UnionTransformation) else "side output"
            raise JobGraphError(
                f"{method}() on a {what}, which is no operator; call it on the operator before or after it"
            )
        if isinstance(self._transformation, PartitionTransformation):
            strategy = self._transformation.partitioner.ship_strategy
            raise JobGraphError(
                f"{method}() on a {strategy} partitioning, which is no operator; call it on the operator before or "
                "after the partitioning"
            )
        return self._transformation


class DataStreamSink(StreamSettings):
    """The end of a stream, whose settings can still be changed."""

    __slots__ = ()


def _check_can_be_parallel(transformation: Transformation, what: str, number: int) -> None:
    if transformation.is_non_parallel and number != 1:
        raise JobGraphError(
            f"operator {transformation.operator_name!r} cannot run in parallel: its {what} must be 1, got {number}; "
            "set the parallelism of the operators behind it"
        )


def checked_text(text: str, method: str) -> str:
    check_name(text, f"{method}() needs a text that is not empty")
    return text


class SplitStream:
    """A stream with names on its records; made by ``DataStream.split``."""

    __slots__ = ("_side_output", "_transformation")

    def __init__(
        self, transformation: OperatorTransformation, side_output: "Callable[[OutputTag], DataStream]"
    ) -> None:
        self._transformation = transformation
        self._side_output = side_output

    def select(self, *names: str) -> "DataStream":
        """The records with at least one of the names, each once.

        Raises JobGraphError if there is no name, or one is no text.
        """
        if not names or not all(map(is_name, names)):
            raise JobGraphError(f"select() needs one or more names, got {names!r}")
        selection = frozenset(names)
        factory = self._transformation.factory
        selections = factory.arguments["selections"]
        if selection not in selections:
            arguments = {**factory.arguments, "selections": (*selections, selection)}
            self._transformation.factory = OperatorFactory(factory.target, arguments)
        return self._side_output(OutputTag(selection_tag(selection), self._transformation.output_type))


class ConnectedStreams:
    """Two streams whose records go to one function; made by ``DataStream.connect``."""

    __slots__ = ("_then", "stream1", "stream2")

    def __init__(
        self,
        stream1: "DataStream",
        stream2: "DataStream",
        then: "Callable[[OperatorTransformation], DataStream] | None" = None,
    ) -> None:
        if stream1.get_execution_environment() is not stream2.get_execution_environment():
            raise JobGraphError("connect() needs two streams of the same environment")
        self.stream1 = stream1
        self.stream2 = stream2
        self._then = partial(DataStream, stream1._environment) if then is None else then

    def key_by(
        self,
        key_selector1: Callable[[Any], Any] | KeySelector,
        key_selector2: Callable[[Any], Any] | KeySelector,
        key_type: TypeInformation | None = None,
    ) -> "ConnectedStreams":
        """Key both streams: records of either stream with equal keys go to one subtask."""
        return ConnectedStreams(
            self.stream1.key_by(key_selector1, key_type), self.stream2.key_by(key_selector2, key_type)
        )

    def map(self, func: CoMapFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a function that returns one record, or None for none, for each record of either stream."""
        function = checked_object(func, "map", CoMapFunction)
        return self._connected("Co-Map", "flowlet.operators.co_functions:CoMapOperator", output_type, function=function)

    def flat_map(self, func: CoFlatMapFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a function that returns any number of records for each record of either stream."""
        function = checked_object(func, "flat_map", CoFlatMapFunction)
        operator = "flowlet.operators.co_functions:CoFlatMapOperator"
        return self._connected("Co-Flat Map", operator, output_type, function=function)

    def process(
        self, func: CoProcessFunction | KeyedCoProcessFunction, output_type: TypeInformation | None = None
    ) -> "DataStream":
        """Apply a process function; a ``KeyedCoProcessFunction`` requires that both streams are keyed.

        Where only one stream is keyed, its records go to the subtask of their key, and the function sees no key (as in
        PyFlink): so a keyed stream is connected to one that is ``broadcast()``.

        Raises:
            JobGraphError: it is no such function, or the function needs keys.
        """
        is_keyed = self._key_selectors is not None
        if isinstance(func, KeyedCoProcessFunction) and not is_keyed:
            raise JobGraphError(
                "process() with a KeyedCoProcessFunction needs both streams keyed; call key_by(selector1, selector2)"
            )
        function = checked_object(
            func, "process", KeyedCoProcessFunction if is_keyed else CoProcessFunction, CoProcessFunction
        )
        name = "Keyed Co-Process" if is_keyed else "Co-Process"
        operator = "flowlet.operators.process_operator:CoProcessOperator"
        return self._connected(name, operator, output_type, function=function, is_batch=GraphValue.IS_BATCH)

    @property
    def _key_selectors(self) -> tuple[Any, Any] | None:
        """The key selectors of both streams; None if a stream is not keyed: the function sees no keys then."""
        selectors = (self.stream1._key_selector, self.stream2._key_selector)
        return None if None in selectors else selectors

    def _connected(
        self, name: str, operator: str, output_type: TypeInformation | None, **arguments: Any
    ) -> "DataStream":
        factory = OperatorFactory.of(operator, key_selectors=self._key_selectors, **arguments)
        second_input = self.stream2._transformation
        return self._then(self.stream1._add(name, factory, declared_type(output_type), second_input=second_input))


class BroadcastStream:
    """A stream whose records every subtask of its reader sees, with the states that they change; made by
    ``DataStream.broadcast``.
    """

    __slots__ = ("broadcast_state_descriptors", "input_stream")

    def __init__(self, input_stream: "DataStream", broadcast_state_descriptors: "Sequence[MapStateDescriptor]") -> None:
        self.input_stream = input_stream
        self.broadcast_state_descriptors = list(broadcast_state_descriptors)


class BroadcastConnectedStream:
    """A stream beside a broadcast stream; made by ``DataStream.connect``."""

    __slots__ = ("broadcast_state_descriptors", "broadcast_stream", "non_broadcast_stream")

    def __init__(
        self,
        non_broadcast_stream: "DataStream",
        broadcast_stream: BroadcastStream,
        broadcast_state_descriptors: "Sequence[MapStateDescriptor]",
    ) -> None:
        if non_broadcast_stream._environment is not broadcast_stream.input_stream._environment:
            raise JobGraphError("connect() needs two streams of the same environment")
        self.non_broadcast_stream = non_broadcast_stream
        self.broadcast_stream = broadcast_stream
        self.broadcast_state_descriptors = list(broadcast_state_descriptors)

    def process(
        self, func: BroadcastProcessFunction | KeyedBroadcastProcessFunction, output_type: TypeInformation | None = None
    ) -> "DataStream":
        """Apply a function: a ``KeyedBroadcastProcessFunction`` exactly where the stream that is not broadcast is
        keyed.

        There is no order between the streams.  In BATCH mode the broadcast stream comes first, as in Flink.

        Raises:
            JobGraphError: it is no such function, or one for the other kind of stream.
        """
        stream = self.non_broadcast_stream
        is_keyed = stream._key_selector is not None
        if isinstance(func, BroadcastProcessFunction) and is_keyed:
            raise JobGraphError(
                "process() of a keyed stream and a broadcast stream needs a KeyedBroadcastProcessFunction"
            )
        if isinstance(func, KeyedBroadcastProcessFunction) and not is_keyed:
            raise JobGraphError(
                "process() with a KeyedBroadcastProcessFunction needs a keyed stream; call key_by(...) before "
                "connect(...)"
            )
        function = checked_object(
            func, "process", KeyedBroadcastProcessFunction if is_keyed else BroadcastProcessFunction
        )
        factory = OperatorFactory.of(
            "flowlet.operators.co_functions:BroadcastProcessOperator",
            function=function,
            descriptors=tuple(self.broadcast_state_descriptors),
            key_selector=stream._key_selector,
            is_batch=GraphValue.IS_BATCH,
        )
        name = "Co-Process-Broadcast-Keyed" if is_keyed else "Co-Process-Broadcast"
        second_input = self.broadcast_stream.input_stream._transformation
        return stream._then(name, factory, declared_type(output_type), second_input=second_input, inputs_read_last=(0,))


IN_EITHER_MODE: Final = {"is_batch": GraphValue.IS_BATCH}
# These modules import this one, so they are loaded when they are needed.  Their classes are part of this module, as in
# PyFlink.
_MODULES_BEHIND: Final = {
    "AllWindowedStream": "flowlet.datastream.keyed_stream",
    "ColumnStream": "flowlet.datastream.column_stream",
    "KeyedStream": "flowlet.datastream.keyed_stream",
    "WindowedStream": "flowlet.datastream.keyed_stream",
}


class NotKeyedError(JobGraphError, AttributeError):
    """A method of keyed streams was called on a stream without keys."""


class DataStream(StreamSettings):
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
        _check_can_be_parallel(transformation, "max parallelism", max_parallelism)
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
        """Limit how long records wait for their buffer to fill, in milliseconds; 0: they do not wait, -1: the
        environment's timeout.
        """
        transformation = self._settings("set_buffer_timeout")
        needs = "its buffer timeout must be -1 (the environment's), 0 (none) or milliseconds"
        check_number(timeout_millis, -1, f"operator {transformation.operator_name!r}: {needs}")
        transformation.buffer_timeout_ms = None if timeout_millis == -1 else timeout_millis
        return self

    def start_new_chain(self) -> Self:
        """Run the operator in another task than its predecessor."""
        self._settings("start_new_chain").chaining = ChainingStrategy.HEAD
        return self

    def map(self, func: Callable[[Any], Any] | MapFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a function that returns one record for each record."""
        function = checked_function(func, MapFunction, "map", 1)
        return self._with_function(
            "Map", "flowlet.operators.process_operator:MapOperator", function, result_type(output_type, func, "map")
        )

    def flat_map(
        self, func: Callable[[Any], Any] | FlatMapFunction, output_type: TypeInformation | None = None
    ) -> "DataStream":
        """Apply a function that returns an iterable of records for each record."""
        function = checked_function(func, FlatMapFunction, "flat_map", 1)
        results = result_type(output_type, func, "flat_map", is_iterated=True)
        return self._with_function("FlatMap", "flowlet.operators.process_operator:FlatMapOperator", function, results)

    def filter(self, func: Callable[[Any], Any] | FilterFunction) -> "DataStream":
        """Keep the records for which the function returns True."""
        function = checked_function(func, FilterFunction, "filter", 1)
        return self._with_function(
            "Filter",
            "flowlet.operators.process_operator:FilterOperator",
            function,
            self.get_type(),
            passes_records_on=True,
        )

    def project(self, *field_indexes: int) -> "DataStream":
        """Keep these fields of tuples, in this order.

        Raises JobGraphError: the declared type is no tuple, or has no such field.
        """
        output_type = projected_type(self.get_type(), field_indexes)
        return self._with_function(
            "Projection", "flowlet.operators.process_operator:MapOperator", Projection(field_indexes), output_type
        )

    def key_by(
        self, key_selector: Callable[[Any], Any] | KeySelector, key_type: TypeInformation | None = None
    ) -> "KeyedStream":
        """Send all records with one key to one subtask.

        A key is None, a bool, number, str, bytes, date, time, datetime, timedelta, Decimal, Fraction, UUID or path; an
        Enum member; a numpy scalar; a tuple, list, frozenset or ``Row`` of keys; a frozen dataclass of keys, or an
        instance of any class of keys that has ``__eq__`` and ``__hash__`` and can be pickled.  Keys of different types
        differ, even if Python calls them equal (1, 1.0 and True).  A key must not change.  Any other key fails the job
        at its first record, with the reason.

        Raises:
            JobGraphError: the selector cannot be called with one record.
        """
        selector = checked_function(key_selector, KeySelector, "key_by", 1)
        if key_type is not None:
            declared_type(key_type)
        stream: KeyedStream = _behind("KeyedStream")(self, selector, key_type)
        return stream

    def process(self, func: ProcessFunction, output_type: TypeInformation | None = None) -> "DataStream":
        """Apply a process function; ``yield tag, value`` with an ``OutputTag`` emits to that side output."""
        function = checked_object(func, "process", ProcessFunction)
        results = result_type(output_type, func, "process_element", is_iterated=True)
        return self._with_function(
            "Process", "flowlet.operators.process_operator:ProcessOperator", function, results, IN_EITHER_MODE
        )

    def window_all(self, window_assigner: "WindowAssigner[Any, Any]") -> "AllWindowedStream":
        """Put the records into windows that are not split by key: one subtask does all the work."""
        stream: AllWindowedStream = _behind("AllWindowedStream")(self, window_assigner)
        return stream

    def count_window_all(self, size: int, slide: int = 0) -> "AllWindowedStream":
        """Windows of ``size`` records; with ``slide`` a new one begins at every ``slide``-th record.

        Not in PyFlink.
        """
        assigner = importlib.import_module(_MODULES_BEHIND["AllWindowedStream"]).count_windows(size, slide)
        return self.window_all(assigner)

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> "DataStream":
        """Assign timestamps and emit watermarks, as the strategy says.  Raises JobGraphError if it is no strategy."""
        check_kind(
            watermark_strategy, WatermarkStrategy, "assign_timestamps_and_watermarks() needs a WatermarkStrategy"
        )
        factory = OperatorFactory.of(
            "flowlet.operators.event_time_stream:TimestampsAndWatermarksOperator",
            strategy=watermark_strategy,
            emits_watermarks=GraphValue.IS_STREAMING,
        )
        # As in Flink, with the parallelism of the input: so no exchange lies between a source and its watermarks.
        settings = {"passes_records_on": True, "parallelism": self._transformation.parallelism}
        return self._then("Timestamps/Watermarks", factory, self.get_type(), **settings)

    def get_side_output(self, output_tag: OutputTag) -> "DataStream":
        """A side output of the operator that makes this stream.

        Raises:
            JobGraphError: it is no tag, or this stream is not made by an operator.
        """
        check_kind(output_tag, OutputTag, "get_side_output() needs an OutputTag")
        upstream = self._settings("get_side_output")
        side = SideOutputTransformation(
            name="Side Output",
            input=upstream,
            tag_id=output_tag.tag_id,
            output_type=output_tag.type_info,
            parallelism=upstream.parallelism,
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
        return DataStream(
            self._environment, UnionTransformation(name="Union", streams=transformations, output_type=self.get_type())
        )

    @overload
    def connect(self, ds: "DataStream") -> ConnectedStreams: ...

    @overload
    def connect(self, ds: BroadcastStream) -> BroadcastConnectedStream: ...

    def connect(self, ds: "DataStream | BroadcastStream") -> ConnectedStreams | BroadcastConnectedStream:
        """Connect this stream and another one to one operator that sees the records of both.

        Every subtask of the operator sees all records of a ``BroadcastStream``, which ``broadcast(descriptor)`` makes.

        Raises:
            JobGraphError: it is no stream, or one of another environment.
        """
        if isinstance(ds, BroadcastStream):
            return BroadcastConnectedStream(self, ds, ds.broadcast_state_descriptors)
        self._check_companion(ds, "connect")
        return ConnectedStreams(self, ds)

    def join(self, other_stream: "DataStream") -> JoinedStreams:
        """Join with another stream by key within windows: ``.where(f).equal_to(g).window(assigner).apply(function)``.

        Not in PyFlink.
        """
        self._check_companion(other_stream, "join")
        return JoinedStreams(self, other_stream)

    def co_group(self, other_stream: "DataStream") -> CoGroupedStreams:
        """Join as ``join`` does, with a function that gets all records of a key and window at once.  Not in PyFlink."""
        self._check_companion(other_stream, "co_group")
        return CoGroupedStreams(self, other_stream)

    def split(self, output_selector: Callable[[Any], Any]) -> SplitStream:
        """Split the records by name, for ``SplitStream.select``; side outputs are the newer way.

        ``output_selector`` returns the names of a record: a callable, or an object with ``select(value)``.
        """
        if not callable(output_selector) and not callable(getattr(output_selector, "select", None)):
            raise JobGraphError(f"split() needs a callable or an object with select(value), got {output_selector!r}")
        factory = OperatorFactory.of(
            "flowlet.operators.co_functions:SplitOperator", function=output_selector, selections=()
        )
        step = self._add("Split", factory, self.get_type(), passes_records_on=True)
        return SplitStream(step, DataStream(self._environment, step).get_side_output)

    def to_arrow(self, schema: Any = None) -> "ColumnStream":
        """Convert the records to columns, on which the next operators work.  Not in PyFlink.

        ``schema`` is a ``pyarrow.Schema``; None: the schema of the declared type, a row or tuple of simple types.

        Raises:
            JobGraphError: there is no schema, and the type has none.
        """
        stream: ColumnStream = importlib.import_module(_MODULES_BEHIND["ColumnStream"]).to_columns(self, schema)
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
                "partition_custom() needs a callable or an object with partition(key, num_partitions), got "
                f"{partitioner!r}"
            )
        return self._partitioned(
            Custom(partitioner, checked_function(key_selector, KeySelector, "partition_custom", 1))
        )

    def forward(self) -> "DataStream":
        """Send the records of subtask n to subtask n of the next operator, whose parallelism must be equal."""
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
        """Send every record to every subtask; with descriptors, to functions that keep broadcast states of these
        descriptors.

        Raises:
            JobGraphError: a descriptor is no ``MapStateDescriptor``, or two share a name.
        """
        stream = self._partitioned(Broadcast())
        if broadcast_state_descriptor is None and not other_broadcast_state_descriptors:
            return stream
        descriptors = [broadcast_state_descriptor, *other_broadcast_state_descriptors]
        return BroadcastStream(stream, _checked_descriptors(descriptors))

    def print(self, sink_identifier: str | None = None) -> "DataStreamSink":
        """Print each record on the standard output of its TaskManager."""
        if sink_identifier is not None:
            checked_text(sink_identifier, "print")
        factory = OperatorFactory.of(
            "flowlet.sinks.function_sink:PrintSink", identifier=sink_identifier, type_info=self.get_type()
        )
        # PyFlink makes the text of a row in Python.
        is_fused = isinstance(self.get_type(), RowTypeInfo)
        return self._into("Print to Std. Out", factory, takes_unconverted=is_fused)

    def sink_to(self, sink: Sink) -> "DataStreamSink":
        """Send each record to a sink."""
        check_kind(sink, Sink, "sink_to() needs a sink such as DiscardingSink()")
        committables = Types.PICKLED_BYTE_ARRAY()  # committables are no records
        factory = OperatorFactory.of("flowlet.client.translate:sink_operator", sink=sink, type_info=self.get_type())
        written = self._add("Sink", factory, committables, label="{}: Writer", is_sink=True)
        if isinstance(sink, SupportsGlobalCommitter):
            commits = OperatorTransformation(
                name="Sink",
                label="{}: Global Committer",
                input=written,
                factory=OperatorFactory.of("flowlet.sinks.commit_runner:GlobalCommitOperator", sink=sink),
            )
            self._environment._add_operator(commits)
        return DataStreamSink(written)

    def add_sink(self, sink_func: SinkFunction | Callable[[Any], object] | Sink) -> "DataStreamSink":
        """Call a function with each record; sinks that PyFlink gives to ``add_sink``, such as ``JdbcSink``, are taken,
        too.
        """
        if isinstance(sink_func, Sink):
            return self.sink_to(sink_func)
        function = checked_function(sink_func, SinkFunction, "add_sink", 1)
        factory = OperatorFactory.of("flowlet.sinks.function_sink:FunctionSink", function=function)
        return self._into("Unnamed", factory)

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CloseableIterator | list[Any]:
        """Run the job now and return its records.

        Without ``limit``: an iterator, to be closed, best by a ``with`` statement.  With it: a list of at most that
        many records; then the job is cancelled.

        Raises:
            JobGraphError: the program or the limit is invalid.
            JobExecutionError: the job failed.
        """
        if limit is not None:
            check_number(limit, 1, "execute_and_collect() needs a limit of 1 or more records")
        collect = CollectTransformation(name="Collect", input=self._transformation)

        def read(submitted: SubmittedJob) -> CloseableIterator | list[Any]:
            values = CloseableIterator(submitted, self._environment._release, self._arrow_schema)
            if limit is None:
                return values
            with values:
                return list(itertools.islice(values, limit))

        return self._environment._start(read, job_execution_name, collect)

    def _arrow_schema(self) -> Any:
        """The ``pyarrow.Schema`` of the declared type.  Raises JobGraphError: it has none."""
        # And with it pyarrow, which most programs do not need.
        from flowlet.datastream.formats.arrow_schemas import declared_schema

        return declared_schema(self.get_type())

    def _check_companion(self, stream: Any, method: str) -> None:
        if not isinstance(stream, DataStream) or stream._environment is not self._environment:
            raise JobGraphError(
                f"{method}() needs streams of the same environment, got {stream!r} of type {type(stream).__name__}"
            )

    @property
    def _key_selector(self) -> Any:
        """The key selector that ``key_by`` was given; None: the stream is not keyed."""
        return key_selector_of(self._transformation)

    def _add(
        self, name: str, factory: OperatorFactory, output_type: TypeInformation, **settings: Any
    ) -> OperatorTransformation:
        """Add an operator that reads this stream; ``settings``: further fields of its transformation."""
        settings = {"input": self._transformation, "parallelism": self._environment.get_parallelism(), **settings}
        step = OperatorTransformation(name=name, factory=factory, output_type=output_type, **settings)
        self._environment._add_operator(step)
        return step

    def _then(self, name: str, factory: OperatorFactory, output_type: TypeInformation, **settings: Any) -> "DataStream":
        return DataStream(self._environment, self._add(name, factory, output_type, **settings))

    def _into(self, name: str, factory: OperatorFactory, **settings: Any) -> "DataStreamSink":
        return DataStreamSink(self._add(name, factory, self.get_type(), label="Sink: {}", is_sink=True, **settings))

    def _with_function(
        self,
        name: str,
        operator: str,
        function: Any,
        output_type: TypeInformation,
        arguments: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> "DataStream":
        """The stream behind an operator that calls a user's function with each record."""
        factory = OperatorFactory.of(operator, function=function, key_selector=self._key_selector, **(arguments or {}))
        settings = {"takes_single_records": True, "takes_unconverted": True, **settings}
        return self._then(name, factory, output_type, **settings)

    def _partitioned(self, partitioner: StreamPartitioner) -> "DataStream":
        return DataStream(self._environment, partition(self, partitioner))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            # A method of keyed streams alone; the error names the remedy.
            if not name.startswith("_") and hasattr(_behind("KeyedStream"), name):
                raise NotKeyedError(f"{name}() needs a keyed stream: call key_by(...) before it")
            raise missing_attribute(self, name)


def partition(stream: DataStream, partitioner: StreamPartitioner) -> PartitionTransformation:
    upstream = stream._transformation
    return PartitionTransformation(
        name="Partition", input=upstream, partitioner=partitioner, output_type=upstream.output_type
    )


def _checked_descriptors(descriptors: list[Any]) -> list[MapStateDescriptor]:
    names = set()
    for each in descriptors:
        check_kind(each, MapStateDescriptor, "broadcast() needs a MapStateDescriptor for each state")
        if each.ttl_config is not None:
            raise JobGraphError(f"broadcast state {each.name!r} cannot have a time to live: only keyed state can")
        if each.name in names:
            raise JobGraphError(
                f"broadcast() got two descriptors of the name {each.name!r}; give each state a name of its own"
            )
        names.add(each.name)
    return descriptors


def _behind(name: str) -> Any:
    return getattr(importlib.import_module(_MODULES_BEHIND[name]), name)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES_BEHIND:
            return _behind(name)
        return missing_names(__name__)(name)
