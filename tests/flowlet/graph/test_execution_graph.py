"""Tests of ``flowlet.graph.execution_graph``: every (status, event) pair, then laws over random schedules."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.job_status import JobStatus
from flowlet.graph.execution_events import (
    Deploy,
    Effect,
    ExecutionStateChanged,
    JobStatusChanged,
    ReleaseSlots,
    SendMessage,
)
from flowlet.graph.execution_graph import Execution, ExecutionGraph, is_symptom
from flowlet.messages.control_messages import CancelTask, FailureInfo
from flowlet.messages.execution_state import EXECUTION_TRANSITIONS, ExecutionState
from tests.flowlet.graph.events import (
    CancelRequested,
    Event,
    ExecutionReported,
    GlobalFailure,
    SchedulingFailed,
    SlotsAllocated,
    TaskManagerLost,
    failure,
    handle,
    orders,
    statuses,
)

A, B, C = b"a" * 40, b"b" * 40, b"c" * 40  # two tasks of vertex v, one of vertex w
PLACES = {A: "tm-1", B: "tm-2", C: "tm-1"}
REPORTABLE = [state for state in ExecutionState if state not in (ExecutionState.CREATED, ExecutionState.SCHEDULED)]


def reported(attempt: bytes, state: ExecutionState, cause: FailureInfo | None = None) -> ExecutionReported:
    """Return the report of a TaskManager, with a cause wherever one is needed."""
    if cause is None and state in (ExecutionState.FAILED, ExecutionState.CANCELED):
        cause = failure(message=f"{state} {attempt[:1].decode()}")
    return ExecutionReported(attempt, PLACES[attempt], state, cause)


def waiting_graph() -> ExecutionGraph:
    return ExecutionGraph([Execution(A, "v", 0), Execution(B, "v", 1), Execution(C, "w", 0)], created_ms=100)


def graph_after(*events: Event) -> ExecutionGraph:
    graph = waiting_graph()
    for number, event in enumerate(events):
        handle(graph, event, 101 + number)
        graph.check_invariants()
    return graph


RUNNING: Sequence[Event] = [SlotsAllocated(PLACES), *(reported(attempt, ExecutionState.RUNNING) for attempt in PLACES)]
ENDS = [reported(attempt, ExecutionState.CANCELED) for attempt in (B, C)]
# The way to each status, by which all tasks run.
WAYS: dict[JobStatus, Sequence[Event]] = {
    JobStatus.CREATED: [],
    JobStatus.RUNNING: RUNNING,
    JobStatus.FAILING: [*RUNNING, reported(A, ExecutionState.FAILED)],
    JobStatus.CANCELLING: [*RUNNING, CancelRequested()],
    JobStatus.FAILED: [*RUNNING, reported(A, ExecutionState.FAILED), *ENDS],
    JobStatus.CANCELED: [*RUNNING, CancelRequested(), reported(A, ExecutionState.CANCELED), *ENDS],
    JobStatus.FINISHED: [*RUNNING, *(reported(attempt, ExecutionState.FINISHED) for attempt in PLACES)],
}


def graph_in(status: JobStatus) -> ExecutionGraph:
    graph = graph_after(*WAYS[status])
    assert graph.status is status
    return graph


def states(graph: ExecutionGraph) -> list[ExecutionState]:
    return [execution.state for execution in graph.executions.values()]


class TestDeploying:
    def test_all_tasks_are_deployed_at_once_each_to_its_place(self) -> None:
        """The tasks are deployed in the order of the vertices, and no other order is given."""
        graph = waiting_graph()

        effects = handle(graph, SlotsAllocated(PLACES), 200)

        assert orders(effects) == [Deploy(A, "tm-1"), Deploy(B, "tm-2"), Deploy(C, "tm-1")]
        assert statuses(effects) == [JobStatus.RUNNING]
        assert effects[1:4] == [
            ExecutionStateChanged(A, ExecutionState.SCHEDULED),
            ExecutionStateChanged(A, ExecutionState.DEPLOYING),
            Deploy(A, "tm-1"),
        ]

    def test_times_are_those_of_the_events(self) -> None:
        graph = graph_after(SlotsAllocated(PLACES), reported(A, ExecutionState.FINISHED))

        assert graph.timestamps == {JobStatus.CREATED: 100, JobStatus.RUNNING: 101}
        assert (graph.executions[A].start_ms, graph.executions[A].end_ms) == (101, 102)
        assert graph.executions[B].end_ms is None

    def test_without_slots_the_job_fails_with_that_reason(self) -> None:
        graph = waiting_graph()
        cause = failure("NoResourceAvailable")

        effects = handle(graph, SchedulingFailed(cause), 200)

        assert statuses(effects) == [JobStatus.FAILING, JobStatus.FAILED]
        assert orders(effects) == [ReleaseSlots()]
        assert graph.failure is cause
        assert set(states(graph)) == {ExecutionState.CANCELED}

    @pytest.mark.parametrize("status", [status for status in WAYS if status is not JobStatus.CREATED])
    @pytest.mark.parametrize(
        "event",
        [SlotsAllocated(PLACES), SchedulingFailed(failure("NoResourceAvailable"))],
        ids=["slots", "a lack of slots"],
    )
    def test_what_comes_too_late_is_ignored(self, event: Event, status: JobStatus) -> None:
        graph = graph_in(status)
        before = graph.failure

        assert handle(graph, event, 200) == []
        assert (graph.status, graph.failure, graph.num_ignored_events) == (status, before, 1)


class TestReports:
    @pytest.mark.parametrize("before", ExecutionState)
    @pytest.mark.parametrize("after", REPORTABLE)
    def test_a_report_is_accepted_exactly_when_the_table_allows_it(
        self, before: ExecutionState, after: ExecutionState
    ) -> None:
        """A refused one changes nothing but the counter; an echo of a live state not even that."""
        graph = (
            graph_after(SlotsAllocated(PLACES))
            if before not in (ExecutionState.CREATED, ExecutionState.SCHEDULED)
            else waiting_graph()
        )
        graph.executions[A].state = before  # by force: some states end the job, which is another test's business
        allowed = graph.executions[A].tm_id is not None and after in EXECUTION_TRANSITIONS[before]
        is_echo = graph.executions[A].tm_id is not None and before is after and not before.is_terminal

        effects = handle(graph, reported(A, after), 200)

        assert graph.executions[A].state is (after if allowed else before)
        assert bool(effects) == allowed
        assert graph.num_ignored_events == (0 if allowed or is_echo else 1)

    @pytest.mark.parametrize(
        ("attempt", "tm_id"),
        [(b"x" * 40, "tm-1"), (A, "tm-2")],
        ids=["an unknown attempt", "another TaskManager"],
    )
    def test_a_report_of_strangers_is_counted_and_ignored(self, attempt: bytes, tm_id: str) -> None:
        graph = graph_in(JobStatus.RUNNING)

        assert handle(graph, ExecutionReported(attempt, tm_id, ExecutionState.FAILED, failure()), 200) == []
        assert (graph.status, graph.num_ignored_events) == (JobStatus.RUNNING, 1)

    def test_the_job_finishes_with_its_last_task(self) -> None:
        graph = graph_after(
            SlotsAllocated(PLACES), reported(A, ExecutionState.FINISHED), reported(B, ExecutionState.FINISHED)
        )

        effects = handle(graph, reported(C, ExecutionState.FINISHED), 200)

        assert effects == [
            ExecutionStateChanged(C, ExecutionState.FINISHED),
            JobStatusChanged(JobStatus.FINISHED),
            ReleaseSlots(),
        ]

    def test_a_task_that_ends_unasked_fails_the_job(self) -> None:
        """A TaskManager that stops cancels its tasks first."""
        graph = graph_in(JobStatus.RUNNING)
        cause = failure("TaskManagerLost")

        effects = handle(graph, reported(A, ExecutionState.CANCELED, cause), 200)

        assert statuses(effects) == [JobStatus.FAILING]
        assert graph.failure is cause
        assert graph.executions[A].failure is None


class TestFailing:
    def test_all_others_that_live_are_cancelled(self) -> None:
        begun = SlotsAllocated(PLACES), reported(B, ExecutionState.RUNNING)
        graph = graph_after(*begun, reported(C, ExecutionState.FINISHED))

        effects = handle(graph, reported(A, ExecutionState.FAILED), 200)

        assert orders(effects) == [SendMessage("tm-2", CancelTask(B))]
        assert states(graph) == [ExecutionState.FAILED, ExecutionState.CANCELING, ExecutionState.FINISHED]

    def test_the_job_has_failed_once_all_tasks_have_ended(self) -> None:
        """The tasks may end in any way: one of them may have finished before the cancel came."""
        graph = graph_in(JobStatus.FAILING)

        first = handle(graph, reported(B, ExecutionState.FINISHED), 200)
        second = handle(graph, reported(C, ExecutionState.CANCELED), 201)

        assert statuses(first) == []
        assert (statuses(second), orders(second)) == ([JobStatus.FAILED], [ReleaseSlots()])

    def test_the_first_cause_wins(self) -> None:
        first, second = failure(message="first"), failure(message="second")
        graph = graph_after(SlotsAllocated(PLACES), reported(A, ExecutionState.FAILED, first))

        handle(graph, reported(B, ExecutionState.FAILED, second), 200)

        assert graph.failure is first
        assert graph.executions[B].failure is second

    def test_a_cause_replaces_a_symptom_that_was_faster(self) -> None:
        """The consumer sees the broken connection before the JobManager knows that the producer's process is gone."""
        symptom, cause = failure("netstack.errors.ConnectionLostError"), failure("TaskManagerLost")
        graph = graph_after(SlotsAllocated(PLACES), reported(B, ExecutionState.FAILED, symptom))

        effects = handle(graph, TaskManagerLost("tm-1", cause), 200)

        assert graph.failure is cause
        assert statuses(effects) == [JobStatus.FAILED]

    def test_a_symptom_never_replaces_anything(self) -> None:
        first, second = failure("ProducerFailedError", "first"), failure("ConnectError", "second")
        graph = graph_after(SlotsAllocated(PLACES), reported(A, ExecutionState.FAILED, first))

        handle(graph, reported(B, ExecutionState.FAILED, second), 200)

        assert graph.failure is first

    @pytest.mark.parametrize(
        ("exception_type", "expected"),
        [
            ("netstack.errors.ConnectError", True),
            ("ConnectError", True),
            ("builtins.ValueError", False),
            ("NotConnectError", False),
        ],
    )
    def test_symptoms_are_known_by_their_last_name(self, exception_type: str, expected: bool) -> None:
        assert is_symptom(failure(exception_type)) == expected


