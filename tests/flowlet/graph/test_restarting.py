"""Tests of ``flowlet.graph.execution_graph``: what happens between two runs of a job."""

from dataclasses import dataclass, field

import msgspec
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
from flowlet.graph.execution_graph import MAX_FAILED_RUNS, Execution, ExecutionGraph
from flowlet.messages.control_messages import CancelTask, FailureInfo
from flowlet.messages.execution_state import ExecutionState
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


def failure(
    exception_type: str = "builtins.ValueError", message: str = "boom", *, suppresses_restarts: bool = False
) -> FailureInfo:
    return FailureInfo(exception_type, message, "", None, "task", 0, None, "tm-1", 0, suppresses_restarts)


def attempt(task: str, run: int) -> bytes:
    return f"{task}{run}".encode().ljust(40)


def vertices(run: int) -> list[Execution]:
    return [Execution(attempt("a", run), "v", 0), Execution(attempt("b", run), "w", 0)]


def slots(run: int) -> SlotsAllocated:
    return SlotsAllocated({attempt("a", run): "tm-1", attempt("b", run): "tm-2"})


def reported(task: str, run: int, state: ExecutionState, cause: FailureInfo | None = None) -> ExecutionReported:
    needs_cause = state in (S.FAILED, S.CANCELED)
    return ExecutionReported(
        attempt(task, run),
        "tm-1" if task == "a" else "tm-2",
        state,
        (cause or failure(message=f"{task}{run}")) if needs_cause else None,
    )


def graph_after(*events: Event, attempts: int = 1) -> ExecutionGraph:
    graph = ExecutionGraph(vertices(0), 100, fixed_delay(attempts, DELAY_MS))
    for number, event in enumerate(events):
        handle(graph, event, 101 + number)
        graph.check_invariants()
    return graph


RUNNING = (slots(0),)
ENDING = (*RUNNING, reported("a", 0, S.FAILED))  # b is being cancelled
DELAYED = (*ENDING, reported("b", 0, S.CANCELED))
WAITING = (*DELAYED, RestartDue(vertices(1)))
AGAIN = (*WAITING, slots(1))
PHASES = {"ending": ENDING, "delayed": DELAYED, "waiting": WAITING}


def statuses(effects: list[Effect]) -> list[JobStatus]:
    return [effect.status for effect in effects if isinstance(effect, JobStatusChanged)]


def orders(effects: list[Effect]) -> list[Effect]:
    return [
        effect
        for effect in effects
        if isinstance(effect, Deploy | SendMessage | ReleaseSlots | RestartAfter | RequestSlots)
    ]


