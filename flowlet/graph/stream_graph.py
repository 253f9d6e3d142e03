"""``StreamGraph``: the operators of a program, with all inherited settings filled in.

Side:       pure.
Invariants: nodes are in topological order; partitionings, side outputs and unions are on edges; parallelism, max
            parallelism, slot sharing group and buffer timeout of every node have a value.
Source:     Flink ``StreamGraph``, ``StreamGraphGenerator``, ``StreamGraphHasherV2``, ``JSONGenerator``.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import field, replace

from flowlet.common.execution_config import EnvironmentSettings
from flowlet.common.job_settings import JobSettings
from flowlet.common.options.client_options import ClientHeartbeat, ClientRetry
from flowlet.common.options.python_options import DependencySettings
from flowlet.common.typeinfo import TypeInformation
from flowlet.errors import JobGraphError
from flowlet.graph.job_graph import DEFAULT_SLOT_SHARING_GROUP, stable_id
from flowlet.graph.partitioner import Forward, KeyGroups, Partitioner, Rebalance, default_max_parallelism
from flowlet.graph.transformation import (
    CollectTransformation,
    OperatorFactory,
    OperatorTransformation,
    PartitionTransformation,
    SideOutputTransformation,
    SourceTransformation,
    Transformation,
    UnionTransformation,
)
from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class StreamGraphSettings:
    """The settings of the environment, for all operators, and of the job.

    Of ``environment``, ``buffer_timeout_ms`` is -1 where buffer timeouts are off.
    """

    environment: EnvironmentSettings = field(default_factory=EnvironmentSettings)
    client_heartbeat: ClientHeartbeat | None = None  # None: the job goes on without its client
    client_retry: ClientRetry = field(default_factory=ClientRetry)
    job: JobSettings = field(default_factory=JobSettings)
    dependencies: DependencySettings = field(default_factory=DependencySettings)


@dataclass(frozen=True, slots=True)
class StreamNode:
    """One operator."""

    id: int  # 1, 2, ... in topological order
    hash: str  # 32 hex digits; a vertex has the hash of its head
    name: str
    description: str
    parallelism: int
    max_parallelism: int
    buffer_timeout_ms: int
    slot_sharing_group: str
    transformation: OperatorTransformation  # the step that the operator carries out


@dataclass(frozen=True, slots=True)
class StreamEdge:
    """Records of node ``source`` go to node ``target``; None is the client.

    ``tag``: the side output; None: the main output.  ``side_type``: its declared type.  ``input_id``: of the target's
        operator, from 1.
    """

    source: int
    target: int | None
    partitioner: Partitioner
    tag: str | None = None
    input_id: int = 1
    side_type: TypeInformation | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class StreamGraph:
    """A program, ready to be cut into chains."""

    name: str
    nodes: dict[int, StreamNode]
    edges: list[StreamEdge]
    is_batch: bool  # keyed aggregations emit one result per key, at the end
    settings: StreamGraphSettings = field(default_factory=StreamGraphSettings)

    @property
    def exchanges_are_blocking(self) -> bool:
        """Whether results between tasks are written completely before they are read."""
        batch = self.settings.job.batch
        return self.is_batch and batch is not None and batch.is_blocking

    def outputs_of(self, node_id: int) -> list[StreamEdge]:
        """List the edges that begin at a node."""
        return [edge for edge in self.edges if edge.source == node_id]

    def inputs_of(self, node_id: int) -> list[StreamEdge]:
        """List the edges that end at a node; none for a source."""
        return [edge for edge in self.edges if edge.target == node_id]


def build_stream_graph(
    transformations: Iterable[Transformation], name: str, settings: StreamGraphSettings
) -> StreamGraph:
    """Build the graph of the given transformations and everything that they read.

    Raises:
        JobGraphError: there are none, or two settings contradict each other; the message names the operator.
    """
    ordered = _with_inputs(transformations)
    if not ordered:
        raise JobGraphError(
            f"job {name!r} has no operators: apply at least one, such as map(), print() or sink_to(), to a stream of "
            "this environment (and again after each execute())"
        )
    builder = _Builder(settings)
    for transformation in ordered:
        builder.add(transformation)
    return StreamGraph(
        name=name,
        nodes=builder.nodes,
        edges=builder.edges,
        is_batch=_is_batch(settings.environment.runtime_mode, ordered),
        settings=settings,
    )


def check_uids(graph: StreamGraph) -> None:
    """Check that each operator has a uid of the user's.  Raises JobGraphError, which names an operator:
    one has none.
    """
    for node in graph.nodes.values():
        is_named = node.transformation.uid is not None or node.transformation.uid_hash is not None
        if not is_named and not node.transformation.is_internal:
            raise JobGraphError(f"operator {node.name!r} has no uid, and automatic ones are disabled: call uid() on it")


def execution_plan(stream_graph: StreamGraph) -> str:
    """Write the graph as JSON for Flink's plan visualizer."""
    nodes = []
    for node in stream_graph.nodes.values():
        description: dict[str, object] = {
            "id": node.id,
            "type": node.name,
            "pact": _pact(node.transformation),
            "contents": node.description,
            "parallelism": node.parallelism,
        }
        edges = stream_graph.inputs_of(node.id)
        if edges:
            description["predecessors"] = [
                {"id": edge.source, "ship_strategy": edge.partitioner.ship_strategy, "side": "second"} for edge in edges
            ]
        nodes.append(description)
    return json.dumps({"nodes": nodes}, indent=2)


