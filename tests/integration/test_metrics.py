"""Metrics of functions in TaskManager processes, read over REST as Flink's are."""

from typing import Any

import pytest

from bench.cluster import Cluster
from flowlet.common import Configuration
from flowlet.datastream import KeySelector, MapFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink
from tests.integration.jobs import target_of

pytestmark = pytest.mark.slow

NUM_RECORDS = 10_000


class Remainder(KeySelector):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._divisor = int(runtime_context.get_job_parameter("divisor", "1"))

    def get_key(self, value: int) -> int:
        return value % self._divisor


class Measured(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        group = runtime_context.get_metrics_group().add_group("values")
        self._all = group.counter("all")
        self._sizes = group.distribution("sizes")
        self._largest = 0
        group.gauge("largest", lambda: self._largest)

    def map(self, value: int) -> int:
        self._all.inc()
        self._sizes.update(value)
        self._largest = max(self._largest, value)
        return value


def test_metrics_of_functions_are_read_over_rest(cluster: Cluster) -> None:
    """Metrics are found by subtask, operator, groups and name; the key selector, which needs its ``open``, has dealt
    all records out.
    """
    configuration = Configuration.from_dict({"flowlet.jobmanager": cluster.address})
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
    env.get_config().set_global_job_parameters({"divisor": 100})
    keyed = env.from_sequence(0, NUM_RECORDS - 1).key_by(Remainder())
    keyed.map(Measured()).name("measured").sink_to(DiscardingSink())
    job_id = str(env.execute("metrics").get_job_id())
    client = target_of(cluster).open(0)
    try:
        document = client.call(lambda api: api.job(job_id))
        vertex = next(
            each["id"] for each in document["vertices"] if any("measured" in name for name in each["operators"])
        )
        metrics: list[Any] = client.call(lambda api: api.vertex_metrics(job_id, vertex))
        chosen: list[Any] = client.call(lambda api: api.vertex_metrics(job_id, vertex, ["0.measured.values.all"]))
    finally:
        client.close()

    found = {each["id"]: each["value"] for each in metrics}
    counts = [found[f"{subtask}.measured.values.all"] for subtask in (0, 1)]
    assert sum(counts) == NUM_RECORDS
    assert all(counts)
    assert sum(found[f"{subtask}.measured.values.sizes.sum"] for subtask in (0, 1)) == sum(range(NUM_RECORDS))
    assert max(found[f"{subtask}.measured.values.largest"] for subtask in (0, 1)) == NUM_RECORDS - 1
    assert chosen == [{"id": "0.measured.values.all", "value": counts[0]}]
