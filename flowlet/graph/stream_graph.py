"""``StreamGraph``: the operators of a program with everything inherited filled in.

Side:       pure.
Invariants: nodes are in topological order; every node but a source has one input edge; partitionings are on edges, not nodes; every
            parallelism, max parallelism, slot sharing group and buffer timeout is a value, none is "inherited" any more.
Source:     Flink ``StreamGraph``, ``StreamGraphGenerator``, ``StreamGraphHasherV2``, ``JSONGenerator``.
Absent:     operators with two inputs.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from flowlet.errors import JobGraphError
from flowlet.graph.job_graph import DEFAULT_BUFFER_TIMEOUT_MS, DEFAULT_SLOT_SHARING_GROUP, JobConfig, stable_id
from flowlet.graph.partitioner import Forward, KeyGroups, Partitioner, Rebalance
from flowlet.graph.transformation import (
    ChainingStrategy,
    CollectTransformation,
    PartitionTransformation,
    PrintTransformation,
    SinkTransformation,
    SourceTransformation,
    Transformation,
)
from flowlet.keys import default_max_parallelism

RUNTIME_MODES = ("STREAMING", "BATCH", "AUTOMATIC")


@dataclass(frozen=True, slots=True)
class StreamGraphSettings:
    """What the environment says about all operators."""

    max_parallelism: int | None = None  # None: derived from each operator's parallelism
    buffer_timeout_ms: int = DEFAULT_BUFFER_TIMEOUT_MS
    is_chaining_enabled: bool = True
    runtime_mode: str = "STREAMING"


@dataclass(frozen=True, slots=True)
class StreamNode:
    """One operator."""

    id: int  # 1, 2, ... in topological order
    hash: str  # 32 hex digits; the vertex gets its head's
    name: str
    description: str
    parallelism: int
    max_parallelism: int
    buffer_timeout_ms: int
    slot_sharing_group: str
    chaining: ChainingStrategy
    transformation: Transformation  # what the operator does


@dataclass(frozen=True, slots=True)
class StreamEdge:
    """Records of ``source`` go to ``target``; None is the client."""

    source: int
    target: int | None
    partitioner: Partitioner


@dataclass(frozen=True, slots=True)
class StreamGraph:
    """A program, ready to be cut into tasks."""

    name: str
    nodes: dict[int, StreamNode]
    edges: list[StreamEdge]
    is_chaining_enabled: bool
    is_batch: bool  # keyed aggregations emit once, at the end

    @property
    def config(self) -> JobConfig:
        """What the job graph keeps of the settings."""
        return JobConfig(runtime_mode="BATCH" if self.is_batch else "STREAMING")

    def outputs_of(self, node_id: int) -> list[StreamEdge]:
        """The edges that begin at a node."""
        return [edge for edge in self.edges if edge.source == node_id]

    def input_of(self, node_id: int) -> StreamEdge | None:
        """The edge that ends at a node; None for a source."""
        return next((edge for edge in self.edges if edge.target == node_id), None)


def build_stream_graph(transformations: Iterable[Transformation], name: str, settings: StreamGraphSettings) -> StreamGraph:
    """The graph of the given transformations and of everything that they read.

    Raises:
        JobGraphError: there are none, or one of them contradicts another; the message names the operator.
    """
    ordered = _with_inputs(transformations)
    if not ordered:
        raise JobGraphError(
            f"job {name!r} has no operators: apply at least one, such as map(), print() or sink_to(), to a stream of this environment "
            "(and again after each execute())"
        )
    builder = _Builder(settings)
    for transformation in ordered:
        builder.add(transformation)
    return StreamGraph(
        name=name,
        nodes=builder.nodes,
        edges=builder.edges,
        is_chaining_enabled=settings.is_chaining_enabled,
        is_batch=_is_batch(settings.runtime_mode, ordered),
    )


def execution_plan(stream_graph: StreamGraph) -> str:
    """The graph as JSON, in the form that Flink's plan visualizer reads."""
    nodes = []
    for node in stream_graph.nodes.values():
        description: dict[str, object] = {
            "id": node.id,
            "type": node.name,
            "pact": _pact(node.transformation),
            "contents": node.description,
            "parallelism": node.parallelism,
        }
        edge = stream_graph.input_of(node.id)
        if edge is not None:
            description["predecessors"] = [{"id": edge.source, "ship_strategy": edge.partitioner.ship_strategy, "side": "second"}]
        nodes.append(description)
    return json.dumps({"nodes": nodes}, indent=2)


