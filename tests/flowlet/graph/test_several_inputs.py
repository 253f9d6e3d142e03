"""Unions, side outputs and operators with two inputs, from transformations to the job graph."""

from types import SimpleNamespace
from typing import Any

import pytest

from flowlet.errors import JobGraphError
from flowlet.graph.chaining import build_job_graph, is_chainable
from flowlet.graph.job_graph import DEFAULT_SLOT_SHARING_GROUP, JobGraph
from flowlet.graph.partitioner import Forward, KeyGroups, Rebalance
from flowlet.graph.stream_graph import StreamEdge, StreamGraph, StreamGraphSettings, build_stream_graph
from flowlet.graph.transformation import (
    GraphValue,
    OperatorFactory,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    SourceTransformation,
    Transformation,
    UnionTransformation,
)

READ = OperatorFactory.of("flowlet.operators.source_operator:SourceOperator", source=GraphValue.SOURCE)
MAP = OperatorFactory.of("flowlet.operators.process_operator:MapOperator", function=str)
CO_MAP = OperatorFactory.of("flowlet.operators.co_functions:CoMapOperator", function=object())


def source(name: str = "S", **changes: Any) -> SourceTransformation:
    return SourceTransformation(name=name, source=object(), factory=READ, **changes)


def mapped(upstream: Transformation, name: str = "M", **changes: Any) -> OperatorTransformation:
    return OperatorTransformation(name=name, input=upstream, factory=MAP, **changes)


def union(*streams: Transformation) -> UnionTransformation:
    return UnionTransformation(name="Union", streams=streams)


def side(upstream: Transformation, tag_id: str) -> SideOutputTransformation:
    return SideOutputTransformation(name="Side", input=upstream, tag_id=tag_id)


def rebalanced(upstream: Transformation) -> PartitionTransformation:
    return PartitionTransformation(name="Partition", input=upstream, partitioner=Rebalance())


def connected(first: Transformation, second: Transformation) -> OperatorTransformation:
    return OperatorTransformation(name="C", input=first, second_input=second, factory=CO_MAP)


def stream_graph(*transformations: Transformation) -> StreamGraph:
    return build_stream_graph(transformations, "job", StreamGraphSettings())


def job_graph(*transformations: Transformation) -> JobGraph:
    def operator(node: Any) -> Any:
        return SimpleNamespace(name=node.name)

    return build_job_graph(
        stream_graph(*transformations),
        operator,
        lambda made, parent, edge: SimpleNamespace(operator=made, parent=parent, tag=edge and edge.tag),
    )


def test_a_union_is_read_stream_by_stream() -> None:
    """Unions of unions too, each stream with the partitioning it was given."""
    graph = stream_graph(mapped(union(source("A"), union(rebalanced(source("B")), source("C")))))

    assert [graph.nodes[number].name for number in graph.nodes] == ["Source: A", "Source: B", "Source: C", "M"]
    assert graph.edges == [StreamEdge(1, 4, Forward()), StreamEdge(2, 4, Rebalance()), StreamEdge(3, 4, Forward())]


def test_a_partitioning_of_a_union_counts_for_all_its_streams() -> None:
    graph = stream_graph(mapped(rebalanced(union(source("A"), source("B")))))

    assert [edge.partitioner for edge in graph.edges] == [Rebalance(), Rebalance()]


def test_an_operator_that_reads_several_streams_begins_a_task() -> None:
    graph = job_graph(mapped(mapped(union(source("A"), source("B"))), "N"))

    assert [vertex.name for vertex in graph.vertices] == ["Source: A", "Source: B", "M -> N"]
    assert [edge.input_id for edge in graph.edges] == [1, 1]


def test_a_stream_united_with_itself_has_two_edges() -> None:
    upstream = source()

    graph = job_graph(mapped(union(upstream, upstream)))

    assert len({edge.id for edge in graph.edges}) == 2


def test_a_side_output_is_a_tag_on_an_edge_and_can_be_chained() -> None:
    upstream = source()
    late, main = mapped(side(upstream, "late"), "L"), mapped(upstream, "M")

    assert stream_graph(late, main).edges == [StreamEdge(1, 2, Forward(), "late"), StreamEdge(1, 3, Forward())]
    (vertex,) = job_graph(late, main).vertices
    assert [(link.operator.name, link.parent, link.tag) for link in vertex.chain] == [  # type: ignore[attr-defined]  # made above
        ("Source: S", -1, None),
        ("L", 0, "late"),
        ("M", 0, None),
    ]


def test_a_side_output_over_the_network_keeps_its_tag() -> None:
    graph = job_graph(mapped(rebalanced(side(source(), "late"))))

    assert [(edge.tag, edge.source_operator) for edge in graph.edges] == [("late", 0)]


def test_the_inputs_of_an_operator_are_numbered() -> None:
    keyed = PartitionTransformation(name="Keys", input=source("B"), partitioner=KeyGroups(len))
    operator = connected(union(source("A"), source("A2")), keyed)

    graph = job_graph(operator)

    assert [(edge.name.split(" -> ")[0], edge.input_id) for edge in graph.edges] == [
        ("Source: A", 1),
        ("Source: A2", 1),
        ("Source: B", 2),
    ]


def test_the_slot_sharing_group_is_that_of_the_inputs_if_they_agree() -> None:
    def group(first: str, second: str) -> str:
        graph = stream_graph(connected(source("A", slot_sharing_group=first), source("B", slot_sharing_group=second)))
        return graph.nodes[3].slot_sharing_group

    assert group("x", "x") == "x"
    assert group("x", "y") == DEFAULT_SLOT_SHARING_GROUP


def test_a_union_of_nothing_is_refused() -> None:
    with pytest.raises(JobGraphError, match="reads nothing"):
        stream_graph(OperatorTransformation(name="M", factory=MAP))


def test_a_connected_stream_is_in_no_chain_behind_its_key_bys() -> None:
    """A connected stream reads two inputs, whatever the parallelism."""
    keyed = [PartitionTransformation(name="Partition", input=source(name), partitioner=KeyGroups(len)) for name in "AB"]

    graph = stream_graph(connected(*keyed))

    assert [is_chainable(edge, graph) for edge in graph.edges] == [False, False]