class TestLostTaskManager:
    def test_all_its_tasks_fail_and_the_others_are_cancelled(self) -> None:
        graph = graph_in(JobStatus.RUNNING)
        cause = failure("TaskManagerLost")

        effects = handle(graph, TaskManagerLost("tm-1", cause), 200)

        assert states(graph) == [ExecutionState.FAILED, ExecutionState.CANCELING, ExecutionState.FAILED]
        assert orders(effects) == [SendMessage("tm-2", CancelTask(B))]
        assert (graph.failure, graph.executions[A].failure, graph.executions[C].failure) == (cause, cause, cause)

    def test_one_without_tasks_or_whose_tasks_have_all_finished_changes_nothing(self) -> None:
        graph = graph_after(SlotsAllocated(PLACES), reported(B, ExecutionState.FINISHED))

        for tm_id in ("tm-2", "tm-3"):
            assert handle(graph, TaskManagerLost(tm_id, failure()), 200) == []
        assert graph.status is JobStatus.RUNNING

    def test_a_lost_task_counts_as_ended_while_cancelling(self) -> None:
        """A cancelled job stays cancelled when a TaskManager goes away meanwhile."""
        graph = graph_in(JobStatus.CANCELLING)
        handle(graph, reported(B, ExecutionState.CANCELED), 200)

        effects = handle(graph, TaskManagerLost("tm-1", failure()), 201)

        assert statuses(effects) == [JobStatus.CANCELED]
        assert graph.failure is None


