"""Tests of ``flowlet.jm.scheduler``: slots, the books of their pool, places of results, and regions."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowlet.common.job_settings import JobSettings, RestartKind, RestartSettings
from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.graph.partitioner import consumers_of
from flowlet.jm.scheduler import (
    DeploymentPlan,
    SlotPool,
    assign_tasks,
    attempt_id,
    fails_as_one,
    needed_slots,
    new_executions,
    next_attempt,
    pipelined_regions,
    region_order,
    slots_by_group,
    vertex_stages,
)
from flowlet.messages.control_messages import RegisterTaskManager
from flowlet.messages.execution_state import Subtask
from flowlet.messages.job_messages import EdgeMessage, JobGraphMessage, RemoteGateMessage, VertexMessage
from flowlet.splits.split_kinds import FileSet
from netstack.ids import intermediate_partition_id
from tests.flowlet.jm.scripted_task_manager import (
    COLLECT_ID,
    EDGE_ID,
    JOB_ID,
    SINK_ID,
    SOURCE_ID,
    edge,
    vertex,
    word_count,
)


def two_groups() -> JobGraphMessage:
    """Group a: vertices of width 1 and 3; group b: one of width 2."""
    middle = f"{99:032x}"
    vertices = [vertex(SOURCE_ID, "source", 1, "a"), vertex(middle, "middle", 2, "b"), vertex(SINK_ID, "sink", 3, "a")]
    return msgspec.structs.replace(word_count(), vertices=vertices, edges=[])


def pool_of(**slots: int) -> SlotPool:
    pool = SlotPool()
    for tm_id, num_slots in slots.items():
        pool.add(tm_id, num_slots)
    return pool


def test_a_group_needs_the_slots_of_its_widest_vertex() -> None:
    assert slots_by_group(two_groups()) == {(0, "a"): 3, (0, "b"): 2}
    assert needed_slots(two_groups()) == 5


def test_subtask_i_goes_to_slot_i_of_its_group() -> None:
    """One slot runs one subtask of every vertex of the group."""
    places = assign_tasks(two_groups(), new_executions(two_groups()))

    middle = f"{99:032x}"
    assert places[attempt_id(JOB_ID, SOURCE_ID, 0)] == 0
    assert [places[attempt_id(JOB_ID, SINK_ID, subtask)] for subtask in range(3)] == [0, 1, 2]
    assert [places[attempt_id(JOB_ID, middle, subtask)] for subtask in range(2)] == [3, 4]


def test_narrow_vertices_go_to_the_slots_with_the_fewest_tasks() -> None:
    """A single source and a single sink beside wide vertices go to one TaskManager each."""
    ids = [f"{number:032x}" for number in range(1, 5)]
    widths = (1, 2, 1, 1)
    vertices = [vertex(vertex_id, "v", width, "a") for vertex_id, width in zip(ids, widths, strict=True)]
    job = msgspec.structs.replace(word_count(), vertices=vertices, edges=[])

    assert list(assign_tasks(job, new_executions(job)).values()) == [0, 0, 1, 1, 0]


def test_a_vertex_that_is_fed_subtask_by_subtask_stays_beside_its_source() -> None:
    ids = [f"{number:032x}" for number in range(1, 4)]
    vertices = [vertex(vertex_id, "v", width, "a") for vertex_id, width in zip(ids, (2, 1, 1), strict=True)]
    forward = msgspec.structs.replace(word_count().edges[0], source=ids[1], target=ids[2], is_pointwise=True)
    job = msgspec.structs.replace(word_count(), vertices=vertices, edges=[forward])

    assert list(assign_tasks(job, new_executions(job)).values()) == [0, 1, 0, 0]


def test_a_vertex_of_a_later_stage_is_not_put_beside_a_source_where_its_group_has_no_slots() -> None:
    """Two narrow sources lie side by side; the reader of the second one has a group of their width alone."""
    ids = [f"{number:032x}" for number in range(1, 5)]
    vertices = [vertex(vertex_id, "v", width, "a") for vertex_id, width in zip(ids, (4, 2, 2, 2), strict=True)]
    read = msgspec.structs.replace(
        word_count().edges[0], source=ids[2], target=ids[3], is_pointwise=True, is_blocking=True
    )
    job = msgspec.structs.replace(word_count(), vertices=vertices, edges=[read])

    assert list(assign_tasks(job, new_executions(job)).values()) == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_every_subtask_is_an_execution_in_the_jobs_order() -> None:
    vertices = new_executions(two_groups())

    middle = f"{99:032x}"
    assert [(each.vertex_id, each.subtask) for each in vertices][:3] == [(SOURCE_ID, 0), (middle, 0), (middle, 1)]
    assert {each.attempt for each in vertices} == assign_tasks(two_groups(), vertices).keys()


def test_a_restarted_subtask_keeps_its_slot() -> None:
    """The slot belongs to the id of the subtask's next attempt."""
    last = new_executions(two_groups())[-1]
    following = next_attempt(JOB_ID, next_attempt(JOB_ID, last))

    assert following.attempt == attempt_id(JOB_ID, SINK_ID, 2, 2)
    assert (following.key, following.attempt_number) == (last.key, 2)
    assert assign_tasks(two_groups(), [following]) == {following.attempt: 2}


