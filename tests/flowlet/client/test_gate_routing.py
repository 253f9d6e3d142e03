"""The choice between routing by key at producers and a shuffle in the job."""

from collections.abc import Callable
from typing import Any

import pytest

from flowlet.client.translate import routed_at_producers
from flowlet.common.job_client import SubmittedJob
from flowlet.datastream.data_stream import DataStream
from flowlet.datastream.remote_gate import RemoteGate
from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment
from flowlet.graph.partitioner import Forward, KeyGroups
from flowlet.graph.stream_graph import StreamGraph
from flowlet.graph.transformation import SourceTransformation


def first(record: Any) -> Any:
    return record[0]


class SubmittedError(Exception):
    """Carries the graph out of ``execute``."""

    def __init__(self, graph: StreamGraph) -> None:
        super().__init__()
        self.graph = graph


def submit(graph: StreamGraph, *_: object) -> SubmittedJob:
    raise SubmittedError(graph)


def submitted(env: StreamExecutionEnvironment) -> StreamGraph:
    with pytest.raises(SubmittedError) as caught:
        env.execute("job")
    return caught.value.graph


def graph_of(build: Callable[[StreamExecutionEnvironment, DataStream], object]) -> StreamGraph:
    env = StreamExecutionEnvironment(submit=submit)
    env.set_parallelism(1)
    build(env, env.from_remote_gate("clicks", allow_pickle=True))
    return routed_at_producers(submitted(env))


def gate_in(graph: StreamGraph) -> tuple[RemoteGate, int, int]:
    node = next(iter(graph.nodes.values()))
    assert isinstance(node.transformation, SourceTransformation)
    assert isinstance(node.transformation.source, RemoteGate)
    return node.transformation.source, node.parallelism, node.max_parallelism


def test_the_gate_takes_over_what_its_keyed_reader_has() -> None:
    graph = graph_of(lambda _env, gate: gate.key_by(first).sum(1).set_parallelism(3).set_max_parallelism(12).print())

    gate, parallelism, max_parallelism = gate_in(graph)
    assert (parallelism, max_parallelism) == (3, 12)
    assert gate.key_groups == KeyGroups(first, 12)
    assert isinstance(graph.outputs_of(1)[0].partitioner, Forward)


def test_readers_of_different_keys_or_parallelism_or_none_leave_the_shuffle() -> None:
    def two_keys(_env: StreamExecutionEnvironment, gate: DataStream) -> None:
        gate.key_by(first).sum(1).print()
        gate.key_by(lambda record: record[1]).sum(1).print()

    def two_widths(_env: StreamExecutionEnvironment, gate: DataStream) -> None:
        keyed = gate.key_by(first)
        keyed.sum(1).set_parallelism(2).print()
        keyed.sum(1).set_parallelism(3).print()

    def also_unkeyed(_env: StreamExecutionEnvironment, gate: DataStream) -> None:
        gate.key_by(first).sum(1).print()
        gate.print()

    for build in (two_keys, two_widths, also_unkeyed):
        graph = graph_of(build)
        assert gate_in(graph)[0].key_groups is None
        assert any(isinstance(edge.partitioner, KeyGroups) for edge in graph.edges)


def test_what_is_no_gate_stays_as_it_is() -> None:
    env = StreamExecutionEnvironment(submit=submit)
    env.from_collection([(1, 2)]).key_by(first).sum(1).print()
    graph = submitted(env)

    assert routed_at_producers(graph) is graph
