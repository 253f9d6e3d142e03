"""Lets producers outside the cluster route by key, where a ``key_by`` follows their gate.

Side:       pure.
Rules:      if everything that reads a remote gate is keyed by one selector and has one parallelism, the gate takes that
            parallelism and that number of key groups over, its producers send each record to the subtask that owns its
            key, and the edges behind it go forward: records travel once.  In any other case, or if the selector has
            ``open`` or ``close``, producers send in turns, and the job shuffles as it does behind any source.
"""

from dataclasses import replace

from flowlet.common.typeinfo import ArrowTypeInfo
from flowlet.datastream.remote_gate import RemoteGate
from flowlet.datastream.user_functions.function import has_life_cycle
from flowlet.graph.partitioner import Forward, KeyGroups
from flowlet.graph.stream_graph import StreamEdge, StreamGraph, StreamNode
from flowlet.graph.transformation import SourceTransformation


def routed_at_producers(graph: StreamGraph) -> StreamGraph:
    """The graph with the edges behind its gates as the rules above want them."""
    for node in list(graph.nodes.values()):
        key_groups = _key_groups_behind(graph, node)
        if key_groups is not None:
            graph = _routed(graph, node, key_groups)
    return graph


def _key_groups_behind(graph: StreamGraph, node: StreamNode) -> KeyGroups | None:
    """What everything that reads this gate is keyed by."""
    step, edges = node.transformation, graph.outputs_of(node.id)
    if not isinstance(step, SourceTransformation) or not isinstance(step.source, RemoteGate) or not edges:
        return None
    if isinstance(step.source.type_info, ArrowTypeInfo):
        return None  # a producer has messages in hand, not the batches that a selector wants
    first = edges[0].partitioner
    if not isinstance(first, KeyGroups):
        return None
    if has_life_cycle(first.key_selector):
        return None  # nobody opens it at a producer
    shapes = set()
    for edge in edges:
        # The same object: two selectors that look alike may differ in what they close over.
        if (
            edge.target is None
            or not isinstance(edge.partitioner, KeyGroups)
            or edge.partitioner.key_selector is not first.key_selector
        ):
            return None
        target = graph.nodes[edge.target]
        shapes.add((target.parallelism, target.max_parallelism, target.slot_sharing_group))
    return first if len(shapes) == 1 else None


def _routed(graph: StreamGraph, node: StreamNode, key_groups: KeyGroups) -> StreamGraph:
    edges = graph.outputs_of(node.id)
    assert edges[0].target is not None, "keyed edges end at operators"
    target = graph.nodes[edges[0].target]
    step = node.transformation
    assert isinstance(step, SourceTransformation), "a gate is a source"
    gate = replace(
        node,
        parallelism=target.parallelism,
        max_parallelism=target.max_parallelism,
        transformation=replace(
            step, source=replace(step.source, key_groups=key_groups), parallelism=target.parallelism
        ),
    )
    forward: list[StreamEdge] = [
        replace(edge, partitioner=Forward()) if edge in edges else edge for edge in graph.edges
    ]
    return replace(graph, nodes={**graph.nodes, node.id: gate}, edges=forward)
