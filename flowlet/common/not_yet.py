"""Names of PyFlink, of its earlier versions too, that this version lacks: the error for a missing name says what to use
instead.

Side:  pure.
Rules: such an attribute of an object is absent (``hasattr`` is False); the error is a ``FlowletError`` and an
       ``AttributeError``.  Such a module, or name in a module, raises a ``FlowletError`` that is an ``ImportError``:
       Python would replace the text of an ``AttributeError`` by its own.
"""

import importlib
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from flowlet.errors import FlowletError


def reasons_by_name(table: str) -> dict[str, str]:
    """Return the reason of each name, from a table of reasons with their names below, which are indented."""
    rows = re.findall(r"((?:\S.*\n)+)((?: .*\n)+)", table)
    return {name: " ".join(reason.split()) for reason, names in rows for name in names.split()}


# Names that PyFlink had before version 2, or Flink has, or that are not supported yet: attributes, modules and classes,
# and what to use in their place.
_INSTEAD: Final = reasons_by_name("""
PyFlink calls it get_metrics_group()
    get_metric_group
input formats are Java objects; use from_source() or add_source()
    create_input read_file flowlet.common.io
records are serialized by their declared types, or pickled; declare types
    serializer
jars cannot be used here: nothing runs in a Java virtual machine
    add_jars add_classpaths
cached streams are not supported yet; collect the records and use from_collection()
    cache CachedDataStream
use from_source(FileSource.for_record_stream_format(StreamFormat.text_line_format(), path).build(),
WatermarkStrategy.no_watermarks(), 'lines')
    read_text_file read_csv_file
use from_collection([...])
    from_elements from_parallel_collection
use from_sequence(start, end)
    generate_sequence
use add_source() with a SourceFunction that reads the socket
    socket_text_stream
event time needs no switch; call assign_timestamps_and_watermarks() and use windows of event time
    set_stream_time_characteristic get_stream_time_characteristic TimeCharacteristic
use get_execution_environment(), and the option flowlet.jobmanager for a cluster that runs already
    create_local_environment create_remote_environment
use the options restart-strategy.*, or set_restart_strategy() of the environment
    set_number_of_execution_retries get_number_of_execution_retries set_execution_retry_delay
there are no serializers of Java; records are serialized by their declared types, or pickled
    add_default_kryo_serializer register_type_with_kryo_serializer register_type register_pojo_type register_kryo_type
use set_runtime_mode(RuntimeExecutionMode...) of the environment
    set_execution_mode get_execution_mode ExecutionMode
use set_externalized_checkpoint_retention(ExternalizedCheckpointRetention...), as in PyFlink 2
    enable_externalized_checkpoints set_externalized_checkpoint_cleanup
use get_externalized_checkpoint_retention(), as in PyFlink 2
    get_externalized_checkpoint_cleanup
a restart always begins with the newest checkpoint; leave it out
    set_prefer_checkpoint_for_recovery is_prefer_checkpoint_for_recovery
use window(TumblingEventTimeWindows.of(...)), or another assigner of flowlet.datastream.window
    time_window
use window_all(TumblingEventTimeWindows.of(...)), or another assigner of flowlet.datastream.window
    time_window_all
use sink_to(FileSink.for_row_format(path, Encoder.simple_string_encoder()).build())
    write_as_text write_as_csv
use add_sink() with a SinkFunction that writes to the socket
    write_to_socket
use print()
    print_to_err
use execute_and_collect()
    collect
use WatermarkStrategy.for_bounded_out_of_orderness(...).with_timestamp_assigner(...) with
assign_timestamps_and_watermarks()
    assign_timestamps assign_ascending_timestamps AssignerWithPeriodicWatermarks AssignerWithPunctuatedWatermarks
    BoundedOutOfOrdernessTimestampExtractor AscendingTimestampExtractor
use reduce(), or aggregate() of windows
    fold
a job has no iterations; use a process function that keeps what it still needs as state
    iterate
nothing here runs in a Java virtual machine; use a SourceFunction, or map() with a client in Python
    flowlet.datastream.connectors.cassandra flowlet.datastream.connectors.dynamic_kafka flowlet.java_gateway
    flowlet.datastream.connectors.elasticsearch flowlet.datastream.connectors.kinesis
    flowlet.datastream.connectors.pulsar flowlet.datastream.connectors.rabbitmq
this format is not supported yet; read lines with a FileSource and parse them in map(), or use the Parquet format
    flowlet.datastream.formats.avro flowlet.datastream.formats.orc
the Table API is not part of flowlet; use the DataStream API
    flowlet.table StreamTableEnvironment TableEnvironment EnvironmentSettings BatchTableEnvironment TableConfig
there is one environment for BATCH and STREAMING mode: StreamExecutionEnvironment of flowlet.datastream
    flowlet.dataset
it wraps a Java object; use HashMapStateBackend() or EmbeddedRocksDBStateBackend()
    CustomStateBackend
it wraps a Java object; use FileSystemCheckpointStorage()
    CustomCheckpointStorage
a file sink cannot compact files yet; leave it out
    FileCompactStrategy FileCompactor
use FileSink, which has the same builders
    StreamingFileSink BucketingSink
use HashMapStateBackend(), and FileSystemCheckpointStorage() for checkpoints
    MemoryStateBackend FsStateBackend
it is called EmbeddedRocksDBStateBackend
    RocksDBStateBackend
it is called ExternalizedCheckpointRetention, as in PyFlink 2
    ExternalizedCheckpointCleanup
use StreamExecutionEnvironment of flowlet.datastream with set_runtime_mode(RuntimeExecutionMode.BATCH)
    ExecutionEnvironment
splits are made by FileSource itself; leave it out
    FileEnumeratorProvider FileSplitAssignerProvider
input dependency constraints have no effect in Flink, so they do not exist here; leave them out
    InputDependencyConstraint
it is the older interface; use KafkaSource and KafkaSink
    FlinkKafkaConsumer FlinkKafkaConsumerBase FlinkKafkaProducer FlinkKafkaProducerBase Semantic
Avro is not supported yet; read with pyarrow.parquet and from_arrow(), and write with ParquetBulkWriters
    AvroParquetReaders AvroParquetWriters ParquetColumnarRowInputFormat
it wraps a type of the Table API; use Types.PICKLED_BYTE_ARRAY()
    ExternalTypeInfo
files are read by lines; use StreamFormat.text_line_format() and parse them in map()
    BulkFormat CsvReaderFormat
it wraps a Java object; use WatermarkStrategy.for_generator()
    AssignerWithPeriodicWatermarksWrapper
""")
MISSING_MODULES: Final = {name: reason for name, reason in _INSTEAD.items() if name.startswith("flowlet.")}
MISSING_NAMES: Final = {name: reason for name, reason in _INSTEAD.items() if name[:1].isupper()}
# Where users look for names, in flowlet; the modules of users' own classes first.
_PUBLIC_MODULES: Final = """
    common datastream datastream.functions datastream.state datastream.window datastream.connectors.file_system
    datastream.connectors.kafka datastream.connectors.jdbc datastream.connectors.number_seq
    datastream.connectors.datagen datastream.connectors.hybrid_source datastream.connectors.write_ahead_sink
    datastream.connectors datastream.formats.csv datastream.formats.json_lines datastream.formats.json
    datastream.formats.parquet common.restart_strategy common.watermark_strategy common.serialization
    common.typeinfo common.watermark_generator metrics records errors
"""


