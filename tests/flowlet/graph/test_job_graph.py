"""Promises of ``JobGraph``."""

import re
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.errors import JobGraphError
from flowlet.graph.job_graph import JobEdge, JobGraph, JobVertex, is_id, needed_slots, slots_by_group, stable_id
from flowlet.graph.partitioner import Forward, KeyGroups, Rebalance


@dataclass(frozen=True)
class Link:
    operator: Any
    parent: int


def chain(*names: str) -> list[Link]:
    return [Link(SimpleNamespace(name=name), index - 1) for index, name in enumerate(names)]


SOURCE = JobVertex(stable_id("source"), "Source -> Split", 2, 128, chain("Source", "Split"))
COUNT = JobVertex(stable_id("count"), "Count", 2, 128, chain("Count"))
SPLIT_TO_COUNT = JobEdge(SOURCE.id, 1, COUNT.id, KeyGroups(len))
GRAPH = JobGraph("words", vertices=[SOURCE, COUNT], edges=[SPLIT_TO_COUNT])


def with_edge(**changes: Any) -> JobGraph:
    return replace(GRAPH, edges=[replace(SPLIT_TO_COUNT, **changes)])


def with_source(**changes: Any) -> JobGraph:
    return replace(GRAPH, vertices=[replace(SOURCE, **changes), COUNT])


def test_a_graph_built_by_hand_is_valid() -> None:
    GRAPH.validate()

    assert is_id(GRAPH.job_id)
    assert SOURCE.operator_names == ["Source", "Split"]


def test_two_runs_of_a_program_have_different_job_ids_but_equal_edge_ids() -> None:
    assert JobGraph("a").job_id != JobGraph("a").job_id
    assert SPLIT_TO_COUNT.id == JobEdge(SOURCE.id, 1, COUNT.id, KeyGroups(str)).id
    assert is_id(SPLIT_TO_COUNT.id)


@pytest.mark.parametrize(
    "other",
    [
        JobEdge(COUNT.id, 1, COUNT.id, KeyGroups(len)),
        JobEdge(SOURCE.id, 0, COUNT.id, KeyGroups(len)),
        JobEdge(SOURCE.id, 1, None, Forward()),
        JobEdge(SOURCE.id, 1, COUNT.id, Rebalance()),
        JobEdge(SOURCE.id, 1, COUNT.id, KeyGroups(len), name="second"),
    ],
)
def test_different_edges_have_different_ids(other: JobEdge) -> None:
    assert other.id != SPLIT_TO_COUNT.id


def test_vertices_and_their_edges_are_found() -> None:
    collect = JobEdge(COUNT.id, 0, None, Forward())
    graph = replace(GRAPH, edges=[SPLIT_TO_COUNT, collect])

    graph.validate()

    assert graph.vertex(COUNT.id) is COUNT
    assert graph.inputs_of(COUNT.id) == [SPLIT_TO_COUNT]
    assert graph.inputs_of(SOURCE.id) == []
    assert graph.outputs_of(COUNT.id) == graph.external_edges() == [collect]
    with pytest.raises(JobGraphError, match="no vertex 'x'"):
        graph.vertex("x")


def test_slots_are_those_of_the_widest_vertex_of_each_group() -> None:
    graph = JobGraph(
        "slots",
        vertices=[
            replace(SOURCE, parallelism=3),
            COUNT,
            replace(COUNT, id=stable_id("other"), parallelism=4, slot_sharing_group="heavy"),
        ],
    )

    assert slots_by_group(graph) == {"default": 3, "heavy": 4}
    assert needed_slots(graph) == 7


