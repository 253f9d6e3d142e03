"""Jobs that start again: tasks a to e, and a world around their graph that does whatever a schedule chooses."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flowlet.common.job_status import JobStatus
from flowlet.graph.execution_events import Deploy, Effect, ReleaseSlots, RequestSlots, RestartAfter
from flowlet.graph.execution_graph import Execution, ExecutionGraph
from flowlet.messages.control_messages import FailureInfo
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
    failure,
    fixed_delay,
    handle,
)

S = ExecutionState
DELAY_MS: Final = 500
TM_OF: Final = {"a": "tm-1", "b": "tm-2", "c": "tm-2", "d": "tm-3", "e": "tm-3"}


def attempt(task: str, number: int = 0) -> bytes:
    return f"{task}{number}".encode().ljust(40)


def executions(tasks: Iterable[str], number: int = 0) -> list[Execution]:
    return [Execution(attempt(task, number), task, 0, number) for task in tasks]


def slots(tasks: Iterable[str], number: int = 0) -> SlotsAllocated:
    return SlotsAllocated({attempt(task, number): TM_OF[task] for task in tasks})


def due(tasks: Iterable[str], number: int = 1) -> RestartDue:
    return RestartDue(executions(tasks, number))


def reported(task: str, state: ExecutionState, number: int = 0, cause: FailureInfo | None = None) -> ExecutionReported:
    needs_cause = state in (S.FAILED, S.CANCELED)
    told = (cause or failure(message=f"{task}{number}")) if needs_cause else None
    return ExecutionReported(attempt(task, number), TM_OF[task], state, told)


def graph_of(regions: Sequence[str], attempts: int) -> ExecutionGraph:
    """Return the graph of a job whose regions are texts, a letter for each task."""
    subtasks = [[Subtask(task, 0) for task in region] for region in regions]
    return ExecutionGraph(executions("".join(regions)), 100, fixed_delay(attempts, DELAY_MS), subtasks)


def slots_for(graph: ExecutionGraph) -> SlotsAllocated:
    """Return slots for all that wait for one."""
    return SlotsAllocated({each.attempt: TM_OF[each.vertex_id] for each in graph.waiting})


@dataclass(slots=True)
class World:
    """The JobManager and TaskManagers around one graph: they carry out its orders, in any order that the schedule
    chooses.
    """

    regions: Sequence[str]
    graph: ExecutionGraph
    now_ms: int = 200
    num_restarts: int = 0
    deployed: dict[bytes, str] = field(default_factory=dict)  # what lives on TaskManagers
    due: list[tuple[int, ...]] = field(default_factory=list)
    wants_slots: bool = True
    is_released: bool = True

    def handle(self, event: Event) -> None:
        self.now_ms += 1
        was_ended = self.graph.status.is_globally_terminal_state()
        before = {each.attempt: each.state for each in self.graph.executions.values()}
        effects = handle(self.graph, event, self.now_ms)
        self.graph.check_invariants()
        assert not (was_ended and effects)
        self._check_others(event, before)
        for effect in effects:
            self._carry_out(effect)
        if self.graph.status is not JobStatus.RESTARTING:
            self.due.clear()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Deploy(attempt_id, tm_id):
                task = attempt_id[:1]
                assert not [each for each in self.deployed if each[:1] == task], "the attempt before still lives"
                assert self.deployed.keys() <= self.graph.executions.keys(), "a task of the run before still lives"
                assert not self.is_released
                self.deployed[attempt_id] = tm_id
            case ReleaseSlots():
                assert not self.deployed, "a task still lives on the slots"
                self.is_released, self.wants_slots = True, False
            case RestartAfter(delay_ms, regions):
                assert 0 <= delay_ms <= DELAY_MS
                self.due.append(regions)
            case RequestSlots():
                assert not self.wants_slots
                assert self.is_released or len(self.regions) > 1
                self.wants_slots = True
            case _:
                pass

    def _check_others(self, event: Event, before: Mapping[bytes, ExecutionState]) -> None:
        """Check that a region without a failure keeps its attempts, and none of them is cancelled."""
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
        for region in self.regions:
            if not touched & set(region):
                mine = {each for each in before if each[:1].decode() in region}
                assert mine <= self.graph.executions.keys()
                now = {each: self.graph.executions[each].state for each in mine}
                assert now == {each: before[each] for each in mine}

    def step(self, choice: str, number: int, cause: FailureInfo) -> None:
        """Let one thing happen, if it may happen now."""
        match choice:
            case "slots" if self.wants_slots and self.graph.is_waiting_for_slots:
                self.wants_slots = self.is_released = False
                self.handle(slots_for(self.graph))
            case "no slots" if self.wants_slots and self.graph.is_waiting_for_slots:
                self.handle(SchedulingFailed(cause))
            case "due" if self.due:
                old = self.graph.executions_in(self.due.pop(number % len(self.due)))
                self.num_restarts += 1
                counts = {each.vertex_id: each.attempt_number + 1 for each in old}
                self.handle(RestartDue([each for task, count in counts.items() for each in executions(task, count)]))
            case "run" | "finish" | "fail" if self.deployed:
                attempt_id = sorted(self.deployed)[number % len(self.deployed)]
                self.report(attempt_id, {"run": S.RUNNING, "finish": S.FINISHED, "fail": S.FAILED}[choice], cause)
            case "canceled" if cancelled := self.cancelled():
                self.report(cancelled[number % len(cancelled)], S.CANCELED, cause)
            case "lost":
                tm_id = f"tm-{number % 3 + 1}"
                self.deployed = {key: place for key, place in self.deployed.items() if place != tm_id}
                self.handle(TaskManagerLost(tm_id, cause))
            case "global":
                self.handle(GlobalFailure(cause))
            case "stale":
                newest = self.graph.executions_of("a")[0].attempt_number
                self.handle(reported("a", S.FAILED, newest - 1, cause))
            case "cancel":
                self.handle(CancelRequested())
            case _:
                pass

    def cancelled(self) -> list[bytes]:
        """Return the attempts that are being cancelled."""
        return [each for each in self.deployed if self.graph.executions[each].state is S.CANCELING]

    def report(self, attempt_id: bytes, state: ExecutionState, cause: FailureInfo) -> None:
        tm_id = self.deployed[attempt_id]
        if state is not S.RUNNING:
            del self.deployed[attempt_id]
        self.handle(ExecutionReported(attempt_id, tm_id, state, cause if state in (S.FAILED, S.CANCELED) else None))


def world_after(steps: Iterable[tuple[str, int, FailureInfo]], regions: Sequence[str], attempts: int) -> World:
    world = World(regions, graph_of(regions, attempts))
    for choice, number, cause in steps:
        world.step(choice, number, cause)
    return world
