"""Holds a task's part of a checkpoint back until the client has read what the task sent before its barrier.

Side:       pure.
Why:        a task acknowledges a checkpoint when the barrier is in its output.  What lies before it there is in no
            state: for a task's consumers it is in theirs, because they acknowledge the checkpoint, too; but the client
            that reads an external edge is no task.  If the checkpoint were complete before the client had read that
            far, a failure at that moment would lose the records.
Invariants: an acknowledgement that was let go is not held again; of each attempt at most ``MAX_HELD`` are held, the
            newest.
Rules:      reports are cumulative: who has read up to a barrier has read up to all earlier ones.  A client that pauses
            does no harm: a checkpoint that waits for it until its timeout is not counted as a failure.
Source:     Flink keeps the records in the state of ``CollectSinkFunction`` instead.
"""

from collections.abc import Collection, Mapping
from typing import Final

from flowlet.graph.execution_graph import Execution
from flowlet.jm.checkpoints.coordinator_events import TimePassed
from flowlet.messages.control_messages import CheckpointAcknowledged, CheckpointReport, JobGraphMessage, TaskMetrics

MAX_HELD: Final = 16  # more than checkpoints can be under way; the older ones have failed


class ReaderAcknowledgements:
    """The acknowledgements of one run's tasks.

    Threading: the JobManager's loop.

    Args:
        edges: of each attempt that feeds external edges, the ids of those edges.
        only_external: the attempts that feed no other edges: if they wait for room, they wait for the client.
    """

    def __init__(self, edges: Mapping[bytes, Collection[str]], only_external: Collection[bytes] = ()) -> None:
        self._only_external = only_external
        # The newest barrier.
        self._read = {(attempt, edge_id): -1 for attempt, edge_ids in edges.items() for edge_id in edge_ids}
        self._edges = {attempt: tuple(edge_ids) for attempt, edge_ids in edges.items() if edge_ids}
        # By attempt, then checkpoint; with the TaskManager.
        self._held: dict[bytes, dict[int, tuple[str, CheckpointAcknowledged]]] = {}

    def __repr__(self) -> str:
        return f"<ReaderAcknowledgements of {len(self._read)} channels, {sum(map(len, self._held.values()))} held>"

    def reported(self, tm_id: str, message: CheckpointReport) -> bool:
        """A task has acknowledged or declined: whether that counts now; else it is held."""
        if not isinstance(message, CheckpointAcknowledged) or self._has_read(message.attempt, message.checkpoint_id):
            return True
        held = self._held.setdefault(message.attempt, {})
        held[message.checkpoint_id] = (tm_id, message)
        if len(held) > MAX_HELD:
            del held[min(held)]
        return False

    def barrier_read(
        self, edge_id: str, attempt: bytes, checkpoint_id: int
    ) -> list[tuple[str, CheckpointAcknowledged]]:
        """The client has what an attempt sent before a barrier: the TaskManagers and acknowledgements that count now,
        oldest first.

        A report about an attempt of another run, or an edge that the attempt does not feed, does nothing.
        """
        if (attempt, edge_id) not in self._read:
            return []
        self._read[attempt, edge_id] = max(self._read[attempt, edge_id], checkpoint_id)
        held = self._held.get(attempt, {})
        return [held.pop(each) for each in sorted(held) if self._has_read(attempt, each)]

    def lag(self, metrics: Mapping[bytes, TaskMetrics]) -> TimePassed:
        """What waits for the client, for the coordinator; ``metrics``: the newest of the attempts."""
        held = frozenset(
            (checkpoint_id, attempt) for attempt, of_attempt in self._held.items() for checkpoint_id in of_attempt
        )
        blocked = frozenset(each for each in self._only_external if each in metrics and metrics[each].is_back_pressured)
        return TimePassed(held, blocked)

    def _has_read(self, attempt: bytes, checkpoint_id: int) -> bool:
        return all(self._read[attempt, edge_id] >= checkpoint_id for edge_id in self._edges.get(attempt, ()))


def reader_acknowledgements(job: JobGraphMessage, executions: Mapping[bytes, Execution]) -> ReaderAcknowledgements:
    """Those of the run that has these attempts."""
    external = [edge for edge in job.edges if edge.target is None]
    only_external = {edge.source for edge in external} - {edge.source for edge in job.edges if edge.target is not None}
    return ReaderAcknowledgements(
        {
            attempt: [edge.id for edge in external if edge.source == each.vertex.vertex_id]
            for attempt, each in executions.items()
        },
        [attempt for attempt, each in executions.items() if each.vertex.vertex_id in only_external],
    )
