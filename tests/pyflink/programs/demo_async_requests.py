"""Asynchronous requests: unordered, ordered, timed out, and tried again."""

import asyncio
import functools

from pyflink.common import Time, Types
from pyflink.datastream import (
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    RuntimeContext,
    StreamExecutionEnvironment,
    async_retry_predicates,
)


class Request(AsyncFunction[tuple, str]):
    def open(self, runtime_context: RuntimeContext):
        self.answers = {"a": "first", "b": "second", "c": "third"}

    async def async_invoke(self, value: tuple) -> list[str]:
        await asyncio.sleep(value[1] / 1000)
        return [f"{value[0]} {self.answers[value[0]]}"]


class Slow(AsyncFunction[tuple, str]):
    async def async_invoke(self, value: tuple) -> list[str]:
        await asyncio.sleep(0.01 if value[0] == "a" else 60)
        return [f"{value[0]} in time"]

    def timeout(self, value: tuple) -> list[str]:
        return [f"{value[0]} timed out", f"{value[0]} gives two results"]


class Fails(AsyncFunction[tuple, str]):
    """The first two calls of each record fail."""

    def __init__(self):
        self.calls = {}

    async def async_invoke(self, value: tuple) -> list[str]:
        self.calls[value[0]] = self.calls.get(value[0], 0) + 1
        if self.calls[value[0]] < 3:
            raise ValueError(f"call {self.calls[value[0]]}")
        return [f"{value[0]} after {self.calls[value[0]]} calls"]


class EmptyAtFirst(AsyncFunction[tuple, str]):
    """The first call of each record gives nothing."""

    def __init__(self):
        self.calls = {}

    async def async_invoke(self, value: tuple) -> list[str]:
        self.calls[value[0]] = self.calls.get(value[0], 0) + 1
        return [] if self.calls[value[0]] == 1 else [f"{value[0]} not empty"]


def async_requests():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    stream = env.from_collection(
        [("a", 60), ("b", 10), ("c", 30)], type_info=Types.TUPLE([Types.STRING(), Types.INT()])
    )
    AsyncDataStream.unordered_wait(stream, Request(), Time.seconds(20), 2, Types.STRING()).print("unordered")
    AsyncDataStream.ordered_wait(stream, Request(), Time.seconds(20), output_type=Types.STRING()).print("ordered")
    AsyncDataStream.unordered_wait(stream, Slow(), Time.milliseconds(600), output_type=Types.STRING()).print("timeout")
    by_exception = functools.partial(async_retry_predicates.exception_type_predicate, expected_error_type=ValueError)
    AsyncDataStream.unordered_wait_with_retry(
        stream,
        Fails(),
        Time.seconds(20),
        AsyncRetryStrategy.fixed_delay(5, 10, None, by_exception),
        100,
        Types.STRING(),
    ).print("retry")
    AsyncDataStream.ordered_wait_with_retry(
        stream,
        EmptyAtFirst(),
        Time.seconds(20),
        AsyncRetryStrategy.exponential_backoff(3, 10, 1000, 2.0, async_retry_predicates.empty_result_predicate, None),
        output_type=Types.STRING(),
    ).print("empty")
    env.execute("async requests")


if __name__ == "__main__":
    async_requests()