class _Builder:
    """Turns transformations, given inputs first, into nodes and edges."""

    def __init__(self, settings: StreamGraphSettings) -> None:
        self.nodes: dict[int, StreamNode] = {}
        self.edges: list[StreamEdge] = []
        self._settings = settings
        self._node_ids: dict[Transformation, int] = {}

    def add(self, transformation: Transformation) -> None:
        match transformation:
            case PartitionTransformation():
                return
            case CollectTransformation():
                source, _ = self._input_of(transformation)
                self.edges.append(StreamEdge(source.id, None, Forward()))
            case SourceTransformation():
                self._add_node(transformation, None)
            case _:
                source, partitioner = self._input_of(transformation)
                node = self._add_node(transformation, source)
                self.edges.append(StreamEdge(source.id, node.id, _resolved(partitioner, source, node)))

    def _input_of(self, transformation: Transformation) -> tuple[StreamNode, Partitioner | None]:
        """The node that it reads, and the partitioning asked for; the one nearest to the reader counts, as in Flink."""
        upstream, partitioner = transformation.input, None
        while isinstance(upstream, PartitionTransformation):
            partitioner = partitioner or upstream.partitioner
            upstream = upstream.input
        if upstream is None:
            raise JobGraphError(f"operator {transformation.operator_name!r} reads nothing: it needs an input")
        return self.nodes[self._node_ids[upstream]], partitioner

    def _add_node(self, transformation: Transformation, source: StreamNode | None) -> StreamNode:
        settings, node_id = self._settings, len(self.nodes) + 1
        max_parallelism = transformation.max_parallelism or settings.max_parallelism or default_max_parallelism(transformation.parallelism)
        if transformation.parallelism > max_parallelism:
            raise JobGraphError(
                f"operator {transformation.operator_name!r}: its parallelism {transformation.parallelism} exceeds its max parallelism "
                f"{max_parallelism}; lower the one or raise the other"
            )
        timeout = transformation.buffer_timeout_ms
        node = StreamNode(
            id=node_id,
            hash=self._hash_of(transformation, node_id, source),
            name=transformation.operator_name,
            description=transformation.description or transformation.operator_name,
            parallelism=transformation.parallelism,
            max_parallelism=max_parallelism,
            buffer_timeout_ms=settings.buffer_timeout_ms if timeout is None else timeout,
            slot_sharing_group=transformation.slot_sharing_group or (source.slot_sharing_group if source else DEFAULT_SLOT_SHARING_GROUP),
            chaining=transformation.chaining,
            transformation=transformation,
        )
        self.nodes[node_id] = node
        self._node_ids[transformation] = node_id
        return node

    def _hash_of(self, transformation: Transformation, node_id: int, source: StreamNode | None) -> str:
        if transformation.uid is None:
            return stable_id("position", node_id, source.hash if source else None)
        for other in self.nodes.values():
            if other.transformation.uid == transformation.uid:
                raise JobGraphError(
                    f"operators {other.name!r} and {transformation.operator_name!r} have the same uid {transformation.uid!r}; "
                    "give each its own"
                )
        return stable_id("uid", transformation.uid)


def _with_inputs(transformations: Iterable[Transformation]) -> list[Transformation]:
    """The transformations and all that they read, each once and after its input."""
    ordered: dict[Transformation, None] = {}
    for transformation in transformations:
        path: list[Transformation] = []
        current: Transformation | None = transformation
        while current is not None and current not in ordered:
            path.append(current)
            current = current.input
        ordered.update(dict.fromkeys(reversed(path)))
    return list(ordered)


def _resolved(partitioner: Partitioner | None, source: StreamNode, target: StreamNode) -> Partitioner:
    """The partitioner of an edge: the one asked for, else forward between equal parallelisms and rebalance between others."""
    match partitioner:
        case None:
            return Forward() if source.parallelism == target.parallelism else Rebalance()
        case KeyGroups():
            return replace(partitioner, max_parallelism=target.max_parallelism)
        case Forward() if source.parallelism != target.parallelism:
            raise JobGraphError(
                f"forward() from {source.name!r} (parallelism {source.parallelism}) to {target.name!r} (parallelism {target.parallelism}): "
                "it does not allow a change of parallelism; use rebalance(), or set the same parallelism on both"
            )
        case _:
            return partitioner


def _is_batch(runtime_mode: str, transformations: list[Transformation]) -> bool:
    if runtime_mode not in RUNTIME_MODES:
        raise JobGraphError(f"the runtime mode must be one of {', '.join(RUNTIME_MODES)}, got {runtime_mode!r}")
    unbounded = [item for item in transformations if isinstance(item, SourceTransformation) and not item.is_bounded]
    if runtime_mode == "BATCH" and unbounded:
        raise JobGraphError(
            f"the runtime mode BATCH needs inputs that end, but {unbounded[0].operator_name!r} is unbounded; use STREAMING or AUTOMATIC"
        )
    return runtime_mode == "BATCH" or (runtime_mode == "AUTOMATIC" and not unbounded)


def _pact(transformation: Transformation) -> str:
    match transformation:
        case SourceTransformation():
            return "Data Source"
        case PrintTransformation() | SinkTransformation():
            return "Data Sink"
        case _:
            return "Operator"
