"""``CheckpointTopology``: which subtasks a barrier reaches by itself, and which must be told.

Side:   pure.
Source: Flink ``DefaultCheckpointPlanCalculator``.
"""

from collections import Counter
from collections.abc import Set
from typing import NamedTuple

from flowlet.graph.partitioner import producers_of
from flowlet.jm.checkpoints.restored_edges import edge_entries
from flowlet.messages.control_messages import JobGraphMessage
from flowlet.storage.manifest import VertexEntry


class Subtask(NamedTuple):
    """A subtask of the job, in every run."""

    vertex_id: str
    subtask: int


class _Input(NamedTuple):
    source: str
    is_pointwise: bool


class CheckpointTopology:
    """The subtasks of one job and their producers.  Immutable."""

    def __init__(self, job: JobGraphMessage) -> None:
        self.job_id = job.job_id
        self.job_name = job.name
        self.names = {vertex.id: vertex.name for vertex in job.vertices}
        self.parallelisms = {vertex.id: vertex.parallelism for vertex in job.vertices}
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
        self.edges = edge_entries(job)
        self._inputs: dict[str, list[_Input]] = {vertex.id: [] for vertex in job.vertices}
        for edge in job.edges:
            if edge.target is not None:
                # Not the edge, which has a blob.
                self._inputs[edge.target].append(_Input(edge.source, edge.is_pointwise))

    def __repr__(self) -> str:
        return f"<CheckpointTopology of {self.job_id}, {sum(self.parallelisms.values())} subtasks>"

    def frontier(self, among: Set[Subtask]) -> list[Subtask]:
        """The subtasks of ``among`` that read from no other subtask of ``among``, in topological order.

        Of the unfinished subtasks these are the ones to trigger: no producer is left to send them a barrier.  Of those
        that have not acknowledged a checkpoint they are the ones that hold it up: all of their producers have passed
        the barrier on.
        """
        sizes = Counter(each.vertex_id for each in among)
        subtasks = (
            Subtask(vertex_id, index) for vertex_id, width in self.parallelisms.items() for index in range(width)
        )
        return [each for each in subtasks if each in among and not self._reads_from(each, among, sizes)]

    def _reads_from(self, reader: Subtask, among: Set[Subtask], sizes: Counter[str]) -> bool:
        return any(
            sizes[edge.source] > 0 and self._edge_reads_from(edge, reader, among)
            for edge in self._inputs[reader.vertex_id]
        )

    def _edge_reads_from(self, edge: _Input, reader: Subtask, among: Set[Subtask]) -> bool:
        if not edge.is_pointwise:
            return True  # it reads from every subtask of the source, and one of them is there
        producers = producers_of(reader.subtask, self.parallelisms[edge.source], self.parallelisms[reader.vertex_id])
        return any(Subtask(edge.source, index) in among for index in producers)

    def describe(self, subtask: Subtask) -> str:
        """The subtask for people."""
        return f"{self.names[subtask.vertex_id]} (subtask {subtask.subtask})"
