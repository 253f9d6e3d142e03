"""Cuts a ``StreamGraph`` into chains: operators that run in one task.

Side:       pure.
Invariants: every node is in exactly one chain; the head is first, and each other operator is after the one it reads;
            the edges of the job graph are exactly the stream edges between chains.
Source:     Flink ``StreamingJobGraphGenerator`` (``isChainable``, ``createChainedName``).  Unlike Flink, a ``keyBy``
            between single subtasks does not end a chain: two threads would wait for each other's interpreter lock, and
            read records from a cold cache.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flowlet.graph.job_graph import Chained, JobEdge, JobGraph, JobVertex
from flowlet.graph.partitioner import Forward, KeyGroups
from flowlet.graph.stream_graph import StreamEdge, StreamGraph, StreamNode
from flowlet.graph.transformation import ChainingStrategy, OperatorTransformation


def is_chainable(edge: StreamEdge, graph: StreamGraph) -> bool:
    """Whether both ends of an edge may run in one task.

    All must hold: chaining is on; the edge is its reader's only input; records go forward; parallelism and slot sharing
    group are equal; the strategies of both operators allow it.  With parallelism 1 a keyed edge goes forward, too, if
    the reader takes single records and has no timers of the clock: these need a thread that no source keeps busy.  Not
    with unaligned checkpoints: records in flight on the edge, from a run with more subtasks, go where the edge leads.
    """
    if edge.target is None or not graph.settings.environment.is_chaining_enabled:
        return False
    source, target = graph.nodes[edge.source], graph.nodes[edge.target]
    return (
        len(graph.inputs_of(edge.target)) == 1
        and source.parallelism == target.parallelism
        and (
            isinstance(edge.partitioner, Forward)
            or (target.parallelism == 1 and _is_forward_by_key(edge, graph, target.transformation))
        )
        and source.slot_sharing_group == target.slot_sharing_group
        and source.transformation.chaining is not ChainingStrategy.NEVER
        and target.transformation.chaining is ChainingStrategy.ALWAYS
    )


def _is_forward_by_key(edge: StreamEdge, graph: StreamGraph, step: OperatorTransformation) -> bool:
    checkpoints = graph.settings.job.checkpoints
    is_unaligned = checkpoints is not None and checkpoints.is_unaligned
    if not isinstance(edge.partitioner, KeyGroups) or graph.is_batch or is_unaligned:
        return False
    return step.takes_single_records


def build_job_graph(
    graph: StreamGraph,
    make_operator: Callable[[StreamNode], Any],
    make_chained: Callable[[Any, int, StreamEdge | None], Chained],
) -> JobGraph:
    """Build the job graph of a stream graph.

    Args:
        graph: the graph to cut.
        make_operator: makes the operator of a node; called once per node.
        make_chained: combines an operator, the index of the one it reads in its chain (-1 for the head), and the edge
            between them.
    """
    chains = _chains(graph)
    place = {node_id: (head, index) for head, members in chains.items() for index, node_id in enumerate(members)}
    vertices = []
    for head, members in chains.items():
        inner = [None, *(graph.inputs_of(node_id)[0] for node_id in members[1:])]
        vertices.append(
            JobVertex(
                id=graph.nodes[head].hash,
                name=_chain_name(graph, head),
                parallelism=graph.nodes[head].parallelism,
                max_parallelism=graph.nodes[head].max_parallelism,
                chain=[
                    make_chained(
                        make_operator(graph.nodes[node_id]), -1 if edge is None else members.index(edge.source), edge
                    )
                    for node_id, edge in zip(members, inner, strict=True)
                ],
                slot_sharing_group=graph.nodes[head].slot_sharing_group,
            )
        )
    edges = [
        _job_edge(graph, edge, number, place)
        for number, edge in enumerate(graph.edges)
        if edge.target is None or place[edge.target][0] != place[edge.source][0]
    ]
    settings = graph.settings
    job_settings = settings.job if graph.is_batch else replace(settings.job, batch=None)
    return JobGraph(
        name=graph.name,
        vertices=vertices,
        edges=edges,
        client_heartbeat=settings.client_heartbeat,
        client_retry=settings.client_retry,
        settings=job_settings,
    )


def _chains(graph: StreamGraph) -> dict[int, list[int]]:
    """Find the node ids of each chain, depth first, by head; heads in topological order."""
    chains: dict[int, list[int]] = {}
    for node_id in graph.nodes:
        if not any(is_chainable(edge, graph) for edge in graph.inputs_of(node_id)):
            chains[node_id] = _members(graph, node_id)
    return chains


def _members(graph: StreamGraph, head: int) -> list[int]:
    members: list[int] = []
    waiting = [head]
    while waiting:
        node_id = waiting.pop()
        members.append(node_id)
        waiting.extend(reversed(_chained_targets(graph, node_id)))
    return members


def _chained_targets(graph: StreamGraph, node_id: int) -> list[int]:
    return [edge.target for edge in graph.outputs_of(node_id) if edge.target is not None and is_chainable(edge, graph)]


def _chain_name(graph: StreamGraph, head: int) -> str:
    """Write the chain's name: ``A -> B`` for a line, ``A -> (B, C -> D)`` for branches."""
    names = [graph.nodes[head].name]
    following = _chained_targets(graph, head)
    while len(following) == 1:
        names.append(graph.nodes[following[0]].name)
        following = _chained_targets(graph, following[0])
    if following:
        names.append(f"({', '.join(_chain_name(graph, target) for target in following)})")
    return " -> ".join(names)


def _job_edge(graph: StreamGraph, edge: StreamEdge, number: int, place: dict[int, tuple[int, int]]) -> JobEdge:
    source_head, source_operator = place[edge.source]
    reader = "client" if edge.target is None else graph.nodes[edge.target].name
    return JobEdge(
        source=graph.nodes[source_head].hash,
        source_operator=source_operator,
        target=None if edge.target is None else graph.nodes[place[edge.target][0]].hash,
        partitioner=edge.partitioner,
        buffer_timeout_ms=graph.nodes[edge.source].buffer_timeout_ms,
        name=f"{graph.nodes[edge.source].name} -> {reader} #{number}",
        tag=edge.tag,
        input_id=edge.input_id,
        is_blocking=edge.target is not None and graph.exchanges_are_blocking,
    )
