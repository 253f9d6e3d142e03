"""What PyFlink has and this version has not is absent, and its error names the feature and a way out."""

import importlib
import importlib.machinery
from typing import Any

import pytest

from flowlet.common.not_yet import NotSupportedYetError, missing_attribute
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import FlowletError


@pytest.fixture(params=["environment", "stream"])
def asked(request: pytest.FixtureRequest) -> tuple[Any, str, str]:
    """An object, a method of PyFlink's that it has not, and the feature."""
    environment = StreamExecutionEnvironment()
    stream = environment.from_collection([1])
    return {
        "environment": (environment, "register_cached_file", "files and requirements"),
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
            "from flowlet.datastream import DataStream, CheckpointStorage",
            "'flowlet.datastream' has no 'CheckpointStorage': .*checkpointing.dir",
        ),
        ("from flowlet.datastream.connectors.file_system import FileCompactor", "a file sink cannot compact files yet"),
        ("from flowlet.datastream.connectors.pulsar import PulsarSource", "Java virtual machine; use a SourceFunction"),
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


def _path_of(module: str) -> list[str]:
    return list(importlib.import_module(module.rpartition(".")[0]).__path__)
