"""Promises of ``build_stream_graph`` and ``execution_plan``."""

import json
from typing import Any

import pytest

from flowlet.common.execution_config import EnvironmentSettings
from flowlet.errors import JobGraphError
from flowlet.graph.partitioner import Broadcast, Forward, KeyGroups, Partitioner, Rebalance
from flowlet.graph.stream_graph import StreamGraph, StreamGraphSettings, build_stream_graph, execution_plan
from flowlet.graph.transformation import (
    ChainingStrategy,
    CollectTransformation,
    GraphValue,
    OperatorFactory,
    OperatorTransformation,
    PartitionTransformation,
    SourceTransformation,
    Transformation,
)

SETTINGS = StreamGraphSettings()


READ = OperatorFactory.of("flowlet.operators.source_operator:SourceOperator", source=GraphValue.SOURCE)
MAP = OperatorFactory.of("flowlet.operators.process_operator:MapOperator", function=str)


def source(**changes: Any) -> SourceTransformation:
    return SourceTransformation(**{"name": "numbers", "source": object(), "factory": READ, **changes})


def mapped(upstream: Transformation | None, **changes: Any) -> OperatorTransformation:
    return OperatorTransformation(**{"name": "Map", "input": upstream, "factory": MAP, **changes})


def partitioned(upstream: Transformation, partitioner: Partitioner) -> PartitionTransformation:
    return PartitionTransformation(name="Partition", input=upstream, partitioner=partitioner)


def build(*transformations: Transformation, **settings: Any) -> StreamGraph:
    return build_stream_graph(transformations, "job", StreamGraphSettings(EnvironmentSettings(**settings)))


def test_everything_that_is_read_is_part_of_the_graph_once() -> None:
    start = source()
    left, right = mapped(start, name="left"), mapped(start, name="right")

    graph = build(right, left, right)

    assert [node.name for node in graph.nodes.values()] == ["Source: numbers", "right", "left"]
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

    assert [node.name for node in graph.nodes.values()] == ["Source: numbers", "Map"]
    assert graph.edges[0].partitioner == Broadcast()


def test_of_two_partitionings_the_one_next_to_the_reader_counts() -> None:
    graph = build(mapped(partitioned(partitioned(source(), KeyGroups(len)), Rebalance())))

    assert graph.edges[0].partitioner == Rebalance()


def test_forward_does_not_change_the_parallelism() -> None:
    start = source(parallelism=2)

    assert build(mapped(partitioned(start, Forward()), parallelism=2)).edges[0].partitioner == Forward()
    with pytest.raises(
        JobGraphError,
        match=r"forward\(\) from 'Source: numbers' \(parallelism 2\) to 'Map' \(parallelism 3\): .* use rebalance",
    ):
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
    after = build(mapped(mapped(source(name="other")), uid="count"))

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
    with pytest.raises(JobGraphError, match="'Source: numbers' is unbounded; use STREAMING or AUTOMATIC"):
        build(mapped(source(is_bounded=False)), runtime_mode="BATCH")


def test_the_plan_is_flinks_json() -> None:
    start = source(parallelism=2)
    keyed = partitioned(start, KeyGroups(len))
    kept = mapped(keyed, name="Filter", parallelism=2, description="only some")
    printed = mapped(kept, name="Print to Std. Out", label="Sink: {}", is_sink=True)
    written = mapped(kept, name="Sink", label="{}: Writer", is_sink=True)

    plan = json.loads(execution_plan(build_stream_graph([printed, written], "job", SETTINGS)))

    assert plan == {
        "nodes": [
            {
                "id": 1,
                "type": "Source: numbers",
                "pact": "Data Source",
                "contents": "Source: numbers",
                "parallelism": 2,
            },
            {
                "id": 2,
                "type": "Filter",
                "pact": "Operator",
                "contents": "only some",
                "parallelism": 2,
                "predecessors": [{"id": 1, "ship_strategy": "HASH", "side": "second"}],
            },
            {
                "id": 3,
                "type": "Sink: Print to Std. Out",
                "pact": "Data Sink",
                "contents": "Sink: Print to Std. Out",
                "parallelism": 1,
                "predecessors": [{"id": 2, "ship_strategy": "REBALANCE", "side": "second"}],
            },
            {
                "id": 4,
                "type": "Sink: Writer",
                "pact": "Data Sink",
                "contents": "Sink: Writer",
                "parallelism": 1,
                "predecessors": [{"id": 2, "ship_strategy": "REBALANCE", "side": "second"}],
            },
        ]
    }


def test_settings_travel_with_the_node() -> None:
    graph = build(mapped(source(), chaining=ChainingStrategy.HEAD), is_chaining_enabled=False)

    assert graph.nodes[2].transformation.chaining is ChainingStrategy.HEAD
    assert graph.settings.environment.is_chaining_enabled is False
    assert graph.nodes[2].transformation.factory.target == MAP.target
