"""``JobCheckpoints``: the checkpoints of one job: feeds events to its coordinator and carries out the effects.

Side:       loop.
Invariants: the storage is used on other threads only; one thread at a time discards, and at most one per checkpoint writes its manifest.  A
            checkpoint that may be restored is never discarded.  ``fail`` is called as the last effect of an event.
Source:     Flink ``CheckpointCoordinator``, ``CheckpointsCleaner``.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, assert_never

from flowlet.errors import FlowletError
from flowlet.graph.execution_state import ExecutionState
from flowlet.jm.checkpoints.checkpoint_coordinator import (
    AttemptChanged,
    CheckpointCoordinator,
    CheckpointFailed,
    DiscardCheckpoint,
    Effect,
    Event,
    FailJob,
    JobEnded,
    KeepCheckpoint,
    ManifestFailed,
    ManifestWritten,
    RunEnded,
    RunStarted,
    SnapshotSources,
    SourcesFailed,
    SourcesSnapshotted,
    TimePassed,
    WriteManifest,
)
from flowlet.jm.checkpoints.checkpoint_failures import is_counted
from flowlet.jm.checkpoints.checkpoint_history import CheckpointHistory, Document
from flowlet.jm.checkpoints.checkpoint_topology import CheckpointTopology, Subtask
from flowlet.jm.checkpoints.completed_checkpoints import CompletedCheckpoints
from flowlet.rpc.control_messages import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointOrder,
    CheckpointReport,
    JobGraphMessage,
    RestoredState,
    TriggerCheckpoint,
)
from flowlet.rpc.front_door import Timers
from flowlet.rpc.http import WallClock
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.storage.manifest import CheckpointManifest, SourceEntry
from netstack.ids import subtask_of
from netstack.log_lines import LogLines

log = LogLines(__name__)


class CheckpointsFailedError(FlowletError):
    """More checkpoints failed one after the other than the job tolerates."""


class CheckpointGateway(Protocol):
    """Sends orders to TaskManagers."""

    def send_checkpoint_order(self, tm_id: str, order: CheckpointOrder) -> None:
        """Send an order about a checkpoint; to a TaskManager that is not registered any more nothing is sent."""


class ManifestStorage(Protocol):
    """The part of ``CheckpointStorage`` that is needed here; blocking."""

    def write_manifest(self, manifest: CheckpointManifest) -> None:
        """Complete a checkpoint."""

    def discard(self, checkpoint_id: int) -> None:
        """Remove a checkpoint; none: does nothing."""


class CallInBackground(Protocol):
    """Runs a function on another thread and calls back on this one, as ``call_in_background`` does."""

    def __call__(
        self, function: Callable[[], None], on_result: Callable[[None], None], on_error: Callable[[Exception], None], name: str
    ) -> object:
        """Start the call and return at once."""


class JobCheckpoints:
    """The checkpoints of one job; does nothing for a job without ``CheckpointSettings``.

    Threading: the JobManager's loop.
    Life cycle: for each run of the tasks ``add_source``, ``tasks_deployed``, then ``task_state_changed``, then ``stop``; ``close`` when the
    job has ended: it removes all checkpoints.

    Args:
        clock: milliseconds since the epoch; read once, then ``timers`` count on, because somebody may put the clock back.
        fail: fails the run of the tasks, with a ``CheckpointsFailedError``; it may call ``stop``.
        call_in_background: for the storage.
        key: of the MAC of manifests.
        timers: the loop; None: the running one.
        open_storage: called in the background with the directory, the job id and ``key``, for each use.
        on_completed: called when ``last_completed_id`` has changed.
    """

    def __init__(
        self,
        job: JobGraphMessage,
        gateway: CheckpointGateway,
        *,
        clock: WallClock,
        fail: Callable[[Exception], None],
        call_in_background: CallInBackground,
        key: bytes = b"",
        timers: Timers | None = None,
        open_storage: Callable[[str, str, bytes], ManifestStorage] = CheckpointStorage,
        on_completed: Callable[[], object] = lambda: None,
    ) -> None:
        self._settings = job.settings.checkpoints
        self._gateway = gateway
        self._clock = clock
        self._fail = fail
        self._call_in_background = call_in_background
        self._timers = timers
        self._began: tuple[float, int] | None = None  # the same moment by ``timers`` and by ``clock``
        job_id = job.job_id  # the closure below must not keep the job's blobs
        directory = "" if self._settings is None else self._settings.directory
        self._open_storage: Callable[[], ManifestStorage] = lambda: open_storage(directory, job_id, key)
        self._on_completed = on_completed
        self._topology = CheckpointTopology(job)
        self._coordinator = None if self._settings is None else CheckpointCoordinator(self._topology, self._settings)
        self._completed = CompletedCheckpoints(1 if self._settings is None else self._settings.num_retained)
        self._sources: dict[str, Callable[[], bytes]] = {}  # by vertex id
        self._locations: dict[bytes, str] = {}  # of this run
        self._timer: asyncio.TimerHandle | None = None
        self._to_discard: dict[int, None] = {}  # in order
        self._is_discarding = False

    def __repr__(self) -> str:
        return f"<JobCheckpoints of {self._topology.job_id}, {self._coordinator or 'none'}>"

    def add_source(self, vertex_id: str, snapshot: Callable[[], bytes]) -> None:
        """Ask ``snapshot`` for the state of a source's split enumerator at every trigger, before the trigger is sent; before each run."""
        self._sources[vertex_id] = snapshot

    def tasks_deployed(self, locations: Mapping[bytes, str]) -> None:
        """A run begins: the TaskManager of every attempt.  The first checkpoint is triggered once all of them run."""
        self._locations = dict(locations)
        newest = self._completed.newest
        self._handle(RunStarted({each: Subtask(*subtask_of(each)) for each in locations}, None if newest is None else newest.checkpoint_id))

    def task_state_changed(self, attempt: bytes, state: ExecutionState) -> None:
        """An attempt of this run is in a new state."""
        self._handle(AttemptChanged(attempt, state))

    def report(self, tm_id: str, message: CheckpointReport) -> bool:
        """A task acknowledges or declines; False if no such checkpoint is pending, or the task does not run there."""
        coordinator = self._coordinator
        if coordinator is None or self._locations.get(message.attempt) != tm_id:
            return False
        is_pending = message.checkpoint_id in coordinator.pending_ids
        self._handle(message)
        return is_pending

    def stop(self) -> None:
        """The run ends: abort what is pending; idempotent."""
        self._locations = {}
        self._sources = {}
        self._handle(RunEnded())

    def close(self) -> None:
        """The job has ended: abort what is pending, and remove all checkpoints; idempotent."""
        self.stop()
        retained = self._completed.clear()
        self._handle(JobEnded())
        for checkpoint_id in retained:
            self._discard(checkpoint_id)

    def restored_state(self, vertex_id: str, subtask: int) -> RestoredState | None:
        """What a subtask of the next run begins with: its part of the newest complete checkpoint; None: there is none."""
        return self._completed.restored_state(vertex_id, subtask)

    def source_state(self, vertex_id: str) -> bytes | None:
        """The state of a source's split enumerator in the newest complete checkpoint; None: there is none."""
        return self._completed.source_state(vertex_id)

    @property
    def last_completed_id(self) -> int:
        """The newest complete checkpoint; -1: there is none."""
        newest = self._completed.newest
        return -1 if newest is None else newest.checkpoint_id

    def documents(self) -> Document:
        """The document of ``GET /jobs/:jobid/checkpoints``."""
        return CheckpointHistory(self._topology).document([]) if self._coordinator is None else self._coordinator.document()

    def _handle(self, event: Event) -> None:
        if self._coordinator is None:
            return
        timers = self._timers = self._timers or asyncio.get_running_loop()
        if self._began is None:
            self._began = timers.time(), self._clock()
        began_s, began_ms = self._began
        for effect in self._coordinator.handle(event, began_ms + round((timers.time() - began_s) * 1000)):
            self._carry_out(effect)
        if self._timer is not None:
            self._timer.cancel()
        due_ms = self._coordinator.next_due_ms
        self._timer = None if due_ms is None else timers.call_at(began_s + (due_ms - began_ms) / 1000, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        self._handle(TimePassed())

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SnapshotSources(checkpoint_id):
                self._handle(self._snapshot_sources(checkpoint_id))
            case TriggerCheckpoint() | CheckpointCompleted() | CheckpointAborted():
                if effect.attempt in self._locations:  # an earlier effect may have ended the run
                    self._gateway.send_checkpoint_order(self._locations[effect.attempt], effect)
            case WriteManifest(manifest):
                self._write(manifest)
            case KeepCheckpoint(manifest):
                log.info("checkpoint completed", job=manifest.job_id, checkpoint=manifest.checkpoint_id)
                for checkpoint_id in self._completed.add(manifest):
                    self._discard(checkpoint_id)
                self._on_completed()
            case DiscardCheckpoint(checkpoint_id):
                self._discard(checkpoint_id)
            case CheckpointFailed():
                self._log_failure(effect)
            case FailJob(message):
                self._fail(CheckpointsFailedError(message))
            case _:
                assert_never(effect)

    def _snapshot_sources(self, checkpoint_id: int) -> SourcesSnapshotted | SourcesFailed:
        entries = []
        for vertex_id, snapshot in self._sources.items():
            try:
                entries.append(SourceEntry(vertex_id, snapshot()))
            except Exception as error:  # noqa: BLE001 - an enumerator may be of any connector; the loop must go on
                return SourcesFailed(checkpoint_id, f"source {self._topology.names[vertex_id]}: {error!r}")
        return SourcesSnapshotted(checkpoint_id, entries)

    def _write(self, manifest: CheckpointManifest) -> None:
        self._call_in_background(
            lambda: self._open_storage().write_manifest(manifest),
            lambda _: self._handle(ManifestWritten(manifest)),
            lambda error: self._handle(ManifestFailed(manifest.checkpoint_id, str(error) or repr(error))),
            f"manifest of checkpoint {manifest.checkpoint_id}",
        )

    def _discard(self, checkpoint_id: int) -> None:
        assert checkpoint_id not in self._completed.ids, "the job restarts from it"
        self._to_discard[checkpoint_id] = None
        self._discard_next()

    def _discard_next(self) -> None:
        if self._is_discarding or not self._to_discard:
            return
        checkpoint_id = next(iter(self._to_discard))
        del self._to_discard[checkpoint_id]
        self._is_discarding = True
        self._call_in_background(
            lambda: self._open_storage().discard(checkpoint_id),
            lambda _: self._discarded(),
            lambda error: self._not_discarded(checkpoint_id, error),
            f"discard of checkpoint {checkpoint_id}",
        )

    def _discarded(self) -> None:
        self._is_discarding = False
        self._discard_next()

    def _not_discarded(self, checkpoint_id: int, error: Exception) -> None:
        log.warning("cannot remove a checkpoint, its files stay", job=self._topology.job_id, checkpoint=checkpoint_id, error=str(error))
        self._discarded()

    def _log_failure(self, effect: CheckpointFailed) -> None:
        failure = effect.failure
        task = {} if failure.subtask is None else {"task": self._topology.describe(failure.subtask)}
        held_up_by = {"held_up_by": [self._topology.describe(each) for each in effect.held_up_by[:5]]} if effect.held_up_by else {}
        values = {"checkpoint": effect.checkpoint_id, "reason": failure.reason, "why": failure.message[:1000], **task, **held_up_by}
        (log.warning if is_counted(failure.reason) else log.info)("checkpoint failed", job=self._topology.job_id, **values)