# An output of a node that an operator reads: the partitioner, if the user chose one, the side output, and the input.
_Read = tuple[StreamNode, Partitioner | None, str | None, int]


class _Builder:
    """Makes nodes and edges of transformations, which are given in topological order."""

    def __init__(self, settings: StreamGraphSettings) -> None:
        self.nodes: dict[int, StreamNode] = {}
        self.edges: list[StreamEdge] = []
        self._settings = settings
        self._node_ids: dict[Transformation, int] = {}
        self._side_types: dict[tuple[Transformation, str], TypeInformation] = {}  # of side outputs, by operator and tag

    def add(self, transformation: Transformation) -> None:
        match transformation:
            case CollectTransformation():
                self._add_collect(transformation)
            case OperatorTransformation():
                self._add_operator(transformation)
            case _:  # edges go through it
                return

    def _add_collect(self, transformation: CollectTransformation) -> None:
        reads = self._reads(transformation)
        if len(reads) > 1:
            # The client reads one output, so a task of its own joins the union's inputs.
            united = OperatorTransformation(
                name="Union",
                input=transformation.input,
                factory=OperatorFactory.of("flowlet.operators.process_operator:MapOperator", function=_identity),
                parallelism=transformation.parallelism,
            )
            reads = [(self._add_operator(united), None, None, 1)]
        source, _, tag, _ = reads[0]
        self.edges.append(StreamEdge(source.id, None, Forward(), tag, side_type=self._side_type(source, tag)))

    def _add_operator(self, transformation: OperatorTransformation) -> StreamNode:
        reads = self._reads(transformation)
        node = self._add_node(transformation, [source for source, *_ in reads])
        for source, chosen, tag, input_id in reads:
            partitioner = _resolved(chosen, source, node)
            side_type = self._side_type(source, tag)
            self.edges.append(StreamEdge(source.id, node.id, partitioner, tag, input_id, side_type))
        return node

    def _side_type(self, source: StreamNode, tag: str | None) -> TypeInformation | None:
        return None if tag is None else self._side_types.get((source.transformation, tag))

    def _reads(self, transformation: Transformation) -> list[_Read]:
        """Find what an operator reads: for each input, all operators behind unions, side outputs and partitionings."""
        if not transformation.inputs and not isinstance(transformation, SourceTransformation):
            raise JobGraphError(f"operator {transformation.operator_name!r} reads nothing: it needs an input")
        return [
            read
            for number, upstream in enumerate(transformation.inputs)
            for read in self._resolve(upstream, number + 1)
        ]

    def _resolve(
        self,
        upstream: Transformation,
        input_id: int,
        partitioner: Partitioner | None = None,
        tag: str | None = None,
    ) -> Iterator[_Read]:
        """Walk up to the operators; of several partitionings or tags the one nearest to the reader
        counts, as in Flink.
        """
        match upstream:
            case UnionTransformation(streams=streams):
                for stream in streams:
                    yield from self._resolve(stream, input_id, partitioner, tag)
            case PartitionTransformation(partitioner=own, inputs=(above,)):
                yield from self._resolve(above, input_id, partitioner or own, tag)
            case SideOutputTransformation(tag_id=tag_id, inputs=(above,), output_type=output_type):
                self._check_side_type(above, tag_id, output_type)
                yield from self._resolve(above, input_id, partitioner, tag or tag_id)
            case operator:
                yield self.nodes[self._node_ids[operator]], partitioner, tag, input_id

    def _check_side_type(self, operator: Transformation, tag_id: str, output_type: TypeInformation) -> None:
        known = self._side_types.setdefault((operator, tag_id), output_type)
        if known != output_type:
            raise JobGraphError(
                f"operator {operator.operator_name!r}: its side output {tag_id!r} is read as {known} and as "
                f"{output_type}; use one OutputTag for it, or another id"
            )

    def _add_node(self, transformation: OperatorTransformation, sources: list[StreamNode]) -> StreamNode:
        settings = self._settings.environment
        node_id = len(self.nodes) + 1
        max_parallelism = (
            transformation.max_parallelism
            or settings.max_parallelism
            or default_max_parallelism(transformation.parallelism)
        )
        if transformation.parallelism > max_parallelism:
            raise JobGraphError(
                f"operator {transformation.operator_name!r}: its parallelism {transformation.parallelism} exceeds its "
                f"max parallelism {max_parallelism}; lower the one or raise the other"
            )
        timeout = transformation.buffer_timeout_ms
        node = StreamNode(
            id=node_id,
            hash=self._hash_of(transformation, node_id, sources),
            name=transformation.operator_name,
            description=transformation.description or transformation.operator_name,
            parallelism=transformation.parallelism,
            max_parallelism=max_parallelism,
            buffer_timeout_ms=settings.buffer_timeout_ms if timeout is None else timeout,
            slot_sharing_group=transformation.slot_sharing_group or _common_group(sources),
            transformation=transformation,
        )
        self.nodes[node_id] = node
        self._node_ids[transformation] = node_id
        return node

    def _hash_of(self, transformation: Transformation, node_id: int, sources: list[StreamNode]) -> str:
        if transformation.uid_hash is not None:
            for other in self.nodes.values():
                if other.hash == transformation.uid_hash:
                    raise JobGraphError(
                        f"operators {other.name!r} and {transformation.operator_name!r} have the same hash {other.hash}"
                    )
            return transformation.uid_hash
        if transformation.uid is None:
            return stable_id("position", node_id, *[source.hash for source in sources])
        for other in self.nodes.values():
            if other.transformation.uid == transformation.uid:
                raise JobGraphError(
                    f"operators {other.name!r} and {transformation.operator_name!r} have the same uid "
                    f"{transformation.uid!r}; give each its own"
                )
        return stable_id("uid", transformation.uid)


