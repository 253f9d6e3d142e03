"""Tests of ``flowlet.graph.execution_graph``: jobs of several regions, of which only those that failed start again."""

from collections import Counter
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
from flowlet.graph.execution_graph import ExecutionGraph
from flowlet.messages.control_messages import CancelTask, FailureInfo
from tests.flowlet.graph.events import (
    CancelRequested,
    Event,
    ExecutionReported,
    GlobalFailure,
    SchedulingFailed,
    TaskManagerLost,
    failure,
    handle,
    orders,
)
from tests.flowlet.graph.restarts import (
    DELAY_MS,
    TM_OF,
    S,
    attempt,
    due,
    graph_of,
    reported,
    slots_for,
    world_after,
)

REGIONS: Final = ["ab", "cd", "e"]
FAILED: Final = (reported("a", S.FAILED), reported("b", S.CANCELED))  # the first region, which waits for its delay


def running(attempts: int = 9) -> ExecutionGraph:
    graph = graph_of(REGIONS, attempts)
    handle(graph, slots_for(graph), 101)
    for task in TM_OF:
        handle(graph, reported(task, S.RUNNING), 102)
    return graph


def after(graph: ExecutionGraph, *events: Event) -> list[Effect]:
    """Return the orders of the last event."""
    effects: list[Effect] = []
    for event in events:
        effects = handle(graph, event, 200)
        graph.check_invariants()
    return [each for each in effects if isinstance(each, JobStatusChanged) or each in orders(effects)]


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

        assert after(graph, *FAILED) == [RestartAfter(DELAY_MS, (0,))]
        assert after(graph, due("ab")) == [RequestSlots()]
        assert after(graph, slots_for(graph)) == [
            JobStatusChanged(JobStatus.RUNNING),
            Deploy(attempt("a", 1), "tm-1"),
            Deploy(attempt("b", 1), "tm-2"),
        ]
        assert list(states(graph)) == ["a1", "b1", "c0", "d0", "e0"], "in the order of deployment"
        assert numbers(graph) == [1, 1, 0, 0, 0]

    def test_others_report_and_finish_meanwhile(self) -> None:
        graph = running()
        after(graph, *FAILED, reported("c", S.FINISHED), reported("d", S.FINISHED))

        assert after(graph, reported("e", S.FINISHED)) == [], "a restart is still due"
        assert after(graph, due("ab")) == [RequestSlots()]
        after(graph, slots_for(graph))

        again = {"a1": "DEPLOYING", "b1": "DEPLOYING"}
        assert states(graph) == again | {"c0": "FINISHED", "d0": "FINISHED", "e0": "FINISHED"}
        assert graph.num_ignored_events == 0

    def test_the_job_finishes_with_the_last_region(self) -> None:
        graph = running()
        after(graph, reported("c", S.FINISHED), reported("d", S.FINISHED), reported("e", S.FINISHED))

        after(graph, reported("a", S.FAILED))
        effects = after(graph, reported("b", S.CANCELED))
        assert effects == [ReleaseSlots(), RestartAfter(DELAY_MS, (0,))], "no task is left"
        after(graph, due("ab"))
        after(graph, slots_for(graph))

        after(graph, reported("a", S.FINISHED, 1))
        assert after(graph, reported("b", S.FINISHED, 1)) == [JobStatusChanged(JobStatus.FINISHED), ReleaseSlots()]
        assert numbers(graph) == [1, 1, 0, 0, 0], "finished regions do not start again"

    def test_a_finished_task_of_the_region_starts_again(self) -> None:
        graph = running()

        after(graph, reported("b", S.FINISHED), reported("a", S.FAILED), due("ab"))

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

        assert after(graph, due("ab")) == []
        assert graph.num_ignored_events == 1


