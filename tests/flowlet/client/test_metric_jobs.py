"""Programs whose functions have metrics, job parameters and generic base classes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlet.common import Time
from flowlet.datastream import (
    AsyncDataStream,
    AsyncFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import DiscardingSink
from tests.flowlet.client.jobs import operators_of, ran


class Measured(MapFunction):
    """Uses a metric of each kind."""

    def open(self, runtime_context: RuntimeContext) -> None:
        metrics = runtime_context.get_metrics_group().add_group("values")
        self._counter = metrics.counter("all")
        self._meter = metrics.meter("per second")
        self._sizes = metrics.distribution("sizes")
        self._last = 0
        metrics.gauge("last", lambda: self._last)

    def map(self, value: int) -> int:
        self._counter.inc()
        self._meter.mark_event()
        self._sizes.update(value)
        self._last = value
        return value


class CountedFilter(FilterFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._dropped = runtime_context.get_metrics_group().counter("dropped")

    def filter(self, value: int) -> bool:
        if value % 2:
            self._dropped.inc()
        return value % 2 == 0


class CountedFlatMap(FlatMapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._made = runtime_context.get_metrics_group().counter("made")

    def flat_map(self, value: int) -> Iterator[int]:
        self._made.inc(2)
        yield from (value, value)


class CountedProcess(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen = runtime_context.get_metrics_group().counter("seen")

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        self._seen.inc()
        yield value


class CountedCall(AsyncFunction[int, int]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._calls = runtime_context.get_metrics_group().counter("calls")

    async def async_invoke(self, value: int) -> list[int]:
        await asyncio.sleep(0)
        self._calls.inc()
        return [value]


def user_metrics(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the users' metrics of a job's document, by operator and name."""
    return {
        f"{name}/{metric['name']}": metric
        for name, operator in operators_of(document).items()
        for metric in operator["user_metrics"]
    }


def test_each_kind_of_metric_is_in_the_jobs_document(environment: StreamExecutionEnvironment) -> None:
    """The values at the end of the job are the last ones, also of gauges and meters, which are otherwise asked once per
    second.
    """
    environment.from_collection(list(range(10))).map(Measured()).name("measured").sink_to(DiscardingSink())

    client = environment.execute_async("metrics")
    client.get_job_execution_result().result()
    found = user_metrics(client.metrics())

    assert found["measured/values.all"] == {"name": "values.all", "kind": "counter", "value": 10}
    assert found["measured/values.last"] == {"name": "values.last", "kind": "gauge", "value": 9}
    sizes = {"value": 10, "sum": 45, "min": 0, "max": 9}
    assert found["measured/values.sizes"] == {"name": "values.sizes", "kind": "distribution", **sizes}
    meter = found["measured/values.per second"]
    assert meter["value"] == 10
    assert meter["rate"] > 0


def test_functions_of_every_kind_have_metrics(environment: StreamExecutionEnvironment) -> None:
    even = environment.from_collection(list(range(6))).filter(CountedFilter()).name("filter")
    doubled = even.flat_map(CountedFlatMap()).name("flat map")
    called = AsyncDataStream.ordered_wait(doubled, CountedCall(), Time.seconds(100)).name("call")
    called.key_by(abs).process(CountedProcess()).name("process").sink_to(DiscardingSink())

    client = environment.execute_async("metrics of all")
    client.get_job_execution_result().result()
    found = {name: metric["value"] for name, metric in user_metrics(client.metrics()).items()}

    assert found == {"filter/dropped": 3, "flat map/made": 6, "call/calls": 6, "process/seen": 6}


class Greets(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._greeting = runtime_context.get_job_parameter("greeting", "none")
        self._times = int(runtime_context.get_job_parameter("times", "1"))
        self._mark = runtime_context.get_job_parameter("mark", "?")

    def map(self, value: str) -> str:
        return " ".join([self._greeting] * self._times + [value]) + self._mark


def test_job_parameters_reach_the_functions_as_texts(environment: StreamExecutionEnvironment) -> None:
    environment.get_config().set_global_job_parameters({"greeting": "hello", "times": 2})

    found = ran(environment.from_collection(["you"]).map(Greets()))

    assert environment.get_config().get_global_job_parameters() == {"greeting": "hello", "times": "2"}
    assert found == ["hello hello you?"]


class Cached(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_distributed_cache().get_file("model")

    def map(self, value: int) -> int:
        return value


def test_a_file_that_was_not_registered_is_named(environment: StreamExecutionEnvironment) -> None:
    with pytest.raises(Exception, match="no cached file 'model'; registered are: none"):
        ran(environment.from_collection([1]).map(Cached()))


def test_functions_in_python_have_no_accumulators(environment: StreamExecutionEnvironment) -> None:
    """All answers about accumulators are empty, as in PyFlink."""
    environment.from_collection([1]).sink_to(DiscardingSink())

    client = environment.execute_async("no accumulators")
    result = client.get_job_execution_result().result()

    assert client.get_accumulators().result() == {}
    assert result.get_all_accumulator_results() == {}
    assert result.get_accumulator_result("none") is None


class ReadsCached(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        with open(runtime_context.get_distributed_cache().get_file("greeting"), encoding="utf-8") as file:
            self._greeting = file.read()

    def map(self, value: str) -> str:
        return f"{self._greeting} {value}"


def test_a_cached_file_is_read_where_the_function_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The function reads a copy of the file, under the name that the program gave it."""
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")
    environment = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    (tmp_path / "file.txt").write_text("hello", encoding="utf-8")
    environment.register_cached_file(str(tmp_path / "file.txt"), "greeting")

    assert ran(environment.from_collection(["you"]).map(ReadsCached())) == ["hello you"]
