"""Promises of ``AsyncDataStream``."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from flowlet.async_io.async_wait_operator import AsyncWaitOperator
from flowlet.client.translate import operator_of
from flowlet.common import Time, Types
from flowlet.common.time import Duration
from flowlet.datastream import AsyncDataStream, AsyncFunction, AsyncRetryStrategy, DataStream
from flowlet.datastream.async_retry_predicates import empty_result_predicate
from flowlet.errors import JobGraphError
from flowlet.graph.stream_graph import StreamGraph, StreamNode
from tests.flowlet.datastream.captured_graphs import new_environment

METHODS = ["ordered_wait", "unordered_wait", "ordered_wait_with_retry", "unordered_wait_with_retry"]
RETRY = AsyncRetryStrategy.fixed_delay(3, 10, empty_result_predicate, None)


class Lookup(AsyncFunction):
    async def async_invoke(self, value: int) -> list[int]:
        return [value]


class Ordinary(AsyncFunction):
    def async_invoke(self, value: int) -> list[int]:  # type: ignore[override]  # what users do
        return [value]


async def lookup(value: int) -> list[int]:
    return [value]


def stream() -> tuple[DataStream, Callable[[], StreamGraph]]:
    environment, graph = new_environment(1)
    return environment.from_collection([1, 2]), graph


def call(method: str, data_stream: Any, function: Any, timeout: Any, retry: Any = RETRY, **options: Any) -> DataStream:
    arguments = [retry] if method.endswith("retry") else []
    return cast("DataStream", getattr(AsyncDataStream, method)(data_stream, function, timeout, *arguments, **options))


def is_async(node: StreamNode) -> bool:
    return node.transformation.factory.target.endswith(":AsyncWaitOperator")


@pytest.mark.parametrize("method", METHODS)
def test_each_method_says_order_and_retry(method: str) -> None:
    """Names, defaults and types are PyFlink's."""
    source, graph = stream()
    function = Lookup()

    found = call(method, source, function, Time.seconds(2), output_type=Types.INT())
    found.print()

    (node,) = [node for node in graph().nodes.values() if is_async(node)]
    arguments = node.transformation.factory.arguments
    assert found.get_type() == Types.INT()
    assert node.name == "async wait operator"
    assert arguments["function"] is function
    assert (arguments["timeout_ms"], arguments["capacity"]) == (2000, 100)
    assert arguments["is_ordered"] is method.startswith("ordered")
    assert arguments["retry_strategy"] is (RETRY if method.endswith("retry") else None)
    operator = operator_of(node, is_batch=False)
    assert isinstance(operator, AsyncWaitOperator)
    assert operator.name == "async wait operator"


def test_a_coroutine_function_and_a_duration_do_as_well() -> None:
    source, graph = stream()

    AsyncDataStream.ordered_wait(source, lookup, Duration.of_millis(5), capacity=7).print()

    (arguments,) = [node.transformation.factory.arguments for node in graph().nodes.values() if is_async(node)]
    assert (arguments["function"], arguments["timeout_ms"], arguments["capacity"]) == (lookup, 5, 7)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data_stream": [1]}, r"\(\) needs a DataStream, got \[1\]"),
        ({"function": Lookup}, r"needs a function object, got the class Lookup; write Lookup\(\)"),
        ({"function": lambda value: [value]}, "needs an AsyncFunction or an async def function of one record, got"),
        ({"function": Ordinary()}, r"async_invoke of Ordinary is an ordinary method; write it with async def"),
        ({"timeout": 3}, r"needs a Duration such as Duration.of_seconds\(5\), got 3"),
        ({"timeout": Time.milliseconds(-1)}, "needs a timeout that is not negative, got -1 ms"),
        ({"capacity": 0}, "needs a capacity of 1 or more records, got 0"),
        ({"capacity": True}, "needs a capacity of 1 or more records, got True"),
        ({"output_type": int}, "a type is declared with type information"),
    ],
)
def test_wrong_arguments_are_refused_while_the_program_is_built(
    method: str, arguments: dict[str, Any], message: str
) -> None:
    source, _ = stream()

    with pytest.raises(JobGraphError, match=message):
        call(method, **{"data_stream": source, "function": Lookup(), "timeout": Time.seconds(1), **arguments})


def test_attempts_need_an_end() -> None:
    """The timeout bounds all attempts together, as in Flink, so it must be above 0."""
    source, _ = stream()

    with pytest.raises(JobGraphError, match=r"ordered_wait_with_retry\(\) needs a timeout greater than 0"):
        AsyncDataStream.ordered_wait_with_retry(source, Lookup(), Time.seconds(0), RETRY)
    with pytest.raises(JobGraphError, match=r"needs a retry strategy such as AsyncRetryStrategy.fixed_delay"):
        call("ordered_wait_with_retry", source, Lookup(), Time.seconds(1), retry=3)


def test_the_default_answer_to_a_timeout_is_an_error() -> None:
    with pytest.raises(TimeoutError, match="Async function call has timed out for input: 3"):
        Lookup().timeout(3)
