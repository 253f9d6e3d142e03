"""``ExecutionGraph``: the state machine of one job; it is told what happens and returns effects.

A *region* is a set of subtasks that exchange data only among themselves, and so can start again without the others.  A
*run* of a region is one attempt of each of its subtasks; a restart begins the next run.

Side:       pure.
Stages:     a region may read results that others write completely first.  Its attempts wait until all regions of the
            stages before have finished.  Results are kept until every region that reads them has finished; if they are
            lost before, their region runs again, and with it every region that has begun to read them.
Invariants: all attempts of a run are deployed together, once, and only after every attempt of the run before has ended;
            the attempts of regions without a failure are left alone; ``failure`` is set exactly while the job is
            RESTARTING, FAILING or FAILED; a terminal job has only terminal attempts; ``ReleaseSlots`` is the last
            effect of all.
Units:      times in milliseconds since the epoch, set before each call that tells what has happened.
Source:     Flink ``DefaultExecutionGraph``, ``Execution``, ``DefaultScheduler``,
            ``RestartPipelinedRegionFailoverStrategy``.
Rules:      events that do not fit (unknown attempt, wrong TaskManager, impossible transition) are counted and change
            nothing.  The first failure is kept as the cause.  Exception: if it is a symptom (a broken data connection),
            a real cause that arrives while the job is FAILING, or the region ends, replaces it, because the tasks at
            the other end often report first.  A cancel while the job is FAILING is ignored: its tasks are being
            cancelled already, and it must end as FAILED.  A region that cannot reach who keeps its inputs starts again,
            and fails again, until the loss is known: that is one failure.  One event that fails regions is one failure:
            the lost TaskManager of several regions counts once.  ``fail`` fails them all.  The restart
            strategy is asked once per failure; the delay counts from there, as in Flink.  Whatever fails later in a run
            belongs to its first failure, but one that ``suppresses_restarts`` ends the job.  Regions that fail one
            after the other restart independently.  Each first waits for the attempts of its last run to end, then for
            ``begin_next_run``, then for slots; the job is RESTARTING until all of them are deployed.  The job keeps its
            slots while some region has attempts.
Absent:     the watchdog for tasks that ignore a cancel.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from flowlet.common.job_status import JobStatus
from flowlet.graph import execution_events as events
from flowlet.graph.restart_backoff_strategy import FailedRun, RegionOrder, RestartStrategy
from flowlet.messages.control_messages import CancelTask, FailureInfo, ReleaseResults
from flowlet.messages.execution_state import EXECUTION_TRANSITIONS, JOB_TRANSITIONS, ExecutionState, Subtask
from netstack.late import dataclass

# The exceptions of a task that lost the other end of a data exchange; the cause is at that other end.
SYMPTOMS: Final = frozenset(
    {
        "ConnectError",
        "ConnectionLostError",
        "PartitionNotFoundError",
        "ProducerFailedError",
        "ResourceBrokenError",
        "ResultsBroken",
    }
)
MAX_FAILED_RUNS: Final = 16  # Flink's web.exception-history-size
_UNREACHABLE: Final = frozenset({"ConnectError", "ConnectionLostError"})  # of these
# A TaskManager that stands still for good is lost after 50 s; until then it answers no connection.
_LOSS_KNOWN_AFTER_MS: Final = 60_000
_MAX_CONCURRENT_FAILURES: Final = 16
_NO_USE: Final = "it would fail in the same way"


@dataclass(slots=True)
class _Restart:
    """Regions that failed together, until their next attempts are made."""

    regions: tuple[int, ...]
    run: FailedRun
    failed_ms: int
    delay_ms: int
    num_unfinished: int
    is_scheduled: bool = False


@dataclass(slots=True)
class Execution:
    """One attempt of a subtask; only its graph changes it."""

    attempt: bytes  # 40 bytes
    vertex_id: str
    subtask: int
    attempt_number: int = 0  # how often the subtask was started before
    state: ExecutionState = ExecutionState.CREATED
    tm_id: str | None = None
    start_ms: int | None = None  # of the deployment
    end_ms: int | None = None
    failure: FailureInfo | None = None

    @property
    def key(self) -> Subtask:
        """The subtask, in every run."""
        return Subtask(self.vertex_id, self.subtask)


class ExecutionGraph:
    """The attempts of one job, and the job's status; at first it waits for its slots.

    Threading: one thread.

    Args:
        executions: the first ones, in the order of deployment.
        created_ms: now.
        strategy: None: no restarts.
        regions: each subtask is in one of them; None: all are in one.
        order: of the regions; None: all are in one stage.
        fails_as_one: whether all regions that have begun start again after a failure of one.
    """

    def __init__(
        self,
        executions: Iterable[Execution],
        created_ms: int,
        strategy: RestartStrategy | None = None,
        regions: Sequence[Collection[Subtask]] | None = None,
        order: RegionOrder | None = None,
        *,
        fails_as_one: bool = False,
    ) -> None:
        self.executions = {each.attempt: each for each in executions}  # the newest of each subtask
        assert self.executions, "a job has at least one task"
        self.strategy = strategy or RestartStrategy()
        self.regions = regions or [{each.key for each in self.executions.values()}]
        self.order = order or RegionOrder.of([()] * len(self.regions))
        self.fails_as_one = fails_as_one
        self.status = JobStatus.CREATED
        # How often regions were started again; in a job of one region the number of all newest attempts.
        self.attempt_number = 0
        self.failure: FailureInfo | None = None  # the last one, until no region waits for a restart
        self.failed_runs: deque[FailedRun] = deque(maxlen=MAX_FAILED_RUNS)  # newest last
        self.num_failed_runs = 0
        self.cancel_reason: str | None = None  # why it was cancelled, if nobody asked for that
        self.why_no_restart: str | None = None  # why it failed for good, if restarts were allowed
        self.timestamps = {JobStatus.CREATED: created_ms}
        self.num_ignored_events = 0
        self._num_unfinished = len(self.executions)
        self._region_of = {key: number for number, region in enumerate(self.regions) for key in region}
        assert len(self._region_of) == self._num_unfinished == sum(map(len, self.regions)), "each is in one region"
        self._restarts: dict[int, _Restart] = {}  # by region
        self._unreached: dict[int, _Restart] = {}  # by region: the last one because another process did not answer
        # By region: the newest attempts that have not finished.
        self._num_to_finish = [len(region) for region in self.regions]
        self._kept: dict[bytes, str] = {}  # by attempt whose results are kept: its TaskManager
        self._now_ms = self._elapsed_ms = 0
        self._effects: list[events.Effect] = []

    def __repr__(self) -> str:
        counts = Counter(execution.state.value for execution in self.executions.values())
        return f"<ExecutionGraph {self.status.name} {dict(counts)}>"

    @property
    def waiting(self) -> list[Execution]:
        """List the attempts that wait for their slots, in the order of deployment; attempts of later stages are left
        out.
        """
        created = [execution for execution in self.executions.values() if execution.state is ExecutionState.CREATED]
        if not created or not self.order.is_staged:
            return created
        stage = min(stage for region, stage in enumerate(self.order.stages) if not self._has_finished(region))
        return [each for each in created if self._stage_of(each) <= stage]

    def _stage_of(self, execution: Execution) -> int:
        return self.order.stages[self._region_of[execution.key]]

    @property
    def has_undeployed(self) -> bool:
        """Whether some attempt was not deployed yet."""
        return any(execution.state is ExecutionState.CREATED for execution in self.executions.values())

    @property
    def is_waiting_for_slots(self) -> bool:
        """Whether ``slots_allocated`` may be called."""
        return self.status is JobStatus.CREATED or (
            self.status in (JobStatus.RUNNING, JobStatus.RESTARTING) and bool(self.waiting)
        )

    @property
    def is_restarting_as_a_whole(self) -> bool:
        """Whether every region waits for a restart."""
        return len(self._restarts) == len(self.regions)

    @property
    def restarted_runs(self) -> list[FailedRun]:
        """The runs that were followed by another one, or will be, newest last; as many as are kept."""
        due = [each.run for each in self._restarts.values()]
        return [run for run in self.failed_runs if run.restarted_ms is not None or any(run is each for each in due)]

    def executions_of(self, vertex_id: str) -> list[Execution]:
        """List the attempts of one job vertex, by subtask."""
        return [execution for execution in self.executions.values() if execution.vertex_id == vertex_id]

    def executions_in(self, regions: Collection[int]) -> list[Execution]:
        """List the attempts of these regions, in the order of deployment."""
        return [execution for execution in self.executions.values() if self._region_of[execution.key] in regions]

    def set_time(self, now_ms: int, elapsed_ms: int | None = None) -> None:
        """Set the time of the next events.

        ``now_ms``: the wall clock, for people.  ``elapsed_ms``: a clock that nobody sets, by which restarts are
            decided; None: ``now_ms``.
        """
        self._now_ms = now_ms
        self._elapsed_ms = now_ms if elapsed_ms is None else elapsed_ms

    def take_effects(self) -> list[events.Effect]:
        """Return the effects, in order, of the events since the last call."""
        effects = self._effects
        self._effects = []
        return effects

    # Events; a call that does not fit only increments a counter.

    def slots_allocated(self, locations: Mapping[bytes, str]) -> None:
        """Deploy every attempt that waits for a slot; ``locations`` has the TaskManager id of each."""
        if not self.is_waiting_for_slots:
            self.num_ignored_events += 1
            return
        waiting = self.waiting
        assert locations.keys() == {execution.attempt for execution in waiting}, "every attempt has a slot"
        self._go_on()
        for execution in waiting:
            execution.tm_id = locations[execution.attempt]
            execution.start_ms = self._now_ms
            self._move(execution, ExecutionState.SCHEDULED)
            self._move(execution, ExecutionState.DEPLOYING)
            self._effects.append(events.Deploy(execution.attempt, execution.tm_id))

    def _go_on(self) -> None:
        """Move the job to RUNNING, unless regions wait for a restart."""
        if not self._restarts and self.status is not JobStatus.RUNNING:
            self.failure = None
            self._move_job(JobStatus.RUNNING)

    def scheduling_failed(self, failure: FailureInfo) -> None:
        """Fail the job: it did not get its slots in time."""
        if not self.is_waiting_for_slots:
            self.num_ignored_events += 1
            return
        self._record_failure(failure)
        self._end_as(JobStatus.FAILING)

    def begin_next_run(self, new: Sequence[Execution]) -> None:
        """Begin the next run of the regions of a restart whose delay is over; ``new``: their attempts, in the order of
        deployment.
        """
        by_key = {each.key: each for each in new}
        restart = self._restarts.get(self._region_of[new[0].key])
        if restart is None or restart.num_unfinished:
            self.num_ignored_events += 1
            return
        assert by_key.keys() == {key for region in restart.regions for key in self.regions[region]}, "the subtasks stay"
        assert all(each.attempt not in self.executions for each in new), "attempts are new"
        is_waiting = self.is_waiting_for_slots
        for execution in self.executions_in(frozenset(restart.regions)):
            self._release(execution)
        executions = self.executions.values()
        renewed = [by_key.get(each.key, each) for each in executions]
        self.executions = {each.attempt: each for each in renewed}
        restart.run.restarted_ms = self._now_ms
        for region in restart.regions:
            del self._restarts[region]
            self._num_to_finish[region] = len(self.regions[region])
        self.attempt_number += 1
        self._num_unfinished += len(by_key)
        if self.is_waiting_for_slots:
            if not is_waiting:
                self._effects.append(events.RequestSlots())
        else:  # until the stage of these regions begins, nothing holds up the rest
            self._go_on()

    def cancel(self, reason: str | None = None) -> None:
        """Cancel the job, because the user asks for it, or the JobManager stops or has another ``reason``, which people
        then see.
        """
        if self.status in (JobStatus.CREATED, JobStatus.RUNNING, JobStatus.RESTARTING):
            self.cancel_reason = reason
            self.failure = None
            self._end_as(JobStatus.CANCELLING)

    def execution_reported(
        self, attempt: bytes, tm_id: str, state: ExecutionState, failure: FailureInfo | None = None
    ) -> None:
        """Note the state of an attempt that a TaskManager reports.

        ``failure``: with FAILED, the cause; with CANCELED, the cause to record if the JobManager did not ask for it.
        """
        execution = self.executions.get(attempt)
        if execution is None or execution.tm_id != tm_id:
            self.num_ignored_events += 1
        elif state is execution.state and not state.is_terminal:
            return  # the report only confirms an order of ours
        elif state not in EXECUTION_TRANSITIONS[execution.state]:
            self.num_ignored_events += 1
        else:
            self._accept_report(execution, state, failure)

    def _accept_report(self, execution: Execution, state: ExecutionState, failure: FailureInfo | None) -> None:
        self._move(execution, state)
        region = self._region_of[execution.key]
        if state is ExecutionState.FAILED:
            assert failure is not None, "FAILED comes with a cause"
            execution.failure = failure
            self._fail((region,), failure)
        elif state is ExecutionState.CANCELED and self._runs(region):
            assert failure is not None, "an unexpected CANCELED comes with a cause"
            self._fail((region,), failure)
        if state is ExecutionState.FINISHED and self.order.is_staged:
            self._finished_in(region, execution)
        if state.is_terminal:
            self._end_if_done((region,))

    def _finished_in(self, region: int, execution: Execution) -> None:
        """Keep the results of an attempt; after the last attempt of its region, release the results that the region has
        read, and begin the next stage.
        """
        assert execution.tm_id is not None, "it ran"
        if self.order.consumers[region]:
            self._kept[execution.attempt] = execution.tm_id
        if not self._has_finished(region):
            return
        read = {
            each for each in self.order.producers[region] if all(map(self._has_finished, self.order.consumers[each]))
        }
        for producer in self.executions_in(read):
            self._release(producer)
        # As long as a region of this stage was unfinished, none of the next one waited.
        waiting = self.waiting if self._runs(region) else []
        if waiting and all(self._stage_of(each) > self.order.stages[region] for each in waiting):
            self._effects.append(events.RequestSlots())

    def _has_finished(self, region: int) -> bool:
        return not self._num_to_finish[region] and region not in self._restarts

    def _release(self, execution: Execution) -> None:
        tm_id = self._kept.pop(execution.attempt, None)
        if tm_id is not None:
            self._effects.append(events.SendMessage(tm_id, ReleaseResults(execution.attempt)))

    def task_manager_lost(self, tm_id: str, failure: FailureInfo) -> None:
        """Fail all attempts on a TaskManager that is lost, and the regions whose results it kept."""
        lost = [
            execution
            for execution in self.executions.values()
            if execution.tm_id == tm_id and not execution.state.is_terminal
        ]
        for execution in lost:
            execution.failure = failure
            self._move(execution, ExecutionState.FAILED)
        for attempt in [attempt for attempt, kept_by in self._kept.items() if kept_by == tm_id]:
            del self._kept[attempt]
            lost.append(self.executions[attempt])
        if lost:
            regions = sorted({self._region_of[execution.key] for execution in lost})
            self._fail(regions, failure, is_loss=True)
            self._end_if_done(regions)

    def fail(self, failure: FailureInfo) -> None:
        """Fail all regions for something that is no task: the splits of a source cannot be found, too many checkpoints
        failed, no state can be restored.
        """
        self._fail(range(len(self.regions)), failure)

    def _fail(self, regions: Sequence[int], failure: FailureInfo, *, is_loss: bool = False) -> None:
        match self.status:
            case JobStatus.CREATED:
                self._record_failure(failure)
                self._end_as(JobStatus.FAILING)
            case JobStatus.RUNNING | JobStatus.RESTARTING:
                begun = self._begun()
                running = [
                    region
                    for region in self._involved(regions, begun)
                    if region in begun and region not in self._restarts
                ]
                if running and (symptom := self._symptom_of(running, failure, is_loss=is_loss)) is not None:
                    self._add_failure(failure, symptom.run)
                    self._begin_restart(running, symptom.run, symptom.failed_ms, symptom.delay_ms)
                elif running:
                    self._record_failure(failure)
                    self._end_run(running, failure)
                else:
                    restart = next((self._restarts[region] for region in regions if region in self._restarts), None)
                    self._add_failure(failure, self.failed_runs[-1] if restart is None else restart.run)
            case JobStatus.FAILING:
                self._add_failure(failure, self.failed_runs[-1])
            case _:
                pass  # the job is being cancelled, or has ended

    def _begun(self) -> set[int]:
        """Find the regions with attempts that were deployed."""
        return {
            self._region_of[each.key] for each in self.executions.values() if each.state is not ExecutionState.CREATED
        }

    def _involved(self, regions: Sequence[int], begun: Collection[int]) -> Sequence[int]:
        """Find the regions that must start again, because these have failed or have lost their results."""
        if self.fails_as_one:
            return sorted(begun)
        if not self.order.is_staged:
            return regions
        gone = {
            self._region_of[each.key]
            for each in self.executions.values()
            if each.state is ExecutionState.FINISHED and each.attempt not in self._kept
        }
        return sorted(self.order.involved(regions, gone.__contains__, begun.__contains__))

    def _runs(self, region: int) -> bool:
        return self.status in (JobStatus.RUNNING, JobStatus.RESTARTING) and region not in self._restarts

    def _end_run(self, regions: Sequence[int], failure: FailureInfo) -> None:
        """Restart the regions if that may help and the strategy allows it."""
        delay_ms = None if failure.suppresses_restarts else self.strategy.decide(self._elapsed_ms)
        if delay_ms is None:
            self.why_no_restart = (
                _NO_USE if failure.suppresses_restarts and self.strategy.can_restart else self.strategy.why_no_restart
            )
            self._end_as(JobStatus.FAILING)
            return
        self._begin_restart(regions, self.failed_runs[-1], self._elapsed_ms, delay_ms)
        if _is_unreachable(failure):
            self._unreached |= {region: self._restarts[region] for region in regions if self.order.producers[region]}

    def _symptom_of(self, regions: Collection[int], failure: FailureInfo, *, is_loss: bool) -> _Restart | None:
        """Find the restart that this failure belongs to; None: the failure is a new one.

        A region may restart because it could not read results whose loss was not known yet.  This failure is then the
        cause of that restart, or its symptom once more.
        """
        if failure.suppresses_restarts:
            return None
        is_unreachable = _is_unreachable(failure)
        lost = {each for region in regions for each in self.order.producers[region]} if is_unreachable else set[int]()
        for consumer in {consumer for region in lost.union(regions) for consumer in self.order.consumers[region]}:
            restart = self._restarts.get(consumer)
            if restart is not None and is_symptom(restart.run.root):
                return restart
            # Other failures have causes of their own.
            restart = self._unreached.get(consumer) if is_loss or is_unreachable else None
            if (
                restart is not None
                and is_symptom(restart.run.root)
                and self._elapsed_ms - restart.failed_ms < _LOSS_KNOWN_AFTER_MS
            ):
                return replace(restart, failed_ms=self._elapsed_ms)  # it has begun again meanwhile
        return None

    def _begin_restart(self, regions: Sequence[int], run: FailedRun, failed_ms: int, delay_ms: int) -> None:
        executions = self.executions_in(frozenset(regions))
        num_unfinished = sum(not execution.state.is_terminal for execution in executions)
        restart = _Restart(tuple(regions), run, failed_ms, delay_ms, num_unfinished)
        self._restarts |= dict.fromkeys(regions, restart)
        if self.status is JobStatus.RUNNING:
            self._move_job(JobStatus.RESTARTING)
        was_over = not num_unfinished
        self._cancel(executions)
        if was_over:
            self._schedule(restart)

    def _record_failure(self, failure: FailureInfo) -> None:
        self.failure = failure
        self.failed_runs.append(FailedRun(failure, deque(maxlen=_MAX_CONCURRENT_FAILURES)))
        self.num_failed_runs += 1

    def _add_failure(self, failure: FailureInfo, run: FailedRun) -> None:
        """Add a further failure to a run that has failed: it may be the cause of the first one."""
        ends_job = failure.suppresses_restarts and self.status is JobStatus.RESTARTING
        if ends_job and run is not self.failed_runs[-1]:
            self._record_failure(failure)
        elif ends_job or (is_symptom(run.root) and not is_symptom(failure)):
            run.concurrent.append(run.root)
            run.root = failure
        else:
            run.concurrent.append(failure)
        self.failure = self.failed_runs[-1].root
        if ends_job:
            self.why_no_restart = _NO_USE
            self._end_as(JobStatus.FAILING)

    def _end_as(self, status: JobStatus) -> None:
        """Move the job to the status in which it waits for the end of its attempts."""
        self._restarts.clear()
        self._move_job(status)
        self._cancel(self.executions.values())
        self._end_job_if_done()

    def _cancel(self, executions: Iterable[Execution]) -> None:
        for execution in executions:
            if execution.state in (ExecutionState.CREATED, ExecutionState.SCHEDULED):
                self._move(execution, ExecutionState.CANCELED)
            elif ExecutionState.CANCELING in EXECUTION_TRANSITIONS[execution.state]:
                assert execution.tm_id is not None, "set when it was scheduled"
                self._move(execution, ExecutionState.CANCELING)
                self._effects.append(events.SendMessage(execution.tm_id, CancelTask(execution.attempt)))

    def _end_if_done(self, regions: Sequence[int]) -> None:
        """Schedule the restarts whose last attempt has ended, and end the job if its last one has; attempts of
        ``regions`` have ended.
        """
        over = {
            restart.regions: restart
            for region in regions
            if (restart := self._restarts.get(region)) and not restart.num_unfinished
        }
        for restart in over.values():
            if not restart.is_scheduled:
                self._schedule(restart)
        self._end_job_if_done()

    def _schedule(self, restart: _Restart) -> None:
        """Schedule a restart: the last attempts of its regions have ended."""
        restart.is_scheduled = True
        if not self._num_unfinished:
            self._effects.append(events.ReleaseSlots())
        passed_ms = max(0, self._elapsed_ms - restart.failed_ms)  # an event may have the time of one before it
        self._effects.append(events.RestartAfter(max(0, restart.delay_ms - passed_ms), restart.regions))

    def _end_job_if_done(self) -> None:
        if not self._num_unfinished and self.status in _END_OF:
            for execution in self.executions.values():
                self._release(execution)
            self._move_job(_END_OF[self.status])
            self._effects.append(events.ReleaseSlots())

    def _move(self, execution: Execution, state: ExecutionState) -> None:
        assert state in EXECUTION_TRANSITIONS[execution.state], f"{execution.state} -> {state}"
        execution.state = state
        if state.is_terminal:
            execution.end_ms = self._now_ms
            self._num_unfinished -= 1
            self._num_to_finish[self._region_of[execution.key]] -= state is ExecutionState.FINISHED
            restart = self._restarts.get(self._region_of[execution.key])
            if restart is not None:
                restart.num_unfinished -= 1
        self._effects.append(events.ExecutionStateChanged(execution.attempt, state))

    def _move_job(self, status: JobStatus) -> None:
        assert status in JOB_TRANSITIONS[self.status], f"{self.status} -> {status}"
        self.status = status
        self.timestamps[status] = self._now_ms
        self._effects.append(events.JobStatusChanged(status))

    def check_invariants(self) -> None:
        """Raise AssertionError if the state is inconsistent; for tests."""
        states = [execution.state for execution in self.executions.values()]
        unfinished = sum(not state.is_terminal for state in states)
        assert self._num_unfinished == unfinished, f"{self._num_unfinished} counted, {unfinished} found"
        if self.status is not JobStatus.RESTARTING:
            assert self.status.is_globally_terminal_state() == (unfinished == 0), self
            assert not self._restarts, self
        else:
            assert self._restarts or self.waiting, self
        has_failed = self.status in (JobStatus.RESTARTING, JobStatus.FAILING, JobStatus.FAILED)
        assert (self.failure is not None) == has_failed, self
        assert self.failure is None or self.failure is self.failed_runs[-1].root, self
        if self.status is JobStatus.FINISHED:
            assert set(states) == {ExecutionState.FINISHED}, self
        if self.status is JobStatus.CREATED:
            assert set(states) == {ExecutionState.CREATED}, self
        for region in range(len(self.regions)):
            self._check_region(region)
        assert all(
            execution.tm_id is not None for execution in self.executions.values() if execution.state.is_deployed
        ), self

    def _check_region(self, region: int) -> None:
        states = [execution.state for execution in self.executions_in((region,))]
        restart = self._restarts.get(region)
        if restart is not None or self.status in (JobStatus.FAILING, JobStatus.CANCELLING):
            assert all(state.is_terminal or state is ExecutionState.CANCELING for state in states), self
        elif not self.status.is_globally_terminal_state():
            assert not {ExecutionState.CANCELED, ExecutionState.FAILED} & set(states), self
        assert ExecutionState.CREATED not in states or set(states) == {ExecutionState.CREATED}, self
        if restart is not None:
            unfinished = sum(not each.state.is_terminal for each in self.executions_in(restart.regions))
            assert restart.num_unfinished == unfinished, self
            assert restart.is_scheduled == (unfinished == 0), self


_END_OF: Final = {
    JobStatus.RUNNING: JobStatus.FINISHED,
    JobStatus.FAILING: JobStatus.FAILED,
    JobStatus.CANCELLING: JobStatus.CANCELED,
}


def _is_unreachable(failure: FailureInfo) -> bool:
    return failure.exception_type.rpartition(".")[2] in _UNREACHABLE


def is_symptom(failure: FailureInfo) -> bool:
    """Whether a failure only tells that the other end of a data exchange is gone; the module of the exception does not
    matter.
    """
    return failure.exception_type.rpartition(".")[2] in SYMPTOMS