class TestOneRestart:
    def test_the_others_are_cancelled_first(self) -> None:
        graph = graph_after(*RUNNING)

        effects = handle(graph, reported("a", 0, S.FAILED), 200)

        assert statuses(effects) == [JobStatus.RESTARTING]
        assert orders(effects) == [SendMessage("tm-2", CancelTask(attempt("b", 0)))]

    def test_the_slots_are_given_back_when_the_last_task_has_ended_and_the_delay_counts_from_the_failure(self) -> None:
        graph = graph_after(*RUNNING)
        handle(graph, reported("a", 0, S.FAILED), 200)

        effects = handle(graph, reported("b", 0, S.CANCELED), 320)

        assert orders(effects) == [ReleaseSlots(), RestartAfter(DELAY_MS - 120)]
        assert statuses(effects) == []

    def test_a_delay_that_is_over_before_the_tasks_are_is_none(self) -> None:
        graph = graph_after(*RUNNING)
        handle(graph, reported("a", 0, S.FAILED), 200)

        assert RestartAfter(0) in handle(graph, reported("b", 0, S.CANCELED), 200_000)

    def test_a_clock_that_was_set_back_makes_the_delay_no_longer(self) -> None:
        graph = graph_after(*RUNNING)
        handle(graph, reported("a", 0, S.FAILED), 200_000)

        assert RestartAfter(DELAY_MS) in handle(graph, reported("b", 0, S.CANCELED), 200)

    def test_a_run_that_was_over_at_once_restarts_once(self) -> None:
        graph = graph_after(*RUNNING, reported("b", 0, S.FINISHED))

        effects = handle(graph, reported("a", 0, S.FAILED), 200)

        assert orders(effects) == [ReleaseSlots(), RestartAfter(DELAY_MS)]

    def test_then_it_asks_for_slots(self) -> None:
        graph = graph_after(*DELAYED)

        effects = handle(graph, RestartDue(vertices(1)), 900)

        assert effects == [RequestSlots()]
        assert (graph.status, graph.attempt_number) == (JobStatus.RESTARTING, 1)
        assert {execution.state for execution in graph.executions.values()} == {S.CREATED}

    def test_finished_tasks_are_deployed_again_too(self) -> None:
        graph = graph_after(*RUNNING, reported("b", 0, S.FINISHED), reported("a", 0, S.FAILED), RestartDue(vertices(1)))

        effects = handle(graph, slots(1), 900)

        assert orders(effects) == [Deploy(attempt("a", 1), "tm-1"), Deploy(attempt("b", 1), "tm-2")]
        assert statuses(effects) == [JobStatus.RUNNING]

    def test_the_second_run_finishes_the_job(self) -> None:
        graph = graph_after(*AGAIN, reported("a", 1, S.FINISHED))

        effects = handle(graph, reported("b", 1, S.FINISHED), 900)

        assert statuses(effects) == [JobStatus.FINISHED]
        assert orders(effects) == [ReleaseSlots()]

    def test_without_attempts_left_it_fails(self) -> None:
        graph = graph_after(*AGAIN)
        cause = failure(message="second")

        effects = handle(graph, reported("a", 1, S.FAILED, cause), 900)

        assert statuses(effects) == [JobStatus.FAILING]
        assert graph.failure is cause

    def test_a_lost_task_manager_is_a_failure_like_others(self) -> None:
        graph = graph_after(*RUNNING)

        effects = handle(graph, TaskManagerLost("tm-1", failure("TaskManagerLost")), 200)

        assert statuses(effects) == [JobStatus.RESTARTING]

    def test_reports_of_the_run_before_are_ignored_and_counted(self) -> None:
        graph = graph_after(*AGAIN)

        assert handle(graph, reported("a", 0, S.FAILED), 900) == []
        assert handle(graph, reported("b", 0, S.RUNNING), 900) == []
        assert (graph.status, graph.num_ignored_events) == (JobStatus.RUNNING, 2)

    @pytest.mark.parametrize("events", [RUNNING, ENDING, AGAIN], ids=["running", "ending", "again"])
    def test_no_run_begins_while_another_lives(self, events: tuple[Event, ...]) -> None:
        graph = graph_after(*events)
        before = graph.executions

        assert handle(graph, RestartDue(vertices(2)), 900) == []
        assert (graph.executions, graph.num_ignored_events) == (before, 1)


