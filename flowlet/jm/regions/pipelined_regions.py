"""Finds the regions of a job: sets of subtasks that can start again without the others.

Side:   pure.
Source: Flink ``RestartPipelinedRegionFailoverStrategy``, ``SchedulingPipelinedRegionComputeUtil``, and
        ``OperatorCoordinator``, which can take the splits of one reader back.
Rules:  a pipelined edge joins the subtasks between which records flow: on a pointwise edge partners, else all.  A
        blocking edge joins none: what it leads to runs when what it comes from has finished (``region_order``).
        Subtasks that share something else are joined, too: those of a source whose splits the JobManager hands out,
        because splits of a failed reader may be with another one by now, and those of aligned sources.  A job that the
        client reads has one region, because its results are one stream from run to run.  So has one with a remote gate.
        With blocking edges it keeps its regions, because stages need them, and they fail as one.
"""

from collections.abc import Iterable, Iterator, Sequence

from flowlet.graph.execution_graph import SubtaskKey
from flowlet.graph.partitioner import producers_of
from flowlet.graph.region_order import RegionOrder
from flowlet.rpc.control_messages import EdgeMessage, JobGraphMessage


def pipelined_regions(job: JobGraphMessage) -> list[list[SubtaskKey]]:
    """The regions of a job, each with its subtasks in the order of deployment."""
    parallelisms = {vertex.id: vertex.parallelism for vertex in job.vertices}
    joined = _Partition((vertex_id, subtask) for vertex_id, width in parallelisms.items() for subtask in range(width))
    if fails_as_one(job) and not any(edge.is_blocking for edge in job.edges):
        joined.join(joined.members)
    for edge in job.edges:
        if edge.target is not None and not edge.is_blocking:
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


def region_order(job: JobGraphMessage, regions: Sequence[Sequence[SubtaskKey]]) -> RegionOrder:
    """Which of the regions read the finished results of which others."""
    region_of = {subtask: number for number, region in enumerate(regions) for subtask in region}
    parallelisms = {vertex.id: vertex.parallelism for vertex in job.vertices}
    producers: list[set[int]] = [set() for _ in regions]
    for edge in job.edges:
        if edge.target is not None and edge.is_blocking:
            for consumer, read in _read_by(edge, edge.target, parallelisms):
                producers[region_of[edge.target, consumer]] |= {region_of[edge.source, each] for each in read}
    return RegionOrder.of(producers)


def _read_by(edge: EdgeMessage, target: str, parallelisms: dict[str, int]) -> Iterator[tuple[int, Iterable[int]]]:
    """Each consumer with the producers that it reads."""
    num_producers, num_consumers = parallelisms[edge.source], parallelisms[target]
    for consumer in range(num_consumers):
        yield (
            consumer,
            producers_of(consumer, num_producers, num_consumers) if edge.is_pointwise else range(num_producers),
        )


def fails_as_one(job: JobGraphMessage) -> bool:
    """Whether all subtasks start again after a failure of one."""
    is_read = any(edge.target is None for edge in job.edges)
    has_gate = any(vertex.remote_gate is not None for vertex in job.vertices)
    return is_read or has_gate or not job.settings.restart.is_regional


def _join_ends(joined: "_Partition", edge: EdgeMessage, target: str, parallelisms: dict[str, int]) -> None:
    num_producers, num_consumers = parallelisms[edge.source], parallelisms[target]
    if not edge.is_pointwise:
        joined.join(
            [(edge.source, each) for each in range(num_producers)] + [(target, each) for each in range(num_consumers)]
        )
        return
    for consumer in range(num_consumers):
        joined.join(
            [
                (target, consumer),
                *((edge.source, each) for each in producers_of(consumer, num_producers, num_consumers)),
            ]
        )


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
