"""Features of PyFlink that this version lacks: the error for a missing name says which feature it belongs to.

Side:  pure.
Rules: such an attribute of an object is absent (``hasattr`` is False); the error is a ``FlowletError`` and an ``AttributeError``.
       Such a module, or name in a module, raises a ``FlowletError`` that is an ``ImportError``: Python would replace the text of an
       ``AttributeError`` by its own.
"""

from collections.abc import Callable
from typing import Any, Final

from flowlet.errors import FlowletError

__all__ = [
    "MISSING_MODULES",
    "MISSING_NAMES",
    "MissingImportError",
    "NotSupportedYetError",
    "check_module",
    "missing_attribute",
    "missing_names",
]

_STATE: Final = "this detail of state back ends cannot be set; leave it out"
_CHECKPOINTS: Final = "the storage of checkpoints is an option: set execution.checkpointing.dir in a Configuration"
_SHIPPING: Final = "files and requirements are not shipped yet; install them where the TaskManagers run"
_RESTARTS: Final = "restart strategies are options: set restart-strategy.type in a Configuration"
_CHANGELOG: Final = "changelogs of state are not supported yet; leave them out"
_FORMATS: Final = "this format is not supported yet; read lines with a FileSource and parse them in map(), or use the Parquet format"
_SOURCES: Final = "this source is not supported yet; use from_collection() or a SourceFunction"
_SINKS: Final = "a file sink cannot compact files yet; leave it out"
_OLD_SINKS: Final = "use FileSink, which has the same builders"
_JARS: Final = "nothing here runs in a Java virtual machine; use a SourceFunction, or map() with a client in Python"
_OPTIONS: Final = "typed options are not supported yet; set options by their names in a Configuration"

_FEATURES: Final = {
    "enable_changelog_state_backend": _CHANGELOG,
    "is_changelog_state_backend_enabled": _CHANGELOG,
    "get_metric_group": "PyFlink calls it get_metrics_group()",
    "set_restart_strategy": _RESTARTS,
    "get_restart_strategy": _RESTARTS,
    "add_python_file": _SHIPPING,
    "set_python_requirements": _SHIPPING,
    "add_python_archive": _SHIPPING,
    "set_python_executable": _SHIPPING,
    "register_cached_file": _SHIPPING,
    "add_jars": "jars cannot be used here: nothing runs in a Java virtual machine",
    "add_classpaths": "jars cannot be used here: nothing runs in a Java virtual machine",
    "cache": "cached streams are not supported yet; collect the records and use from_collection()",
}


MISSING_MODULES: Final = {
    f"flowlet.{name}": feature
    for feature, names in {
        _CHECKPOINTS: "datastream.checkpoint_storage",
        _SOURCES: "datastream.connectors.hybrid_source",
        _JARS: "datastream.connectors.cassandra datastream.connectors.dynamic_kafka datastream.connectors.elasticsearch"
        " datastream.connectors.kinesis datastream.connectors.pulsar"
        " datastream.connectors.rabbitmq java_gateway",
        _FORMATS: "datastream.formats.avro datastream.formats.json datastream.formats.orc",
        _OPTIONS: "common.config_options",
        _RESTARTS: "common.restart_strategy",
        "the Table API is not part of flowlet; use the DataStream API": "table",
    }.items()
    for name in names.split()
}

MISSING_NAMES: Final = {
    name: feature
    for feature, names in {
        _STATE: "CustomStateBackend MemorySize PredefinedOptions",
        _CHECKPOINTS: "CheckpointStorage CustomCheckpointStorage FileSystemCheckpointStorage JobManagerCheckpointStorage",
        _OPTIONS: "ConfigOption ConfigOptions",
        _RESTARTS: "RestartStrategies RestartStrategyConfiguration",
        _SINKS: "FileCompactStrategy FileCompactor",
        _OLD_SINKS: "StreamingFileSink",
        "splits are made by FileSource itself; leave it out": "FileEnumeratorProvider FileSplitAssignerProvider",
        "input dependency constraints have no effect in Flink, so they do not exist here; leave them out": "InputDependencyConstraint",
        "it wraps a Java object; use WatermarkStrategy.for_generator()": "AssignerWithPeriodicWatermarksWrapper",
    }.items()
    for name in names.split()
}


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
