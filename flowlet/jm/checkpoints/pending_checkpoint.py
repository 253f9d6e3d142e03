"""``PendingCheckpoint``: a checkpoint on its way, and ``CheckpointRecord``: how one ended.

``SavepointRequest``: what a user asked for, and the requests that wait for their turn.

Side:       pure.
Invariants: at most ``MAX_WAITING`` wait.  a pending checkpoint waits for its sources, then for its tasks, then for its
            manifest; ``missing`` only becomes smaller, and is empty while it waits for the manifest.
Source:     Flink ``CheckpointProperties.forSavepoint``, ``CheckpointRequestDecider``.  Flink ``PendingCheckpoint``,
            ``AbstractCheckpointStats``.
Units:      times in milliseconds since the epoch, sizes in bytes.
"""

from dataclasses import field
from enum import Enum
from typing import Final

from flowlet.jm.checkpoints.checkpoint_topology import CheckpointTopology, Subtask
from flowlet.messages.control_messages import CheckpointAcknowledged, CheckpointDurations
from flowlet.storage.manifest import CheckpointManifest, SourceEntry, SubtaskEntry
from netstack.late import dataclass
from netstack.wire.events import SnapshotType

MAX_WAITING: Final = 16
_STOPPING: Final = (SnapshotType.SAVEPOINT_SUSPEND, SnapshotType.SAVEPOINT_TERMINATE)


@dataclass(frozen=True, slots=True)
class SavepointRequest:
    """One savepoint.

    Args:
        location: its directory, which is new and empty.
        type: whether the job goes on, is suspended, or is drained.
    """

    location: str
    type: SnapshotType = SnapshotType.SAVEPOINT

    @property
    def stops_job(self) -> bool:
        """Whether the job ends with it."""
        return self.type in _STOPPING


class CheckpointPhase(Enum):
    """What a pending checkpoint waits for."""

    SOURCES = "the states of the sources' enumerators"
    TASKS = "the tasks"
    MANIFEST = "its manifest"


@dataclass(frozen=True, slots=True)
class SubtaskPart:
    """When and how one subtask acknowledged; ``durations`` None: it had finished before the trigger."""

    acknowledged_ms: int
    num_bytes: int = 0
    durations: CheckpointDurations | None = None


@dataclass(frozen=True, slots=True)
class CheckpointFailure:
    """Why a checkpoint failed.

    ``reason``: the name of a task's or the coordinator's reason.  ``subtask``: the one that declined it; None: the
        coordinator ended it.
    """

    reason: str
    message: str
    subtask: Subtask | None = None


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A checkpoint as people see it; ``end_ms`` None: it is on its way; ``failure`` None: it has not failed.

    ``held_up_by``: of a failed one, the subtasks that had not acknowledged although all of their producers had.
    """

    checkpoint_id: int
    trigger_ms: int
    parts: dict[Subtask, SubtaskPart]
    end_ms: int | None = None
    failure: CheckpointFailure | None = None
    held_up_by: tuple[Subtask, ...] = ()
    savepoint: SavepointRequest | None = None


@dataclass(slots=True)
class PendingCheckpoint:
    """One checkpoint on its way; its coordinator owns it.

    Args:
        participants: by attempt, the subtasks that had not finished at the trigger.
        finished: the subtasks that had.
        savepoint: what it is for; None: it is no savepoint.
    """

    checkpoint_id: int
    trigger_ms: int
    participants: dict[bytes, Subtask]
    finished: tuple[Subtask, ...]
    savepoint: SavepointRequest | None = None
    phase: CheckpointPhase = CheckpointPhase.SOURCES
    sources: list[SourceEntry] = field(default_factory=list)
    missing: set[bytes] = field(init=False)
    _entries: dict[Subtask, SubtaskEntry] = field(default_factory=dict)
    _parts: dict[Subtask, SubtaskPart] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.missing = set(self.participants)
        for each in self.finished:
            self._entries[each] = SubtaskEntry(each.vertex_id, each.subtask, is_finished=True)
            self._parts[each] = SubtaskPart(self.trigger_ms)

    def __repr__(self) -> str:
        return (
            f"<PendingCheckpoint {self.checkpoint_id} waits for {self.phase.value}, {len(self.missing)} tasks are "
            "missing>"
        )

    def acknowledge(self, message: CheckpointAcknowledged, now_ms: int) -> None:
        """Take in the part of a missing subtask."""
        self.missing.remove(message.attempt)
        subtask = self.participants[message.attempt]
        self._entries[subtask] = SubtaskEntry(
            subtask.vertex_id,
            subtask.subtask,
            message.state,
            message.is_finished,
            message.channels,
            message.shared,
            message.has_union_state,
            message.is_by_key,
            message.operators,
        )
        num_bytes = sum(each.num_bytes for each in (message.state, message.channels) if each is not None)
        self._parts[subtask] = SubtaskPart(now_ms, num_bytes, message.durations)

    def missing_subtasks(self) -> frozenset[Subtask]:
        """The subtasks that have not acknowledged."""
        return frozenset(self.participants[each] for each in self.missing)

    def manifest(self, topology: CheckpointTopology) -> CheckpointManifest:
        """What the checkpoint consists of; nothing may be missing."""
        assert not self.missing, "all have acknowledged"
        entries = [self._entries[each] for each in sorted(self._entries)]
        job_id, name, parallelisms = topology.job_id, topology.job_name, dict(topology.parallelisms)
        sources = list(self.sources)
        return CheckpointManifest(
            job_id,
            name,
            self.checkpoint_id,
            self.trigger_ms,
            parallelisms,
            entries,
            sources,
            topology.vertices,
            is_savepoint=self.savepoint is not None,
            edges=topology.edges,
        )

    @property
    def location(self) -> str:
        """The directory of a savepoint; empty: it is none."""
        return "" if self.savepoint is None else self.savepoint.location

    def record(
        self, end_ms: int | None = None, failure: CheckpointFailure | None = None, held_up_by: tuple[Subtask, ...] = ()
    ) -> CheckpointRecord:
        """The checkpoint as people see it, without its state."""
        return CheckpointRecord(
            self.checkpoint_id, self.trigger_ms, dict(self._parts), end_ms, failure, held_up_by, self.savepoint
        )
