"""``ExecutionGraph``: the state machine of one job; it takes events and returns effects.

A *run* is one attempt of every subtask; all attempts of a run have the same number, and a restart begins the next run.

Side:       pure.
Invariants: all attempts of a run are deployed together, once, and only after every attempt of the run before has ended; ``failure`` is set
            exactly while the job is RESTARTING, FAILING or FAILED; a terminal job has only terminal attempts; ``ReleaseSlots`` is the last
            effect of all.
Units:      times in milliseconds since the epoch, passed with each event.
Source:     Flink ``DefaultExecutionGraph``, ``Execution``, ``DefaultScheduler``.
Rules:      events that do not fit (unknown attempt, wrong TaskManager, impossible transition) are counted and change nothing.
            The first failure is kept as the cause.  Exception: if it is a symptom (a broken data connection), a real cause that arrives
            while the job is FAILING or RESTARTING replaces it, because the tasks at the other end often report first.
            A cancel while the job is FAILING is ignored: its tasks are being cancelled already, and it must end as FAILED.
            The restart strategy is asked once per run, at its first failure; the delay counts from there, as in Flink.  Whatever fails
            later in that run belongs to this failure, but one that ``suppresses_restarts`` ends the job.
            A RESTARTING job first waits for the attempts of its last run to end, then for ``RestartDue``, then for its slots.
Absent:     regions (a restart is one of all tasks, FINISHED ones too), the watchdog for tasks that ignore a cancel.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, assert_never

from flowlet.common.job_status import JobStatus
from flowlet.graph.execution_state import EXECUTION_TRANSITIONS, JOB_TRANSITIONS, ExecutionState
from flowlet.graph.restart_strategy import NoRestart, RestartStrategy

if TYPE_CHECKING:
    from flowlet.rpc.control_messages import FailureInfo

# The exceptions of a task that lost the other end of a data exchange; the cause is at that other end.
SYMPTOMS: Final = frozenset({"ConnectError", "ConnectionLostError", "PartitionNotFoundError", "ProducerFailedError", "ResourceBrokenError"})
MAX_FAILED_RUNS: Final = 16  # Flink's web.exception-history-size
_MAX_CONCURRENT_FAILURES: Final = 16


@dataclass(frozen=True, slots=True)
class ExecutionVertex:
    """One subtask in one run, with the id of its attempt."""

    attempt: bytes  # 40 bytes
    vertex_id: str
    subtask: int


@dataclass(frozen=True, slots=True)
class SlotsAllocated:
    """Every attempt has a slot; ``locations`` has the TaskManager id of each."""

    locations: Mapping[bytes, str]


@dataclass(frozen=True, slots=True)
class SchedulingFailed:
    """The job did not get its slots in time."""

    failure: "FailureInfo"


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The user asks to cancel the job, or the JobManager stops or has another ``reason``, which people then see."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ExecutionReported:
    """A TaskManager reports the state of an attempt.

    ``failure``: with FAILED, the cause; with CANCELED, the cause to record if the JobManager did not ask for it.
    """

    attempt: bytes
    tm_id: str
    state: ExecutionState
    failure: "FailureInfo | None" = None


@dataclass(frozen=True, slots=True)
class TaskManagerLost:
    """A TaskManager is lost, and all attempts there with it."""

    tm_id: str
    failure: "FailureInfo"


@dataclass(frozen=True, slots=True)
class GlobalFailure:
    """Something failed that is no task: the splits of a source cannot be found, too many checkpoints failed, no state can be restored."""

    failure: "FailureInfo"


@dataclass(frozen=True, slots=True)
class RestartDue:
    """The delay of a restart is over; ``vertices`` are the attempts of the next run, in the order of deployment."""

    vertices: Sequence[ExecutionVertex]


Event = SlotsAllocated | SchedulingFailed | CancelRequested | ExecutionReported | TaskManagerLost | GlobalFailure | RestartDue


@dataclass(frozen=True, slots=True)
class Deploy:
    """Send the attempt to its TaskManager."""

    attempt: bytes
    tm_id: str


@dataclass(frozen=True, slots=True)
class CancelExecution:
    """Tell the TaskManager to cancel the attempt."""

    attempt: bytes
    tm_id: str


@dataclass(frozen=True, slots=True)
class ExecutionStateChanged:
    """An attempt is in a new state; to be logged."""

    attempt: bytes
    state: ExecutionState


@dataclass(frozen=True, slots=True)
class JobStatusChanged:
    """The job is in a new state; to be logged, and for those who wait."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class ReleaseSlots:
    """Every attempt of the run has ended: its slots are free.  The job has ended, too, unless ``RestartAfter`` follows."""


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Send ``RestartDue`` after the delay, unless the job leaves RESTARTING before."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class RequestSlots:
    """The next run waits for its slots."""