class TestTwoRegions:
    def test_they_restart_independently(self) -> None:
        """The second one fails while the first one ends."""
        graph = running()
        after(graph, reported("a", S.FAILED))

        assert after(graph, reported("c", S.FAILED)) == [SendMessage("tm-3", CancelTask(attempt("d")))]
        assert after(graph, reported("b", S.CANCELED)) == [RestartAfter(DELAY_MS, (0,))]
        after(graph, due("ab"))
        effects = after(graph, slots_for(graph))

        assert effects == [Deploy(attempt("a", 1), "tm-1"), Deploy(attempt("b", 1), "tm-2")], "RESTARTING goes on"
        assert graph.status is JobStatus.RESTARTING
        assert after(graph, reported("d", S.CANCELED)) == [RestartAfter(DELAY_MS, (1,))]
        after(graph, due("cd"))
        assert after(graph, slots_for(graph))[0] == JobStatusChanged(JobStatus.RUNNING)
        assert numbers(graph) == [1, 1, 1, 1, 0]
        assert graph.num_failed_runs == graph.attempt_number == 2

    def test_the_second_waits_with_the_first_for_slots(self) -> None:
        graph = running()
        after(graph, *FAILED, due("ab"))
        after(graph, reported("e", S.FAILED))

        assert after(graph, due("e")) == [], "they are requested already"
        assert [each.attempt for each in graph.waiting] == [attempt("a", 1), attempt("b", 1), attempt("e", 1)]
        assert len(after(graph, slots_for(graph))) == 1 + 3

    def test_the_first_is_deployed_while_the_second_ends(self) -> None:
        graph = running()
        after(graph, *FAILED, due("ab"), reported("c", S.FAILED))

        assert after(graph, slots_for(graph)) == [Deploy(attempt("a", 1), "tm-1"), Deploy(attempt("b", 1), "tm-2")]
        assert graph.failure == failure(message="c0")

    def test_a_region_fails_again_while_another_one_waits(self) -> None:
        """Each failure is counted and listed."""
        graph = running()
        after(graph, reported("e", S.FAILED), due("e"), reported("a", S.FAILED))
        after(graph, slots_for(graph))
        after(graph, reported("e", S.FAILED, 1))

        assert [run.root.message for run in graph.failed_runs] == ["e0", "a0", "e1"]
        assert numbers(graph) == [0, 0, 0, 0, 1]
        after(graph, due("e", 2))
        assert numbers(graph) == [0, 0, 0, 0, 2]

    def test_a_lost_task_manager_with_tasks_of_both_is_one_failure(self) -> None:
        graph = running(attempts=1)

        effects = after(graph, TaskManagerLost("tm-2", failure(message="lost")))

        assert effects == [
            JobStatusChanged(JobStatus.RESTARTING),
            SendMessage("tm-1", CancelTask(attempt("a"))),
            SendMessage("tm-3", CancelTask(attempt("d"))),
        ]
        assert states(graph)["e0"] == "RUNNING"
        assert after(graph, reported("a", S.CANCELED)) == []
        assert after(graph, reported("d", S.CANCELED)) == [RestartAfter(DELAY_MS, (0, 1))]
        after(graph, due("abcd"))
        assert numbers(graph) == [1, 1, 1, 1, 0]
        assert graph.num_failed_runs == 1

    def test_a_loss_that_ends_a_restarting_region_and_fails_a_running_one(self) -> None:
        graph = running()
        after(graph, reported("a", S.FAILED))

        effects = after(graph, TaskManagerLost("tm-2", failure(message="lost")))

        assert effects == [SendMessage("tm-3", CancelTask(attempt("d"))), RestartAfter(DELAY_MS, (0,))]
        assert [run.root.message for run in graph.failed_runs] == ["a0", "lost"]

    def test_a_later_failure_in_a_region_belongs_to_its_own_first_one(self) -> None:
        graph = running()
        lost = failure("ConnectionLostError", "gone")
        after(graph, reported("a", S.FAILED, cause=lost), reported("e", S.FAILED), reported("b", S.FAILED))

        assert [(run.root.message, [each.message for each in run.concurrent]) for run in graph.failed_runs] == [
            ("b0", ["gone"]),
            ("e0", []),
        ]
        assert graph.failure == failure(message="e0")

    def test_all_count_for_the_strategy_of_the_job(self) -> None:
        graph = running(attempts=1)
        after(graph, *FAILED)

        after(graph, reported("e", S.FAILED))

        assert graph.status is JobStatus.FAILING
        assert graph.why_no_restart == "restart-strategy.fixed-delay.attempts is 1"
        assert {states(graph)[each] for each in ("c0", "d0")} == {"CANCELING"}

    def test_a_failure_for_good_ends_the_job_while_another_region_ends(self) -> None:
        graph = running()
        after(graph, reported("a", S.FAILED), reported("e", S.FAILED))

        after(graph, reported("b", S.FAILED, cause=failure(message="state", suppresses_restarts=True)))

        assert graph.status is JobStatus.FAILING
        assert graph.failure == failure(message="state", suppresses_restarts=True)
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
    after(graph, *FAILED, due("ab"), reported("e", S.FAILED))

    effects = after(graph, GlobalFailure(failure()))

    assert effects == [SendMessage("tm-2", CancelTask(attempt("c"))), SendMessage("tm-3", CancelTask(attempt("d")))]
    assert [each.attempt for each in graph.waiting] == [attempt("a", 1), attempt("b", 1)]


def test_without_slots_for_a_region_the_job_fails() -> None:
    graph = running()
    after(graph, *FAILED, due("ab"))

    effects = after(graph, SchedulingFailed(failure(message="no slots")))

    assert effects[0] == JobStatusChanged(JobStatus.FAILING)
    assert len([each for each in effects if isinstance(each, SendMessage)]) == 3


PHASES: Final[dict[str, tuple[Event, ...]]] = {
    "running": (),
    "ending": (reported("a", S.FAILED),),
    "delayed": FAILED,
    "waiting": (*FAILED, due("ab")),
    "one waits and one ends": (*FAILED, due("ab"), reported("c", S.FAILED)),
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
    assert after(graph, due("ab")) == []


OFTEN = ["slots", "due", "canceled", "canceled", "fail", "finish", "lost"]
CHOICES = ["slots", "no slots", "due", "run", "finish", "fail", "canceled", "lost", "global", "cancel", *5 * OFTEN]
CAUSES = [failure(), failure("ConnectionLostError")] * 6 + [failure(suppresses_restarts=True)]
STEPS = st.lists(st.tuples(st.sampled_from(CHOICES), st.integers(0, 5), st.sampled_from(CAUSES)), max_size=80)


@given(STEPS, st.integers(0, 9))
def test_laws_of_every_schedule(steps: list[tuple[str, int, FailureInfo]], attempts: int) -> None:
    """One attempt of a task at a time, others undisturbed, no more restarts than allowed, and the
    graph's own checks.
    """
    world = world_after(steps, REGIONS, attempts)

    assert world.graph.attempt_number <= min(attempts, world.graph.num_failed_runs)
    assert Counter(each.vertex_id for each in world.graph.executions.values()) == Counter(TM_OF.keys())


@given(STEPS, st.integers(0, 9))
def test_every_job_ends_if_nothing_else_fails(steps: list[tuple[str, int, FailureInfo]], attempts: int) -> None:
    world = world_after(steps, REGIONS, attempts)

    for _ in range(2):
        for choice in 6 * ["canceled"] + 3 * ["due"] + ["slots"] + 6 * ["finish"]:
            world.step(choice, 0, CAUSES[0])

    assert world.graph.status.is_globally_terminal_state()
    assert not world.deployed
