"""``PendingCheckpoint``: a checkpoint on its way, and afterwards how it ended.

``CheckpointTopology``: which subtasks a barrier reaches by itself, and which must be told.

Why checkpoints fail, and which failures count.

``SavepointRequest``: what a user asked for, and the requests that wait for their turn.

Side:       pure.
Source:     Flink ``DefaultCheckpointPlanCalculator``.  Flink ``CheckpointFailureReason``, ``CheckpointFailureManager``.
            Flink ``CheckpointProperties.forSavepoint``, ``CheckpointRequestDecider``.  Flink ``PendingCheckpoint``,
            ``AbstractCheckpointStats``.
Rules:      a failure counts if it shows that the job cannot keep its state.  It does not count if tasks start, end or
            fail, if a newer checkpoint took its place, if a client pauses, or if a task only passes on the decision of
            another one.  Unknown reasons count.  Unlike in Flink, a source whose state cannot be kept counts, too:
            otherwise the job would run without checkpoints, and nobody would know.
Invariants: at most ``MAX_WAITING`` savepoints wait.  A pending checkpoint waits for its tasks, then for its manifest;
            ``missing`` only becomes smaller, and is empty while it waits for the manifest.
Units:      times in milliseconds since the epoch, sizes in bytes.
"""

from collections import Counter
from collections.abc import Set
from dataclasses import field
from enum import Enum, unique
from typing import Final, NamedTuple

import msgspec

from flowlet.checkpoint.task.barrier_orders import CheckpointFailureReason
from flowlet.graph.partitioner import KeyGroups, producers_of
from flowlet.messages.control_messages import CheckpointAcknowledged, CheckpointDurations
from flowlet.messages.execution_state import Subtask
from flowlet.messages.job_messages import JobGraphMessage, SubtaskEntry
from flowlet.storage.manifest import CheckpointManifest, EdgeEntry, SourceEntry, VertexEntry
from netstack.late import dataclass
from netstack.wire.events import SnapshotType


class TopologyEdge(NamedTuple):
    """One edge between two vertices, as a checkpoint names it, and without its blob."""

    entry: EdgeEntry
    edge_id: str
    is_pointwise: bool


