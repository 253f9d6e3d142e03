"""``JobCheckpoints``: the checkpoints of one job: tells its coordinator what happens and carries out the effects.

Reads the checkpoint or savepoint of another job that a job starts from.

Side:       loop.
Invariants: the storage is used on other threads only; one thread at a time discards, and at most one per checkpoint
            writes its manifest.  A checkpoint that may be restored is never discarded.  ``fail`` is called as the last
            effect of an event.
Source:     Flink ``CheckpointCoordinator``, ``CheckpointsCleaner``.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, InitVar
from functools import partial
from typing import Final, assert_never

from flowlet.checkpoint.jobmanager import coordinator_events as events
from flowlet.checkpoint.jobmanager.checkpoint_coordinator import CheckpointCoordinator
from flowlet.checkpoint.jobmanager.checkpoint_history import CheckpointHistory, CompletedCheckpoints, Document
from flowlet.checkpoint.jobmanager.former_checkpoint import FormerCheckpoint
from flowlet.checkpoint.jobmanager.job_store import RecoveredJob
from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology, SavepointRequest, is_counted
from flowlet.common.job_status import JobStatus
from flowlet.errors import FlowletError
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState, Subtask
from flowlet.messages.job_messages import RestoredState
from flowlet.rpc.requests import WallClock
from flowlet.storage.checkpoint_storage import CheckpointStorage, SavepointStorage, open_checkpoint
from flowlet.storage.manifest import CheckpointManifest, SourceEntry
from netstack.ids import subtask_of
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.background_call import CallInBackground, call_in_background
from netstack.loop.eventloop import LoopClock


def read_former_checkpoint(
    path: str, topology: CheckpointTopology, key: bytes, *, ignores_unclaimed_state: bool = False
) -> FormerCheckpoint:
    """Read the checkpoint at a path, if the job of ``topology`` can start from it; ``key``: of the MAC of manifests.

    Raises:
        StorageError: the path names none; or a file of it is missing, changed, or of a cluster with another secret.
        StateRestoreError: the job's program does not fit.
    """
    place, _, manifest = open_checkpoint(path, key)
    return FormerCheckpoint(place, manifest, topology, ignores_unclaimed_state=ignores_unclaimed_state)


log = LogLines(__name__)


_NEW_THREAD: Final[CallInBackground] = call_in_background
_LEFT: Final = "what is left before checkpoint "


class CheckpointsFailedError(FlowletError):
    """More checkpoints failed one after the other than the job tolerates."""


@dataclass(eq=False, repr=False)
class JobCheckpoints:
    """The checkpoints of one job; does nothing for a job without ``CheckpointSettings``.

    Threading: the JobManager's loop.
    Life cycle: ``recover``, if ``starts_from`` is not empty; for each run of the tasks ``add_source``,
        ``tasks_deployed``, then ``task_state_changed``, then ``stop``; ``close`` when the job has ended: it removes all
        checkpoints that are not retained.

    Args:
        recovered: the job, with what an earlier JobManager has completed.
        send: sends a message to a TaskManager.
        clock: milliseconds since the epoch; read once, then ``timers`` count on, because somebody may put the clock
            back.
        fail: fails the run of the tasks, with a ``CheckpointsFailedError``; it may call ``stop``.
        call_in_background: for the storage.
        key: of the MAC of manifests.
        timers: the loop; None: the running one.
        open_storage: called in the background with the directory, the job id and ``key``, for each use.
        on_completed: called when ``last_completed_id`` has changed.
        may_trigger: whether no later JobManager will use this id again.
        reader_lag: what waits for the client now.
    """

    recovered: InitVar[RecoveredJob]  # it must not keep the job's blobs
    send: Callable[[str, messages.CheckpointOrder], None]
    _: KW_ONLY
    clock: WallClock
    fail: Callable[[Exception], None]
    call_in_background: CallInBackground = _NEW_THREAD
    key: bytes = b""
    timers: LoopClock | None = None
    open_storage: InitVar[Callable[[str, str, bytes], CheckpointStorage]] = CheckpointStorage
    on_completed: Callable[[], object] = lambda: None
    may_trigger: Callable[[int], bool] = lambda _: True
    reader_lag: Callable[[], events.ReaderLag] = lambda: (frozenset(), frozenset())

    def __post_init__(
        self, recovered: RecoveredJob, open_storage: Callable[[str, str, bytes], CheckpointStorage]
    ) -> None:
        job = recovered.job
        self.job_id = job.job_id
        self.settings = job.settings.checkpoints
        self._began: tuple[float, int] | None = None  # one moment by ``timers`` and by ``clock``
        directory = "" if self.settings is None else self.settings.directory
        self._open_storage = partial(open_storage, directory, self.job_id, self.key)
        # The callbacks that hear how each savepoint ended.
        self._savepoints: dict[SavepointRequest, Callable[[str | None], object]] = {}
        self.starts_from = job.settings.recovery_path  # another job's checkpoint; empty: none
        self._topology = CheckpointTopology(job)
        # Tests may replace it before ``recover``.
        ignores = job.settings.ignores_unclaimed_state
        self.read_former: Callable[[], FormerCheckpoint] = lambda: read_former_checkpoint(
            self.starts_from, self._topology, self.key, ignores_unclaimed_state=ignores
        )
        self._coordinator: CheckpointCoordinator | None = None
        if self.settings is not None:
            self._coordinator = CheckpointCoordinator(
                self._topology, self.settings, recovered.next_checkpoint_id, self._snapshot_sources
            )
        self._completed = CompletedCheckpoints(self.settings, self._topology)
        self._has_shared_files = job.settings.state.is_incremental
        self._to_discard: dict[str, Callable[[], None]] = {}  # by what it is, in order; run in the background
        self._is_discarding = False
        for manifest in recovered.checkpoints:
            for checkpoint_id in self._completed.add(manifest):  # with the next one that is discarded
                self._to_discard[f"checkpoint {checkpoint_id}"] = partial(self._remove, checkpoint_id)
        self._sources: dict[str, Callable[[], bytes]] = {}  # by vertex id
        self._locations: dict[bytes, str] = {}  # of this run
        self._timer: asyncio.TimerHandle | None = None
        # A run could not begin with them (``fall_back``); their files stay until a newer one is complete.
        self.unrestorable = list(recovered.unrestorable)

    def __repr__(self) -> str:
        return f"<JobCheckpoints of {self.job_id}, {self._coordinator or 'none'}>"

    def recover(self, on_recovered: Callable[[], None], on_error: Callable[[Exception], None]) -> None:
        """Read, in the background, the checkpoint of another job that this one starts from; then call ``on_recovered``
        or ``on_error``.
        """

        def recovered(former: FormerCheckpoint) -> None:
            self._completed.former = former
            if self._coordinator is not None:  # as in Flink, the ids go on
                self._coordinator.next_id = max(self._coordinator.next_id, former.checkpoint_id + 1)
                # So that the job store has reserved it when the run begins.
                self.may_trigger(self._coordinator.next_id)
            log.info("job starts from a checkpoint", job=self.job_id, checkpoint=str(former))
            on_recovered()

        what = f"checkpoint that job {self.job_id} starts from"
        self.call_in_background(self.read_former, recovered, on_error, what)

    def add_source(self, vertex_id: str, snapshot: Callable[[], bytes]) -> None:
        """Ask ``snapshot`` for the state of a source's split enumerator at every trigger, before the trigger is sent;
        before each run.
        """
        self._sources[vertex_id] = snapshot

    def tasks_deployed(
        self, locations: Mapping[bytes, str], states: Mapping[bytes, ExecutionState] | None = None
    ) -> None:
        """Begin a run with the TaskManager of every attempt.  The first checkpoint is triggered once all of them run.

        ``states``: of the attempts, if some of them were not deployed now, but go on; None: all are new.
        """
        self._locations = dict(locations)
        attempts = {each: Subtask(*subtask_of(each)) for each in locations}
        restored = self._completed.restored
        restored_id = None if restored is None else restored.checkpoint_id
        # Behind the locations: effects of this event are sent by them.
        self._tell(lambda coordinator: coordinator.run_started(attempts, restored_id, states or {}))
        newest = self._completed.newest
        if newest is not None:
            self._discard_leftovers(newest.checkpoint_id)

    def task_state_changed(self, attempt: bytes, state: ExecutionState) -> None:
        """Note that an attempt of this run is in a new state."""
        self._tell(lambda coordinator: coordinator.attempt_changed(attempt, state))

    def report(self, tm_id: str, message: messages.CheckpointReport) -> bool:
        """Take a report of a task that acknowledges, declines or waits; False if no such checkpoint is pending, or the
        task does not run there.
        """
        coordinator = self._coordinator
        # Of a former run, or from a TaskManager on which that attempt does not run.
        if coordinator is None or self._locations.get(message.attempt) != tm_id:
            return False
        is_pending = (
            isinstance(message, messages.FinalCheckpointAwaited) or message.checkpoint_id in coordinator.pending
        )
        if isinstance(message, messages.CheckpointAcknowledged):
            # First: what follows may remove the files that no checkpoint names.
            self._completed.name_shared(message.checkpoint_id, message.part.shared)
        self._tell(lambda coordinator: coordinator.reported(message))
        return is_pending

    def request(self) -> int:
        """Ask for a checkpoint soon; returns the lowest id of which a complete checkpoint holds everything up to now.

        A job without checkpoints has none that is complete; its number is 0.
        """
        # Asked before the request, which may trigger at once: that one holds everything up to now.
        next_id = 0 if self._coordinator is None else self._coordinator.next_id
        self._tell(CheckpointCoordinator.checkpoint_wanted)
        return next_id

    def announce_stop(self, *, is_near: bool) -> None:
        """Note that a savepoint that stops the job will be requested once its directory is ready (``is_near``), or that
        this failed.
        """
        self._tell(lambda coordinator: coordinator.stop_announced(is_near=is_near))

    def request_savepoint(self, request: SavepointRequest, on_end: Callable[[str | None], object]) -> None:
        """Take a savepoint into its directory, which is ready; ``on_end`` gets None once it is complete, or the reason
        why it is not.
        """
        self._savepoints[request] = on_end
        self._tell(lambda coordinator: coordinator.savepoint_requested(request))

    def stop(self) -> None:
        """End the run: abort pending checkpoints; idempotent."""
        # First: effects of the end must not reach attempts that are being cancelled.
        self._locations = {}
        self._sources = {}
        self._tell(CheckpointCoordinator.run_ended)

    def close(self, status: JobStatus = JobStatus.FINISHED) -> None:
        """End the job: abort pending checkpoints, and remove all checkpoints, unless they are retained in this status;
        idempotent.
        """
        self.stop()
        # Before ``clear``, which forgets the newest one.
        path = self.retained_path(status)
        dropped = [*self._completed.clear(), *self.unrestorable] if path is None else []  # people may put a file back
        self.unrestorable = []
        self._tell(CheckpointCoordinator.job_ended)
        for checkpoint_id in dropped:
            self._discard(checkpoint_id)
        # Last in the queue: the checkpoints that name these files go before them.
        if self._has_shared_files and path is None:
            self._put_to_discard("all shared files", lambda: self._open_storage().discard_all_shared())
        if path is not None:
            log.info("checkpoint retained", job=self.job_id, status=status.name, path=path)

    def retained_path(self, status: JobStatus) -> str | None:
        """Return the path of the newest complete checkpoint if it stays when the job ends in this status, or is about
        to; None: none stays.
        """
        newest, settings = self._completed.newest, self.settings
        if newest is None or settings is None:
            return None
        match status:
            case JobStatus.CANCELLING | JobStatus.CANCELED:
                is_retained = settings.is_retained_on_cancellation
            case JobStatus.FAILING | JobStatus.FAILED:
                is_retained = settings.is_retained_on_failure
            case _:
                is_retained = False
        return self._completed.path_of(newest.checkpoint_id) if is_retained else None

    def restored_state(self, vertex_id: str, subtask: int) -> RestoredState | None:
        """Return the state that a subtask of the next run begins with: its part of the newest complete checkpoint;
        None: there is none.
        """
        restored = self._completed.restored
        return None if restored is None else restored.restored_state(vertex_id, subtask)

    def fall_back(self, restored_id: int) -> bool:
        """Let the next run begin with an older checkpoint than this one, which could not be restored; False: the job
        does not allow it, or has no older one.
        """
        newest = self._completed.newest
        # Results behind the older checkpoint come again: only a job that allows it goes back.
        if self.settings is None or not self.settings.restore_fallback or newest is None:
            return False
        # Once, however many tasks of the run say it: the second one would drop a good checkpoint.
        if newest.checkpoint_id == restored_id and len(self._completed.ids) > 1:
            self.unrestorable.append(self._completed.drop_newest().checkpoint_id)
            log.warning(
                "a checkpoint cannot be restored, the job goes back to an older one",
                job=self.job_id,
                checkpoint=restored_id,
                older=self.last_completed_id,
            )
            self.on_completed()  # no later JobManager begins with it, either
        return self.last_completed_id < restored_id  # another task of that run may have said it before

    def source_state(self, vertex_id: str) -> bytes | None:
        """Return the state of a source's split enumerator in the newest complete checkpoint; None: there is none."""
        restored = self._completed.restored
        return None if restored is None else restored.sources.get(vertex_id)

    @property
    def last_completed_id(self) -> int:
        """The id of the newest complete checkpoint; -1: there is none."""
        newest = self._completed.newest
        return -1 if newest is None else newest.checkpoint_id

    def documents(self) -> Document:
        """Make the document of ``GET /jobs/:jobid/checkpoints``."""
        if self._coordinator is None:
            return CheckpointHistory(self._topology).document([], self._completed)
        return self._coordinator.document(self._completed)

    def _tell(self, happened: Callable[[CheckpointCoordinator], None]) -> None:
        """Tell the coordinator what has happened, and carry out the effects."""
        if self._coordinator is None:
            return
        timers = self.timers = self.timers or asyncio.get_running_loop()
        # The wall clock is read once: a clock that is set later must not move the timeouts.
        if self._began is None:
            self._began = timers.time(), self.clock()
        began_s, began_ms = self._began
        now_ms = began_ms + round((timers.time() - began_s) * 1000)
        for effect in self._coordinator.handle(happened, now_ms):
            self._carry_out(effect)
        # Behind the effects: one of them may have changed what is due next.
        if self._timer is not None:
            self._timer.cancel()
        due_ms = self._coordinator.next_due_ms
        self._timer = (
            None if due_ms is None else timers.call_at(began_s + (due_ms - began_ms) / 1000, self._time_passed)
        )

    def _time_passed(self) -> None:
        self._timer = None
        self._tell(lambda coordinator: coordinator.time_passed(*self.reader_lag()))

    def _carry_out(self, effect: events.Effect) -> None:
        match effect:
            case messages.TriggerCheckpoint() | messages.CheckpointCompleted() | messages.CheckpointAborted():
                if effect.attempt in self._locations:  # an earlier effect may have ended the run
                    self.send(self._locations[effect.attempt], effect)
            case events.WriteManifest(manifest, location):
                self._write(manifest, location)
            case events.KeepCheckpoint(manifest):
                log.info("checkpoint completed", job=manifest.job_id, checkpoint=manifest.checkpoint_id)
                dropped, self.unrestorable = [*self._completed.add(manifest), *self.unrestorable], []
                for checkpoint_id in dropped:
                    self._discard(checkpoint_id)
                self._discard_leftovers(manifest.checkpoint_id)
                self._discard_unused()
                self.on_completed()
            case events.DiscardCheckpoint(checkpoint_id, location):
                if location:
                    self._discard_savepoint(location)
                else:
                    self._discard(checkpoint_id)
            case events.SavepointCompleted(request, checkpoint_id):
                log.info("savepoint completed", job=self.job_id, checkpoint=checkpoint_id, path=request.location)
                # Last of its effects: the callback may cancel the job, which ends the run.
                self._savepoints.pop(request)(None)
            case events.SavepointFailed(request, message):
                self._discard_savepoint(request.location)
                self._savepoints.pop(request)(message)
            case events.CheckpointFailed():
                self._log_failure(effect)
            case events.FailJob(message):
                self.fail(CheckpointsFailedError(message))
            case _:
                assert_never(effect)

    def _snapshot_sources(self, checkpoint_id: int) -> list[SourceEntry]:
        """Return the states of all sources.  Raises FlowletError: one of them cannot be kept, or the id is not
        reserved.
        """
        # A later JobManager could use an id again that is not reserved on the disk.
        if not self.may_trigger(checkpoint_id):
            raise FlowletError("the job store has not reserved its id yet")
        entries = []
        for vertex_id, snapshot in self._sources.items():
            try:
                entries.append(SourceEntry(vertex_id, snapshot()))
            except Exception as error:  # an enumerator may be of any connector; the loop must go on
                raise FlowletError(f"source {self._topology.names[vertex_id]}: {error!r}") from error
        return entries

    def _write(self, manifest: CheckpointManifest, location: str) -> None:
        checkpoint_id = manifest.checkpoint_id

        def write() -> None:
            storage = SavepointStorage(location, self.key) if location else self._open_storage()
            storage.write_manifest(manifest)

        # Not on the loop: a file server may take its time, and heartbeats would wait.
        self.call_in_background(
            write,
            lambda _: self._tell(lambda coordinator: coordinator.manifest_written(manifest)),
            lambda error: self._tell(
                lambda coordinator: coordinator.manifest_failed(checkpoint_id, str(error) or repr(error))
            ),
            f"manifest of checkpoint {checkpoint_id}",
        )

    def _discard(self, checkpoint_id: int) -> None:
        assert checkpoint_id not in self._completed.ids, "the job restarts from it"
        self._put_to_discard(f"checkpoint {checkpoint_id}", partial(self._remove, checkpoint_id))

    def _remove(self, checkpoint_id: int) -> None:
        self._open_storage().discard(checkpoint_id)

    def _discard_savepoint(self, location: str) -> None:
        self._put_to_discard(f"checkpoint {location}", lambda: SavepointStorage(location, self.key).discard())

    def _discard_unused(self) -> None:
        """Remove the shared files that no kept checkpoint names, after the checkpoints that are kept no longer."""
        unused = self._completed.take_unused()
        if unused:
            what = f"{len(unused)} shared files, {unused[0]} among them"
            self._put_to_discard(what, lambda: self._open_storage().discard_shared(unused))

    def _put_to_discard(self, what: str, remove: Callable[[], None]) -> None:
        # By name: what is asked for twice is removed once.
        self._to_discard[what] = remove
        self._discard_next()

    def _discard_leftovers(self, before: int) -> None:
        """Remove the leftovers of checkpoints that ended without a manifest: late writes, and files that could not be
        removed at their time.
        """
        if self._coordinator is not None and self.settings is not None and self.settings.is_periodic:
            # A store that is slow would get one search of its directory for each checkpoint.
            for each in [each for each in self._to_discard if each.startswith(_LEFT)]:
                del self._to_discard[each]  # those with lower ids are among these
            # A checkpoint whose manifest is being written has none yet: its files would look like leftovers.
            lowest = min((before, *self._coordinator.written))
            self._put_to_discard(f"{_LEFT}{lowest}", lambda: self._open_storage().discard_incomplete(lowest))

    def _discard_next(self) -> None:
        what = next(iter(self._to_discard), None)
        # One at a time: a store that is slow must not get a thread for each of a hundred checkpoints.
        if self._is_discarding or what is None:
            return
        remove = self._to_discard.pop(what)
        self._is_discarding = True
        ended = partial(self._discarded, what)
        self.call_in_background(remove, lambda _: ended(None), ended, f"discard of {what}")

    def _discarded(self, what: str, error: Exception | None) -> None:
        if error is not None:
            job_id = self.job_id
            log.warning("cannot remove files of checkpoints, they stay", job=job_id, files=what, error=str(error))
        # Also after an error: the others must not wait for one that cannot be removed.
        self._is_discarding = False
        self._discard_next()

    def _log_failure(self, effect: events.CheckpointFailed) -> None:
        failure = effect.failure
        values: dict[str, object] = {"reason": failure.reason, "why": failure.message[:1000]}
        if failure.subtask is not None:
            values["task"] = self._topology.describe(failure.subtask)
        if effect.held_up_by:
            values["held_up_by"] = [self._topology.describe(each) for each in effect.held_up_by[:5]]
        tell = log.warning if is_counted(failure.reason) else log.info
        tell("checkpoint failed", job=self.job_id, checkpoint=effect.checkpoint_id, **values)
