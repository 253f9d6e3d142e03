"""Tests of ``flowlet.jm.scheduler``."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.job_settings import JobSettings, RestartKind, RestartSettings
from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.graph.partitioner import consumers_of
from flowlet.jm.scheduler import fails_as_one, pipelined_regions, region_order
from flowlet.messages.control_messages import (
    EdgeMessage,
    JobGraphMessage,
    RemoteGateMessage,
    VertexMessage,
)
from flowlet.messages.execution_state import Subtask
from flowlet.splits.split_kinds import FileSet
from tests.flowlet.jm.scripted_task_manager import JOB_ID, edge, vertex, word_count

A, B, C, D = (f"{number:032x}" for number in range(11, 15))
FILES = FileSet(("/data",))
ALIGNED = WatermarkAlignment("group", 1, 10)


def job(vertices: list[VertexMessage], edges: list[EdgeMessage], *, is_regional: bool = True) -> JobGraphMessage:
    restart = RestartSettings(RestartKind.FIXED_DELAY, is_regional=is_regional)
    return JobGraphMessage(JOB_ID, "job", vertices, edges, settings=JobSettings(restart=restart))


def edge_of(number: int, source: str, target: str | None, *, is_pointwise: bool = False) -> EdgeMessage:
    return edge(f"{number:032x}", source, target, is_pointwise=is_pointwise)


def sources(*, files: FileSet | None = None, aligned: WatermarkAlignment | None = None) -> list[VertexMessage]:
    """Two of two subtasks each."""
    return [
        msgspec.structs.replace(vertex(each, "source", 2), split_set=files, watermark_alignment=aligned)
        for each in (A, B)
    ]


def test_subtasks_without_edges_are_regions_of_their_own() -> None:
    assert pipelined_regions(job(sources(), [])) == [[(A, 0)], [(A, 1)], [(B, 0)], [(B, 1)]]


def test_a_forward_edge_joins_a_subtask_with_its_partner() -> None:
    found = pipelined_regions(job(sources(), [edge_of(1, A, B, is_pointwise=True)]))

    assert found == [[(A, 0), (B, 0)], [(A, 1), (B, 1)]]


def test_a_keyed_edge_joins_all_of_both_ends_and_nothing_else() -> None:
    vertices = [*sources(), vertex(C, "other"), vertex(D, "its sink")]

    found = pipelined_regions(job(vertices, [edge_of(1, A, B), edge_of(2, C, D)]))

    assert found == [[(A, 0), (A, 1), (B, 0), (B, 1)], [(C, 0), (D, 0)]]


@given(st.integers(1, 7), st.integers(1, 7))
def test_a_pointwise_edge_joins_exactly_those_that_exchange_records(num_producers: int, num_consumers: int) -> None:
    vertices = [vertex(A, "a", num_producers), vertex(B, "b", num_consumers)]

    found = pipelined_regions(job(vertices, [edge_of(1, A, B, is_pointwise=True)]))

    assert len(found) == min(num_producers, num_consumers)
    region_of = {subtask: number for number, region in enumerate(found) for subtask in region}
    for producer in range(num_producers):
        for consumer in consumers_of(producer, num_producers, num_consumers):
            assert region_of[Subtask(A, producer)] == region_of[Subtask(B, consumer)]


def test_a_source_whose_splits_are_handed_out_is_in_one_region() -> None:
    """Splits that a failed reader gave back would go to any of its neighbours."""
    assert pipelined_regions(job(sources(files=FILES), [])) == [[(A, 0), (A, 1)], [(B, 0), (B, 1)]]


def test_aligned_sources_are_in_one_region() -> None:
    assert pipelined_regions(job(sources(aligned=ALIGNED), [])) == [[(A, 0), (A, 1), (B, 0), (B, 1)]]


def test_sources_of_different_alignment_groups_are_not() -> None:
    first, second = sources(aligned=ALIGNED)
    second = msgspec.structs.replace(second, watermark_alignment=WatermarkAlignment("other", 1, 10))

    assert len(pipelined_regions(job([first, second], []))) == 2


def test_a_job_that_the_client_reads_is_one_region() -> None:
    """Parts that have nothing to do with the results belong to the region, too."""
    assert len(pipelined_regions(job(sources(), [edge_of(1, A, None)]))) == 1


def test_a_job_with_a_remote_gate_is_one_region() -> None:
    first, second = sources()
    gate = RemoteGateMessage("gate", "long", bytes(16), b"")

    assert len(pipelined_regions(job([msgspec.structs.replace(first, remote_gate=gate), second], []))) == 1


def test_the_strategy_full_makes_one_region() -> None:
    assert len(pipelined_regions(job(sources(), [], is_regional=False))) == 1


def test_regions_hold_each_subtask_once_in_the_order_of_deployment() -> None:
    (region,) = pipelined_regions(word_count(sources=2, sinks=3))

    assert [subtask for _, subtask in region] == [0, 1, 0, 1, 2]


def blocking(edge_message: EdgeMessage) -> EdgeMessage:
    return msgspec.structs.replace(edge_message, is_blocking=True)


def test_a_blocking_edge_joins_nothing_and_orders_its_ends() -> None:
    """Each subtask is a region; a consumer's stage comes after those of all producers that it reads."""
    of_blocking = job(sources(), [blocking(edge_of(1, A, B))])

    regions = pipelined_regions(of_blocking)

    assert regions == [[(A, 0)], [(A, 1)], [(B, 0)], [(B, 1)]]
    order = region_order(of_blocking, regions)
    assert (list(order.producers), list(order.stages)) == ([frozenset(), frozenset(), {0, 1}, {0, 1}], [0, 0, 1, 1])


def test_on_a_blocking_pointwise_edge_partners_are_read() -> None:
    """A region reads its partners alone."""
    of_blocking = job(sources(), [blocking(edge_of(1, A, B, is_pointwise=True))])

    assert list(region_order(of_blocking, pipelined_regions(of_blocking)).producers) == [
        frozenset(),
        frozenset(),
        {0},
        {1},
    ]


def test_a_job_in_stages_that_the_client_reads_keeps_its_regions_and_fails_as_one() -> None:
    """Stages need regions; results are one stream from run to run."""
    read = job(sources(), [blocking(edge_of(1, A, B)), edge_of(2, B, None)])

    assert len(pipelined_regions(read)) == 4
    assert fails_as_one(read)