@given(order=st.permutations(range(6)), edges=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_topological_order_puts_every_vertex_behind_what_it_reads(
    order: list[int], edges: set[tuple[int, int]]
) -> None:
    """For every acyclic graph, in whatever order its vertices are listed."""
    vertices = [replace(COUNT, id=stable_id(number)) for number in range(6)]
    forward = [JobEdge(stable_id(low), 0, stable_id(high), Forward()) for low, high in edges if low < high]
    graph = JobGraph("order", vertices=[vertices[number] for number in order], edges=forward)

    graph.validate()
    position = {vertex.id: index for index, vertex in enumerate(graph.topological_order())}

    assert len(position) == 6
    assert all(position[edge.source] < position[edge.target or ""] for edge in forward)


def test_independent_vertices_keep_their_order() -> None:
    vertices = [replace(COUNT, id=stable_id(number)) for number in (3, 1, 2)]

    assert JobGraph("order", vertices=vertices).topological_order() == vertices


def test_a_cycle_is_refused_by_the_names_on_it() -> None:
    back = JobEdge(COUNT.id, 0, SOURCE.id, Forward())

    with pytest.raises(JobGraphError, match=r"cycle .*'Source -> Split', 'Count'; remove an edge"):
        replace(GRAPH, edges=[SPLIT_TO_COUNT, back]).validate()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (JobGraph("empty"), "job 'empty' has no vertices: add"),
        (replace(GRAPH, job_id="7"), "job 'words': a job id has 32 lower-case hex digits, got '7'"),
        (replace(GRAPH, vertices=[SOURCE, SOURCE]), "the vertex id .* occurs twice"),
        (replace(GRAPH, edges=[SPLIT_TO_COUNT, SPLIT_TO_COUNT]), "the edge id .* occurs twice"),
        (with_source(id="x"), "vertex 'Source -> Split': an id has 32 lower-case hex digits, got 'x'"),
        (with_source(name=""), "needs a name"),
        (
            with_source(slot_sharing_group=""),
            r"vertex 'Source -> Split' \(.*\): the name of its slot sharing group is empty",
        ),
        (with_source(parallelism=0), "parallelism must be 1 or more, got 0"),
        (with_source(max_parallelism=0), "max parallelism must be from 1 to 32768, got 0"),
        (with_source(max_parallelism=32769), "max parallelism must be from 1 to 32768, got 32769"),
        (with_source(max_parallelism=1), "its parallelism 2 exceeds its max parallelism 1; lower"),
        (with_source(chain=[]), "its chain is empty"),
        (
            with_source(chain=[Link(None, 0)]),
            "operator 0 of its chain has parent 0; it must be -1, because it is the head",
        ),
        (
            with_source(chain=[Link(None, -1), Link(None, 1)]),
            r"operator 1 of its chain has parent 1; it must be one of 0\.\.0",
        ),
        (with_source(chain=[Link(None, -1), Link(None, -1)]), "operator 1 of its chain has parent -1"),
        (with_edge(id="x"), "an id has 32 lower-case hex digits, got 'x'"),
        (with_edge(buffer_timeout_ms=-2), "its buffer timeout must be -1 .* got -2"),
        (with_edge(source=stable_id("nobody")), "it begins at '.*', which is no vertex"),
        (with_edge(target=stable_id("nobody")), "it ends at '.*', which is no vertex"),
        (with_edge(source_operator=2), "it begins at operator 2 of vertex .*, which has 2"),
        (with_edge(source_operator=-1), "it begins at operator -1"),
        (with_edge(target=None), "the client reads it, so its partitioner must be Forward, not HASH"),
        (
            with_edge(partitioner=KeyGroups(len, 64)),
            "it has 64 key groups, but vertex 'Count' .* has max parallelism 128",
        ),
        (
            replace(
                GRAPH,
                vertices=[replace(SOURCE, parallelism=3), COUNT],
                edges=[replace(SPLIT_TO_COUNT, partitioner=Forward())],
            ),
            (
                r"a forward edge needs equal parallelisms, but vertex 'Source .* has 3 and vertex 'Count' .* has 2; use "  # noqa: E501
                r"rebalance\(\)"
            ),
        ),
    ],
)
def test_what_is_wrong_is_named(graph: JobGraph, message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        graph.validate()


def test_extreme_but_valid_numbers_are_accepted() -> None:
    graph = JobGraph("wide", vertices=[JobVertex(stable_id(1), "wide", 32768, 32768, chain("a"))])

    graph.validate()
    with_edge(buffer_timeout_ms=-1).validate()


@given(parts=st.lists(st.one_of(st.text(), st.integers(), st.none())))
def test_ids_follow_from_their_parts(parts: list[object]) -> None:
    assert is_id(stable_id(*parts))
    assert stable_id(*parts) == stable_id(*parts)
    assert stable_id(*parts) != stable_id(*parts, "more")


@pytest.mark.parametrize("value", [None, 7, "", "f" * 31, "F" * 32, "g" * 32, b"f" * 32])
def test_other_things_are_no_ids(value: object) -> None:
    assert not is_id(value)


def test_vertices_and_edges_print_for_people() -> None:
    assert re.fullmatch(r"vertex 'Count' \([0-9a-f]{8}\)", str(COUNT))
    assert str(JobEdge(SOURCE.id, 1, None, Forward(), name="out")) == f"edge 'out' ({SOURCE.id[:8]} -> client)"
    assert str(SPLIT_TO_COUNT) == f"edge '{SPLIT_TO_COUNT.id[:8]}' ({SOURCE.id[:8]} -> {COUNT.id[:8]})"