class TestFailures:
    def test_further_failures_of_the_run_use_no_attempt(self) -> None:
        """Two failures of the first run leave the one attempt for the second."""
        graph = graph_after(*ENDING)

        effects = handle(graph, reported("b", 0, S.FAILED), 200)

        assert orders(effects) == [ReleaseSlots(), RestartAfter(DELAY_MS - 98)]
        assert graph.status is JobStatus.RESTARTING

    def test_the_cause_replaces_its_symptom(self) -> None:
        symptom, cause = failure("ConnectionLostError"), failure()
        graph = graph_after(*RUNNING, reported("a", 0, S.FAILED, symptom), reported("b", 0, S.FAILED, cause))
        (run,) = graph.failed_runs

        assert graph.failure is cause
        assert (run.root, list(run.concurrent)) == (cause, [symptom])

    def test_a_job_that_runs_again_has_no_failure_but_a_history(self) -> None:
        graph = graph_after(*AGAIN)

        assert graph.failure is None
        assert [run.root.message for run in graph.failed_runs] == ["a0"]

    def test_the_history_keeps_the_newest(self) -> None:
        graph = graph_after(attempts=100)
        for run in range(MAX_FAILED_RUNS + 5):
            for event in (
                slots(run),
                reported("a", run, S.FAILED),
                reported("b", run, S.CANCELED),
                RestartDue(vertices(run + 1)),
            ):
                handle(graph, event, 200)

        assert next(run.root.message for run in graph.failed_runs) == "a5"
        assert (len(graph.failed_runs), graph.num_failed_runs) == (MAX_FAILED_RUNS, MAX_FAILED_RUNS + 5)

    def test_a_failure_that_would_come_again_ends_the_job(self) -> None:
        graph = graph_after(*RUNNING)

        effects = handle(graph, reported("a", 0, S.FAILED, failure(suppresses_restarts=True)), 200)

        assert statuses(effects) == [JobStatus.FAILING]

    @pytest.mark.parametrize("phase", PHASES)
    def test_it_ends_a_job_that_restarts_as_well(self, phase: str) -> None:
        graph = graph_after(*PHASES[phase])
        cause = failure(suppresses_restarts=True)

        effects = handle(graph, GlobalFailure(cause), 200)

        expected = [JobStatus.FAILING] if phase == "ending" else [JobStatus.FAILING, JobStatus.FAILED]
        assert statuses(effects) == expected
        assert graph.failure is cause

    def test_without_slots_it_fails(self) -> None:
        graph = graph_after(*WAITING)
        both = failure(message="boom and no slots")

        effects = handle(graph, SchedulingFailed(both), 200)

        assert statuses(effects) == [JobStatus.FAILING, JobStatus.FAILED]
        assert graph.failure is both

    @pytest.mark.parametrize("phase", ["ending", "delayed"])
    def test_a_lack_of_slots_that_nobody_asked_for_is_ignored(self, phase: str) -> None:
        graph = graph_after(*PHASES[phase])

        assert handle(graph, SchedulingFailed(failure()), 200) == []
        assert handle(graph, slots(0), 200) == []
        assert graph.num_ignored_events == 2


class TestCancel:
    @pytest.mark.parametrize("phase", ["delayed", "waiting"])
    def test_between_two_runs_it_is_cancelled_at_once(self, phase: str) -> None:
        graph = graph_after(*PHASES[phase])

        effects = handle(graph, CancelRequested(), 200)

        assert statuses(effects) == [JobStatus.CANCELLING, JobStatus.CANCELED]
        assert effects[-1] == ReleaseSlots()
        assert graph.failure is None

    def test_while_tasks_end_it_waits_for_them(self) -> None:
        graph = graph_after(*ENDING)

        first = handle(graph, CancelRequested(), 200)
        second = handle(graph, reported("b", 0, S.CANCELED), 201)

        assert (statuses(first), orders(first)) == ([JobStatus.CANCELLING], [])
        assert (statuses(second), orders(second)) == ([JobStatus.CANCELED], [ReleaseSlots()])

    def test_a_restart_that_is_due_too_late_is_ignored(self) -> None:
        graph = graph_after(*DELAYED, CancelRequested())

        assert handle(graph, RestartDue(vertices(1)), 900) == []
        assert graph.num_ignored_events == 1


