"""The effects of a ``CheckpointCoordinator``, and the acknowledgements that it holds back (``ReaderAcknowledgements``):
a task's part of a checkpoint counts when the client has read what the task sent before its barrier.

Side:       pure.
Units:      as in ``checkpoint_coordinator``.
Source:     Flink ``CheckpointCoordinator``, the calls out of it.  Flink keeps the records in the state of
            ``CollectSinkFunction`` instead.
Why:        a task acknowledges a checkpoint when the barrier is in its output.  What lies before it there is in no
            state: for a task's consumers it is in theirs, because they acknowledge the checkpoint, too; but the client
            that reads an external edge is no task.  If the checkpoint were complete before the client had read that
            far, a failure at that moment would lose the records.
Invariants: an acknowledgement that was let go is not held again; of each attempt at most ``MAX_HELD`` are held, the
            newest.
Rules:      reports are cumulative: who has read up to a barrier has read up to all earlier ones.  A client that pauses
            does no harm: a checkpoint that waits for it until its timeout is not counted as a failure.
"""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointFailure, SavepointRequest
from flowlet.graph.execution_graph import Execution
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import Subtask
from flowlet.messages.job_messages import JobGraphMessage
from flowlet.storage.manifest import CheckpointManifest

ReaderLag = tuple[frozenset[tuple[int, bytes]], frozenset[bytes]]
"""Attempts that wait for the client: those that have acknowledged a checkpoint, with its id, while the client has not
read so far; and those that cannot go on because the client does not read.
"""


class WriteManifest(msgspec.Struct, frozen=True):
    """Write the manifest, of a savepoint into its ``location``; the answer is ``manifest_written``, or
    ``manifest_failed``.
    """

    manifest: CheckpointManifest
    location: str = ""


class KeepCheckpoint(msgspec.Struct, frozen=True):
    """The checkpoint is complete: from now on the job restarts from it."""

    manifest: CheckpointManifest


class DiscardCheckpoint(msgspec.Struct, frozen=True):
    """Remove all files of a checkpoint, or of a savepoint in its ``location``, that is not
    complete; may be repeated.
    """

    checkpoint_id: int
    location: str = ""


class CheckpointFailed(msgspec.Struct, frozen=True):
    """A checkpoint has failed; to be logged."""

    checkpoint_id: int
    failure: CheckpointFailure
    held_up_by: tuple[Subtask, ...]


class SavepointCompleted(msgspec.Struct, frozen=True):
    """The savepoint is complete; it belongs to the user."""

    request: SavepointRequest
    checkpoint_id: int


class SavepointFailed(msgspec.Struct, frozen=True):
    """The savepoint has failed, or could not begin; ``message`` says why."""

    request: SavepointRequest
    message: str


class FailJob(msgspec.Struct, frozen=True):
    """Too many checkpoints have failed."""

    message: str


Effect = (
    messages.CheckpointOrder
    | WriteManifest
    | KeepCheckpoint
    | DiscardCheckpoint
    | CheckpointFailed
    | SavepointCompleted
    | SavepointFailed
    | FailJob
)


MAX_HELD: Final = 16  # more than checkpoints can be under way; the older ones have failed


class ReaderAcknowledgements:
    """The acknowledgements of one run's tasks.

    Threading: the JobManager's loop.

    Args:
        edges: the ids of the external edges, by the attempt that feeds them.
        only_external: the attempts that feed no other edges: if they wait for room, they wait for the client.
    """

    def __init__(self, edges: Mapping[bytes, Collection[str]], only_external: Collection[bytes] = ()) -> None:
        self._only_external = only_external
        # By attempt, then edge: the newest barrier.
        self._read = {attempt: dict.fromkeys(edge_ids, -1) for attempt, edge_ids in edges.items()}
        # By attempt, then checkpoint; with the TaskManager.
        self._held: dict[bytes, dict[int, tuple[str, messages.CheckpointAcknowledged]]] = {}

    def __repr__(self) -> str:
        num_channels, num_held = (sum(map(len, each.values())) for each in (self._read, self._held))
        return f"<ReaderAcknowledgements of {num_channels} channels, {num_held} held>"

    def reported(self, tm_id: str, message: messages.CheckpointReport) -> bool:
        """Take a task's acknowledgement or refusal; returns whether it counts now; otherwise it is held."""
        if not isinstance(message, messages.CheckpointAcknowledged) or self._has_read(
            message.attempt, message.checkpoint_id
        ):
            return True
        held = self._held.setdefault(message.attempt, {})
        held[message.checkpoint_id] = (tm_id, message)
        # The oldest has failed long since: a client that never reads must not fill the memory.
        if len(held) > MAX_HELD:
            del held[min(held)]
        return False

    def barrier_read(
        self, edge_id: str, attempt: bytes, checkpoint_id: int
    ) -> list[tuple[str, messages.CheckpointAcknowledged]]:
        """Note that the client has all data that an attempt sent before a barrier; returns the TaskManagers and
        acknowledgements that count now, oldest first.

        A report about an attempt of another run, or an edge that the attempt does not feed, does nothing.
        """
        read = self._read.get(attempt, {})
        # Of a former run, or of no edge of this attempt: it must not let another one's acknowledgement go.
        if edge_id not in read:
            return []
        # Reports may overtake each other: an older one takes nothing back.
        read[edge_id] = max(read[edge_id], checkpoint_id)
        held = self._held.get(attempt, {})
        return [held.pop(each) for each in sorted(held) if self._has_read(attempt, each)]

    def lag(self, metrics: Mapping[bytes, messages.TaskMetrics]) -> ReaderLag:
        """Find the attempts that wait for the client now; ``metrics``: the newest of the attempts."""
        held = frozenset(
            (checkpoint_id, attempt) for attempt, of_attempt in self._held.items() for checkpoint_id in of_attempt
        )
        # Only attempts that feed no task: another one may wait for that.
        blocked = frozenset(each for each in self._only_external if each in metrics and metrics[each].is_back_pressured)
        return held, blocked

    def _has_read(self, attempt: bytes, checkpoint_id: int) -> bool:
        # On all external edges of the attempt: each has a reader of its own.
        return all(newest >= checkpoint_id for newest in self._read.get(attempt, {}).values())


def reader_acknowledgements(job: JobGraphMessage, executions: Mapping[bytes, Execution]) -> ReaderAcknowledgements:
    """Make the acknowledgements of the run that has these attempts."""
    external = [edge for edge in job.edges if edge.target is None]
    only_external = {edge.source for edge in external} - {edge.source for edge in job.edges if edge.target is not None}
    return ReaderAcknowledgements(
        {
            attempt: [edge.id for edge in external if edge.source == each.vertex_id]
            for attempt, each in executions.items()
        },
        [attempt for attempt, each in executions.items() if each.vertex_id in only_external],
    )