class CheckpointTopology:
    """The vertices and edges of one job, and the order of its subtasks.  Immutable; without the job's blobs."""

    def __init__(self, job: JobGraphMessage) -> None:
        self.job_id = job.job_id
        self.job_name = job.name
        self.names = {vertex.id: vertex.name for vertex in job.vertices}
        self.parallelisms = {vertex.id: vertex.parallelism for vertex in job.vertices}
        # Copied out of the job: its blobs are let go of once the tasks are deployed, and this stays.
        self.vertices = [
            VertexEntry(
                each.id,
                each.name,
                each.parallelism,
                each.max_parallelism,
                dict(zip(each.operator_ids, each.operator_names)),  # noqa: B905 - without ids there are none
                {operator: uid for operator, uid in zip(each.operator_ids, each.operator_uids) if uid},  # noqa: B905
            )
            for each in job.vertices
        ]
        self.inputs: dict[str, list[TopologyEdge]] = {vertex.id: [] for vertex in job.vertices}
        """The edges into each vertex that come from others, in the order of its gates."""
        self.edges: list[EdgeEntry] = []
        """All of these, in the order of the job."""
        self._add_edges(job)

    def _add_edges(self, job: JobGraphMessage) -> None:
        operators = {vertex.id: vertex.operator_ids for vertex in job.vertices}
        num_outputs = Counter[str]()
        for edge in job.edges:
            output = num_outputs[edge.source]
            # Before the edges of the client are left out: a producer counts its partitions with them.
            num_outputs[edge.source] += 1
            if edge.target is None:
                continue  # the client reads it: it has no data in flight in a checkpoint
            ids = operators[edge.source]
            inputs = self.inputs[edge.target]
            emitter = ids[edge.source_operator] if ids else ""
            is_by_key = edge.ship_strategy == KeyGroups.ship_strategy
            entry = EdgeEntry(
                edge.source, output, edge.target, len(inputs), emitter, edge.input_id, edge.tag, is_by_key
            )
            inputs.append(TopologyEdge(entry, edge.id, edge.is_pointwise))
            self.edges.append(entry)

    def __repr__(self) -> str:
        return f"<CheckpointTopology of {self.job_id}, {sum(self.parallelisms.values())} subtasks>"

    def frontier(self, among: Set[Subtask]) -> list[Subtask]:
        """Find the subtasks of ``among`` that read from no other subtask of ``among``, in topological order.

        Of the unfinished subtasks these are the ones to trigger: no producer is left to send them a barrier.  Of the
        subtasks that have not acknowledged a checkpoint, these hold it up: all of their producers have passed the
        barrier on.
        """
        # Counted once: with thousands of subtasks a look at all of them for each edge would be quadratic.
        sizes = Counter(each.vertex_id for each in among)
        subtasks = (Subtask(vertex, index) for vertex, width in self.parallelisms.items() for index in range(width))
        return [each for each in subtasks if each in among and not self._reads_from(each, among, sizes)]

    def _reads_from(self, reader: Subtask, among: Set[Subtask], sizes: Counter[str]) -> bool:
        # Most vertices have no subtask in the set: their edges are not looked at.
        edges = [edge for edge in self.inputs[reader.vertex_id] if sizes[edge.entry.source] > 0]
        return any(self._edge_reads_from(edge, reader, among) for edge in edges)

    def _edge_reads_from(self, edge: TopologyEdge, reader: Subtask, among: Set[Subtask]) -> bool:
        if not edge.is_pointwise:
            return True  # it reads from every subtask of the source, and one of them is in the set
        source = edge.entry.source
        producers = producers_of(reader.subtask, self.parallelisms[source], self.parallelisms[reader.vertex_id])
        return any(Subtask(source, index) in among for index in producers)

    def describe(self, subtask: Subtask) -> str:
        """Name the subtask for people."""
        return f"{self.names[subtask.vertex_id]} (subtask {subtask.subtask})"


@unique
class CoordinatorFailureReason(Enum):
    """Why the coordinator ends a checkpoint; the values are for messages.

    No name is also the name of a task's reason.
    """

    CHECKPOINT_EXPIRED = "it was not complete in time"
    READER_BEHIND = "it was not complete in time, because the client has not read the results so far"
    CHECKPOINT_SUBSUMED = "a newer one was complete first"
    CHECKPOINT_COORDINATOR_SUSPEND = "the run of its tasks ended"
    TASK_FAILURE = "a task failed or was cancelled"
    TASK_FINISHED = "a task finished before it took part"
    TRIGGER_CHECKPOINT_FAILURE = "the state of a source could not be kept"
    FINALIZE_CHECKPOINT_FAILURE = "its manifest could not be written"


# A task that gave way to a decision of another task; the cause is at that other task, whose report may arrive later.
SYMPTOM: Final = CheckpointFailureReason.CANCELLATION_BARRIER.name

_UNCOUNTED: Final = frozenset(
    reason.name
    for reason in (
        CheckpointFailureReason.TASK_NOT_READY,
        CheckpointFailureReason.TASK_CLOSING,
        CheckpointFailureReason.CANCELLATION_BARRIER,
        CheckpointFailureReason.SUBSUMED,
        CheckpointFailureReason.INPUT_END_OF_STREAM,
        CheckpointFailureReason.ABORTED_BY_NOTIFICATION,
        CoordinatorFailureReason.READER_BEHIND,
        CoordinatorFailureReason.CHECKPOINT_SUBSUMED,
        CoordinatorFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
        CoordinatorFailureReason.TASK_FAILURE,
        CoordinatorFailureReason.TASK_FINISHED,
    )
)


