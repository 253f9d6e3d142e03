"""Promises of the function classes."""

import pickle
from typing import Any

import pytest

from flowlet.datastream import (
    AsyncFunction,
    AsyncRetryPredicate,
    AsyncRetryStrategy,
    BroadcastProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeySelector,
    MapFunction,
    ReduceFunction,
    SinkFunction,
    SourceFunction,
)
from flowlet.datastream.async_retry_strategies import FixedDelayRetryStrategy
from flowlet.datastream.functions import SinkContext
from flowlet.errors import JobGraphError


class Keep(FilterFunction):
    def filter(self, value: object) -> bool:
        return value is not None


@pytest.mark.parametrize("function_class", [MapFunction, FlatMapFunction, FilterFunction, ReduceFunction, KeySelector])
def test_a_function_without_its_method_cannot_be_made(function_class: type[object]) -> None:
    with pytest.raises(TypeError, match="abstract"):
        function_class()


def test_opening_and_closing_is_optional_and_functions_travel() -> None:
    function = pickle.loads(pickle.dumps(Keep()))

    function.open(None)
    function.close()

    assert function.filter(0) is True
    assert isinstance(function, Function)


@pytest.mark.parametrize(
    ("kind", "instead"), [(SinkFunction, r"invoke\(value, context\)"), (SourceFunction, r"run\(ctx\)")]
)
def test_a_class_of_java_is_answered_with_what_to_write(kind: Any, instead: str) -> None:
    with pytest.raises(
        JobGraphError, match=f"'org.example.Mine'.* written in Java cannot be used; derive a class with {instead}"
    ):
        kind("org.example.Mine")


def test_a_sink_without_a_constructor_takes_no_arguments() -> None:
    class Mine(SinkFunction):
        def invoke(self, value: Any, context: SinkContext) -> None:
            pass

    class WithArgument(Mine):
        def __init__(self, number: int) -> None:
            self.number = number

    assert WithArgument(3).number == 3
    with pytest.raises(TypeError, match="takes no arguments"):
        Mine(3)


def test_base_classes_that_are_generic_in_pyflink_are_so_here() -> None:
    """A base class without brackets takes any records."""
    for kind, types in (
        (AsyncFunction, (int, str)),
        (AsyncRetryStrategy, (int,)),
        (AsyncRetryPredicate, (int,)),
        (FixedDelayRetryStrategy, (int,)),
        (BroadcastProcessFunction, (int, str, float)),
        (KeyedBroadcastProcessFunction, (str, int, str, float)),
    ):
        generic: Any = kind
        assert generic[types].__origin__ is kind
        assert issubclass(type("Own", (generic,), {}), kind)