class _JavaOnly:
    """An attribute that would be a Java object: asking for it is an error, so ``hasattr`` is False."""

    def __init__(self, instead: str) -> None:
        self._instead = instead
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise NotSupportedYetError(
            f"{owner.__name__!r} has no {self._name}(): there are no Java objects here; use {self._instead}"
        )


def java_only(instead: str) -> Any:
    """Make a class attribute in the place of a method that gives a Java object; its error tells what to use instead."""
    return _JavaOnly(instead)


class NotSupportedYetError(FlowletError, AttributeError):
    """PyFlink has this feature, this version has not; the message names it."""


def missing_attribute(owner: object, name: str) -> AttributeError:
    """Make the error for a missing attribute; it tells what to use instead if PyFlink has, or had, the attribute."""
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    feature = _INSTEAD.get(name)
    if feature is not None:
        return NotSupportedYetError(f"{message}: {feature}")
    return AttributeError(message, name=name, obj=owner)  # with these two Python adds the nearest name that there is


class ExplainsMissing:
    """A class of PyFlink's whose missing attributes are explained (``missing_attribute``)."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_attribute(self, name)


class MissingImportError(FlowletError, ModuleNotFoundError):
    """PyFlink has this module or name, this version has not; the message names the feature.

    Its ``name`` is None: with a name, ``from package import module`` would swallow it.
    """


def check_module(name: str) -> None:
    """Explain why there is no module of that name.  Raises MissingImportError: PyFlink has it."""
    if name in MISSING_MODULES:
        raise MissingImportError(f"there is no module {name!r}: {MISSING_MODULES[name]}")


def missing_names(module: str) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module; keep it from type checkers, which would believe that every name exists."""

    def missing_name(name: str) -> Any:
        if name in MISSING_NAMES:
            raise MissingImportError(f"{module!r} has no {name!r}: {MISSING_NAMES[name]}")
        # Only names of classes are looked for: Python itself asks a package for those of its modules.
        place = _place_of(name) if name[:1].isupper() else None
        if place is not None and place != module:
            raise MissingImportError(f"{module!r} has no {name!r}: {name} is in {place}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing_name


def explain_missing_names(module: str) -> None:
    """Explain names that the module lacks, from now on, as ``missing_names`` does; called by the module itself."""
    vars(sys.modules[module])["__getattr__"] = missing_names(module)


def _place_of(name: str) -> str | None:
    for module in _PUBLIC_MODULES.split():
        place = f"flowlet.{module}"
        try:
            found = importlib.import_module(place)
        except ImportError:  # of a package that an extra would install
            continue
        if name in getattr(found, "__all__", ()) or getattr(vars(found).get(name), "__module__", None) == place:
            return place
    return None
