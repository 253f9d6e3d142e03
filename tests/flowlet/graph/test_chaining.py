"""Promises of ``build_job_graph``."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common import Time
from flowlet.common.execution_config import EnvironmentSettings
from flowlet.common.job_settings import CheckpointSettings, JobSettings
from flowlet.datastream import KeyedStream, StreamExecutionEnvironment
from flowlet.datastream.keyed_stream import WindowedStream
from flowlet.datastream.window import TumblingEventTimeWindows
from flowlet.datastream.window.triggers import CountTrigger
from flowlet.graph.chaining import build_job_graph, is_chainable
from flowlet.graph.job_graph import JobGraph
from flowlet.graph.partitioner import Forward, KeyGroups, Partitioner, Rebalance
from flowlet.graph.stream_graph import StreamGraph, StreamGraphSettings, StreamNode, build_stream_graph
from flowlet.graph.transformation import (
    ChainingStrategy,
    CollectTransformation,
    OperatorTransformation,
    Transformation,
)
from tests.flowlet.graph import transformations
from tests.flowlet.graph.transformations import partitioned, source
from tests.flowlet.stream_graphs import graph_of, unstarted


@dataclass(frozen=True)
class Link:
    operator: Any
    parent: int
    edge: Any = None


def mapped(name: str, upstream: Transformation, *, has_timers: bool = False, **changes: Any) -> OperatorTransformation:
    return transformations.mapped(upstream, name, takes_single_records=not has_timers, **changes)


def stream_graph(*last: Transformation, job: JobSettings | None = None, **settings: Any) -> StreamGraph:
    environment = EnvironmentSettings(**settings)
    return build_stream_graph(last, "job", StreamGraphSettings(environment, job=job or JobSettings()))


def operator_of(node: StreamNode) -> SimpleNamespace:
    return SimpleNamespace(name=node.name)


def job_graph(*last: Transformation, **settings: Any) -> JobGraph:
    return build_job_graph(stream_graph(*last, **settings), operator_of, Link)


def names(graph: JobGraph) -> list[str]:
    return [vertex.name for vertex in graph.vertices]


def test_a_line_of_operators_becomes_one_vertex() -> None:
    graph = job_graph(mapped("B", mapped("A", source())))

    (vertex,) = graph.vertices
    assert vertex.name == "Source: S -> A -> B"
    assert vertex.operator_names == ["Source: S", "A", "B"]
    assert [link.parent for link in vertex.chain] == [-1, 0, 1]
    assert list(graph.edges) == []


def test_a_chain_may_branch() -> None:
    start = source()
    left = mapped("A", start)

    graph = job_graph(mapped("B", left), mapped("C", start), mapped("D", left))

    (vertex,) = graph.vertices
    assert vertex.name == "Source: S -> (A -> (B, D), C)"
    assert vertex.operator_names == ["Source: S", "A", "B", "D", "C"]
    assert [link.parent for link in vertex.chain] == [-1, 0, 1, 1, 0]


def test_a_vertex_begins_where_records_change_their_subtask() -> None:
    keyed = partitioned(mapped("A", source(parallelism=2), parallelism=2), KeyGroups(len))

    graph = job_graph(mapped("C", mapped("B", keyed, parallelism=2), parallelism=2))

    assert names(graph) == ["Source: S -> A", "B -> C"]
    (edge,) = graph.edges
    assert (edge.source, edge.source_operator, edge.target) == (graph.vertices[0].id, 1, graph.vertices[1].id)
    assert edge.partitioner == KeyGroups(len, 128)
    assert edge.name == "A -> B #1"


def keyed_pair(**second: Any) -> list[str]:
    parallelism = second.pop("before", 1)
    upstream = mapped("A", source(parallelism=parallelism), parallelism=parallelism)
    return names(job_graph(mapped("B", partitioned(upstream, second.pop("partitioner", KeyGroups(len))), **second)))


def test_a_key_by_between_single_subtasks_is_inside_a_vertex() -> None:
    """Single subtasks exchange no records; the edge in the chain still knows the selector."""
    graph = job_graph(mapped("C", mapped("B", partitioned(mapped("A", source()), KeyGroups(len)))))

    assert names(graph) == ["Source: S -> A -> B -> C"]
    assert list(graph.edges) == []
    partitioners = [link.edge and link.edge.partitioner for link in graph.vertices[0].chain if isinstance(link, Link)]
    assert partitioners == [None, Forward(), KeyGroups(len, 128), Forward()]


def test_a_key_by_begins_a_vertex_with_unaligned_checkpoints() -> None:
    """A checkpoint of more subtasks has records in flight on its edge."""
    step = mapped("B", partitioned(mapped("A", source()), KeyGroups(len)))

    for is_unaligned in (False, True):
        checkpoints = CheckpointSettings(1000, "/dir", is_unaligned=is_unaligned)
        assert len(names(job_graph(step, job=JobSettings(checkpoints=checkpoints)))) == (2 if is_unaligned else 1)


@pytest.mark.parametrize(
    "second",
    [
        {"before": 2, "parallelism": 2},
        {"before": 2, "parallelism": 1},
        {"before": 1, "parallelism": 2},
        {"chaining": ChainingStrategy.HEAD},
        {"chaining": ChainingStrategy.NEVER},
        {"slot_sharing_group": "other"},
        {"partitioner": Rebalance()},
    ],
    ids=str,
)
def test_a_key_by_begins_a_vertex_wherever_it_exchanges_or_something_forbids_the_chain(second: dict[str, Any]) -> None:
    """Any other exchange begins a vertex, too, even one between single subtasks."""
    assert keyed_pair(**second) == ["Source: S -> A", "B"]


def test_a_key_by_begins_a_vertex_when_chaining_is_off_or_forbidden_before_it() -> None:
    keyed = partitioned(mapped("A", source(), chaining=ChainingStrategy.NEVER), KeyGroups(len))

    assert names(job_graph(mapped("B", keyed))) == ["Source: S", "A", "B"]
    keyed = partitioned(mapped("A", source()), KeyGroups(len))
    assert names(job_graph(mapped("B", keyed), is_chaining_enabled=False)) == ["Source: S", "A", "B"]


def test_records_go_forward_by_key_where_there_is_one_subtask() -> None:
    assert names(job_graph(mapped("A", partitioned(source(), KeyGroups(len))))) == ["Source: S -> A"]


def test_timers_behind_key_by_are_not_in_the_task_of_the_source() -> None:
    """A source may wait for its next record as long as it likes, which would hold up the timers."""
    graph = job_graph(mapped("B", mapped("A", partitioned(source(), KeyGroups(len)), has_timers=True)))

    assert names(graph) == ["Source: S", "A -> B"]


def tasks_of_windows(key: Callable[[StreamExecutionEnvironment], KeyedStream], trigger: Any = None) -> list[str]:
    """Return the names of the tasks of a program with windows of event time, on keyed streams of one subtask."""
    environment = unstarted().set_parallelism(1)
    windows = WindowedStream(key(environment), TumblingEventTimeWindows.of(Time.seconds(1)))
    (windows if trigger is None else windows.trigger(trigger)).reduce(min).name("W")
    return names(build_job_graph(graph_of(environment.execute), operator_of, Link))


def of_records(environment: StreamExecutionEnvironment) -> KeyedStream:
    return environment.from_collection(["a"]).key_by(len)


def of_columns(environment: StreamExecutionEnvironment) -> KeyedStream:
    return environment.from_arrow(pa.table({"k": [1]})).key_by("k")


def test_windows_that_only_the_watermark_evaluates_are_chained_behind_a_key_by() -> None:
    """Windows that only the watermark evaluates have no timers of the clock."""
    assert tasks_of_windows(of_records) == ["Source: Collection Source -> W"]


def test_windows_with_a_trigger_of_their_own_and_those_of_columns_are_apart() -> None:
    """A trigger may register timers of the clock; columns are not taken apart on the way."""
    assert tasks_of_windows(of_records, CountTrigger.of(3)) == ["Source: Collection Source", "W"]
    assert tasks_of_windows(of_columns) == ["Source: Arrow Source", "W"]


def test_timers_without_an_exchange_are_chained() -> None:
    keyed = partitioned(source(), KeyGroups(len))

    graph = job_graph(mapped("B", mapped("A", keyed), has_timers=True))

    assert names(graph) == ["Source: S -> A -> B"]


def test_an_edge_begins_at_the_operator_that_feeds_it() -> None:
    start = source()
    middle = mapped("A", start)
    apart = mapped("C", partitioned(start, Rebalance())), mapped("D", partitioned(middle, Rebalance()))
    graph = job_graph(mapped("B", middle), *apart)

    assert names(graph) == ["Source: S -> A -> B", "C", "D"]
    by_id = {vertex.id: vertex.name for vertex in graph.vertices}
    assert [(edge.source_operator, by_id[edge.target or ""]) for edge in graph.edges] == [(0, "C"), (1, "D")]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"parallelism": 2}, {"parallelism": 3}),
        ({}, {"slot_sharing_group": "other"}),
        ({}, {"chaining": ChainingStrategy.HEAD}),
        ({}, {"chaining": ChainingStrategy.NEVER}),
        ({"chaining": ChainingStrategy.NEVER}, {}),
    ],
)
def test_two_operators_are_apart_when_anything_forbids_the_chain(first: dict[str, Any], second: dict[str, Any]) -> None:
    graph = job_graph(mapped("B", mapped("A", source(parallelism=first.get("parallelism", 1)), **first), **second))

    assert names(graph)[-1] == "B"


def test_a_head_may_be_followed() -> None:
    graph = job_graph(mapped("B", mapped("A", source(), chaining=ChainingStrategy.HEAD)))

    assert names(graph) == ["Source: S", "A -> B"]


def test_chaining_can_be_off_for_the_whole_job() -> None:
    assert names(job_graph(mapped("B", mapped("A", source())), is_chaining_enabled=False)) == ["Source: S", "A", "B"]


def test_operators_of_different_max_parallelism_share_a_task_which_has_its_heads() -> None:
    graph = job_graph(mapped("A", source(max_parallelism=64), max_parallelism=32))

    (vertex,) = graph.vertices
    assert vertex.max_parallelism == 64


def test_the_client_reads_the_operator_that_it_asked_for() -> None:
    middle = mapped("A", source(parallelism=2), parallelism=2, buffer_timeout_ms=7)

    graph = job_graph(mapped("B", middle, parallelism=2), CollectTransformation(name="Collect", input=middle))

    assert names(graph) == ["Source: S -> A -> B"]
    (edge,) = graph.external_edges()
    assert (edge.source_operator, edge.target, edge.partitioner, edge.buffer_timeout_ms) == (1, None, Forward(), 7)
    assert edge.name == "A -> client #2"


def test_ids_are_those_of_the_heads_and_the_same_each_time() -> None:
    def program() -> JobGraph:
        return job_graph(mapped("C", partitioned(mapped("A", source()), Rebalance()), uid="c"))

    first, second = program(), program()

    assert [vertex.id for vertex in first.vertices] == [vertex.id for vertex in second.vertices]
    assert [edge.id for edge in first.edges] == [edge.id for edge in second.edges]
    assert first.vertices[1].id == stream_graph(mapped("x", source(), uid="c")).nodes[2].hash


def test_two_edges_between_the_same_two_vertices_are_two_edges() -> None:
    start = source()
    graph = job_graph(
        mapped("A", partitioned(start, Rebalance())),
        mapped("B", partitioned(start, Rebalance())),
        CollectTransformation(name="c", input=start),
    )

    assert len({edge.id for edge in graph.edges}) == 3


def test_a_very_long_chain_is_no_problem() -> None:
    last: Transformation = source()
    for number in range(1_500):
        last = mapped(str(number), last)

    (vertex,) = job_graph(last).vertices

    assert len(vertex.chain) == 1_501
    assert vertex.name.endswith("1498 -> 1499")


partitioners: st.SearchStrategy[Partitioner] = st.sampled_from((Rebalance(), KeyGroups(len)))


@st.composite
def programs(draw: st.DrawFn) -> list[Transformation]:
    """Trees of up to 12 operators with random settings."""
    made: list[Transformation] = [source(parallelism=draw(st.integers(1, 2)))]
    for number in range(draw(st.integers(1, 11))):
        upstream = draw(st.sampled_from(made))
        if draw(st.integers(0, 3)) == 0:
            upstream = partitioned(upstream, draw(partitioners))
        made.append(
            mapped(
                f"M{number}",
                upstream,
                parallelism=draw(st.integers(1, 2)),
                chaining=draw(st.sampled_from(ChainingStrategy)),
                slot_sharing_group=draw(st.sampled_from([None, None, "other"])),
            )
        )
    return made[1:]


@given(last=programs())
def test_every_program_is_cut_without_loss(last: list[Transformation]) -> None:
    """Each operator is in one chain, each chain is chainable throughout, and each other edge is in the job graph."""
    streams = stream_graph(*last)

    graph = build_job_graph(streams, operator_of, Link)

    chained = sorted(name for vertex in graph.vertices for name in vertex.operator_names)
    assert chained == sorted(node.name for node in streams.nodes.values())
    inner = [edge for edge in streams.edges if is_chainable(edge, streams)]
    assert len(graph.edges) == len(streams.edges) - len(inner)
    assert sum(len(vertex.chain) - 1 for vertex in graph.vertices) == len(inner)
    by_name = {node.name: node for node in streams.nodes.values()}
    for vertex in graph.vertices:
        nodes = [by_name[name] for name in vertex.operator_names]
        assert {node.parallelism for node in nodes} == {vertex.parallelism}
        assert {node.slot_sharing_group for node in nodes} == {vertex.slot_sharing_group}
        for node, link in list(zip(nodes, vertex.chain, strict=True))[1:]:
            (edge,) = streams.inputs_of(node.id)
            assert nodes[link.parent].id == edge.source
            assert is_chainable(edge, streams)
