"""Features of PyFlink that this version lacks: the error for a missing name says which feature it belongs to.

Side:  pure.
Rules: such an attribute of an object is absent (``hasattr`` is False); the error is a ``FlowletError`` and an ``AttributeError``.
       Such a module, or name in a module, raises a ``FlowletError`` that is an ``ImportError``: Python would replace the text of an
       ``AttributeError`` by its own.
"""

from collections.abc import Callable
from typing import Any, Final, NoReturn

from flowlet.errors import FlowletError

__all__ = [
    "MISSING_MODULES",
    "MISSING_NAMES",
    "MissingImportError",
    "NotSupportedYetError",
    "check_module",
    "java_only",
    "missing_attribute",
    "missing_names",
]

_STATE: Final = "it wraps a Java object; use HashMapStateBackend() or EmbeddedRocksDBStateBackend()"
_CHECKPOINTS: Final = "it wraps a Java object; use FileSystemCheckpointStorage()"
_INPUT_FORMATS: Final = "input formats are Java objects; use from_source() or add_source()"
_FORMATS: Final = "this format is not supported yet; read lines with a FileSource and parse them in map(), or use the Parquet format"
_SINKS: Final = "a file sink cannot compact files yet; leave it out"
_OLD_SINKS: Final = "use FileSink, which has the same builders"
_JARS: Final = "nothing here runs in a Java virtual machine; use a SourceFunction, or map() with a client in Python"

_FEATURES: Final = {
    "get_metric_group": "PyFlink calls it get_metrics_group()",
    "create_input": _INPUT_FORMATS,
    "serializer": "records are serialized by their declared types, or pickled; declare types",
    "add_jars": "jars cannot be used here: nothing runs in a Java virtual machine",
    "add_classpaths": "jars cannot be used here: nothing runs in a Java virtual machine",
    "cache": "cached streams are not supported yet; collect the records and use from_collection()",
}


MISSING_MODULES: Final = {
    f"flowlet.{name}": feature
    for feature, names in {
        _JARS: "datastream.connectors.cassandra datastream.connectors.dynamic_kafka datastream.connectors.elasticsearch"
        " datastream.connectors.kinesis datastream.connectors.pulsar"
        " datastream.connectors.rabbitmq java_gateway",
        _FORMATS: "datastream.formats.avro datastream.formats.orc",
        _INPUT_FORMATS: "common.io",
        "the Table API is not part of flowlet; use the DataStream API": "table",
    }.items()
    for name in names.split()
}

MISSING_NAMES: Final = {
    name: feature
    for feature, names in {
        _STATE: "CustomStateBackend",
        _CHECKPOINTS: "CustomCheckpointStorage",
        _SINKS: "FileCompactStrategy FileCompactor",
        _OLD_SINKS: "StreamingFileSink",
        "splits are made by FileSource itself; leave it out": "FileEnumeratorProvider FileSplitAssignerProvider",
        "input dependency constraints have no effect in Flink, so they do not exist here; leave them out": "InputDependencyConstraint",
        "it is the older interface; use KafkaSource and KafkaSink": "FlinkKafkaConsumer FlinkKafkaConsumerBase FlinkKafkaProducer"
        " FlinkKafkaProducerBase Semantic",
        "Avro is not supported yet; read with pyarrow.parquet and from_arrow(), and write with ParquetBulkWriters": (
            "AvroParquetReaders AvroParquetWriters ParquetColumnarRowInputFormat"
        ),
        "it wraps a type of the Table API; use Types.PICKLED_BYTE_ARRAY()": "ExternalTypeInfo",
        "files are read by lines; use StreamFormat.text_line_format() and parse them in map()": "BulkFormat CsvReaderFormat",
        "cached streams are not supported yet; collect the records and use from_collection()": "CachedDataStream",
        "it wraps a Java object; use WatermarkStrategy.for_generator()": "AssignerWithPeriodicWatermarksWrapper",
    }.items()
    for name in names.split()
}


class _JavaOnly:
    """An attribute that would be a Java object: asking for it is an error, so ``hasattr`` is False."""

    def __init__(self, instead: str) -> None:
        self._instead = instead
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        raise NotSupportedYetError(f"{owner.__name__!r} has no {self._name}(): there are no Java objects here; use {self._instead}")


def java_only(instead: str) -> Any:
    """A class attribute in the place of a method that gives a Java object; the error says what to use instead."""
    return _JavaOnly(instead)


class NotSupportedYetError(FlowletError, AttributeError):
    """PyFlink has this feature, this version has not; the message names it."""


def missing_attribute(owner: object, name: str) -> AttributeError:
    """The error for a missing attribute; names the feature if PyFlink has the attribute."""
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    feature = _FEATURES.get(name)
    return AttributeError(message) if feature is None else NotSupportedYetError(f"{message}: {feature}")


class MissingImportError(FlowletError, ModuleNotFoundError):
    """PyFlink has this module or name, this version has not; the message names the feature.

    Its ``name`` is None: with a name, ``from package import module`` would swallow it.
    """


def check_module(name: str) -> None:
    """Explain why there is no module of that name.  Raises MissingImportError: PyFlink has it."""
    if name in MISSING_MODULES:
        raise MissingImportError(f"there is no module {name!r}: {MISSING_MODULES[name]}")


def missing_names(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module; keep it from type checkers, which would believe that every name exists."""

    def missing_name(name: str) -> Any:
        if name in MISSING_NAMES:
            raise MissingImportError(f"{module!r} has no {name!r}: {MISSING_NAMES[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return missing_name
