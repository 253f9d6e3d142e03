"""What a ``CheckpointCoordinator`` is told, and what it wants done.

Side:   pure.
Units:  as in ``checkpoint_coordinator``.
Source: Flink ``CheckpointCoordinator``, the calls in and out of it.
"""

from collections.abc import Mapping
from dataclasses import field

from flowlet.jm.checkpoints.checkpoint_topology import Subtask
from flowlet.jm.checkpoints.pending_checkpoint import CheckpointFailure, SavepointRequest
from flowlet.messages.control_messages import CheckpointOrder, CheckpointReport
from flowlet.messages.execution_state import ExecutionState
from flowlet.storage.manifest import CheckpointManifest, SourceEntry
from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class RunStarted:
    """All tasks are deployed; ``restored`` is the id of the checkpoint that those begin with that were deployed now.

    ``states``: of attempts that were deployed before and go on, because only others start again; others may be there,
        too.
    """

    attempts: Mapping[bytes, Subtask]
    restored: int | None = None
    states: Mapping[bytes, ExecutionState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttemptChanged:
    """An attempt is in a new state."""

    attempt: bytes
    state: ExecutionState


@dataclass(frozen=True, slots=True)
class TimePassed:
    """It is ``next_due_ms`` or later.

    ``held``: attempts that have acknowledged a checkpoint, with its id, but the client has not read so far.
    ``blocked``: attempts that cannot go on because the client does not read.
    """

    held: frozenset[tuple[int, bytes]] = frozenset()
    blocked: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class CheckpointWanted:
    """A producer waits for the next checkpoint."""


@dataclass(frozen=True, slots=True)
class SourcesSnapshotted:
    """The answer to ``SnapshotSources``."""

    checkpoint_id: int
    sources: list[SourceEntry]


@dataclass(frozen=True, slots=True)
class SourcesFailed:
    """The other answer to ``SnapshotSources``."""

    checkpoint_id: int
    message: str


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    """The answer to ``WriteManifest``."""

    manifest: CheckpointManifest


@dataclass(frozen=True, slots=True)
class ManifestFailed:
    """The other answer to ``WriteManifest``."""

    checkpoint_id: int
    message: str


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """A user wants a savepoint; its directory is ready."""

    request: SavepointRequest


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The attempts of the run are being cancelled, or have ended; they get no more orders."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """No run follows."""


Event = (
    RunStarted
    | AttemptChanged
    | TimePassed
    | CheckpointWanted
    | SourcesSnapshotted
    | SourcesFailed
    | CheckpointReport
    | ManifestWritten
    | ManifestFailed
    | SavepointRequested
    | RunEnded
    | JobEnded
)


@dataclass(frozen=True, slots=True)
class SnapshotSources:
    """Ask all split enumerators for their state; the answer is an event."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Write the manifest, of a savepoint into its ``location``; the answer is an event."""

    manifest: CheckpointManifest
    location: str = ""


@dataclass(frozen=True, slots=True)
class KeepCheckpoint:
    """The checkpoint is complete: from now on the job restarts from it."""

    manifest: CheckpointManifest


@dataclass(frozen=True, slots=True)
class DiscardCheckpoint:
    """Remove all files of a checkpoint, or of a savepoint in its ``location``, that is not
    complete; may be repeated.
    """

    checkpoint_id: int
    location: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint has failed; to be logged."""

    checkpoint_id: int
    failure: CheckpointFailure
    held_up_by: tuple[Subtask, ...]


@dataclass(frozen=True, slots=True)
class SavepointCompleted:
    """The savepoint is complete; it belongs to the user."""

    request: SavepointRequest
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class SavepointFailed:
    """The savepoint has failed, or could not begin; ``message`` says why."""

    request: SavepointRequest
    message: str


@dataclass(frozen=True, slots=True)
class FailJob:
    """Too many checkpoints have failed."""

    message: str


Effect = (
    SnapshotSources
    | CheckpointOrder
    | WriteManifest
    | KeepCheckpoint
    | DiscardCheckpoint
    | CheckpointFailed
    | SavepointCompleted
    | SavepointFailed
    | FailJob
)