class TestSource:
    def test_one_whose_splits_cannot_be_found_fails_the_job(self) -> None:
        graph = graph_in(JobStatus.RUNNING)
        cause = failure(message="cannot read a.txt")

        effects = handle(graph, GlobalFailure(cause), 200)

        assert statuses(effects) == [JobStatus.FAILING]
        assert orders(effects) == [SendMessage(PLACES[each], CancelTask(each)) for each in (A, B, C)]
        assert graph.failure is cause

    @pytest.mark.parametrize(
        "status", [JobStatus.FAILING, JobStatus.CANCELLING, JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED]
    )
    def test_a_job_that_ends_anyway_keeps_its_reason(self, status: JobStatus) -> None:
        graph = graph_in(status)
        before = graph.failure

        assert handle(graph, GlobalFailure(failure(message="too late")), 200) == []
        assert (graph.status, graph.failure) == (status, before)


class TestCancelling:
    def test_a_waiting_job_is_cancelled_at_once(self) -> None:
        graph = waiting_graph()

        effects = handle(graph, CancelRequested(), 200)

        assert statuses(effects) == [JobStatus.CANCELLING, JobStatus.CANCELED]
        assert orders(effects) == [ReleaseSlots()]

    @pytest.mark.parametrize("state", [ExecutionState.DEPLOYING, ExecutionState.INITIALIZING, ExecutionState.RUNNING])
    def test_a_task_is_cancelled_in_every_live_state(self, state: ExecutionState) -> None:
        graph = graph_after(SlotsAllocated(PLACES), reported(A, state))

        effects = handle(graph, CancelRequested(), 200)

        assert orders(effects) == [SendMessage(PLACES[each], CancelTask(each)) for each in (A, B, C)]
        assert set(states(graph)) == {ExecutionState.CANCELING}

    def test_a_task_that_cancels_itself_is_not_told_again(self) -> None:
        graph = graph_after(SlotsAllocated(PLACES), reported(A, ExecutionState.CANCELING))

        effects = handle(graph, CancelRequested(), 200)

        assert orders(effects) == [SendMessage("tm-2", CancelTask(B)), SendMessage("tm-1", CancelTask(C))]

    @pytest.mark.parametrize("end", [ExecutionState.CANCELED, ExecutionState.FINISHED, ExecutionState.FAILED])
    def test_the_job_is_canceled_however_its_tasks_end(self, end: ExecutionState) -> None:
        graph = graph_in(JobStatus.CANCELLING)

        effects = [effect for attempt in PLACES for effect in handle(graph, reported(attempt, end), 200)]

        assert statuses(effects) == [JobStatus.CANCELED]
        assert graph.failure is None

    @pytest.mark.parametrize(
        "status", [status for status in WAYS if status not in (JobStatus.CREATED, JobStatus.RUNNING)]
    )
    def test_in_every_other_status_it_changes_nothing(self, status: JobStatus) -> None:
        """A second cancel request is not counted as stale either: people press the button twice."""
        graph = graph_in(status)

        assert handle(graph, CancelRequested(), 200) == []
        assert (graph.status, graph.num_ignored_events) == (status, 0)


