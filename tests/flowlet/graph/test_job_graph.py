"""Promises of ``JobGraph``."""

import re
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.errors import JobGraphError
from flowlet.graph.job_graph import JobEdge, JobGraph, JobVertex, is_id, needed_slots, stable_id
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


def test_a_vertex_names_its_operators_and_a_graph_has_an_id() -> None:
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


def test_slots_are_those_of_the_widest_vertex_of_each_group() -> None:
    graph = JobGraph(
        "slots",
        vertices=[
            replace(SOURCE, parallelism=3),
            COUNT,
            replace(COUNT, id=stable_id("other"), parallelism=4, slot_sharing_group="heavy"),
        ],
    )

    assert needed_slots(graph) == 7


@given(order=st.permutations(range(6)), edges=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_topological_order_puts_every_vertex_behind_what_it_reads(
    order: list[int], edges: set[tuple[int, int]]
) -> None:
    """The law holds for every acyclic graph, in whatever order its vertices are listed."""
    vertices = [replace(COUNT, id=stable_id(number)) for number in range(6)]
    forward = [JobEdge(stable_id(low), 0, stable_id(high), Forward()) for low, high in edges if low < high]
    graph = JobGraph("order", vertices=[vertices[number] for number in order], edges=forward)

    position = {vertex.id: index for index, vertex in enumerate(graph.topological_order())}

    assert len(position) == 6
    assert all(position[edge.source] < position[edge.target or ""] for edge in forward)


def test_independent_vertices_keep_their_order() -> None:
    vertices = [replace(COUNT, id=stable_id(number)) for number in (3, 1, 2)]

    assert JobGraph("order", vertices=vertices).topological_order() == vertices


def test_a_cycle_is_refused_by_the_names_on_it() -> None:
    back = JobEdge(COUNT.id, 0, SOURCE.id, Forward())

    with pytest.raises(JobGraphError, match=r"cycle .*'Source -> Split', 'Count'; remove an edge"):
        replace(GRAPH, edges=[SPLIT_TO_COUNT, back]).topological_order()


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
