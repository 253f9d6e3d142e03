"""Promises of the function classes."""

import pickle

import pytest

from flowlet.datastream import FilterFunction, FlatMapFunction, Function, KeySelector, MapFunction, ReduceFunction, RuntimeContext


class Keep(FilterFunction):
    def filter(self, value: object) -> bool:
        return value is not None


@pytest.mark.parametrize("function_class", [MapFunction, FlatMapFunction, FilterFunction, ReduceFunction, KeySelector, RuntimeContext])
def test_a_function_without_its_method_cannot_be_made(function_class: type[object]) -> None:
    with pytest.raises(TypeError, match="abstract"):
        function_class()


def test_opening_and_closing_is_optional_and_functions_travel() -> None:
    function = pickle.loads(pickle.dumps(Keep()))

    function.open(None)
    function.close()

    assert function.filter(0) is True
    assert isinstance(function, Function)
