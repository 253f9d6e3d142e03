"""The metrics of a job: in the document of ``JobClient.metrics``, which is that of ``GET /jobs/<job>``, and of a vertex
over REST.

A job runs until each kind of metric has shown itself.  ``docs/metrics.md`` explains them.

Items:  ``document PATH`` with its type, as in ``document vertices[].subtasks[].metrics.num_records_in``; what is null
        or a text has no type here, for it changes while a job runs.  ``REST METRIC`` of an operator.
Units:  the end of each name says them: ``_ms``, ``_bytes``, ``per_second``.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from flowlet.common import Configuration
from flowlet.datastream import MapFunction, RuntimeContext
from flowlet.datastream.connectors import DiscardingSink
from flowlet.testing import MiniCluster
from tests.frozen.frozen_list import FrozenList
from tests.frozen.signed_get import signed_get
from tests.waiting import spin_until

_MANY: Final = 10**12
_SCOPE: Final = "0.measured."
# Their keys are the states that the job has passed.
_MAPPINGS: Final = ("timestamps",)


class Measured(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        group = runtime_context.get_metrics_group().add_group("group")
        self._counter = group.counter("counter")
        self._meter = group.meter("meter")
        self._sizes = group.distribution("distribution")
        group.gauge("gauge", lambda: 1)

    def map(self, value: int) -> int:
        self._counter.inc()
        self._meter.mark_event()
        self._sizes.update(value)
        return value


def metrics() -> Iterator[str]:
    with MiniCluster(1) as cluster:
        environment = cluster.environment()
        environment.configure(Configuration.from_dict({"metrics.latency.interval": "1 ms"}))
        environment.from_sequence(0, _MANY).key_by(lambda value: value % 2).map(Measured()).name("measured").sink_to(
            DiscardingSink()
        )
        client = environment.execute_async("metrics")
        spin_until(lambda: _has_all(client.metrics()), "a document with all kinds of metrics")
        document = client.metrics()
        job = str(client.get_job_id())
        (vertex,) = [each["id"] for each in document["vertices"] if "measured" in each["name"]]
        shown = signed_get(cluster, f"/jobs/{job}/vertices/{vertex}/metrics")
        exceptions = signed_get(cluster, f"/jobs/{job}/exceptions")
        client.cancel().result()
    for name, shown_document in (("document", document), ("exceptions", exceptions)):
        kinds: dict[str, set[str]] = {}
        for path, kind in _paths(shown_document):
            kinds.setdefault(path, set()).add(kind)
        yield from (f"{name} {path}  {'' if '' in found else min(found)}".rstrip() for path, found in kinds.items())
    yield from (f"REST {each['id'].removeprefix(_SCOPE)}" for each in shown if each["id"].startswith(_SCOPE))


def _operators(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        each for vertex in document["vertices"] for task in vertex["subtasks"] for each in task["metrics"]["operators"]
    ]


def _has_all(document: Mapping[str, Any]) -> bool:
    operators = [each for each in _operators(document) if each["name"] == "measured"]
    return any(
        each["latencies"] and len(each["user_metrics"]) == 4 and "rate" in each["user_metrics"][1] for each in operators
    )


def _paths(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    match value:
        case dict():
            for name, each in value.items():
                inner = f"{path}.{name}".lstrip(".")
                yield from [(inner, "mapping")] if name in _MAPPINGS else _paths(each, inner)
        case list():
            yield path, "list"
            for each in value:
                yield from _paths(each, f"{path}[]")
        case None | str():
            yield path, ""
        case bool():
            yield path, "true or false"
        case _:
            yield path, "number"


METRICS: Final = FrozenList("metrics", "Metrics of jobs", metrics, "Dashboards and alerts have their names.")


@pytest.mark.slow
def test_the_names_of_metrics_stay() -> None:
    METRICS.check()
