"""Tests of ``flowlet.graph.execution_graph``: what happens between two runs of a job."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.job_status import JobStatus
from flowlet.graph.execution_events import ReleaseSlots, RequestSlots, RestartAfter
from flowlet.graph.execution_graph import MAX_FAILED_RUNS, ExecutionGraph
from flowlet.messages.control_messages import FailureInfo
from tests.flowlet.graph.events import (
    CancelRequested,
    Event,
    GlobalFailure,
    SchedulingFailed,
    failure,
    handle,
    orders,
    statuses,
)
from tests.flowlet.graph.restarts import DELAY_MS, S, due, graph_of, reported, slots, world_after


def graph_after(*events: Event, attempts: int = 1) -> ExecutionGraph:
    graph = graph_of(["ab"], attempts)
    for number, event in enumerate(events):
        handle(graph, event, 101 + number)
        graph.check_invariants()
    return graph


RUNNING = (slots("ab"),)
ENDING = (*RUNNING, reported("a", S.FAILED))  # b is being cancelled
DELAYED = (*ENDING, reported("b", S.CANCELED))
WAITING = (*DELAYED, due("ab"))
AGAIN = (*WAITING, slots("ab", 1))
PHASES = {"ending": ENDING, "delayed": DELAYED, "waiting": WAITING}


class TestOneRestart:
    def test_the_slots_are_given_back_when_the_last_task_has_ended_and_the_delay_counts_from_the_failure(self) -> None:
        graph = graph_after(*RUNNING)
        handle(graph, reported("a", S.FAILED), 200)

        effects = handle(graph, reported("b", S.CANCELED), 320)

        assert orders(effects) == [ReleaseSlots(), RestartAfter(DELAY_MS - 120)]
        assert statuses(effects) == []

    def test_a_delay_that_is_over_before_the_tasks_are_is_none(self) -> None:
        graph = graph_after(*RUNNING)
        handle(graph, reported("a", S.FAILED), 200)

        assert RestartAfter(0) in handle(graph, reported("b", S.CANCELED), 200_000)

    def test_a_clock_that_was_set_back_makes_the_delay_no_longer(self) -> None:
        graph = graph_after(*RUNNING)
        handle(graph, reported("a", S.FAILED), 200_000)

        assert RestartAfter(DELAY_MS) in handle(graph, reported("b", S.CANCELED), 200)

    def test_a_run_that_was_over_at_once_restarts_once(self) -> None:
        graph = graph_after(*RUNNING, reported("b", S.FINISHED))

        effects = handle(graph, reported("a", S.FAILED), 200)

        assert orders(effects) == [ReleaseSlots(), RestartAfter(DELAY_MS)]

    def test_then_it_asks_for_slots(self) -> None:
        graph = graph_after(*DELAYED)

        effects = handle(graph, due("ab"), 900)

        assert effects == [RequestSlots()]
        assert (graph.status, graph.attempt_number) == (JobStatus.RESTARTING, 1)
        assert {execution.state for execution in graph.executions.values()} == {S.CREATED}

    def test_reports_of_the_run_before_are_ignored_and_counted(self) -> None:
        graph = graph_after(*AGAIN)

        assert handle(graph, reported("a", S.FAILED), 900) == []
        assert handle(graph, reported("b", S.RUNNING), 900) == []
        assert (graph.status, graph.num_ignored_events) == (JobStatus.RUNNING, 2)

    @pytest.mark.parametrize("events", [RUNNING, ENDING, AGAIN], ids=["running", "ending", "again"])
    def test_no_run_begins_while_another_lives(self, events: tuple[Event, ...]) -> None:
        graph = graph_after(*events)
        before = graph.executions

        assert handle(graph, due("ab", 2), 900) == []
        assert (graph.executions, graph.num_ignored_events) == (before, 1)


class TestFailures:
    def test_further_failures_of_the_run_use_no_attempt(self) -> None:
        """Two failures of the first run leave the one attempt for the second."""
        graph = graph_after(*ENDING)

        effects = handle(graph, reported("b", S.FAILED), 200)

        assert orders(effects) == [ReleaseSlots(), RestartAfter(DELAY_MS - 98)]
        assert graph.status is JobStatus.RESTARTING

    def test_the_cause_replaces_its_symptom(self) -> None:
        symptom, cause = failure("ConnectionLostError"), failure()
        graph = graph_after(*RUNNING, reported("a", S.FAILED, 0, symptom), reported("b", S.FAILED, 0, cause))
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
                slots("ab", run),
                reported("a", S.FAILED, run),
                reported("b", S.CANCELED, run),
                due("ab", run + 1),
            ):
                handle(graph, event, 200)

        assert next(run.root.message for run in graph.failed_runs) == "a5"
        assert (len(graph.failed_runs), graph.num_failed_runs) == (MAX_FAILED_RUNS, MAX_FAILED_RUNS + 5)

    def test_a_failure_that_would_come_again_ends_the_job(self) -> None:
        graph = graph_after(*RUNNING)

        effects = handle(graph, reported("a", S.FAILED, 0, failure(suppresses_restarts=True)), 200)

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
        assert handle(graph, slots("ab"), 200) == []
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
        second = handle(graph, reported("b", S.CANCELED), 201)

        assert (statuses(first), orders(first)) == ([JobStatus.CANCELLING], [])
        assert (statuses(second), orders(second)) == ([JobStatus.CANCELED], [ReleaseSlots()])

    def test_a_restart_that_is_due_too_late_is_ignored(self) -> None:
        graph = graph_after(*DELAYED, CancelRequested())

        assert handle(graph, due("ab"), 900) == []
        assert graph.num_ignored_events == 1


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
    world = world_after(steps, ["ab"], attempts)

    assert world.graph.attempt_number == world.num_restarts <= attempts


@given(STEPS, st.integers(0, 4))
def test_every_job_ends_if_nothing_else_fails(steps: list[tuple[str, int, FailureInfo]], attempts: int) -> None:
    world = world_after(steps, ["ab"], attempts)

    for _ in range(3):
        for choice in ("canceled", "canceled", "due", "slots", "finish", "finish"):
            world.step(choice, 0, CAUSES[0])

    assert world.graph.status.is_globally_terminal_state()
    assert not world.deployed


@given(STEPS, st.integers(0, 4))
def test_a_cancel_ends_every_job_that_does_not_fail_already(
    steps: list[tuple[str, int, FailureInfo]], attempts: int
) -> None:
    """A restart may be at any stage: no task is deployed any more, and the job is CANCELED."""
    world = world_after(steps, ["ab"], attempts)
    before = world.graph.status

    world.handle(CancelRequested())
    for each in world.cancelled():
        world.report(each, S.CANCELED, failure())

    if before in (JobStatus.CREATED, JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.CANCELLING):
        assert world.graph.status is JobStatus.CANCELED
    assert world.graph.status.is_globally_terminal_state()


def test_a_failure_travels_with_its_mark() -> None:
    """The field ``suppresses_restarts`` is part of a TaskManager's message."""
    sent = failure(suppresses_restarts=True)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=FailureInfo) == sent