def is_counted(reason: str) -> bool:
    """Whether a failure for ``reason``, the name of a reason, counts."""
    return reason not in _UNCOUNTED


MAX_WAITING: Final = 16
_STOPPING: Final = (SnapshotType.SAVEPOINT_SUSPEND, SnapshotType.SAVEPOINT_TERMINATE)


class SavepointRequest(msgspec.Struct, frozen=True):
    """The request of a user for a savepoint.

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


class SubtaskPart(msgspec.Struct, frozen=True):
    """One subtask's acknowledgement; ``durations`` None: the subtask had finished before the trigger."""

    acknowledged_ms: int
    num_bytes: int = 0
    durations: CheckpointDurations | None = None


class CheckpointFailure(msgspec.Struct, frozen=True):
    """The reason and details of a failed checkpoint.

    ``reason``: the name of a task's or the coordinator's reason.  ``subtask``: the one that declined it; None: the
        coordinator ended it.
    """

    reason: str
    message: str
    subtask: Subtask | None = None


@dataclass(slots=True)
class PendingCheckpoint:
    """One checkpoint; its coordinator owns it, and the history once it has ended.

    ``end_ms`` None: it is on its way; ``failure`` None: it has not failed.  ``held_up_by``: of a failed one, the
        subtasks that had not acknowledged although all of their producers had.

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
    sources: list[SourceEntry] | None = None  # None: their states were not taken, and no task knows of it
    missing: set[bytes] = field(init=False)
    _entries: dict[Subtask, SubtaskEntry] = field(default_factory=dict)
    parts: dict[Subtask, SubtaskPart] = field(default_factory=dict)
    end_ms: int | None = None
    failure: CheckpointFailure | None = None
    held_up_by: tuple[Subtask, ...] = ()

    def __post_init__(self) -> None:
        self.missing = set(self.participants)
        # They have no state to report; a restore must know that they had finished.
        for each in self.finished:
            self._entries[each] = SubtaskEntry(each.vertex_id, each.subtask, is_finished=True)
            self.parts[each] = SubtaskPart(self.trigger_ms)

    def __repr__(self) -> str:
        missing = f"{len(self.missing)} tasks are missing"
        return f"<PendingCheckpoint {self.checkpoint_id} waits for {self.waits_for}, {missing}>"

    @property
    def waits_for(self) -> str:
        """Name the part that is missing, for people."""
        return "the tasks" if self.missing else "its manifest"

    def acknowledge(self, message: CheckpointAcknowledged, now_ms: int) -> None:
        """Take in the part of a missing subtask."""
        # First: a part that comes twice fails here, before it replaces the other.
        self.missing.remove(message.attempt)
        subtask = self.participants[message.attempt]
        # The attempt tells whose part it is: a TaskManager reports only its own attempts.
        part = msgspec.structs.replace(message.part, vertex_id=subtask.vertex_id, subtask=subtask.subtask)
        self._entries[subtask] = part
        num_bytes = sum(each.num_bytes for each in (part.state, part.channels) if each is not None)
        self.parts[subtask] = SubtaskPart(now_ms, num_bytes, message.durations)

    def manifest(self, topology: CheckpointTopology) -> CheckpointManifest:
        """Make the manifest of the checkpoint; every subtask must have acknowledged."""
        assert not self.missing, "all have acknowledged"
        # In an order of their own, not that of the answers: one state gives one manifest.
        entries = [self._entries[each] for each in sorted(self._entries)]
        job_id, name, parallelisms = topology.job_id, topology.job_name, dict(topology.parallelisms)
        sources = list(self.sources or ())
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

    def end(self, end_ms: int, failure: CheckpointFailure | None = None, held_up_by: tuple[Subtask, ...] = ()) -> None:
        """Note how the checkpoint ended, and let go of its state."""
        self.end_ms = end_ms
        self.failure = failure
        self.held_up_by = held_up_by
        # The history keeps this object: states of ended checkpoints would fill the memory.
        self._entries.clear()
        self.sources = None