@dataclass(slots=True)
class World:
    """The JobManager and TaskManagers around one graph: they carry out the effects, in any order that the schedule
    chooses.
    """

    graph: ExecutionGraph
    now_ms: int = 200
    run: int = 0
    deployed: dict[bytes, str] = field(default_factory=dict)  # what lives on TaskManagers
    is_due: bool = False
    wants_slots: bool = True
    holds_slots: bool = False

    def handle(self, event: Event) -> None:
        self.now_ms += 1
        was_ended = self.graph.status.is_globally_terminal_state()
        effects = handle(self.graph, event, self.now_ms)
        self.graph.check_invariants()
        assert not (was_ended and effects)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Deploy(attempt_id, tm_id):
                assert all(each in self.graph.executions for each in self.deployed), (
                    "a task of the run before still lives"
                )
                self.deployed[attempt_id] = tm_id
            case ReleaseSlots():
                assert not self.deployed, "a task still lives on the slots"
                self.holds_slots = self.wants_slots = self.is_due = False
            case RestartAfter(delay_ms):
                assert 0 <= delay_ms <= DELAY_MS
                self.is_due = True
            case RequestSlots():
                assert not self.holds_slots
                self.wants_slots = True
            case _:
                pass

    def step(self, choice: str, number: int, cause: FailureInfo) -> None:
        """One thing that may happen now; others are left out."""
        match choice:
            case "slots" if self.wants_slots:
                self.wants_slots, self.holds_slots = False, True
                self.handle(slots(self.run))
            case "no slots" if self.wants_slots:
                self.wants_slots = False
                self.handle(SchedulingFailed(cause))
            case "due" if self.is_due:
                self.is_due = False
                self.run += 1
                self.handle(RestartDue(vertices(self.run)))
            case "run" | "finish" | "fail" if self.deployed:
                attempt_id = sorted(self.deployed)[number % len(self.deployed)]
                state = {"run": S.RUNNING, "finish": S.FINISHED, "fail": S.FAILED}[choice]
                self.report(attempt_id, state, cause)
            case "canceled":
                self.end_cancelled()
            case "lost":
                tm_id = ("tm-1", "tm-2")[number % 2]
                self.deployed = {key: place for key, place in self.deployed.items() if place != tm_id}
                self.handle(TaskManagerLost(tm_id, cause))
            case "global":
                self.handle(GlobalFailure(cause))
            case "stale":
                self.handle(reported("a", self.run - 1, S.FAILED, cause))
            case "cancel":
                self.handle(CancelRequested())
            case _:
                pass

    def report(self, attempt_id: bytes, state: ExecutionState, cause: FailureInfo) -> None:
        tm_id = self.deployed[attempt_id]
        if state is not S.RUNNING:
            del self.deployed[attempt_id]
        self.handle(ExecutionReported(attempt_id, tm_id, state, cause if state in (S.FAILED, S.CANCELED) else None))

    def end_cancelled(self) -> None:
        for attempt_id in [each for each in self.deployed if self.graph.executions[each].state is S.CANCELING]:
            self.report(attempt_id, S.CANCELED, failure())


CHOICES = ["slots", "no slots", "due", "run", "finish", "fail", "canceled", "lost", "global", "stale", "cancel"]
OFTEN = ["slots", "due", "canceled", "fail", "finish"]
CAUSES = [failure(), failure("ConnectionLostError"), failure(suppresses_restarts=True)]
STEPS = st.lists(
    st.tuples(st.sampled_from(CHOICES + 4 * OFTEN), st.integers(0, 1), st.sampled_from(CAUSES[:2] * 4 + CAUSES)),
    max_size=60,
)


@given(STEPS, st.integers(0, 4))
def test_laws_of_every_schedule(steps: list[tuple[str, int, FailureInfo]], attempts: int) -> None:
    """One run at a time, no more restarts than allowed, and slots that are free exactly when nothing runs; the graph's
    own checks, too.
    """
    world = World(graph_after(attempts=attempts))

    for choice, number, cause in steps:
        world.step(choice, number, cause)

    assert world.graph.attempt_number == world.run <= attempts


@given(STEPS, st.integers(0, 4))
def test_every_job_ends_if_nothing_else_fails(steps: list[tuple[str, int, FailureInfo]], attempts: int) -> None:
    world = World(graph_after(attempts=attempts))
    for choice, number, cause in steps:
        world.step(choice, number, cause)

    for _ in range(3):
        for choice in ("canceled", "due", "slots", "finish", "finish"):
            world.step(choice, 0, CAUSES[0])

    assert world.graph.status.is_globally_terminal_state()
    assert not world.deployed


@given(STEPS, st.integers(0, 4))
def test_a_cancel_ends_every_job_that_does_not_fail_already(
    steps: list[tuple[str, int, FailureInfo]], attempts: int
) -> None:
    """A restart may be at any stage: no task is deployed any more, and the job is CANCELED."""
    world = World(graph_after(attempts=attempts))
    for choice, number, cause in steps:
        world.step(choice, number, cause)
    before = world.graph.status

    world.handle(CancelRequested())
    world.end_cancelled()

    if before in (JobStatus.CREATED, JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.CANCELLING):
        assert world.graph.status is JobStatus.CANCELED
    assert world.graph.status.is_globally_terminal_state()


def test_a_failure_travels_with_its_mark() -> None:
    """The field ``suppresses_restarts`` is part of a TaskManager's message."""
    sent = failure(suppresses_restarts=True)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=FailureInfo) == sent