def _identity(record: object) -> object:
    return record


def _with_inputs(transformations: Iterable[Transformation]) -> list[Transformation]:
    """Return the transformations and everything that they read, each once, after its inputs."""
    ordered: dict[Transformation, None] = {}
    waiting = list(transformations)[::-1]
    while waiting:
        unread = [item for item in waiting[-1].inputs if item not in ordered]
        if unread:
            waiting += unread[::-1]
        else:
            ordered[waiting.pop()] = None
    return list(ordered)


def _common_group(sources: list[StreamNode]) -> str:
    """Return the group of the inputs if they agree, else the default, as in Flink."""
    groups = {source.slot_sharing_group for source in sources}
    return groups.pop() if len(groups) == 1 else DEFAULT_SLOT_SHARING_GROUP


def _resolved(partitioner: Partitioner | None, source: StreamNode, target: StreamNode) -> Partitioner:
    """Return the partitioner of an edge; if none was asked for, forward between equal parallelisms, otherwise
    rebalance.
    """
    match partitioner:
        case None:
            return Forward() if source.parallelism == target.parallelism else Rebalance()
        case KeyGroups():
            return replace(partitioner, max_parallelism=target.max_parallelism)
        case Forward() if source.parallelism != target.parallelism:
            raise JobGraphError(
                f"forward() from {source.name!r} (parallelism {source.parallelism}) to {target.name!r} (parallelism "
                f"{target.parallelism}): "
                "it does not allow a change of parallelism; use rebalance(), or set the same parallelism on both"
            )
        case _:
            return partitioner


def _is_batch(runtime_mode: str, transformations: list[Transformation]) -> bool:
    unbounded = [item for item in transformations if isinstance(item, SourceTransformation) and not item.is_bounded]
    if runtime_mode == "BATCH" and unbounded:
        raise JobGraphError(
            f"the runtime mode BATCH needs inputs that end, but {unbounded[0].operator_name!r} is unbounded; use "
            "STREAMING or AUTOMATIC"
        )
    return runtime_mode == "BATCH" or (runtime_mode == "AUTOMATIC" and not unbounded)


def _pact(transformation: OperatorTransformation) -> str:
    if isinstance(transformation, SourceTransformation):
        return "Data Source"
    return "Data Sink" if transformation.is_sink else "Operator"
