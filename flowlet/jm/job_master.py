"""Runs one job: tells its execution graph what happens and carries out the effects.

Side:       loop.
Invariants: the user's code is kept only until the tasks are deployed for the last time; ``job_ended`` is called once,
            as the last effect.  What belongs to one run of a region (locations, metrics, splits) is made anew for the
            next one, whose attempts have other ids: a late message about the run before is about an unknown attempt.
Source:     Flink ``JobMaster``.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar
from functools import partial
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Any, ClassVar, Final, ParamSpec, assert_never

import msgspec

from flowlet.checkpoint.jobmanager.coordinator_events import ReaderAcknowledgements, reader_acknowledgements
from flowlet.checkpoint.jobmanager.job_checkpoints import JobCheckpoints
from flowlet.checkpoint.jobmanager.job_store import RecoveredJob
from flowlet.checkpoint.jobmanager.savepoints import JobSavepoints
from flowlet.common.job_status import JobStatus
from flowlet.graph import execution_events as events
from flowlet.graph.execution_graph import SYMPTOMS, ExecutionGraph
from flowlet.graph.restart_backoff_strategy import create_restart_strategy
from flowlet.jm import failures, scheduler
from flowlet.jm.client_lease import ClientLease
from flowlet.jm.gate_supervisor import GateSupervisor
from flowlet.jm.gates import gate_names
from flowlet.jm.job_document import counters_of
from flowlet.jm.scheduler import DeploymentPlan
from flowlet.jm.source_coordinator import SourceCoordinator, WatermarkAnnouncer
from flowlet.jm.submission import without_code
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState, Subtask
from flowlet.messages.job_messages import EdgeMessage, JobGraphMessage
from flowlet.rpc.requests import WallClock
from flowlet.splits.enumerators import enumerator_for
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.eventloop import LoopClock

if TYPE_CHECKING:
    from flowlet.jm.dispatcher import Dispatcher

_RUN: Final = (ExecutionState.RUNNING, ExecutionState.FINISHED)
_FAILING: Final = (ExecutionState.CANCELING, ExecutionState.CANCELED, ExecutionState.FAILED)
P = ParamSpec("P")
log = LogLines(__name__)


@dataclass(eq=False, repr=False)
class JobMaster:
    """One submitted job, from submission until the dispatcher forgets it.

    Threading: the JobManager's loop.

    Args:
        owner: has slots, and a way to TaskManagers (Flink ``SlotPool``, ``JobManagerRunner``, ``TaskManagerGateway``);
            none of its methods may end a job before it returns.
    """

    job: JobGraphMessage  # its blobs are dropped once the tasks are deployed and no restart may follow
    owner: "Dispatcher"
    clock: WallClock
    timers: LoopClock | None = None
    random: InitVar[Random | None] = None
    checkpoint_key: InitVar[bytes] = b""
    recovered: InitVar[RecoveredJob | None] = None

    def __post_init__(self, random: Random | None, checkpoint_key: bytes, recovered: RecoveredJob | None) -> None:
        job = self.job
        recovered = recovered or RecoveredJob(job, 0)
        self.job_id = job.job_id  # 32 hex digits
        strategy = create_restart_strategy(job.settings, (random or SystemRandom()).randint)
        tasks = scheduler.new_executions(job, recovered.attempt)
        regions = scheduler.pipelined_regions(job)
        order = scheduler.region_order(job, regions)
        self.graph = ExecutionGraph(
            tasks, self.clock(), strategy, regions, order, fails_as_one=scheduler.fails_as_one(job)
        )
        self.graph.attempt_number = recovered.attempt
        self.checkpoints = JobCheckpoints(
            recovered,
            self.owner.send,
            clock=self.clock,
            timers=self.timers,
            fail=lambda error: self._source_failed(error, "checkpoints"),
            on_completed=self._checkpoint_completed,
            reader_lag=lambda: self._readers.lag(self.metrics),
            key=checkpoint_key,
            may_trigger=lambda checkpoint_id: self.owner.keeper.may_trigger(self.job_id, checkpoint_id),
        )
        self.savepoints = JobSavepoints(self.checkpoints, self.cancel, gate_names(job), changed=self._wake_waiters)
        self.restored_checkpoint_id = -1  # the checkpoint that the newest run began with; -1: none
        self._restored_ids: dict[bytes, int] = {}  # such ids by attempt: regions begin with different checkpoints
        self._restart_timers: dict[tuple[int, ...], asyncio.TimerHandle] = {}  # by the regions that start together
        self._failing_since_s: float | None = None  # time.monotonic()
        heartbeat_ms = job.client_heartbeat_timeout_ms
        self.lease = ClientLease(None if heartbeat_ms is None else heartbeat_ms / 1000, self.timers, self.cancel)
        self._steps: deque[Callable[[], None]] = deque()  # effects to be carried out, in this order
        self._is_carrying_out = self._is_suspended = False
        self._has_code = True
        self._is_kept = self._is_end_kept = False  # by the job store
        self._why_not_kept: str | None = None
        self.metrics: dict[bytes, messages.TaskMetrics] = {}
        self.former: dict[Subtask, Counter[str]] = {}  # counts of the attempts before the newest one
        self.locations: dict[bytes, messages.RegisterTaskManager] = {}
        self.stuck: dict[bytes, messages.TaskStuck] = {}  # by attempt: cancelled tasks that have not ended
        self.gates = GateSupervisor(
            job, self.owner.send, self.checkpoints, lambda: self.graph.executions, fail=self._source_failed
        )
        self._readers = ReaderAcknowledgements({})  # of the newest run; replaced by start()
        self._alignment = WatermarkAnnouncer(job, self._send_to)
        self._sources: dict[str, SourceCoordinator] = {}  # by vertex id, of its newest run
        self.plan = DeploymentPlan(job, {})  # of the newest run; replaced by start()
        self._changed = asyncio.Event()  # set and replaced at every change, so that each waiter wakes once per change

    def __repr__(self) -> str:
        return f"<JobMaster {self.job.job_id} {self.graph.status.name}>"

    @property
    def is_ended(self) -> bool:
        """Whether the job is in a terminal status."""
        return self.graph.status.is_globally_terminal_state()

    @property
    def is_waiting(self) -> bool:
        """Whether tasks are still to be deployed."""
        return self.graph.status in (JobStatus.CREATED, JobStatus.RESTARTING)

    def submission_kept(self, problem: str | None) -> None:
        """Begin the job, which the job store has; or fail it, if it has not: ``problem`` names the reason."""
        # Before the job begins: its client waits for this answer alone.
        self._is_kept = True
        self._why_not_kept = problem
        self._wake_waiters()
        if not self.is_waiting:  # it was cancelled meanwhile
            return
        if problem is None:
            self.begin()
        else:
            self.fail_scheduling(problem)

    def end_kept(self) -> None:
        """Release the job's checkpoints: the job store has the end of the job, or never will."""
        # Only now: if the store lacked the end, another JobManager would need these checkpoints.
        self.checkpoints.close(self.graph.status)
        self._is_end_kept = True
        self._wake_waiters()

    def begin(self) -> None:
        """Ask for slots; first read the checkpoint of another job, if this one starts from it and has none of its own;
        called once.
        """
        if self.checkpoints.starts_from and self.checkpoints.last_completed_id < 0:
            self.checkpoints.recover(self._recovered, self._not_recovered)
        else:
            self.owner.request_slots(self)

    def _recovered(self) -> None:
        if not self.is_ended:
            self.owner.request_slots(self)

    def _not_recovered(self, error: Exception) -> None:
        failure = failures.source_failed(error, "", self.clock())
        self._tell(self.graph.scheduling_failed, msgspec.structs.replace(failure, suppresses_restarts=True))

    def start(self, locations: Mapping[bytes, messages.RegisterTaskManager]) -> None:
        """Deploy the waiting tasks; ``locations`` has the TaskManager of each of their attempts."""
        started = {each.vertex_id for each in self.graph.waiting}
        self.locations |= locations
        # Of all attempts, not of the new ones alone: their channels lead to tasks that run on.
        self.plan = DeploymentPlan(self.job, self.locations)
        self.restored_checkpoint_id = self.checkpoints.last_completed_id
        # By attempt: regions that restart later begin with another checkpoint, and may fall back from that one.
        self._restored_ids |= dict.fromkeys(locations, self.restored_checkpoint_id)
        coordinators = {
            vertex.id: SourceCoordinator(
                vertex.id,
                vertex.name,
                enumerator_for(vertex.split_set),
                vertex.parallelism,
                self._send_to,
                self._source_failed,
                restored=self.checkpoints.source_state(vertex.id),
            )
            for vertex in self.job.vertices
            if vertex.id in started and vertex.split_set is not None
        }
        for vertex_id, coordinator in coordinators.items():
            self.checkpoints.add_source(vertex_id, coordinator.snapshot)
        # Before the tasks are deployed: a reader may ask for splits as soon as it runs.
        self._sources |= coordinators
        self.gates.run_begins(self.job, self.graph.attempt_number)
        self._readers = reader_acknowledgements(self.job, self.graph.executions)
        self._tell(self.graph.slots_allocated, {attempt: location.tm_id for attempt, location in locations.items()})
        # Behind the deployment, which waits for its turn if this is called within an effect: a TaskManager ignores
        # messages for tasks that it does not know.
        self._in_turn([self.gates.run_deployed, self._alignment.start, *(each.start for each in coordinators.values())])

    def wanted_slots(self) -> dict[bytes, int]:
        """Return the number of the job's slot for each attempt that waits to be deployed."""
        return scheduler.assign_tasks(self.job, self.graph.waiting)

    def fail_scheduling(self, message: str) -> None:
        """Fail the job because it did not get its slots."""
        failure = failures.no_slots(message, self.clock(), self.graph.failure)
        self._tell(self.graph.scheduling_failed, failure)

    def fail_recovery(self) -> None:
        """Fail a job that may not run a second time."""
        self._tell(self.graph.scheduling_failed, failures.job_manager_lost(self.clock()))

    def suspend(self) -> None:
        """Decide nothing any more: this JobManager stops, and another one goes on with the job."""
        self._is_suspended = True

    def _restart_after(self, delay_ms: int, regions: tuple[int, ...]) -> None:
        tasks, all_regions = len(self.graph.executions_in(frozenset(regions))), len(self.graph.regions)
        which = {"tasks": tasks, "regions": f"{len(regions)} of {all_regions}"}
        log.info("tasks start again", job=self.job.job_id, name=self.job.name, delay_ms=delay_ms, **which)
        timers = self.timers or asyncio.get_running_loop()
        self._restart_timers[regions] = timers.call_at(
            timers.time() + delay_ms / 1000, lambda: self._restart_due(regions)
        )

    def _restart_due(self, regions: tuple[int, ...]) -> None:
        del self._restart_timers[regions]
        ended = self.graph.executions_in(frozenset(regions))
        for execution in ended:
            if execution.attempt in self.metrics:
                former = self.former.setdefault(execution.key, Counter())
                former.update(counters_of(self.metrics[execution.attempt]))
            for of_run in (self.metrics, self.locations, self.stuck, self._restored_ids):
                of_run.pop(execution.attempt, None)
        # New ids: reports of the former attempts that are still on their way are about unknown ones.
        renewed = [scheduler.next_attempt(self.job_id, execution) for execution in ended]
        self._tell(self.graph.begin_next_run, renewed)

    def cancel(self, reason: str | None = None) -> None:
        """Cancel the job; in every state, idempotent.  ``reason``: why, if nobody asked for it."""
        self._tell(self.graph.cancel, reason)

    def handle(self, tm_id: str, message: messages.FromTask) -> bool:
        """Handle a task's message; False if it is ignored: the task does not run there, or it does not fit."""
        execution = self.graph.executions.get(message.attempt)
        # Of a former run, from a stranger, or behind the end: none of them may change what is decided.
        if execution is None or execution.tm_id != tm_id or execution.state.is_terminal:
            return False
        return self.HANDLERS[type(message)](self, message)

    def _task_state_changed(self, message: messages.TaskStateChanged) -> bool:
        if message.metrics is not None:
            self.metrics[message.attempt] = message.metrics
        before = self.graph.num_ignored_events
        failure = message.failure
        location = self.locations[message.attempt]
        if failure is None:
            name = self.task_name(message.attempt)
            subtask = self.graph.executions[message.attempt].subtask
            failure = failures.unexplained(message.state, location, name, subtask, self.clock())
        if failure is not None and failure.suppresses_restarts:
            # The state of this run cannot be restored; that of an older checkpoint may be good.
            is_final = not self.checkpoints.fall_back(self._restored_ids[message.attempt])
            failure = msgspec.structs.replace(failure, suppresses_restarts=is_final)
        self._tell(self.graph.execution_reported, message.attempt, location.tm_id, message.state, failure)
        return self.graph.num_ignored_events == before

    def task_metrics(self, tm_id: str, attempt: bytes, metrics: messages.TaskMetrics) -> bool:
        """Keep the latest metrics of a task; False if the task does not run on that TaskManager."""
        location = self.locations.get(attempt)
        if location is None or location.tm_id != tm_id:
            return False
        # The last report of a task has its final numbers; a heartbeat that was made before it is older.
        if not self.graph.executions[attempt].state.is_terminal:
            self.metrics[attempt] = metrics
        return True

    def _task_stuck(self, message: messages.TaskStuck) -> bool:
        """Record where a cancelled task stands, for people who wait for its end; False if it was not cancelled."""
        if self.graph.executions[message.attempt].state is not ExecutionState.CANCELING:
            return False
        self.stuck[message.attempt] = message
        self._wake_waiters()
        return True

    def _source_watermark_reported(self, message: messages.SourceWatermarkReported) -> bool:
        return self._alignment.report(self.graph.executions[message.attempt].key, message.timestamp)

    def _splits_requested(self, message: messages.SplitsRequested) -> bool:
        execution = self.graph.executions[message.attempt]
        coordinator = self._sources.get(execution.vertex_id)
        if coordinator is not None:
            coordinator.splits_requested(execution.subtask)
        return coordinator is not None

    def _source_failed(self, error: Exception, name: str) -> None:
        self._tell(self.graph.fail, failures.source_failed(error, name, self.clock()))

    def _send_to(self, subtask: Subtask, message_for: Callable[[bytes], messages.ToTask]) -> None:
        """Send the message that ``message_for`` makes for the newest attempt of a subtask."""
        tm_id, attempt = self.plan.place_of(subtask)
        self.owner.send(tm_id, message_for(attempt))

    def task_manager_lost(self, location: messages.RegisterTaskManager, reason: str) -> None:
        """Fail the tasks that ran there; does nothing if there were none."""
        failure = failures.task_manager_lost(location, reason, self.clock())
        self._tell(self.graph.task_manager_lost, location.tm_id, failure)

    def _gate_reported(self, message: messages.GateReported | messages.MarkReport) -> bool:
        self.gates.reported(self.graph.executions[message.attempt].key, message)
        return True

    def _checkpoint_reported(self, message: messages.CheckpointReport) -> bool:
        tm_id = self.locations[message.attempt].tm_id
        return not self._readers.reported(tm_id, message) or self.checkpoints.report(tm_id, message)

    def barrier_read(self, edge_id: str, attempt: bytes, checkpoint_id: int) -> None:
        """Note that the client has all data that a producer of an external edge sent before a barrier; reports about
        former runs do nothing.
        """
        for tm_id, message in self._readers.barrier_read(edge_id, attempt, checkpoint_id):
            self.handle(tm_id, message)

    def results_broken(self, attempt: int, reason: str) -> None:
        """Fail the run, because the client cannot read an external edge any further; does nothing if run
        ``attempt`` is over already.
        """
        # The client reports late: the run that it speaks of may have failed already, and the next one is not to blame.
        if not self._is_over(attempt):
            self._tell(self.graph.fail, failures.results_broken(reason, self.clock()))

    async def wait_until_submitted(self) -> str | None:
        """Wait until the job store has the job, or the client waits no longer; return why the store lacks it."""
        # No deadline: the answer of the job store ends it, or the client, who waits for so long.
        await self.wait_until(lambda: self._is_kept, None)
        return self._why_not_kept

    async def wait_until_settled(self, timeout_s: float) -> bool:
        """Wait until the job store has the end of the job, which then runs nowhere again; False if not in time."""
        return await self.wait_until(lambda: self._is_end_kept, timeout_s)

    async def wait_until_kept(self, timeout_s: float) -> bool:
        """Wait until a checkpoint holds everything counted, committed and aborted up to now, or the job has ended;
        False if that takes longer.

        In a job whose writes wait for no checkpoint there is nothing to wait for.
        """
        if not self.job.settings.acknowledges_checkpointed:
            return True
        wanted = self.checkpoints.request()
        return await self.wait_until(lambda: self.is_ended or self.checkpoints.last_completed_id >= wanted, timeout_s)

    async def wait_until_running(self, timeout_s: float) -> bool:
        """Wait for all tasks of a run to run, or the job to end; False if neither happened within ``timeout_s``."""
        return await self.wait_until(lambda: self.is_ended or self._are_running(), timeout_s)

    def _are_running(self) -> bool:
        # Asked for at each look: a restart makes another table of executions.
        tasks = self.graph.executions.values()
        return self.graph.status is JobStatus.RUNNING and all(each.state in _RUN for each in tasks)

    async def wait_until_ended(self, timeout_s: float) -> bool:
        """Wait for the job to end; False if it did not within ``timeout_s``."""
        return await self.wait_until(lambda: self.is_ended, timeout_s)

    async def wait_for_result(self, timeout_s: float, failure_grace_s: float) -> bool:
        """Wait for the job to end, or to have been failing for ``failure_grace_s``; False if neither happened within
        ``timeout_s``.

        A job that restarts has no result yet.  The result of a failing job is known before its tasks have ended: it
        fails, with this cause.  So is that of a cancelled job, one of whose tasks does not end.
        """
        deadline_s = time.monotonic() + timeout_s
        await self.wait_until(lambda: self._is_result_known or self._failing_since_s is not None, timeout_s)
        if self._is_result_known or self._failing_since_s is None:
            return self._is_result_known
        known_s = self._failing_since_s + failure_grace_s
        return await self.wait_until_ended(min(known_s, deadline_s) - time.monotonic()) or known_s <= deadline_s

    @property
    def _is_result_known(self) -> bool:
        return self.is_ended or (self.graph.status is JobStatus.CANCELLING and bool(self.stuck))

    async def wait_for_trouble(self, timeout_s: float, cause_timeout_s: float) -> None:
        """Wait for the job to fail for good, be cancelled or end; then, if only a symptom is known, for the cause to
        arrive.
        """
        has_trouble = await self.wait_until(
            lambda: not self.is_waiting and self.graph.status is not JobStatus.RUNNING, timeout_s
        )
        if has_trouble:
            await self.wait_until(
                lambda: (
                    self.is_ended or self.graph.failure is None or self.graph.failure.exception_type not in SYMPTOMS
                ),
                cause_timeout_s,
            )

    async def wait_until_deployed(
        self, timeout_s: float, after_attempt: int = -1, edge: EdgeMessage | None = None
    ) -> bool:
        """Wait for a run with a higher number to get its slots, or the job to end; False if neither happened within
        ``timeout_s``.

        ``edge``: whose producers may be in a later stage than others; these must be deployed.
        """
        return await self.wait_until(
            lambda: (
                self.is_ended
                or (not self.is_waiting and self.graph.attempt_number > after_attempt and self._is_produced(edge))
            ),
            timeout_s,
        )

    def _is_produced(self, edge: EdgeMessage | None) -> bool:
        return edge is None or all(each.attempt in self.locations for each in self.graph.executions_of(edge.source))

    async def wait_for_checkpoint(self, timeout_s: float, attempt: int, after_checkpoint: int) -> bool:
        """Wait for a newer complete checkpoint, or the end of a run; False if neither happened within ``timeout_s``."""
        return await self.wait_until(
            lambda: self._is_over(attempt) or self.checkpoints.last_completed_id > after_checkpoint, timeout_s
        )

    def _is_over(self, attempt: int) -> bool:
        return self.graph.status is not JobStatus.RUNNING or self.graph.attempt_number != attempt

    async def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until ``is_true``, asked after each change; False if not within ``timeout_s`` (None: for ever)."""
        try:
            async with asyncio.timeout(timeout_s):
                # Asked anew after each change: several may have come before this task runs.
                while not is_true():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def task_name(self, attempt: bytes) -> str:
        """Return the name of the vertex of an attempt of the newest run."""
        vertex_id = self.graph.executions[attempt].vertex_id
        return next(vertex.name for vertex in self.job.vertices if vertex.id == vertex_id)

    def _elapsed_ms(self) -> int:
        """Return the time of a clock that nobody sets, which tells how long a job ran without a failure."""
        return round((time.monotonic() if self.timers is None else self.timers.time()) * 1000)

    def _tell(self, happened: Callable[P, None], /, *facts: P.args, **named: P.kwargs) -> None:
        """Tell the graph what has happened; called within an effect, its own effects follow those that are still to be
        carried out.
        """
        if not self._is_suspended:
            self.graph.set_time(self.clock(), self._elapsed_ms())
            happened(*facts, **named)
        effects = self.graph.take_effects()
        if effects:
            self._wake_waiters()
        self._in_turn([partial(self._carry_out, effect) for effect in effects])

    def _in_turn(self, steps: Sequence[Callable[[], None]]) -> None:
        # Behind those that wait: an effect that was decided earlier is carried out earlier.
        self._steps.extend(steps)
        if self._is_carrying_out:
            return
        self._is_carrying_out = True
        try:
            while self._steps:
                self._steps.popleft()()
        finally:
            self._is_carrying_out = False
        is_needed = (
            self.graph.status is not JobStatus.RUNNING or self.graph.strategy.can_restart or self.graph.has_undeployed
        )
        # Code may take hundreds of megabytes; a job that cannot restart needs it no more.
        if self._has_code and not is_needed:
            self._drop_code()

    def _checkpoint_completed(self) -> None:
        """Keep the newest checkpoint's id, so that its loss is noticed."""
        checkpoints = self.checkpoints
        self.owner.keeper.checkpoint_completed(self.job_id, checkpoints.last_completed_id, checkpoints.unrestorable)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        self._changed.set()
        # A new one: who begins to wait now waits for the next change, not for this one.
        self._changed = asyncio.Event()

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case events.Deploy(attempt, tm_id):
                execution = self.graph.executions[attempt]
                restored = self.checkpoints.restored_state(execution.vertex_id, execution.subtask)
                task = self.plan.describe_task(execution.vertex_id, execution.subtask, restored)
                self.owner.send(tm_id, task)
            case events.SendMessage(tm_id, message):
                self.owner.send(tm_id, message)
            case events.ExecutionStateChanged(attempt, state):
                self._task_changed(attempt, state)
            case events.JobStatusChanged(status):
                self._status_changed(status)
            case events.ReleaseSlots():
                self._run_ended()
            case events.RestartAfter(delay_ms, regions):
                self._restart_after(delay_ms, regions)
            case events.RequestSlots():
                self.owner.request_slots(self)
            case _:
                assert_never(effect)

    def _task_changed(self, attempt: bytes, state: ExecutionState) -> None:
        execution = self.graph.executions[attempt]
        # A source that has ended must not hold the others of its alignment group back.
        if state.is_terminal:
            self.stuck.pop(attempt, None)
            self._alignment.forget(execution.key)
        if state in _FAILING and (coordinator := self._sources.get(execution.vertex_id)) is not None:
            coordinator.close()  # an enumerator must not answer readers on a TaskManager that was just lost
        if state is ExecutionState.FINISHED:
            self.gates.task_finished(attempt)
        name = self.task_name(attempt)
        log.debug("task state changed", job=self.job_id, task=name, subtask=execution.subtask, state=state.value)
        self.checkpoints.task_state_changed(attempt, state)

    def _status_changed(self, status: JobStatus) -> None:
        self._failing_since_s = time.monotonic() if status is JobStatus.FAILING else None
        if status is JobStatus.RUNNING:
            executions = self.graph.executions.values()
            locations = {each.attempt: each.tm_id for each in executions if each.tm_id is not None}
            self.checkpoints.tasks_deployed(locations, {each.attempt: each.state for each in executions})
        elif status is not JobStatus.RESTARTING or self.graph.is_restarting_as_a_whole:
            self._end_all_runs()
        self.savepoints.job_changed(status, None if self.graph.failure is None else self.graph.failure.message[:1000])
        why = self.graph.cancel_reason if self.graph.failure is None else self.graph.failure.message[:1000]
        cause = {"cause": why} if why else {}
        log.info("job status changed", job=self.job_id, name=self.job.name, status=status.name, **cause)

    def _end_all_runs(self) -> None:
        # A region that is due to start again would start in a job that ends.
        for timer in self._restart_timers.values():
            timer.cancel()
        self._restart_timers.clear()
        for coordinator in self._sources.values():
            coordinator.close()
        self.gates.run_ends()
        self.checkpoints.stop()

    def _run_ended(self) -> None:
        self._alignment.close()
        # Its tasks are gone, and it will start again: meanwhile others may have the slots.
        if not self.is_ended:
            self.owner.release_slots(self)
            return
        self._drop_code()
        self.lease.close()
        self.owner.job_ended(self)

    def _drop_code(self) -> None:
        self._has_code = False
        self.job = without_code(self.job)
        self.plan = DeploymentPlan(self.job, self.locations)

    HANDLERS: ClassVar[Mapping[type[messages.FromTask], Callable[["JobMaster", Any], bool]]] = {
        messages.TaskStateChanged: _task_state_changed,
        messages.TaskStuck: _task_stuck,
        messages.SourceWatermarkReported: _source_watermark_reported,
        messages.SplitsRequested: _splits_requested,
        messages.GateReported: _gate_reported,
        messages.MarkRequested: _gate_reported,
        messages.MarkPassed: _gate_reported,
        messages.CheckpointAcknowledged: _checkpoint_reported,
        messages.CheckpointDeclined: _checkpoint_reported,
        messages.FinalCheckpointAwaited: _checkpoint_reported,
    }