def test_an_attempt_id_holds_job_vertex_subtask_and_attempt() -> None:
    assert attempt_id(JOB_ID, SINK_ID, 2).hex() == JOB_ID + SINK_ID + "00000002" + "00000000"


def test_slots_are_dealt_out_round_robin() -> None:
    """Slots are dealt out in the order of registration, past TaskManagers that are full."""
    assert pool_of(x=1, y=3, z=2).allocate("job", 5) == ["x", "y", "z", "y", "z"]
    assert pool_of(x=2, y=2, z=2).allocate("job", 2) == ["x", "y"]


def test_a_job_gets_all_or_nothing_and_gives_it_back() -> None:
    pool = pool_of(x=2)

    assert pool.allocate("job", 3) is None
    assert pool.num_free == 2
    assert pool.allocate("job", 2) == ["x", "x"]
    pool.release("job")
    assert pool.free_by_task_manager()["x"] == 2


def test_slots_of_a_lost_task_manager_do_not_come_back() -> None:
    """The job that held them may end after the TaskManager has registered again."""
    pool = pool_of(x=1, y=1)
    pool.allocate("job", 2)
    pool.remove("x")
    pool.add("x", 1)

    pool.release("job")

    pool.check_invariants()
    assert (pool.num_slots, pool.num_free) == (2, 2)


@pytest.mark.parametrize(
    ("slots", "taken", "expected"),
    [
        ({}, 0, "job needs 4 slots, the cluster has 0 on 0 TaskManagers after 30 s: "),
        ({"x": 2}, 0, "job needs 4 slots, the cluster has 2 on 1 TaskManager after 30 s: "),
        ({"x": 2, "y": 3}, 4, "job needs 4 slots, the cluster has 5 (1 free) on 2 TaskManagers after 30 s: "),
    ],
)
def test_a_shortage_is_described_with_its_numbers(slots: dict[str, int], taken: int, expected: str) -> None:
    pool = pool_of(**slots)
    pool.allocate("other", taken)

    assert pool.describe_shortage(4, 30.0) == expected + "start more TaskManagers or lower the parallelism"


class TestAJobThatKeepsItsSlots:
    def test_lost_slots_are_replaced_by_free_ones_and_the_others_stay(self) -> None:
        pool = pool_of(x=1, y=1, z=1)
        assert pool.allocate("job", 2) == ["x", "y"]
        pool.remove("x")

        assert pool.num_missing("job", 2, {0, 1}) == 1
        assert pool.allocate("job", 2, {0, 1}) == ["z", "y"]
        pool.check_invariants()
        assert pool.num_free == 0

    def test_without_a_loss_it_goes_on_at_once(self) -> None:
        """The job gets its slots back though none is free."""
        pool = pool_of(x=1, y=1)
        pool.allocate("job", 2)

        assert pool.allocate("job", 2, {1}) == ["x", "y"]

    def test_a_lost_slot_that_no_task_needs_is_not_replaced(self) -> None:
        pool = pool_of(x=1, y=1)
        pool.allocate("job", 2)
        pool.remove("x")

        assert pool.allocate("job", 2, {1}) == [None, "y"]
        pool.release("job")
        assert pool.num_free == 1

    def test_too_few_free_slots_change_nothing(self) -> None:
        pool = pool_of(x=2, y=1)
        pool.allocate("job", 2)
        pool.remove("x")
        pool.remove("y")
        pool.add("z", 1)

        assert pool.allocate("job", 2, {0, 1}) is None
        assert pool.num_free == 1
        pool.check_invariants()


