"""Finds the regions of a job: sets of subtasks that can start again without the others.

Side:   pure.
Source: Flink ``RestartPipelinedRegionFailoverStrategy``, ``SchedulingPipelinedRegionComputeUtil``, and ``OperatorCoordinator``, which can
        take the splits of one reader back.
Rules:  all edges are pipelined, so an edge joins the subtasks between which records flow: on a pointwise edge partners, else all.
        Subtasks that share something else are joined, too: those of a source whose splits the JobManager hands out, because splits of
        a failed reader may be with another one by now, and those of aligned sources.
        A job that the client reads has one region, because its results are one stream from run to run.  So has one with a remote gate.
"""

from collections.abc import Iterable

from flowlet.graph.execution_graph import SubtaskKey
from flowlet.graph.partitioner import producers_of
from flowlet.rpc.control_messages import EdgeMessage, JobGraphMessage


def pipelined_regions(job: JobGraphMessage) -> list[list[SubtaskKey]]:
    """The regions of a job, each with its subtasks in the order of deployment."""
    parallelisms = {vertex.id: vertex.parallelism for vertex in job.vertices}
    joined = _Partition((vertex_id, subtask) for vertex_id, width in parallelisms.items() for subtask in range(width))
    if _is_one(job):
        joined.join(joined.members)
    for edge in job.edges:
        if edge.target is not None:
            _join_ends(joined, edge, edge.target, parallelisms)
    of_group: dict[str, list[SubtaskKey]] = {}
    for vertex in job.vertices:
        subtasks = [(vertex.id, subtask) for subtask in range(vertex.parallelism)]
        if vertex.split_set is not None:
            joined.join(subtasks)
        if vertex.watermark_alignment is not None:
            of_group.setdefault(vertex.watermark_alignment.group, []).extend(subtasks)
    for members in of_group.values():
        joined.join(members)
    return joined.parts()


def _is_one(job: JobGraphMessage) -> bool:
    is_read = any(edge.target is None for edge in job.edges)
    has_gate = any(vertex.remote_gate is not None for vertex in job.vertices)
    return is_read or has_gate or not job.settings.restart.is_regional


def _join_ends(joined: "_Partition", edge: EdgeMessage, target: str, parallelisms: dict[str, int]) -> None:
    num_producers, num_consumers = parallelisms[edge.source], parallelisms[target]
    if not edge.is_pointwise:
        joined.join([(edge.source, each) for each in range(num_producers)] + [(target, each) for each in range(num_consumers)])
        return
    for consumer in range(num_consumers):
        joined.join([(target, consumer), *((edge.source, each) for each in producers_of(consumer, num_producers, num_consumers))])


class _Partition:
    """Subtasks in disjoint sets, at first each in its own."""

    def __init__(self, members: Iterable[SubtaskKey]) -> None:
        self._parent = {each: each for each in members}

    @property
    def members(self) -> list[SubtaskKey]:
        return list(self._parent)

    def join(self, members: list[SubtaskKey]) -> None:
        first = self._root(members[0])
        for each in members:
            self._parent[self._root(each)] = first

    def parts(self) -> list[list[SubtaskKey]]:
        found: dict[SubtaskKey, list[SubtaskKey]] = {}
        for each in self._parent:
            found.setdefault(self._root(each), []).append(each)
        return list(found.values())

    def _root(self, member: SubtaskKey) -> SubtaskKey:
        while (parent := self._parent[member]) != member:
            self._parent[member] = self._parent[parent]  # halves the way of the next one
            member = parent
        return member
