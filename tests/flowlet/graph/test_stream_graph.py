"""The graph of a program's transformations, and its plan."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from flowlet.common import Types
from flowlet.common.execution_config import EnvironmentSettings
from flowlet.errors import JobGraphError
from flowlet.graph.chaining import build_job_graph, is_chainable
from flowlet.graph.job_graph import DEFAULT_SLOT_SHARING_GROUP, JobGraph
from flowlet.graph.partitioner import Broadcast, Forward, KeyGroups, Rebalance
from flowlet.graph.stream_graph import StreamEdge, StreamGraph, StreamGraphSettings, build_stream_graph, execution_plan
from flowlet.graph.transformation import (
    ChainingStrategy,
    CollectTransformation,
    OperatorFactory,
    OperatorTransformation,
    SideOutputTransformation,
    Transformation,
    UnionTransformation,
    key_selector_of,
)
from tests.flowlet.graph.transformations import MAP, mapped, partitioned, source


def build(*transformations: Transformation, **settings: Any) -> StreamGraph:
    return build_stream_graph(transformations, "job", StreamGraphSettings(EnvironmentSettings(**settings)))


def test_everything_that_is_read_is_part_of_the_graph_once() -> None:
    start = source()
    left, right = mapped(start, name="left"), mapped(start, name="right")

    graph = build(right, left, right)

    assert [node.name for node in graph.nodes.values()] == ["Source: S", "right", "left"]
    assert [(edge.source, edge.target) for edge in graph.edges] == [(1, 2), (1, 3)]
    assert graph.inputs_of(1) == []
    assert graph.inputs_of(3) == [graph.edges[1]]
    assert graph.outputs_of(1) == graph.edges


def test_a_job_without_operators_is_refused() -> None:
    with pytest.raises(JobGraphError, match=r"job 'job' has no operators: apply at least one"):
        build()


def test_an_operator_without_input_is_refused() -> None:
    with pytest.raises(JobGraphError, match="operator 'Map' reads nothing"):
        build(mapped(None))


def test_equal_parallelism_means_forward_and_another_one_rebalance() -> None:
    start = source(parallelism=2)

    same, other = build(mapped(start, parallelism=2)), build(mapped(start, parallelism=3))

    assert same.edges[0].partitioner == Forward()
    assert other.edges[0].partitioner == Rebalance()


def test_partitionings_are_on_edges_and_not_nodes() -> None:
    graph = build(mapped(partitioned(source(), Broadcast())))

    assert [node.name for node in graph.nodes.values()] == ["Source: S", "Map"]
    assert graph.edges[0].partitioner == Broadcast()


def test_of_two_partitionings_the_one_next_to_the_reader_counts() -> None:
    graph = build(mapped(partitioned(partitioned(source(), KeyGroups(len)), Rebalance())))

    assert graph.edges[0].partitioner == Rebalance()


def test_forward_does_not_change_the_parallelism() -> None:
    start = source(parallelism=2)

    assert build(mapped(partitioned(start, Forward()), parallelism=2)).edges[0].partitioner == Forward()
    reason = r"forward\(\) from 'Source: S' \(parallelism 2\) to 'Map' \(parallelism 3\): .* use rebalance"
    with pytest.raises(JobGraphError, match=reason):
        build(mapped(partitioned(start, Forward()), parallelism=3))


@pytest.mark.parametrize(("own", "inherited", "expected"), [(7, 64, 7), (None, 64, 64), (None, None, 128)])
def test_a_keyed_edge_has_as_many_key_groups_as_its_consumer(
    own: int | None, inherited: int | None, expected: int
) -> None:
    keyed = partitioned(source(max_parallelism=16), KeyGroups(len))

    graph = build(mapped(keyed, max_parallelism=own), max_parallelism=inherited)

    assert graph.edges[0].partitioner == KeyGroups(len, expected)
    assert graph.nodes[2].max_parallelism == expected


def test_more_subtasks_than_key_groups_are_refused() -> None:
    with pytest.raises(JobGraphError, match="operator 'Map': its parallelism 4 exceeds its max parallelism 3"):
        build(mapped(source(), parallelism=4, max_parallelism=3))
    with pytest.raises(JobGraphError, match="operator 'Map': its parallelism 4 exceeds its max parallelism 2"):
        build(mapped(source(), parallelism=4), max_parallelism=2)


def test_without_a_setting_the_max_parallelism_grows_with_the_parallelism() -> None:
    graph = build(mapped(source(parallelism=1), parallelism=200))

    assert (graph.nodes[1].max_parallelism, graph.nodes[2].max_parallelism) == (128, 512)


def test_slot_sharing_groups_are_inherited_until_another_is_named() -> None:
    start = source()
    first = mapped(start, slot_sharing_group="heavy")
    graph = build(mapped(mapped(partitioned(first, Rebalance())), slot_sharing_group="default"))

    assert [node.slot_sharing_group for node in graph.nodes.values()] == ["default", "heavy", "heavy", "default"]


def test_buffer_timeouts_default_to_the_environments() -> None:
    graph = build(mapped(mapped(source(), buffer_timeout_ms=0)), buffer_timeout_ms=7)

    assert [node.buffer_timeout_ms for node in graph.nodes.values()] == [7, 0, 7]


def test_the_client_reads_an_edge_and_no_node() -> None:
    start = source()

    graph = build(CollectTransformation(name="Collect", input=partitioned(start, Rebalance())))

    assert list(graph.nodes) == [1]
    assert [(edge.source, edge.target, edge.partitioner) for edge in graph.edges] == [(1, None, Forward())]


def test_ids_are_the_same_each_time_a_program_is_built() -> None:
    def program() -> list[str]:
        start = source()
        graph = build(mapped(start), mapped(mapped(start)))
        return [node.hash for node in graph.nodes.values()]

    assert program() == program()
    assert len(set(program())) == 4


def test_an_operator_with_a_uid_keeps_its_id_when_the_program_changes() -> None:
    before = build(mapped(source(), uid="count"))
    after = build(mapped(mapped(source("other")), uid="count"))

    assert before.nodes[2].hash == after.nodes[3].hash
    assert before.nodes[1].hash != build(mapped(source(), uid="numbers")).nodes[2].hash


def test_a_uid_is_given_once() -> None:
    with pytest.raises(JobGraphError, match="operators 'Map' and 'again' have the same uid 'count'"):
        build(mapped(mapped(source(), uid="count"), uid="count", name="again"))


@pytest.mark.parametrize(
    ("mode", "is_bounded", "is_batch"),
    [
        ("STREAMING", True, False),
        ("STREAMING", False, False),
        ("BATCH", True, True),
        ("AUTOMATIC", True, True),
        ("AUTOMATIC", False, False),
    ],
)
def test_the_runtime_mode_decides_whether_results_are_final(mode: str, is_bounded: bool, is_batch: bool) -> None:
    graph = build(mapped(source(is_bounded=is_bounded)), runtime_mode=mode)

    assert graph.is_batch is is_batch


def test_batch_needs_inputs_that_end() -> None:
    with pytest.raises(JobGraphError, match="'Source: S' is unbounded; use STREAMING or AUTOMATIC"):
        build(mapped(source(is_bounded=False)), runtime_mode="BATCH")


def test_the_plan_is_flinks_json() -> None:
    start = source(parallelism=2)
    keyed = partitioned(start, KeyGroups(len))
    kept = mapped(keyed, name="Filter", parallelism=2, description="only some")
    printed = mapped(kept, name="Print to Std. Out", label="Sink: {}", is_sink=True)
    written = mapped(kept, name="Sink", label="{}: Writer", is_sink=True)

    plan = json.loads(execution_plan(build_stream_graph([printed, written], "job", StreamGraphSettings())))

    def node(number: int, kind: str, pact: str, parallelism: int, **more: Any) -> dict[str, Any]:
        return {"id": number, "type": kind, "pact": pact, "contents": kind, "parallelism": parallelism, **more}

    hashed = [{"id": 1, "ship_strategy": "HASH", "side": "second"}]
    rebalanced = [{"id": 2, "ship_strategy": "REBALANCE", "side": "second"}]
    assert plan == {
        "nodes": [
            node(1, "Source: S", "Data Source", 2),
            node(2, "Filter", "Operator", 2, predecessors=hashed) | {"contents": "only some"},
            node(3, "Sink: Print to Std. Out", "Data Sink", 1, predecessors=rebalanced),
            node(4, "Sink: Writer", "Data Sink", 1, predecessors=rebalanced),
        ]
    }


def test_settings_travel_with_the_node() -> None:
    graph = build(mapped(source(), chaining=ChainingStrategy.HEAD), is_chaining_enabled=False)

    assert graph.nodes[2].transformation.chaining is ChainingStrategy.HEAD
    assert graph.settings.environment.is_chaining_enabled is False
    assert graph.nodes[2].transformation.factory.target == MAP.target


def test_only_a_stream_behind_key_by_is_keyed() -> None:
    """A stream of another partitioning is not keyed, nor is the output of an operator on a keyed stream."""
    keyed = partitioned(source(), KeyGroups(len))

    assert key_selector_of(source()) is None
    assert key_selector_of(partitioned(source(), Rebalance())) is None
    assert key_selector_of(keyed) is len
    assert key_selector_of(mapped(keyed)) is None


def test_an_operator_has_its_name_with_what_flink_puts_around_it() -> None:
    written = mapped(source(), "files", label="{}: Writer")

    assert (source("{x}").operator_name, written.operator_name) == ("Source: {x}", "files: Writer")


def test_two_equal_looking_transformations_are_two_operators() -> None:
    one, other = source(), source()

    assert one != other
    assert len({one, other}) == 2


def test_records_may_be_anything_unless_declared() -> None:
    assert source().output_type == Types.PICKLED_BYTE_ARRAY()


# -------------------------------------------------- unions, side outputs and operators with two inputs


CO_MAP = OperatorFactory.of("flowlet.operators.co_functions:CoMapOperator", function=object())


def union(*streams: Transformation) -> UnionTransformation:
    return UnionTransformation(name="Union", streams=streams)


def side(upstream: Transformation, tag_id: str) -> SideOutputTransformation:
    return SideOutputTransformation(name="Side", input=upstream, tag_id=tag_id)


def rebalanced(upstream: Transformation) -> Transformation:
    return partitioned(upstream, Rebalance())


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

    assert [graph.nodes[number].name for number in graph.nodes] == ["Source: A", "Source: B", "Source: C", "Map"]
    assert graph.edges == [StreamEdge(1, 4, Forward()), StreamEdge(2, 4, Rebalance()), StreamEdge(3, 4, Forward())]


def test_a_partitioning_of_a_union_counts_for_all_its_streams() -> None:
    graph = stream_graph(mapped(rebalanced(union(source("A"), source("B")))))

    assert [edge.partitioner for edge in graph.edges] == [Rebalance(), Rebalance()]


def test_an_operator_that_reads_several_streams_begins_a_task() -> None:
    graph = job_graph(mapped(mapped(union(source("A"), source("B"))), "N"))

    assert [vertex.name for vertex in graph.vertices] == ["Source: A", "Source: B", "Map -> N"]
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
    keyed = partitioned(source("B"), KeyGroups(len))
    operator = connected(union(source("A"), source("A2")), keyed)

    graph = job_graph(operator)

    inputs = [(edge.name.split(" -> ")[0], edge.input_id) for edge in graph.edges]
    assert inputs == [("Source: A", 1), ("Source: A2", 1), ("Source: B", 2)]


def test_the_slot_sharing_group_is_that_of_the_inputs_if_they_agree() -> None:
    def group(first: str, second: str) -> str:
        graph = stream_graph(connected(source("A", slot_sharing_group=first), source("B", slot_sharing_group=second)))
        return graph.nodes[3].slot_sharing_group

    assert group("x", "x") == "x"
    assert group("x", "y") == DEFAULT_SLOT_SHARING_GROUP


def test_a_union_of_nothing_is_refused() -> None:
    with pytest.raises(JobGraphError, match="reads nothing"):
        stream_graph(mapped(None))


def test_a_connected_stream_is_in_no_chain_behind_its_key_bys() -> None:
    """A connected stream reads two inputs, whatever the parallelism."""
    keyed = [partitioned(source(name), KeyGroups(len)) for name in "AB"]

    graph = stream_graph(connected(*keyed))

    assert [is_chainable(edge, graph) for edge in graph.edges] == [False, False]
