"""Features of PyFlink that this version lacks are absent, and the error names the feature and a way out."""

import ast
import importlib
import importlib.machinery
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flowlet
from flowlet.common import RowKind, Types
from flowlet.common.not_yet import NotSupportedYetError, missing_attribute
from flowlet.datastream import OutputTag, StreamExecutionEnvironment
from flowlet.datastream.connectors.file_system import FileSink
from flowlet.datastream.connectors.kafka import KafkaSink
from flowlet.datastream.slot_sharing_group import MemorySize
from flowlet.errors import FlowletError

PUBLIC = {"flowlet", "flowlet.common", "flowlet.datastream", "flowlet.datastream.connectors"} | {
    f"flowlet.{name}"
    for name in ("datastream.formats", "datastream.window", "ingest", "metrics", "spark", "state_reader", "testing")
}


def environment() -> Any:
    return StreamExecutionEnvironment()


def stream() -> Any:
    return environment().from_collection([1])


def test_a_later_feature_is_named_and_absent() -> None:
    owner = stream()

    with pytest.raises(NotSupportedYetError, match=r"no attribute 'cache': cached streams .*yet"):
        owner.cache  # noqa: B018
    assert not hasattr(owner, "cache")


def test_a_name_that_pyflink_has_not_either_is_an_ordinary_error() -> None:
    error = missing_attribute(3, "window_nothing")

    assert type(error) is AttributeError
    assert str(error) == "'int' object has no attribute 'window_nothing'"


@pytest.mark.parametrize(
    ("make", "name", "instead"),
    [
        (environment, "read_text_file", r"use from_source\(FileSource.for_record_stream_format\("),
        (environment, "from_elements", r"use from_collection\("),
        (environment, "generate_sequence", r"use from_sequence\("),
        (environment, "set_stream_time_characteristic", "event time needs no switch"),
        (environment, "create_input", r"use from_source\(\) or add_source\(\)"),
        (lambda: environment().get_config(), "register_type_with_kryo_serializer", "no serializers of Java"),
        (lambda: environment().get_config(), "set_number_of_execution_retries", "use the options restart-strategy"),
        (
            lambda: environment().get_checkpoint_config(),
            "enable_externalized_checkpoints",
            "use set_externalized_checkpoint_retention",
        ),
        (
            lambda: environment().get_checkpoint_config(),
            "set_prefer_checkpoint_for_recovery",
            "begins with the newest checkpoint",
        ),
        (stream, "time_window_all", r"use window_all\(TumblingEventTimeWindows.of"),
        (stream, "write_as_text", r"use sink_to\(FileSink.for_row_format\("),
        (stream, "assign_ascending_timestamps", r"use WatermarkStrategy.for_bounded_out_of_orderness"),
        (stream, "iterate", "a job has no iterations"),
    ],
)
def test_a_name_of_an_earlier_pyflink_says_what_to_call_now(make: Callable[[], Any], name: str, instead: str) -> None:
    owner = make()

    reason = f"{type(owner).__name__}' object has no attribute '{name}': .*{instead}"
    with pytest.raises(NotSupportedYetError, match=reason):
        getattr(owner, name)
    assert not hasattr(owner, name)


def test_python_can_add_the_nearest_name_of_a_slip() -> None:
    """Python's ``Did you mean`` needs the object and the name in the error."""
    owner = environment()

    with pytest.raises(AttributeError) as raised:
        owner.from_colection  # noqa: B018  # the slip

    assert (raised.value.obj, raised.value.name) == (owner, "from_colection")


def test_the_connectors_that_programs_need_are_in_one_place() -> None:
    from flowlet.datastream import connectors

    needed = {"FileSource", "FileSink", "KafkaSource", "KafkaSink", "JdbcSink"}
    needed |= {"HybridSource", "NumberSequenceSource", "DataGeneratorSource"}
    assert needed <= set(dir(connectors))
    assert needed <= set(vars(connectors)["__all__"])


def test_a_package_is_public_or_says_that_it_is_internal() -> None:
    root = Path(flowlet.__file__).parent
    packages = {".".join(path.parent.relative_to(root.parent).parts): path for path in root.rglob("__init__.py")}

    internal = {
        name
        for name, path in packages.items()
        if "Internal: not a public API" in (ast.get_docstring(ast.parse(path.read_text())) or "")
    }

    assert internal == packages.keys() - PUBLIC