def test_executions_are_found_by_their_vertex() -> None:
    graph = waiting_graph()

    assert [execution.attempt for execution in graph.executions_of("v")] == [A, B]


def test_the_repr_names_the_state() -> None:
    assert repr(graph_in(JobStatus.FAILING)) == "<ExecutionGraph FAILING {'FAILED': 1, 'CANCELING': 2}>"


def test_the_invariants_notice_a_lost_task() -> None:
    """The check itself is checked: a state changed behind the machine's back is seen."""
    graph = graph_in(JobStatus.RUNNING)
    graph.executions[A].state = ExecutionState.FINISHED

    with pytest.raises(AssertionError, match="3 counted, 2 found"):
        graph.check_invariants()


ATTEMPTS = st.sampled_from([A, B, C])
CAUSES = st.sampled_from([failure(message="user"), failure("ConnectionLostError"), failure("TaskManagerLost")])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.just(SlotsAllocated(PLACES)),
    st.builds(SchedulingFailed, CAUSES),
    st.just(CancelRequested()),
    st.builds(reported, ATTEMPTS, st.sampled_from(REPORTABLE), CAUSES),
    st.builds(ExecutionReported, st.just(A), st.just("tm-2"), st.sampled_from(REPORTABLE), CAUSES),
    st.builds(GlobalFailure, CAUSES),
    st.builds(TaskManagerLost, st.sampled_from(["tm-1", "tm-2", "tm-3"]), CAUSES),
)


@given(st.lists(EVENTS, max_size=30), st.booleans())
def test_laws_of_every_schedule(events: list[Event], starts: bool) -> None:
    """An attempt gets at most one Deploy and one Cancel, Cancel only after Deploy; slots are released once and last; a
    terminal status stays.
    """
    graph = waiting_graph()
    effects: list[Effect] = []
    for number, event in enumerate([SlotsAllocated(PLACES), *events] if starts else events):
        was_terminal, ended = graph.status.is_globally_terminal_state(), states(graph)
        new = handle(graph, event, 101 + number)
        effects += new
        graph.check_invariants()
        assert not (was_terminal and new)
        assert all(
            not before.is_terminal or before is after for before, after in zip(ended, states(graph), strict=True)
        )

    ordered = orders(effects)
    assert len(set(ordered)) == len(ordered)
    deployed = [each for each in ordered if isinstance(each, Deploy)]
    cancels = {CancelTask(each.attempt): each for each in deployed}
    assert all(
        ordered.index(cancels[each.message]) < ordered.index(each)
        for each in ordered
        if isinstance(each, SendMessage) and isinstance(each.message, CancelTask)
    )
    assert ordered.count(ReleaseSlots()) == graph.status.is_globally_terminal_state()
    if graph.status.is_globally_terminal_state():
        assert effects[-1] == ReleaseSlots()


@given(st.lists(EVENTS, max_size=20))
def test_every_job_ends_once_its_task_managers_are_gone(events: list[Event]) -> None:
    """No job hangs: it ends after a cancel with no TaskManager left."""
    graph = graph_after(*events)

    for tm_id in ("tm-1", "tm-2"):
        handle(graph, TaskManagerLost(tm_id, failure()), 500)
    handle(graph, CancelRequested(), 500)

    assert graph.status.is_globally_terminal_state()