class SlotPoolMachine(RuleBasedStateMachine):
    """Any order of registrations, losses, jobs and their ends: the books balance."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlotPool()
        self.present: set[str] = set()
        self.sizes: dict[str, int] = {}  # of the jobs that hold slots

    @rule(tm_id=st.sampled_from("xyz"), num_slots=st.integers(1, 4))
    def register(self, tm_id: str, num_slots: int) -> None:
        if tm_id not in self.present:
            self.pool.add(tm_id, num_slots)
            self.present.add(tm_id)

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        tm_id = data.draw(st.sampled_from(sorted(self.present)))
        self.pool.remove(tm_id)
        self.present.remove(tm_id)

    @rule(job=st.sampled_from("abc"), num_slots=st.integers(1, 6))
    def allocate(self, job: str, num_slots: int) -> None:
        num_slots = self.sizes.get(job, num_slots)
        wanted = range(0, num_slots, 2) if job in self.sizes else ()
        free, missing = self.pool.num_free, self.pool.num_missing(job, num_slots, wanted)
        slots = self.pool.allocate(job, num_slots, wanted)
        assert (slots is None) == (missing > free)
        if slots is not None:
            assert len(slots) == num_slots
            assert self.pool.num_free == free - missing
            assert {slots[number] for number in wanted or range(num_slots)} <= self.present
            self.sizes[job] = num_slots

    @rule(job=st.sampled_from("abc"))
    def release(self, job: str) -> None:
        self.pool.release(job)
        self.sizes.pop(job, None)

    @invariant()
    def books_balance(self) -> None:
        self.pool.check_invariants()
        if not self.sizes:
            assert self.pool.num_free == self.pool.num_slots


TestSlotPoolMachine = SlotPoolMachine.TestCase
TestSlotPoolMachine.settings = settings(max_examples=40, stateful_step_count=20)


def test_stages_use_the_same_slots_one_after_the_other() -> None:
    """The widest vertex counts, whatever its group, if the exchanges between wide vertices are blocking."""
    ids = [f"{number:032x}" for number in range(1, 4)]
    vertices = [vertex(each, "v", width, group) for each, width, group in zip(ids, (2, 3, 1), "aba", strict=True)]
    edges = [edge(f"{number:032x}", source, target) for number, (source, target) in enumerate(pairwise(ids), 7)]
    edges = [msgspec.structs.replace(each, is_blocking=True) for each in edges]
    job = msgspec.structs.replace(word_count(), vertices=vertices, edges=edges)

    assert vertex_stages(job) == dict(zip(ids, range(3), strict=True))
    assert needed_slots(job) == 3
    assert sorted(assign_tasks(job, new_executions(job)).values()) == [0, 0, 0, 1, 1, 2]


def location(number: int) -> RegisterTaskManager:
    return RegisterTaskManager(f"tm-{number}", 1, "127.0.0.1", 6000 + number, number)


def plan_of(job: JobGraphMessage) -> DeploymentPlan:
    """Each subtask on the TaskManager of its number."""
    return DeploymentPlan(job, {each.attempt: location(each.subtask) for each in new_executions(job)})


def with_edges(*edges: EdgeMessage, sources: int = 2, sinks: int = 2) -> JobGraphMessage:
    return msgspec.structs.replace(word_count(sources=sources, sinks=sinks), edges=list(edges))


def test_a_task_gets_what_its_vertex_says() -> None:
    task = plan_of(word_count(sinks=2)).describe_task(SINK_ID, 1)

    assert (task.job_id, task.job_name, task.vertex_id, task.task_name) == (JOB_ID, "word count", SINK_ID, "sink")
    assert (task.subtask, task.parallelism, task.max_parallelism) == (1, 2, 128)
    assert (task.attempt, task.chain) == (attempt_id(JOB_ID, SINK_ID, 1), b"chain of sink")


def test_an_all_to_all_edge_joins_every_producer_with_every_consumer() -> None:
    """Producers make one subpartition per consumer; consumer i reads subpartition i of each."""
    plan = plan_of(with_edges(edge(EDGE_ID, SOURCE_ID, SINK_ID), sources=3, sinks=2))

    (partition,) = plan.describe_task(SOURCE_ID, 2).partitions
    (gate,) = plan.describe_task(SINK_ID, 1).gates

    partitions = [intermediate_partition_id(bytes.fromhex(EDGE_ID), producer) for producer in range(3)]
    assert (partition.num_subpartitions, partition.partition) == (2, partitions[2])
    assert gate.edge_id == EDGE_ID
    for producer, channel in enumerate(gate.channels):
        assert (channel.producer, channel.subpartition) == (attempt_id(JOB_ID, SOURCE_ID, producer), 1)
        assert channel.partition == partitions[producer]
        assert (channel.tm_id, channel.port) == (f"tm-{producer}", 6000 + producer)
    assert len(gate.channels) == 3


def test_a_pointwise_edge_joins_equal_subtasks() -> None:
    plan = plan_of(with_edges(edge(EDGE_ID, SOURCE_ID, SINK_ID, is_pointwise=True)))

    (partition,) = plan.describe_task(SOURCE_ID, 1).partitions
    (gate,) = plan.describe_task(SINK_ID, 1).gates

    assert partition.num_subpartitions == 1
    assert [(channel.producer, channel.subpartition) for channel in gate.channels] == [
        (attempt_id(JOB_ID, SOURCE_ID, 1), 0)
    ]


def test_a_pointwise_edge_fans_out() -> None:
    """Each of five consumers has its own subpartition of one of two producers."""
    plan = plan_of(with_edges(edge(EDGE_ID, SOURCE_ID, SINK_ID, is_pointwise=True), sources=2, sinks=5))

    partitions = [plan.describe_task(SOURCE_ID, producer).partitions[0] for producer in range(2)]
    channels = [plan.describe_task(SINK_ID, consumer).gates[0].channels for consumer in range(5)]

    assert [partition.num_subpartitions for partition in partitions] == [3, 2]
    assert [[(channel.tm_id, channel.subpartition) for channel in gate] for gate in channels] == [
        [("tm-0", 0)], [("tm-0", 1)], [("tm-0", 2)], [("tm-1", 0)], [("tm-1", 1)]
    ]  # fmt: skip


def test_a_pointwise_edge_fans_in() -> None:
    """Each of five producers has one subpartition for one of two consumers."""
    plan = plan_of(with_edges(edge(EDGE_ID, SOURCE_ID, SINK_ID, is_pointwise=True), sources=5, sinks=2))

    partitions = [plan.describe_task(SOURCE_ID, producer).partitions[0] for producer in range(5)]
    channels = [plan.describe_task(SINK_ID, consumer).gates[0].channels for consumer in range(2)]

    assert {partition.num_subpartitions for partition in partitions} == {1}
    assert [[(channel.tm_id, channel.subpartition) for channel in gate] for gate in channels] == [
        [("tm-0", 0), ("tm-1", 0)], [("tm-2", 0), ("tm-3", 0), ("tm-4", 0)]
    ]  # fmt: skip


def test_what_the_client_reads_has_one_subpartition_per_producer() -> None:
    job = with_edges(edge(COLLECT_ID, SINK_ID, None), sinks=3)
    plan = plan_of(job)

    (partition,) = plan.describe_task(SINK_ID, 2).partitions
    channels = plan.external_channels(job.edges[0])

    assert partition.num_subpartitions == 1
    assert [(channel.producer, channel.subpartition, channel.port) for channel in channels] == [
        (attempt_id(JOB_ID, SINK_ID, producer), 0, 6000 + producer) for producer in range(3)
    ]
    assert channels[2].partition == partition.partition


def test_a_partition_carries_its_edges_settings() -> None:
    settings = msgspec.structs.replace(edge(EDGE_ID, SOURCE_ID, SINK_ID), buffer_timeout_ms=-1, partitioner=b"p")

    (partition,) = plan_of(with_edges(settings)).describe_task(SOURCE_ID, 0).partitions

    assert (partition.edge_id, partition.buffer_timeout_ms) == (EDGE_ID, -1)
    assert (partition.partitioner, partition.source_operator) == (b"p", 0)


def test_gates_and_partitions_follow_the_order_of_the_edges() -> None:
    second = f"{77:032x}"
    plan = plan_of(with_edges(edge(second, SOURCE_ID, SINK_ID), edge(EDGE_ID, SOURCE_ID, SINK_ID)))

    assert [gate.edge_id for gate in plan.describe_task(SINK_ID, 0).gates] == [second, EDGE_ID]
    assert [partition.edge_id for partition in plan.describe_task(SOURCE_ID, 0).partitions] == [second, EDGE_ID]


def test_a_location_is_written_as_people_know_it() -> None:
    assert str(location(3)) == "TaskManager tm-3 (127.0.0.1:6003, pid 3)"


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


EACH, ALL = [[(A, 0)], [(A, 1)], [(B, 0)], [(B, 1)]], [[(A, 0), (A, 1), (B, 0), (B, 1)]]
OF_A_SOURCE = [[(A, 0), (A, 1)], [(B, 0), (B, 1)]]
GATE = RemoteGateMessage("gate", "long", bytes(16), b"")
OTHER_GROUP = WatermarkAlignment("other", 1, 10)


def second_with(sources: list[VertexMessage], **fields: Any) -> list[VertexMessage]:
    return [sources[0], msgspec.structs.replace(sources[1], **fields)]


@pytest.mark.parametrize(
    ("of", "regions"),
    [
        pytest.param(job(sources(), []), EACH, id="subtasks without edges"),
        pytest.param(
            job(sources(), [edge_of(1, A, B, is_pointwise=True)]),
            [[(A, 0), (B, 0)], [(A, 1), (B, 1)]],
            id="partners of a forward edge",
        ),
        pytest.param(
            job([*sources(), vertex(C, "other"), vertex(D, "its sink")], [edge_of(1, A, B), edge_of(2, C, D)]),
            [*ALL, [(C, 0), (D, 0)]],
            id="all of both ends of a keyed edge, and nothing else",
        ),
        pytest.param(job(sources(files=FILES), []), OF_A_SOURCE, id="a source whose splits are handed out"),
        pytest.param(job(sources(aligned=ALIGNED), []), ALL, id="aligned sources"),
        pytest.param(
            job(second_with(sources(aligned=ALIGNED), watermark_alignment=OTHER_GROUP), []),
            OF_A_SOURCE,
            id="sources of two alignment groups",
        ),
        pytest.param(job(sources(), [edge_of(1, A, None)]), ALL, id="a job that the client reads"),
        pytest.param(job(second_with(sources(), remote_gate=GATE), []), ALL, id="a job with a remote gate"),
        pytest.param(job(sources(), [], is_regional=False), ALL, id="a job of the strategy full"),
    ],
)
def test_what_fails_together_is_one_region(of: JobGraphMessage, regions: list[list[tuple[str, int]]]) -> None:
    """Splits that a failed reader gave back would go to any of its neighbours; what the client reads, or producers
    push, belongs to the region of the whole job.
    """
    assert pipelined_regions(of) == regions


@given(st.integers(1, 7), st.integers(1, 7))
def test_a_pointwise_edge_joins_exactly_those_that_exchange_records(num_producers: int, num_consumers: int) -> None:
    vertices = [vertex(A, "a", num_producers), vertex(B, "b", num_consumers)]

    found = pipelined_regions(job(vertices, [edge_of(1, A, B, is_pointwise=True)]))

    assert len(found) == min(num_producers, num_consumers)
    region_of = {subtask: number for number, region in enumerate(found) for subtask in region}
    for producer in range(num_producers):
        for consumer in consumers_of(producer, num_producers, num_consumers):
            assert region_of[Subtask(A, producer)] == region_of[Subtask(B, consumer)]


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

    order = region_order(of_blocking, pipelined_regions(of_blocking))
    assert list(order.producers) == [frozenset(), frozenset(), {0}, {1}]


def test_a_job_in_stages_that_the_client_reads_keeps_its_regions_and_fails_as_one() -> None:
    """Stages need regions; results are one stream from run to run."""
    read = job(sources(), [blocking(edge_of(1, A, B)), edge_of(2, B, None)])

    assert len(pipelined_regions(read)) == 4
    assert fails_as_one(read)
