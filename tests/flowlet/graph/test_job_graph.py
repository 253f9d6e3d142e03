"""Promises of ``JobGraph`` and the partitioners of its edges.

Source: Flink `StreamPartitionerTest`, `RescalePartitionerTest` (who meets whom), `VertexInputInfoComputationUtilsTest`.
"""

import pickle
import re
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.datastream import KeySelector
from flowlet.errors import JobGraphError
from flowlet.graph.job_graph import JobEdge, JobGraph, JobVertex, is_id, needed_slots, stable_id
from flowlet.graph.partitioner import (
    Broadcast,
    Custom,
    Forward,
    Global,
    KeyGroups,
    Partitioner,
    Rebalance,
    Rescale,
    Shuffle,
    consumers_of,
    producers_of,
)


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


# -------------------------------------------------------------------- partitioners


class Modulo:
    """An object with PyFlink's method."""

    def partition(self, key: int, num_partitions: int) -> int:
        return key % num_partitions


class FirstField(KeySelector):
    def get_key(self, value: tuple[str, int]) -> str:
        return value[0]


@pytest.mark.parametrize(
    ("partitioner", "strategy", "is_pointwise"),
    [
        (Forward(), "FORWARD", True),
        (Rebalance(), "REBALANCE", False),
        (Rescale(), "RESCALE", True),
        (Shuffle(), "SHUFFLE", False),
        (Global(), "GLOBAL", False),
        (Custom(max, len), "CUSTOM", False),
        (Broadcast(), "BROADCAST", False),
        (KeyGroups(len), "HASH", False),
    ],
)
def test_a_partitioner_says_how_it_ships(partitioner: Partitioner, strategy: str, is_pointwise: bool) -> None:
    assert (partitioner.ship_strategy, partitioner.is_pointwise) == (strategy, is_pointwise)
    assert pickle.loads(pickle.dumps(partitioner)) == partitioner


def test_a_key_function_comes_from_a_callable_or_from_a_selector() -> None:
    assert KeyGroups(len).key_function("abc") == 3
    assert KeyGroups(FirstField()).key_function(("a", 1)) == "a"


def test_a_custom_choice_comes_from_callables_or_from_objects() -> None:
    assert Custom(max, len).channel_function(3, 2) == 3
    assert Custom(Modulo(), FirstField()).channel_function(5, 3) == 2
    assert Custom(Modulo(), FirstField()).key_function(("a", 1)) == "a"


# (producers, consumers) -> whom each producer feeds
POINTWISE: dict[tuple[int, int], list[list[int]]] = {
    (3, 3): [[0], [1], [2]],
    (2, 4): [[0, 1], [2, 3]],
    (4, 2): [[0], [0], [1], [1]],
    (1, 3): [[0, 1, 2]],
    (3, 1): [[0], [0], [0]],
    (3, 7): [[0, 1, 2], [3, 4], [5, 6]],
    (7, 3): [[0], [0], [1], [1], [2], [2], [2]],
    (2, 3): [[0, 1], [2]],
    (3, 2): [[0], [1], [1]],
}


@pytest.mark.parametrize(("num_producers", "num_consumers"), POINTWISE)
def test_pointwise_edges_spread_evenly(num_producers: int, num_consumers: int) -> None:
    """The larger side is cut into runs of (almost) equal length."""
    fed = [list(consumers_of(producer, num_producers, num_consumers)) for producer in range(num_producers)]

    assert fed == POINTWISE[num_producers, num_consumers]


@given(num_producers=st.integers(1, 60), num_consumers=st.integers(1, 60))
def test_both_sides_of_a_pointwise_edge_agree(num_producers: int, num_consumers: int) -> None:
    """Each subtask of either side has a partner, and the numbers of partners differ by at most one."""
    written = {
        (producer, consumer)
        for producer in range(num_producers)
        for consumer in consumers_of(producer, num_producers, num_consumers)
    }
    read = {
        (producer, consumer)
        for consumer in range(num_consumers)
        for producer in producers_of(consumer, num_producers, num_consumers)
    }

    assert written == read
    assert len(written) == max(num_producers, num_consumers)
    assert {producer for producer, _ in read} == set(range(num_producers))
    assert {consumer for _, consumer in read} == set(range(num_consumers))
    sizes = {len(consumers_of(producer, num_producers, num_consumers)) for producer in range(num_producers)}
    assert max(sizes) - min(sizes) <= 1