Effect = Deploy | CancelExecution | ExecutionStateChanged | JobStatusChanged | ReleaseSlots | RestartAfter | RequestSlots


@dataclass(slots=True)
class FailedRun:
    """Why a run ended; only its graph changes it."""

    root: "FailureInfo"
    concurrent: "deque[FailureInfo]"  # what else failed until the run had ended, newest last


@dataclass(slots=True)
class Execution:
    """One attempt; only its graph changes it."""

    vertex: ExecutionVertex
    state: ExecutionState = ExecutionState.CREATED
    tm_id: str | None = None
    start_ms: int | None = None  # of the deployment
    end_ms: int | None = None
    failure: "FailureInfo | None" = None

    @property
    def attempt(self) -> bytes:
        """The 40-byte id."""
        return self.vertex.attempt


@dataclass(slots=True)
class ExecutionGraph:
    """The attempts of one job, and the job's status.  Threading: one thread."""

    executions: dict[bytes, Execution]  # of the newest run
    strategy: RestartStrategy
    status: JobStatus = JobStatus.CREATED
    attempt_number: int = 0  # of the newest run
    failure: "FailureInfo | None" = None  # of the last run, until the next one is deployed
    failed_runs: deque[FailedRun] = field(default_factory=lambda: deque(maxlen=MAX_FAILED_RUNS))  # newest last
    num_failed_runs: int = 0
    cancel_reason: str | None = None  # why it was cancelled, if nobody asked for that
    timestamps: dict[JobStatus, int] = field(default_factory=dict)
    num_ignored_events: int = 0
    _num_unfinished: int = 0
    _restart: tuple[int, int] | None = None  # while a run ends that is followed by another one: when it failed, and the delay
    _now_ms: int = 0
    _effects: list[Effect] = field(default_factory=list)

    @classmethod
    def create(cls, vertices: Iterable[ExecutionVertex], created_ms: int, strategy: RestartStrategy | None = None) -> "ExecutionGraph":
        """The graph of a job that waits for its slots; ``vertices`` in the order of deployment.  ``strategy``: None: no restarts."""
        executions = {vertex.attempt: Execution(vertex) for vertex in vertices}
        assert executions, "a job has at least one task"
        timestamps = {JobStatus.CREATED: created_ms}
        return cls(executions, strategy or NoRestart(), timestamps=timestamps, _num_unfinished=len(executions))

    def __repr__(self) -> str:
        counts = Counter(execution.state.value for execution in self.executions.values())
        return f"<ExecutionGraph {self.status.name} {dict(counts)}>"

    @property
    def is_waiting_for_slots(self) -> bool:
        """Whether ``SlotsAllocated`` may come: the attempts of the newest run are not deployed."""
        is_due = all(execution.state is ExecutionState.CREATED for execution in self.executions.values())
        return self.status is JobStatus.CREATED or (self.status is JobStatus.RESTARTING and is_due)

    def executions_of(self, vertex_id: str) -> list[Execution]:
        """The attempts of one job vertex, by subtask."""
        return [execution for execution in self.executions.values() if execution.vertex.vertex_id == vertex_id]

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Apply one event; return the effects in order.  An event that does not fit only increments a counter."""
        self._now_ms = now_ms
        match event:
            case SlotsAllocated(locations):
                self._deploy_all(locations)
            case SchedulingFailed(failure):
                self._scheduling_failed(failure)
            case CancelRequested(reason):
                self._cancel_requested(reason)
            case ExecutionReported():
                self._execution_reported(event)
            case TaskManagerLost(tm_id, failure):
                self._task_manager_lost(tm_id, failure)
            case GlobalFailure(failure):
                self._fail_job(failure)
            case RestartDue(vertices):
                self._begin_next_run(vertices)
            case _:
                assert_never(event)
        effects, self._effects = self._effects, []
        return effects

    def _deploy_all(self, locations: Mapping[bytes, str]) -> None:
        if not self.is_waiting_for_slots:
            self.num_ignored_events += 1
            return
        assert locations.keys() == self.executions.keys(), "every attempt has a slot"
        self.failure = None
        self._move_job(JobStatus.RUNNING)
        for execution in self.executions.values():
            execution.tm_id = locations[execution.attempt]
            execution.start_ms = self._now_ms
            self._move(execution, ExecutionState.SCHEDULED)
            self._move(execution, ExecutionState.DEPLOYING)
            self._effects.append(Deploy(execution.attempt, execution.tm_id))

    def _scheduling_failed(self, failure: "FailureInfo") -> None:
        if not self.is_waiting_for_slots:
            self.num_ignored_events += 1
            return
        self._record_failure(failure)
        self._end_as(JobStatus.FAILING)

    def _begin_next_run(self, vertices: Sequence[ExecutionVertex]) -> None:
        if self.status is not JobStatus.RESTARTING or self._num_unfinished:
            self.num_ignored_events += 1
            return
        known = [(execution.vertex.vertex_id, execution.vertex.subtask) for execution in self.executions.values()]
        assert known == [(vertex.vertex_id, vertex.subtask) for vertex in vertices], "the subtasks stay"
        assert all(vertex.attempt not in self.executions for vertex in vertices), "attempts are new"
        self.executions = {vertex.attempt: Execution(vertex) for vertex in vertices}
        self.attempt_number += 1
        self._num_unfinished = len(self.executions)
        self._effects.append(RequestSlots())

    def _cancel_requested(self, reason: str | None) -> None:
        if self.status in (JobStatus.CREATED, JobStatus.RUNNING, JobStatus.RESTARTING):
            self.cancel_reason = reason
            self.failure = None
            self._end_as(JobStatus.CANCELLING)

    def _execution_reported(self, event: ExecutionReported) -> None:
        execution = self.executions.get(event.attempt)
        if execution is None or execution.tm_id != event.tm_id:
            self.num_ignored_events += 1
        elif event.state is execution.state and not event.state.is_terminal:
            return  # confirms our own order
        elif event.state not in EXECUTION_TRANSITIONS[execution.state]:
            self.num_ignored_events += 1
        else:
            self._accept_report(execution, event)

    def _accept_report(self, execution: Execution, event: ExecutionReported) -> None:
        self._move(execution, event.state)
        if event.state is ExecutionState.FAILED:
            assert event.failure is not None, "FAILED comes with a cause"
            execution.failure = event.failure
            self._fail_job(event.failure)
        elif event.state is ExecutionState.CANCELED and self.status is JobStatus.RUNNING:
            assert event.failure is not None, "an unexpected CANCELED comes with a cause"
            self._fail_job(event.failure)
        self._end_job_if_done()

    def _task_manager_lost(self, tm_id: str, failure: "FailureInfo") -> None:
        lost = [execution for execution in self.executions.values() if execution.tm_id == tm_id and not execution.state.is_terminal]
        for execution in lost:
            execution.failure = failure
            self._move(execution, ExecutionState.FAILED)
        if lost:
            self._fail_job(failure)
            self._end_job_if_done()

    def _fail_job(self, failure: "FailureInfo") -> None:
        match self.status:
            case JobStatus.CREATED:
                self._record_failure(failure)
                self._end_as(JobStatus.FAILING)
            case JobStatus.RUNNING:
                self._record_failure(failure)
                self._end_run(failure)
            case JobStatus.RESTARTING | JobStatus.FAILING:
                self._add_failure(failure)
            case _:
                pass  # the job is being cancelled, or has ended

    def _end_run(self, failure: "FailureInfo") -> None:
        """Restart the job if that may help and the strategy allows it."""
        delay_ms = None if failure.suppresses_restarts else self.strategy.decide(self._now_ms)
        if delay_ms is None:
            self._end_as(JobStatus.FAILING)
            return
        self._restart = self._now_ms, delay_ms
        self._end_as(JobStatus.RESTARTING)

    def _record_failure(self, failure: "FailureInfo") -> None:
        self.failure = failure
        self.failed_runs.append(FailedRun(failure, deque(maxlen=_MAX_CONCURRENT_FAILURES)))
        self.num_failed_runs += 1

    def _add_failure(self, failure: "FailureInfo") -> None:
        """A further failure of a run that has failed: it may be the cause of the first one."""
        assert self.failure is not None, "a failing job has a cause"
        run = self.failed_runs[-1]
        ends_job = failure.suppresses_restarts and self.status is JobStatus.RESTARTING
        if ends_job or (is_symptom(self.failure) and not is_symptom(failure)):
            run.concurrent.append(run.root)
            self.failure = run.root = failure
        else:
            run.concurrent.append(failure)
        if ends_job:
            self._end_as(JobStatus.FAILING)

    def _end_as(self, status: JobStatus) -> None:
        """Move the job to the status in which it waits for the end of its attempts."""
        self._move_job(status)
        self._cancel_all()
        self._end_job_if_done()

    def _cancel_all(self) -> None:
        for execution in self.executions.values():
            if execution.state in (ExecutionState.CREATED, ExecutionState.SCHEDULED):
                self._move(execution, ExecutionState.CANCELED)
            elif ExecutionState.CANCELING in EXECUTION_TRANSITIONS[execution.state]:
                assert execution.tm_id is not None, "set when it was scheduled"
                self._move(execution, ExecutionState.CANCELING)
                self._effects.append(CancelExecution(execution.attempt, execution.tm_id))

    def _end_job_if_done(self) -> None:
        if self._num_unfinished or self.status.is_globally_terminal_state():
            return
        if self.status is JobStatus.RESTARTING:
            if self._restart is not None:
                failed_ms, delay_ms = self._restart
                passed_ms = max(0, self._now_ms - failed_ms)  # the clock may have been set back
                self._effects += [ReleaseSlots(), RestartAfter(max(0, delay_ms - passed_ms))]
                self._restart = None
            return
        self._move_job(_END_OF[self.status])
        self._effects.append(ReleaseSlots())

    def _move(self, execution: Execution, state: ExecutionState) -> None:
        assert state in EXECUTION_TRANSITIONS[execution.state], f"{execution.state} -> {state}"
        execution.state = state
        if state.is_terminal:
            execution.end_ms = self._now_ms
            self._num_unfinished -= 1
        self._effects.append(ExecutionStateChanged(execution.attempt, state))

    def _move_job(self, status: JobStatus) -> None:
        assert status in JOB_TRANSITIONS[self.status], f"{self.status} -> {status}"
        self.status = status
        self.timestamps[status] = self._now_ms
        self._effects.append(JobStatusChanged(status))

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent; for tests."""
        states = [execution.state for execution in self.executions.values()]
        unfinished = sum(not state.is_terminal for state in states)
        assert self._num_unfinished == unfinished, f"{self._num_unfinished} counted, {unfinished} found"
        if self.status is not JobStatus.RESTARTING:
            assert self.status.is_globally_terminal_state() == (unfinished == 0), self
        has_failed = self.status in (JobStatus.RESTARTING, JobStatus.FAILING, JobStatus.FAILED)
        assert (self.failure is not None) == has_failed, self
        assert self.failure is None or self.failure is self.failed_runs[-1].root, self
        if self.status is JobStatus.FINISHED:
            assert set(states) == {ExecutionState.FINISHED}, self
        if self.status is JobStatus.CREATED:
            assert set(states) == {ExecutionState.CREATED}, self
        if self.status in (JobStatus.FAILING, JobStatus.CANCELLING) or (
            self.status is JobStatus.RESTARTING and not self.is_waiting_for_slots
        ):
            assert all(state.is_terminal or state is ExecutionState.CANCELING for state in states), self
        assert all(execution.tm_id is not None for execution in self.executions.values() if execution.state.is_deployed), self


_END_OF: Final = {
    JobStatus.RUNNING: JobStatus.FINISHED,
    JobStatus.FAILING: JobStatus.FAILED,
    JobStatus.CANCELLING: JobStatus.CANCELED,
}


def is_symptom(failure: "FailureInfo") -> bool:
    """Whether a failure only says that the other end of a data exchange is gone; the module of the exception does not matter."""
    return failure.exception_type.rpartition(".")[2] in SYMPTOMS
