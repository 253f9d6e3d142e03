"""``EnvironmentSources``: the methods of ``StreamExecutionEnvironment`` that begin a stream.

Side:   pure.
Source: PyFlink ``pyflink.datastream.stream_execution_environment``.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from flowlet.common.checks import check_kind, check_name
from flowlet.common.typeinfo import PickledBytesTypeInfo, TypeInformation, Types
from flowlet.common.values.conversion import element_converter
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.datastream.connectors.base import BuiltInSource, Source
from flowlet.datastream.connectors.number_seq import NumberSequenceSource
from flowlet.datastream.data_stream import DataStream
from flowlet.datastream.remote_gate import RemoteGate
from flowlet.datastream.user_functions.argument_checks import check_type_information
from flowlet.datastream.user_functions.source_function import SourceFunction
from flowlet.errors import JobGraphError
from flowlet.graph.transformation import GraphValue, OperatorFactory, SourceTransformation
from netstack.late import is_instance_of_late

if TYPE_CHECKING:
    from flowlet.datastream.column_stream import ColumnStream
    from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment


def _declared_elements(elements: list[Any], type_info: TypeInformation) -> list[Any]:
    """The elements of ``from_collection`` in the shape of their declared type, which they must have."""
    convert = element_converter(type_info)
    converted: list[Any] = []
    for element in elements:
        try:
            converted.append(convert(element))
        except TypeError as error:
            raise JobGraphError(
                f"from_collection(): element {len(converted)} is not a {type_info!r}: {error}"
            ) from None
    return converted


class EnvironmentSources:
    """A base class of ``StreamExecutionEnvironment`` alone."""

    def from_collection(self, collection: Iterable[Any], type_info: TypeInformation | None = None) -> DataStream:
        """The elements of a collection, which travel with the job; with a type they are brought into its shape.

        Raises:
            JobGraphError: it is no collection, or an element is not of the type.
        """
        if isinstance(collection, str | bytes) or not isinstance(collection, Iterable):
            raise JobGraphError(
                f"from_collection() needs a list of elements, got {collection!r} of type {type(collection).__name__}"
            )
        elements = list(collection)
        check_type_information(type_info, "from_collection")
        if type_info is not None:
            elements = _declared_elements(elements, type_info)
        operator = OperatorFactory.of("flowlet.operators.source_operator:CollectionSource", values=GraphValue.SOURCE)
        return self._source("Collection Source", elements, operator, type_info, is_parallel=False)

    def add_source(
        self, source_func: SourceFunction, source_name: str = "Custom Source", type_info: TypeInformation | None = None
    ) -> DataStream:
        """The records that a function emits; it may block, and runs in one subtask, on a thread of its own.

        Raises:
            JobGraphError: an argument is not of its kind.
        """
        check_kind(source_func, SourceFunction, "add_source() needs a SourceFunction object")
        check_name(source_name, "add_source() needs a name that is not empty")
        check_type_information(type_info, "add_source")
        operator = OperatorFactory.of("flowlet.connectors.blocking_source:BlockingSource", function=GraphValue.SOURCE)
        return self._source(source_name, source_func, operator, type_info, is_bounded=False, is_parallel=False)

    def from_source(
        self,
        source: Source,
        watermark_strategy: WatermarkStrategy,
        source_name: str,
        type_info: TypeInformation | None = None,
    ) -> DataStream:
        """The records of a source: a ``FileSource``, or one with ``create_reader(subtask, parallelism)`` and
        ``is_bounded``.

        Raises:
            JobGraphError: an argument is not of its kind.
        """
        if not isinstance(source, BuiltInSource) and not callable(getattr(source, "create_reader", None)):
            raise JobGraphError(
                f"from_source() needs a source such as FileSource, got {source!r} of type {type(source).__name__}"
            )
        check_name(source_name, "from_source() needs a name that is not empty")
        check_type_information(type_info, "from_source")
        needs = "from_source() needs a WatermarkStrategy such as WatermarkStrategy.no_watermarks()"
        check_kind(watermark_strategy, WatermarkStrategy, needs)
        runtime_source: OperatorFactory | GraphValue = GraphValue.SOURCE
        if isinstance(source, BuiltInSource):
            runtime_source = OperatorFactory.of(
                "flowlet.client.runtime_sources:runtime_source",
                source=GraphValue.SOURCE,
                name=GraphValue.STEP_NAME,
                parallelism=GraphValue.PARALLELISM,
            )
        # Lines of text have no timestamps to follow.
        has_timestamps = not is_instance_of_late(source, "flowlet.connectors.files.api", "FileSource")
        return self._source(
            source_name,
            source,
            runtime_source,
            type_info or getattr(source, "type_info", None),
            _needed(watermark_strategy, has_timestamps=has_timestamps),
            is_bounded=bool(getattr(source, "is_bounded", True)),
        )

    def from_sequence(self, from_: int, to: int) -> DataStream:
        """The whole numbers from ``from_`` to ``to``, both included: a ``NumberSequenceSource``; Flink's
        ``fromSequence``.

        Raises:
            JobGraphError: they are not whole numbers of 64 bits, or the first is above the last.
        """
        source = NumberSequenceSource(from_, to)
        return self.from_source(source, WatermarkStrategy.no_watermarks(), "Sequence Source", Types.LONG())

    def from_remote_gate(
        self,
        name: str,
        type_info: TypeInformation | None = None,
        producers: int | None = None,
        watermark_strategy: WatermarkStrategy | None = None,
        event_time: str | None = None,
        *,
        allow_pickle: bool = False,
    ) -> DataStream:
        """The records that producers outside the cluster, such as tasks of a Spark job, push into the gate ``name``.

        Not in PyFlink.

        Any number of producers find the gate by its name (``flowlet.ingest.open_gate``), at any time.  The gate ends
        after ``producers`` partitions, or earlier, when the job is told to finish it (``JobClient.finish_gate``).  A
        ``key_by`` right behind the gate routes at the producers, so that records travel only once.

        ``event_time`` names the column of its rows that says when they happened: a timestamp (in UTC), an instant, or
        milliseconds since 1970.  ``watermark_strategy`` needs no assigner then.  A record without a time ends its
        producer's attempt.

        A gate with a ``type_info`` reads only records of this type.  ``allow_pickle`` is needed without a type, and
        with one that contains ``PICKLED_BYTE_ARRAY``: records are then pickles, with which everyone who can open the
        gate can run code in the job.

        Raises:
            JobGraphError: an argument is not of its kind, or the type needs ``allow_pickle``.
        """
        check_type_information(type_info, "from_remote_gate")
        check_kind(watermark_strategy, WatermarkStrategy | None, "from_remote_gate() needs a WatermarkStrategy or None")
        output_type = type_info or PickledBytesTypeInfo()
        gate = RemoteGate(name, output_type, producers, event_time=event_time, allow_pickle=allow_pickle)
        operator = OperatorFactory.of("flowlet.client.runtime_sources:remote_gate_source", gate=GraphValue.SOURCE)
        strategy = None if watermark_strategy is None else _needed(watermark_strategy)
        return self._source(f"Gate {name}", gate, operator, output_type, strategy, is_bounded=False)

    def from_arrow(self, source: Any, schema: Any = None, source_name: str = "Arrow Source") -> "ColumnStream":
        """The rows of Arrow data as a stream of columns; not in PyFlink.

        The batches are not copied: the program must not write into their memory later, such as into a numpy array of
        which a batch was made.

        Args:
            source: a ``pyarrow.Table`` or ``RecordBatch``, an iterable of batches, or anything with
                ``__arrow_c_stream__`` (a ``RecordBatchReader``, a DataFrame of pandas or polars, a relation of DuckDB),
                which is read to its end here and travels with the job; or a function of subtask and parallelism that
                gives an iterable of record batches, and runs in each task.
            schema: of the batches; needed for a function and for an empty iterable.
            source_name: for people.

        Raises:
            JobGraphError: an argument is not of its kind.
        """
        from flowlet.datastream.column_stream import ColumnStream

        # And with it pyarrow, which most programs do not need.
        from flowlet.datastream.formats.arrow_schemas import arrow_data

        check_name(source_name, "from_arrow() needs a name that is not empty")
        data, known = arrow_data(source, schema)
        if callable(data):
            batches = OperatorFactory.of(
                "flowlet.operators.record_batches:ArrowSource", batches=GraphValue.SOURCE, schema=known
            )
        else:
            batches = OperatorFactory.of("flowlet.operators.record_batches:ArrowTableSource", table=GraphValue.SOURCE)
        stream = self._source(source_name, data, batches, None)
        return ColumnStream(stream.get_execution_environment(), stream._transformation, known)

    def _source(
        self,
        name: str,
        source: Any,
        operator: OperatorFactory | GraphValue,
        output_type: TypeInformation | None,
        strategy: WatermarkStrategy | None = None,
        *,
        is_bounded: bool = True,
        is_parallel: bool = True,
    ) -> DataStream:
        """The stream of a source, which ``operator`` makes when the job starts."""
        environment = cast("StreamExecutionEnvironment", self)
        factory = OperatorFactory.of(
            "flowlet.operators.source_operator:SourceOperator",
            source=operator,
            strategy=strategy,
            emits_watermarks=GraphValue.IS_STREAMING,
        )
        transformation = SourceTransformation(
            name=name,
            source=source,
            factory=factory,
            is_bounded=is_bounded,
            output_type=output_type or PickledBytesTypeInfo(),
            is_non_parallel=not is_parallel,
            parallelism=environment.get_parallelism() if is_parallel else 1,
        )
        return DataStream(environment, transformation)


def _needed(strategy: WatermarkStrategy, *, has_timestamps: bool = True) -> WatermarkStrategy | None:
    """The strategy; None if it does nothing."""
    return strategy if strategy.is_refined or (strategy.reads_timestamps and has_timestamps) else None
