"""Tests of ``flowlet.jm.scheduler``: slot counts, places, and the books of the pool."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flowlet.jm.scheduler import (
    SlotPool,
    assign_tasks,
    attempt_id,
    needed_slots,
    new_executions,
    next_attempt,
    slot_indices,
    slots_by_group,
    vertex_stages,
)
from flowlet.messages.control_messages import JobGraphMessage
from tests.flowlet.jm.scripted_task_manager import JOB_ID, SINK_ID, SOURCE_ID, edge, vertex, word_count


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
    assert slots_by_group(two_groups()) == {"a": 3, "b": 2}
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

    assert list(slot_indices(job).values()) == [[0], [0, 1], [1], [0]]


def test_a_vertex_that_is_fed_subtask_by_subtask_stays_beside_its_source() -> None:
    ids = [f"{number:032x}" for number in range(1, 4)]
    vertices = [vertex(vertex_id, "v", width, "a") for vertex_id, width in zip(ids, (2, 1, 1), strict=True)]
    forward = msgspec.structs.replace(word_count().edges[0], source=ids[1], target=ids[2], is_pointwise=True)
    job = msgspec.structs.replace(word_count(), vertices=vertices, edges=[forward])

    assert list(slot_indices(job).values()) == [[0, 1], [0], [0]]


def test_every_subtask_is_an_execution_in_the_jobs_order() -> None:
    vertices = new_executions(two_groups())

    assert [(each.vertex_id, each.subtask) for each in vertices][:3] == [
        (SOURCE_ID, 0),
        (f"{99:032x}", 0),
        (f"{99:032x}", 1),
    ]
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


def test_fewer_slots_than_task_managers_go_to_the_first_ones() -> None:
    assert pool_of(x=2, y=2, z=2).allocate("job", 2) == ["x", "y"]


def test_a_job_gets_all_or_nothing() -> None:
    pool = pool_of(x=1, y=1)

    assert pool.allocate("job", 3) is None
    assert pool.num_free == 2


def test_released_slots_are_free_again() -> None:
    pool = pool_of(x=2)
    pool.allocate("job", 2)

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