def test_the_error_is_of_both_trees() -> None:
    """``except FlowletError`` catches it, and ``hasattr`` does."""
    assert issubclass(NotSupportedYetError, FlowletError)
    assert issubclass(NotSupportedYetError, AttributeError)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (
            "from flowlet.datastream import DataStream, CustomCheckpointStorage",
            (
                "'flowlet.datastream' has no 'CustomCheckpointStorage': it wraps a Java object; use "
                "FileSystemCheckpointStorage"
            ),
        ),
        ("from flowlet.datastream.connectors.file_system import FileCompactor", "a file sink cannot compact files yet"),
        ("from flowlet.datastream.connectors.pulsar import PulsarSource", "Java virtual machine; use a SourceFunction"),
        ("from flowlet.datastream.connectors.kafka import FlinkKafkaConsumer", "older interface; use KafkaSource"),
        ("from flowlet.common.typeinfo import ExternalTypeInfo", "use Types.PICKLED_BYTE_ARRAY"),
        ("from flowlet.table import TableEnvironment", "use the DataStream API"),
        (
            "from flowlet.datastream import TimeCharacteristic",
            "event time needs no switch; call assign_timestamps_and_watermarks",
        ),
        ("from flowlet.datastream.connectors import StreamingFileSink", "use FileSink, which has the same builders"),
        (
            "from flowlet.datastream.connectors import FlinkKafkaProducer",
            "older interface; use KafkaSource and KafkaSink",
        ),
        (
            "from flowlet.datastream import FsStateBackend",
            r"use HashMapStateBackend\(\), and FileSystemCheckpointStorage",
        ),
        (
            "from flowlet.datastream.state_backend import RocksDBStateBackend",
            "it is called EmbeddedRocksDBStateBackend",
        ),
        (
            "from flowlet.datastream import ExternalizedCheckpointCleanup",
            "it is called ExternalizedCheckpointRetention",
        ),
        (
            "from flowlet.dataset import ExecutionEnvironment",
            "one environment for BATCH and STREAMING mode: StreamExecutionEnvironment",
        ),
        ("from flowlet.datastream import ExecutionEnvironment", r"with set_runtime_mode\(RuntimeExecutionMode.BATCH\)"),
        ("from flowlet.datastream import StreamTableEnvironment", "the Table API is not part of flowlet"),
        ("from flowlet import StreamExecutionEnvironment", "StreamExecutionEnvironment is in flowlet.datastream"),
        ("from flowlet.datastream import FileSink", "FileSink is in flowlet.datastream.connectors.file_system"),
        ("from flowlet.datastream import KafkaSource", "KafkaSource is in flowlet.datastream.connectors.kafka"),
        ("from flowlet.datastream import RestartStrategies", "RestartStrategies is in flowlet.common"),
        ("from flowlet.datastream import ValueStateDescriptor", "ValueStateDescriptor is in flowlet.datastream.state"),
        (
            "from flowlet.datastream import TumblingEventTimeWindows",
            "TumblingEventTimeWindows is in flowlet.datastream.window",
        ),
        ("from flowlet.common import JsonLinesEncoder", "JsonLinesEncoder is in flowlet.datastream.formats.json_lines"),
        (
            "from flowlet.common.serialization import JsonRowDeserializationSchema",
            "is in flowlet.datastream.formats.json",
        ),
    ],
)
def test_an_import_of_a_later_feature_says_what_comes_and_what_to_use(statement: str, reason: str) -> None:
    with pytest.raises(ImportError, match=reason) as raised:
        exec(statement, {})  # the statements are those above
    assert isinstance(raised.value, FlowletError)


@pytest.mark.parametrize(
    "statement",
    [
        "import flowlet.nothing",
        "from flowlet.datastream import Nothing",
        "from flowlet import nothing",
        "from flowlet import Nothing",
        "from flowlet.datastream import Final",
    ],
)
def test_an_import_that_pyflink_has_not_either_is_an_ordinary_error(statement: str) -> None:
    with pytest.raises(ImportError) as raised:
        exec(statement, {})  # the statements are those above
    assert not isinstance(raised.value, FlowletError)


def test_a_name_is_explained_only_while_it_is_missing() -> None:
    """A feature that is built leaves the lists."""
    from flowlet.common import not_yet

    packages = "common", "datastream", "datastream.functions", "datastream.connectors.file_system"
    present = {name for package in packages for name in vars(importlib.import_module(f"flowlet.{package}"))}
    assert not present & set(not_yet.MISSING_NAMES)
    assert not [
        name for name in not_yet.MISSING_MODULES if importlib.machinery.PathFinder.find_spec(name, _path_of(name))
    ]


@pytest.mark.parametrize(
    ("owner", "method", "instead"),
    [
        (Types.STRING(), "get_java_type_info", "the type itself"),
        (Types.ROW([Types.INT()]), "get_java_type_info", "the type itself"),
        (RowKind.DELETE, "to_j_row_kind", "the kind itself"),
        (FileSink, "get_transformer", r"sink_to\(\)"),
        (KafkaSink, "get_transformer", r"sink_to\(\)"),
        (OutputTag("late"), "get_java_output_tag", "its tag_id"),
        (MemorySize(3), "get_java_memory_size", r"get_bytes\(\)"),
    ],
)
def test_a_method_that_gives_a_java_object_says_what_to_use_instead(owner: object, method: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no {method}\(\): there are no Java objects here; use .*{instead}"):
        getattr(owner, method)
    assert not hasattr(owner, method)


def test_such_a_method_is_no_kind_of_a_row() -> None:
    assert [each.name for each in RowKind] == ["INSERT", "UPDATE_BEFORE", "UPDATE_AFTER", "DELETE"]


def test_source_functions_are_found_where_pyflink_has_them() -> None:
    from flowlet.datastream.functions import SourceFunction

    with pytest.raises(FlowletError, match="derive a class with run"):
        SourceFunction("org.example.Java")  # type: ignore[abstract]  # as in PyFlink


def _path_of(module: str) -> list[str]:
    return list(importlib.import_module(module.rpartition(".")[0]).__path__)
