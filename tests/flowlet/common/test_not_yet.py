"""What PyFlink has and this version has not is absent, and its error names the feature and a way out."""

import importlib
import importlib.machinery
from typing import Any

import pytest

from flowlet.common import RowKind, Types
from flowlet.common.not_yet import NotSupportedYetError, missing_attribute
from flowlet.datastream import OutputTag, StreamExecutionEnvironment
from flowlet.datastream.connectors.file_system import FileSink
from flowlet.datastream.connectors.kafka import KafkaSink
from flowlet.datastream.slot_sharing_group import MemorySize
from flowlet.errors import FlowletError


@pytest.fixture(params=["stream"])
def asked(request: pytest.FixtureRequest) -> tuple[Any, str, str]:
    """An object, a method of PyFlink's that it has not, and the feature."""
    environment = StreamExecutionEnvironment()
    stream = environment.from_collection([1])
    return {
        "stream": (stream, "cache", "cached streams"),
    }[request.param]


def test_a_later_feature_is_named_and_absent(asked: tuple[Any, str, str]) -> None:
    owner, method, feature = asked

    with pytest.raises(NotSupportedYetError, match=f"no attribute '{method}': {feature} .*yet"):
        getattr(owner, method)
    assert not hasattr(owner, method)


def test_a_name_that_pyflink_has_not_either_is_an_ordinary_error() -> None:
    error = missing_attribute(3, "window_nothing")

    assert type(error) is AttributeError
    assert str(error) == "'int' object has no attribute 'window_nothing'"


def test_the_error_is_of_both_trees() -> None:
    """``except FlowletError`` catches it, and ``hasattr`` does."""
    assert issubclass(NotSupportedYetError, FlowletError)
    assert issubclass(NotSupportedYetError, AttributeError)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (
            "from flowlet.datastream import DataStream, CustomCheckpointStorage",
            "'flowlet.datastream' has no 'CustomCheckpointStorage': it wraps a Java object; use FileSystemCheckpointStorage",
        ),
        ("from flowlet.datastream.connectors.file_system import FileCompactor", "a file sink cannot compact files yet"),
        ("from flowlet.datastream.connectors.pulsar import PulsarSource", "Java virtual machine; use a SourceFunction"),
        ("from flowlet.datastream.connectors.kafka import FlinkKafkaConsumer", "older interface; use KafkaSource"),
        ("from flowlet.common.typeinfo import ExternalTypeInfo", "use Types.PICKLED_BYTE_ARRAY"),
        ("from flowlet.table import TableEnvironment", "use the DataStream API"),
    ],
)
def test_an_import_of_a_later_feature_says_what_comes_and_what_to_use(statement: str, reason: str) -> None:
    with pytest.raises(ImportError, match=reason) as raised:
        exec(statement, {})  # the statements are those above
    assert isinstance(raised.value, FlowletError)


@pytest.mark.parametrize("statement", ["import flowlet.nothing", "from flowlet.datastream import Nothing"])
def test_an_import_that_pyflink_has_not_either_is_an_ordinary_error(statement: str) -> None:
    with pytest.raises(ImportError) as raised:
        exec(statement, {})  # the statements are those above
    assert not isinstance(raised.value, FlowletError)


def test_a_name_is_explained_only_while_it_is_missing() -> None:
    """A feature that is built leaves the lists."""
    from flowlet.common import not_yet

    packages = ("flowlet.common", "flowlet.datastream", "flowlet.datastream.functions", "flowlet.datastream.connectors.file_system")
    present = {name for package in packages for name in vars(importlib.import_module(package))}
    assert not present & set(not_yet.MISSING_NAMES)
    assert not [name for name in not_yet.MISSING_MODULES if importlib.machinery.PathFinder.find_spec(name, _path_of(name))]


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
