"""Tests of ``flowlet.graph.execution_graph``: jobs of several regions, of which only those that failed start again."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.job_status import JobStatus
from flowlet.graph.execution_events import (
    Deploy,
    Effect,
    JobStatusChanged,
    ReleaseSlots,
    RequestSlots,
    RestartAfter,
    SendMessage,
)
from flowlet.graph.execution_graph import Execution, ExecutionGraph
from flowlet.messages.control_messages import CancelTask, FailureInfo
from flowlet.messages.execution_state import ExecutionState, Subtask
from tests.flowlet.graph.events import (
    CancelRequested,
    Event,
    ExecutionReported,
    GlobalFailure,
    RestartDue,
    SchedulingFailed,
    SlotsAllocated,
    TaskManagerLost,
    fixed_delay,
    handle,
)

S = ExecutionState
DELAY_MS = 500
REGIONS: Final = [["a", "b"], ["c", "d"], ["e"]]
TASKS: Final = [task for region in REGIONS for task in region]
TM_OF: Final = {"a": "tm-1", "b": "tm-2", "c": "tm-2", "d": "tm-3", "e": "tm-3"}


def failure(
    message: str = "boom", exception_type: str = "builtins.ValueError", *, suppresses_restarts: bool = False
) -> FailureInfo:
    return FailureInfo(exception_type, message, "", None, "task", 0, None, "tm-1", 0, suppresses_restarts)


def attempt(task: str, number: int = 0) -> bytes:
    return f"{task}{number}".encode().ljust(40)


def vertices(*numbers: int, tasks: list[str] = TASKS) -> list[Execution]:
    """``numbers``: one per task; none: the first attempts."""
    return [
        Execution(attempt(task, number), task, 0, number)
        for task, number in zip(tasks, numbers or [0] * 9, strict=False)
    ]


def next_of(region: int, number: int) -> RestartDue:
    tasks = REGIONS[region]
    return RestartDue(vertices(*[number] * len(tasks), tasks=tasks))


def slots(graph: ExecutionGraph) -> SlotsAllocated:
    return SlotsAllocated({each.attempt: TM_OF[each.vertex_id] for each in graph.waiting})


def reported(task: str, state: ExecutionState, number: int = 0, cause: FailureInfo | None = None) -> ExecutionReported:
    needs_cause = state in (S.FAILED, S.CANCELED)
    return ExecutionReported(
        attempt(task, number), TM_OF[task], state, (cause or failure(f"{task}{number}")) if needs_cause else None
    )


def running(attempts: int = 9) -> ExecutionGraph:
    graph = ExecutionGraph(
        vertices(), 100, fixed_delay(attempts, DELAY_MS), [[Subtask(task, 0) for task in each] for each in REGIONS]
    )
    handle(graph, slots(graph), 101)
    for task in TASKS:
        handle(graph, reported(task, S.RUNNING), 102)
    return graph


def after(graph: ExecutionGraph, *events: Event) -> list[Effect]:
    """Return the orders of the last event."""
    effects: list[Effect] = []
    for event in events:
        effects = handle(graph, event, 200)
        graph.check_invariants()
    kinds = Deploy | SendMessage | ReleaseSlots | RestartAfter | RequestSlots | JobStatusChanged
    return [each for each in effects if isinstance(each, kinds)]


def states(graph: ExecutionGraph) -> dict[str, str]:
    return {each.attempt.decode().strip(): each.state.value for each in graph.executions.values()}


def numbers(graph: ExecutionGraph) -> list[int]:
    return [each.attempt_number for each in graph.executions.values()]


class TestOneRegion:
    def test_only_its_tasks_are_cancelled(self) -> None:
        graph = running()

        effects = after(graph, reported("a", S.FAILED))

        assert effects == [JobStatusChanged(JobStatus.RESTARTING), SendMessage("tm-2", CancelTask(attempt("b")))]
        assert states(graph) == {"a0": "FAILED", "b0": "CANCELING", "c0": "RUNNING", "d0": "RUNNING", "e0": "RUNNING"}

    def test_it_keeps_its_slots_and_starts_again_while_the_others_run(self) -> None:
        graph = running()

        assert after(graph, reported("a", S.FAILED), reported("b", S.CANCELED)) == [RestartAfter(DELAY_MS, (0,))]
        assert after(graph, next_of(0, 1)) == [RequestSlots()]
        assert after(graph, slots(graph)) == [
            JobStatusChanged(JobStatus.RUNNING),
            Deploy(attempt("a", 1), "tm-1"),
            Deploy(attempt("b", 1), "tm-2"),
        ]
        assert list(states(graph)) == ["a1", "b1", "c0", "d0", "e0"], "in the order of deployment"
        assert numbers(graph) == [1, 1, 0, 0, 0]

    def test_others_report_and_finish_meanwhile(self) -> None:
        graph = running()
        after(
            graph,
            reported("a", S.FAILED),
            reported("b", S.CANCELED),
            reported("c", S.FINISHED),
            reported("d", S.FINISHED),
        )

        assert after(graph, reported("e", S.FINISHED)) == [], "a restart is still due"
        assert after(graph, next_of(0, 1)) == [RequestSlots()]
        after(graph, slots(graph))

        assert states(graph) == {
            "a1": "DEPLOYING",
            "b1": "DEPLOYING",
            "c0": "FINISHED",
            "d0": "FINISHED",
            "e0": "FINISHED",
        }
        assert graph.num_ignored_events == 0

    def test_the_job_finishes_with_the_last_region(self) -> None:
        graph = running()
        after(graph, reported("c", S.FINISHED), reported("d", S.FINISHED), reported("e", S.FINISHED))

        after(graph, reported("a", S.FAILED))
        effects = after(graph, reported("b", S.CANCELED))
        assert effects == [ReleaseSlots(), RestartAfter(DELAY_MS, (0,))], "no task is left"
        after(graph, next_of(0, 1))
        after(graph, slots(graph))

        after(graph, reported("a", S.FINISHED, 1))
        assert after(graph, reported("b", S.FINISHED, 1)) == [JobStatusChanged(JobStatus.FINISHED), ReleaseSlots()]
        assert numbers(graph) == [1, 1, 0, 0, 0], "finished regions do not start again"

    def test_a_finished_task_of_the_region_starts_again(self) -> None:
        graph = running()

        after(graph, reported("b", S.FINISHED), reported("a", S.FAILED), next_of(0, 1))

        assert states(graph)["b1"] == "CREATED"

    def test_a_region_of_one_task_is_over_at_once(self) -> None:
        assert after(running(), reported("e", S.FAILED)) == [
            JobStatusChanged(JobStatus.RESTARTING),
            RestartAfter(DELAY_MS, (2,)),
        ]

    def test_a_task_that_its_task_manager_cancels_fails_its_region(self) -> None:
        graph = running()

        after(graph, reported("e", S.CANCELING), reported("e", S.CANCELED))

        assert graph.status is JobStatus.RESTARTING
        assert states(graph)["a0"] == "RUNNING"

    def test_a_due_restart_comes_too_early(self) -> None:
        graph = running()
        after(graph, reported("a", S.FAILED))

        assert after(graph, next_of(0, 1)) == []
        assert graph.num_ignored_events == 1


class TestTwoRegions:
    def test_they_restart_independently(self) -> None:
        """The second one fails while the first one ends."""
        graph = running()
        after(graph, reported("a", S.FAILED))

        assert after(graph, reported("c", S.FAILED)) == [SendMessage("tm-3", CancelTask(attempt("d")))]
        assert after(graph, reported("b", S.CANCELED)) == [RestartAfter(DELAY_MS, (0,))]
        after(graph, next_of(0, 1))
        effects = after(graph, slots(graph))

        assert effects == [Deploy(attempt("a", 1), "tm-1"), Deploy(attempt("b", 1), "tm-2")], "RESTARTING goes on"
        assert graph.status is JobStatus.RESTARTING
        assert after(graph, reported("d", S.CANCELED)) == [RestartAfter(DELAY_MS, (1,))]
        after(graph, next_of(1, 1))
        assert after(graph, slots(graph))[0] == JobStatusChanged(JobStatus.RUNNING)
        assert numbers(graph) == [1, 1, 1, 1, 0]
        assert graph.num_failed_runs == graph.attempt_number == 2

    def test_the_second_waits_with_the_first_for_slots(self) -> None:
        graph = running()
        after(graph, reported("a", S.FAILED), reported("b", S.CANCELED), next_of(0, 1))
        after(graph, reported("e", S.FAILED))

        assert after(graph, next_of(2, 1)) == [], "they are requested already"
        assert [each.attempt for each in graph.waiting] == [attempt("a", 1), attempt("b", 1), attempt("e", 1)]
        assert len(after(graph, slots(graph))) == 1 + 3

    def test_the_first_is_deployed_while_the_second_ends(self) -> None:
        graph = running()
        after(graph, reported("a", S.FAILED), reported("b", S.CANCELED), next_of(0, 1), reported("c", S.FAILED))

        assert after(graph, slots(graph)) == [Deploy(attempt("a", 1), "tm-1"), Deploy(attempt("b", 1), "tm-2")]
        assert graph.failure == failure("c0")

    def test_a_region_fails_again_while_another_one_waits(self) -> None:
        """Each failure is counted and listed."""
        graph = running()
        after(graph, reported("e", S.FAILED), next_of(2, 1), reported("a", S.FAILED))
        after(graph, slots(graph))
        after(graph, reported("e", S.FAILED, 1))

        assert [run.root.message for run in graph.failed_runs] == ["e0", "a0", "e1"]
        assert numbers(graph) == [0, 0, 0, 0, 1]
        after(graph, next_of(2, 2))
        assert numbers(graph) == [0, 0, 0, 0, 2]

    def test_a_lost_task_manager_with_tasks_of_both_is_one_failure(self) -> None:
        graph = running(attempts=1)

        effects = after(graph, TaskManagerLost("tm-2", failure("lost")))

        assert effects == [
            JobStatusChanged(JobStatus.RESTARTING),
            SendMessage("tm-1", CancelTask(attempt("a"))),
            SendMessage("tm-3", CancelTask(attempt("d"))),
        ]
        assert states(graph)["e0"] == "RUNNING"
        assert after(graph, reported("a", S.CANCELED)) == []
        assert after(graph, reported("d", S.CANCELED)) == [RestartAfter(DELAY_MS, (0, 1))]
        after(graph, RestartDue(vertices(1, 1, 1, 1)))
        assert numbers(graph) == [1, 1, 1, 1, 0]
        assert graph.num_failed_runs == 1

    def test_a_loss_that_ends_a_restarting_region_and_fails_a_running_one(self) -> None:
        graph = running()
        after(graph, reported("a", S.FAILED))

        effects = after(graph, TaskManagerLost("tm-2", failure("lost")))

        assert effects == [SendMessage("tm-3", CancelTask(attempt("d"))), RestartAfter(DELAY_MS, (0,))]
        assert [run.root.message for run in graph.failed_runs] == ["a0", "lost"]

    def test_a_later_failure_in_a_region_belongs_to_its_own_first_one(self) -> None:
        graph = running()
        lost = failure("gone", "ConnectionLostError")
        after(graph, reported("a", S.FAILED, cause=lost), reported("e", S.FAILED), reported("b", S.FAILED))

        assert [(run.root.message, [each.message for each in run.concurrent]) for run in graph.failed_runs] == [
            ("b0", ["gone"]),
            ("e0", []),
        ]
        assert graph.failure == failure("e0")

    def test_all_count_for_the_strategy_of_the_job(self) -> None:
        graph = running(attempts=1)
        after(graph, reported("a", S.FAILED), reported("b", S.CANCELED))

        after(graph, reported("e", S.FAILED))

        assert graph.status is JobStatus.FAILING
        assert graph.why_no_restart == "restart-strategy.fixed-delay.attempts is 1"
        assert {states(graph)[each] for each in ("c0", "d0")} == {"CANCELING"}

    def test_a_failure_for_good_ends_the_job_while_another_region_ends(self) -> None:
        graph = running()
        after(graph, reported("a", S.FAILED), reported("e", S.FAILED))

        after(graph, reported("b", S.FAILED, cause=failure("state", suppresses_restarts=True)))

        assert graph.status is JobStatus.FAILING
        assert graph.failure == failure("state", suppresses_restarts=True)
        assert graph.why_no_restart == "it would fail in the same way"


def test_a_global_failure_restarts_all_regions_as_one() -> None:
    graph = running()
    after(graph, reported("e", S.FINISHED))

    effects = after(graph, GlobalFailure(failure()))

    sent = [each.message for each in effects if isinstance(each, SendMessage)]
    assert sent == [CancelTask(attempt(each)) for each in "abcd"]
    assert graph.is_restarting_as_a_whole
    for task in "abc":
        after(graph, reported(task, S.CANCELED))
    assert after(graph, reported("d", S.CANCELED)) == [ReleaseSlots(), RestartAfter(DELAY_MS, (0, 1, 2))]


def test_a_global_failure_takes_those_that_still_run() -> None:
    """A region that waits for its slots has nothing to fail."""
    graph = running()
    after(graph, reported("a", S.FAILED), reported("b", S.CANCELED), next_of(0, 1), reported("e", S.FAILED))

    effects = after(graph, GlobalFailure(failure()))

    assert effects == [SendMessage("tm-2", CancelTask(attempt("c"))), SendMessage("tm-3", CancelTask(attempt("d")))]
    assert [each.attempt for each in graph.waiting] == [attempt("a", 1), attempt("b", 1)]


def test_without_slots_for_a_region_the_job_fails() -> None:
    graph = running()
    after(graph, reported("a", S.FAILED), reported("b", S.CANCELED), next_of(0, 1))

    effects = after(graph, SchedulingFailed(failure("no slots")))

    assert effects[0] == JobStatusChanged(JobStatus.FAILING)
    assert len([each for each in effects if isinstance(each, SendMessage)]) == 3


PHASES: Final[dict[str, tuple[Event, ...]]] = {
    "running": (),
    "ending": (reported("a", S.FAILED),),
    "delayed": (reported("a", S.FAILED), reported("b", S.CANCELED)),
    "waiting": (reported("a", S.FAILED), reported("b", S.CANCELED), next_of(0, 1)),
    "one waits and one ends": (
        reported("a", S.FAILED),
        reported("b", S.CANCELED),
        next_of(0, 1),
        reported("c", S.FAILED),
    ),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_cancel_ends_every_region(phase: str) -> None:
    graph = running()
    after(graph, *PHASES[phase])

    after(graph, CancelRequested())
    for each in list(graph.executions.values()):
        if not each.state.is_terminal:
            after(graph, ExecutionReported(each.attempt, each.tm_id or "", S.CANCELED, failure()))

    assert graph.status is JobStatus.CANCELED
    assert after(graph, next_of(0, 1)) == []


@dataclass(slots=True)
class World:
    """The JobManager and TaskManagers around one graph, in any order that the schedule chooses."""

    graph: ExecutionGraph
    now_ms: int = 200
    deployed: dict[bytes, str] = field(default_factory=dict)  # what lives on TaskManagers
    due: list[tuple[int, ...]] = field(default_factory=list)
    wants_slots: bool = True
    is_released: bool = True

    def handle(self, event: Event) -> None:
        self.now_ms += 1
        before = {each.attempt: each.state for each in self.graph.executions.values()}
        effects = handle(self.graph, event, self.now_ms)
        self.graph.check_invariants()
        self._check_others(event, before)
        for effect in effects:
            match effect:
                case Deploy(attempt_id, tm_id):
                    task = attempt_id[:1]
                    assert not [each for each in self.deployed if each[:1] == task], "the attempt before still lives"
                    assert not self.is_released
                    self.deployed[attempt_id] = tm_id
                case ReleaseSlots():
                    assert not self.deployed, "a task still lives on the slots"
                    self.is_released, self.wants_slots = True, False
                case RestartAfter(_, regions):
                    self.due.append(regions)
                case RequestSlots():
                    assert not self.wants_slots
                    self.wants_slots = True
                case _:
                    pass
        if self.graph.status is not JobStatus.RESTARTING:
            self.due.clear()

    def _check_others(self, event: Event, before: Mapping[bytes, ExecutionState]) -> None:
        """A region without a failure keeps its attempts, and none of them is cancelled."""
        if self.graph.status not in (JobStatus.RUNNING, JobStatus.RESTARTING) or isinstance(event, GlobalFailure):
            return
        touched: set[str] = set()
        match event:
            case ExecutionReported(attempt_id):
                touched = {attempt_id[:1].decode()}
            case RestartDue(new):
                touched = {each.vertex_id for each in new}
            case TaskManagerLost(tm_id, _):
                touched = {task for task, place in TM_OF.items() if place == tm_id}
            case _:
                return
        for region in REGIONS:
            if not touched & set(region):
                mine = {each for each in before if each[:1].decode() in region}
                assert mine <= self.graph.executions.keys()
                assert {each: self.graph.executions[each].state for each in mine} == {
                    each: before[each] for each in mine
                }

    def step(self, choice: str, number: int, cause: FailureInfo) -> None:
        match choice:
            case "slots" if self.wants_slots and self.graph.is_waiting_for_slots:
                self.wants_slots = self.is_released = False
                self.handle(slots(self.graph))
            case "no slots" if self.wants_slots and self.graph.is_waiting_for_slots:
                self.handle(SchedulingFailed(cause))
            case "due" if self.due:
                regions = self.due.pop(number % len(self.due))
                old = self.graph.executions_in(regions)
                number_of = {each.vertex_id: each.attempt_number + 1 for each in old}
                self.handle(
                    RestartDue([Execution(attempt(task, count), task, 0, count) for task, count in number_of.items()])
                )
            case "run" | "finish" | "fail" if self.deployed:
                attempt_id = sorted(self.deployed)[number % len(self.deployed)]
                self.report(attempt_id, {"run": S.RUNNING, "finish": S.FINISHED, "fail": S.FAILED}[choice], cause)
            case "canceled":
                cancelled = [each for each in self.deployed if self.graph.executions[each].state is S.CANCELING]
                if cancelled:
                    self.report(cancelled[number % len(cancelled)], S.CANCELED, cause)
            case "lost":
                tm_id = f"tm-{number % 3 + 1}"
                self.deployed = {key: place for key, place in self.deployed.items() if place != tm_id}
                self.handle(TaskManagerLost(tm_id, cause))
            case "global":
                self.handle(GlobalFailure(cause))
            case "cancel":
                self.handle(CancelRequested())
            case _:
                pass

    def report(self, attempt_id: bytes, state: ExecutionState, cause: FailureInfo) -> None:
        tm_id = self.deployed[attempt_id]
        if state is not S.RUNNING:
            del self.deployed[attempt_id]
        self.handle(ExecutionReported(attempt_id, tm_id, state, cause if state in (S.FAILED, S.CANCELED) else None))


OFTEN = ["slots", "due", "canceled", "canceled", "fail", "finish", "lost"]
CHOICES = ["slots", "no slots", "due", "run", "finish", "fail", "canceled", "lost", "global", "cancel", *5 * OFTEN]
CAUSES = [failure(), failure(exception_type="ConnectionLostError")] * 6 + [failure(suppresses_restarts=True)]
STEPS = st.lists(st.tuples(st.sampled_from(CHOICES), st.integers(0, 5), st.sampled_from(CAUSES)), max_size=80)


def world_after(steps: list[tuple[str, int, FailureInfo]], attempts: int) -> World:
    graph = ExecutionGraph(
        vertices(), 100, fixed_delay(attempts, DELAY_MS), [[Subtask(task, 0) for task in each] for each in REGIONS]
    )
    world = World(graph)
    for choice, number, cause in steps:
        world.step(choice, number, cause)
    return world


@given(STEPS, st.integers(0, 9))
def test_laws_of_every_schedule(steps: list[tuple[str, int, FailureInfo]], attempts: int) -> None:
    """One attempt of a task at a time, others undisturbed, no more restarts than allowed, and the
    graph's own checks.
    """
    world = world_after(steps, attempts)

    assert world.graph.attempt_number <= min(attempts, world.graph.num_failed_runs)
    assert Counter(each.vertex_id for each in world.graph.executions.values()) == Counter(TASKS)


@given(STEPS, st.integers(0, 9))
def test_every_job_ends_if_nothing_else_fails(steps: list[tuple[str, int, FailureInfo]], attempts: int) -> None:
    world = world_after(steps, attempts)

    for _ in range(2):
        for choice in 6 * ["canceled"] + 3 * ["due"] + ["slots"] + 6 * ["finish"]:
            world.step(choice, 0, CAUSES[0])

    assert world.graph.status.is_globally_terminal_state()
    assert not world.deployed
