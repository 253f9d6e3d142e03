"""Which data in flight of a checkpoint concern the inputs of a vertex.

Side:       pure.
Rules:      data in flight on an edge are in two places: what had reached the consumer is in the consumer's part of the
            checkpoint, by the index of the gate; what had not is in the producer's part, by the index of the partition.
            Gates count the edges into a vertex, partitions those out of it, both in the order of the job.  All of it is
            processed by the consumers; producers restore nothing.  Another job's data go to the operator that would
            have read them, by its input, wherever it is now: at the head of a vertex, or inside a chain.  Which
            operator sent them does not matter.
Source:     Flink ``StateAssignmentOperation.reDistributeInputChannelStates``, ``reDistributeResultSubpartitionStates``;
            there, producers send what they had again, and an edge that became part of a chain is refused.
"""

from collections.abc import Mapping, Sequence

from flowlet.graph.partitioner import KeyGroups
from flowlet.messages.control_messages import JobGraphMessage, RestoredEdge, RestoredPart
from flowlet.storage.manifest import CheckpointManifest, EdgeEntry, SubtaskEntry
from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class InFlightEdge:
    """One edge between two vertices, without its blob: ``gate`` of ``target`` reads partition
    ``output`` of ``source``.
    """

    edge_id: str
    source: str
    output: int
    target: str
    gate: int
    is_pointwise: bool
    num_producers: int


def in_flight_edges(job: JobGraphMessage) -> list[InFlightEdge]:
    """The edges of a job that can have data in flight in a checkpoint: those that tasks read."""
    num_outputs: dict[str, int] = {}
    num_gates: dict[str, int] = {}
    parallelisms = {vertex.id: vertex.parallelism for vertex in job.vertices}
    edges = []
    for edge in job.edges:
        output = num_outputs[edge.source] = num_outputs.get(edge.source, -1) + 1
        if edge.target is not None:
            gate = num_gates[edge.target] = num_gates.get(edge.target, -1) + 1
            edges.append(
                InFlightEdge(
                    edge.id, edge.source, output, edge.target, gate, edge.is_pointwise, parallelisms[edge.source]
                )
            )
    return edges


def edge_entries(job: JobGraphMessage) -> list[EdgeEntry]:
    """The edges of ``in_flight_edges``, in the same order, as a checkpoint names them."""
    operators = {vertex.id: vertex.operator_ids for vertex in job.vertices}
    messages = {edge.id: edge for edge in job.edges}
    entries = []
    for each in in_flight_edges(job):
        edge, ids = messages[each.edge_id], operators[each.source]
        emitter = ids[edge.source_operator] if ids else ""
        is_by_key = edge.ship_strategy == KeyGroups.ship_strategy
        entries.append(
            EdgeEntry(each.source, each.output, each.target, each.gate, emitter, edge.input_id, edge.tag, is_by_key)
        )
    return entries


@dataclass(frozen=True, slots=True)
class MovedEdge:
    """An edge of another job's checkpoint, and where its data in flight go now.

    ``vertex_id``: that of the operator that read it; None: there is no such operator, or it has no such input.
    ``operator``: the index of that in its chain.  ``edge``: the one that leads to it; None: it is inside a chain.
    ``is_same``: the same operator feeds that edge.
    """

    former: EdgeEntry
    vertex_id: str | None = None
    operator: int = 0
    edge: InFlightEdge | None = None
    is_same: bool = False
    is_by_key_now: bool = False


def moved_edges(former: Sequence[EdgeEntry], job: JobGraphMessage) -> list[MovedEdge]:
    """Where the data in flight of each edge of a checkpoint go in a job."""
    places = {
        operator: (vertex.id, index) for vertex in job.vertices for index, operator in enumerate(vertex.operator_ids)
    }
    into: dict[str, list[tuple[EdgeEntry, InFlightEdge]]] = {}
    for entry, edge in zip(edge_entries(job), in_flight_edges(job), strict=True):
        into.setdefault(edge.target, []).append((entry, edge))
    taken: set[str] = set()
    return [_moved(each, places.get(each.target), into.get(each.target, []), taken) for each in former]


def _moved(
    former: EdgeEntry, place: tuple[str, int] | None, edges: list[tuple[EdgeEntry, InFlightEdge]], taken: set[str]
) -> MovedEdge:
    if place is None:
        return MovedEdge(former)
    vertex_id, index = place
    if index:
        return MovedEdge(former, vertex_id, index)
    fitting = [each for each in edges if each[0].input_id == former.input_id]
    same = [each for each in fitting if (each[0].source_operator, each[0].tag) == (former.source_operator, former.tag)]
    # Of several edges between the same operators, each goes on as the one that has its place among them.
    entry, edge = next((each for each in same if each[1].edge_id not in taken), next(iter(fitting), (None, None)))
    if entry is None or edge is None:
        return MovedEdge(former)
    is_same = any(each[1] is edge for each in same) and edge.edge_id not in taken
    taken.add(edge.edge_id)
    return MovedEdge(former, vertex_id, 0, edge, is_same, entry.is_by_key and not former.is_by_key)


def restored_edges(
    edges: Sequence[InFlightEdge],
    manifest: CheckpointManifest,
    parts: Mapping[str, Mapping[int, SubtaskEntry]],
    vertex_id: str,
) -> list[RestoredEdge]:
    """The edges into a vertex that may have data in flight in a checkpoint; ``parts`` of it by vertex and subtask."""
    has_input = any(entry.channels is not None for entry in parts.get(vertex_id, {}).values())
    found = []
    for edge in edges:
        if edge.target != vertex_id or not {vertex_id, edge.source} <= manifest.parallelisms.keys():
            continue
        producers = [
            RestoredPart(subtask, channels=entry.channels)
            for subtask, entry in sorted(parts.get(edge.source, {}).items())
            if entry.channels is not None
        ]
        if producers or has_input:
            former_producers, former_consumers = manifest.parallelisms[edge.source], manifest.parallelisms[vertex_id]
            found.append(
                RestoredEdge(
                    edge.edge_id,
                    edge.gate,
                    edge.output,
                    producers,
                    former_producers,
                    former_consumers,
                    edge.num_producers,
                    edge.is_pointwise,
                )
            )
    return found
