"""``CheckpointCoordinator``: decides when a job takes checkpoints, and which of them are complete; it is told what
happens and returns effects.

Side:       pure.
Invariants: the ids rise, over all runs.  Each id that was triggered ends once, complete or failed.  At most
            ``max_concurrent`` are on their way.  Orders go only to unfinished attempts of the current run.  ``FailJob``
            is the last effect of its event, and after it nothing is triggered before the next run.  No checkpoint is
            discarded while its manifest is being written.
Units:      times in milliseconds since the epoch, passed with each call that tells what has happened.
Source:     Flink ``CheckpointCoordinator``, ``CheckpointRequestDecider``, ``PendingCheckpoint``.
Rules:      the first trigger comes one interval after all attempts run.  A trigger that is due while too many
            checkpoints are on their way, or while the minimum pause lasts, waits; further ones do not queue up behind
            it.  The pause begins when a checkpoint ends.  One that is wanted before its time is triggered at once; but
            between it and another one lies the pause, a tenth of the interval or a second, and the time that the other
            one took.  Behind one that failed the pause is the interval, or a second.  The last one is wanted as soon as
            all unfinished tasks wait for it; Flink lets them wait for the interval.  It is wanted again if it fails, or
            if a run begins in which all wait: a task reports only once that it waits.  The timeout also covers the
            writing of the manifest.  A complete checkpoint fails all older ones on their way: they are subsumed.  Tasks
            that had finished at the trigger count as acknowledged.  If one finishes later without having taken part,
            the checkpoint fails.  Without ``after_tasks_finish`` none is triggered once a task has finished.  A
            savepoint runs alone: it waits for what is on its way, and periodic triggers wait for it.  It is no place to
            restart from: tasks hear of its end only if it stops the job, it subsumes nothing, and its failure does not
            count.  Of the reports that fit no checkpoint on its way two have effects: a cause that arrives after its
            symptom takes its place, and a state that arrives after its checkpoint has failed is discarded.
Absent:     checkpoints of a part of the job.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Final, assert_never

from flowlet.checkpoint.jobmanager import coordinator_events as events
from flowlet.checkpoint.jobmanager.checkpoint_history import CheckpointHistory, CompletedCheckpoints, Document
from flowlet.checkpoint.jobmanager.pending_checkpoint import (
    MAX_WAITING,
    SYMPTOM,
    CheckpointFailure,
    CheckpointTopology,
    CoordinatorFailureReason,
    PendingCheckpoint,
    SavepointRequest,
    is_counted,
)
from flowlet.common.job_settings import CheckpointSettings
from flowlet.errors import FlowletError
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState, Subtask
from flowlet.storage.manifest import CheckpointManifest, SourceEntry
from netstack.late import dataclass

# See the rules; not measured: a job with small partitions takes at most ten times as many checkpoints, or one per
# second.
_EARLY_SHARE: Final = 10
_MAX_EARLY_PAUSE_MS: Final = 1000
_MAX_LITTER: Final = 1000  # ids; a late state of an older one stays on the disk until the directory is removed
_NOT_RUNNING: Final = (
    "the job takes savepoints only while all of its tasks run, and none of them has failed or is about to restart"
)
_Reason = CoordinatorFailureReason
NO_STATES: Final[Mapping[bytes, ExecutionState]] = {}


@dataclass(slots=True)
class _Run:
    """The attempts of one run.

    ``is_over``: no checkpoint is triggered any more.  ``next_trigger_ms`` None: none is triggered yet, or any more.
    """

    unfinished: dict[bytes, Subtask]
    subtasks: dict[bytes, Subtask]
    starting: set[bytes]
    finished: list[Subtask] = field(default_factory=list)
    is_over: bool = False
    next_trigger_ms: int | None = None
    is_trigger_due: bool = False
    is_wanted: bool = False  # before its time


@dataclass(eq=False)
class CheckpointCoordinator:
    """The checkpoints of one job, over all of its runs.  Threading: one thread.

    Args:
        next_id: of the next checkpoint that is triggered; above all that ever were.
        snapshot_sources: gives the states of all split enumerators, for a checkpoint with this id; raises FlowletError.
    """

    topology: CheckpointTopology
    settings: CheckpointSettings
    next_id: int = 1
    snapshot_sources: Callable[[int], list[SourceEntry]] = lambda _: []

    def __post_init__(self) -> None:
        settings = self.settings
        # As in Flink: a shorter interval would only let triggers wait.
        self._interval_ms = None if settings.interval_ms is None else max(settings.interval_ms, settings.min_pause_ms)
        self._run: _Run | None = None
        self.pending: dict[int, PendingCheckpoint] = {}  # by id, which rise
        self._savepoints: list[SavepointRequest] = []  # that wait for their turn, while a run may take one
        # Tasks that wait for their last checkpoint would end with another one, and the savepoint would come too late.
        self._is_stop_near = False
        self.written: dict[int, str] = {}  # ids whose manifest is being written, with the location of a savepoint
        # Failed since the run began, with locations as above: a TaskManager may still write to them.
        self._litter: dict[int, str] = {}
        # By attempt that waits for its last checkpoint: the lowest id that it may have.
        self._awaited: dict[bytes, int] = {}
        self._last_end_ms: int | None = None
        self._last_duration_ms = 0  # of the last complete one
        self._last_completed = -1
        self._last_failed = -1  # the highest id; savepoints count in neither
        self._counted: set[int] = set()  # failed since the newest complete one; at most ``tolerable_failures`` ids
        self._history = CheckpointHistory(self.topology)
        self._now_ms = 0
        self._effects: list[events.Effect] = []
        self._failure: events.FailJob | None = None  # of this event

    def __repr__(self) -> str:
        return f"<CheckpointCoordinator {list(self.pending.values())}, next id {self.next_id}>"

    @property
    def next_due_ms(self) -> int | None:
        """The time at which ``time_passed`` must be called; None: only other events matter."""
        times = [pending.trigger_ms + self.settings.timeout_ms for pending in self.pending.values()]
        run = self._run
        if run is not None and run.next_trigger_ms is not None:
            if run.is_trigger_due and self._has_room() and self._last_end_ms is not None:
                times.append(self._last_end_ms + self.settings.min_pause_ms)
            if run.is_wanted and self._has_room():
                times.append(self._early_ms())
            times.append(run.next_trigger_ms)
        return min(times, default=None)

    def document(self, completed: CompletedCheckpoints) -> Document:
        """Describe the checkpoints for people; ``completed``: the kept ones."""
        return self._history.document(self.pending.values(), completed)

    def handle(self, happened: Callable[["CheckpointCoordinator"], None], now_ms: int) -> list[events.Effect]:
        """Apply an event, which is a call of one of the methods below; return the effects in order.  A report that does
        not fit has none.
        """
        self._now_ms = now_ms
        happened(self)
        # Behind the event: what it has ended may make room for the next one.
        self._trigger_if_due()
        effects, self._effects = self._effects, []
        # Last: the failure ends the run, and the other effects still concern it.
        if self._failure is not None:
            effects.append(self._failure)
            self._failure = None
        return effects

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant does not hold."""
        assert len(self.pending) <= self.settings.max_concurrent
        assert list(self.pending) == sorted(self.pending)
        assert all(each < self.next_id for each in self.pending)
        assert not self.pending or self._run is not None
        assert len(self.pending) == 1 or all(each.savepoint is None for each in self.pending.values()), (
            "a savepoint runs alone"
        )
        assert not self._savepoints or self._can_take_savepoints, "else they have failed"
        for pending in self.pending.values():
            assert (not pending.missing) == (pending.checkpoint_id in self.written)

    # Runs

    def run_started(
        self,
        attempts: Mapping[bytes, Subtask],
        restored: int | None = None,
        states: Mapping[bytes, ExecutionState] = NO_STATES,
    ) -> None:
        """Begin a run whose tasks are all deployed; ``restored``: the id of the checkpoint that the newly deployed
        tasks begin with.

        ``states``: of attempts that were deployed before and go on, because only others start again; further attempts
        in it are ignored.
        """
        # Attempts that go on may still write for a checkpoint that has failed.
        go_on = self._run is not None and any(each in attempts for each in self._run.unfinished)
        self.run_ended()
        if not go_on:
            self._sweep()
        done = {attempt for attempt, state in states.items() if state is ExecutionState.FINISHED}
        unfinished = {attempt: task for attempt, task in attempts.items() if attempt not in done}
        finished = [task for attempt, task in attempts.items() if attempt not in unfinished]
        # A task that does not run yet would decline: the first trigger waits for all of them.
        starting = {each for each in unfinished if states.get(each) is not ExecutionState.RUNNING}
        run = self._run = _Run(unfinished, dict(attempts), starting, finished)
        # A task reports once that it waits: one that goes on must not be forgotten.
        self._awaited = {attempt: least_id for attempt, least_id in self._awaited.items() if attempt in unfinished}
        if finished and not self.settings.after_tasks_finish:
            self._stop_triggering(run)
        self._start_triggering(run)
        self._want_last(run)
        if restored is not None:
            self._history.restored(restored, self._now_ms)

    def run_ended(self) -> None:
        """End the run: its attempts are being cancelled, or have ended, and get no more orders."""
        self._run = None  # first: no attempt gets an order any more
        self._fail_all(list(self.pending.values()), _Reason.CHECKPOINT_COORDINATOR_SUSPEND)
        self._refuse_waiting_savepoints()

    def job_ended(self) -> None:
        """End the job: no run follows."""
        self.run_ended()
        self._sweep()

    def _sweep(self) -> None:
        """Remove late files of failed checkpoints: no attempt of the last run writes any more."""
        self._effects += [
            events.DiscardCheckpoint(each, where) for each, where in self._litter.items() if each not in self.written
        ]
        self._litter.clear()

    def attempt_changed(self, attempt: bytes, state: ExecutionState) -> None:
        """Note that an attempt is in a new state."""
        run = self._run
        if run is None or attempt not in run.unfinished:
            return
        match state:
            case ExecutionState.RUNNING:
                run.starting.discard(attempt)
            case ExecutionState.FINISHED:
                self._finished(run, attempt)
            case ExecutionState.CANCELING | ExecutionState.CANCELED | ExecutionState.FAILED:
                # A run with a task that fails is about to end: another checkpoint could only fail with it.
                self._stop_triggering(run)
                subtask = run.unfinished[attempt]
                # One that is being cancelled still gets the abort, and lets go of its state.
                if state is not ExecutionState.CANCELING:
                    del run.unfinished[attempt]
                self._fail_all(list(self.pending.values()), _Reason.TASK_FAILURE, subtask)
            case _:
                return
        self._start_triggering(run)

    def _finished(self, run: _Run, attempt: bytes) -> None:
        run.starting.discard(attempt)
        # Before the failures below, whose orders go to unfinished attempts.
        subtask = run.unfinished.pop(attempt)
        run.finished.append(subtask)
        waiting = [each for each in self.pending.values() if attempt in each.missing]
        self._fail_all(waiting, _Reason.TASK_FINISHED, subtask)
        if not run.unfinished or not self.settings.after_tasks_finish:
            self._stop_triggering(run)
        self._want_last(run)

    def _want_last(self, run: _Run) -> None:
        """Want a checkpoint before its time if every unfinished task waits for its last one, unless a checkpoint that
        serves all of them is complete or on its way.
        """
        least_ids = [self._awaited.get(each, 0) for each in run.unfinished]
        pending = [each.checkpoint_id for each in self.pending.values() if each.savepoint is None]
        taken = max([self._last_completed, *pending])
        run.is_wanted |= bool(least_ids) and min(least_ids) > 0 and max(least_ids) > taken

    def _start_triggering(self, run: _Run) -> None:
        # Once for a run: a task that is deployed later must not put the next trigger off.
        if run.starting or run.is_over or run.next_trigger_ms is not None or self._interval_ms is None:
            return
        run.next_trigger_ms = self._now_ms + self._interval_ms

    def _stop_triggering(self, run: _Run) -> None:
        """Trigger no checkpoint for the rest of the run."""
        run.is_over = True
        run.next_trigger_ms, run.is_trigger_due = None, False
        self._refuse_waiting_savepoints()

    # Savepoints

    @property
    def _can_take_savepoints(self) -> bool:
        return self._run is not None and not self._run.starting and not self._run.is_over

    def stop_announced(self, *, is_near: bool) -> None:
        """Note that a savepoint is to stop the job, and that its directory is being made; ``is_near`` False: it could
        not be made.
        """
        self._is_stop_near = is_near

    def savepoint_requested(self, request: SavepointRequest) -> None:
        """Queue a user's savepoint, whose directory is ready, or refuse it."""
        if request.stops_job:
            self._is_stop_near = False
        if not self._can_take_savepoints:
            self._effects.append(events.SavepointFailed(request, _NOT_RUNNING))
        elif len(self._savepoints) >= MAX_WAITING:
            full = f"{MAX_WAITING} savepoints wait already: wait for one of them"
            self._effects.append(events.SavepointFailed(request, full))
        else:
            self._savepoints.append(request)

    def _refuse_waiting_savepoints(self) -> None:
        waiting, self._savepoints = self._savepoints, []
        self._effects += [events.SavepointFailed(each, _NOT_RUNNING) for each in waiting]

    def _savepoint_ended(self, run: _Run, pending: PendingCheckpoint, request: SavepointRequest) -> None:
        # A task that stops waits for this word; for any other savepoint tasks have nothing to commit.
        if request.stops_job:
            self._stop_triggering(run)
            checkpoint_id = pending.checkpoint_id
            self._effects += [messages.CheckpointCompleted(attempt, checkpoint_id) for attempt in run.unfinished]
        # Behind the orders: the user's answer may cancel the job.
        self._effects.append(events.SavepointCompleted(request, pending.checkpoint_id))

    # Triggers

    def _early_ms(self) -> int:
        """Return the earliest time at which a checkpoint may be triggered before its time."""
        # A store that failed just now gets the whole pause, not a tenth of it.
        share = _EARLY_SHARE if self._last_failed <= self._last_completed else 1
        share_ms = min((self._interval_ms or 0) // share, _MAX_EARLY_PAUSE_MS)
        pause_ms = max(self.settings.min_pause_ms, share_ms, self._last_duration_ms)
        return 0 if self._last_end_ms is None else self._last_end_ms + pause_ms

    def _has_room(self) -> bool:
        is_alone = self._savepoints or any(each.savepoint is not None for each in self.pending.values())
        return not is_alone and len(self.pending) < self.settings.max_concurrent

    def checkpoint_wanted(self) -> None:
        """Note that a producer waits for the next checkpoint."""
        if self._run is not None:
            self._run.is_wanted = True

    def time_passed(
        self, held: frozenset[tuple[int, bytes]] = frozenset(), blocked: frozenset[bytes] = frozenset()
    ) -> None:
        """Fail the checkpoints that have timed out; called at ``next_due_ms`` or later.

        ``held`` and ``blocked``: the checkpoints and attempts that wait for the client; see ``ReaderLag``.
        """
        # A copy: each that fails leaves the table.
        for pending in list(self.pending.values()):
            if self._now_ms >= pending.trigger_ms + self.settings.timeout_ms:
                waits_for = {(pending.checkpoint_id, each) for each in pending.missing}
                # Held by the client alone: that is a pause of a person, and no failure of the job.
                is_held = bool(waits_for) and waits_for <= held
                is_behind = is_held or bool(blocked & pending.missing)
                reason = _Reason.READER_BEHIND if is_behind else _Reason.CHECKPOINT_EXPIRED
                waited = f"{reason.value} ({self.settings.timeout_ms} ms), it waited for {pending.waits_for}"
                self._fail(pending, CheckpointFailure(reason.name, waited))

    def _trigger_if_due(self) -> None:
        run = self._run
        # Alone: it waits for what is on its way, and the periodic triggers below wait for it.
        while run is not None and self._savepoints and not self.pending:
            self._trigger(run, self._savepoints.pop(0))
        if run is None or run.next_trigger_ms is None or self._interval_ms is None:
            return
        if self._now_ms >= run.next_trigger_ms:
            run.is_trigger_due = True
            run.next_trigger_ms += self._interval_ms
            if run.next_trigger_ms <= self._now_ms:  # the loop stood still: it makes up for one trigger, not for all
                run.next_trigger_ms = self._now_ms + self._interval_ms
        if run.is_wanted and not self._is_stop_near and self._has_room() and self._now_ms >= self._early_ms():
            run.is_trigger_due = True
        pause_ends_ms = self._now_ms if self._last_end_ms is None else self._last_end_ms + self.settings.min_pause_ms
        if run.is_trigger_due and self._has_room() and self._now_ms >= pause_ends_ms:
            run.is_trigger_due = run.is_wanted = False
            self._trigger(run)

    def _trigger(self, run: _Run, savepoint: SavepointRequest | None = None) -> None:
        checkpoint_id = self.next_id
        # Also if the trigger fails below: each id is used once.
        self.next_id += 1
        # Before the sources are asked: their failure fails this checkpoint.
        pending = self.pending[checkpoint_id] = PendingCheckpoint(
            checkpoint_id, self._now_ms, dict(run.unfinished), tuple(run.finished), savepoint
        )
        try:
            # Before any task hears of it: splits that are assigned from here on belong behind the barrier.
            pending.sources = self.snapshot_sources(checkpoint_id)
        except FlowletError as error:
            self._fail_if_pending(checkpoint_id, _Reason.TRIGGER_CHECKPOINT_FAILURE, str(error))
            return
        attempts = {subtask: attempt for attempt, subtask in run.unfinished.items()}
        for subtask in self.topology.frontier(attempts.keys()):
            snapshot_type = 0 if pending.savepoint is None else int(pending.savepoint.type)
            order = messages.TriggerCheckpoint(
                attempts[subtask], checkpoint_id, pending.trigger_ms, snapshot_type, pending.location
            )
            self._effects.append(order)

    # Reports of tasks

    def reported(self, report: messages.CheckpointReport) -> None:
        """Handle a task's report: it acknowledges, declines, or waits for its last checkpoint."""
        match report:
            case messages.CheckpointAcknowledged():
                self._acknowledged(report)
            case messages.CheckpointDeclined():
                self._declined(report)
            case messages.FinalCheckpointAwaited(attempt):
                run = self._run
                if run is not None and attempt in run.unfinished:
                    self._awaited[attempt] = self.next_id
                    self._want_last(run)
            case _:
                assert_never(report)

    def _acknowledged(self, message: messages.CheckpointAcknowledged) -> None:
        pending = self.pending.get(message.checkpoint_id)
        if pending is None:
            self._late_state(message)
        # A second acknowledgement changes nothing: the first one may be in the manifest.
        elif message.attempt in pending.missing:
            pending.acknowledge(message, self._now_ms)
            if not pending.missing:
                # Noted before the write begins: until its answer the files stay, whatever becomes of the checkpoint.
                self.written[pending.checkpoint_id] = pending.location
                self._effects.append(events.WriteManifest(pending.manifest(self.topology), pending.location))

    def _late_state(self, message: messages.CheckpointAcknowledged) -> None:
        state = message.part.state
        has_file = state is not None and state.path is not None
        # The checkpoint failed before this file was reported: the removal at the failure did not include it.
        if has_file and message.checkpoint_id in self._litter and message.checkpoint_id not in self.written:
            self._effects.append(events.DiscardCheckpoint(message.checkpoint_id, self._litter[message.checkpoint_id]))

    def _declined(self, message: messages.CheckpointDeclined) -> None:
        pending, run = self.pending.get(message.checkpoint_id), self._run
        # None for an attempt of a former run, whose refusal says nothing about this one.
        subtask = None if run is None else run.subtasks.get(message.attempt)
        failure = CheckpointFailure(message.reason, message.message, subtask)
        if pending is None:
            self._late_cause(message.checkpoint_id, failure)
        # One that has acknowledged has done its part; one of a former run never had any.
        elif message.attempt in pending.missing:
            self._fail(pending, failure)

    def _late_cause(self, checkpoint_id: int, failure: CheckpointFailure) -> None:
        known = self._history.find(checkpoint_id)
        if failure.subtask is None or known is None or known.failure is None or not is_counted(failure.reason):
            return
        # The task that gave way may report before the one that had the reason.
        if known.failure.reason == SYMPTOM:
            known.failure = failure
            if known.savepoint is None:
                self._count(checkpoint_id, failure)

    # Ends

    def manifest_written(self, manifest: CheckpointManifest) -> None:
        """Complete a checkpoint: the answer to ``WriteManifest``."""
        checkpoint_id = manifest.checkpoint_id
        location = self.written.pop(checkpoint_id, "")
        pending, run = self.pending.pop(checkpoint_id, None), self._run
        # Its manifest makes it look complete: a restart would take it for the newest one.
        if pending is None or run is None:  # it failed meanwhile
            self._effects.append(events.DiscardCheckpoint(checkpoint_id, location))
            return
        self._last_end_ms = self._now_ms
        pending.end(self._now_ms)
        self._history.ended(pending)
        if pending.savepoint is not None:
            self._savepoint_ended(run, pending, pending.savepoint)
            return
        self._last_completed, self._last_duration_ms = checkpoint_id, self._now_ms - pending.trigger_ms
        # Only failures in a row count: this one shows that the state can be kept.
        self._counted.clear()
        self._effects.append(events.KeepCheckpoint(manifest))
        # They could end later than this one, and the job would go back to them.
        older = [each for each in self.pending.values() if each.checkpoint_id < checkpoint_id]
        self._fail_all(older, _Reason.CHECKPOINT_SUBSUMED)
        # Behind ``KeepCheckpoint``: tasks commit when they hear of it, so the job must not restart from an older one
        # any more.
        self._effects += [messages.CheckpointCompleted(attempt, checkpoint_id) for attempt in run.unfinished]

    def manifest_failed(self, checkpoint_id: int, message: str) -> None:
        """Fail a checkpoint: the other answer to ``WriteManifest``."""
        location = self.written.pop(checkpoint_id, "")
        # Else it failed while the manifest was written, and its files waited for this answer.
        if checkpoint_id in self.pending:
            self._fail_if_pending(checkpoint_id, _Reason.FINALIZE_CHECKPOINT_FAILURE, message)
        else:
            self._effects.append(events.DiscardCheckpoint(checkpoint_id, location))

    def _fail_if_pending(self, checkpoint_id: int, reason: _Reason, message: str) -> None:
        pending = self.pending.get(checkpoint_id)
        if pending is not None:
            self._fail(pending, CheckpointFailure(reason.name, f"{reason.value}: {message}"))

    def _fail_all(self, failing: list[PendingCheckpoint], reason: _Reason, subtask: Subtask | None = None) -> None:
        for pending in failing:
            self._fail(pending, CheckpointFailure(reason.name, reason.value, subtask))

    def _fail(self, pending: PendingCheckpoint, failure: CheckpointFailure) -> None:
        checkpoint_id = pending.checkpoint_id
        # First: what is decided below must not count it as one on its way.
        del self.pending[checkpoint_id]
        # A store that is slow gets a pause behind a failure, too.
        self._last_end_ms = self._now_ms
        held_up_by = tuple(self.topology.frontier({pending.participants[each] for each in pending.missing}))
        is_known = pending.sources is not None  # to tasks
        pending.end(self._now_ms, failure, held_up_by)
        self._history.ended(pending)
        self._effects.append(events.CheckpointFailed(checkpoint_id, failure, held_up_by))
        if is_known:
            self._call_off(pending)
        if pending.savepoint is None:
            self._last_failed = max(self._last_failed, checkpoint_id)
            self._count(checkpoint_id, failure)
        else:
            where = "" if failure.subtask is None else f"{self.topology.describe(failure.subtask)}: "
            self._effects.append(events.SavepointFailed(pending.savepoint, f"{where}{failure.message}"))
        if self._run is not None:
            self._want_last(self._run)

    def _call_off(self, pending: PendingCheckpoint) -> None:
        """Tell the tasks, which know of the checkpoint, that it is over, and remove the state that they may have
        written.
        """
        checkpoint_id = pending.checkpoint_id
        if self._run is not None:
            # Also tasks that have acknowledged: they hold state, and the output that a barrier overtook.
            told = [attempt for attempt in pending.participants if attempt in self._run.unfinished]
            self._effects += [messages.CheckpointAborted(attempt, checkpoint_id) for attempt in told]
        self._litter[checkpoint_id] = pending.location
        if len(self._litter) > _MAX_LITTER:
            del self._litter[next(iter(self._litter))]
        if checkpoint_id not in self.written:  # else the answer of WriteManifest discards it
            self._effects.append(events.DiscardCheckpoint(checkpoint_id, pending.location))

    def _count(self, checkpoint_id: int, failure: CheckpointFailure) -> None:
        """Note a failure, and fail the job if there are too many.  One checkpoint counts once."""
        tolerable = self.settings.tolerable_failures
        # The job has kept its state since an older checkpoint failed.
        if tolerable == -1 or checkpoint_id < self._last_completed or not is_counted(failure.reason):
            return
        self._counted.add(checkpoint_id)
        if len(self._counted) <= tolerable:
            return
        # From here on the next run counts anew.
        self._counted.clear()
        if self._run is not None:
            self._stop_triggering(self._run)
        where = "" if failure.subtask is None else f" in {self.topology.describe(failure.subtask)}"
        self._failure = events.FailJob(
            f"more than {tolerable} checkpoints failed one after the other "
            f"(execution.checkpointing.tolerable-failed-checkpoints); the last one, checkpoint {checkpoint_id}, "
            f"failed{where}: {failure.message}"
        )
